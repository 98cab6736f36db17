//! Error logs: what is lost is known in the pool's next lives, until a scrub finds it well.
//!
//! Invariant: a log tells of just what could not be read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_engine::ErrorKind;
use cenote_engine::cache::BlockKey;
use cenote_engine::dataset::change::read_error_scrub;
use cenote_engine::object::Object;
use cenote_engine::pipe::Fault;
use cenote_engine::pool::group::{LivePool, ScanKind, ScanOrder, read_error_logs};
use cenote_engine::vdev::DATA_START;
use cenote_format::BlockPointer;
use cenote_format::config::VdevKind;
use cenote_format::scan_state::{ErrorScrubState, ScanPhase};

use super::scan::finished;
use super::suspended::{Disks, object};
use super::{census, noise};

fn lost(live: &LivePool) -> BTreeSet<Fault> {
    live.pool().io().pipe.faults().lost()
}

fn fault(live: &LivePool, object: &Object, block: u64) -> Fault {
    let catalog = live.pool().catalog();
    let head = catalog.head(&catalog.root().unwrap()).unwrap();
    Fault { objset: head.id.0, object: object.id().0, block: Some((0, block)) }
}

/// Every copy of a block shows other bytes.
fn damage(disks: &Disks, live: &LivePool, pointer: &BlockPointer) {
    for dva in pointer.dvas() {
        let from = DATA_START + dva.offset;
        disks.disk(0).corrupt_range(from..from + dva.asize, 0x55);
    }
    if let Some(key) = BlockKey::of(pointer) {
        live.pool().io().pipe.cache().remove(&key);
    }
}

fn scrub(live: &Arc<LivePool>) -> u64 {
    live.scan(ScanOrder::Begin(ScanKind::Scrub)).unwrap();
    let errors = finished(live).errors;
    live.sync().unwrap();
    errors
}

#[test]
fn what_is_lost_is_known_in_the_next_life_until_a_scrub_finds_it_well() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let (one, two) = (object(&live), object(&live));
    for object in [&one, &two] {
        object.write(&live.begin().unwrap(), 0, &noise(1 << 20, object.id().0)).unwrap();
    }
    live.sync().unwrap();
    let (first, second) = (one.pointer(0, 3).unwrap(), two.pointer(0, 5).unwrap());
    damage(&disks, &live, &first);
    assert!(one.read_vec(3 << 17, 1 << 17).is_err());
    let met: BTreeSet<Fault> = [fault(&live, &one, 3)].into();
    assert_eq!(lost(&live), met);
    live.sync().unwrap();
    let on_disk = |live: &LivePool| read_error_logs(&live.pool().mos()).unwrap();
    assert_eq!(on_disk(&live), [met.clone(), BTreeSet::new()]);
    live.close().unwrap();
    drop((live, one, two));

    let live = disks.reopen();
    assert_eq!(lost(&live), met);
    damage(&disks, &live, &second);
    assert_eq!(scrub(&live), 2);
    let both = lost(&live);
    assert_eq!((both.len(), both.is_superset(&met)), (2, true));
    assert_eq!(on_disk(&live), [both.clone(), BTreeSet::new()]);
    live.export().unwrap();
    drop(live);

    let live = disks.reopen();
    assert_eq!(lost(&live), both);
    disks.disk(0).heal();
    // A scrub that is given up says nothing.
    live.scan(ScanOrder::Begin(ScanKind::Scrub)).unwrap();
    if live.scan(ScanOrder::Stop).is_ok() {
        live.sync().unwrap();
        assert_eq!(lost(&live), both);
    }
    assert_eq!(scrub(&live), 0);
    assert!(lost(&live).is_empty());
    assert_eq!(on_disk(&live), [BTreeSet::new(), BTreeSet::new()]);
    live.export().unwrap();
    census(live.pool());
}

/// The record of the newest scrub of the error log.
fn record(live: &LivePool) -> ErrorScrubState {
    read_error_scrub(&live.pool().mos()).unwrap().unwrap()
}

fn error_scrub_ends(live: &LivePool) -> ErrorScrubState {
    let start = Instant::now();
    while record(live).is_active() {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", record(live));
        live.sync().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    live.sync().unwrap();
    record(live)
}

#[test]
fn a_scrub_of_the_error_log_reads_only_what_is_lost() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let refused = live.scan(ScanOrder::ScrubErrors).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    live.change(|_, change| change.enable_feature("head_errlog")).unwrap();
    // Nothing is lost: nothing is begun.
    live.scan(ScanOrder::ScrubErrors).unwrap();
    assert!(read_error_scrub(&live.pool().mos()).unwrap().is_none());
    let one = object(&live);
    one.write(&live.begin().unwrap(), 0, &noise(1 << 20, 9)).unwrap();
    live.sync().unwrap();
    let pointers: Vec<_> = (2..5).map(|block| one.pointer(0, block).unwrap()).collect();
    pointers.iter().for_each(|pointer| damage(&disks, &live, pointer));
    for block in 2..5_u64 {
        assert!(one.read_vec(block << 17, 1 << 17).is_err());
    }
    live.sync().unwrap();
    let all = lost(&live);
    assert_eq!(all.len(), 3);
    live.scan(ScanOrder::ScrubErrors).unwrap();
    let done = error_scrub_ends(&live);
    assert_eq!((done.phase, done.examined, done.errors), (ScanPhase::Finished, 3, 3));
    assert_eq!(lost(&live), all);
    // It pauses, across an import too; nothing else is scrubbed meanwhile.
    disks.disk(0).set_delay(Duration::from_millis(30));
    live.scan(ScanOrder::ScrubErrors).unwrap();
    if live.scan(ScanOrder::Pause).is_ok() && record(&live).is_active() {
        let again = live.scan(ScanOrder::Pause).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Exists, "{again}");
        let other = live.scan(ScanOrder::Begin(ScanKind::Scrub)).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Busy, "{other}");
    }
    disks.disk(0).set_delay(Duration::ZERO);
    live.close().unwrap();
    drop((live, one));
    disks.disk(0).heal();
    let live = disks.reopen();
    assert_eq!(lost(&live), all);
    if record(&live).is_paused() {
        live.scan(ScanOrder::ScrubErrors).unwrap();
    } else {
        error_scrub_ends(&live);
        live.scan(ScanOrder::ScrubErrors).unwrap();
    }
    let done = error_scrub_ends(&live);
    assert_eq!((done.phase, done.errors), (ScanPhase::Finished, 0), "{done:?}");
    assert!(lost(&live).is_empty());
    assert_eq!(read_error_logs(&live.pool().mos()).unwrap(), [BTreeSet::new(), BTreeSet::new()]);
    live.export().unwrap();
    census(live.pool());
}
