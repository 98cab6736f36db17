//! Filesystems that are mounted at more than one place: bound elsewhere, or seen in another mount namespace.
//!
//! Invariant: as long as somebody can reach a filesystem, what is written to it is kept, or refused.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{ALONE, Bench, may_not_run, noise, write_synced};

fn is_root() -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        eprintln!("skipped: only root binds mounts");
    }
    is
}

fn mount(arguments: &[&str]) {
    let output = Command::new("mount").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn is_mounted(at: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == at.to_str())
}

/// A shell in a namespace of its own, which keeps what is mounted now.
struct Apart(Child, BufReader<std::process::ChildStdout>);

impl Apart {
    fn begin(bench: &Bench) -> Self {
        let mut child = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh"])
            .env("HERE", bench.at("."))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut shell = Self(child, answers);
        assert_eq!(shell.run(&format!("{ALONE} true")), "0");
        shell
    }

    /// The exit code of a command.
    fn run(&mut self, command: &str) -> String {
        let line = format!("{command} 2>/dev/null; echo $?\n").replace('\n', " ") + "\n";
        self.0.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        self.1.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[test]
fn a_filesystem_that_is_bound_elsewhere_is_busy() {
    if may_not_run() || !is_root() {
        return;
    }
    let bench = Bench::new(1);
    bench.create(&[&bench.devices(1)[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    let (own, other) = (bench.at("mnt/tank/a"), bench.at("other"));
    std::fs::create_dir(&other).unwrap();
    mount(&["--bind", own.to_str().unwrap(), other.to_str().unwrap()]);
    let data = noise(200_000, 1);
    write_synced(&other.join("one"), &data);
    let said = bench.refused(&["zfs", "unmount", "tank/a"]);
    assert!(said.contains("busy") && said.contains("another place"), "{said}");
    assert!(is_mounted(&own));
    write_synced(&other.join("two"), &data);
    assert!(std::fs::read(own.join("two")).unwrap() == data);
    rustix::mount::unmount(&other, rustix::mount::UnmountFlags::empty()).unwrap();
    bench.cenote(&["zfs", "unmount", "tank/a"]);
    bench.cenote(&["zfs", "mount", "tank/a"]);
    for name in ["one", "two"] {
        assert!(std::fs::read(own.join(name)).unwrap() == data);
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_another_namespace_writes_is_kept_or_refused() {
    if may_not_run() || !is_root() {
        return;
    }
    let bench = Bench::new(1);
    bench.create(&[&bench.devices(1)[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    let own = bench.at("mnt/tank/a");
    let write = |name: &str| {
        let to = own.join(name);
        format!("dd if=/dev/zero of={} bs=64k count=3 conv=fsync status=none", to.display())
    };
    let mut apart = Apart::begin(&bench);
    assert_eq!(apart.run(&write("before")), "0");
    // The kernel does not say who else has it: it is served on.
    let output = bench.output(&["zfs", "unmount", "tank/a"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("in use, in another mount namespace"), "{said}");
    assert_eq!(bench.value("mounted", "tank/a"), "no");
    assert_eq!(apart.run(&write("after")), "0");
    for order in [&["zfs", "mount", "tank/a"][..], &["zfs", "destroy", "tank/a"]] {
        let said = bench.refused(order);
        assert!(said.contains("in use") || said.contains("busy"), "{said}");
    }
    // What is mounted again with others is not, either.
    bench.output(&["zfs", "mount", "-a"]);
    for _ in 0..2 {
        assert!(bench.refused(&["zpool", "export", "tank"]).contains("busy"));
    }
    assert_eq!(apart.run(&write("later")), "0");
    apart.end();
    bench.cenote(&["zfs", "mount", "tank/a"]);
    for name in ["before", "after", "later"] {
        assert_eq!(std::fs::metadata(own.join(name)).unwrap().len(), 3 << 16, "{name}");
    }

    // By force it is cut off everywhere.
    let mut apart = Apart::begin(&bench);
    assert_eq!(apart.run(&write("kept")), "0");
    bench.cenote(&["zfs", "unmount", "-f", "tank/a"]);
    assert_ne!(apart.run(&write("lost")), "0");
    bench.cenote(&["zfs", "mount", "tank/a"]);
    assert_ne!(apart.run(&write("lost")), "0");
    assert!(own.join("kept").exists() && !own.join("lost").exists());
    apart.end();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
