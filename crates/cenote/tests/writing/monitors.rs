//! Programs that watch pools, by the command lines that they run and how they read the answers (`monitors.py`, one
//! function a program). Some of them run as they are in `readers` and `replicators`.
//!
//! Invariant: each sees a pool that is well as well, whatever `status` remarks on it, and names what is not.

use std::process::Command;

use super::Bench;

impl Bench {
    /// Puts `zfs` and `zpool` where shells find them.
    fn link_tools(&self) {
        std::fs::create_dir(self.at("bin")).unwrap();
        for name in ["zfs", "zpool"] {
            let link = self.at("bin").join(name);
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cenote"), link).unwrap();
        }
    }

    /// What each of the programs tells of the pool.
    fn watched(&self) -> Vec<String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/writing/monitors.py");
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.at("bin").display());
        let mut command = Command::new("python3");
        command.args([script, "tank"]).env("PATH", path).env("LC_ALL", "C.UTF-8");
        let output = command.env("CENOTE_RUN_DIR", self.at("run")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{}", self.status());
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }
}

#[test]
fn monitors_see_what_is_well_and_what_is_not() {
    let Some((bench, d)) = Bench::mounting(6) else { return };
    bench.link_tools();
    bench.create(&["mirror", &d[0], &d[1], "log", &d[2], "cache", &d[3], "spare", &d[4]]);
    bench.cenote(&["zfs", "create", "tank/data"]);
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    let layout = "data:mirror:f0 data:mirror:f1 logs:disk:f2 cache:disk:f3 spares:disk:f4";
    let rows = "1tank 2mirror-0 3f0 3f1 1logs 2f2 1cache 2f3 1spares 2f4";
    let leaves = "leaves=f0,f1,f2,f3,f4";
    let told = [
        "sanoid: tank ONLINE".to_owned(),
        "auto_snapshot: ready=tank scrubbing=".to_owned(),
        "exporter: health=0 readonly=0".to_owned(),
        format!("ansible: ONLINE enabled {layout}"),
        "go_zfs: tank ONLINE".to_owned(),
        format!("proxmox: ONLINE No known data errors {rows} {leaves}"),
        "libvirt: ONLINE".to_owned(),
        "cockpit: tank legacy=False under_way=False to_go=False".to_owned(),
        "zedlet: True".to_owned(),
    ];
    assert_eq!(bench.watched(), told);
    bench.cenote(&["zpool", "offline", "tank", &d[1]]);
    let told = [
        "sanoid: tank DEGRADED mirror-0=DEGRADED f1=OFFLINE".to_owned(),
        "auto_snapshot: ready=tank scrubbing=".to_owned(),
        "exporter: health=1 readonly=0".to_owned(),
        format!("ansible: DEGRADED enabled {layout}"),
        "go_zfs: tank DEGRADED".to_owned(),
        format!("proxmox: DEGRADED No known data errors {rows} {leaves}"),
        "libvirt: DEGRADED".to_owned(),
        "cockpit: tank legacy=False under_way=False to_go=False".to_owned(),
        "zedlet: False".to_owned(),
    ];
    assert_eq!(bench.watched(), told);
}
