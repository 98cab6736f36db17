//! Sequential rebuilds: a device gets everything in the order of the disks.
//!
//! Invariant: what was rebuilt is right on every device, though no checksum was looked at; one that fails in the
//! middle, or cannot go on, leaves the rest to a resilver.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use cenote_device::{Device, DeviceError, Health, SimDevice};
use cenote_engine::ErrorKind;
use cenote_engine::check::{CheckOptions, Verify, check};
use cenote_engine::pool::change::Newcomer;
use cenote_engine::pool::group::{LivePool, ScanKind, ScanOrder, WriteOptions};
use cenote_engine::txg::Tx;
use cenote_engine::vdev::{AllocationClass, LeafUnavailable};
use cenote_format::config::{Draid, VdevConfig, VdevKind};
use cenote_format::rebuild_state::{RebuildPhase, RebuildState};
use cenote_format::scan_state::{ScanFunction, ScanPhase};
use cenote_format::{Guid, Txg};

use super::members::{guid_of, is_whole, newcomer, one_more, opener, paths, until};
use super::scan::{copies_are_right, finished, write};
use super::suspended::Disks;
use super::{census, top};

fn take_in(
    live: &LivePool,
    disks: &Disks,
    (beside, path): (Guid, &Path),
    replaces: bool,
) -> cenote_engine::Result<()> {
    let new = Newcomer { sequential: true, ..newcomer(beside, path, replaces) };
    live.take_in(new, opener(disks))
}

/// What the table of the first vdev says.
fn recorded(live: &LivePool) -> RebuildState {
    use cenote_engine::zap::Zap;
    let zap = live.vdevs().topology().top(0).and_then(|top| top.top_zap).unwrap();
    let zap = Zap::open(live.pool().mos().object(zap).unwrap()).unwrap();
    let value = zap.lookup(b"org.openzfs:vdev_rebuild").unwrap().unwrap();
    RebuildState::from_words(&value.as_u64s().unwrap()).unwrap()
}

fn users(live: &LivePool) -> Option<u64> {
    live.change(|_, change| change.feature_count("device_rebuild")).unwrap()
}

fn is_done(live: &LivePool) -> bool {
    is_whole(live) && !live.is_rebuilding()
}

/// The scrub that follows finds nothing.
fn scrub_finds_nothing(live: &LivePool) {
    let record = finished(live);
    assert_eq!((record.function, record.phase), (ScanFunction::Scrub, ScanPhase::Finished));
    assert_eq!((record.errors, record.processed, record.min_txg.0), (0, 0, 0), "{record:?}");
}

fn many(live: &Arc<LivePool>) {
    write(live, 30, 1);
}

#[test]
fn mirrors_and_draids_get_everything_and_a_scrub_follows() {
    for (kind, count) in [(VdevKind::File, 1), (VdevKind::Mirror, 2), (VdevKind::Draid, 5)] {
        let (mut disks, live) = Disks::create(kind, count);
        many(&live);
        let new = one_more(&mut disks, 96);
        let (old, replaces) = (guid_of(&live, "/sim/0"), kind != VdevKind::File);
        if replaces {
            disks.disk(0).set_health(Health::Gone);
            write(&live, 3, 100);
        }
        take_in(&live, &disks, (old, &new), replaces).unwrap();
        let leaf = live.vdevs().topology().find(guid_of(&live, new.to_str().unwrap())).cloned();
        assert!(leaf.unwrap().rebuild_txg.is_some());
        // What is written meanwhile gets there by itself.
        write(&live, 8, 200);
        until(&live, || is_done(&live));
        scrub_finds_nothing(&live);
        let state = recorded(&live);
        assert_eq!((state.phase, state.errors), (RebuildPhase::Complete, 0), "{kind:?}");
        assert!(state.rebuilt > 15 << 20 && state.rebuilt == state.issued, "{state:?}");
        assert_eq!(users(&live), Some(0));
        assert!(copies_are_right(&live), "{kind:?}");
        let mut leaves = live.vdevs();
        assert!(leaves.topology().root().devices().all(|leaf| leaf.rebuild_txg.is_none()));
        if kind == VdevKind::File {
            live.let_go(old).unwrap();
            leaves = live.vdevs();
        }
        assert!(leaves.topology().find(old).is_none() && paths(&live).len() == count);
        live.export().unwrap();
        drop((live, leaves));
        let live = disks.reopen();
        assert!(copies_are_right(&live) && !live.is_rebuilding(), "{kind:?}");
        census(live.pool());
        live.export().unwrap();
    }
}

