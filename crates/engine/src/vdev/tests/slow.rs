//! Devices that take long: what is counted, and for whom.
//!
//! Invariant: a device's times are its own, whoever was asked beside it.

use super::rig::*;
use crate::vdev::*;
use bytes::Bytes;
use cenote_device::{Device, FileDevice, Mode, SimDevice};
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::{Guid, Txg};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn times_are_each_devices_own() {
    let config = root(12, vec![group(VdevKind::Mirror, 100, leaves(1..3))]);
    let opener = |leaf: &VdevConfig| {
        Ok(Arc::new(SimDevice::new(leaf.guid.to_string(), DISK)) as Arc<dyn Device>)
    };
    let tree = VdevTree::build(&config, Arc::new(opener)).unwrap();
    take_long(&tree, SECOND);
    let data = Bytes::from(Random(1).bytes(4096));
    let write = BlockWrite { vdev: 0, offset: 0, data: data.clone(), sides: None, birth: Txg(10) };
    tree.write_batch(std::slice::from_ref(&write)).remove(0).unwrap();
    tree.read_all_copies(&write.as_read(), &mut |bytes| bytes == data).unwrap();
    let status = tree.status().unwrap();
    let times = |guid: u64| {
        let stats = status.find(Guid(guid)).unwrap().stats;
        assert_eq!((stats.reads, stats.writes), (1, 1));
        [stats.nanos, stats.write_nanos].map(Duration::from_nanos)
    };
    assert!(times(2).iter().all(|time| *time >= SECOND), "{:?}", times(2));
    assert!(times(1).iter().all(|time| *time < SECOND / 2), "{:?}", times(1));
}

/// A tree of a mirror of two files, its clock, and how far that was moved.
fn mirror_of_files() -> (tempfile::TempDir, VdevTree, Arc<AtomicU64>) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().to_owned();
    let opener = move |leaf: &VdevConfig| {
        let file = path.join(leaf.guid.to_string());
        std::fs::File::create(&file).unwrap().set_len(DISK as u64).unwrap();
        Ok(Arc::new(FileDevice::open(&file, Mode::Exclusive).unwrap()) as Arc<dyn Device>)
    };
    let config = root(12, vec![group(VdevKind::Mirror, 100, leaves(1..3))]);
    let (begun, moved) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let seconds = moved.clone();
    let tree =
        VdevTree::build(&config, Arc::new(opener)).unwrap().with_clock(Arc::new(move || {
            begun.elapsed() + SECOND * u32::try_from(seconds.load(Relaxed)).unwrap()
        }));
    (place, tree, moved)
}

fn take_long(tree: &VdevTree, time: Duration) {
    let kind = FaultKind::Slow(time, 1);
    let fault = DeviceFault { at: FaultAt::Any, kind, chance: ALWAYS, range: None };
    tree.inject(Guid(2), fault).unwrap();
}

#[test]
#[allow(clippy::single_range_in_vec_init, reason = "a list of ranges is what this is about")]
fn writes_wait_four_seconds_in_all_for_a_half_that_is_slow() {
    let (_place, tree, moved) = mirror_of_files();
    take_long(&tree, SECOND * 29 / 10);
    let write = |birth: u64| {
        let data = Bytes::from(Random(birth).bytes(4096));
        let offset = birth * 4096;
        let write = BlockWrite { vdev: 0, offset, data, sides: None, birth: Txg(birth) };
        tree.write_batch(std::slice::from_ref(&write)).remove(0).unwrap();
    };
    let begun = Instant::now();
    (10..16).for_each(write);
    let took = begun.elapsed();
    assert!(took >= SECOND * 3 && took < SECOND * 7, "{took:?}");
    let condition = || {
        let status = tree.status().unwrap();
        let two = status.find(Guid(2)).unwrap();
        (two.condition, two.stats.slow, two.stats.write_errors)
    };
    let sits_out = Condition::new(VdevState::Degraded, Aux::ErrorsExceeded);
    assert_eq!(condition(), (sits_out, 1, 0));
    // The first one was waited for.
    assert_eq!(tree.missed(), [(Guid(2), vec![11..16])]);

    // As slow as before after its pause, and then quick.
    moved.fetch_add(20, Relaxed);
    std::thread::sleep(SECOND * 3);
    assert!(!tree.probe());
    tree.forget_injected(None);
    moved.fetch_add(20, Relaxed);
    assert!(!tree.probe());
    moved.fetch_add(20, Relaxed);
    assert!(tree.probe());
    assert_eq!(condition().0, Condition::new(VdevState::Degraded, Aux::None));
    write(16);
    assert_eq!(tree.missed(), [(Guid(2), vec![11..16])]);
}

#[test]
fn a_delayed_half_is_read_around() {
    let (_place, tree, _) = mirror_of_files();
    let blocks = |number: u64| BlockWrite {
        vdev: 0,
        offset: number << 20,
        data: Bytes::from(Random(number).bytes(1 << 17)),
        sides: None,
        birth: Txg(10),
    };
    let writes: Vec<BlockWrite> = (0..8).map(blocks).collect();
    assert!(tree.write_batch(&writes).iter().all(Result::is_ok));
    tree.flush().unwrap();
    take_long(&tree, SECOND * 20);
    let reads: Vec<BlockRead> = writes.iter().map(BlockWrite::as_read).collect();
    let begun = Instant::now();
    for _ in 0..4 {
        for (answer, write) in tree.read_batch(&reads).into_iter().zip(&writes) {
            assert!(answer.unwrap() == write.data);
        }
    }
    assert!(begun.elapsed() < SECOND * 5, "{:?}", begun.elapsed());
    let two = tree.status().unwrap().find(Guid(2)).unwrap().stats;
    assert!(two.slow > 0 && two.read_errors == 0, "{two:?}");
}
