//! Log devices, spares and cache devices that leave a pool in use.
//!
//! Invariant: what was committed is never lost on the way, nothing leaks, and the ids of the other
//! devices stay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use bytes::Bytes;
use cenote_engine::ErrorKind;
use cenote_engine::object::NewObject;
use cenote_engine::pool::change::Additions;
use cenote_engine::pool::group::LivePool;
use cenote_engine::pool::leaves::HeldDevices;
use cenote_engine::vdev::{AllocationClass, Condition};
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::{Guid, ObjectType};

use super::log::{Target, head, reopen};
use super::{census, devices, leaf, make, noise, nothing, top, zdb};

/// A log vdev.
fn log(kind: VdevKind, leaves: Vec<VdevConfig>) -> (VdevConfig, AllocationClass) {
    let mut log = top(kind, None, leaves);
    if let Some(recorded) = &mut log.top {
        recorded.is_log = true;
    }
    (log, AllocationClass::Log)
}

fn tree(live: &LivePool) -> VdevConfig {
    live.pool().config().vdev_tree.clone().unwrap()
}

fn guid_of(live: &LivePool, id: usize) -> Guid {
    tree(live).children()[id].guid
}

fn log_bytes(live: &LivePool, id: u32) -> u64 {
    let figures = live.allocator().figures();
    figures.tops.iter().find(|top| top.id == id).map_or(0, |top| top.allocated)
}

#[test]
fn logs_leave_while_they_are_used_and_come_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut leaves = devices(directory.path(), 6).into_iter();
    let mut some = |count| leaves.by_ref().take(count).collect::<Vec<_>>();
    let tops = vec![
        (top(VdevKind::File, None, some(1)), AllocationClass::Normal),
        log(VdevKind::Mirror, some(2)),
        (top(VdevKind::File, None, some(1)), AllocationClass::Normal),
        log(VdevKind::File, some(1)),
    ];
    let live = make("removal", tops, nothing);
    let dataset = head(&live);
    let (set, own_log) = (dataset.set(), dataset.log().unwrap());
    let id = {
        let tx = live.begin().unwrap();
        let new = NewObject::new(ObjectType::OTHER_U64, 128 << 10);
        set.create_object(&tx, &new).unwrap().id()
    };
    live.sync().unwrap();
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(SeqCst) {
                number += 1;
                let data = noise(20_000, number);
                {
                    let tx = live.begin().unwrap();
                    let object = set.object(id).unwrap();
                    object.write(&tx, number % 50 * 20_000, &data).unwrap();
                    own_log.append_write(&tx, id.0, number % 50 * 20_000, Bytes::from(data), true);
                }
                own_log.commit(id.0).unwrap();
                written.store(number, SeqCst);
            }
        });
        let until = |number| {
            while written.load(SeqCst) < number {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        until(20);
        let mirror = guid_of(&live, 1);
        let side = tree(&live).children()[1].children()[0].guid;
        let error = live.remove_vdev(side).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        // The other has no room for what this one could hold.
        let error = live.remove_vdev(guid_of(&live, 0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(live.remove_vdev(Guid(7)).unwrap_err().kind(), ErrorKind::NotFound);
        live.remove_vdev(mirror).unwrap();
        let kinds: Vec<VdevKind> = tree(&live).children().iter().map(|top| top.kind).collect();
        assert_eq!(kinds, [VdevKind::File, VdevKind::Hole, VdevKind::File, VdevKind::File]);
        assert_eq!(live.vdevs().top_count(), 4);
        until(written.load(SeqCst) + 20);
        assert!(log_bytes(&live, 3) > 0);
        live.remove_vdev(guid_of(&live, 3)).unwrap();
        until(written.load(SeqCst) + 20);
        // A new one is added behind all of them: ids are never used again.
        let plan = Additions { tops: vec![log(VdevKind::File, some(1))], ..Additions::default() };
        live.add_vdevs(plan, HeldDevices::new().new_leaves()).unwrap();
        live.sync().unwrap();
        live.sync().unwrap();
        until(written.load(SeqCst) + 20);
        live.sync().unwrap();
        until(written.load(SeqCst) + 20);
        assert_eq!(tree(&live).children().len(), 5);
        assert!(log_bytes(&live, 4) > 0);
        stop.store(true, SeqCst);
    });
    census(live.pool());
    let expected = set.object(id).unwrap().read_vec(0, 50 * 20_000).unwrap();
    // As if the power had gone.
    live.gate().fail(cenote_engine::Error::invalid("crash"));
    drop(dataset);
    drop(live);
    zdb(directory.path(), "removal");

    let live = reopen(directory.path());
    {
        let dataset = head(&live);
        let (set, log) = (dataset.set(), dataset.log().unwrap());
        live.sync().unwrap();
        // A log that was not replayed keeps its device.
        let busy = live.remove_vdev(guid_of(&live, 4)).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        let target = Target { live: &live, set, log, names: Default::default() };
        log.replay(&dataset.log_reader(), &target).unwrap();
        let found = set.object(id).unwrap().read_vec(0, expected.len()).unwrap();
        assert!(found == expected);
        live.sync().unwrap();
        live.remove_vdev(guid_of(&live, 4)).unwrap();
        census(live.pool());
    }
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "removal");
    let live = reopen(directory.path());
    census(live.pool());
    live.export().unwrap();
}

