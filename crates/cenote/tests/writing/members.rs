//! Devices that come beside others, take their place, leave, and rest, by the commands.
//!
//! Invariant: files are the same all the time, `zdb` finds nothing, and words are those of OpenZFS.

use std::io::Read;
use std::time::{Duration, Instant};

use super::{Bench, fill};

impl Bench {
    pub(super) fn status(&self) -> String {
        self.cenote(&["zpool", "status", "tank"])
    }

    /// Waits until the status says what it should.
    pub(super) fn shows(&self, is: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{status}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The state of a device in a status, "" if it is not there.
pub(super) fn state<'a>(status: &'a str, device: &str) -> &'a str {
    let line = status.lines().find(|line| line.split_whitespace().next() == Some(device));
    line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or_default()
}

#[test]
fn a_disk_is_attached_to_replaced_rests_and_is_detached() {
    let Some((bench, devices)) = Bench::mounting(4) else { return };
    let [one, two, three, four] = &devices[..] else { panic!() };
    bench.create(&[one]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    let said = bench.refused(&["zpool", "detach", "tank", one]);
    let words = "only applicable to mirror and replacing vdevs";
    assert_eq!(said, format!("cannot detach {one}: {words}\n"));
    bench.cenote(&["zpool", "attach", "-w", "tank", one, two]);
    let status = bench.status();
    assert_eq!((state(&status, "mirror-0"), state(&status, two)), ("ONLINE", "ONLINE"), "{status}");
    assert!(status.contains("scan: resilvered"), "{status}");
    let said = bench.refused(&["zpool", "attach", "tank", one, two]);
    assert!(said.contains("is part of active pool 'tank'"), "{said}");

    bench.cenote(&["zpool", "replace", "-w", "tank", one, three]);
    let status = bench.status();
    assert_eq!((state(&status, one), state(&status, three)), ("", "ONLINE"), "{status}");
    let said = bench.refused(&["zpool", "replace", "tank", "nothing", four]);
    assert_eq!(said, format!("cannot replace nothing with {four}: no such device in pool\n"));

    bench.cenote(&["zpool", "offline", "tank", two]);
    let status = bench.status();
    assert_eq!((state(&status, "tank"), state(&status, two)), ("DEGRADED", "OFFLINE"), "{status}");
    let said = bench.refused(&["zpool", "offline", "tank", three]);
    assert_eq!(said, format!("cannot offline {three}: no valid replicas\n"));
    std::fs::write(bench.at("mnt/tank/meanwhile"), super::noise(300_000, 5)).unwrap();
    let manifest_then = bench.manifest();
    assert_ne!(manifest, manifest_then);
    bench.cenote(&["zpool", "sync", "tank"]);
    // It rests in the next life, too.
    bench.cenote(&["zpool", "export", "tank"]);
    bench.import();
    assert_eq!(state(&bench.status(), two), "OFFLINE");
    bench.cenote(&["zpool", "online", "tank", two]);
    bench.shows(|status| state(status, "tank") == "ONLINE" && state(status, two) == "ONLINE");
    bench.cenote(&["zpool", "detach", "tank", three]);
    let status = bench.status();
    assert_eq!((state(&status, "mirror-0"), state(&status, two)), ("", "ONLINE"), "{status}");
    assert_eq!(bench.manifest(), manifest_then);
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    assert!(bench.status().contains("repaired 0B"), "{}", bench.status());
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert_eq!(bench.manifest(), manifest_then);
    bench.cenote(&["zpool", "destroy", "tank"]);
}

#[test]
fn a_spare_steps_in_and_goes_back() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    let [one, two, spare] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two, "spare", spare]);
    let said = bench.refused(&["zpool", "add", "tank", "spare", spare]);
    let words = format!("{spare} is reserved as a hot spare for pool tank");
    assert_eq!(said, format!("cannot add to 'tank': {words}\n"));
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    bench.cenote(&["zpool", "export", "tank"]);
    let aside = bench.at("aside");
    std::fs::rename(two, &aside).unwrap();
    bench.import();
    let status =
        bench.shows(|status| !state(status, "spare-1").is_empty() && status.contains("INUSE"));
    assert!(status.contains("currently in use"), "{status}");
    let status = bench.shows(|status| status.contains("scan: resilvered"));
    assert_eq!(state(&status, one), "ONLINE", "{status}");
    let said = bench.refused(&["zpool", "replace", "tank", one, spare]);
    let words = format!("{spare} is busy, or device removal is in progress");
    assert_eq!(said, format!("cannot replace {one} with {spare}: {words}\n"));
    // The half that is left may go now.
    bench.cenote(&["zpool", "offline", "-t", "tank", one]);
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "online", "tank", one]);
    std::fs::rename(&aside, two).unwrap();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    let status = bench.shows(|status| state(status, "spare-1").is_empty());
    assert!(status.contains("AVAIL"), "{status}");
    assert_eq!((state(&status, two), state(&status, "tank")), ("ONLINE", "ONLINE"), "{status}");
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_disk_is_said_to_be_faulty_and_is_trusted_again() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let [one, two] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    fill(&bench.at("mnt/tank"));
    bench.cenote(&["zpool", "offline", "-f", "tank", two]);
    let status = bench.status();
    assert_eq!((state(&status, "tank"), state(&status, two)), ("DEGRADED", "FAULTED"), "{status}");
    let line = status.lines().find(|line| line.contains(two.as_str())).unwrap();
    assert!(line.contains("  external device fault"), "{status}");
    let words = format!(
        "warning: device '{two}' onlined, but remains in faulted state\n\
         use 'zpool clear' to restore a faulted device\n"
    );
    assert_eq!(bench.cenote(&["zpool", "online", "tank", two]), words);
    // The other is only worn then.
    bench.cenote(&["zpool", "offline", "-f", "tank", one]);
    assert_eq!(state(&bench.status(), one), "DEGRADED");
    bench.cenote(&["zpool", "clear", "tank", one]);
    assert_eq!(state(&bench.status(), one), "ONLINE");
    std::fs::write(bench.at("mnt/tank/meanwhile"), super::noise(300_000, 5)).unwrap();
    let manifest = bench.manifest();
    // It stays so in the next life, also after a crash.
    bench.cenote(&["zpool", "sync", "tank"]);
    bench.kill();
    bench.import();
    assert_eq!(state(&bench.status(), two), "FAULTED");
    bench.cenote(&["zpool", "clear", "tank"]);
    bench.shows(|status| state(status, "tank") == "ONLINE" && state(status, two) == "ONLINE");
    bench.cenote(&["zpool", "offline", "-ft", "tank", two]);
    assert_eq!(state(&bench.status(), two), "FAULTED");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    bench.shows(|status| state(status, "tank") == "ONLINE" && state(status, two) == "ONLINE");
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "destroy", "tank"]);
}

