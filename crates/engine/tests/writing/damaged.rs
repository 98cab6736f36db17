//! Objects whose block trees are damaged.
//!
//! Invariant: who changes such an object is told; everything else goes on.

use std::path::Path;

use bytes::Bytes;
use cenote_engine::cache::BlockKey;
use cenote_engine::object::{NewObject, Object, ObjectSet};
use cenote_engine::pool::group::LivePool;
use cenote_engine::vdev::AllocationClass;
use cenote_engine::{ErrorKind, Result};
use cenote_format::config::VdevKind;
use cenote_format::{ObjectId, ObjectType};

use super::log::{head, reopen};
use super::{devices, make, noise, nothing, top};

/// Bytes before the first block of a device.
const BLOCKS_FROM: u64 = 4 << 20;
const BLOCK: usize = 4096;

fn filled(live: &LivePool, set: &ObjectSet, seed: u64) -> ObjectId {
    let tx = live.begin().unwrap();
    let new = NewObject::new(ObjectType::OTHER_U64, BLOCK as u64);
    let object = set.create_object(&tx, &new).unwrap();
    object.write(&tx, 0, &noise(200 * BLOCK, seed)).unwrap();
    object.id()
}

/// Destroys every copy of the indirect block of `object`.
fn damage(device: &Path, object: &Object) {
    use std::os::unix::fs::FileExt;
    let pointer = object.pointer(1, 0).unwrap();
    assert_eq!(pointer.level().0, 1);
    let file = std::fs::OpenOptions::new().write(true).open(device).unwrap();
    for dva in pointer.dvas() {
        let bytes = noise(dva.asize as usize, dva.offset);
        file.write_all_at(&bytes, dva.offset + BLOCKS_FROM).unwrap();
    }
    if let Some(key) = BlockKey::of(&pointer) {
        object.set().io().pipe.cache().remove(&key);
    }
}

fn is_refused(done: Result<()>) {
    assert_eq!(done.unwrap_err().kind(), ErrorKind::Checksum);
}

fn goes_on(live: &LivePool, set: &ObjectSet, other: ObjectId, seed: u64) {
    {
        let tx = live.begin().unwrap();
        set.object(other).unwrap().write(&tx, 100, &noise(3 * BLOCK, seed)).unwrap();
    }
    live.sync().unwrap();
    live.change(|_, change| change.log_command("goes on", 0)).unwrap();
    let read = set.object(other).unwrap().read_vec(100, 3 * BLOCK).unwrap();
    assert!(read == noise(3 * BLOCK, seed));
}

#[test]
fn a_damaged_object_is_the_only_one_that_suffers() {
    let directory = tempfile::tempdir().unwrap();
    let leaves = devices(directory.path(), 1);
    let device = directory.path().join("d0");
    let tops = vec![(top(VdevKind::File, None, leaves), AllocationClass::Normal)];
    let live = make("damaged", tops, nothing);
    let dataset = head(&live);
    let set = dataset.set();
    let (bad, other) = (filled(&live, set, 1), filled(&live, set, 2));
    let (late, freed) = (filled(&live, set, 3), filled(&live, set, 4));
    live.sync().unwrap();
    damage(&device, &set.object(bad).unwrap());
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
        damage(&device, &object);
        let gone = set.object(freed).unwrap();
        set.free_object(&tx, freed).unwrap();
        damage(&device, &gone);
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
