//! A mirror of which one half does not answer for a while.
//!
//! Invariant: nobody waits for it longer than a few seconds, and it gets what it missed when it is back.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cenote_device::{Device, FileDevice, Mode};
use cenote_serve::fuse::Mounted;

use super::frozen::Frozen;
use super::members::state;
use super::suspended::{FailingDisk, failing_disk, may_not_fail};
use super::{Bench, fill, noise, write_synced};

/// Longest time in which a read is to have been answered by the other half: a second, on a busy machine.
const READ: Duration = Duration::from_secs(6);
/// The same for a write that is synced: five seconds, and what was under way before.
const WRITE: Duration = Duration::from_secs(12);
/// The longest one beside a half that is only slow: four seconds, on a busy machine.
const SLOW: Duration = Duration::from_secs(7);
/// As long as that half sits out.
const QUICK: Duration = Duration::from_millis(3500);

/// A mirror, with some files, of a disk that is frozen when told to and of another. The disk's mount goes after the
/// pool has.
struct Halves {
    bench: Bench,
    disk: Arc<FailingDisk>,
    silent: String,
    other: String,
    mounted: Mounted,
}

impl Halves {
    /// Nothing where such disks cannot be made.
    fn new() -> Option<Self> {
        if may_not_fail() {
            return None;
        }
        let bench = Bench::new(2);
        let (disk, mounted) = failing_disk(&bench);
        let (silent, other) =
            (bench.at("failing/disk").display().to_string(), bench.devices(2)[1].clone());
        bench.create(&["-f", "mirror", &silent, &other]);
        fill(&bench.at("mnt/tank"));
        Some(Self { bench, disk, silent, other, mounted })
    }

    /// The disk has what it missed: each half holds everything alone.
    fn hold_all(self) {
        let Self { bench, silent, other, mounted, .. } = self;
        let status = bench.shows(|status| state(status, "tank") == "ONLINE");
        assert_eq!(state(&status, &silent), "ONLINE", "{status}");
        bench.cenote(&["zpool", "scrub", "-w", "tank"]);
        let status = bench.cenote(&["zpool", "status", "tank"]);
        let is_well = status.contains("repaired 0B") && status.contains("No known data errors");
        assert!(is_well, "{status}");
        let manifest = bench.manifest();
        bench.cenote(&["zpool", "export", "tank"]);
        mounted.unmount_forced().unwrap();
        // It holds everything alone.
        std::fs::remove_file(&other).unwrap();
        bench.zdb();
        bench.import();
        assert_eq!(bench.manifest(), manifest);
    }
}

impl Bench {
    /// What SLOW says of a device.
    pub(super) fn slow(&self, device: &str) -> u64 {
        let status = self.cenote(&["zpool", "status", "-s", "-p", "tank"]);
        let line = status.lines().find(|line| line.split_whitespace().next() == Some(device));
        line.unwrap().split_whitespace().nth(5).unwrap().parse().unwrap()
    }
}

fn within<T>(patience: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    assert!(start.elapsed() < patience, "{what}: {:?}", start.elapsed());
    done
}

#[test]
fn an_import_says_soon_who_does_not_answer() {
    let Some(halves) = Halves::new() else { return };
    let Halves { bench, disk, silent, other, .. } = &halves;
    bench.cenote(&["zpool", "export", "tank"]);
    let place = bench.at("mnt").display().to_string();
    let devices = ["-d", silent, "-d", other, "-R", &place, "tank"];
    let import = [&["zpool", "import"][..], &devices].concat();
    let frozen = Frozen(disk.clone());
    disk.freeze(true);
    // The other half alone may be an older state.
    let said = within(Duration::from_secs(9), "import", || bench.refused(&import));
    assert!(said.contains("no answer from") && said.contains("use '-f'"), "{said}");
    drop(frozen);
    bench.cenote(&import);
    halves.hold_all();
}

#[test]
fn a_half_that_does_not_answer_holds_nobody_up() {
    let Some(halves) = Halves::new() else { return };
    let Halves { bench, disk, silent, other, .. } = &halves;
    let root = bench.at("mnt/tank");
    bench.cenote(&["zpool", "export", "tank"]);
    // Nothing is in any cache of the pool's.
    let place = bench.at("mnt").display().to_string();
    let devices = ["-d", silent, "-d", other, "-R", &place, "tank"];
    bench.cenote(&[&["zpool", "import"][..], &devices].concat());

    let frozen = Frozen(disk.clone());
    disk.freeze(true);
    let read = within(READ, "a read", || std::fs::read(root.join("file8")).unwrap());
    assert!(read == noise(3_000_000, 8));
    within(WRITE, "a synced write", || write_synced(&root.join("meanwhile"), &noise(50_000, 1)));
    within(WRITE, "a second one", || write_synced(&root.join("again"), &noise(50_000, 2)));
    within(WRITE, "a group", || bench.cenote(&["zpool", "sync", "tank"]));
    let status = bench.cenote(&["zpool", "status", "tank"]);
    assert_eq!(state(&status, "tank"), "DEGRADED", "{status}");
    drop(frozen);
    halves.hold_all();
}

#[test]
fn a_half_whose_flushes_do_not_come_back_holds_nobody_up() {
    let Some(halves) = Halves::new() else { return };
    let Halves { bench, disk, silent, .. } = &halves;
    let root = bench.at("mnt/tank");
    // Only threads that can be left behind send anything to a file that is served by FUSE.
    let opened = FileDevice::open(silent, Mode::ReadOnly).unwrap();
    assert!(opened.holds_up_senders());
    drop(opened);
    let frozen = Frozen(disk.clone());
    disk.in_flushes.store(true, Relaxed);
    disk.freeze(true);
    // Some write while others flush: a server that asks for direct I/O keeps them waiting for one another.
    std::thread::scope(|scope| {
        for writer in 0..8u32 {
            let root = &root;
            scope.spawn(move || {
                for number in 0..20 {
                    let file = root.join(format!("meanwhile{writer}-{number}"));
                    within(WRITE, "a synced write", || write_synced(&file, &noise(9000, number)));
                }
            });
        }
    });
    within(WRITE, "a group", || bench.cenote(&["zpool", "sync", "tank"]));
    assert!(bench.slow(silent) > 0, "{}", bench.cenote(&["zpool", "status", "-s", "tank"]));
    drop(frozen);
    halves.hold_all();
}

#[test]
fn a_half_that_takes_long_for_every_answer_is_done_without() {
    let Some(halves) = Halves::new() else { return };
    let Halves { bench, disk, silent, .. } = &halves;
    let root = bench.at("mnt/tank");
    bench.cenote(&["zpool", "sync", "tank"]);
    // A durable write is a write and a flush for it: neither takes as long as a single operation is waited for.
    disk.takes.store(1450, Relaxed);
    within(SLOW, "a synced write", || write_synced(&root.join("meanwhile"), &noise(50_000, 1)));
    let begun = Instant::now();
    for number in 0..3 {
        let file = root.join(format!("again{number}"));
        within(QUICK, "one of those that follow", || write_synced(&file, &noise(50_000, 2)));
    }
    within(QUICK, "a group", || bench.cenote(&["zpool", "sync", "tank"]));
    println!("four that follow took {:?}", begun.elapsed());
    let status = bench.cenote(&["zpool", "status", "-s", "tank"]);
    assert_eq!(state(&status, silent), "DEGRADED", "{status}");
    assert!(status.contains("too many slow I/Os") && bench.slow(silent) > 0, "{status}");
    disk.takes.store(0, Relaxed);
    halves.hold_all();
}
