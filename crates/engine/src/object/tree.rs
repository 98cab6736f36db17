//! Walking an object's block tree: pointers by block id, next data, next hole.
//!
//! Chapter 04, section 4. Invariant: every step goes one level down, a walk over a range skips at
//! least one block a step, and a search ends after [`MAX_STEPS`].

use cenote_format::{BlockPointer, blkptr};

use super::Object;
use crate::{Error, Result};

/// Steps of one search, each over an indirect block of level 1 or a hole. Enough for any honest
/// object; a small image can hold a tree of 2^64 blocks.
const MAX_STEPS: u32 = 1 << 16;

impl Object {
    /// Which slot of a level-`level` block's parent chain block `id` belongs to.
    fn ancestor(&self, id: u64, levels_up: u32) -> u64 {
        id.checked_shr(self.dnode.pointers_shift().saturating_mul(levels_up)).unwrap_or(0)
    }

    /// The pointer in the dnode above block `id` of `level`, and its level.
    fn top_pointer(&self, level: u8, id: u64) -> Result<(BlockPointer, u8)> {
        let top = self.dnode.levels.saturating_sub(1);
        if level > top {
            return Err(Error::corrupt(format!("level {level} of a tree of {} levels", top + 1)));
        }
        let index = self.ancestor(id, u32::from(top - level));
        let pointer = usize::try_from(index).ok().and_then(|i| self.dnode.pointers.get(i));
        Ok((pointer.copied().unwrap_or(BlockPointer::HOLE), top))
    }

    /// Checks that a pointer is what its place in the tree says.
    fn expect_level(bp: &BlockPointer, level: u8) -> Result<()> {
        if !bp.is_hole() && bp.level().0 != level {
            let found = bp.level();
            return Err(Error::corrupt(format!("pointer of level {found} where {level} belongs")));
        }
        Ok(())
    }

    /// The pointer to block `id` of `level`; a hole if any ancestor is one.
    ///
    /// Of a live object it is the pointer on the disks.
    pub fn pointer(&self, level: u8, id: u64) -> Result<BlockPointer> {
        if self.live.is_some() {
            return self.committed_object().pointer(level, id);
        }
        let (mut bp, mut at) = self.top_pointer(level, id)?;
        loop {
            Self::expect_level(&bp, at)?;
            if at == level || bp.is_hole() {
                return Ok(bp);
            }
            bp = self.child(&bp, self.ancestor(id, u32::from(at - 1 - level)))?;
            at -= 1;
        }
    }

    /// The pointer to child `child_id` (numbered over its whole level) in indirect block `bp`.
    fn child(&self, bp: &BlockPointer, child_id: u64) -> Result<BlockPointer> {
        let block = self.set.0.io.pipe.read(bp, &self.set.0.context)?;
        self.child_in(&block, child_id)
    }

    pub(super) fn child_in(&self, block: &[u8], child_id: u64) -> Result<BlockPointer> {
        let mask = (1_u64 << self.dnode.pointers_shift()) - 1;
        let index = usize::try_from(child_id & mask).unwrap_or(usize::MAX);
        Ok(BlockPointer::decode_at(block, index)?)
    }

    /// Pointers to level-0 blocks `first..=last`.
    ///
    /// Of a live object they are those on the disks.
    pub fn pointers(&self, first: u64, last: u64) -> Result<Vec<BlockPointer>> {
        if self.live.is_some() {
            return self.committed_object().pointers(first, last);
        }
        let count = last.saturating_sub(first).saturating_add(1);
        if count > 1 << 20 {
            return Err(Error::invalid(format!("{count} blocks at once")));
        }
        let mut out = Vec::with_capacity(count as usize);
        let shift = self.dnode.pointers_shift();
        let mut parent = None;
        for id in first..=last {
            if id > self.dnode.max_block_id {
                out.push(BlockPointer::HOLE);
                continue;
            }
            if self.dnode.levels == 1 {
                out.push(self.pointer(0, id)?);
                continue;
            }
            let parent_id = id >> shift;
            let block = match &parent {
                Some((known, block)) if *known == parent_id => block,
                _ => {
                    let bp = self.pointer(1, parent_id)?;
                    let block = if bp.is_hole() {
                        None
                    } else {
                        Some(self.set.0.io.pipe.read(&bp, &self.set.0.context)?)
                    };
                    &parent.insert((parent_id, block)).1
                }
            };
            let bp = match block {
                Some(block) => self.child_in(block, id)?,
                None => BlockPointer::HOLE,
            };
            Self::expect_level(&bp, 0)?;
            out.push(bp);
        }
        Ok(out)
    }

