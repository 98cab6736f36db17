//! Unmodified programs of others that read what `zpool status`, `zpool list` and `zfs list` say.
//!
//! `.ci/tools` fetches them into `target/tools/venv`; what is not there is skipped, with the reason. Invariant: each
//! sees a pool that is well as well, and names the device that is not.

use std::path::PathBuf;
use std::process::Command;

use super::Bench;

const STATUS: &str = r#"
import subprocess
from zpool_status import ZPool
text = subprocess.check_output(["zpool", "status", "tank"], text=True)
pool = ZPool("tank").parse_status_output(text)
(top,) = pool["config"]
(mirror,) = top["virtual devices"]
leaves = [(leaf["name"].split("/")[-1], str(leaf["state"]), leaf["read"]) for leaf in mirror["devices"]]
print(pool["pool"], str(pool["state"]), mirror["name"], leaves, pool["errors"])
"#;

const DATASETS: &str = r#"
import zfslib
pools = zfslib.Connection(host="localhost").load_poolset()
dataset = pools.get_pool("tank").get_dataset("data")
print(dataset.path, dataset.mounted, [snapshot.name for snapshot in dataset.get_snapshots()])
"#;

struct Readers(Bench);

impl Readers {
    fn new() -> Option<Self> {
        let python = Self::bin().join("python3");
        if !python.exists() {
            eprintln!("skipped: no {} (.ci/tools makes it)", python.display());
            return None;
        }
        let (bench, devices) = Bench::mounting(2)?;
        std::fs::create_dir(bench.at("bin")).unwrap();
        for name in ["zfs", "zpool"] {
            let link = bench.at("bin").join(name);
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cenote"), link).unwrap();
        }
        let root = bench.at("mnt").display().to_string();
        bench.cenote(&["zpool", "create", "-R", &root, "tank", "mirror", &devices[0], &devices[1]]);
        bench.cenote(&["zfs", "create", "tank/data"]);
        bench.cenote(&["zfs", "snapshot", "tank/data@one"]);
        Some(Self(bench))
    }

    fn bin() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/venv/bin")
    }

    /// What a program of the virtual environment says, and its exit code; `None` if a module is missing.
    fn says(&self, program: &str, arguments: &[&str]) -> Option<(String, i32)> {
        let mut command = Command::new(Self::bin().join(program));
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.0.at("bin").display());
        command.args(arguments).env("PATH", path).env("CENOTE_RUN_DIR", self.0.at("run"));
        command.env("HOME", self.0.directory.path());
        let output = command.output().ok()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if errors.contains("ModuleNotFoundError") {
            eprintln!("skipped: {errors}");
            return None;
        }
        Some((format!("{said}{errors}"), output.status.code()?))
    }
}

#[test]
fn what_status_says_is_read_by_others() {
    let Some(readers) = Readers::new() else { return };
    let check = |wanted: i32| {
        let said = readers.says("check_zpools", &["check", "--format", "json"])?;
        assert_eq!(said.1, wanted, "{}", said.0);
        Some(said.0)
    };
    let _ = check(0);
    if let Some((said, _)) = readers.says("python3", &["-c", STATUS]) {
        let wanted = "tank ONLINE mirror-0 [('f0', 'ONLINE', 0), ('f1', 'ONLINE', 0)] ['No known";
        assert!(said.starts_with(wanted), "{said}");
    }
    let second = readers.0.devices(2)[1].clone();
    readers.0.cenote(&["zpool", "offline", "tank", &second]);
    if let Some((said, _)) = readers.says("python3", &["-c", STATUS]) {
        let wanted =
            "tank DEGRADED mirror-0 [('f0', 'ONLINE', 0), ('f1', 'OFFLINE', 0)] ['No known";
        assert!(said.starts_with(wanted), "{said}");
    }
    if let Some(said) = check(1) {
        assert!(said.contains("Pool is DEGRADED") && said.contains("f1 is OFFLINE"), "{said}");
    }
    if let Some((said, _)) = readers.says("python3", &["-c", DATASETS]) {
        assert!(said.starts_with("tank/data True ['one']"), "{said}");
    }
}
