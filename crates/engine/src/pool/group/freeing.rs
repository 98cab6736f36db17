//! What destroyed datasets and snapshots left is freed, a portion in each group.
//!
//! Chapter 06, section 13. Invariant: what cannot be read stays queued, and keeps neither the pool nor
//! the rest of the queue; it is tried again when the pool is opened and when something more is queued.

use std::sync::atomic::Ordering::Relaxed;

use super::LivePool;
use super::hooks::GroupHooks;
use crate::Error;
use crate::dataset::change::MosChange;

/// Blocks freed in the background in one group.
const FREED_AT_ONCE: u64 = 100_000;

impl LivePool {
    /// Blocks may have been queued to be freed in the background.
    pub fn wake_freeing(&self) {
        self.freeing.store(true, Relaxed);
    }

    /// Why blocks of destroyed datasets stay queued: something could not be read.
    pub fn stuck_freeing(&self) -> Option<Error> {
        self.stuck.lock().clone()
    }

    /// Frees a part of what destroyed datasets and snapshots left.
    pub(super) fn free_destroyed(&self, change: &MosChange<'_>, hooks: &GroupHooks<'_>) {
        if !self.freeing.load(Relaxed) {
            return;
        }
        let mut pass = std::mem::take(&mut *self.freeing_pass.lock());
        let finished = loop {
            let freeing = || change.process_async_destroy(&mut pass, FREED_AT_ONCE);
            match self.all_or_nothing(change.tx.txg(), hooks, freeing) {
                Ok(freed) => break freed.finished,
                Err(error) => {
                    tracing::warn!(%error, "destroyed blocks stay queued");
                    if !pass.give_up(error) {
                        break true;
                    }
                }
            }
        };
        let trouble = pass.trouble().cloned();
        let mut stuck = self.stuck.lock();
        if let Some(error) = trouble.as_ref().filter(|_| stuck.is_none()) {
            tracing::warn!(%error, "destroyed blocks stay queued");
        }
        // What was stuck in an earlier pass may be met again.
        if finished || trouble.is_some() {
            *stuck = trouble;
        }
        if finished {
            self.freeing.store(false, Relaxed);
        } else {
            *self.freeing_pass.lock() = pass;
        }
    }
}
