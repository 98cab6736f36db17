//! Devices that come beside others, take their place, leave, and rest.
//!
//! Invariant: a device that came holds everything after its resilver, alone if need be; none goes without which
//! something would be lost.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cenote_device::{Device, DeviceError, Health, SimDevice};
use cenote_engine::ErrorKind;
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::assemble::assemble;
use cenote_engine::pool::change::{Additions, Newcomer, create};
use cenote_engine::pool::discover::{Candidate, Opener, ScanOptions, scan};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::pool::leaves::HeldDevices;
use cenote_engine::vdev::{AllocationClass, Aux, LeafOpener, LeafUnavailable, VdevState};
use cenote_format::Guid;
use cenote_format::config::{VdevConfig, VdevKind};

use super::scan::{copies_are_right, write};
use super::suspended::Disks;
use super::{census, leaf, nothing, plan, top};

/// One more disk of so many MiB.
pub(super) fn one_more(disks: &mut Disks, size: usize) -> PathBuf {
    let path = PathBuf::from(format!("/sim/{}", disks.0.len()));
    let disk = SimDevice::new(path.display().to_string(), size << 20);
    disks.0.insert(path.clone(), Arc::new(disk));
    path
}

pub(super) fn opener(disks: &Disks) -> Arc<dyn LeafOpener> {
    let disks = disks.clone();
    Arc::new(move |leaf: &VdevConfig| {
        let path = leaf.path.clone().unwrap();
        let opened = Opener::open(&disks, Path::new(&path));
        opened.map_err(|error| LeafUnavailable::open_failed(error.to_string()))
    })
}

pub(super) fn guid_of(live: &LivePool, path: &str) -> Guid {
    let vdevs = live.vdevs();
    let found = vdevs.topology().root().devices().find(|leaf| leaf.path.as_deref() == Some(path));
    found.unwrap().guid
}

pub(super) fn paths(live: &LivePool) -> Vec<String> {
    let vdevs = live.vdevs();
    vdevs.topology().root().devices().filter_map(|leaf| leaf.path.clone()).collect()
}

fn take_in(
    live: &LivePool,
    disks: &Disks,
    (beside, path): (Guid, &Path),
    replaces: bool,
) -> cenote_engine::Result<()> {
    live.take_in(newcomer(beside, path, replaces), opener(disks))
}

pub(super) fn newcomer(beside: Guid, path: &Path, replaces: bool) -> Newcomer {
    Newcomer { beside, leaf: leaf(path), replaces, goes_back: false, sequential: false }
}

