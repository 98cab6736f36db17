//! Pools made, mounted and filled by the built `cenote` binary, judged by OpenZFS's `zdb`, and what
//! is left of them after the pool process was killed.
//!
//! Needs a usable /dev/fuse, else the tests are skipped with the reason; without `zdb` that one
//! judgement is left out, with a word on standard error.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bound;
mod checkpoint;
mod commands;
mod crowded;
mod dedup;
mod delegated;
mod diff;
mod directories;
mod drill;
mod encrypted;
mod evacuate;
mod events;
mod exchanged;
mod few_threads;
mod frozen;
mod histories;
mod host;
mod little_memory;
mod members;
mod modern;
mod monitors;
mod mount_helper;
mod names;
mod once;
mod placed;
mod policy;
mod probes;
mod programs;
mod quotas;
mod readers;
mod rebuild;
mod receive;
mod recorded;
mod redacted;
mod refusals;
mod replaced;
mod replicate;
mod replicators;
mod saved;
mod sending;
mod sessions;
mod silent;
mod suspended;
mod tells;
mod volumes;
mod whole_disks;
mod worn;
mod zed;
mod zinject;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Bytes of a device.
const SIZE: u64 = 192 << 20;

struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new(devices: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let bench = Self { directory };
        std::fs::create_dir(bench.at("d")).unwrap();
        for path in bench.devices(devices) {
            std::fs::File::create(path).unwrap().set_len(SIZE).unwrap();
        }
        bench
    }

    /// A place whose pools are mounted, with the names of its devices; none where nothing can be.
    fn mounting(devices: usize) -> Option<(Self, Vec<String>)> {
        if may_not_run() {
            return None;
        }
        let bench = Self::new(devices);
        let names = bench.devices(devices);
        Some((bench, names))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn devices(&self, count: usize) -> Vec<String> {
        (0..count).map(|n| self.at("d").join(format!("f{n}")).display().to_string()).collect()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
        command
            .args(arguments)
            .env("CENOTE_RUN_DIR", self.at("run"))
            .env("CENOTE_LOG", "info,cenote_posix=debug");
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What a command prints, which must go well.
    fn cenote(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        let log = std::fs::read_to_string(self.at("run/tank.log")).unwrap_or_default();
        assert!(output.status.success(), "{arguments:?}: {said}\n{log}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn create(&self, layout: &[&str]) {
        self.create_with(&[], layout);
    }

    fn create_with(&self, options: &[&str], layout: &[&str]) {
        let mountpoint = self.at("mnt").display().to_string();
        let create = ["zpool", "create", "-R", &mountpoint];
        self.cenote(&[&create[..], options, &["tank"], layout].concat());
    }

    fn import(&self) {
        let mountpoint = self.at("mnt").display().to_string();
        let place = self.at("d").display().to_string();
        self.cenote(&["zpool", "import", "-d", &place, "-R", &mountpoint, "tank"]);
    }

    /// Ends the pool process as a crash would.
    fn kill(&self) {
        let pid = std::fs::read_to_string(self.at("run/tank.pid")).unwrap();
        let pid = pid.split_whitespace().next().unwrap().to_owned();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        std::thread::sleep(std::time::Duration::from_millis(300));
    }

    fn zdb(&self) {
        self.judged_by(&mut Command::new("zdb"));
    }

    /// What a `zdb` says of the exported pool.
    fn judged_by(&self, zdb: &mut Command) {
        let found = zdb
            .args(["-e", "-bcc", "-p"])
            .args([self.at("d").as_os_str(), "tank".as_ref()])
            .output();
        let Ok(output) = found else {
            eprintln!("{} is not installed: not asked", zdb.get_program().display());
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("No leaks"), "{text}");
    }

    fn manifest(&self) -> String {
        manifest(&self.at("mnt/tank"))
    }
}

/// Everything below a place.
fn manifest(root: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/manifest.py");
    let output = Command::new("python3").arg(script).arg(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.at("run/tank.log")).unwrap_or_default();
            eprintln!("the log of the pool process:\n{log}");
        }
        let _ = self.output(&["zpool", "export", "-a", "-f"]);
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = self.directory.path().display().to_string();
        for line in mounts.lines().rev() {
            if let Some(at) = line.split(' ').nth(1).filter(|at| at.starts_with(&own)) {
                let _ = Command::new("umount").args(["-l", at]).status();
            }
        }
    }
}