/// Writes zeros over all of a device, as `dd` does.
fn wipe(path: &str) {
    let mut file = std::fs::File::options().write(true).open(path).unwrap();
    std::io::copy(&mut std::io::repeat(0).take(super::SIZE), &mut file).unwrap();
}

#[test]
fn a_disk_that_was_overwritten_takes_its_own_place() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let [one, two] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    let said = bench.refused(&["zpool", "replace", "tank", two]);
    assert!(said.contains(&format!("{two} is part of active pool 'tank'")), "{said}");

    wipe(two);
    // Somebody else's place is not its own.
    let said = bench.refused(&["zpool", "replace", "-f", "tank", one, two]);
    assert!(said.contains(&format!("{two} is in use")), "{said}");
    bench.cenote(&["zpool", "replace", "-w", "tank", two]);
    let status = bench.status();
    assert_eq!((state(&status, "tank"), state(&status, two)), ("ONLINE", "ONLINE"), "{status}");

    // What missed something gets no more than is there now.
    bench.cenote(&["zpool", "checkpoint", "tank"]);
    bench.cenote(&["zpool", "offline", "tank", one]);
    let passing = bench.at("mnt/tank/passing");
    std::fs::write(&passing, [1; 4096]).unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    std::fs::remove_file(&passing).unwrap();
    bench.cenote(&["zpool", "online", "tank", one]);
    bench.cenote(&["zpool", "wait", "-t", "resilver", "tank"]);
    assert_ne!(state(&bench.status(), one), "ONLINE", "a resilver leaves out the checkpoint");
    bench.cenote(&["zpool", "checkpoint", "-d", "-w", "tank"]);
    bench.shows(|status| state(status, "tank") == "ONLINE" && state(status, one) == "ONLINE");

    // What cannot be taken in is not at rest for ever.
    bench.cenote(&["zpool", "checkpoint", "tank"]);
    wipe(one);
    bench.refused(&["zpool", "replace", "tank", one, one]);
    let status = bench.status();
    let line = status.lines().find(|line| line.contains(one.as_str())).unwrap();
    assert!(line.contains("UNAVAIL"), "there is nothing on it: {status}");
    bench.cenote(&["zpool", "checkpoint", "-d", "-w", "tank"]);
    bench.cenote(&["zpool", "replace", "-w", "tank", one, one]);
    bench.shows(|status| state(status, "tank") == "ONLINE" && state(status, one) == "ONLINE");

    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert_eq!(bench.manifest(), manifest);

    // The only one that has something stays.
    bench.cenote(&["zpool", "offline", "tank", two]);
    wipe(one);
    let said = bench.refused(&["zpool", "replace", "tank", one, one]);
    assert_eq!(said, format!("cannot replace {one} with {one}: no valid replicas\n"));
    assert_ne!(state(&bench.status(), one), "OFFLINE");
    bench.cenote(&["zpool", "destroy", "-f", "tank"]);
}

