//! `zpool remove` of devices that hold data.

use super::{Bench, fill};

#[test]
fn disks_that_hold_data_leave_while_they_are_used() {
    let Some((bench, d)) = Bench::mounting(5) else { return };
    bench.create(&[&d[0], &d[1], &d[2], &d[3]]);
    fill(&bench.at("mnt/tank"));
    bench.cenote(&["zpool", "sync", "tank"]);
    let before = bench.manifest();
    let estimate = bench.cenote(&["zpool", "remove", "-np", "tank", &d[1]]);
    let bytes =
        estimate.strip_prefix(&format!("{} ", d[1])).map(|bytes| bytes.trim().parse::<u64>());
    assert!(matches!(bytes, Some(Ok(1..))), "{estimate}");
    let said = bench.cenote(&["zpool", "remove", "-n", "tank", &d[1]]);
    assert!(said.starts_with("Memory that will be used after removing "), "{said}");
    let said = bench.refused(&["zpool", "remove", "-n", "tank", "nosuch"]);
    assert_eq!(said, "indirect memory size of nosuch: no such device in pool\n");
    bench.cenote(&["zpool", "remove", "-w", "tank", &d[1]]);
    let status = bench.cenote(&["zpool", "status", "tank"]);
    let told = "remove: Removal of vdev 1 copied ";
    assert!(status.contains(told) && status.contains(", completed on "), "{status}");
    assert!(status.contains("memory used for removed device mappings"), "{status}");
    assert!(!status.contains("/f1 ") && !status.contains("indirect"), "{status}");
    let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
    for line in ["vdev remove started tank vdev 1 ", "vdev remove completed tank vdev 1"] {
        assert!(history.contains(line), "{line}: {history}");
    }
    let said = bench.refused(&["zpool", "remove", "-s", "tank"]);
    assert_eq!(said, "cannot cancel removal: operation is not in progress\n");
    // A process that dies in the middle, or after the end.
    bench.cenote(&["zpool", "remove", "tank", &d[2]]);
    bench.kill();
    bench.import();
    bench.cenote(&["zpool", "wait", "-t", "remove", "tank"]);
    // It is free at once, though nothing else was asked of the pool.
    bench.cenote(&["zpool", "create", "-O", "mountpoint=none", "other", &d[2]]);
    bench.cenote(&["zpool", "destroy", "other"]);
    assert_eq!(bench.manifest(), before);
    let status = bench.cenote(&["zpool", "status", "tank"]);
    assert!(status.contains("remove: Removal of vdev 2 copied "), "{status}");
    let said = bench.refused(&["zpool", "add", "tank", "raidz", &d[1], &d[2], &d[4]]);
    assert!(said.contains("removing/removed vdevs") || said.contains("use '-f'"), "{said}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert_eq!(bench.manifest(), before);
    bench.cenote(&["zpool", "add", "tank", &d[1]]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