#[test]
fn orders_at_once_all_count() {
    let directory = tempfile::tempdir().unwrap();
    let mut leaves = devices(directory.path(), 8).into_iter();
    let mut some = |count| leaves.by_ref().take(count).collect::<Vec<_>>();
    let first = (top(VdevKind::File, None, some(1)), AllocationClass::Normal);
    let live = make("at_once", vec![first, log(VdevKind::File, some(1))], nothing);
    let gone = guid_of(&live, 1);
    let plans: Vec<Vec<_>> = vec![
        vec![log(VdevKind::Mirror, some(2))],
        vec![
            (top(VdevKind::File, None, some(1)), AllocationClass::Normal),
            log(VdevKind::File, some(1)),
        ],
        vec![(top(VdevKind::Mirror, None, some(2)), AllocationClass::Normal)],
    ];
    std::thread::scope(|scope| {
        let live = &live;
        for tops in plans {
            scope.spawn(move || {
                let plan = Additions { tops, ..Additions::default() };
                live.add_vdevs(plan, HeldDevices::new().new_leaves()).unwrap();
            });
        }
        scope.spawn(move || live.remove_vdev(gone).unwrap());
    });
    let kinds = |live: &LivePool| {
        let mut kinds: Vec<&str> =
            tree(live).children().iter().map(|top| top.kind.name()).collect();
        kinds[2..].sort_unstable();
        kinds.join(" ")
    };
    let all = "file hole file file mirror mirror";
    assert_eq!(kinds(&live), all);
    assert_eq!(tree(&live).devices().count(), 7);
    assert!((0..6).all(|id| live.vdevs().top_condition(id) == Some(Condition::ONLINE)));
    // What was added is used, in the classes it was added to.
    live.sync().unwrap();
    let classes: Vec<AllocationClass> = (0..6).map(|id| live.vdevs().class(id)).collect();
    assert_eq!(classes.iter().filter(|class| **class == AllocationClass::Log).count(), 2);
    let figures = live.allocator().figures();
    assert!(figures.tops.iter().all(|top| top.class == classes[top.id as usize]));
    census(live.pool());
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "at_once");
    let live = reopen(directory.path());
    assert_eq!(kinds(&live), all);
    census(live.pool());
    live.export().unwrap();
}

#[test]
fn spares_and_cache_devices_leave() {
    let directory = tempfile::tempdir().unwrap();
    let mut leaves = devices(directory.path(), 4).into_iter();
    let one = leaves.next().unwrap();
    let live: Arc<LivePool> = make(
        "aside",
        vec![(top(VdevKind::File, None, vec![one]), AllocationClass::Normal)],
        nothing,
    );
    let mut aside: Vec<VdevConfig> = leaves.collect();
    for (guid, device) in (1000..).zip(&mut aside) {
        device.guid = Guid(guid);
    }
    let caches = aside.split_off(2);
    let plan = Additions { spares: aside, caches, ..Additions::default() };
    live.add_vdevs(plan, HeldDevices::new().new_leaves()).unwrap();
    live.remove_vdev(Guid(1000)).unwrap();
    assert_eq!(live.remove_vdev(Guid(1000)).unwrap_err().kind(), ErrorKind::NotFound);
    live.remove_vdev(Guid(1002)).unwrap();
    census(live.pool());
    // The device is free for something else.
    let again = VdevConfig { guid: Guid(2000), ..leaf(&directory.path().join("d1")) };
    let plan = Additions { caches: vec![again], ..Additions::default() };
    live.add_vdevs(plan, HeldDevices::new().new_leaves()).unwrap();
    live.remove_vdev(Guid(2000)).unwrap();
    live.remove_vdev(Guid(1001)).unwrap();
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "aside");
}
