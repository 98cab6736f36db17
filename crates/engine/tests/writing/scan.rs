//! Scrubs and resilvers: what devices lost or missed is on them again, and is told.
//!
//! Invariant: after a scan without errors every copy of every block is right, and no device is said to
//! miss anything.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_device::Health;
use cenote_engine::ErrorKind;
use cenote_engine::check::{CheckOptions, Verify, check};
use cenote_engine::object::NewObject;
use cenote_engine::pool::group::{LivePool, ScanKind, ScanOrder, WriteOptions};
use cenote_engine::vdev::AllocationClass;
use cenote_format::bptree::BlockBookmark;
use cenote_format::config::VdevKind;
use cenote_format::scan_state::{ScanFunction, ScanPhase, ScanState};
use cenote_format::{ObjectId, ObjectType, Txg};

use super::log::head;
use super::members::guid_of;
use super::suspended::{Disks, object};
use super::{census, noise, top};

fn order(live: &Arc<LivePool>, order: ScanOrder) -> cenote_engine::Result<()> {
    live.change(move |live, change| live.order_scan(change, order))
}

pub(super) fn finished(live: &LivePool) -> ScanState {
    let start = Instant::now();
    loop {
        let record = live.scan_progress().record.unwrap();
        if record.phase != ScanPhase::Scanning {
            return record;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{record:?}");
        live.sync().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Every copy is read.
pub(super) fn copies_are_right(live: &LivePool) -> bool {
    live.sync().unwrap();
    let options =
        CheckOptions { verify: Verify::Everything, every_copy: true, ..CheckOptions::default() };
    let report = check(live.pool(), &options, &mut |_| ControlFlow::Continue(())).unwrap();
    report.is_clean()
}

pub(super) fn write(live: &Arc<LivePool>, objects: u64, seed: u64) {
    for number in 0..objects {
        let object = object(live);
        object.write(&live.begin().unwrap(), 0, &noise(1 << 19, seed + number)).unwrap();
    }
    live.sync().unwrap();
}

#[test]
fn a_scrub_writes_again_what_a_lying_disk_lost() {
    for (kind, count) in [(VdevKind::Mirror, 3), (VdevKind::Raidz, 4)] {
        let (disks, live) = Disks::create(kind, count);
        write(&live, 4, 1);
        disks.disk(1).lose_writes(true);
        write(&live, 8, 100);
        disks.disk(1).lose_writes(false);
        assert!(live.vdevs().missed().is_empty());
        order(&live, ScanOrder::Begin(ScanKind::Scrub)).unwrap();
        let record = finished(&live);
        assert_eq!((record.phase, record.errors), (ScanPhase::Finished, 0), "{record:?}");
        assert!(record.processed > 1 << 20, "{record:?}");
        assert!(copies_are_right(&live), "{kind:?}");
        // A second one finds nothing to do.
        order(&live, ScanOrder::Begin(ScanKind::Scrub)).unwrap();
        let record = finished(&live);
        assert_eq!((record.errors, record.processed), (0, 0), "{record:?}");
        assert!(record.examined * 10 > record.to_examine * 8, "{record:?}");
        live.export().unwrap();
        census(live.pool());
    }
}

#[test]
fn what_is_freed_during_a_scrub_can_be_used_before_it_ends() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let victim = object(&live);
    victim.write(&live.begin().unwrap(), 0, &noise(16 << 20, 1)).unwrap();
    let many = {
        let new = NewObject::new(ObjectType::OTHER_U64, 4096);
        head(&live).set().create_object(&live.begin().unwrap(), &new).unwrap()
    };
    many.write(&live.begin().unwrap(), 0, &noise(16 << 20, 2)).unwrap();
    for _ in 0..4 {
        live.sync().unwrap();
    }
    let free = || live.allocator().figures().free(AllocationClass::Normal);
    let before = free();
    disks.disk(0).set_delay(Duration::from_millis(10));
    order(&live, ScanOrder::Begin(ScanKind::Scrub)).unwrap();
    let start = Instant::now();
    while live.scan_progress().pass_issued < 17 << 20 {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", live.scan_progress());
        std::thread::sleep(Duration::from_millis(5));
    }
    // It is in the midst of the small blocks now, one portion after another.
    head(&live).set().free_object(&live.begin().unwrap(), victim.id()).unwrap();
    while free() < before + (12 << 20) {
        let record = live.scan_progress().record.unwrap();
        assert_eq!(record.phase, ScanPhase::Scanning, "nothing came back: {record:?}");
        assert!(start.elapsed() < Duration::from_secs(60), "{record:?}");
        live.sync().unwrap();
    }
    disks.disk(0).set_delay(Duration::ZERO);
    let record = finished(&live);
    assert_eq!((record.phase, record.errors), (ScanPhase::Finished, 0), "{record:?}");
    assert!(copies_are_right(&live));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn a_device_that_missed_groups_is_whole_after_a_resilver() {
    for (kind, count) in [(VdevKind::Mirror, 2), (VdevKind::Raidz, 4)] {
        let (disks, live) = Disks::create(kind, count);
        write(&live, 2, 1);
        disks.disk(1).set_health(Health::FailsWrites);
        write(&live, 8, 100);
        assert_eq!(live.vdevs().missed().len(), 1);
        disks.disk(1).set_health(Health::Well);
        live.vdevs().clear(None);
        write(&live, 1, 200);
        // As soon as the disk is trusted again, nobody has to ask.
        let start = Instant::now();
        while live.scan_progress().record.is_none() {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", live.vdevs().missed());
            live.vdevs().probe();
            std::thread::sleep(Duration::from_millis(50));
        }
        let record = finished(&live);
        assert_eq!(record.function, ScanFunction::Resilver);
        assert_eq!((record.phase, record.errors), (ScanPhase::Finished, 0), "{record:?}");
        assert!(live.vdevs().missed().is_empty(), "{:?}", live.vdevs().missed());
        assert!(copies_are_right(&live), "{kind:?}");
        live.close().unwrap();
        drop(live);
        let live = disks.reopen();
        assert!(live.vdevs().missed().is_empty());
        live.export().unwrap();
        census(live.pool());
    }
}

#[test]
fn a_scrub_pauses_goes_on_in_another_life_and_is_given_up() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    write(&live, 60, 1);
    order(&live, ScanOrder::Pause).unwrap();
    assert_eq!(order(&live, ScanOrder::Stop).unwrap_err().kind(), ErrorKind::NotFound);
    for disk in [0, 1] {
        disks.disk(disk).set_delay(Duration::from_millis(20));
    }
    order(&live, ScanOrder::Begin(ScanKind::Scrub)).unwrap();
    assert_eq!(
        order(&live, ScanOrder::Begin(ScanKind::Scrub)).unwrap_err().kind(),
        ErrorKind::Busy
    );
    order(&live, ScanOrder::Pause).unwrap();
    for disk in [0, 1] {
        disks.disk(disk).set_delay(Duration::ZERO);
    }
    live.close().unwrap();
    drop(live);

    let live = disks.reopen();
    let paused = live.scan_progress().record.unwrap();
    assert!(paused.is_paused() && paused.phase == ScanPhase::Scanning, "{paused:?}");
    std::thread::sleep(Duration::from_millis(200));
    live.sync().unwrap();
    assert_eq!(live.scan_progress().record.unwrap().bookmark, paused.bookmark);
    for disk in [0, 1] {
        disks.disk(disk).set_delay(Duration::from_millis(20));
    }
    order(&live, ScanOrder::Begin(ScanKind::Scrub)).unwrap();
    order(&live, ScanOrder::Stop).unwrap();
    assert_eq!(live.scan_progress().record.unwrap().phase, ScanPhase::Cancelled);
    for disk in [0, 1] {
        disks.disk(disk).set_delay(Duration::ZERO);
    }
    order(&live, ScanOrder::Begin(ScanKind::Scrub)).unwrap();
    let record = finished(&live);
    assert_eq!((record.phase, record.errors), (ScanPhase::Finished, 0));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn a_scrub_that_pauses_gives_way_to_a_resilver() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    write(&live, 60, 1);
    for disk in [0, 1] {
        disks.disk(disk).set_delay(Duration::from_millis(20));
    }
    order(&live, ScanOrder::Begin(ScanKind::Scrub)).unwrap();
    order(&live, ScanOrder::Pause).unwrap();
    assert_eq!(live.is_scanning(), Some(ScanFunction::Scrub));
    for disk in [0, 1] {
        disks.disk(disk).set_delay(Duration::ZERO);
    }
    disks.disk(0).set_health(Health::FailsWrites);
    write(&live, 4, 100);
    disks.disk(0).set_health(Health::Well);
    live.vdevs().clear(None);
    let start = Instant::now();
    while !live.vdevs().missed().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", live.scan_progress());
        live.vdevs().probe();
        live.sync().unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    let record = live.scan_progress().record.unwrap();
    assert_eq!((record.function, record.phase), (ScanFunction::Resilver, ScanPhase::Finished));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn a_resilver_that_was_recorded_as_through_ends() {
    // OpenZFS records so what it has visited, and also that the head it was in was destroyed: others may wait then.
    for waits in [false, true] {
        let disks = Disks::of(2, 96);
        let mirror = (top(VdevKind::Mirror, None, disks.leaves()), AllocationClass::Normal);
        let manner = WriteOptions { resilvers: false, ..WriteOptions::default() };
        let live = disks.pool(vec![mirror], manner);
        write(&live, 4, 1);
        let lacks = guid_of(&live, "/sim/1");
        live.vdevs().add_missing_txgs(lacks, 4..live.pool().uberblock().txg.0 + 1);
        let catalog = live.pool().catalog();
        let waiting = catalog.head(&catalog.root().unwrap()).unwrap().id.0;
        live.change(move |_, change| {
            let nowhere = BlockBookmark { objset: u64::MAX, object: 0, level: 0, block: 0 };
            let record = ScanState {
                function: ScanFunction::Resilver,
                phase: ScanPhase::Scanning,
                min_txg: Txg(3),
                max_txg: change.tx.txg(),
                current_max_txg: change.tx.txg(),
                start_time: 1,
                dedup_bookmark: [1, 0, 0, 0],
                bookmark: nowhere,
                ..ScanState::from_words(&[0; 24])?
            };
            let queue = waits.then_some((waiting, Txg(0))).into_iter().collect();
            change.put_scan(&record, &BTreeMap::new(), &queue).map(drop)
        })
        .unwrap();
        live.close().unwrap();
        drop(live);

        let live = disks.reopen();
        assert_eq!(live.vdevs().missed().len(), 1);
        let record = finished(&live);
        assert_eq!((record.phase, record.errors), (ScanPhase::Finished, 0), "{record:?}");
        assert_eq!((record.start_time, record.queue), (1, ObjectId(0)), "{record:?}");
        assert_eq!(record.examined > 4 << 19, waits, "{record:?}");
        assert!(live.vdevs().missed().is_empty(), "{:?}", live.vdevs().missed());
        assert!(copies_are_right(&live));
        order(&live, ScanOrder::Begin(ScanKind::Scrub)).unwrap();
        finished(&live);
        live.export().unwrap();
        census(live.pool());
    }
}