/// For a shell in a mount namespace of its own: what other tests have mounted is not to be in use there.
const ALONE: &str = r#"grep " fuse.cenote " /proc/self/mounts | cut -d " " -f 2 | grep -v "$HERE" |
    while read -r at; do umount -c -i -l "$at" 2>&1 || true; done | cat >/dev/null;"#;

/// Whether nothing can be mounted here; says why.
fn may_not_run() -> bool {
    let opened = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    opened.inspect_err(|error| eprintln!("skipped: /dev/fuse: {error}")).is_err()
}

fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A file that is on the disks when this returns.
fn write_synced(path: &Path, content: &[u8]) {
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

fn fill(root: &Path) {
    for (number, len) in
        [0, 1, 511, 512, 4096, 70_000, 131_072, 131_073, 3_000_000].iter().enumerate()
    {
        std::fs::write(root.join(format!("file{number}")), noise(*len, number as u32)).unwrap();
    }
    let many = root.join("many");
    std::fs::create_dir(&many).unwrap();
    for number in 0..400 {
        std::fs::write(many.join(format!("a name of some length {number}")), b"x").unwrap();
    }
    for number in (0..400).step_by(3) {
        std::fs::remove_file(many.join(format!("a name of some length {number}"))).unwrap();
    }
    std::os::unix::fs::symlink("many/elsewhere", root.join("link")).unwrap();
    std::fs::hard_link(root.join("file4"), root.join("second name")).unwrap();
    std::fs::rename(root.join("file5"), many.join("moved")).unwrap();
    let sparse = std::fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 26).unwrap();
    let mut text = std::fs::File::create(root.join("text")).unwrap();
    for line in 0..20_000 {
        writeln!(text, "line {line} of a text that compresses").unwrap();
    }
}

/// A file of one block that grows to several while its first size is on the disks already.
fn grow(bench: &Bench, path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    let mut expected = Vec::new();
    for (number, len) in [1000, 20_000, 110_072, 4096, 200_000].into_iter().enumerate() {
        let part = noise(len, 77 + number as u32);
        file.write_all(&part).unwrap();
        expected.extend(part);
        if number % 2 == 0 {
            bench.cenote(&["zpool", "sync", "tank"]);
        }
    }
    drop(file);
    assert!(std::fs::read(path).unwrap() == expected, "a growing file differs");
}

