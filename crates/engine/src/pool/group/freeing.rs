//! What destroyed datasets and snapshots left is freed, a portion in each group: the job "freeing".
//!
//! Chapter 06, section 13. Invariant: what cannot be read stays queued, and keeps neither the pool nor
//! the rest of the queue, also where devices that are away may have it; it is tried again when the pool is opened, when
//! something more is queued, at `zpool clear`, and after a scrub or resilver.

use super::LivePool;
use super::hooks::GroupHooks;
use crate::dataset::change::MosChange;
use crate::job::{Budget, Outcome};

/// Blocks freed in the background in one group.
const FREED_AT_ONCE: u64 = 100_000;

impl LivePool {
    /// Blocks may have been queued to be freed in the background.
    pub fn wake_freeing(&self) {
        self.jobs.freeing.wake();
    }

    /// Frees a part of what destroyed datasets and snapshots left.
    pub(super) fn free_destroyed(&self, change: &MosChange<'_>, hooks: &GroupHooks<'_>) {
        let Some(portion) = self.jobs.freeing.begin() else { return };
        let mut pass = std::mem::take(&mut *self.freeing_pass.lock());
        if portion.anew {
            pass = Default::default();
        }
        let txg = change.tx.txg();
        let is_waited_for = || self.gate.is_waited_for(txg);
        let mut outcome = loop {
            let most = FREED_AT_ONCE.min(self.most_frees());
            let budget = Budget::blocks(most).sharing(&is_waited_for);
            let freeing = || change.process_async_destroy(&mut pass, budget);
            let freeing = || self.outage.with_what_is_there(freeing);
            match self.all_or_nothing(txg, hooks, freeing) {
                Ok(freed) => {
                    let done = u64::try_from(freed.space.used).unwrap_or(0);
                    break Outcome { done, more: !freed.finished, ..Outcome::default() };
                }
                Err(error) => {
                    if !pass.give_up(error) {
                        break Outcome::default();
                    }
                }
            }
        };
        outcome.left = change.waiting_to_be_freed().unwrap_or(0);
        outcome.trouble = pass.trouble().cloned();
        if outcome.more {
            *self.freeing_pass.lock() = pass;
        }
        self.jobs.end(&self.jobs.freeing, outcome);
    }
}
