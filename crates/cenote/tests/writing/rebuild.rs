//! Sequential rebuilds, distributed spares and scrubs of the error log, by the commands.
//!
//! Invariant: files are the same all the time, `zdb` finds nothing, and words are those of OpenZFS.

use super::members::state;
use super::{Bench, fill};

#[test]
fn a_mirror_is_rebuilt_in_the_order_of_the_disks_and_scrubbed() {
    let Some((bench, devices)) = Bench::mounting(4) else { return };
    let [one, two, three, four] = &devices[..] else { panic!() };
    bench.create(&[one]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    bench.cenote(&["zpool", "attach", "-s", "-w", "tank", one, two]);
    let status = bench.shows(|status| status.contains("scan: scrub repaired"));
    assert_eq!((state(&status, "mirror-0"), state(&status, two)), ("ONLINE", "ONLINE"), "{status}");
    assert!(status.contains("  scan: resilvered (mirror-0) "), "{status}");
    assert!(status.contains("scan: scrub repaired 0B in 00:00:0"), "{status}");
    bench.cenote(&["zpool", "offline", "-t", "tank", one]);
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "online", "tank", one]);
    // It has missed something.
    bench.cenote(&["zpool", "wait", "-t", "resilver", "tank"]);
    bench.cenote(&["zpool", "replace", "-s", "-w", "tank", one, three]);
    let status = bench.status();
    assert_eq!((state(&status, one), state(&status, three)), ("", "ONLINE"), "{status}");
    let events = bench.cenote(&["zpool", "events", "-v", "tank"]);
    assert!(events.contains("resilver_type = \"sequential\""), "{events}");
    let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
    assert!(history.contains("rebuild vdev_id=0 vdev_guid="), "{history}");
    // A process that dies in the middle leaves it to the next.
    bench.cenote(&["zpool", "sync", "tank"]);
    bench.cenote(&["zpool", "attach", "-s", "tank", two, four]);
    bench.kill();
    bench.import();
    bench.cenote(&["zpool", "wait", "-t", "resilver,scrub", "tank"]);
    let status = bench.status();
    assert_eq!(state(&status, four), "ONLINE", "{status}");
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "destroy", "tank"]);
}

#[test]
fn a_distributed_spare_is_taken_and_given_back() {
    let Some((bench, devices)) = Bench::mounting(6) else { return };
    let list: Vec<&str> = devices.iter().map(String::as_str).collect();
    let [one, two, three, four, five, _] = list[..] else { panic!() };
    bench.create(&["draid1:2d:5c:1s", one, two, three, four, five]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    let said = bench.refused(&["zpool", "remove", "tank", "draid1-0-0"]);
    let words = "operation not supported on this type of pool";
    assert_eq!(said, format!("cannot remove draid1-0-0: {words}\n"));
    bench.cenote(&["zpool", "offline", "tank", two]);
    bench.cenote(&["zpool", "replace", "-s", "-w", "tank", two, "draid1-0-0"]);
    let status = bench.shows(|status| status.contains("scan: resilvered (draid1"));
    assert!(!state(&status, "spare-1").is_empty() && status.contains("INUSE"), "{status}");
    bench.cenote(&["zpool", "wait", "-t", "resilver,scrub", "tank"]);
    let said = bench.refused(&["zpool", "replace", "tank", three, "draid1-0-0"]);
    let words = "draid1-0-0 is busy, or device removal is in progress";
    assert_eq!(said, format!("cannot replace {three} with draid1-0-0: {words}\n"));
    // Another one can go now.
    bench.cenote(&["zpool", "offline", "tank", four]);
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "online", "tank", four]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "online", "tank", two]);
    // It goes back by itself.
    let is_back = |status: &str| state(status, "tank") == "ONLINE" && status.contains("AVAIL");
    let status = bench.shows(is_back);
    assert_eq!((state(&status, "spare-1"), state(&status, two)), ("", "ONLINE"), "{status}");
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    bench.cenote(&["zpool", "destroy", "tank"]);
}

#[test]
fn a_pool_with_a_log_device_is_split() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    let [one, two, log] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two, "log", log]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    bench.cenote(&["zpool", "split", "tank", "half"]);
    let status = bench.status();
    assert_eq!((state(&status, one), state(&status, log)), ("ONLINE", "ONLINE"), "{status}");
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    let places = bench.at("d").display().to_string();
    bench.cenote(&["zpool", "import", "-N", "-d", &places, "half"]);
    let status = bench.cenote(&["zpool", "status", "half"]);
    assert!(!status.contains("logs") && status.contains(two.as_str()), "{status}");
    bench.cenote(&["zpool", "scrub", "-w", "half"]);
    bench.cenote(&["zpool", "destroy", "half"]);
}

/// Takes as long as a device has to come back, before something else is taken for it.
#[test]
fn a_new_device_in_the_place_of_a_lost_one_is_taken_if_the_pool_wants_that() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let [one, two] = &devices[..] else { panic!() };
    bench.create_with(&["-o", "autoreplace=on"], &["mirror", one, two]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    bench.cenote(&["zpool", "export", "tank"]);
    let size = std::fs::metadata(two).unwrap().len();
    std::fs::remove_file(two).unwrap();
    std::fs::File::create(two).unwrap().set_len(size).unwrap();
    bench.import();
    let is_done =
        |status: &str| status.contains("scan: resilvered") && state(status, "tank") == "ONLINE";
    let status = bench.shows(is_done);
    assert_eq!(state(&status, two), "ONLINE", "{status}");
    bench.cenote(&["zpool", "wait", "-t", "scrub", "tank"]);
    bench.cenote(&["zpool", "offline", "-t", "tank", one]);
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "online", "tank", one]);
    bench.shows(|status| state(status, "tank") == "ONLINE");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    bench.cenote(&["zpool", "destroy", "tank"]);
}