fn grow(path: &str, size: u64) {
    std::fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap();
}

#[test]
fn a_pool_grows_with_its_disks() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let [one, two] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    fill(&bench.at("mnt/tank"));
    let value = |name| bench.cenote(&["zpool", "list", "-Hpo", name, "tank"]).trim().to_owned();
    let size: u64 = value("size").parse().unwrap();
    grow(one, 2 * super::SIZE);
    bench.cenote(&["zpool", "reopen", "tank"]);
    assert_eq!((value("expandsize"), value("size")), ("-".to_owned(), size.to_string()));
    grow(two, 2 * super::SIZE);
    bench.cenote(&["zpool", "reopen", "-n", "tank"]);
    let more: u64 = value("expandsize").parse().unwrap();
    assert!(value("size") == size.to_string() && more >= super::SIZE - (32 << 20), "{more}");
    let listed = bench.cenote(&["zpool", "list", "-Hpv", "tank"]);
    let top = listed.lines().find(|line| line.contains("mirror-0")).unwrap();
    assert!(top.split('\t').any(|word| word == more.to_string()), "{listed}");
    // As in OpenZFS each device is asked for.
    bench.cenote(&["zpool", "online", "-e", "tank", one]);
    assert_eq!((value("expandsize"), value("size")), (more.to_string(), size.to_string()));
    bench.cenote(&["zpool", "online", "-e", "tank", two]);
    assert_eq!((value("expandsize"), value("size")), ("-".to_owned(), (size + more).to_string()));
    let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
    let words = format!("vdev online pool 'tank' size: {}(+{more})", size + more);
    assert!(history.contains(&words), "{history}");
    std::fs::write(bench.at("mnt/tank/large"), super::noise(48 << 20, 9)).unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    bench.kill();
    bench.import();
    let manifest = bench.manifest();
    assert_eq!(value("size"), (size + more).to_string());
    bench.cenote(&["zpool", "set", "autoexpand=on", "tank"]);
    grow(one, 3 * super::SIZE);
    grow(two, 3 * super::SIZE);
    bench.cenote(&["zpool", "reopen"]);
    assert!(value("size").parse::<u64>().unwrap() > size + more);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    let label = std::process::Command::new("zdb").args(["-l", one]).output();
    if let Ok(label) = label {
        let text = String::from_utf8_lossy(&label.stdout).into_owned();
        assert!(text.contains("labels = 0 1 2 3"), "{text}");
    }
    bench.import();
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "destroy", "tank"]);
}

#[test]
fn a_disk_that_comes_late_is_taken() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let [one, two] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    fill(&bench.at("mnt/tank"));
    bench.cenote(&["zpool", "export", "tank"]);
    let aside = bench.at("aside");
    for order in [&["zpool", "online", "tank", two][..], &["zpool", "clear", "tank"], &[]] {
        std::fs::rename(two, &aside).unwrap();
        bench.import();
        // Its name is the guid as long as it is away.
        let status = bench.status();
        assert!(status.contains("UNAVAIL") && status.contains(&format!("was {two}")), "{status}");
        std::fs::write(bench.at("mnt/tank/late"), super::noise(300_000, 5)).unwrap();
        bench.cenote(&["zpool", "sync", "tank"]);
        std::fs::rename(&aside, two).unwrap();
        if !order.is_empty() {
            bench.cenote(order);
        }
        bench.shows(|status| state(status, "tank") == "ONLINE" && state(status, two) == "ONLINE");
        bench.cenote(&["zpool", "scrub", "-w", "tank"]);
        assert!(bench.status().contains("repaired 0B"), "{}", bench.status());
        bench.cenote(&["zpool", "export", "tank"]);
        bench.zdb();
    }
}

