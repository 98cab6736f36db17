//! Cloned blocks of files: where they are allowed, and their references.
//!
//! Invariant: a reference is counted before anything of its group is written.

use cenote_format::{BlockPointer, Txg};

use super::LivePool;
use crate::Result;
use crate::dataset::Dataset;

/// Guid of the feature.
pub(in crate::pool) const FEATURE: &str = "com.fudosecurity:block_cloning";

impl LivePool {
    /// Whether files of this head may share blocks, as of now. Not those of a clone: its livelist tells
    /// blocks apart by where they lie. Nor those of an encrypted one.
    pub fn may_clone_blocks(&self, head: &Dataset) -> bool {
        let catalog = self.pool.catalog();
        self.feature_enabled(FEATURE)
            && catalog.origin(&head.directory).is_ok_and(|origin| origin.is_none())
            && catalog.key_object(&head.directory).is_ok_and(|key| key.is_none())
    }

    /// How many of `pointers`, from the first on, can be given one reference more: what cannot be counted is
    /// to be copied instead.
    pub fn countable_clones(&self, pointers: &[BlockPointer]) -> usize {
        self.clones.countable(&self.pool.mos(), pointers)
    }

    /// Counts the references that group `txg`, of which nothing is written yet, adds.
    pub(in crate::pool) fn refer_to_cloned(&self, txg: Txg) -> Result<()> {
        let dirty = self.dirty_datasets(txg);
        for pointer in dirty.iter().flat_map(|dataset| dataset.set().cloned(txg)) {
            self.refer_to_clone(&pointer)?;
        }
        Ok(())
    }

    /// One reference more to a block that is in no dedup table.
    pub(in crate::pool) fn refer_to_clone(&self, pointer: &BlockPointer) -> Result<()> {
        self.clones.refer(pointer, |vdev| self.allocator.space_of(vdev))
    }
}
