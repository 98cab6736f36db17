//! Objects whose block trees are damaged.
//!
//! Invariant: who changes such an object is told; everything else goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use cenote_engine::cache::BlockKey;
use cenote_engine::dataset::change::{FreeingPass, MosChange, NewDataset};
use cenote_engine::job::{Budget, JobState};
use cenote_engine::object::{Accounting, NewObject, Object, ObjectSet};
use cenote_engine::pool::group::LivePool;
use cenote_engine::vdev::AllocationClass;
use cenote_engine::zap::Zap;
use cenote_engine::{ErrorKind, Result};
use cenote_format::config::VdevKind;
use cenote_format::objset::ObjsetKind;
use cenote_format::{BlockPointer, ObjectId, ObjectType};

use parking_lot::Mutex;

use super::log::{head, reopen};
use super::{census, devices, make, noise, nothing, top, zdb};

/// Bytes before the first block of a device.
const BLOCKS_FROM: u64 = 4 << 20;
const BLOCK: usize = 4096;
/// Entry of a vdev's ZAP.
const CHECKPOINT_MAP: &[u8] = b"com.delphix:pool_checkpoint_sm";

pub(super) fn filled(live: &LivePool, set: &ObjectSet, seed: u64) -> ObjectId {
    let tx = live.begin().unwrap();
    let new = NewObject::new(ObjectType::OTHER_U64, BLOCK as u64);
    let object = set.create_object(&tx, &new).unwrap();
    object.write(&tx, 0, &noise(200 * BLOCK, seed)).unwrap();
    object.id()
}

/// Bytes of a device, and from where on they lay.
pub(super) type Lost = Vec<(u64, Vec<u8>)>;

/// Puts `bytes` where others lie; those.
pub(super) fn exchange(device: &Path, bytes: Lost) -> Lost {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(device).unwrap();
    let exchanged = |(offset, bytes): (u64, Vec<u8>)| {
        let mut before = vec![0; bytes.len()];
        file.read_exact_at(&mut before, offset).unwrap();
        file.write_all_at(&bytes, offset).unwrap();
        (offset, before)
    };
    bytes.into_iter().map(exchanged).collect()
}

/// Destroys every copy of a block; what lay there.
pub(super) fn damage_block(device: &Path, live: &LivePool, pointer: &BlockPointer) -> Lost {
    let noisy =
        |dva: cenote_format::Dva| (dva.offset + BLOCKS_FROM, noise(dva.asize as usize, dva.offset));
    let lost = exchange(device, pointer.dvas().map(noisy).collect());
    if let Some(key) = BlockKey::of(pointer) {
        live.pool().io().pipe.cache().remove(&key);
    }
    lost
}

/// Destroys every copy of the indirect block of `object`.
fn damage(device: &Path, live: &LivePool, object: &Object) {
    let pointer = object.pointer(1, 0).unwrap();
    assert_eq!(pointer.level().0, 1);
    damage_block(device, live, &pointer);
}

fn is_refused(done: Result<()>) {
    assert_eq!(done.unwrap_err().kind(), ErrorKind::Checksum);
}

pub(super) fn goes_on(live: &LivePool, set: &ObjectSet, other: ObjectId, seed: u64) {
    {
        let tx = live.begin().unwrap();
        set.object(other).unwrap().write(&tx, 100, &noise(3 * BLOCK, seed)).unwrap();
    }
    live.sync().unwrap();
    live.change(|_, change| change.log_command("goes on", 0)).unwrap();
    let read = set.object(other).unwrap().read_vec(100, 3 * BLOCK).unwrap();
    assert!(read == noise(3 * BLOCK, seed));
}

pub(super) fn on_one_device(directory: &Path) -> (PathBuf, Arc<LivePool>) {
    let leaves = devices(directory, 1);
    let tops = vec![(top(VdevKind::File, None, leaves), AllocationClass::Normal)];
    (directory.join("d0"), make("damaged", tops, nothing))
}

