//! Changes of datasets, made in the transaction group being written: on the live meta object set,
//! by one thread, with the blocks of every dataset already written.
//!
//! Chapter 06. Invariant: whatever a function here changes, the sums of section 8.3 hold when it
//! returns `Ok`; when it returns `Err`, the caller takes back what was changed
//! (`ObjectSet::undo_changes`).

mod bookmarks;
mod bpobj;
mod checks;
mod clones;
mod create;
mod deadlist;
mod dedup;
mod dedup_tables;
mod destroy;
mod destroy_snapshot;
mod error_logs;
mod features;
mod free;
mod history;
mod holds;
mod keys;
mod known_deadlists;
mod ledger;
mod limits;
mod livelist;
mod objects;
mod permissions;
mod plain_deadlist;
mod promote;
mod properties;
mod receive;
mod rename;
mod scan;
mod skeleton;
mod snapshot;
mod space;
mod swap;
mod tables;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cenote_format::bpobj::Space;
use cenote_format::feature::Feature;
use cenote_format::zil::Header as LogHeader;
use cenote_format::{BlockPointer, ObjectId};
use parking_lot::Mutex;

use known_deadlists::KnownDeadlists;

use super::{Catalog, Names, PoolCapacity, Table};
use crate::events::Members;
use crate::object::ObjectSet;
use crate::txg::Tx;
use crate::vdev::VdevTree;
use crate::{Error, ErrorKind, Result};

pub use clones::LiveClones;
pub use create::{MadeDataset, NewDataset, NewKeys};
pub use dedup::LiveDedup;
pub use error_logs::{ErrorLog, error_logs_name_datasets};
pub use free::{Freed, FreeingPass};
pub use holds::TEMPORARY_HOLDS;
pub use ledger::DatasetLedger;
pub use objects::METADATA_ZAP;
pub use properties::{PropertyData, PropertyInput};
pub use receive::{ReceivedSnapshot, ResumeFacts, ResumePoint};
pub use scan::{ScanQueue, read_error_scrub, read_scan};
pub use skeleton::{DEFERRED_LIST, FREE_LIST, NewPool, Skeleton};
pub use space::{Delta, Share};

/// MOS object of the pool's directory of objects.
pub const OBJECT_DIRECTORY: ObjectId = ObjectId(1);

/// What a change needs from the pool around it.
pub trait PoolHooks: Sync {
    /// Sixty-four random bits.
    fn random(&self) -> u64;
    /// Frees the space of a block in the group being written: nothing refers to it any more.
    fn free(&self, pointer: &BlockPointer) -> Result<()>;
    /// Frees the claimed log behind `header`, left in `head`, which goes away.
    fn free_log(&self, _head: ObjectId, _header: &LogHeader) -> Result<()> {
        let reason = "the dataset's intent log still has blocks";
        Err(Error::new(ErrorKind::Busy, reason))
    }
    /// An encrypted directory goes away, and with it the user key loaded for it, if it has its own.
    fn keys_released(&self, _directory: ObjectId) {}
    /// The encryption root of the first directory is the second from now on, with the same user key.
    fn keys_moved(&self, _from: ObjectId, _to: ObjectId) {}
    /// A snapshot is read for long, and is not to be destroyed now.
    fn is_kept(&self, _snapshot: ObjectId) -> bool {
        false
    }
    /// A snapshot of a head was taken.
    fn snapshot_taken(&self, _head: ObjectId, _snapshot: ObjectId) {}
    /// A snapshot went; `next` is what came after it.
    fn snapshot_destroyed(&self, _snapshot: ObjectId, _next: ObjectId) {}
    /// A head went.
    fn head_destroyed(&self, _head: ObjectId) {}
    /// Two heads exchanged their content.
    fn heads_swapped(&self, _one: ObjectId, _other: ObjectId) {}
    /// Something happened that those who want to know are told once the change is made:
    /// `sysevent.fs.zfs.NAME`.
    fn tell(&self, _name: &'static str, _members: Members) {}
    /// Name of this host, for the history.
    fn host(&self) -> String;
    /// What the pool offers to its datasets now.
    fn capacity(&self) -> PoolCapacity;
    /// An error if there is no room for what stays.
    fn check_room(&self) -> Result<()> {
        Ok(())
    }
    /// The reference count of a feature is now `count` (just enabled: 0, or 1 for those that are
    /// active at once). Those named in labels need new labels.
    fn feature_changed(&self, _feature: &'static Feature, _count: u64) {}
}

/// A change of the meta object set in one transaction group.
pub struct MosChange<'a> {
    /// The live meta object set.
    pub mos: &'a ObjectSet,
    /// The group being written.
    pub tx: &'a Tx,
    /// Seconds since 1970.
    pub now: u64,
    /// Version of the pool.
    pub version: u64,
    /// Name of the pool.
    pub pool: &'a str,
    /// The pool around.
    pub hooks: &'a dyn PoolHooks,
    meter: Meter,
    names: Arc<Names>,
    deadlists: KnownDeadlists,
    /// Names that came or went, in lists of children and of snapshots.
    renamed: Mutex<BTreeMap<ObjectId, BTreeSet<String>>>,
    /// What is done now heeds no limits on numbers of filesystems and snapshots.
    beyond_limits: AtomicBool,
}

impl<'a> MosChange<'a> {
    /// A change of the meta object set `mos` in group `tx`.
    pub fn new(
        mos: &'a ObjectSet,
        tx: &'a Tx,
        now: u64,
        version: u64,
        pool: &'a str,
        hooks: &'a dyn PoolHooks,
    ) -> Result<Self> {
        let (meter, names) = (Meter::of(mos, version)?, Arc::default());
        let renamed = Mutex::default();
        let beyond_limits = AtomicBool::default();
        let deadlists = KnownDeadlists::default();
        Ok(Self {
            mos,
            tx,
            now,
            version,
            pool,
            hooks,
            meter,
            names,
            deadlists,
            renamed,
            beyond_limits,
        })
    }

