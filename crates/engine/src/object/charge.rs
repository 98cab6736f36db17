//! What changes of a live set can cost on the disks, promised when they are made.
//!
//! Invariant: every block a group may write of a set with an account was promised in that group: level-0
//! blocks and spill blocks when they become dirty, the indirect blocks above them and blocks of dnodes
//! when the first thing below them does, and more of them when they get more pointers; the root when a log changes
//! its header.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_format::dnode::SLOTS_PER_BLOCK;
use cenote_format::{Dnode, Txg, blkptr};
use parking_lot::Mutex;

use super::live::Live;
use super::{Object, ObjectSet};
use crate::txg::{Account, DirtyMark, Tx};

/// Bytes of a block of dnodes.
const DNODES: u64 = 16 << 10;
/// Bytes of the root.
const ROOT: u64 = 4 << 10;
/// Blocks of dnodes' size a group writes of every set it changes: the root, and what owners use.
const SET_BLOCKS: u64 = 6;
/// Indirect blocks are counted in units of so many bytes: they are compressed, but seldom to nothing.
const UNIT: u64 = 4 << 10;

/// The indirect blocks of one object that a group changes, by level and number, and the bytes that were
/// promised for each.
pub(super) type Indirects = BTreeMap<(u8, u64), u64>;

/// What one change made dirty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Bytes of a level-0 block, or those it grew by.
    pub(super) block: u64,
    /// Bytes it had before in this group.
    pub(super) before: u64,
    /// The block is metadata.
    pub(super) metadata: bool,
    /// Bytes of indirect blocks.
    pub(super) indirect: u64,
}

/// log2 of the pointers in an indirect block.
fn fan_out(indirect_shift: u8) -> u32 {
    u32::from(indirect_shift.clamp(10, 24)) - blkptr::SIZE.ilog2()
}

/// Bytes of the indirect blocks above level-0 block `id` that `known` does not have yet; it has them
/// afterwards. `last` is the last level-0 block: while an object grows, so do they.
pub(super) fn indirects_above(known: &mut Indirects, shift: u8, id: u64, last: u64) -> u64 {
    let fan_out = fan_out(shift);
    let (mut at, mut last, mut bytes) = (id, last.max(id), 0_u64);
    let mut level = 1;
    while last > 0 {
        let above = at >> fan_out;
        // No more than the pointers there are; the rest is zeros.
        let pointers = (last - (above << fan_out)).saturating_add(1).min(1 << fan_out);
        let needed = (pointers * blkptr::SIZE as u64).next_multiple_of(UNIT);
        let promised = known.entry((level, above)).or_default();
        if *promised >= needed {
            break;
        }
        bytes = bytes.saturating_add(needed - *promised);
        *promised = needed;
        (at, last, level) = (above, last >> fan_out, level + 1);
    }
    bytes
}

impl Due {
    /// Of level-0 block `id` of the object behind `dnode`, dirty from now on with `bytes`.
    pub(super) fn of(indirects: &mut Indirects, dnode: &Dnode, id: u64, bytes: u64) -> Self {
        let count = dnode.pointers.len() as u64;
        let last = dnode.max_block_id.max(id);
        let indirect = match last < count {
            true => 0,
            false => indirects_above(indirects, dnode.indirect_shift, id, last),
        };
        let metadata = super::early::data_kind(dnode).is_metadata();
        Self { block: bytes, before: 0, metadata, indirect }
    }
}

/// Dnodes that groups change, by block, and the indirect blocks above.
#[derive(Default)]
pub(super) struct DirtyDnodes {
    groups: [Mutex<(BTreeSet<u64>, Indirects)>; 4],
}

