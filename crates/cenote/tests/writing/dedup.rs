//! Deduplicated datasets through the program: properties, ratios, snapshots, clones, a kill.
//!
//! Invariant: whatever goes, what is left reads back, and no space is lost.

use std::path::Path;

use super::{Bench, fill, noise};

impl Bench {
    /// How many references there are for one block of the dedup tables.
    fn ratio(&self) -> f64 {
        let text = self.cenote(&["zpool", "list", "-Hp", "-o", "dedupratio", "tank"]);
        text.trim().parse().unwrap()
    }
}

fn records(root: &Path, name: &str, seeds: impl Iterator<Item = u32>) {
    let data: Vec<u8> = seeds.flat_map(|seed| noise(16 << 10, seed)).collect();
    std::fs::write(root.join(name), data).unwrap();
}

#[test]
fn deduplicated_data_is_stored_once_and_freed_once() {
    let Some((bench, devices)) = Bench::mounting(4) else { return };
    let [one, two, three, four] = &devices[..] else { panic!() };
    bench.create_with(&["-f"], &["raidz1", one, two, three, "dedup", four]);
    let values = ["on", "verify", "sha512", "skein,verify", "edonr,verify"];
    for (number, value) in values.into_iter().enumerate() {
        let property = format!("dedup={value}");
        let name = format!("tank/d{number}");
        bench.cenote(&["zfs", "create", "-o", &property, "-o", "recordsize=16K", &name]);
        let root = bench.at("mnt").join(&name);
        records(&root, "first", 0..100);
        records(&root, "second", 50..120);
        fill(&root);
    }
    bench.cenote(&["zpool", "sync", "tank"]);
    assert!(bench.ratio() > 1.3, "{}", bench.ratio());
    let status = bench.cenote(&["zpool", "status", "-D", "tank"]);
    assert!(status.contains("DDT entries"), "{status}");
    let used = bench.cenote(&["zfs", "list", "-Hp", "-o", "used", "tank/d0"]);
    let used: u64 = used.trim().parse().unwrap();
    assert!(used > 170 * (16 << 10), "every reference is charged: {used}");
    // The datasets share what they have under equal checksums; snapshots and clones keep it.
    bench.cenote(&["zfs", "snapshot", "tank/d0@one"]);
    bench.cenote(&["zfs", "clone", "tank/d0@one", "tank/c"]);
    let (zero, clone) = (bench.at("mnt/tank/d0"), bench.at("mnt/tank/c"));
    records(&zero, "first", 60..160);
    records(&clone, "third", 0..160);
    std::fs::remove_file(clone.join("second")).unwrap();
    std::fs::remove_file(bench.at("mnt/tank/d1/first")).unwrap();
    bench.cenote(&["zfs", "set", "dedup=off", "tank/d2"]);
    records(&bench.at("mnt/tank/d2"), "first", 0..100);
    bench.cenote(&["zpool", "sync", "tank"]);
    let before = bench.manifest();
    for round in 0..3u32 {
        records(&zero, "late", round * 7..round * 7 + 50);
    }
    bench.kill();
    bench.import();
    let _ = std::fs::remove_file(zero.join("late"));
    assert!(bench.manifest() == before, "the files differ after a kill");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert!(bench.manifest() == before, "the files differ");
    bench.cenote(&["zfs", "destroy", "tank/c"]);
    bench.cenote(&["zfs", "destroy", "-r", "tank/d1"]);
    std::fs::remove_file(zero.join("first")).unwrap();
    let first = bench.at("mnt/tank/d0/.zfs/snapshot/one/first");
    let wanted: Vec<u8> = (0..100).flat_map(|seed| noise(16 << 10, seed)).collect();
    assert!(std::fs::read(first).unwrap() == wanted);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    for number in [0, 2, 3, 4] {
        bench.cenote(&["zfs", "destroy", "-r", &format!("tank/d{number}")]);
    }
    for _ in 0..20 {
        if bench.cenote(&["zpool", "get", "-Hp", "-o", "value", "freeing", "tank"]).trim() == "0" {
            break;
        }
        bench.cenote(&["zpool", "sync", "tank"]);
    }
    bench.cenote(&["zpool", "sync", "tank"]);
    assert!((bench.ratio() - 1.0).abs() < 0.001, "{}", bench.ratio());
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn encrypted_data_is_deduplicated_below_one_key() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&[&bench.devices(1)[0]]);
    std::fs::write(bench.at("key"), noise(32, 3)).unwrap();
    let location = format!("keylocation=file://{}", bench.at("key").display());
    let options = ["encryption=on", "keyformat=raw", &location, "dedup=verify", "recordsize=16K"];
    let mut arguments = vec!["zfs", "create"];
    options.iter().for_each(|option| arguments.extend(["-o", option]));
    arguments.push("tank/secret");
    bench.cenote(&arguments);
    let root = bench.at("mnt/tank/secret");
    records(&root, "first", 0..100);
    records(&root, "second", 0..100);
    fill(&root);
    bench.cenote(&["zfs", "snapshot", "tank/secret@one"]);
    bench.cenote(&["zfs", "clone", "tank/secret@one", "tank/clone"]);
    records(&bench.at("mnt/tank/clone"), "third", 20..120);
    bench.cenote(&["zpool", "sync", "tank"]);
    assert!(bench.ratio() > 1.3, "{}", bench.ratio());
    std::fs::remove_file(root.join("first")).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/secret@two"]);
    bench.cenote(&["zfs", "destroy", "tank/secret@two"]);
    let before = bench.manifest();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    let place = bench.at("d").display().to_string();
    let mountpoint = bench.at("mnt").display().to_string();
    bench.cenote(&["zpool", "import", "-l", "-d", &place, "-R", &mountpoint, "tank"]);
    assert!(bench.manifest() == before, "the files differ");
    bench.cenote(&["zfs", "destroy", "-r", "tank/clone"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
