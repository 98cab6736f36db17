//! Devices that come beside others, take their place, leave, and rest, by the commands.
//!
//! Invariant: files are the same all the time, `zdb` finds nothing, and words are those of OpenZFS.

use std::time::{Duration, Instant};

use super::{Bench, fill};

impl Bench {
    fn status(&self) -> String {
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
