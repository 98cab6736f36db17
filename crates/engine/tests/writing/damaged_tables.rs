//! Tables of deduplicated and of cloned blocks of which something is damaged.
//!
//! Invariant: what nobody knows the references of stays allocated; nothing that is in use is freed, and
//! the pool goes on, in every life.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_engine::check::{CheckOptions, check};
use cenote_engine::dataset::Table;
use cenote_engine::object::{NewObject, Object};
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::change::{NewPoolPlan, create};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::vdev::AllocationClass;
use cenote_format::brt::{self, BrtHeader};
use cenote_format::config::VdevKind;
use cenote_format::ddt::{self, Class};
use cenote_format::{ObjectId, ObjectType};

use super::clones::{CLONING, RECORD, RECORDS, cloned, enable, remove, written};
use super::damaged::{Lost, damage_block, exchange, filled, goes_on};
use super::dedup::Files;
use super::log::{head, reopen};
use super::{devices, noise, nothing, open_leaf, plan, top};

fn pool(directory: &Path, more: Option<&str>) -> (PathBuf, Arc<LivePool>) {
    let leaves = devices(directory, 1);
    let tops = vec![(top(VdevKind::File, None, leaves), AllocationClass::Normal)];
    let mut features = plan("tables", Vec::new()).features;
    features.extend(more.map(str::to_owned));
    let plan = NewPoolPlan { features, ..plan("tables", tops) };
    let options = OpenOptions::default();
    let opener = Arc::new(open_leaf);
    let live = create(plan, opener, &options, WriteOptions::default(), nothing).unwrap();
    (directory.join("d0"), live)
}

/// Destroys the leaves of a ZAP in `object` of the metadata; the header stays.
fn damage_leaves(device: &Path, live: &LivePool, object: ObjectId) -> Lost {
    let table = live.pool().mos().object(object).unwrap();
    let last = table.dnode().max_block_id;
    assert!(last >= 1, "a table of one block");
    let pointers = table.pointers(1, last).unwrap();
    let leaves = pointers.iter().filter(|pointer| !pointer.is_hole());
    leaves.flat_map(|pointer| damage_block(device, live, pointer)).collect()
}

/// The dedup table of that class of SHA-256.
fn dedup_table(live: &LivePool, class: Class) -> ObjectId {
    let mos = live.pool().mos();
    let directory = Table::open(&mos, ObjectId(1)).unwrap().unwrap();
    let own = directory.number(&ddt::directory_name("sha256")).unwrap();
    let own = own.map(|own| Table::open(&mos, ObjectId(own)).unwrap().unwrap());
    let place = own.as_ref().unwrap_or(&directory);
    ObjectId(place.number(&ddt::table_name("sha256", class)).unwrap().unwrap())
}

/// Nothing that is in use is free.
fn nothing_is_freed_that_is_used(live: &LivePool) {
    let options = CheckOptions::default();
    let report = check(live.pool(), &options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.unallocated.is_empty(), "{:?}", report.unallocated);
}

fn everything_reads(files: &Files) {
    let cache = files.live.pool().io().pipe.cache();
    let limit = cache.limit();
    cache.set_limit(0);
    cache.set_limit(limit);
    for (id, data) in &files.files {
        let object = files.dataset.set().object(*id).unwrap();
        assert!(object.read_vec(0, data.len()).unwrap() == *data, "object {id} differs");
    }
}

fn in_another_life(files: Files, directory: &Path) -> Files {
    let written = files.files;
    files.live.export().unwrap();
    drop((files.live, files.dataset));
    let mut files = Files::new(reopen(directory));
    files.dedup(1, 1, 15);
    files.files = written;
    files
}

/// A pool with a file, and whose others are deduplicated from now on: its device, those, and the file.
fn deduplicated(directory: &Path, more: Option<&str>) -> (PathBuf, Files, ObjectId) {
    let (device, live) = pool(directory, more);
    let files = Files::new(live);
    let other = filled(&files.live, files.dataset.set(), 1);
    files.dedup(1, 1, 15);
    (device, files, other)
}

