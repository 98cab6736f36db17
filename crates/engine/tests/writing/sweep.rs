//! Free space that is overwritten once, or given up to its device.
//!
//! Invariant: what is written is right before, during and after; all that is free, and nothing else, is touched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_device::Device;
use cenote_engine::ErrorKind;
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::object::NewObject;
use cenote_engine::pool::group::{LivePool, SweepKind, SweepOrder};
use cenote_engine::vdev::DATA_START;
use cenote_engine::zap::Zap;
use cenote_format::config::VdevKind;
use cenote_format::{Guid, ObjectType};

use super::log::head;
use super::scan::{copies_are_right, write};
use super::suspended::Disks;
use super::{census, noise};

const BEGIN: SweepOrder = SweepOrder::Begin { rate: None };
const KINDS: [(VdevKind, usize); 3] =
    [(VdevKind::File, 1), (VdevKind::Mirror, 2), (VdevKind::Raidz, 4)];

fn leaves(live: &LivePool) -> Vec<Guid> {
    live.vdevs().topology().root().devices().map(|leaf| leaf.guid).collect()
}

fn until_over(live: &LivePool) {
    let start = Instant::now();
    while live.is_sweeping() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    live.sync().unwrap();
}

/// A number of a leaf's table.
fn number(live: &LivePool, leaf: Guid, name: &str) -> Option<u64> {
    let id = live.vdevs().topology().find(leaf)?.leaf_zap?;
    let table = Zap::open(live.pool().mos().object(id).unwrap()).unwrap();
    table.lookup_u64(name).unwrap()
}

/// How many of the sectors between the labels begin with the pattern.
fn patterned(disks: &Disks, disk: usize) -> usize {
    let device = disks.disk(disk);
    let end = device.size() - (512 << 10);
    let is_pattern = |sector: &&[u8]| sector[..8] == 0xdead_beef_dead_beee_u64.to_ne_bytes();
    let places = (DATA_START..end).step_by(512 << 10);
    let count = |at: u64| {
        let bytes = device.read(at, 512 << 10).unwrap();
        bytes.chunks(4096).filter(is_pattern).count()
    };
    places.map(count).sum()
}

#[test]
fn free_space_is_overwritten_and_given_up() {
    for (kind, count) in KINDS {
        let (disks, live) = Disks::create(kind, count);
        write(&live, 8, 1);
        for leaf in leaves(&live) {
            live.sweep(leaf, SweepKind::Initialize, BEGIN).unwrap();
        }
        // Others go on meanwhile.
        write(&live, 8, 50);
        until_over(&live);
        assert!(copies_are_right(&live), "{kind:?}");
        let first = leaves(&live)[0];
        assert_eq!(number(&live, first, "com.delphix:vdev_initialize_state"), Some(4));
        let done = number(&live, first, "com.delphix:next_offset_to_initialize").unwrap();
        assert!(done > 80 << 20, "{done}");
        let free: Vec<usize> = (0..count).map(|disk| patterned(&disks, disk)).collect();
        // What is allocated is little.
        assert!(free.iter().all(|sectors| *sectors > 10_000), "{kind:?}: {free:?}");
        for leaf in leaves(&live) {
            live.sweep(leaf, SweepKind::Trim, BEGIN).unwrap();
        }
        write(&live, 8, 90);
        until_over(&live);
        assert_eq!(number(&live, first, "org.zfsonlinux:vdev_trim_state"), Some(4));
        let left: Vec<usize> = (0..count).map(|disk| patterned(&disks, disk)).collect();
        // What was freed lately stays as it was.
        assert!(left.iter().all(|sectors| *sectors < 4000), "{kind:?}: {left:?}");
        assert!(copies_are_right(&live), "{kind:?}");
        live.export().unwrap();
        drop(live);
        let live = disks.reopen();
        assert!(!live.is_sweeping() && copies_are_right(&live));
        census(live.pool());
        live.export().unwrap();
    }
}