#[test]
fn a_damaged_object_is_the_only_one_that_suffers() {
    let directory = tempfile::tempdir().unwrap();
    let (device, live) = on_one_device(directory.path());
    let dataset = head(&live);
    let set = dataset.set();
    let (bad, other) = (filled(&live, set, 1), filled(&live, set, 2));
    let (late, freed) = (filled(&live, set, 3), filled(&live, set, 4));
    live.sync().unwrap();
    damage(&device, &live, &set.object(bad).unwrap());
    drop(dataset);
    live.export().unwrap();
    drop(live);

    let live = reopen(directory.path());
    let dataset = head(&live);
    let set = dataset.set();
    {
        let tx = live.begin().unwrap();
        let object = set.object(bad).unwrap();
        is_refused(object.write(&tx, 5 * BLOCK as u64, &[7; BLOCK]));
        is_refused(object.write(&tx, 5, &[7; 10]));
        is_refused(object.write_block(&tx, 9, Bytes::from(vec![7; BLOCK])));
        is_refused(object.free_range(&tx, 100, u64::MAX));
        is_refused(object.free_range(&tx, 0, 8 * BLOCK as u64));
        is_refused(set.free_object(&tx, bad));
    }
    goes_on(&live, set, other, 5);

    // Damage that comes after the changes were accepted: they are lost, and nothing else.
    {
        let tx = live.begin().unwrap();
        let object = set.object(late).unwrap();
        object.write(&tx, 3 * BLOCK as u64, &[8; BLOCK]).unwrap();
        damage(&device, &live, &object);
        let gone = set.object(freed).unwrap();
        set.free_object(&tx, freed).unwrap();
        damage(&device, &live, &gone);
    }
    goes_on(&live, set, other, 6);
    assert!(!live.pool().io().pipe.faults().lost().is_empty());
    {
        let tx = live.begin().unwrap();
        is_refused(set.object(late).unwrap().write(&tx, 0, &[9; BLOCK]));
        is_refused(set.free_object(&tx, freed));
    }
    goes_on(&live, set, other, 7);
    drop(dataset);
    live.export().unwrap();
    drop(live);

    let live = reopen(directory.path());
    let dataset = head(&live);
    goes_on(&live, dataset.set(), other, 8);
    drop(dataset);
    live.export().unwrap();
}

/// A filesystem with objects that have trees; its head.
fn filesystem(live: &LivePool, name: &'static str) -> ObjectId {
    let parent = live.pool().catalog().root().unwrap().id;
    let made = live.change(move |live, change| {
        let new = NewDataset { parent, name, ..NewDataset::default() };
        live.make_dataset(change, &new, ObjsetKind::Zfs, nothing)
    });
    let head = made.unwrap().dataset;
    let dataset = live.pool().catalog().dataset_named(&format!("damaged/{name}")).unwrap();
    let dataset = live.open_dataset(&dataset).unwrap();
    for seed in 0..40 {
        filled(live, dataset.set(), seed);
    }
    live.sync().unwrap();
    head
}

/// Blocks of the filesystem that lead to others: indirect blocks of objects, a block of dnodes.
fn inner_blocks(live: &LivePool, name: &str) -> Vec<BlockPointer> {
    let dataset = live.pool().catalog().dataset_named(&format!("damaged/{name}")).unwrap();
    let dataset = live.open_dataset(&dataset).unwrap();
    let set = dataset.set();
    let indirect = |id| set.object(ObjectId(id)).unwrap().pointer(1, 0).unwrap();
    vec![indirect(2), indirect(20), set.meta_object().pointer(0, 1).unwrap()]
}

/// Frees portions until nothing more can be freed; whether all is.
fn freed(live: &LivePool, portion: u64) -> bool {
    let pass = Arc::new(Mutex::new(FreeingPass::default()));
    loop {
        let pass = pass.clone();
        let work = move |_: &LivePool, change: &MosChange<'_>| {
            change.process_async_destroy(&mut pass.lock(), Budget::blocks(portion))
        };
        let freed = live.change(work).unwrap();
        if freed.finished {
            return freed.trouble.is_none();
        }
    }
}

#[test]
fn what_lies_below_a_damaged_block_stays_queued_and_the_rest_is_freed() {
    let directory = tempfile::tempdir().unwrap();
    let device = directory.path().join("d0");
    let leaves = devices(directory.path(), 1);
    let tops = vec![(top(VdevKind::File, None, leaves), AllocationClass::Normal)];
    let mut live = make("damaged", tops, nothing);
    let allocated = |live: &LivePool| live.allocator().figures().allocated(AllocationClass::Normal);
    let before = allocated(&live);
    for (round, portion) in [(0, 37), (1, 300), (2, u64::MAX)] {
        let (bad, good) = (filesystem(&live, "bad"), filesystem(&live, "good"));
        let all = allocated(&live) - before;
        let pointer = inner_blocks(&live, "bad")[round];
        for head in [bad, good] {
            live.close_dataset(head).unwrap();
            live.change(move |_, change| change.destroy_head(head)).unwrap();
        }
        let lost = damage_block(&device, &live, &pointer);
        assert!(!freed(&live, portion), "all was freed: the damage was not met");
        // The pool goes on, and so does the freeing of what can be read.
        live.sync().unwrap();
        live.sync().unwrap();
        live.sync().unwrap();
        let left = allocated(&live) - before;
        assert!(left < all / 8 * 5 && left > 0, "{left} of {all} in use");

        exchange(&device, lost);
        live.export().unwrap();
        drop(live);
        // What is queued, and how far it has come, is as OpenZFS reads it.
        zdb(directory.path(), "damaged");
        live = reopen(directory.path());
        assert!(freed(&live, portion), "all can be read again");
        census(live.pool());
    }
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "damaged");
}

