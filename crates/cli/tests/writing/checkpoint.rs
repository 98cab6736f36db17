//! Checkpoints through the program: what they hold is kept until they are discarded.
//!
//! Invariant: whatever is written and destroyed after it, the pool can be shown as of its
//! checkpoint, and no space is lost.

use std::process::Command;

use super::{Bench, cannot_mount, fill, noise};

impl Bench {
    fn held(&self) -> u64 {
        let text = self.cenote(&["zpool", "get", "-Hp", "-o", "value", "checkpoint", "tank"]);
        text.trim().parse().unwrap_or(0)
    }

    /// What `zdb` says of the pool as of the checkpoint.
    fn zdb_then(&self) {
        let place = self.at("d").display().to_string();
        let found = Command::new("zdb").args(["-e", "-k", "-bcc", "-p", &place, "tank"]).output();
        let Ok(output) = found else { return };
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
    }

    /// The files as of the checkpoint.
    fn manifest_then(&self) -> String {
        let (place, mnt) =
            (self.at("d").display().to_string(), self.at("mnt").display().to_string());
        let options = ["-o", "readonly=on", "--rewind-to-checkpoint"];
        let mut arguments = vec!["zpool", "import", "-d", &place, "-R", &mnt];
        arguments.extend(options);
        arguments.push("tank");
        self.cenote(&arguments);
        let manifest = self.manifest();
        self.cenote(&["zpool", "export", "tank"]);
        manifest
    }
}

#[test]
fn a_checkpoint_keeps_what_is_freed_until_it_is_discarded() {
    if let Some(reason) = cannot_mount() {
        eprintln!("{reason}");
        return;
    }
    let bench = Bench::new(4);
    let devices = bench.devices(4);
    let [one, two, three, four] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two, "special", "mirror", three, four]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    bench.cenote(&["zfs", "create", "-o", "dedup=on", "-o", "recordsize=16K", "tank/b"]);
    let (root, a, b) = (bench.at("mnt/tank"), bench.at("mnt/tank/a"), bench.at("mnt/tank/b"));
    [&root, &a, &b].into_iter().for_each(|root| fill(root));
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    bench.cenote(&["zpool", "sync", "tank"]);
    let then = bench.manifest();
    bench.cenote(&["zpool", "checkpoint", "tank"]);
    let said = bench.refused(&["zpool", "checkpoint", "tank"]);
    assert_eq!(said, "cannot checkpoint 'tank': checkpoint exists\n");
    let said = bench.refused(&["zpool", "reguid", "tank"]);
    assert_eq!(said, "cannot reguid 'tank': checkpoint exists\n");
    std::fs::remove_dir_all(root.join("many")).unwrap();
    std::fs::remove_file(b.join("file8")).unwrap();
    std::fs::write(root.join("file7"), noise(200_000, 99)).unwrap();
    bench.cenote(&["zfs", "destroy", "-r", "tank/a"]);
    for number in 0..8u32 {
        std::fs::write(root.join("big"), noise(3_000_000, number)).unwrap();
        bench.cenote(&["zpool", "sync", "tank"]);
    }
    assert!(bench.held() > 3 << 20, "{}", bench.held());
    let status = bench.cenote(&["zpool", "status", "tank"]);
    assert!(status.contains("checkpoint: created"), "{status}");
    let now = bench.manifest();
    bench.kill();
    bench.import();
    assert!(bench.manifest() == now, "the files differ after a kill");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.zdb_then();
    assert!(bench.manifest_then() == then, "the checkpoint differs");
    bench.import();
    std::fs::remove_file(root.join("big")).unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    let held = bench.held();
    bench.cenote(&["zpool", "checkpoint", "-d", "-w", "tank"]);
    assert!(held > 0 && bench.held() == 0);
    let said = bench.refused(&["zpool", "checkpoint", "-d", "tank"]);
    assert_eq!(said, "cannot discard checkpoint in 'tank': checkpoint does not exist\n");
    bench.cenote(&["zpool", "checkpoint", "tank"]);
    std::fs::remove_dir_all(&b).unwrap_err();
    bench.cenote(&["zfs", "destroy", "tank/b"]);
    bench.cenote(&["zpool", "checkpoint", "-d", "tank"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn going_back_says_that_it_is_for_reading_only() {
    if let Some(reason) = cannot_mount() {
        eprintln!("{reason}");
        return;
    }
    let bench = Bench::new(1);
    let devices = bench.devices(1);
    bench.create(&[&devices[0]]);
    let (place, mnt) = (bench.at("d").display().to_string(), bench.at("mnt").display().to_string());
    let import = |how: &str| {
        bench.cenote(&["zpool", "export", "tank"]);
        let output = bench.output(&["zpool", "import", how, "-d", &place, "-R", &mnt, "tank"]);
        assert!(output.status.success());
        let state = bench.cenote(&["zpool", "get", "-H", "-o", "value", "readonly", "tank"]);
        (String::from_utf8(output.stderr).unwrap(), state)
    };
    // The newest state opens: there is nothing to go back from.
    assert_eq!(import("-F"), (String::new(), "off\n".into()));
    bench.cenote(&["zpool", "checkpoint", "tank"]);
    let (said, state) = import("--rewind-to-checkpoint");
    let because = "a pool as of its checkpoint is for reading only so far";
    assert_eq!(said, format!("'tank' is open for reading only: {because}\n"));
    assert_eq!(state, "on\n");
    let status = bench.cenote(&["zpool", "status", "tank"]);
    assert!(status.contains(&format!("status: The pool is open for reading only:\n\t{because}\n")));
    assert_eq!(bench.cenote(&["zpool", "status", "-x"]), "all pools are healthy\n");
}
