//! A log that was claimed and not replayed when a snapshot was taken.
//!
//! Invariant: it is the head's, and goes once: with what the head held, whatever becomes of the snapshot.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cenote_engine::dataset::change::NewDataset;
use cenote_engine::object::NewObject;
use cenote_engine::pool::group::LivePool;
use cenote_engine::vdev::AllocationClass;
use cenote_format::objset::ObjsetKind;
use cenote_format::zil::Header;
use cenote_format::{ObjectId, ObjectType};

use super::log::reopen;
use super::{census, layout, make, noise, nothing, zdb};

fn dataset(live: &LivePool, name: &str) -> ObjectId {
    live.pool().catalog().dataset_named(name).unwrap().id
}

fn has_log(live: &LivePool, name: &str) -> bool {
    let catalog = live.pool().catalog();
    let found = catalog.dataset_named(name).unwrap();
    let header = catalog.sealed_object_set(&found).unwrap().header().zil_header;
    !Header::decode(&header).unwrap().log.is_hole()
}

/// A pool whose filesystem `tank/a` has a claimed log, and a snapshot `s` of that state.
fn with_claimed_log(directory: &Path) -> Arc<LivePool> {
    let live = make("tank", layout("stripe", directory), nothing);
    let parent = live.pool().catalog().root().unwrap().id;
    live.change(move |live, change| {
        let new = NewDataset { parent, name: "a", ..NewDataset::default() };
        live.make_dataset(change, &new, ObjsetKind::Zfs, nothing).map(drop)
    })
    .unwrap();
    {
        let found = live.pool().catalog().dataset_named("tank/a").unwrap();
        let open = live.open_dataset(&found).unwrap();
        let (set, log) = (open.set(), open.log().unwrap());
        let new = NewObject::new(ObjectType::OTHER_U64, 128 << 10);
        let file = set.create_object(&live.begin().unwrap(), &new).unwrap();
        live.sync().unwrap();
        for number in 0..12 {
            let data = noise([100, 30_000, 128 << 10][number as usize % 3], number);
            let at = number << 17;
            let tx = live.begin().unwrap();
            file.write(&tx, at, &data).unwrap();
            log.append_write(&tx, file.id().0, at, Bytes::from(data), true);
            drop(tx);
            log.commit(file.id().0).unwrap();
        }
    }
    live.gate().fail(cenote_engine::Error::invalid("crash"));
    drop(live);
    let live = reopen(directory);
    live.sync().unwrap();
    assert!(has_log(&live, "tank/a"));
    live.close_dataset(dataset(&live, "tank/a")).unwrap();
    live.orders().snapshot(&["tank/a@s".to_owned()], Vec::new()).unwrap();
    assert!(has_log(&live, "tank/a") && has_log(&live, "tank/a@s"));
    live
}

fn roll_back(live: &Arc<LivePool>) {
    let head = dataset(live, "tank/a");
    live.change(move |live, change| live.rollback_dataset(change, head)).unwrap();
}

fn used(live: &LivePool) -> u64 {
    live.allocator().figures().allocated(AllocationClass::Normal)
}

#[test]
fn a_claimed_log_goes_with_a_rollback_to_a_snapshot_that_shows_it() {
    let directory = tempfile::tempdir().unwrap();
    let live = with_claimed_log(directory.path());
    let before = used(&live);
    live.orders().clone_snapshot("tank/a@s", "tank/c", Vec::new(), 0).unwrap();
    roll_back(&live);
    (0..3).for_each(|_| live.sync().unwrap());
    assert!(!has_log(&live, "tank/a") && used(&live) < before - (200 << 10));
    census(live.pool());
    roll_back(&live);
    census(live.pool());
    live.orders().clone_snapshot("tank/a@s", "tank/d", Vec::new(), 0).unwrap();
    for name in ["tank/c", "tank/d"] {
        assert!(!has_log(&live, name));
        let head = dataset(&live, name);
        live.change(move |_, change| change.destroy_head(head)).unwrap();
        census(live.pool());
    }
    let snapshot = dataset(&live, "tank/a@s");
    live.change(move |_, change| change.destroy_snapshot(snapshot, false)).unwrap();
    census(live.pool());
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "tank");
}

#[test]
fn clones_and_rollbacks_of_one_group_free_a_claimed_log_once() {
    let directory = tempfile::tempdir().unwrap();
    let live = with_claimed_log(directory.path());
    let before = used(&live);
    let head = dataset(&live, "tank/a");
    let origin = Some(dataset(&live, "tank/a@s"));
    let parent = live.pool().catalog().root().unwrap().id;
    live.change(move |live, change| {
        let clone = |name| {
            let new = NewDataset { parent, name, origin, ..NewDataset::default() };
            Ok::<_, cenote_engine::Error>(live.clone_dataset(change, &new)?.dataset)
        };
        let gone = clone("gone")?;
        clone("stays")?;
        change.destroy_head(gone)?;
        live.rollback_dataset(change, head)
    })
    .unwrap();
    (0..3).for_each(|_| live.sync().unwrap());
    assert!(!has_log(&live, "tank/a") && !has_log(&live, "tank/stays"));
    assert!(used(&live) < before - (200 << 10));
    census(live.pool());
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "tank");

    let directory = tempfile::tempdir().unwrap();
    let live = with_claimed_log(directory.path());
    let head = dataset(&live, "tank/a");
    live.change(move |live, change| {
        live.rollback_dataset(change, head)?;
        live.rollback_dataset(change, head)
    })
    .unwrap();
    (0..3).for_each(|_| live.sync().unwrap());
    census(live.pool());
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "tank");
}