    /// The first level-0 block at or after `from` that is stored; none up to the end.
    pub fn next_data_block(&self, from: u64) -> Result<Option<u64>> {
        if self.live.is_some() {
            return self.next_live_data(from);
        }
        self.next_block(from, true).map_err(|error| self.named(error))
    }

    /// The first level-0 block at or after `from` that is a hole; none up to the end.
    pub fn next_hole_block(&self, from: u64) -> Result<Option<u64>> {
        if self.live.is_some() {
            return self.next_live_hole(from);
        }
        self.next_block(from, false).map_err(|error| self.named(error))
    }

    /// The last level-0 block the pointers of this object can reach.
    fn last_reachable(&self) -> u64 {
        let levels = u32::from(self.dnode.levels.saturating_sub(1));
        let shift = self.dnode.pointers_shift().saturating_mul(levels);
        let pointers = u128::from(self.dnode.pointers.len() as u64);
        let blocks = pointers.checked_shl(shift).filter(|_| shift < 120).unwrap_or(u128::MAX);
        let last = u64::try_from(blocks.saturating_sub(1)).unwrap_or(u64::MAX);
        last.min(self.dnode.max_block_id)
    }

    /// A search that takes too many steps gives up: the rest counts as data, which it may.
    fn next_block(&self, from: u64, want_data: bool) -> Result<Option<u64>> {
        let shift = self.dnode.pointers_shift();
        let last = self.last_reachable();
        let mut id = from;
        for _ in 0..MAX_STEPS {
            if id > last {
                return Ok(None);
            }
            let (mut bp, mut at) = self.top_pointer(0, id)?;
            Self::expect_level(&bp, at)?;
            while at > 1 && !bp.is_hole() {
                bp = self.child(&bp, self.ancestor(id, u32::from(at - 1)))?;
                at -= 1;
                Self::expect_level(&bp, at)?;
            }
            if at == 1 && !bp.is_hole() {
                // All children of one indirect block in one step.
                let block = self.set.0.io.pipe.read(&bp, &self.set.0.context)?;
                let end = (id | ((1_u64 << shift) - 1)).min(last);
                for child in id..=end {
                    let bp = self.child_in(&block, child)?;
                    Self::expect_level(&bp, 0)?;
                    if bp.is_hole() != want_data {
                        return Ok(Some(child));
                    }
                }
                let Some(next) = end.checked_add(1) else { return Ok(None) };
                id = next;
                continue;
            }
            if bp.is_hole() != want_data {
                return Ok(Some(id));
            }
            // Skip everything the hole (or the one block) covers.
            let span = shift.saturating_mul(u32::from(at));
            let Some(next) = self.ancestor(id, u32::from(at)).checked_add(1) else {
                return Ok(None);
            };
            let Some(next) =
                next.checked_shl(span).filter(|next| next >> span == next_of(id, span))
            else {
                return Ok(None);
            };
            id = next;
        }
        Ok(want_data.then_some(id))
    }

    /// Byte offset of the first stored data at or after `offset`.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        let size = self.block_size();
        let found = self.next_data_block(offset / size)?;
        Ok(found.map(|block| block.saturating_mul(size).max(offset)))
    }

    /// Byte offset of the first hole at or after `offset`; none if stored to the last block.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        let size = self.block_size();
        let found = self.next_hole_block(offset / size)?;
        Ok(found.map(|block| block.saturating_mul(size).max(offset)))
    }

    /// Largest number of pointers an indirect block of this object holds.
    pub fn pointers_per_block(&self) -> u64 {
        1 << self.dnode.pointers_shift().min(blkptr::MAX_BLOCK.ilog2())
    }
}

fn next_of(id: u64, span: u32) -> u64 {
    id.checked_shr(span).unwrap_or(0).wrapping_add(1)
}
