//! Changes of datasets on a meta object set in memory, against what the chapter shows and against
//! the sums of section 8.3.

mod model;
mod odd;
mod scenario;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::objset::ObjsetKind;
use cenote_format::{BlockPointer, ObjectId, Txg};
use parking_lot::Mutex;

use super::*;
use crate::dataset::Catalog;
use crate::job::Budget;
use crate::pipe::{Pipe, PoolIo, Prefetcher, ReadContext};
use crate::vdev::{LeafOpener, LeafUnavailable};

struct NoLeaves;

impl LeafOpener for NoLeaves {
    fn open(
        &self,
        _config: &VdevConfig,
    ) -> std::result::Result<Arc<dyn cenote_device::Device>, LeafUnavailable> {
        Err(LeafUnavailable::open_failed("no devices here"))
    }
}

/// The features of OpenZFS 2.1 that datasets care about.
const FEATURES: &[&str] = &[
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "spacemap_histogram",
    "enabled_txg",
    "hole_birth",
    "extensible_dataset",
    "bookmarks",
    "filesystem_limits",
    "embedded_data",
    "large_blocks",
    "large_dnode",
    "userobj_accounting",
    "encryption",
    "project_quota",
    "bookmark_v2",
    "bookmark_written",
    "livelist",
    "zstd_compress",
];

/// Room in the simulated pool.
const ROOM: u64 = 1 << 40;

pub(super) struct Hooks {
    seed: AtomicU64,
    pub freed: Mutex<Vec<BlockPointer>>,
}

impl PoolHooks for Hooks {
    fn random(&self) -> u64 {
        // A splitmix step: any sequence without repeats will do.
        let seed = self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    }

    fn free(&self, pointer: &BlockPointer) -> Result<()> {
        self.freed.lock().push(*pointer);
        Ok(())
    }

    fn host(&self) -> String {
        "vm".to_owned()
    }

    fn capacity(&self) -> PoolCapacity {
        PoolCapacity { usable: ROOM, slop: 0 }
    }
}

/// A pool whose meta object set is in memory.
pub(super) struct World {
    pub mos: ObjectSet,
    pub hooks: Hooks,
    pub skeleton: Skeleton,
}

impl World {
    pub fn new(features: &[&str]) -> Self {
        let root = VdevConfig::placeholder(VdevKind::Root, 0);
        let tree = VdevTree::build(&root, Arc::new(NoLeaves)).unwrap();
        let pipe = Pipe::new(Arc::new(tree), 8 << 20);
        let io = Arc::new(PoolIo { pipe, prefetcher: Prefetcher::new(0) });
        let mos = ObjectSet::new_live(&io, ReadContext::default(), ObjsetKind::Meta);
        let hooks = Hooks { seed: AtomicU64::new(1), freed: Mutex::default() };
        let tx = Tx::detached(Txg(4));
        let change = MosChange::new(&mos, &tx, 1_700_000_000, 5000, "tank", &hooks).unwrap();
        let skeleton = change.create_pool_skeleton(&NewPool { features, size: 1 << 30 }).unwrap();
        drop(change);
        Self { mos, hooks, skeleton }
    }

    pub fn full() -> Self {
        Self::new(FEATURES)
    }

    /// Makes a change in group `txg`.
    pub fn change<T>(&self, txg: u64, make: impl FnOnce(&MosChange<'_>) -> Result<T>) -> Result<T> {
        let tx = Tx::detached(Txg(txg));
        let (mos, hooks) = (&self.mos, &self.hooks);
        make(&MosChange::new(mos, &tx, 1_700_000_000 + txg, 5000, "tank", hooks).unwrap())
    }

    pub fn catalog(&self) -> Catalog {
        Catalog::open(self.mos.clone(), "tank").unwrap()
    }

    /// Makes the filesystem `name` below the root.
    pub fn filesystem(&self, txg: u64, name: &str) -> MadeDataset {
        let parent = self.skeleton.root.directory;
        let new = NewDataset { parent, name, ..NewDataset::default() };
        self.change(txg, |change| change.create_dataset(&new)).unwrap()
    }

    /// One group's births and deaths in a head.
    pub fn write(
        &self,
        txg: u64,
        head: ObjectId,
        born: &[BlockPointer],
        killed: &[BlockPointer],
    ) -> Result<()> {
        self.change(txg, |change| {
            let ledger = DatasetLedger::new(change, head)?;
            born.iter().for_each(|pointer| ledger.born(pointer));
            killed.iter().for_each(|pointer| ledger.killed(pointer));
            ledger.apply(change, None)
        })
    }

    /// Checks the sums of section 8.3 in every directory.
    pub fn audit(&self, txg: u64) {
        self.change(txg, |change| {
            audit_below(change, change.root_directory()?);
            Ok(())
        })
        .unwrap();
    }
}

fn audit_below(change: &MosChange<'_>, directory: ObjectId) {
    let phys = change.directory(directory).unwrap();
    let used = phys.used_breakdown;
    let sum =
        used.head + used.snapshots + used.children + used.child_reservations + used.refreservation;
    assert_eq!(phys.used_bytes, sum, "directory {directory}: {phys:?}");
    let (mut children, mut reserved) = (0, 0);
    for (_, child) in change.numbers(phys.child_map).unwrap() {
        let child = ObjectId(child);
        audit_below(change, child);
        let below = change.directory(child).unwrap();
        assert_eq!(below.parent, directory);
        children += below.used_bytes;
        reserved += below.reserved.saturating_sub(below.used_bytes);
    }
    assert_eq!(used.children, children, "children of directory {directory}");
    assert_eq!(used.child_reservations, reserved, "reservations below directory {directory}");
    if phys.head_dataset.0 != 0 {
        let head = change.dataset(phys.head_dataset).unwrap();
        let held = change.refreservation(&phys).unwrap().saturating_sub(head.unique_bytes);
        assert_eq!(used.refreservation, held, "refreservation of directory {directory}");
        audit_deadlist(change, head.deadlist);
        for (_, snapshot) in change.numbers(head.snapshot_names).unwrap() {
            audit_deadlist(change, change.dataset(ObjectId(snapshot)).unwrap().deadlist);
        }
    }
}

fn audit_deadlist(change: &MosChange<'_>, deadlist: ObjectId) {
    let total = change.deadlist_total(deadlist).unwrap();
    let range = change.deadlist_range(deadlist, Txg(0), Txg(u64::MAX)).unwrap();
    assert_eq!(Delta::from(total), range, "deadlist {deadlist}");
}

/// A data block of 4096 bytes at its own place.
pub(super) fn block(number: u64, txg: u64) -> BlockPointer {
    let mut words = [0; 16];
    words[0] = 4096 >> 9;
    words[1] = number * 8;
    // Logical and physical size, checksum fletcher4, type plain file, little-endian.
    words[6] = 7 | 7 << 16 | 2 << 32 | 7 << 40 | 19 << 48 | 1 << 63;
    words[10] = txg;
    words[11] = 1;
    BlockPointer { words }
}