#[test]
fn a_rebuild_that_was_cut_off_goes_on() {
    let (mut disks, live) = Disks::create(VdevKind::Mirror, 2);
    many(&live);
    let new = one_more(&mut disks, 96);
    let slow = |disks: &Disks, time| (0..3).for_each(|disk| disks.disk(disk).set_delay(time));
    slow(&disks, Duration::from_millis(20));
    let old = guid_of(&live, "/sim/1");
    take_in(&live, &disks, (old, &new), true).unwrap();
    assert_eq!(users(&live), Some(1));
    // A scrub does not begin meanwhile, and neither does another way to do the same.
    let error = live.scan(ScanOrder::Begin(ScanKind::Scrub)).unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Busy, "currently resilvering"));
    let another = one_more(&mut disks, 96);
    let ordinary = newcomer(guid_of(&live, "/sim/0"), &another, false);
    let error = live.take_in(ordinary, opener(&disks)).unwrap_err();
    assert_eq!(error.reason(), "currently sequentially resilvering");
    live.sync().unwrap();
    let state = recorded(&live);
    assert_eq!(state.phase, RebuildPhase::Active);
    live.close().unwrap();
    drop(live);
    slow(&disks, Duration::ZERO);
    disks.0.remove(&another);
    let live = disks.reopen();
    until(&live, || is_done(&live));
    let state = recorded(&live);
    assert_eq!((state.phase, state.errors), (RebuildPhase::Complete, 0), "{state:?}");
    assert_eq!((users(&live), paths(&live)), (Some(0), vec!["/sim/0".into(), "/sim/2".into()]));
    scrub_finds_nothing(&live);
    assert!(copies_are_right(&live));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn what_cannot_be_rebuilt_is_left_to_a_resilver() {
    let (mut disks, live) = Disks::create(VdevKind::Mirror, 2);
    many(&live);
    let new = one_more(&mut disks, 96);
    take_in(&live, &disks, (guid_of(&live, "/sim/1"), &new), true).unwrap();
    // The new device is gone for a while.
    disks.disk(2).set_health(Health::Gone);
    write(&live, 4, 100);
    until(&live, || !live.is_rebuilding());
    assert!(!is_whole(&live));
    disks.disk(2).set_health(Health::Well);
    live.vdevs().clear(None);
    live.vdevs().reopen();
    until(&live, || is_done(&live));
    assert_eq!(users(&live), Some(0));
    assert!(copies_are_right(&live));
    live.export().unwrap();
    census(live.pool());
}

/// A disk that loses what was not flushed when it is told to, and says so when it is asked to flush.
#[derive(Debug)]
struct Forgetful {
    disk: Arc<SimDevice>,
    forgets: Arc<AtomicBool>,
}

impl Device for Forgetful {
    fn path(&self) -> PathBuf {
        self.disk.path()
    }
    fn size(&self) -> u64 {
        self.disk.size()
    }
    fn sector_size(&self) -> u32 {
        self.disk.sector_size()
    }
    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        self.disk.read(offset, len)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.disk.write(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        if !self.forgets.swap(false, Relaxed) {
            return self.disk.flush();
        }
        self.disk.crash();
        Err(std::io::Error::other("forgotten").into())
    }
}

