//! Removals of vdevs, and what they leave, of which something in the metadata is damaged.
//!
//! Invariant: the job tells what it cannot do, nothing of its group is changed by it, and the pool goes on.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_engine::ErrorKind;
use cenote_engine::check::{CheckOptions, check};
use cenote_engine::job::{JobState, Report};
use cenote_engine::object::{NewObject, ObjectSet};
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::change::create;
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::vdev::AllocationClass;
use cenote_engine::zap::Zap;
use cenote_format::bytes::le64;
use cenote_format::config::VdevKind;
use cenote_format::indirect_mapping::MappingHeader;
use cenote_format::{BlockPointer, ObjectId, ObjectType};

use super::damaged::{Lost, exchange, filled, goes_on};
use super::evacuation::is_removing;
use super::log::{head, try_reopen};
use super::{census, devices, noise, nothing, open_leaf, plan, top, zdb};

const BLOCK: u64 = 4096;
/// Bytes before the first block of a device.
const BLOCKS_FROM: u64 = 4 << 20;
/// Entry of a vdev's ZAP: the map of what is obsolete.
const OBSOLETE_MAP: &[u8] = b"com.delphix:indirect_obsolete_sm";

/// So that a removal takes many groups, and mappings of few entries are condensed.
fn slowly() -> WriteOptions {
    WriteOptions {
        copied_at_once: Some(64 << 10),
        condensed_above: Some(0),
        ..WriteOptions::default()
    }
}

fn pool(directory: &Path, write: WriteOptions) -> Arc<LivePool> {
    let all = devices(directory, 3).into_iter();
    let tops = all.map(|leaf| (top(VdevKind::File, None, vec![leaf]), AllocationClass::Normal));
    let plan = plan("leaving", tops.collect());
    create(plan, Arc::new(open_leaf), &OpenOptions::default(), write, nothing).unwrap()
}

fn reopen(directory: &Path) -> Arc<LivePool> {
    try_reopen(directory, slowly()).unwrap()
}

/// An object of which every other block or so is there, so that maps have many ranges.
fn scattered(live: &LivePool, set: &ObjectSet, blocks: u64) -> ObjectId {
    let new = NewObject::new(ObjectType::OTHER_U64, BLOCK);
    let object = set.create_object(&live.begin().unwrap(), &new).unwrap();
    object.write(&live.begin().unwrap(), 0, &noise((blocks * BLOCK) as usize, blocks)).unwrap();
    live.sync().unwrap();
    free_some(live, set, object.id(), (0..blocks).filter(|number| !is_kept(*number)));
    object.id()
}

fn is_kept(block: u64) -> bool {
    block.wrapping_mul(2_654_435_761) >> 13 & 1 == 1
}

fn free_some(live: &LivePool, set: &ObjectSet, object: ObjectId, which: impl Iterator<Item = u64>) {
    let object = set.object(object).unwrap();
    for number in which {
        object.free_range(&live.begin().unwrap(), number * BLOCK, BLOCK).unwrap();
    }
    live.sync().unwrap();
}

/// Destroys every copy of a block, on whatever devices; what lay there.
fn damage(directory: &Path, live: &LivePool, pointer: &BlockPointer) -> Vec<(u32, Lost)> {
    live.pool().io().pipe.cache().remove(&cenote_engine::cache::BlockKey::of(pointer).unwrap());
    let noisy = |dva: cenote_format::Dva| {
        let bytes = vec![(dva.offset + BLOCKS_FROM, noise(dva.asize as usize, dva.offset))];
        (dva.vdev, exchange(&directory.join(format!("d{}", dva.vdev)), bytes))
    };
    pointer.dvas().map(noisy).collect()
}

/// The same of all blocks of an object of the metadata.
fn damage_object(directory: &Path, live: &LivePool, object: ObjectId) -> Vec<(u32, Lost)> {
    let object = live.pool().mos().object(object).unwrap();
    let pointers = object.pointers(0, object.dnode().max_block_id).unwrap();
    let stored = pointers.iter().filter(|one| !one.is_hole() && !one.is_embedded());
    stored.flat_map(|pointer| damage(directory, live, pointer)).collect()
}

fn job(live: &LivePool, name: &str) -> Report {
    live.jobs().into_iter().find(|job| job.name == name).unwrap()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The map of what is obsolete of the only removed vdev: some ZAP of the metadata names it.
fn obsolete_map(live: &LivePool) -> ObjectId {
    let mos = live.pool().mos();
    let mut at = 0;
    while let Some(id) = mos.next_object(at).unwrap() {
        at = id.0;
        let map = mos.object(id).and_then(Zap::open).and_then(|zap| zap.lookup(OBSOLETE_MAP));
        if let Ok(Some(map)) = map {
            return ObjectId(map.as_u64().unwrap());
        }
    }
    panic!("nothing is obsolete");
}

/// A pool that a vdev has left; two objects, the first of which has blocks that were there, from the one
/// numbered `freed` on.
fn left(directory: &Path, freed: u64) -> (Arc<LivePool>, [ObjectId; 2]) {
    let live = pool(directory, WriteOptions { condensed_above: None, ..slowly() });
    let dataset = head(&live);
    let other = filled(&live, dataset.set(), 1);
    let object = scattered(&live, dataset.set(), 4000);
    live.remove_vdev(live.vdevs().topology().tops()[0].guid).unwrap();
    until("the removal ends", || {
        live.sync().unwrap();
        live.vdevs().topology().tops()[0].kind.name() == "indirect"
    });
    free_some(&live, dataset.set(), object, (0..freed).filter(|number| is_kept(*number)));
    drop(dataset);
    (live, [object, other])
}

#[test]
fn what_becomes_obsolete_is_noted_although_the_map_of_it_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (live, [object, other]) = left(directory.path(), 800);
    assert!(!damage_object(directory.path(), &live, obsolete_map(&live)).is_empty());
    free_some(&live, head(&live).set(), object, (800..4000).filter(|number| is_kept(*number)));
    goes_on(&live, head(&live).set(), other, 2);
    assert!(live.allocator().obsolete()[0].bytes > 0);
    live.export().unwrap();
    drop(live);
    let live = reopen(directory.path());
    until("it is condensed", || {
        live.sync().unwrap();
        live.allocator().obsolete().is_empty()
    });
    census(live.pool());
    live.export().unwrap();
}

