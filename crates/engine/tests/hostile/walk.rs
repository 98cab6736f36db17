//! Looking at everything a pool has, within bounds of our own: what a curious user could do.
//!
//! Invariant: every loop here is bounded by a count, so that what does not end is the engine's
//! fault. Errors are welcome; they are counted, never unwrapped.

use std::ops::ControlFlow;
use std::sync::Arc;

use cenote_engine::check::{CheckOptions, Report, Verify};
use cenote_engine::dataset::{Dataset, DatasetName, Keys, Listed, NoKeys, PropertyReader};
use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::pool::activity::{Clock, Settings};
use cenote_engine::pool::assemble::PoolCandidate;
use cenote_engine::pool::history::History;
use cenote_engine::pool::host::HostIdentity;
use cenote_engine::pool::importable::importable;
use cenote_engine::pool::inspect::{Inspector, inspect};
use cenote_engine::pool::properties::{self, Runtime};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::zap::Zap;
use cenote_format::ObjectId;
use cenote_format::object_type::SwapClass;

use crate::tally::Tally;

/// Most datasets, objects of a set, and entries of a table that are looked at.
const MOST: usize = 200;

struct NoTime;

impl Clock for NoTime {
    fn sleep(&self, _: std::time::Duration) {}
}

/// Little memory, no threads.
pub fn options() -> OpenOptions {
    OpenOptions { cache_limit: 32 << 20, prefetch_threads: 0, ..OpenOptions::default() }
}

/// Judges a candidate as `zpool import` does.
pub fn judge(candidate: &PoolCandidate) {
    let host = HostIdentity { id: 0x5eed, name: "here".into() };
    let inspector = Inspector {
        host: &host,
        loader: None,
        clock: &NoTime,
        settings: Settings::default(),
        deadline: std::time::Duration::from_secs(10),
        max_txg: None,
        missing_log: false,
    };
    let found = inspect(candidate, &inspector);
    let _ = importable(candidate, &found, &host);
}

/// Looks at everything of an open pool but its files.
#[allow(dead_code, reason = "one of several ways")]
pub fn pool(pool: &Arc<Pool>, tally: &mut Tally) {
    general(pool, tally);
    for dataset in datasets(pool, tally) {
        self::dataset(pool, &dataset, &NoKeys, tally);
    }
}

/// Reads and counts every block, as `zdb -bcc` does.
pub fn check(pool: &Arc<Pool>, tally: &mut Tally) -> Option<Report> {
    let verify = Verify::Everything;
    let options = CheckOptions { verify, every_copy: true, threads: 2, ..CheckOptions::default() };
    let report = cenote_engine::check::check(pool, &options, &mut |_| ControlFlow::Continue(()));
    let report = tally.of(report)?;
    for finding in &report.findings {
        tally.of(Err::<(), _>(&finding.error));
    }
    Some(report)
}

/// Looks at what belongs to the pool itself.
pub fn general(pool: &Arc<Pool>, tally: &mut Tally) {
    let space = tally.of(pool.space());
    if let Some(space) = space {
        let all = properties::all(&pool.catalog(), &pool.config(), &space, &Runtime::default());
        tally.of(all);
        let _ = (space.fragmentation(), space.dedup_ratio(), space.clone_ratio());
    }
    if let Some(history) = tally.of(History::open(&pool.catalog())) {
        for record in history.take(10 * MOST) {
            tally.of(record.map(|record| record.text("", true, &|_| None)));
        }
    }
    objects(&pool.mos(), tally);
}

/// Looks at one head or snapshot.
pub fn dataset(pool: &Arc<Pool>, dataset: &Dataset, keys: &dyn Keys, tally: &mut Tally) {
    questions(pool, dataset, keys, tally);
    if let Some(set) = tally.of(pool.catalog().object_set(dataset, keys)) {
        objects(&set, tally);
    }
}