    /// The same, with `names` found before.
    #[must_use]
    pub fn with_names(self, names: Arc<Names>) -> Self {
        Self { names, ..self }
    }

    /// The datasets as they are now.
    pub fn catalog(&self) -> Result<Catalog> {
        Catalog::with_names(self.mos.clone(), self.pool, self.names.clone())
    }

    /// The names that came or went since this was last asked, in lists of children and of snapshots; some of
    /// them perhaps by changes that were taken back.
    pub fn take_renamed(&self) -> BTreeMap<ObjectId, BTreeSet<String>> {
        std::mem::take(&mut *self.renamed.lock())
    }

    /// What blocks count for.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }
}

/// Measures blocks as datasets are charged for them (chapter 06, section 8.1). Cheap to clone.
#[derive(Clone)]
pub struct Meter {
    vdevs: Arc<VdevTree>,
    deflated: bool,
}

impl Meter {
    /// The measure of the pool that `mos` belongs to.
    pub fn of(mos: &ObjectSet, version: u64) -> Result<Self> {
        let recorded = match Table::open(mos, OBJECT_DIRECTORY) {
            Ok(Some(table)) => table.number("deflate")?.is_some_and(|deflate| deflate != 0),
            // A pool being made: it will say so as soon as it can.
            _ => version >= VERSION_DEFLATED,
        };
        Ok(Self { vdevs: mos.io().pipe.vdevs(), deflated: recorded })
    }

    /// Allocated, physical and logical bytes of a block.
    pub fn space(&self, pointer: &BlockPointer) -> Space {
        if pointer.is_hole() {
            return Space::default();
        }
        let compressed = if pointer.is_embedded() { 0 } else { pointer.psize() };
        let metadata = pointer.level().0 > 0 || pointer.object_type().is_metadata();
        let uncompressed = if metadata { compressed } else { pointer.lsize() };
        let used = pointer.dvas().map(|dva| match self.deflated {
            true => (dva.asize >> 9).saturating_mul(self.vdevs.deflate_ratio(dva.vdev)),
            false => dva.asize,
        });
        Space { used: used.fold(0, u64::saturating_add), compressed, uncompressed }
    }
}

/// The directory of the pool's objects; `None` while the pool is being made.
fn object_directory(mos: &ObjectSet) -> Result<Option<Table>> {
    match Table::open(mos, OBJECT_DIRECTORY) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        directory => directory,
    }
}

/// First version whose space is charged deflated.
const VERSION_DEFLATED: u64 = 9;