pub(super) fn until(live: &LivePool, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        let missed = live.vdevs().missed();
        assert!(start.elapsed() < Duration::from_secs(60), "{missed:?} {:?}", live.scan_progress());
        live.sync().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn is_whole(live: &LivePool) -> bool {
    live.vdevs().missed().is_empty() && live.vdevs().replaced().is_none()
}

#[test]
fn a_disk_becomes_a_mirror_and_either_half_holds_everything() {
    let (mut disks, live) = Disks::create(VdevKind::File, 1);
    write(&live, 8, 1);
    let new = one_more(&mut disks, 96);
    take_in(&live, &disks, (guid_of(&live, "/sim/0"), &new), false).unwrap();
    let kinds = |live: &LivePool| -> Vec<VdevKind> {
        live.vdevs().topology().root().walk().map(|node| node.kind).collect()
    };
    assert_eq!(kinds(&live), [VdevKind::Root, VdevKind::Mirror, VdevKind::File, VdevKind::File]);
    // A scan that began before does not count for it, whoever ends that.
    let began = |live: &LivePool| {
        live.vdevs().topology().root().devices().any(|leaf| leaf.resilver_txg.is_some())
    };
    assert!(began(&live) || is_whole(&live));
    write(&live, 4, 50);
    // The one that has everything cannot go, or rest, before the other has it too.
    if !is_whole(&live) {
        let error = live.let_go(guid_of(&live, "/sim/0")).unwrap_err();
        assert!(error.kind() == ErrorKind::Busy || is_whole(&live), "{error}");
    }
    until(&live, || is_whole(&live));
    assert!(copies_are_right(&live));
    live.let_go(guid_of(&live, "/sim/0")).unwrap();
    assert!(!began(&live));
    assert_eq!(
        (paths(&live), kinds(&live)),
        (vec!["/sim/1".to_owned()], vec![VdevKind::Root, VdevKind::File])
    );
    write(&live, 2, 90);
    assert!(copies_are_right(&live));
    live.export().unwrap();
    drop(live);
    // What left is no part of the pool, and the pool does without it.
    let live = disks.reopen();
    assert_eq!(paths(&live), ["/sim/1"]);
    census(live.pool());
    live.export().unwrap();
}

#[test]
fn a_replaced_device_leaves_by_itself() {
    for (kind, count) in [(VdevKind::Mirror, 2), (VdevKind::Raidz, 4)] {
        let (mut disks, live) = Disks::create(kind, count);
        write(&live, 8, 1);
        let new = one_more(&mut disks, 128);
        let old = guid_of(&live, "/sim/1");
        take_in(&live, &disks, (old, &new), true).unwrap();
        write(&live, 4, 50);
        until(&live, || is_whole(&live));
        assert!(live.vdevs().topology().find(old).is_none());
        assert_eq!(paths(&live).len(), count);
        assert!(copies_are_right(&live), "{kind:?}");
        live.export().unwrap();
        drop(live);
        let live = disks.reopen();
        assert!(paths(&live).contains(&new.display().to_string()), "{:?}", paths(&live));
        assert!(copies_are_right(&live), "{kind:?}");
        census(live.pool());
        live.export().unwrap();
    }
}

#[test]
fn a_lost_device_is_replaced_across_a_crash() {
    let (mut disks, live) = Disks::create(VdevKind::Raidz, 4);
    write(&live, 30, 1);
    disks.disk(2).set_health(Health::Gone);
    write(&live, 4, 50);
    let new = one_more(&mut disks, 96);
    for disk in [0, 1, 3, 4] {
        disks.disk(disk).set_delay(Duration::from_millis(3));
    }
    take_in(&live, &disks, (guid_of(&live, "/sim/2"), &new), true).unwrap();
    live.sync().unwrap();
    live.close().unwrap();
    drop(live);
    for disk in [0, 1, 3, 4] {
        disks.disk(disk).set_delay(Duration::ZERO);
    }
    let live = disks.reopen();
    until(&live, || is_whole(&live));
    assert_eq!(paths(&live), ["/sim/0", "/sim/1", "/sim/4", "/sim/3"]);
    assert!(copies_are_right(&live));
    live.export().unwrap();
    drop(live);
    let live = disks.reopen();
    census(live.pool());
    live.export().unwrap();
}

#[test]
fn a_device_that_rests_gets_what_it_missed() {
    for temporary in [false, true] {
        let (disks, live) = Disks::create(VdevKind::Mirror, 2);
        write(&live, 4, 1);
        let (first, second) = (guid_of(&live, "/sim/0"), guid_of(&live, "/sim/1"));
        live.offline(second, temporary).unwrap();
        let state = |guid: Guid| {
            live.vdevs().status().and_then(|root| Some(root.find(guid)?.condition.state))
        };
        assert_eq!(state(second), Some(VdevState::Offline));
        assert_eq!(live.offline(first, temporary).unwrap_err().kind(), ErrorKind::Busy);
        let before = disks.disk(1).counts();
        write(&live, 4, 50);
        live.vdevs().reopen();
        write(&live, 4, 60);
        assert_eq!((disks.disk(1).counts(), state(second)), (before, Some(VdevState::Offline)));
        assert!(live.vdevs().misses(second, live.pool().uberblock().txg));
        assert!(live.online(second).unwrap().is_readable());
        until(&live, || is_whole(&live));
        assert_eq!(state(second), Some(VdevState::Online));
        assert!(copies_are_right(&live));
        live.export().unwrap();
        census(live.pool());
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (mut disks, live) = Disks::create(VdevKind::Raidz, 4);
    write(&live, 1, 1);
    let before = live.vdevs().topology().root().clone();
    let (new, small) = (one_more(&mut disks, 96), one_more(&mut disks, 64));
    let other = guid_of(&live, "/sim/1");
    let refused = |beside: Guid, path: &Path, replaces: bool| {
        let error = take_in(&live, &disks, (beside, path), replaces).unwrap_err();
        (error.kind(), error.reason().to_owned())
    };
    let kind = ErrorKind::Unsupported;
    let words = "can only attach to mirrors and top-level disks".to_owned();
    assert_eq!(refused(other, &new, false), (kind, words));
    let words = "device is too small".to_owned();
    assert_eq!(refused(other, &small, true), (ErrorKind::InvalidArgument, words));
    assert_eq!(refused(Guid(7), &new, true).0, ErrorKind::NotFound);
    assert_eq!(refused(other, Path::new("/sim/9"), true).0, ErrorKind::InvalidArgument);
    let words = "only applicable to mirror and replacing vdevs";
    assert_eq!(live.let_go(other).unwrap_err().reason(), words);
    assert_eq!(live.vdevs().topology().root(), &before);
    // An order that fails in its middle leaves nothing behind.
    for step in 1..40 {
        live.fail_order_at(step);
        let done = take_in(&live, &disks, (other, &new), true);
        live.fail_order_at(0);
        // The resilver that follows is an order of its own.
        if done.is_ok() {
            break;
        }
        assert_eq!(live.vdevs().topology().root(), &before, "step {step}");
    }
    until(&live, || is_whole(&live));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn the_last_copy_does_not_go_with_a_device_that_is_away() {
    let disks = Disks::of(2, 96);
    let mirror = (top(VdevKind::Mirror, None, disks.leaves()), AllocationClass::Normal);
    let manner = WriteOptions { resilvers: false, ..WriteOptions::default() };
    let (mut all, live) = (disks.clone(), disks.pool(vec![mirror], manner));
    write(&live, 2, 1);
    let [stale, away] = [guid_of(&live, "/sim/0"), guid_of(&live, "/sim/1")];
    // It says it lacks what the other has.
    live.vdevs().add_missing_txgs(stale, 4..6);
    disks.disk(1).set_health(Health::Gone);
    write(&live, 2, 50);
    for refused in [live.let_go(away), live.offline(away, false)] {
        assert_eq!(refused.unwrap_err().reason(), "no valid replicas");
    }
    disks.disk(1).set_health(Health::Well);
    live.vdevs().clear(None);
    live.vdevs().reopen();
    live.vdevs().add_missing_txgs(away, 4..6);
    // A device that only just came has nothing that the others have not: it may leave again.
    let new = one_more(&mut all, 96);
    take_in(&live, &all, (stale, &new), true).unwrap();
    assert_eq!(live.let_go(stale).unwrap_err().kind(), ErrorKind::Busy);
    live.let_go(guid_of(&live, "/sim/2")).unwrap();
    assert_eq!(paths(&live), ["/sim/0", "/sim/1"]);
    census(live.pool());
    live.export().unwrap();
}

#[test]
fn a_device_of_this_pool_is_no_new_one() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 3);
    write(&live, 1, 1);
    let [first, rests] = [guid_of(&live, "/sim/0"), guid_of(&live, "/sim/1")];
    live.offline(rests, false).unwrap();
    write(&live, 1, 50);
    let path = Path::new("/sim/1");
    let disk = || VdevConfig { guid: Guid(0), ..leaf(path) };
    let single = (top(VdevKind::File, None, vec![disk()]), AllocationClass::Normal);
    let add = |plan| live.add_vdevs(plan, opener(&disks));
    let all = [
        take_in(&live, &disks, (first, path), false),
        take_in(&live, &disks, (first, path), true),
        take_in(&live, &disks, (rests, path), true),
        add(Additions { tops: vec![single], ..Additions::default() }),
        add(Additions { spares: vec![disk()], ..Additions::default() }),
        add(Additions { caches: vec![disk()], ..Additions::default() }),
    ];
    for (number, refused) in all.into_iter().enumerate() {
        let error = refused.expect_err(&number.to_string());
        assert_eq!(error.kind(), ErrorKind::Busy, "{number}: {error}");
        assert!(error.reason().starts_with("/sim/1 is part of active pool 'tank'"), "{error}");
    }
    live.online(rests).unwrap();
    until(&live, || is_whole(&live));
    assert!(copies_are_right(&live));
    // One that has left may come again.
    live.let_go(rests).unwrap();
    take_in(&live, &disks, (first, path), false).unwrap();
    until(&live, || is_whole(&live));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn what_lies_where_a_spare_was_is_left_alone() {
    let (mut disks, live) = Disks::create(VdevKind::Mirror, 2);
    let spare = one_more(&mut disks, 96);
    let plan = Additions { spares: vec![leaf(&spare)], ..Additions::default() };
    live.add_vdevs(plan, opener(&disks)).unwrap();
    let other = vec![0x5a; 96 << 20];
    let content = |disks: &Disks| -> Vec<u8> {
        let all = (0..96).map(|part| disks.disk(2).read(part << 20, 1 << 20).unwrap());
        all.flatten().collect()
    };
    let labelled = content(&disks);
    disks.disk(2).replace_content(&other);
    let old = guid_of(&live, "/sim/1");
    let error = take_in(&live, &disks, (old, &spare), true).unwrap_err();
    assert!(error.reason().contains("is not the hot spare"), "{error}");
    assert!(content(&disks) == other);
    disks.disk(2).replace_content(&labelled);
    take_in(&live, &disks, (old, &spare), true).unwrap();
    until(&live, || live.vdevs().missed().is_empty());
    live.export().unwrap();
    census(live.pool());
}

pub(super) fn condition(live: &LivePool, guid: Guid) -> (VdevState, Aux) {
    let status = live.vdevs().status().unwrap();
    let condition = status.find(guid).unwrap().condition;
    (condition.state, condition.aux)
}

#[test]
fn a_device_said_to_be_faulty_stays_so_until_it_is_trusted() {
    for temporary in [false, true] {
        let (disks, live) = Disks::create(VdevKind::Mirror, 2);
        write(&live, 4, 1);
        let (first, second) = (guid_of(&live, "/sim/0"), guid_of(&live, "/sim/1"));
        live.fault(second, temporary).unwrap();
        let faulted = (VdevState::Faulted, Aux::External);
        assert_eq!(condition(&live, second), faulted);
        // Bringing it online does not help, and looking again does not either.
        assert_eq!(live.online(second).unwrap(), VdevState::Faulted);
        let before = disks.disk(1).counts();
        write(&live, 4, 50);
        live.look_again().unwrap();
        assert_eq!((disks.disk(1).counts(), condition(&live, second)), (before, faulted));
        // The other holds what nobody else does: it is only said to be worn.
        live.fault(first, temporary).unwrap();
        assert_eq!(condition(&live, first), (VdevState::Degraded, Aux::External));
        write(&live, 4, 60);
        live.trust(Some(first)).unwrap();
        assert_eq!(condition(&live, first), (VdevState::Online, Aux::None));
        live.export().unwrap();
        drop(live);
        let live = disks.reopen();
        match temporary {
            true => assert!(condition(&live, second).0.is_readable()),
            false => assert_eq!(condition(&live, second), faulted),
        }
        write(&live, 2, 70);
        live.trust(None).unwrap();
        assert!(condition(&live, second).0.is_readable());
        until(&live, || is_whole(&live));
        assert!(copies_are_right(&live));
        let leaf = live.vdevs().topology().find(second).cloned().unwrap();
        assert!(!leaf.faulted && leaf.aux_state.is_none());
        live.export().unwrap();
        drop(live);
        let live = disks.reopen();
        assert_eq!(condition(&live, second), (VdevState::Online, Aux::None));
        census(live.pool());
        live.export().unwrap();
    }
}

/// Bytes of the pool's metaslabs.
fn size(live: &LivePool) -> u64 {
    live.allocator().figures().tops.iter().map(|top| top.size).sum()
}

#[test]
fn a_pool_uses_what_its_devices_have_grown_by() {
    for (kind, count) in [(VdevKind::File, 1), (VdevKind::Mirror, 2), (VdevKind::Raidz, 3)] {
        let (disks, live) = Disks::create(kind, count);
        write(&live, 8, 1);
        let before = size(&live);
        live.grow(None).unwrap();
        assert_eq!(size(&live), before);
        for number in 0..count {
            // As long as one is small, nothing is won.
            live.look_again().unwrap();
            assert_eq!((size(&live), live.vdevs().expandable(0)), (before, 0), "{kind:?}");
            disks.disk(number).grow(320 << 20);
        }
        live.look_again().unwrap();
        let more = live.vdevs().expandable(0);
        assert!(size(&live) == before && more >= 192 << 20, "{kind:?}: {more}");
        for number in 0..count {
            assert_eq!(size(&live), before);
            live.grow(Some(guid_of(&live, &format!("/sim/{number}")))).unwrap();
        }
        assert_eq!((size(&live), live.vdevs().expandable(0)), (before + more, 0));
        // More than there was room for.
        write(&live, if kind == VdevKind::Raidz { 20 } else { 180 }, 50);
        let allocated = live.allocator().figures().tops[0].allocated;
        assert!(kind == VdevKind::Raidz || allocated > before, "{kind:?}: {allocated}");
        live.export().unwrap();
        drop(live);
        let live = disks.reopen();
        assert_eq!(size(&live), before + more);
        assert!(copies_are_right(&live));
        census(live.pool());
        live.export().unwrap();
    }
}

#[test]
fn a_pool_grows_by_itself_when_the_last_small_disk_has_left() {
    let (mut disks, live) = Disks::create(VdevKind::Mirror, 2);
    live.set_pool_property(PropertyInput::number("autoexpand", 1)).unwrap();
    write(&live, 8, 1);
    let before = size(&live);
    for old in ["/sim/0", "/sim/1"] {
        let new = one_more(&mut disks, 256);
        take_in(&live, &disks, (guid_of(&live, old), &new), true).unwrap();
        until(&live, || is_whole(&live) && !paths(&live).contains(&old.to_owned()));
    }
    until(&live, || size(&live) >= before + (128 << 20));
    live.export().unwrap();
    drop(live);
    // It does so in another life, too.
    for number in 0..4 {
        disks.disk(number).grow(512 << 20);
    }
    let live = disks.reopen();
    until(&live, || size(&live) >= before + (320 << 20));
    assert!(copies_are_right(&live));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn a_device_that_was_away_at_the_import_is_taken_when_it_comes() {
    for by_order in [false, true] {
        let (mut disks, live) = Disks::create(VdevKind::Raidz, 4);
        write(&live, 8, 1);
        let leaf = guid_of(&live, "/sim/2");
        live.export().unwrap();
        drop(live);
        let path = PathBuf::from("/sim/2");
        let aside = disks.0.remove(&path).unwrap();
        let present = Present(Arc::new(Mutex::new(disks.clone())));
        let live = present.open();
        assert_eq!(condition(&live, leaf), (VdevState::Unavailable, Aux::OpenFailed));
        write(&live, 4, 50);
        live.sync().unwrap();
        // A stranger at its place is not taken for it.
        let stranger = Arc::new(SimDevice::new("/sim/2", 96 << 20));
        present.0.lock().unwrap().0.insert(path.clone(), stranger);
        live.vdevs().reopen();
        assert_eq!(condition(&live, leaf), (VdevState::Unavailable, Aux::BadLabel));
        present.0.lock().unwrap().0.insert(path.clone(), aside.clone());
        match by_order {
            true => assert!(live.online(leaf).unwrap().is_readable()),
            false => assert!(live.vdevs().reopen()),
        }
        until(&live, || is_whole(&live));
        assert_eq!(condition(&live, leaf), (VdevState::Online, Aux::None));
        assert!(copies_are_right(&live));
        live.export().unwrap();
        drop(live);
        disks.0.insert(path, aside);
        let live = disks.reopen();
        assert!(is_whole(&live) && copies_are_right(&live));
        census(live.pool());
        live.export().unwrap();
    }
}

#[test]
fn a_device_that_was_written_elsewhere_is_not_taken() {
    let (mut disks, live) = Disks::create(VdevKind::Mirror, 2);
    write(&live, 4, 1);
    let leaf = guid_of(&live, "/sim/1");
    live.export().unwrap();
    drop(live);
    let (path, other) = (PathBuf::from("/sim/1"), PathBuf::from("/sim/0"));
    let aside = disks.0.remove(&path).unwrap();
    // It was imported alone, and got groups of its own.
    let alone = Disks([(path.clone(), aside.clone())].into_iter().collect());
    let elsewhere = alone.reopen();
    write(&elsewhere, 4, 20);
    elsewhere.export().unwrap();
    drop(elsewhere);
    assert!(disks.0.contains_key(&other));
    let present = Present(Arc::new(Mutex::new(disks.clone())));
    let live = present.open();
    write(&live, 4, 50);
    present.0.lock().unwrap().0.insert(path, aside);
    live.vdevs().reopen();
    assert_eq!(condition(&live, leaf).0, VdevState::Unavailable);
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn what_is_where_a_device_was_that_joined_in_this_life_is_not_taken_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let blank = |path: &Path| std::fs::File::create(path).unwrap().set_len(96 << 20).unwrap();
    let paths = ["first", "second", "later"].map(|name| dir.path().join(name));
    for path in &paths {
        blank(path);
    }
    let [first, second, later] = paths;
    let opener = || HeldDevices::new().new_leaves();
    let mirror = top(VdevKind::Mirror, None, vec![leaf(&first), leaf(&second)]);
    let plan = plan("tank", vec![(mirror, AllocationClass::Normal)]);
    let (open, options) = (OpenOptions::default(), WriteOptions::default());
    let live = create(plan, opener(), &open, options, nothing).unwrap();
    write(&live, 4, 1);
    // One came with the pool, one later.
    let beside = guid_of(&live, first.to_str().unwrap());
    live.take_in(newcomer(beside, &later, false), opener()).unwrap();
    until(&live, || is_whole(&live));
    for path in [second, later] {
        let guid = guid_of(&live, path.to_str().unwrap());
        live.offline(guid, false).unwrap();
        write(&live, 4, 30);
        let comes = || {
            live.online(guid).unwrap();
            condition(&live, guid)
        };
        let aside = dir.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        blank(&path);
        assert_eq!(comes(), (VdevState::Unavailable, Aux::BadLabel));
        write(&live, 4, 60);
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
        std::fs::copy(&first, &path).unwrap();
        assert_eq!(comes(), (VdevState::Unavailable, Aux::CorruptData));
        std::fs::rename(&aside, &path).unwrap();
        assert!(comes().0.is_readable());
        until(&live, || is_whole(&live));
        assert_eq!(condition(&live, guid), (VdevState::Online, Aux::None));
        assert!(copies_are_right(&live));
    }
    live.export().unwrap();
    census(live.pool());
}

/// Disks of which some come later.
#[derive(Clone)]
struct Present(Arc<Mutex<Disks>>);

impl Present {
    fn open(&self) -> Arc<LivePool> {
        let opener: Arc<dyn Opener> = Arc::new(self.clone());
        let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
        let options = OpenOptions { devices: Some(opener), ..OpenOptions::default() };
        LivePool::open(&pools[0], &options, WriteOptions::default()).unwrap()
    }
}

impl Opener for Present {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        self.0.lock().unwrap().candidates(place)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        Opener::open(&*self.0.lock().unwrap(), path)
    }
}
