//! Pools made, mounted and filled by the built `cenote` binary, judged by OpenZFS's `zdb`, and what
//! is left of them after the pool process was killed.
//!
//! Needs a usable /dev/fuse, else the tests are skipped with the reason; without `zdb` that one
//! judgement is left out, with a word on standard error.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

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

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn devices(&self, count: usize) -> Vec<String> {
        (0..count).map(|n| self.at("d").join(format!("f{n}")).display().to_string()).collect()
    }

    fn output(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_cenote"))
            .args(arguments)
            .env("CENOTE_RUN_DIR", self.at("run"))
            .env("CENOTE_LOG", "info,cenote_posix=debug")
            .output()
            .unwrap()
    }

    fn cenote(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        let log = std::fs::read_to_string(self.at("run/tank.log")).unwrap_or_default();
        assert!(output.status.success(), "{arguments:?}: {said}\n{log}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn create(&self, layout: &[&str]) {
        let mountpoint = self.at("mnt").display().to_string();
        let mut arguments = vec!["zpool", "create", "-R", mountpoint.as_str(), "tank"];
        arguments.extend(layout);
        self.cenote(&arguments);
    }

    fn import(&self) {
        let mountpoint = self.at("mnt").display().to_string();
        let place = self.at("d").display().to_string();
        self.cenote(&["zpool", "import", "-d", &place, "-R", &mountpoint, "tank"]);
    }

    fn zdb(&self) {
        let found = Command::new("zdb")
            .args(["-e", "-bcc", "-p"])
            .args([self.at("d").as_os_str(), "tank".as_ref()])
            .output();
        let Ok(output) = found else {
            eprintln!("zdb is not installed: not asked");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("No leaks"), "{text}");
    }

    fn manifest(&self) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/manifest.py");
        let output = Command::new("python3")
            .arg(script)
            .arg(self.at("mnt/tank"))
            .arg("--no-times")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.at("run/tank.log")).unwrap_or_default();
            eprintln!("the log of the pool process:\n{log}");
        }
        let _ = self.output(&["zpool", "export", "-f", "tank"]);
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = self.directory.path().display().to_string();
        for line in mounts.lines().rev() {
            if let Some(at) = line.split(' ').nth(1).filter(|at| at.starts_with(&own)) {
                let _ = Command::new("umount").args(["-l", at]).status();
            }
        }
    }
}

/// Why nothing can be mounted here.
fn cannot_mount() -> Option<String> {
    let opened = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    opened.err().map(|error| format!("skipped: /dev/fuse: {error}"))
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

#[test]
fn what_was_synced_survives_a_kill() {
    if let Some(reason) = cannot_mount() {
        eprintln!("{reason}");
        return;
    }
    let bench = Bench::new(2);
    let devices = bench.devices(2);
    bench.create(&["mirror", &devices[0], &devices[1]]);
    let root = bench.at("mnt/tank");
    fill(&root);
    bench.cenote(&["zpool", "sync", "tank"]);
    let before = bench.manifest();
    // After the group: only the intent log has these.
    let late = root.join("late");
    std::fs::create_dir(&late).unwrap();
    for number in 0..40u32 {
        let file = std::fs::File::create(late.join(format!("f{number}"))).unwrap();
        (&file).write_all(&noise(5000 * number as usize, number)).unwrap();
        file.sync_all().unwrap();
    }
    let pid = std::fs::read_to_string(bench.at("run/tank.pid")).unwrap();
    let pid = pid.split_whitespace().next().unwrap().to_owned();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    std::thread::sleep(std::time::Duration::from_millis(300));
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