/// The map of what only the checkpoint holds: some ZAP of the meta object set names it.
fn checkpoint_map(live: &LivePool) -> Object {
    let mos = live.pool().mos();
    let mut at = 0;
    while let Some(id) = mos.next_object(at).unwrap() {
        at = id.0;
        let map = mos.object(id).and_then(Zap::open).and_then(|zap| zap.lookup(CHECKPOINT_MAP));
        if let Ok(Some(map)) = map {
            return mos.object(ObjectId(map.as_u64().unwrap())).unwrap();
        }
    }
    panic!("the checkpoint holds nothing");
}

#[test]
fn a_checkpoint_whose_map_is_damaged_stays_and_the_pool_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let device = directory.path().join("d0");
    let leaves = devices(directory.path(), 1);
    let tops = vec![(top(VdevKind::File, None, leaves), AllocationClass::Normal)];
    let live = make("damaged", tops, nothing);
    let dataset = head(&live);
    let (gone, other) = (filled(&live, dataset.set(), 1), filled(&live, dataset.set(), 2));
    live.sync().unwrap();
    live.take_checkpoint().unwrap();
    {
        // Many ranges, so that the map is not so small that its pointer holds it.
        let tx = live.begin().unwrap();
        let object = dataset.set().object(gone).unwrap();
        for number in (0..200).step_by(2) {
            object.free_range(&tx, number * BLOCK as u64, BLOCK as u64).unwrap();
        }
    }
    live.sync().unwrap();
    live.sync().unwrap();
    let held = live.allocator().held_by_checkpoint();
    assert!(held >= 100 * BLOCK as u64, "{held}");
    let block = checkpoint_map(&live).pointer(0, 0).unwrap();
    let lost = damage_block(&device, &live, &block);
    assert!(!lost.is_empty());
    live.discard_checkpoint().unwrap();
    goes_on(&live, dataset.set(), other, 3);
    let discarding = || {
        let jobs = live.jobs().into_iter();
        jobs.into_iter().find(|job| job.name == "discarding checkpoint").unwrap()
    };
    let report = discarding();
    assert!(report.trouble.is_some(), "{report:?}");
    assert_eq!((report.state, report.left, report.done), (JobState::Stuck, held, 0));

    exchange(&device, lost);
    live.retry_now();
    live.sync().unwrap();
    live.sync().unwrap();
    let report = discarding();
    assert!(report.trouble.is_none(), "{report:?}");
    assert_eq!((report.state, report.left, report.done), (JobState::Idle, 0, held));
    census(live.pool());
    drop(dataset);
    live.export().unwrap();
    zdb(directory.path(), "damaged");
}

/// An object of which some block lies in pieces, the number of that block, and its pointer.
fn in_pieces(live: &LivePool, set: &ObjectSet) -> (Object, u64, BlockPointer) {
    // Leave single blocks free, until larger ones find no place.
    let tx = live.begin().unwrap();
    let small = NewObject::new(ObjectType::OTHER_U64, BLOCK as u64);
    let small = set.create_object(&tx, &small).unwrap();
    let large = set.create_object(&tx, &NewObject::new(ObjectType::OTHER_U64, 128 << 10)).unwrap();
    drop(tx);
    let blocks = 80 << 20 >> 12;
    for first in (0..blocks).step_by(2048) {
        let bytes = noise(2048 * BLOCK, first);
        small.write(&live.begin().unwrap(), first << 12, &bytes).unwrap();
        live.sync().unwrap();
    }
    for block in (0..blocks).step_by(2) {
        small.free_range(&live.begin().unwrap(), block << 12, BLOCK as u64).unwrap();
    }
    for number in 0..1000_u64 {
        large.write(&live.begin().unwrap(), number << 17, &noise(128 << 10, number)).unwrap();
        live.sync().unwrap();
        let pointer = set.object(large.id()).unwrap().pointer(0, number).unwrap();
        if pointer.is_gang() {
            return (large, number, pointer);
        }
    }
    panic!("no block lies in pieces");
}

#[test]
fn what_a_damaged_gang_header_led_to_stops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (device, live) = on_one_device(directory.path());
    let dataset = head(&live);
    let set = dataset.set();
    let other = filled(&live, set, 2);
    let (object, block, pointer) = in_pieces(&live, set);
    damage_block(&device, &live, &pointer);
    // Overwritten, then destroyed with everything else.
    object.write(&live.begin().unwrap(), block << 17, &noise(128 << 10, 7)).unwrap();
    goes_on(&live, set, other, 5);
    let again = set.object(object.id()).unwrap().pointer(0, block).unwrap();
    if again.is_gang() {
        damage_block(&device, &live, &again);
    }
    set.free_object(&live.begin().unwrap(), object.id()).unwrap();
    goes_on(&live, set, other, 6);
    drop(dataset);
    live.export().unwrap();
}