#[test]
fn a_device_that_loses_what_was_rebuilt_is_not_called_whole() {
    let (mut disks, live) = Disks::create(VdevKind::Mirror, 2);
    many(&live);
    let (old, new) = (guid_of(&live, "/sim/1"), one_more(&mut disks, 96));
    let forgets = Arc::new(AtomicBool::new(false));
    let disk = Arc::new(Forgetful { disk: disks.0[&new].clone(), forgets: forgets.clone() });
    let opener = move |_: &VdevConfig| -> Result<Arc<dyn Device>, LeafUnavailable> {
        Ok(disk.clone() as Arc<dyn Device>)
    };
    let next = |held: Tx| {
        let group = Txg(held.txg().0 + 1);
        until_soon("the next group opens", || live.gate().figures().open == group);
        live.begin().unwrap()
    };
    std::thread::scope(|scope| {
        let held = live.begin().unwrap();
        let first = held.txg();
        let sequential = Newcomer { sequential: true, ..newcomer(old, &new, false) };
        let coming = scope.spawn(|| live.take_in(sequential, Arc::new(opener)));
        let held = next(held);
        coming.join().unwrap().unwrap();
        let held = next(held);
        // The last group of which it is known without a look that the device lacks something.
        assert_eq!(held.txg().0, first.0 + 2);
        until_soon("a portion", || live.rebuild_progress().iter().any(|run| run.pass_issued > 0));
        forgets.store(true, Relaxed);
        drop(held);
        live.sync().unwrap();
        assert!(!forgets.load(Relaxed));
    });
    until(&live, || is_done(&live));
    assert!(copies_are_right(&live));
    live.export().unwrap();
    census(live.pool());
}

