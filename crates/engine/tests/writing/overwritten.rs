//! Devices that were overwritten, deleted or replaced while the pool has them open.
//!
//! Invariant: what does not say any more that it is a device of the pool is not taken for one once somebody asks for
//! a look, and the half that has everything does not go meanwhile; nothing that was acknowledged is lost.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use cenote_device::Device;
use cenote_engine::ErrorKind;
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::change::create;
use cenote_engine::pool::group::{LivePool, ScanKind, ScanOrder, WriteOptions};
use cenote_engine::pool::leaves::HeldDevices;
use cenote_engine::vdev::{AllocationClass, Aux, VdevState};
use cenote_format::Guid;
use cenote_format::config::VdevKind;
use cenote_format::label::{CONFIG_OFFSET, LABEL_SIZE, label_offset};

use super::members::{condition, guid_of, is_whole, newcomer, one_more, opener, until};
use super::scan::{copies_are_right, finished, write};
use super::suspended::Disks;
use super::{census, leaf, nothing, plan, top};

/// Bytes of a disk.
const SIZE: usize = 96 << 20;

/// A pool with something in it, in its second life: its devices were found by their labels.
fn opened(kind: VdevKind, count: usize) -> (Disks, Arc<LivePool>) {
    let (disks, live) = Disks::create(kind, count);
    write(&live, 4, 1);
    live.export().unwrap();
    drop(live);
    let live = disks.reopen();
    write(&live, 2, 20);
    (disks, live)
}

fn content(disks: &Disks, number: usize) -> Vec<u8> {
    let all = (0..SIZE >> 20).map(|part| disks.disk(number).read((part as u64) << 20, 1 << 20));
    all.flat_map(|part| part.unwrap().to_vec()).collect()
}

fn is_labelled(disks: &Disks, number: usize, index: usize) -> bool {
    let start = label_offset(SIZE as u64, index).unwrap() + CONFIG_OFFSET;
    disks.disk(number).read(start, 4096).unwrap().iter().any(|byte| *byte != 0)
}

/// The half that is left can neither rest nor leave.
fn assert_kept(live: &LivePool, good: Guid) {
    for refused in [live.offline(good, false), live.offline(good, true), live.let_go(good)] {
        let error = refused.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Busy, "no valid replicas"));
    }
}

#[test]
fn a_device_that_was_overwritten_while_it_is_open_is_found_out() {
    for look in ["reopen", "scrub", "online", "offline of the other"] {
        let (mut disks, live) = opened(VdevKind::Mirror, 2);
        let [good, wiped] = [guid_of(&live, "/sim/0"), guid_of(&live, "/sim/1")];
        disks.disk(1).replace_content(&vec![0; SIZE]);
        match look {
            "reopen" => live.look_again().unwrap(),
            "scrub" => live.scan(ScanOrder::Begin(ScanKind::Scrub)).unwrap(),
            "online" => assert_eq!(live.online(wiped).unwrap(), VdevState::Unavailable),
            _ => assert_eq!(live.offline(good, false).unwrap_err().kind(), ErrorKind::Busy),
        }
        assert_eq!(condition(&live, wiped), (VdevState::Unavailable, Aux::BadLabel), "{look}");
        assert_kept(&live, good);
        write(&live, 2, 50);
        live.vdevs().reopen();
        assert_eq!(condition(&live, wiped), (VdevState::Unavailable, Aux::BadLabel), "{look}");
        let new = one_more(&mut disks, 96);
        live.take_in(newcomer(wiped, &new, true), opener(&disks)).unwrap();
        until(&live, || is_whole(&live));
        if live.is_scanning().is_some() {
            finished(&live);
        }
        assert!(copies_are_right(&live), "{look}");
        live.offline(good, false).unwrap();
        live.export().unwrap();
        drop(live);
        let live = disks.reopen();
        census(live.pool());
        live.export().unwrap();
    }
}

#[test]
fn what_another_device_was_copied_over_is_another_device() {
    let (disks, live) = opened(VdevKind::Mirror, 2);
    let [good, other] = [guid_of(&live, "/sim/0"), guid_of(&live, "/sim/1")];
    live.sync().unwrap();
    disks.disk(1).replace_content(&content(&disks, 0));
    live.look_again().unwrap();
    assert_eq!(condition(&live, other), (VdevState::Unavailable, Aux::CorruptData));
    assert_kept(&live, good);
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn what_has_lost_some_labels_gets_them_back() {
    // Of four, and where nobody else has what is there, all.
    for (kind, count, left) in [(VdevKind::Mirror, 2, 1), (VdevKind::File, 1, 0)] {
        let (disks, live) = opened(kind, count);
        let number = count - 1;
        let mut bytes = content(&disks, number);
        for index in left..4 {
            let start = label_offset(SIZE as u64, index).unwrap() as usize;
            bytes[start..start + LABEL_SIZE as usize].fill(0);
        }
        disks.disk(number).replace_content(&bytes);
        live.look_again().unwrap();
        let own = guid_of(&live, &format!("/sim/{number}"));
        assert_eq!(condition(&live, own), (VdevState::Online, Aux::None), "{kind:?}");
        live.sync().unwrap();
        assert!((0..4).all(|index| is_labelled(&disks, number, index)), "{kind:?}");
        live.close().unwrap();
        drop(live);
        let live = disks.reopen();
        assert!(copies_are_right(&live), "{kind:?}");
        live.export().unwrap();
    }
}

#[test]
fn a_file_that_was_deleted_or_replaced_is_no_device_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["first", "second", "third"].map(|name| dir.path().join(name));
    let blank = |path: &Path| File::create(path).unwrap().set_len(SIZE as u64).unwrap();
    paths.iter().for_each(|path| blank(path));
    let [first, second, third] = paths;
    let leaves = || HeldDevices::new().new_leaves();
    let mirror = top(VdevKind::Mirror, None, vec![leaf(&first), leaf(&second)]);
    let plan = plan("tank", vec![(mirror, AllocationClass::Normal)]);
    let (open, options) = (OpenOptions::default(), WriteOptions::default());
    let live = create(plan, leaves(), &open, options, nothing).unwrap();
    write(&live, 4, 1);
    let [good, own] = [&first, &second].map(|path| guid_of(&live, path.to_str().unwrap()));
    // Another one has its name; the pool still writes to the one that was moved aside.
    let aside = dir.path().join("aside");
    std::fs::rename(&second, &aside).unwrap();
    write(&live, 2, 20);
    live.look_again().unwrap();
    assert_eq!(condition(&live, own), (VdevState::Online, Aux::None));
    blank(&second);
    live.look_again().unwrap();
    assert_eq!(condition(&live, own), (VdevState::Unavailable, Aux::BadLabel));
    assert_kept(&live, good);
    write(&live, 2, 30);
    std::fs::rename(&aside, &second).unwrap();
    live.look_again().unwrap();
    until(&live, || is_whole(&live));
    assert_eq!(condition(&live, own), (VdevState::Online, Aux::None));
    // It is gone for good.
    std::fs::remove_file(&second).unwrap();
    assert_kept(&live, good);
    assert_eq!(condition(&live, own), (VdevState::Unavailable, Aux::OpenFailed));
    write(&live, 2, 40);
    live.take_in(newcomer(own, &third, true), leaves()).unwrap();
    until(&live, || is_whole(&live));
    assert!(copies_are_right(&live));
    live.offline(good, false).unwrap();
    live.export().unwrap();
    census(live.pool());
}