#[test]
fn a_block_of_dnodes_that_goes_bad_under_an_open_object_stops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (device, live) = on_one_device(directory.path());
    let dataset = head(&live);
    let set = dataset.set();
    let bad = filled(&live, set, 1);
    // In another block of dnodes.
    let others: Vec<ObjectId> = (0..40).map(|seed| filled(&live, set, seed + 2)).collect();
    let other = *others.last().unwrap();
    assert_ne!(bad.0 / 32, other.0 / 32);
    live.sync().unwrap();
    let object = set.object(bad).unwrap();
    damage_block(&device, &live, &set.meta_object().pointer(0, bad.0 / 32).unwrap());
    object.write(&live.begin().unwrap(), 0, &noise(BLOCK, 9)).unwrap();
    goes_on(&live, set, other, 50);
    live.export().unwrap();
    drop((object, dataset, live));
    let live = reopen(directory.path());
    let dataset = head(&live);
    is_refused(dataset.set().object(bad).map(drop));
    goes_on(&live, dataset.set(), other, 51);
    live.export().unwrap();
}

#[test]
fn new_dnodes_are_put_where_nothing_above_them_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (device, live) = on_one_device(directory.path());
    let dataset = head(&live);
    let set = dataset.set();
    let early = filled(&live, set, 1);
    live.sync().unwrap();
    assert_eq!(set.meta_object().dnode().max_block_id, early.0 / 32);
    damage_block(&device, &live, &set.meta_object().pointer(1, 0).unwrap());
    // Those that fill the last block, and those of a new one.
    let others: Vec<ObjectId> = (0..40).map(|seed| filled(&live, set, seed + 2)).collect();
    let other = *others.last().unwrap();
    goes_on(&live, set, other, 50);
    drop(dataset);
    live.export().unwrap();
    drop(live);
    let live = reopen(directory.path());
    let dataset = head(&live);
    for (seed, id) in (2..).zip(&others).filter(|(_, id)| **id != other) {
        let read = dataset.set().object(*id).unwrap().read_vec(0, 200 * BLOCK).unwrap();
        assert!(read == noise(200 * BLOCK, seed), "object {}", id.0);
    }
    goes_on(&live, dataset.set(), other, 51);
    live.export().unwrap();
}

/// An object of `owner`, of a filesystem.
fn owned(live: &LivePool, set: &ObjectSet, owner: u64) -> ObjectId {
    let mut bonus = vec![0; 168];
    // The attributes' magic, a header of eight bytes; then owner and group where all layouts have them.
    bonus[..4].copy_from_slice(&0x002f_505a_u32.to_le_bytes());
    bonus[4..6].copy_from_slice(&(1_u16 << 10 | 2).to_le_bytes());
    bonus[32..40].copy_from_slice(&owner.to_le_bytes());
    bonus[40..48].copy_from_slice(&(owner + 1000).to_le_bytes());
    let new = NewObject {
        bonus_type: ObjectType::SYSTEM_ATTRIBUTES,
        bonus,
        ..NewObject::new(ObjectType::OTHER_U64, BLOCK as u64)
    };
    let tx = live.begin().unwrap();
    let object = set.create_object(&tx, &new).unwrap();
    object.write(&tx, 0, &noise(4 * BLOCK, owner)).unwrap();
    object.id()
}

#[test]
fn sums_of_owners_that_are_damaged_stop_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (device, live) = on_one_device(directory.path());
    let dataset = {
        filesystem(&live, "owned");
        live.pool().catalog().dataset_named("damaged/owned").unwrap()
    };
    let dataset = live.open_dataset(&dataset).unwrap();
    let set = dataset.set();
    let objects: Vec<ObjectId> = (1..200).map(|owner| owned(&live, set, owner)).collect();
    live.sync().unwrap();
    let sum = |which, name: &str| {
        let table = Zap::open(set.accounting_object(which).unwrap()).unwrap();
        table.lookup_u64(name).unwrap()
    };
    let before = sum(Accounting::Group, "3e9");
    assert!(before.is_some());
    let users = set.accounting_object(Accounting::User).unwrap();
    for block in 0..=users.dnode().max_block_id {
        damage_block(&device, &live, &users.pointer(0, block).unwrap());
    }
    drop(users);
    goes_on(&live, set, objects[0], 5);
    {
        let tx = live.begin().unwrap();
        set.object(objects[0]).unwrap().write(&tx, 1 << 20, &noise(1 << 20, 6)).unwrap();
    }
    live.sync().unwrap();
    // What is not damaged goes on being counted.
    assert!(sum(Accounting::Group, "3e9") > before);
    assert!(!live.pool().io().pipe.faults().lost().is_empty());
    drop(dataset);
    live.export().unwrap();
}
