//! Faults on purpose, by the command.
//!
//! Invariant: files are the same all the time, and nothing happens any more when faults are taken back.

use std::time::{Duration, Instant};

use super::{Bench, fill};

impl Bench {
    /// The counters of a device: READ, WRITE, CKSUM.
    fn counters(&self, device: &str) -> Vec<u64> {
        let status = self.cenote(&["zpool", "status", "-p", "tank"]);
        let line = status.lines().find(|line| line.split_whitespace().next() == Some(device));
        let words = line.unwrap().split_whitespace().skip(2).take(3);
        words.map(|word| word.parse().unwrap()).collect()
    }

    fn becomes(&self, is: impl Fn(&str) -> bool) {
        let start = Instant::now();
        loop {
            let status = self.cenote(&["zpool", "status", "tank"]);
            if is(&status) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{status}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn devices_fail_lie_go_and_are_slow_as_asked() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let [one, two] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    let none = "No handlers registered.\nRun 'zinject -h' for usage information.\n";
    assert_eq!(bench.cenote(&["zinject"]), none);

    let said = bench.cenote(&["zinject", "-d", two, "-e", "io", "-T", "read", "tank"]);
    let start = "Added handler 1 with the following properties:\n  pool: tank\n  vdev: ";
    assert!(said.starts_with(start), "{said}");
    let listed = bench.cenote(&["zinject"]);
    let head = " ID  POOL             GUID\n---  ---------------  ----------------\n  1  tank             ";
    assert!(listed.starts_with(head), "{listed}");
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    let counters = bench.counters(two);
    assert!(counters[0] > 0 && counters[2] == 0, "{counters:?}");
    let events = bench.cenote(&["zpool", "events", "-v", "tank"]);
    for words in ["ereport.fs.zfs.io\n", "ereport.fs.zfs.probe_failure\n", "zio_err = 0x5\n"] {
        assert!(events.contains(words), "{words} in\n{events}");
    }
    assert_eq!(bench.cenote(&["zinject", "-c", "1"]), "removed handler 1\n");
    assert_eq!(bench.cenote(&["zinject"]), none);
    bench.cenote(&["zpool", "clear", "tank"]);
    bench.becomes(|status| status.contains("state: ONLINE"));
    assert_eq!(bench.manifest(), manifest);

    let said = bench.cenote(&["zinject", "-q", "-d", two, "-e", "checksum", "-f", "20", "tank"]);
    assert_eq!(said, "2\n");
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    let (of_one, of_two) = (bench.counters(one), bench.counters(two));
    assert!(of_two[2] > 0 && of_one == [0, 0, 0], "{of_one:?} {of_two:?}");
    assert_eq!(bench.cenote(&["zinject", "-c", "all"]), "removed all registered handlers\n");
    bench.cenote(&["zpool", "clear", "tank"]);

    bench.cenote(&["zinject", "-d", two, "tank"]);
    std::fs::write(bench.at("mnt/tank/meanwhile"), super::noise(300_000, 5)).unwrap();
    let manifest = bench.manifest();
    bench.cenote(&["zpool", "sync", "tank"]);
    bench.becomes(|status| status.contains("REMOVED"));
    let events = bench.cenote(&["zpool", "events", "-H", "tank"]);
    assert!(events.contains("resource.fs.zfs.removed\n"), "{events}");
    bench.cenote(&["zinject", "-c", "all"]);
    // It comes back by itself, and gets what it missed.
    bench.becomes(|status| !status.contains("REMOVED") && status.contains("state: ONLINE"));

    bench.cenote(&["zinject", "-d", one, "-D", "30:1", "-T", "flush", "tank"]);
    let listed = bench.cenote(&["zinject"]);
    let head = " ID  POOL             DELAY (ms)       LANES            GUID\n";
    assert!(listed.starts_with(head) && listed.contains("  30               1 "), "{listed}");
    let start = Instant::now();
    for _ in 0..3 {
        std::fs::write(bench.at("mnt/tank/slow"), "now").unwrap();
        bench.cenote(&["zpool", "sync", "tank"]);
    }
    assert!(start.elapsed() > Duration::from_millis(90));
    std::fs::remove_file(bench.at("mnt/tank/slow")).unwrap();
    bench.cenote(&["zinject", "-c", "all"]);
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_is_not_kept_in_memory_is_read_from_the_devices() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let [one, two] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    bench.cenote(&["zfs", "create", "-o", "primarycache=none", "tank/fs"]);
    bench.cenote(&["zfs", "create", "-o", "primarycache=all", "tank/kept"]);
    let data = super::noise(4 << 20, 9);
    for set in ["fs", "kept"] {
        std::fs::write(bench.at(&format!("mnt/tank/{set}/file")), &data).unwrap();
    }
    // Who gives the order has the newest group written: no byte of the file is only in memory.
    bench.cenote(&["zinject", "-d", two, "-e", "io", "-T", "read", "tank"]);
    let read = |set: &str| std::fs::read(bench.at(&format!("mnt/tank/{set}/file"))).unwrap();
    assert!(read("kept") == data);
    assert_eq!(bench.counters(two), [0, 0, 0]);
    assert!(read("fs") == data);
    let counters = bench.counters(two);
    assert!(counters[0] > 0 && counters[2] == 0, "{counters:?}");
    bench.cenote(&["zinject", "-c", "all"]);
    bench.cenote(&["zpool", "clear", "tank"]);
    bench.cenote(&["zfs", "set", "primarycache=all", "tank/fs"]);
    assert!(read("fs") == data);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn blocks_do_not_open_or_expand_as_asked() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-o", "primarycache=none", "tank/fs"]);
    let classes = ["ereport.fs.zfs.authentication", "ereport.fs.zfs.data"];
    for (error, class) in ["decrypt", "decompress"].into_iter().zip(classes) {
        let file = bench.at("mnt/tank/fs").join(error);
        std::fs::write(&file, super::noise(300_000, 3)).unwrap();
        bench.cenote(&["zinject", "-t", "data", "-e", error, &file.display().to_string()]);
        assert!(std::fs::read(&file).is_err(), "{error}");
        assert!(bench.event(class).contains("zio_level = 0x0"), "{error}");
        bench.cenote(&["zinject", "-c", "all"]);
        assert!(std::fs::read(&file).unwrap() == super::noise(300_000, 3), "{error}");
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn copies_that_fail_are_made_of_those_that_do_not() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-o", "copies=3", "-o", "primarycache=none", "tank/fs"]);
    let (file, data) = (bench.at("mnt/tank/fs/file"), super::noise(1 << 20, 9));
    std::fs::write(&file, &data).unwrap();
    let path = file.display().to_string();
    bench.cenote(&["zinject", "-t", "data", "-C", "0,1", "-e", "io", &path]);
    assert!(bench.cenote(&["zinject"]).contains("  0x03  all\n"));
    assert!(std::fs::read(&file).unwrap() == data);
    let scrubbed = || {
        bench.cenote(&["zpool", "scrub", "-w", "tank"]);
        bench.cenote(&["zpool", "status", "tank"])
    };
    let status = scrubbed();
    assert!(status.contains("repaired 2M in") && status.contains("with 0 errors"), "{status}");
    bench.cenote(&["zinject", "-c", "all"]);
    bench.cenote(&["zinject", "-t", "data", "-C", "0,1,2", &path]);
    assert!(std::fs::read(&file).is_err());
    bench.cenote(&["zinject", "-c", "all"]);
    assert!(std::fs::read(&file).unwrap() == data);
    let status = scrubbed();
    assert!(
        status.contains("repaired 0B in") && status.contains("No known data errors"),
        "{status}"
    );
    let said = bench.refused(&["zinject", "-t", "data", "-C", "7", &path]);
    assert!(said.starts_with("-C 7: is to be a list of numbers from 0 to 2\n"), "{said}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_delayed_device_holds_nobody_up() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let [one, two] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    fill(&bench.at("mnt/tank"));
    bench.cenote(&["zpool", "sync", "tank"]);
    bench.cenote(&["zinject", "-d", two, "-D", "20000:1", "tank"]);
    for number in 0..3 {
        let start = Instant::now();
        let file = bench.at("mnt/tank").join(format!("meanwhile{number}"));
        super::write_synced(&file, &super::noise(50_000, number));
        let longest = Duration::from_millis(if number == 0 { 9000 } else { 3500 });
        assert!(start.elapsed() < longest, "{number}: {:?}", start.elapsed());
    }
    let manifest = bench.manifest();
    let (status, slow) = (bench.cenote(&["zpool", "status", "-s", "tank"]), bench.slow(two));
    assert!(slow > 0 && bench.slow(one) == 0 && status.contains("DEGRADED"), "{status}");
    assert_eq!(bench.counters(two), [0, 0, 0]);
    bench.cenote(&["zinject", "-c", "all"]);
    bench.becomes(|status| status.contains("state: ONLINE"));
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    let status = bench.cenote(&["zpool", "status", "tank"]);
    assert!(status.contains("repaired 0B"), "{status}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_a_file_holds_cannot_be_read_as_asked() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    bench.create(&["mirror", &devices[0], &devices[1]]);
    let file = bench.at("mnt/tank/large");
    std::fs::write(&file, super::noise(2 << 20, 7)).unwrap();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.import();
    let manifest = bench.manifest();
    let path = file.display().to_string();
    let said = bench.cenote(&["zinject", "-t", "data", "-e", "checksum", "-r", "0,262144", &path]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.contains(&" range: [0, 2)") && lines.contains(&" level: 0"), "{said}");
    let listed = bench.cenote(&["zinject"]);
    let head = " ID  POOL             OBJSET  OBJECT  TYPE      LVL  DVAs  RANGE          \n";
    assert!(listed.starts_with(head) && listed.ends_with(" 0x00  [0, 2]\n\n"), "{listed}");
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    let status = bench.cenote(&["zpool", "status", "-v", "tank"]);
    assert!(status.contains(&format!("        {path}\n")), "{status}");
    let report = bench.event("ereport.fs.zfs.data");
    for line in ["zio_err = 0x34", "zio_level = 0x0", "zio_blkid = 0x1"] {
        assert!(report.contains(line), "{line} in\n{report}");
    }
    // Nothing was written for it, and a scrub finds it well.
    bench.cenote(&["zinject", "-c", "all"]);
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    let status = bench.cenote(&["zpool", "status", "-v", "tank"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    assert_eq!(bench.manifest(), manifest);
    let said = bench.refused(&["zinject", "-b", "36:ffff:0:0", "tank"]);
    assert!(said.starts_with("failed to add handler: "), "{said}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_cannot_be_injected_is_refused_by_name() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let own = &devices[0];
    for (words, start) in [
        (&["zinject", "-d", own, "-e", "bogus", "tank"][..], "invalid error type 'bogus'"),
        (&["zinject", "-d", own, "-f", "101", "tank"], "-f 101: frequency must be in the range"),
        (&["zinject", "-d", own, "-D", "5", "tank"], "invalid i/o delay value: '5'"),
        (&["zinject", "-d", "nothing", "tank"], "failed to add handler: no such device in pool"),
        (&["zinject", "-d", own, "other"], "cannot open 'other': no such pool"),
        (&["zinject", "-c", "7"], "failed to remove handler 7: No such file or directory"),
        (&["zinject", "-c", "x"], "invalid id 'x': must be an integer or 'all'"),
        (&["zinject", "-t", "data", "/proc/self/stat"], "'/proc/self/stat' is in no pool"),
        (&["zinject", "-t", "mos", "tank"], "zinject: -t mos is not supported yet"),
        (
            &["zinject", "-p", "main", "tank"],
            "unknown function 'main': must be one of spa_vdev_add, ",
        ),
        (&["zinject", "-p", "spa_vdev_add", "-f", "1", "tank"], "panic (-p) is incompatible with"),
    ] {
        let said = bench.refused(words);
        assert!(said.starts_with(start), "{words:?}: {said}");
    }
    bench.cenote(&["zpool", "destroy", "tank"]);
}

#[test]
fn a_device_counts_as_bad_until_it_is_cleared() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let [one, two] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    for (action, state, words) in
        [("degrade", "DEGRADED", "too many errors"), ("fault", "FAULTED", "external device fault")]
    {
        assert_eq!(bench.cenote(&["zinject", "-d", two, "-A", action, "tank"]), "");
        let status = bench.cenote(&["zpool", "status", "tank"]);
        let line = status.lines().find(|line| line.trim_start().starts_with(two.as_str()));
        let line = line.unwrap();
        assert!(line.contains(state) && line.contains(words), "{status}");
        bench.cenote(&["zpool", "clear", "tank"]);
        bench.becomes(|status| status.contains("state: ONLINE"));
    }
    assert!(
        bench.refused(&["zinject", "-d", two, "-A", "melt", "tank"]).contains("invalid action")
    );
}

#[test]
fn a_process_dies_before_an_order_counts() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    let [one, two, three] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    bench.cenote(&["zpool", "sync", "tank"]);
    let orders = [
        ("spa_vdev_attach", &["zpool", "attach", "tank", one, three][..]),
        ("spa_vdev_detach", &["zpool", "detach", "tank", two]),
        ("spa_vdev_add", &["zpool", "add", "-f", "tank", three]),
    ];
    for (function, order) in orders {
        let said = bench.cenote(&["zinject", "-p", function, "tank"]);
        let end = format!("  pool: tank\npanic function: {function}\n");
        assert!(said.ends_with(&end), "{said}");
        let row = format!("  1  tank             {function}\n");
        let listed = bench.cenote(&["zinject"]);
        assert!(listed.contains(" FUNCTION\n") && listed.contains(&row), "{listed}");
        // What is refused is no reason to die.
        bench.refused(&["zpool", "attach", "tank", two, two]);
        bench.refused(order);
        bench.import();
        let status = bench.cenote(&["zpool", "status", "tank"]);
        let shown = [one, two, three].map(|device| status.contains(device.as_str()));
        assert_eq!(shown, [true, true, false], "{function}: {status}");
        assert_eq!(bench.manifest(), manifest, "{function}");
    }
    for (_, order) in &orders[..2] {
        bench.cenote(order);
        bench.cenote(&["zpool", "wait", "-t", "resilver", "tank"]);
    }
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