/// All heads and snapshots.
pub fn datasets(pool: &Arc<Pool>, tally: &mut Tally) -> Vec<Dataset> {
    let catalog = pool.catalog();
    let mut found = Vec::new();
    let directories = tally.of(catalog.root().and_then(|root| catalog.walk(&root)));
    for directory in directories.into_iter().flatten().take(MOST) {
        tally.of(catalog.directory_by_id(directory.id));
        tally.of(catalog.ancestors(&directory));
        tally.of(catalog.snapshots_changed(&directory));
        tally.of(catalog.origin(&directory));
        tally.of(catalog.key_object(&directory));
        let Some(head) = tally.of(catalog.head(&directory)) else { continue };
        let snapshots = tally.of(catalog.snapshots(&head)).unwrap_or_default();
        found.push(head);
        found.extend(snapshots.into_iter().take(MOST));
    }
    found
}

fn questions(pool: &Arc<Pool>, dataset: &Dataset, keys: &dyn Keys, tally: &mut Tally) {
    let catalog = pool.catalog();
    let Ok(space) = pool.space() else { return };
    let reader = PropertyReader::new(&catalog, space.capacity(), keys, "/mnt");
    let listed = Listed::Dataset(dataset.clone());
    tally.of(reader.all(&listed));
    // One that fails hides the rest: ask for each, too.
    for property in cenote_format::property::DATASET {
        tally.of(reader.get(&listed, property.name));
    }
    for name in ["userused@0", "userquota@1000", "groupused@0", "written@two", "userobjused@0"] {
        tally.of(reader.get(&listed, name));
    }
    tally.of(catalog.usage(dataset, keys));
    tally.of(catalog.holds(dataset));
    tally.of(catalog.written(dataset));
    tally.of(catalog.previous(dataset));
    tally.of(catalog.dataset_features(dataset));
    tally.of(catalog.dataset_by_id(dataset.id));
    tally.of(catalog.dataset(&dataset.name));
    if dataset.is_snapshot() {
        tally.of(catalog.clones(dataset));
        if let Some(Some(older)) = tally.of(catalog.previous(dataset)) {
            tally.of(catalog.written_since(dataset, &older));
        }
        return;
    }
    for (name, bookmark) in tally.of(catalog.bookmarks(dataset)).unwrap_or_default() {
        tally.of(catalog.written_since_bookmark(dataset, &bookmark));
        tally.of(reader.all(&Listed::Bookmark(name, bookmark)));
    }
    if let Ok(name) = DatasetName::parse(dataset.name.path()) {
        tally.of(catalog.directory(name.path()));
    }
}

/// Every object of a set: dump, as zdb would.
pub fn objects(set: &ObjectSet, tally: &mut Tally) {
    let mut at = 0;
    for _ in 0..MOST {
        let Some(Some(ObjectId(id))) = tally.of(set.next_object(at)) else { break };
        assert!(id > at, "objects go forward");
        at = id;
        if let Some(object) = tally.of(set.object(ObjectId(id))) {
            self::object(&object, tally);
        }
    }
    use cenote_engine::object::Accounting;
    for which in [Accounting::User, Accounting::Group, Accounting::Project] {
        if let Some(object) = set.accounting_object(which) {
            self::object(&object, tally);
        }
    }
}

fn object(object: &Object, tally: &mut Tally) {
    let last = object.block_count() - 1;
    for block in [0, 1, last / 2, last] {
        tally.of(object.read_block(block));
    }
    tally.of(object.spill());
    let end = object.dnode().max_offset();
    for offset in [0, end / 3, end.saturating_sub(1000), u64::MAX - 10] {
        tally.of(object.read(offset, 3000));
        tally.of(object.seek_data(offset));
        tally.of(object.seek_hole(offset));
    }
    if object.dnode().object_type.swap_class() != SwapClass::Zap {
        return;
    }
    let Some(zap) = tally.of(Zap::open(object.clone())) else { return };
    let _ = zap.count();
    for entry in zap.entries().take(MOST) {
        let Some(entry) = tally.of(entry) else { break };
        tally.of(zap.lookup(entry.name()));
        let _ = (entry.value.as_u64(), entry.value.as_c_string(), entry.value.as_bytes());
    }
}