#[test]
fn a_mapping_that_cannot_be_condensed_stays_and_the_pool_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (live, [_, other]) = left(directory.path(), 3600);
    let mapping = live.vdevs().topology().tops()[0].indirect.unwrap().mapping;
    let mapping = live.pool().mos().object(mapping).unwrap();
    let counts = MappingHeader::decode(mapping.dnode().bonus()).unwrap().counts.unwrap();
    let lost = damage_object(directory.path(), &live, counts);
    assert!(!lost.is_empty());
    live.export().unwrap();
    drop(live);

    for life in 0..2 {
        let live = reopen(directory.path());
        let dataset = head(&live);
        goes_on(&live, dataset.set(), other, life + 2);
        let report = job(&live, "condensing");
        assert!(report.state == JobState::Stuck && report.trouble.is_some(), "{report:?}");
        // It is not tried again with every group.
        let synced = live.gate().figures().synced;
        std::thread::sleep(Duration::from_millis(300));
        assert!(live.gate().figures().synced.0 <= synced.0 + 1);
        drop(dataset);
        if life == 0 {
            live.export().unwrap();
            continue;
        }
        for (vdev, lost) in &lost {
            exchange(&directory.path().join(format!("d{vdev}")), lost.clone());
        }
        live.retry_now();
        live.sync().unwrap();
        live.sync().unwrap();
        let report = job(&live, "condensing");
        assert!(report.state == JobState::Idle && report.trouble.is_none(), "{report:?}");
        assert!(live.allocator().obsolete().is_empty());
        census(live.pool());
        live.export().unwrap();
    }
    zdb(directory.path(), "leaving");
}

/// A pool of which a part of vdev 0 was copied, and whose space maps of that vdev are damaged.
fn half_left(directory: &Path) -> (ObjectId, Vec<(u32, Lost)>) {
    let live = pool(directory, slowly());
    let dataset = head(&live);
    let other = filled(&live, dataset.set(), 1);
    scattered(&live, dataset.set(), 8000);
    drop(dataset);
    live.remove_vdev(live.vdevs().topology().tops()[0].guid).unwrap();
    until("something is copied", || live.allocator().moved_until() > 0);
    live.export().unwrap();
    let mos = live.pool().mos();
    let maps = live.vdevs().topology().tops()[0].top.unwrap().metaslab_array;
    let maps = mos.object(maps).unwrap();
    let maps = maps.read_vec(0, maps.block_size() as usize).unwrap();
    let maps = (0..maps.len()).step_by(8).map(|at| ObjectId(le64(&maps, at).unwrap()));
    let maps: Vec<ObjectId> = maps.filter(|map| map.0 != 0).collect();
    let lost = maps.into_iter().flat_map(|map| damage_object(directory, &live, map)).collect();
    (other, lost)
}

#[test]
fn a_removal_is_given_up_although_space_maps_of_the_vdev_are_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (other, lost) = half_left(directory.path());
    assert!(!lost.is_empty());
    let live = reopen(directory.path());
    assert!(is_removing(&live));
    // It may have given up by itself.
    if let Err(error) = live.cancel_removal() {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert!(!is_removing(&live));
    goes_on(&live, head(&live).set(), other, 2);
    let report =
        check(live.pool(), &CheckOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(report.unwrap().unallocated.is_empty());
    live.export().unwrap();
    drop(live);
    let live = reopen(directory.path());
    assert!(!is_removing(&live));
    goes_on(&live, head(&live).set(), other, 3);
    live.export().unwrap();
}

#[test]
fn a_removal_gives_itself_up_although_space_maps_of_the_vdev_are_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (other, lost) = half_left(directory.path());
    let live = reopen(directory.path());
    until("the removal is given up", || !is_removing(&live));
    goes_on(&live, head(&live).set(), other, 2);
    live.export().unwrap();
    drop(live);
    // What was copied stays allocated, for nobody could tell what of it was in use.
    for (vdev, lost) in lost {
        exchange(&directory.path().join(format!("d{vdev}")), lost);
    }
    let live = reopen(directory.path());
    goes_on(&live, head(&live).set(), other, 3);
    let report =
        check(live.pool(), &CheckOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()));
    let report = report.unwrap();
    assert!(report.unallocated.is_empty() && !report.leaked.is_empty());
    live.export().unwrap();
}