#[test]
fn a_disk_that_was_wiped_is_told_from_one_that_is_missing() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    bench.create(&["mirror", &devices[0], &devices[1]]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    for wiped in &devices {
        bench.cenote(&["zpool", "export", "tank"]);
        std::fs::File::create(wiped).unwrap().set_len(super::SIZE).unwrap();
        bench.import();
        for _ in 0..2 {
            let status = bench.status();
            let words = status.split_whitespace().collect::<Vec<_>>().join(" ");
            let is_told = words.contains("the label is missing or invalid");
            assert!(is_told && words.contains("ZFS-8000-4J"), "{status}");
            let is_away =
                status.lines().any(|line| line.contains("UNAVAIL") && line.contains(&**wiped));
            assert!(is_away && state(&status, "tank") == "DEGRADED", "{status}");
            for look in [&["zpool", "status", "-x"][..], &["zpool", "status", "-x", "tank"]] {
                assert!(!bench.cenote(look).contains("healthy"));
            }
            assert_eq!(bench.manifest(), manifest);
            bench.cenote(&["zpool", "clear", "tank"]);
            bench.cenote(&["zpool", "sync", "tank"]);
        }
        bench.cenote(&["zpool", "replace", "-w", "tank", wiped]);
        assert_eq!(state(&bench.status(), "tank"), "ONLINE", "{}", bench.status());
    }
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn disks_are_initialized_and_trimmed() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    let [one, two, three] = &devices[..] else { panic!() };
    bench.create(&["raidz", one, two, three]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    bench.cenote(&["zpool", "initialize", "-w", "tank"]);
    let status = bench.cenote(&["zpool", "status", "-i", "tank"]);
    assert_eq!(status.matches("(100% initialized, completed at ").count(), 3, "{status}");
    let used = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).unwrap().blocks() * 512
    };
    let full = used(one);
    assert!(full > super::SIZE * 3 / 4, "{full}");
    let said = bench.refused(&["zpool", "initialize", "-s", "tank", one]);
    assert_eq!(said, format!("cannot initialize '{one}': there is no active initialization\n"));
    let said = bench.refused(&["zpool", "trim", "tank", "nothing", one]);
    assert_eq!(said, "cannot trim 'nothing': no such device in pool\n");
    let said = bench.refused(&["zpool", "trim", "tank", "raidz1-0"]);
    assert_eq!(said, "cannot trim 'raidz1-0': invalid device\n");
    bench.cenote(&["zpool", "trim", "-w", "tank", one]);
    let status = bench.cenote(&["zpool", "status", "-t", "tank"]);
    assert_eq!(status.matches("(100% trimmed, completed at ").count(), 1, "{status}");
    assert_eq!(status.matches("(untrimmed)").count(), 2, "{status}");
    // Holes in a file are not everywhere.
    assert!(used(one) <= full, "{} of {full}", used(one));
    bench.cenote(&["zpool", "trim", "tank"]);
    bench.kill();
    bench.import();
    bench.cenote(&["zpool", "wait", "-t", "trim", "tank"]);
    let status = bench.cenote(&["zpool", "status", "-t", "tank"]);
    assert_eq!(status.matches("(100% trimmed, completed at ").count(), 3, "{status}");
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "initialize", "-u", "tank"]);
    let status = bench.cenote(&["zpool", "status", "-i", "tank"]);
    assert_eq!(status.matches("(uninitialized)").count(), 3, "{status}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_pool_is_split() {
    let Some((bench, devices)) = Bench::mounting(5) else { return };
    let [one, two, three, four, five] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two, "mirror", three, four]);
    fill(&bench.at("mnt/tank"));
    let manifest = bench.manifest();
    let said = bench.refused(&["zpool", "split", "tank", "other", one, two]);
    let words = "Device list must include at most one disk from each mirror";
    assert_eq!(said, format!("Unable to split tank: {words}\n"));
    let said = bench.refused(&["zpool", "split", "tank", "mirror"]);
    assert_eq!(said, "Unable to split tank: name is reserved\n");
    let shown = bench.cenote(&["zpool", "split", "-n", "tank", "other", one]);
    let words = "would create 'other' with the following layout:\n\n\tother\n";
    assert_eq!(shown, format!("{words}\t  {one}\n\t  {four}\n"));
    bench.cenote(&["zpool", "split", "-o", "comment=half", "tank", "other", one]);
    let status = bench.status();
    assert_eq!((state(&status, one), state(&status, two)), ("", "ONLINE"), "{status}");
    assert_eq!(state(&status, "tank"), "ONLINE", "{status}");
    let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
    assert!(history.contains(&format!("detach vdev={one}")), "{history}");
    std::fs::write(bench.at("mnt/tank/after"), "x").unwrap();
    bench.cenote(&["zpool", "attach", "-w", "tank", two, five]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    let place = bench.at("d").display().to_string();
    let mountpoint = bench.at("mnt").display().to_string();
    let listed = bench.cenote(&["zpool", "import", "-d", &place]);
    assert!(listed.contains("pool: tank") && listed.contains("pool: other"), "{listed}");
    bench.cenote(&["zpool", "import", "-d", &place, "-R", &mountpoint, "other", "tank"]);
    assert_eq!(bench.manifest(), manifest);
    assert_eq!(bench.cenote(&["zpool", "list", "-Ho", "comment", "tank"]), "half\n");
    let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
    assert!(history.contains("split from pool tank"), "{history}");
    bench.cenote(&["zpool", "destroy", "tank"]);
}

