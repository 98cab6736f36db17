//! How many blocks a group may free or write, where they have entries in tables.
//!
//! An entry more or less of a dedup table, or of a table of cloned blocks, has the leaf it is in written anew, which
//! takes more space than many a block takes or gives back, and takes it before. Invariant: what one group is let free and
//! write costs no more in tables than a share of what can be allocated when it begins, however large the tables are.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cenote_format::Txg;
use parking_lot::{Condvar, Mutex};

use super::promises::stored_size;
use super::{LivePool, PATIENCE};
use crate::Result;
use crate::txg::wait;

/// Share of what is free that a group may take for tables, as a shift.
const SHARE: u32 = 3;
/// Copies of the leaves of tables.
const COPIES: u64 = 3;
/// Leaves an entry may change: it moves from the table of duplicates to another.
const LEAVES: u64 = 2;
/// Blocks that may be freed in each group, whatever they cost.
const LEAST: u64 = 64;

/// What groups may free, and what the open one was let free.
#[derive(Debug)]
pub(in crate::pool) struct Frees {
    /// Blocks in one group.
    most: AtomicU64,
    admitted: Mutex<Admitted>,
    /// Nobody waits for a group to free something in any more.
    changed: Condvar,
}

/// What a group was let free by now.
#[derive(Debug, Default)]
struct Admitted {
    group: Txg,
    blocks: u64,
    /// Somebody waits for the next group: others come after him.
    is_waited_for: bool,
}

impl Admitted {
    /// Whether group `open`, which may free `most` blocks, may free `blocks` more, or is the first to free any; they
    /// count then.
    fn take(&mut self, open: Txg, most: u64, blocks: u64) -> bool {
        if self.group != open {
            (self.group, self.blocks) = (open, 0);
        }
        let all = self.blocks.saturating_add(blocks);
        let fits = all <= most || self.blocks == 0;
        if fits {
            self.blocks = all;
        }
        fits
    }
}

impl Default for Frees {
    fn default() -> Self {
        Self { most: AtomicU64::new(u64::MAX), admitted: Mutex::default(), changed: Condvar::new() }
    }
}

/// Blocks that a group may free if tables of these many leaves, and what each leaf costs, are in use.
fn most_frees(tables: &[(u64, u64)], free: u64) -> u64 {
    let share = free >> SHARE;
    let whole = |(leaves, cost): &(u64, u64)| leaves.saturating_mul(*cost);
    let all = tables.iter().map(whole).fold(0, u64::saturating_add);
    let dearest = tables.iter().map(|(_, cost)| *cost).max().unwrap_or(0);
    match share.checked_div(dearest.saturating_mul(LEAVES)) {
        Some(blocks) if all > share => blocks.max(LEAST),
        _ => u64::MAX,
    }
}

impl LivePool {
    /// Finds how many blocks the next group may free. For the thread that writes groups, between two of them, or
    /// before there are any.
    pub(in crate::pool) fn settle_frees(&self) {
        let stored = stored_size(self.io.pipe.vdev_handle());
        let objects = self.dedup.objects().into_iter().chain(self.clones.objects());
        // What cannot be looked at costs nothing: it cannot be changed either.
        let objects = objects.filter_map(|id| self.mos.object(id).ok());
        let tables = objects.map(|object| {
            (object.block_count(), stored(object.block_size()).saturating_mul(COPIES))
        });
        let tables: Vec<(u64, u64)> = tables.collect();
        let most = most_frees(&tables, self.room_for_blocks());
        self.frees.most.store(most, Relaxed);
    }

    /// Blocks that may be freed in one group.
    pub fn most_frees(&self) -> u64 {
        self.frees.most.load(Relaxed)
    }

    /// Returns when the open group may free `blocks` blocks more, or is the first to free any. No lock and no
    /// [`crate::txg::Tx`] may be held.
    ///
    /// # Errors
    /// Whatever keeps groups from being written.
    pub fn admit_frees(&self, blocks: u64) -> Result<()> {
        let most = self.most_frees();
        if most == u64::MAX {
            return Ok(());
        }
        {
            let mut admitted = self.frees.admitted.lock();
            // Large requests are not overtaken by small ones again and again.
            while admitted.is_waited_for {
                wait(&self.frees.changed, &mut admitted, None)?;
            }
            if admitted.take(self.gate.figures().open, most, blocks) {
                return Ok(());
            }
            admitted.is_waited_for = true;
        }
        let waited = self.wait_to_free(blocks);
        self.frees.admitted.lock().is_waited_for = false;
        self.frees.changed.notify_all();
        waited
    }

    fn wait_to_free(&self, blocks: u64) -> Result<()> {
        loop {
            self.gate.wait_synced(self.gate.figures().open, PATIENCE)?;
            let (open, most) = (self.gate.figures().open, self.most_frees());
            if self.frees.admitted.lock().take(open, most, blocks) {
                return Ok(());
            }
        }
    }

    /// Whether the open group may free `blocks` blocks more without waiting; they count then.
    pub(super) fn admits_frees(&self, blocks: u64) -> bool {
        let most = self.most_frees();
        if most == u64::MAX {
            return true;
        }
        let mut admitted = self.frees.admitted.lock();
        !admitted.is_waited_for && admitted.take(self.gate.figures().open, most, blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_tables_bound_what_is_freed_where_little_is_free() {
        const LEAF: u64 = 12 << 10;
        assert_eq!(most_frees(&[(400, LEAF), (20, LEAF)], 128 << 20), u64::MAX);
        assert_eq!(most_frees(&[(100_000, LEAF)], 1 << 40), u64::MAX);
        let bounded = most_frees(&[(100_000, LEAF), (4, LEAF)], 128 << 20);
        assert_eq!(bounded, (16 << 20) / (2 * LEAF));
        assert_eq!(most_frees(&[(100_000, 8 * LEAF)], 0), LEAST);
        assert_eq!(most_frees(&[(100_000, 0)], 0), u64::MAX);
    }
}