#[test]
fn a_damaged_dedup_table_keeps_its_blocks_and_the_pool_goes_on() {
    for more in [None, Some("fast_dedup")] {
        let directory = tempfile::tempdir().unwrap();
        let (device, mut files, other) = deduplicated(directory.path(), more);
        files.write(0..40);
        let second = files.write(0..40);
        let third = files.write(100..140);
        let fourth = files.write(140..150);
        files.live.sync().unwrap();
        let tables = [Class::Duplicate, Class::Unique].map(|class| dedup_table(&files.live, class));
        let lost = tables.map(|table| damage_leaves(&device, &files.live, table));
        for life in 0..2 {
            let live = files.live.clone();
            // Stored once more, for nobody finds them.
            let again = files.write((0..10).chain(100..110));
            let set = files.dataset.set().object(again).unwrap();
            goes_on(&live, files.dataset.set(), other, life + 2);
            assert!(set.pointers(0, 19).unwrap().iter().all(|pointer| !pointer.is_dedup()));
            // Nobody knows how many references they have.
            files.remove([second, fourth][life as usize]);
            files.change(third, life, 1000);
            files.remove(again);
            goes_on(&live, files.dataset.set(), other, life + 4);
            everything_reads(&files);
            nothing_is_freed_that_is_used(&live);
            assert!(!live.pool().io().pipe.faults().lost().is_empty());
            drop((live, set));
            files = in_another_life(files, directory.path());
        }
        for lost in lost {
            exchange(&device, lost);
        }
        files.live.pool().io().pipe.cache().set_limit(0);
        let last = files.write(0..50);
        files.live.sync().unwrap();
        files.remove(last);
        files.remove(third);
        files.live.sync().unwrap();
        everything_reads(&files);
        nothing_is_freed_that_is_used(&files.live);
        files.live.export().unwrap();
    }
}

#[test]
fn an_entry_that_its_new_table_cannot_take_stays_in_the_old_one() {
    for more in [None, Some("fast_dedup")] {
        let directory = tempfile::tempdir().unwrap();
        let (device, mut files, other) = deduplicated(directory.path(), more);
        let first = files.write(0..40);
        let second = files.write(0..40);
        files.write(100..140);
        files.live.sync().unwrap();
        let table = dedup_table(&files.live, Class::Unique);
        damage_leaves(&device, &files.live, table);
        // One reference each is left, which the other table is for.
        files.remove(second);
        let live = files.live.clone();
        goes_on(&live, files.dataset.set(), other, 2);
        everything_reads(&files);
        nothing_is_freed_that_is_used(&live);
        drop(live);
        files = in_another_life(files, directory.path());
        let again = files.write(0..20);
        let live = files.live.clone();
        goes_on(&live, files.dataset.set(), other, 3);
        let used = |live: &LivePool| live.allocator().figures().allocated(AllocationClass::Normal);
        let before = used(&live);
        files.remove(first);
        files.remove(again);
        goes_on(&live, files.dataset.set(), other, 4);
        goes_on(&live, files.dataset.set(), other, 5);
        goes_on(&live, files.dataset.set(), other, 6);
        assert!(used(&live) < before, "nothing of it was freed");
        everything_reads(&files);
        nothing_is_freed_that_is_used(&live);
        files.live.export().unwrap();
    }
}

/// The ZAP of the entries of the only clone table.
fn clone_entries(live: &LivePool) -> ObjectId {
    let mos = live.pool().mos();
    let directory = Table::open(&mos, ObjectId(1)).unwrap().unwrap();
    let table = directory.number(&brt::vdev_key(0)).unwrap().unwrap();
    let table = mos.object(ObjectId(table)).unwrap();
    BrtHeader::decode(table.dnode().bonus()).unwrap().entries
}

fn holds(object: &Object) {
    let read = object.read_vec(0, RECORDS as usize * RECORD).unwrap();
    assert!(read == noise(RECORDS as usize * RECORD, 5));
}

#[test]
fn a_damaged_table_of_clones_keeps_its_blocks_and_the_pool_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (device, live) = pool(directory.path(), Some(CLONING));
    enable(&live, CLONING);
    let other = filled(&live, head(&live).set(), 1);
    let object = written(&live);
    let copies = [cloned(&live, &object), cloned(&live, &object)];
    // Accepted while the table can be read.
    let new = NewObject::new(ObjectType::OTHER_U64, RECORD as u64);
    let late = head(&live).set().create_object(&live.begin().unwrap(), &new).unwrap();
    let pointers = object.clonable(0, RECORDS).unwrap();
    assert_eq!(live.countable_clones(&pointers), RECORDS as usize);
    let base = late.base_to_clone(0, RECORDS).unwrap();
    late.clone_over(&live.begin().unwrap(), 0, &pointers, &base).unwrap();
    damage_leaves(&device, &live, clone_entries(&live));
    goes_on(&live, head(&live).set(), other, 2);
    assert_eq!(live.countable_clones(&pointers), 0);
    for gone in [&copies[0], &late] {
        holds(gone);
        remove(&live, gone);
        goes_on(&live, head(&live).set(), other, 3);
        nothing_is_freed_that_is_used(&live);
    }
    assert!(!live.pool().io().pipe.faults().lost().is_empty());
    let ids = [object.id(), copies[1].id()];
    live.export().unwrap();
    drop((live, object, copies, late));

    let live = reopen(directory.path());
    for id in ids {
        let object = head(&live).set().object(id).unwrap();
        holds(&object);
        assert_eq!(live.countable_clones(&object.clonable(0, RECORDS).unwrap()), 0);
        remove(&live, &object);
        goes_on(&live, head(&live).set(), other, 4);
        nothing_is_freed_that_is_used(&live);
    }
    live.export().unwrap();
}