#[test]
fn raidz_is_expanded_killed_in_the_middle_and_goes_on() {
    let Some((bench, devices)) = Bench::mounting(5) else { return };
    let [one, two, three, four, five] = &devices[..] else { panic!() };
    let options = ["-o", "compatibility=openzfs-2.3"];
    bench.create_with(&options, &["raidz1", one, two, three]);
    fill(&bench.at("mnt/tank"));
    std::fs::write(bench.at("mnt/tank/large"), super::noise(60 << 20, 9)).unwrap();
    let manifest = bench.manifest();
    let said = bench.refused(&["zpool", "attach", "tank", "raidz1-1", four]);
    let words = "no such device in pool";
    assert_eq!(said, format!("cannot attach {four} to raidz1-1: {words}\n"));
    let size = |bench: &Bench| -> u64 {
        let value = ["zpool", "get", "-Hp", "-o", "value", "size", "tank"];
        bench.cenote(&value).trim().parse().unwrap()
    };
    let before = size(&bench);
    bench.cenote(&["zpool", "attach", "tank", "raidz1-0", four]);
    let status = bench.status();
    let is_shown = status.contains("expand: expansion of raidz1-0 in progress since");
    assert!(is_shown || status.contains("expand: expanded raidz1-0 copied"), "{status}");
    // It may end at any moment.
    let another = bench.output(&["zpool", "attach", "tank", "raidz1-0", five]);
    if !another.status.success() {
        let said = String::from_utf8_lossy(&another.stderr).into_owned();
        let words = "raidz expansion in progress";
        assert!(said == format!("cannot attach {five} to raidz1-0: {words}\n"), "{said}");
    }
    bench.kill();
    bench.import();
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "wait", "-t", "raidz_expand", "tank"]);
    let status = bench.shows(|status| status.contains("expand: expanded raidz1-0 copied"));
    assert_eq!(state(&status, four), "ONLINE", "{status}");
    bench.cenote(&["zpool", "wait", "-t", "scrub", "tank"]);
    assert!(bench.status().contains("scrub repaired 0B"), "{}", bench.status());
    assert!(size(&bench) > before);
    assert_eq!(bench.manifest(), manifest);
    let active = ["zpool", "get", "-H", "-o", "value", "feature@raidz_expansion", "tank"];
    assert_eq!(bench.cenote(&active).trim(), "active");
    let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
    for words in ["raidz vdev expansion started", "raidz vdev expansion completed"] {
        assert!(history.contains(words), "{history}");
    }
    if !another.status.success() {
        bench.cenote(&["zpool", "attach", "-w", "tank", "raidz1-0", five]);
    }
    let status = bench.status();
    assert!(status.contains("expand: expanded raidz1-0 copied"), "{status}");
    assert_eq!(state(&status, five), "ONLINE", "{status}");
    std::fs::write(bench.at("mnt/tank/new"), super::noise(9 << 20, 10)).unwrap();
    let manifest = bench.manifest();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb_of_2_3();
    bench.import();
    assert_eq!(bench.manifest(), manifest);
    bench.cenote(&["zpool", "destroy", "tank"]);
}
