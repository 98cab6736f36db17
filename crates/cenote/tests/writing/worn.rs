//! Hot spares that step in for disks which give wrong bytes, and what is said of such disks; disks that are overwritten
//! while the pool has them open.
//!
//! Invariant: files are the same all the time, a spare stays until somebody says that the disk is well, and words are
//! those of OpenZFS.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::members::state;
use super::{Bench, fill};

/// Bytes at the beginning and at the end of a disk that hold labels.
const LABELS: u64 = 4 << 20;

fn overwrite(path: &str, first: u64, end: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let part = super::noise(1 << 20, 77);
    (first..end).step_by(1 << 20).for_each(|at| file.write_all_at(&part, at).unwrap());
}

#[test]
fn the_smallest_spare_that_is_large_enough_steps_in_for_a_disk_that_lies() {
    let Some((bench, devices)) = Bench::mounting(5) else { return };
    let [one, two, large, small, fits] = &devices[..] else { panic!() };
    for (path, size) in [(large, 2 * super::SIZE), (small, super::SIZE / 2)] {
        std::fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap();
    }
    bench.create(&["mirror", one, two, "spare", large, small, fits]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    bench.cenote(&["zpool", "sync", "tank"]);
    overwrite(two, LABELS, super::SIZE - LABELS);
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    let status = bench.shows(|status| status.contains("INUSE"));
    assert_eq!((state(&status, two), state(&status, "spare-1")), ("DEGRADED", "DEGRADED"));
    let line = status.lines().find(|line| line.contains(two.as_str())).unwrap();
    assert!(line.contains("too many errors"), "{status}");
    let spares = status.split("spares").nth(1).unwrap();
    let found = [large, small, fits].map(|path| state(spares, path));
    assert_eq!(found, ["AVAIL", "AVAIL", "INUSE"], "{status}");
    // It has everything, and stays, in the next life too.
    bench.shows(|status| status.contains("scan: resilvered"));
    std::thread::sleep(Duration::from_secs(3));
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    std::thread::sleep(Duration::from_secs(3));
    let status = bench.status();
    assert_eq!((state(&status, two), state(&status, fits)), ("DEGRADED", "ONLINE"), "{status}");
    assert!(status.contains("INUSE"), "{status}");
    bench.cenote(&["zpool", "clear", "tank", two]);
    let status = bench.shows(|status| state(status, "spare-1").is_empty());
    assert_eq!((state(&status, two), state(&status, "tank")), ("ONLINE", "ONLINE"), "{status}");
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_disk_that_is_overwritten_whole_is_unavailable() {
    for look in ["reopen", "scrub"] {
        let Some((bench, devices)) = Bench::mounting(2) else { return };
        let [one, two] = &devices[..] else { panic!() };
        bench.create(&["mirror", one, two]);
        fill(&bench.at("mnt/tank"));
        let manifest = bench.manifest();
        bench.cenote(&["zpool", "sync", "tank"]);
        overwrite(two, 0, super::SIZE);
        bench.cenote(&["zpool", look, "tank"]);
        let status = bench.status();
        assert_eq!((state(&status, "tank"), state(&status, one)), ("DEGRADED", "ONLINE"));
        let line = status.lines().find(|line| line.contains(two.as_str())).unwrap();
        assert!(line.contains("UNAVAIL"), "{status}");
        assert!(status.contains("ZFS-8000-4J"), "{status}");
        let said = bench.refused(&["zpool", "offline", "tank", one]);
        assert_eq!(said, format!("cannot offline {one}: no valid replicas\n"));
        let said = bench.refused(&["zpool", "detach", "tank", one]);
        assert_eq!(said, format!("cannot detach {one}: no valid replicas\n"));
        bench.cenote(&["zpool", "replace", "-w", "tank", two]);
        bench.shows(|status| state(status, "tank") == "ONLINE" && state(status, two) == "ONLINE");
        bench.cenote(&["zpool", "offline", "tank", one]);
        assert_eq!(bench.manifest(), manifest);
        bench.cenote(&["zpool", "export", "tank"]);
    }
}