fn until_soon(what: &str, is: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Everything can be read from what is there.
fn is_readable(live: &LivePool) -> bool {
    let options = CheckOptions { verify: Verify::Everything, ..CheckOptions::default() };
    let report = check(live.pool(), &options, &mut |_| ControlFlow::Continue(())).unwrap();
    report.is_clean()
}

#[test]
fn a_distributed_spare_steps_in_and_goes_back() {
    for (sequential, goes_back) in [(true, true), (false, false)] {
        let (disks, live) = Disks::create(VdevKind::Draid, 5);
        many(&live);
        let old = guid_of(&live, "/sim/0");
        disks.disk(0).set_health(Health::Gone);
        write(&live, 4, 100);
        let spare = Path::new("draid1-0-0");
        let new = Newcomer { sequential, goes_back, ..newcomer(old, spare, true) };
        live.take_in(new, opener(&disks)).unwrap();
        write(&live, 4, 200);
        let spare =
            live.vdevs().topology().root().walk().find(|node| node.spare_id.is_some()).cloned();
        let spare = spare.unwrap().guid;
        let others_are_whole = |live: &LivePool| {
            let missed = live.vdevs().missed();
            missed.iter().all(|(leaf, _)| *leaf == old) && !live.is_rebuilding()
        };
        until(&live, || others_are_whole(&live));
        // What the first disk held is on the others: a second one can go.
        live.sync().unwrap();
        disks.disk(3).set_health(Health::Gone);
        write(&live, 4, 300);
        live.sync().unwrap();
        assert!(is_readable(&live), "{sequential}");
        let second = guid_of(&live, "/sim/3");
        assert!(live.vdevs().is_required(second) || live.vdevs().is_required(spare));
        disks.disk(3).set_health(Health::Well);
        live.vdevs().clear(None);
        live.vdevs().reopen();
        until(&live, || others_are_whole(&live));
        // It survives an import.
        live.export().unwrap();
        drop(live);
        disks.disk(0).set_health(Health::Well);
        let live = disks.reopen();
        until(&live, || live.vdevs().missed().is_empty());
        if !goes_back {
            assert!(live.vdevs().topology().find(spare).is_some());
            live.let_go(spare).unwrap();
        }
        until(&live, || live.vdevs().topology().find(spare).is_none());
        assert_eq!(paths(&live).len(), 5);
        assert!(copies_are_right(&live), "{sequential}");
        live.export().unwrap();
        census(live.pool());
    }
}

/// What the first spare holds lies in part on the disk that the second stands in for, whichever that is.
#[test]
fn one_resilver_is_enough_for_a_spare_that_stands_in_for_part_of_another() {
    (1..7).for_each(two_spares_after_each_other);
}

fn two_spares_after_each_other(second: usize) {
    let disks = Disks::of(7, 96);
    let mut only = top(VdevKind::Draid, Some(2), disks.leaves());
    only.draid = Some(Draid { data: 2, spares: 2, groups: 5, children: None });
    let live = disks.pool(vec![(only, AllocationClass::Normal)], WriteOptions::default());
    many(&live);
    for (number, gone) in [0, second].into_iter().enumerate() {
        let old = guid_of(&live, &format!("/sim/{gone}"));
        disks.disk(gone).set_health(Health::Gone);
        for round in 1..5 {
            write(&live, 4, 100 * round + number as u64);
        }
        let spare = format!("draid2-0-{number}");
        live.take_in(newcomer(old, Path::new(&spare), true), opener(&disks)).unwrap();
        let others_are_whole = || live.vdevs().missed().iter().all(|(leaf, _)| *leaf == old);
        until(&live, || others_are_whole() && !live.is_rebuilding());
        let record = finished(&live);
        assert_eq!((record.function, record.errors), (ScanFunction::Resilver, 0), "{record:?}");
        live.let_go(old).unwrap();
    }
    assert!(copies_are_right(&live));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn a_raidz_is_resilvered_in_the_order_of_the_disks() {
    let (mut disks, live) = Disks::create(VdevKind::Raidz, 4);
    many(&live);
    let new = one_more(&mut disks, 96);
    disks.disk(1).set_health(Health::Gone);
    write(&live, 3, 100);
    take_in(&live, &disks, (guid_of(&live, "/sim/1"), &new), true).unwrap();
    // It is an ordinary resilver for others.
    assert_eq!((users(&live), live.is_rebuilding()), (Some(0), false));
    let leaf = live.vdevs().topology().find(guid_of(&live, new.to_str().unwrap())).cloned();
    assert!(leaf.unwrap().rebuild_txg.is_none());
    write(&live, 8, 200);
    until(&live, || is_done(&live));
    let record = finished(&live);
    assert_eq!((record.function, record.errors), (ScanFunction::Resilver, 0), "{record:?}");
    assert!(record.processed > 4 << 20, "{record:?}");
    assert!(copies_are_right(&live));
    live.export().unwrap();
    drop(live);
    let live = disks.reopen();
    assert!(copies_are_right(&live));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn a_resilver_that_comes_later_follows_the_one_under_way_without_a_gap() {
    let (mut disks, live) = Disks::create(VdevKind::Raidz, 4);
    many(&live);
    let news = [one_more(&mut disks, 96), one_more(&mut disks, 96)];
    let slow = |disks: &Disks, time| (0..6).for_each(|disk| disks.disk(disk).set_delay(time));
    slow(&disks, Duration::from_millis(20));
    let olds = [guid_of(&live, "/sim/1"), guid_of(&live, "/sim/2")];
    for (old, new) in olds.iter().zip(&news) {
        live.take_in(newcomer(*old, new, true), opener(&disks)).unwrap();
    }
    let waits = |live: &LivePool| {
        let vdevs = live.vdevs();
        let any = vdevs.topology().root().devices().any(|leaf| leaf.resilver_defer);
        (any, live.change(|_, change| change.feature_count("resilver_defer")).unwrap())
    };
    assert_eq!(waits(&live), (true, Some(1)));
    slow(&disks, Duration::ZERO);
    let resilvers = |live: &LivePool| {
        let record = live.scan_progress().record.unwrap();
        (record.function, record.phase) == (ScanFunction::Resilver, ScanPhase::Scanning)
    };
    let start = std::time::Instant::now();
    while resilvers(&live) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", live.scan_progress());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(live.vdevs().missed().is_empty(), "{:?}", live.vdevs().missed());
    until(&live, || is_whole(&live));
    assert_eq!(waits(&live), (false, Some(0)));
    assert!(copies_are_right(&live));
    // An order that begins it anew finds nothing to do.
    live.scan(ScanOrder::Restart).unwrap();
    assert_eq!(live.is_scanning(), None);
    live.export().unwrap();
    census(live.pool());
}
