//! Checkpoints through the program: what they hold is kept until they are discarded.
//!
//! Invariant: whatever is written and destroyed after it, the pool can be shown as of its
//! checkpoint, and no space is lost.

use std::io::Write;
use std::process::Command;

use super::{Bench, fill, noise};

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
    let Some((bench, devices)) = Bench::mounting(5) else { return };
    let [one, two, three, four, other] = &devices[..] else { panic!() };
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
    let words = "checkpoint exists\n";
    let said = bench.refused(&["zpool", "detach", "tank", two]);
    assert_eq!(said, format!("cannot detach {two}: {words}"));
    let said = bench.refused(&["zpool", "attach", "tank", one, other]);
    assert_eq!(said, format!("cannot attach {other} to {one}: {words}"));
    let said = bench.refused(&["zpool", "replace", "tank", one, other]);
    assert_eq!(said, format!("cannot replace {one} with {other}: {words}"));
    let said = bench.refused(&["zpool", "split", "tank", "half"]);
    assert_eq!(said, format!("Unable to split tank: {words}"));
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
    // every group of devices says what it holds of it
    let list = bench.cenote(&["zpool", "list", "-Hpv", "tank"]);
    let held = |line: &str| line.split('\t').nth(5).and_then(|held| held.parse::<u64>().ok());
    let tops = list.lines().filter(|line| line.trim_start().starts_with("mirror"));
    assert_eq!(tops.filter_map(held).sum::<u64>(), bench.held(), "{list}");
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
fn a_pool_that_was_taken_back_is_written_on() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    bench.create(&["mirror", &devices[0], &devices[1]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    let (place, mnt) = (bench.at("d").display().to_string(), bench.at("mnt").display().to_string());
    let import = |how: &[&str]| {
        let words = [&["zpool", "import"], how, &["-d", &place, "-R", &mnt, "tank"]].concat();
        let output = bench.output(&words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        let said = String::from_utf8(output.stdout).unwrap();
        let older = said.starts_with("Pool tank returned to its state as of ");
        assert_eq!(older, how != ["-F"], "{said}");
        bench.cenote(&["zpool", "get", "-H", "-o", "value", "readonly", "tank"])
    };
    let (root, below) = (bench.at("mnt/tank"), bench.at("mnt/tank/a"));
    let change = |seed: u32| {
        std::fs::write(root.join("changed"), noise(700_000, seed)).unwrap();
        drop(std::fs::remove_file(below.join(format!("kept{}", seed - 1))));
        std::fs::write(below.join(format!("kept{seed}")), noise(300_000, seed)).unwrap();
        let file = std::fs::File::create(below.join("synced")).unwrap();
        (&file).write_all(&noise(60_000, seed)).unwrap();
        file.sync_all().unwrap();
    };
    // Nothing to go back from.
    bench.cenote(&["zpool", "export", "tank"]);
    assert_eq!(import(&["-F"]), "off\n");
    change(1);
    bench.cenote(&["zpool", "sync", "tank"]);
    let then = bench.manifest();
    bench.cenote(&["zpool", "checkpoint", "tank"]);
    for seed in 2..9 {
        change(seed);
        bench.cenote(&["zpool", "sync", "tank"]);
    }
    // The last changes are in the logs only, which must not be replayed.
    change(9);
    bench.kill();
    assert_eq!(import(&["--rewind-to-checkpoint"]), "off\n");
    assert!(bench.manifest() == then, "not what it was at the checkpoint");
    let said = bench.cenote(&["zpool", "get", "-H", "-o", "value", "checkpoint", "tank"]);
    assert_eq!(said, "-\n");
    change(10);
    let now = bench.manifest();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert!(bench.manifest() == now, "not what was written after going back");
    let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
    assert!(history.contains("rewound state to txg="), "{history}");
    bench.cenote(&["zpool", "export", "tank"]);
    // And to a group by its number: the one of the export, seen from a later life.
    let uberblock = bench.cenote(&["zdb", "-u", "-e", "-p", &place, "tank"]);
    let txg = uberblock.lines().find_map(|line| line.trim().strip_prefix("txg: ")).unwrap();
    bench.import();
    change(11);
    bench.kill();
    assert_eq!(import(&["-T", txg]), "off\n");
    assert!(bench.manifest() == now, "not what it was in group {txg}");
    change(12);
    let now = bench.manifest();
    bench.kill();
    bench.import();
    assert!(bench.manifest() == now, "not what was synced after going back");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