/// Everything one layout must stand: filled, exported, judged, read again with a device less.
fn fill_and_read_again(kind: &str, count: usize) {
    let Some((bench, devices)) = Bench::mounting(count) else { return };
    let words: Vec<&str> = [kind]
        .into_iter()
        .filter(|kind| !kind.is_empty())
        .chain(devices.iter().map(String::as_str))
        .collect();
    bench.create(&words);
    let root = bench.at("mnt/tank");
    fill(&root);
    grow(&bench, &root.join("grown"));
    bench.cenote(&["zfs", "create", "-o", "compression=gzip", "-o", "recordsize=1M", "tank/sub"]);
    fill(&root.join("sub"));
    bench.cenote(&["zfs", "snapshot", "tank/sub@one"]);
    std::fs::remove_dir_all(root.join("sub/many")).unwrap();
    let before = bench.manifest();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    if !kind.is_empty() {
        std::fs::remove_file(&devices[0]).unwrap();
    }
    bench.import();
    assert!(bench.manifest() == before, "the files differ");
    let snapshot = root.join("sub/.zfs/snapshot/one/many");
    assert_eq!(std::fs::read_dir(snapshot).unwrap().count(), 267);
    bench.cenote(&["zfs", "destroy", "-r", "tank/sub"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_stripe_is_filled_exported_and_read_again() {
    fill_and_read_again("", 2);
}

#[test]
fn a_mirror_is_filled_exported_and_read_again() {
    fill_and_read_again("mirror", 2);
}

#[test]
fn raidz_is_filled_exported_and_read_again() {
    fill_and_read_again("raidz1", 3);
    fill_and_read_again("raidz3", 6);
}

#[test]
fn draid_is_filled_exported_and_read_again() {
    fill_and_read_again("draid1:2d:4c", 4);
}

#[test]
fn what_was_synced_survives_a_kill() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    bench.create(&["mirror", &devices[0], &devices[1]]);
    let root = bench.at("mnt/tank");
    fill(&root);
    bench.cenote(&["zpool", "sync", "tank"]);
    let before = bench.manifest();
    // After the group: only the intent log has these.
    let late = root.join("late");
    std::fs::create_dir(&late).unwrap();
    for number in 0..40u32 {
        write_synced(&late.join(format!("f{number}")), &noise(5000 * number as usize, number));
    }
    bench.kill();
    bench.import();
    for number in 0..40u32 {
        let found = std::fs::read(late.join(format!("f{number}"))).unwrap();
        assert!(found == noise(5000 * number as usize, number), "f{number} differs");
    }
    std::fs::remove_dir_all(&late).unwrap();
    assert!(bench.manifest() == before, "the files differ");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

impl Bench {
    /// What a command that must fail says.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(!output.status.success(), "{arguments:?} was done");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn value(&self, property: &str, dataset: &str) -> String {
        let text = self.cenote(&["zfs", "get", "-Hp", "-o", "value", property, dataset]);
        text.trim_end().to_owned()
    }

    /// Flags of the mount of `tank/a`.
    fn flags(&self) -> String {
        let at = self.at("mnt/tank/a").display().to_string();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|line| line.split(' ').nth(4) == Some(&at)).unwrap();
        line.split(' ').nth(5).unwrap().to_owned()
    }
}

#[test]
fn mounts_in_use_follow_their_properties() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&[&bench.devices(1)[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    let root = bench.at("mnt/tank/a");
    std::fs::write(root.join("file"), "x").unwrap();
    let _open = std::fs::File::open(root.join("file")).unwrap();
    bench.cenote(&["zfs", "set", "readonly=on", "tank/a"]);
    assert!(bench.flags().starts_with("ro"), "{}", bench.flags());
    assert!(std::fs::write(root.join("file"), "y").is_err());
    bench.cenote(&["zfs", "set", "exec=off", "setuid=off", "atime=off", "tank"]);
    assert_eq!(bench.flags(), "ro,nosuid,noexec,noatime");
    bench.cenote(&["zfs", "inherit", "readonly", "tank/a"]);
    std::fs::write(root.join("file"), "y").unwrap();
    // Options of the mount stand before the properties, until those are set anew.
    bench.cenote(&["zfs", "mount", "-o", "remount,ro,exec", "tank/a"]);
    assert_eq!(bench.flags(), "ro,nosuid,noatime");
    let shown = bench.cenote(&["zfs", "get", "-H", "-o", "value,source", "exec", "tank/a"]);
    assert_eq!(shown, "on\ttemporary\n");
    bench.cenote(&["zfs", "set", "exec=off", "readonly=off", "tank/a"]);
    assert_eq!(bench.flags(), "rw,nosuid,noexec,noatime");
    // A file open for writing keeps a filesystem writable.
    let writer = std::fs::File::create(root.join("file")).unwrap();
    let said = bench.refused(&["zfs", "set", "readonly=on", "tank/a"]);
    assert!(said.contains("property may be set but unable to remount filesystem"), "{said}");
    drop(writer);
    for sync in ["always", "disabled", "standard"] {
        bench.cenote(&["zfs", "set", &format!("sync={sync}"), "readonly=off", "tank/a"]);
        std::fs::write(root.join(sync), sync).unwrap();
        std::fs::File::open(root.join(sync)).unwrap().sync_all().unwrap();
    }
    drop(_open);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_sync_always_acknowledged_survives_a_kill() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&["-O", "sync=always", &bench.devices(1)[0]]);
    let root = bench.at("mnt/tank");
    std::fs::create_dir(root.join("d")).unwrap();
    for number in 0..30u32 {
        std::fs::write(root.join(format!("d/f{number}")), noise(3000, number)).unwrap();
    }
    std::fs::remove_file(root.join("d/f7")).unwrap();
    bench.kill();
    bench.import();
    for number in (0..30u32).filter(|number| *number != 7) {
        let found = std::fs::read(root.join(format!("d/f{number}"))).unwrap();
        assert!(found == noise(3000, number), "f{number} differs");
    }
    assert!(!root.join("d/f7").exists());
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn snapshots_are_cloned_held_and_gone_back_to() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&[&bench.devices(1)[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    let root = bench.at("mnt/tank/a");
    let snapshots = || std::fs::read_dir(root.join(".zfs/snapshot")).unwrap().count();
    for number in 0..9u32 {
        write_synced(&root.join(format!("f{number}")), &noise(40_000, number));
    }
    // What the kernel remembers of snapshots that are not there must not stay.
    assert_eq!(snapshots(), 0);
    assert!(!root.join(".zfs/snapshot/one").exists());
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    assert_eq!(snapshots(), 1);
    let restored = std::fs::copy(root.join(".zfs/snapshot/one/f3"), root.join("f3 again"));
    assert_eq!(restored.unwrap(), 40_000);
    assert!(std::fs::read(root.join("f3 again")).unwrap() == noise(40_000, 3));
    std::fs::remove_file(root.join("f3 again")).unwrap();
    bench.cenote(&["zfs", "clone", "-o", "atime=off", "tank/a@one", "tank/c"]);
    assert_eq!(bench.value("origin", "tank/c"), "tank/a@one");
    std::fs::remove_file(bench.at("mnt/tank/c/f1")).unwrap();
    let said = bench.refused(&["zfs", "clone", "tank/a@one", "tank/c"]);
    assert_eq!(said, "cannot create 'tank/c': dataset already exists\n");
    bench.cenote(&["zfs", "hold", "keep", "tank/a@one"]);
    let said = bench.refused(&["zfs", "hold", "keep", "tank/a@one"]);
    assert_eq!(said, "cannot hold snapshot 'tank/a@one': tag already exists on this dataset\n");
    assert!(bench.cenote(&["zfs", "holds", "-H", "tank/a@one"]).starts_with("tank/a@one\tkeep\t"));
    bench.cenote(&["zfs", "bookmark", "tank/a@one", "#mark"]);
    std::fs::write(root.join("f2"), "changed").unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    bench.cenote(&["zfs", "clone", "tank/a@two", "tank/d"]);
    let said = bench.refused(&["zfs", "rollback", "tank/a@one"]);
    assert!(said.contains("use '-r' to force deletion") && said.contains("tank/a@two"), "{said}");
    let said = bench.refused(&["zfs", "rollback", "-r", "tank/a@one"]);
    assert!(said.contains("use '-R' to force deletion") && said.contains("tank/d"), "{said}");
    bench.cenote(&["zfs", "rollback", "-R", "tank/a@one"]);
    assert!(std::fs::read(root.join("f2")).unwrap() == noise(40_000, 2));
    assert_eq!(snapshots(), 1);
    bench.cenote(&["zfs", "promote", "tank/c"]);
    assert_eq!(bench.value("origin", "tank/a"), "tank/c@one");
    assert_eq!(snapshots(), 0);
    bench.cenote(&["zfs", "destroy", "-d", "tank/c@one"]);
    assert_eq!(bench.value("defer_destroy", "tank/c@one"), "on");
    bench.cenote(&["zfs", "destroy", "tank/a"]);
    bench.cenote(&["zfs", "release", "keep", "tank/c@one"]);
    bench.refused(&["zfs", "list", "tank/c@one"]);
    bench.cenote(&["zfs", "destroy", "tank/c#mark"]);
    // Quotas of somebody, and the size of a volume.
    bench.cenote(&["zfs", "set", "userquota@7=3M", "userobjquota@7=5", "tank/c"]);
    assert_eq!(bench.value("userquota@7", "tank/c"), (3 << 20).to_string());
    bench.cenote(&["zfs", "umount", "tank/c"]);
    bench.cenote(&["zfs", "set", "userquota@7=none", "groupquota@8=1M", "tank/c"]);
    assert_eq!(bench.value("userquota@7", "tank/c"), "0");
    assert_eq!(bench.value("groupquota@8", "tank/c"), (1 << 20).to_string());
    bench.cenote(&["zfs", "create", "-V", "16M", "tank/v"]);
    bench.cenote(&["zfs", "set", "volsize=8M", "tank/v"]);
    assert_eq!(bench.value("volsize", "tank/v"), (8 << 20).to_string());
    bench.cenote(&["zpool", "reguid", "tank"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert_eq!(bench.value("groupquota@8", "tank/c"), (1 << 20).to_string());
    assert_eq!(std::fs::read_dir(bench.at("mnt/tank/c")).unwrap().count(), 8);
}