#[test]
fn what_was_begun_goes_on_in_another_life() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    write(&live, 4, 1);
    let [one, two] = leaves(&live)[..] else { panic!() };
    let slow = SweepOrder::Begin { rate: Some(1 << 20) };
    live.sweep(one, SweepKind::Trim, slow).unwrap();
    live.sweep(two, SweepKind::Initialize, BEGIN).unwrap();
    let state = |live: &Arc<LivePool>, leaf, name: &str| number(live, leaf, name).unwrap_or(0);
    let (trim, initialize) =
        ("org.zfsonlinux:vdev_trim_state", "com.delphix:vdev_initialize_state");
    if live.sweep(two, SweepKind::Initialize, SweepOrder::Suspend).is_ok() {
        assert_eq!(state(&live, two, initialize), 3);
        live.close().unwrap();
        drop(live);
        let live = disks.reopen();
        assert_eq!(state(&live, two, initialize), 3);
        live.sweep(two, SweepKind::Initialize, BEGIN).unwrap();
        until_over(&live);
        assert_eq!((state(&live, one, trim), state(&live, two, initialize)), (4, 4));
        assert!(patterned(&disks, 1) > 10_000);
        assert!(copies_are_right(&live));
        live.export().unwrap();
        census(live.pool());
    }
}

#[test]
fn what_cannot_be_swept_is_refused() {
    let (_, live) = Disks::create(VdevKind::Mirror, 2);
    let [one, two] = leaves(&live)[..] else { panic!() };
    let top = live.vdevs().topology().tops()[0].guid;
    let asked = |leaf, kind, order| {
        let error = live.sweep(leaf, kind, order).unwrap_err();
        (error.kind(), error.reason().to_owned())
    };
    let invalid = (ErrorKind::InvalidArgument, "invalid device".to_owned());
    assert_eq!(asked(top, SweepKind::Initialize, BEGIN), invalid);
    assert_eq!(asked(Guid(7), SweepKind::Trim, BEGIN).0, ErrorKind::NotFound);
    let words = "there is no active initialization".to_owned();
    let none = (ErrorKind::NotFound, words);
    assert_eq!(asked(one, SweepKind::Initialize, SweepOrder::Cancel), none);
    live.offline(two, true).unwrap();
    assert_eq!(asked(two, SweepKind::Trim, BEGIN), invalid);
    // One that goes away while it is at it goes on when it is back.
    live.sweep(one, SweepKind::Initialize, BEGIN).unwrap();
    until_over(&live);
    live.sweep(one, SweepKind::Initialize, SweepOrder::Forget).unwrap();
    assert_eq!(number(&live, one, "com.delphix:vdev_initialize_state"), None);
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn what_becomes_free_is_given_up_by_itself() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    let first = leaves(&live)[0];
    live.sweep(first, SweepKind::Initialize, BEGIN).unwrap();
    until_over(&live);
    let before = patterned(&disks, 0);
    live.set_pool_property(PropertyInput::number("autotrim", 1)).unwrap();
    for round in 0..90 {
        // Each group frees blocks of the metadata.
        write(&live, 1, round);
    }
    let start = Instant::now();
    while patterned(&disks, 0) > before / 2 {
        assert!(start.elapsed() < Duration::from_secs(30), "{before}");
        live.sync().unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(copies_are_right(&live));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn what_is_given_up_by_itself_is_lent_for_a_short_time_only() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let new = NewObject::new(ObjectType::OTHER_U64, 32 << 10);
    let object = head(&live).set().create_object(&live.begin().unwrap(), &new).unwrap();
    object.write(&live.begin().unwrap(), 0, &noise(48 << 20, 7)).unwrap();
    live.sync().unwrap();
    live.set_pool_property(PropertyInput::number("autotrim", 1)).unwrap();
    {
        // So that what is free lies in many pieces.
        let tx = live.begin().unwrap();
        for block in (0..48 << 5).step_by(2) {
            object.free_range(&tx, block << 15, 32 << 10).unwrap();
        }
    }
    while live.gate().figures().synced.0 < 29 {
        live.sync().unwrap();
    }
    disks.disk(0).set_delay(Duration::from_millis(20));
    for _ in 0..4 {
        live.sync().unwrap();
    }
    let start = Instant::now();
    while live.allocator().sweep(0, 0).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing is given up");
        std::thread::sleep(Duration::from_millis(20));
    }
    let start = Instant::now();
    drop(live.allocator().occupy(0, (0, 1 << 20), 1).unwrap());
    let waited = start.elapsed();
    disks.disk(0).set_delay(Duration::ZERO);
    assert!(waited < Duration::from_millis(1500), "{waited:?}");
    live.export().unwrap();
    census(live.pool());
}
