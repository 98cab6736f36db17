//! What a checkpoint held is freed, a part in each group.
//!
//! Chapter 03, section 14. Invariant: the feature is given up in the group that frees the last of it.

use std::sync::atomic::Ordering::Relaxed;

use cenote_format::Txg;

use super::LivePool;
use super::store::MosStore;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::{Result, zap};

/// Entry of the pool's directory: the checkpointed uberblock.
pub(in crate::pool) const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
/// Short name of the feature: in use until the last of a checkpoint is discarded.
pub(in crate::pool) const FEATURE: &str = "zpool_checkpoint";

impl LivePool {
    /// Frees a part of what a checkpoint held, if one is being discarded.
    pub(in crate::pool) fn go_on_discarding(&self, change: &MosChange<'_>, txg: Txg) -> Result<()> {
        if !self.discarding.load(Relaxed) {
            return Ok(());
        }
        if !change.is_active(FEATURE)? || has_checkpoint(change)? {
            self.discarding.store(false, Relaxed);
            return Ok(());
        }
        if self.allocator.discard_kept(&mut MosStore::new(change), txg)? {
            change.remove_reference(FEATURE)?;
            self.discarding.store(false, Relaxed);
            let words = "finished discarding checkpointed state from the pool";
            change.log_event("spa discard checkpoint", None, words)?;
        }
        Ok(())
    }
}

/// Whether the pool has a checkpoint.
pub(in crate::pool) fn has_checkpoint(change: &MosChange<'_>) -> Result<bool> {
    let directory = zap::Zap::open(change.mos.object(OBJECT_DIRECTORY)?)?;
    Ok(directory.lookup(CHECKPOINT.as_bytes())?.is_some())
}
