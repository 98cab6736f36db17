//! What a checkpoint held is freed, a part in each group: the job "discarding checkpoint".
//!
//! Chapter 03, section 14. Invariant: the feature is given up in the group that frees the last of it.
//! A map that cannot be read stays, and keeps neither the pool nor the maps of other vdevs.

use cenote_format::Txg;

use super::LivePool;
use super::store::MosStore;
use crate::alloc::CHECKPOINT;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::job::{Budget, Outcome};
use crate::object::ObjectSet;
use crate::{Error, ErrorKind, Result, zap};

/// Short name of the feature: in use until the last of a checkpoint is discarded.
pub(in crate::pool) const FEATURE: &str = "zpool_checkpoint";
/// Ranges freed in one group.
const FREED_AT_ONCE: u64 = 500_000;

impl LivePool {
    /// Frees a part of what a checkpoint held, if one is being discarded.
    pub(in crate::pool) fn go_on_discarding(&self, change: &MosChange<'_>, txg: Txg) -> Result<()> {
        if self.jobs.discarding.begin().is_none() {
            return Ok(());
        }
        if !change.is_active(FEATURE)? || has_checkpoint(change.mos)? {
            self.jobs.end(&self.jobs.discarding, Outcome::default());
            return Ok(());
        }
        let is_waited_for = || self.gate.is_waited_for(txg);
        let mut budget = Budget::blocks(FREED_AT_ONCE).sharing(&is_waited_for);
        let mut outcome = Outcome { more: true, ..Outcome::default() };
        while outcome.more && !budget.is_spent() {
            let part = self.allocator.discard_kept(&mut MosStore::new(change), txg)?;
            outcome.done = outcome.done.saturating_add(part.bytes);
            // Maps that cannot be read are left when the others are done.
            outcome.more = !part.finished && part.ranges > 0;
            outcome.trouble = outcome.trouble.take().or(part.trouble);
            budget.spend(part.ranges);
            if part.finished {
                change.remove_reference(FEATURE)?;
                let words = "finished discarding checkpointed state from the pool";
                change.log_event("spa discard checkpoint", None, words)?;
            }
        }
        outcome.left = self.allocator.held_by_checkpoint();
        self.jobs.end(&self.jobs.discarding, outcome);
        Ok(())
    }
}

/// What is said where a checkpoint stands in the way.
pub(in crate::pool) fn checkpoint_exists() -> Error {
    Error::new(ErrorKind::Exists, "checkpoint exists")
}

/// Whether the pool has a checkpoint.
pub(in crate::pool) fn has_checkpoint(mos: &ObjectSet) -> Result<bool> {
    let directory = zap::Zap::open(mos.object(OBJECT_DIRECTORY)?)?;
    Ok(directory.lookup(CHECKPOINT.as_bytes())?.is_some())
}
