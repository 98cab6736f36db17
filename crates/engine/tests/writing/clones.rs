//! Tables of cloned blocks: the features that count them, and the form of their entries.
//!
//! Invariant: `block_cloning_endian` is counted once for each table whose entries are words, and for no
//! other.

use std::sync::Arc;

use cenote_engine::dataset::Table;
use cenote_engine::object::{NewObject, Object};
use cenote_engine::pool::group::LivePool;
use cenote_engine::zap::Zap;
use cenote_format::{ObjectId, ObjectType, brt};

use super::log::{head, reopen};
use super::{census, layout, make, noise, nothing};

pub(super) const CLONING: &str = "block_cloning";
const ENDIAN: &str = "block_cloning_endian";
pub(super) const RECORD: usize = 128 << 10;
pub(super) const RECORDS: u64 = 64;

pub(super) fn enable(live: &LivePool, feature: &'static str) {
    live.change(move |_, change| change.enable_feature(feature)).unwrap();
}

/// How often both features are used.
fn counts(live: &LivePool) -> [u64; 2] {
    let count = |feature| live.change(move |_, change| change.feature_count(feature)).unwrap();
    [CLONING, ENDIAN].map(|feature| count(feature).unwrap_or(0))
}

/// An object with data on every device.
pub(super) fn written(live: &Arc<LivePool>) -> Object {
    let new = NewObject::new(ObjectType::OTHER_U64, RECORD as u64);
    let tx = live.begin().unwrap();
    let object = head(live).set().create_object(&tx, &new).unwrap();
    object.write(&tx, 0, &noise(RECORDS as usize * RECORD, 5)).unwrap();
    drop(tx);
    live.sync().unwrap();
    object
}

/// Another object with the same blocks.
pub(super) fn cloned(live: &Arc<LivePool>, from: &Object) -> Object {
    let new = NewObject::new(ObjectType::OTHER_U64, RECORD as u64);
    let tx = live.begin().unwrap();
    let object = head(live).set().create_object(&tx, &new).unwrap();
    drop(tx);
    let pointers = from.clonable(0, RECORDS).unwrap();
    assert_eq!(pointers.len() as u64, RECORDS);
    let base = object.base_to_clone(0, RECORDS).unwrap();
    object.clone_over(&live.begin().unwrap(), 0, &pointers, &base).unwrap();
    live.sync().unwrap();
    object
}

pub(super) fn remove(live: &Arc<LivePool>, object: &Object) {
    head(live).set().free_object(&live.begin().unwrap(), object.id()).unwrap();
    live.sync().unwrap();
}

/// Sizes of the integers in all entries of all tables, one for each table.
fn forms(live: &LivePool) -> Vec<usize> {
    let mos = live.pool().mos();
    let directory = Table::open(&mos, ObjectId(1)).unwrap().unwrap().entries().unwrap();
    let tables = directory.iter().filter(|(name, _)| name.starts_with(brt::VDEV_KEY_PREFIX));
    let form = |object: u64| {
        let object = mos.object(ObjectId(object)).unwrap();
        let header = brt::BrtHeader::decode(object.dnode().bonus()).unwrap();
        let entries = Zap::open(mos.object(header.entries).unwrap()).unwrap();
        let sizes = entries.entries().map(|entry| entry.unwrap().value.integer_size());
        let mut sizes: Vec<usize> = sizes.map(usize::from).collect();
        sizes.dedup();
        assert_eq!(sizes.len(), 1, "entries of several forms");
        sizes[0]
    };
    tables.map(|(_, value)| form(value.as_u64().unwrap())).collect()
}

/// A pool of two data devices.
fn pool(directory: &std::path::Path) -> Arc<LivePool> {
    make("tank", layout("stripe", directory), nothing)
}

#[test]
fn the_order_of_clone_entries_is_counted_with_their_tables() {
    let directory = tempfile::tempdir().unwrap();
    let live = pool(directory.path());
    enable(&live, CLONING);
    enable(&live, ENDIAN);
    let object = written(&live);
    assert_eq!(counts(&live), [0, 0]);
    let copy = cloned(&live, &object);
    assert_eq!(forms(&live), [8, 8], "the first table of a pool has words if it may");
    assert_eq!(counts(&live), [2, 2]);
    remove(&live, &copy);
    assert_eq!(counts(&live), [0, 0], "the tables are gone");
    cloned(&live, &object);
    assert_eq!(counts(&live), [2, 2]);

    // What an earlier version of this program left is put right by an import.
    live.change(|_, change| change.remove_reference(ENDIAN)).unwrap();
    live.close().unwrap();
    drop((live, object, copy));
    let live = reopen(directory.path());
    live.sync().unwrap();
    assert_eq!(counts(&live), [2, 2]);
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn tables_of_clones_keep_the_form_they_have() {
    let directory = tempfile::tempdir().unwrap();
    let live = pool(directory.path());
    enable(&live, CLONING);
    let object = written(&live);
    let copy = cloned(&live, &object);
    enable(&live, ENDIAN);
    let another = cloned(&live, &object);
    assert_eq!(forms(&live), [1, 1]);
    assert_eq!(counts(&live), [2, 0]);
    remove(&live, &another);
    remove(&live, &copy);
    assert_eq!(counts(&live), [0, 0]);
    cloned(&live, &object);
    assert_eq!((counts(&live), forms(&live)), ([2, 2], vec![8, 8]));
    live.export().unwrap();
    census(live.pool());
}