impl DirtyDnodes {
    /// Bytes that the change of dnode `id` in group `txg` adds: of blocks of dnodes, of indirect
    /// blocks.
    fn add(&self, txg: Txg, id: u64, meta: &Dnode) -> (u64, u64) {
        let Some(group) = self.groups.get((txg.0 & 3) as usize) else { return (0, 0) };
        let (blocks, indirects) = &mut *group.lock();
        let block = id / SLOTS_PER_BLOCK;
        let first = blocks.is_empty();
        if !blocks.insert(block) {
            return (0, 0);
        }
        let last = meta.max_block_id.max(block);
        let mut above = indirects_above(indirects, meta.indirect_shift, block, last);
        if first {
            // Sets have indirect levels for every number there could be.
            above = above.saturating_add(u64::from(meta.levels) * UNIT);
        }
        (DNODES * (1 + if first { SET_BLOCKS } else { 0 }), above)
    }

    /// The group is on the disks.
    pub(super) fn forget(&self, txg: Txg) {
        if let Some(group) = self.groups.get((txg.0 & 3) as usize) {
            *group.lock() = Default::default();
        }
    }
}

impl Live {
    /// The dnode of object `id` is changed in group `txg` for the first time.
    pub(super) fn promise_dnode(&self, txg: Txg, id: u64) {
        let Some(account) = self.account.get() else { return };
        let (blocks, indirect) = self.dirty_dnodes.add(txg, id, &self.committed().meta);
        if blocks > 0 {
            account.promise(txg, |costs| {
                let count = blocks / DNODES;
                let dnodes = costs.block(DNODES, true).saturating_mul(count);
                dnodes.saturating_add(costs.block(indirect, true))
            });
        }
    }
}

impl ObjectSet {
    /// Group `txg` is to write the root, with another header of the intent log; it `is_first` to say so in that group.
    pub fn change_root(&self, txg: Txg, is_first: bool) {
        let Some(live) = &self.0.live else { return };
        if let Some(account) = live.account.get().filter(|_| is_first) {
            account.promise(txg, |costs| costs.block(ROOT, true));
        }
        if let Some(mark) = live.dirty_mark.get() {
            mark.mark(txg);
        }
    }

    /// Where the changes of this set promise what they can cost, from now on.
    pub fn set_account(&self, account: Arc<Account>) {
        if let Some(live) = &self.0.live {
            let _ = live.account.set(account);
        }
    }

    /// Who is told of every group that changes this set, from now on.
    pub fn set_dirty_mark(&self, mark: DirtyMark) {
        if let Some(live) = &self.0.live {
            let _ = live.dirty_mark.set(mark);
        }
    }
}

impl Object {
    /// Counts what a change made dirty, and promises what it can cost.
    pub(super) fn promise(&self, tx: &Tx, due: Due) {
        tx.add_dirty(due.block.saturating_sub(due.before));
        let account = self.set.0.live.as_ref().and_then(|live| live.account.get());
        let Some(account) = account.filter(|_| due != Due::default()) else { return };
        account.promise(tx.txg(), |costs| {
            let block = costs.block(due.block, due.metadata);
            let more = block.saturating_sub(costs.block(due.before, due.metadata));
            match due.indirect {
                0 => more,
                bytes => more.saturating_add(costs.block(bytes, true)),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indirect_blocks_count_once() {
        let mut known = Indirects::new();
        let full = 1 << 17;
        // 2048 blocks: two indirect blocks, one above them with two pointers.
        assert_eq!(indirects_above(&mut known, 17, 5, 2047), full + UNIT);
        assert_eq!(indirects_above(&mut known, 17, 7, 2047), 0);
        assert_eq!(indirects_above(&mut known, 17, 1030, 2047), full);
    }

    #[test]
    fn indirect_blocks_of_what_grows_are_promised_as_they_grow() {
        let mut known = Indirects::new();
        assert_eq!(indirects_above(&mut known, 17, 9, 9), UNIT);
        let more: u64 = (10..200).map(|id| indirects_above(&mut known, 17, id, id)).sum();
        assert_eq!(more, (200 * 128_u64).next_multiple_of(UNIT) - UNIT);
        // The second indirect block, and the one above both.
        assert_eq!(indirects_above(&mut known, 17, 1024, 1024), 2 * UNIT);
        assert_eq!(indirects_above(&mut known, 17, 3, 1024), (1 << 17) - 28 * 1024);
    }
}
