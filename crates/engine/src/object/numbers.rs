//! Numbers for new objects.
//!
//! Invariant: a number is given out only while its slots are free on the disks, in every later
//! group, and were not given out before. Numbers that were freed come back when their group is on
//! the disks.

use std::collections::BTreeSet;

use cenote_format::dnode::{SLOTS_PER_BLOCK, dnodes_in_block};

use super::live::Live;
use super::{OBJECTS_END, Object, ObjectSet};
use crate::{Error, ErrorKind, Result};

/// Blocks of dnodes with freed slots that are remembered.
const FREED_KEPT: usize = 4096;
/// Blocks of pointers looked at for a free slot before the set is made longer.
const LOOKED_AT: u64 = 1 << 16;
/// Damaged blocks that are passed by in the search for one number.
pub(super) const DAMAGED: u32 = 32;

/// Where the next object goes.
#[derive(Clone)]
pub(super) struct Numbers {
    /// The block of dnodes being filled, and its slots known to be free (bit 0 is slot 0).
    pub(super) block: Option<(u64, u32)>,
    /// Blocks below this one were looked at.
    pub(super) cursor: u64,
    /// Blocks in which slots were freed.
    freed: BTreeSet<u64>,
}

impl Numbers {
    /// Numbers for a set whose last block of dnodes is `last_block`.
    pub(super) fn new(_last_block: u64) -> Self {
        Self { block: None, cursor: 0, freed: BTreeSet::new() }
    }

    /// Object `id` is free on the disks.
    pub(super) fn freed(&mut self, id: u64) {
        let block = id / SLOTS_PER_BLOCK;
        if self.freed.len() < FREED_KEPT && self.block.is_none_or(|(now, _)| now != block) {
            self.freed.insert(block);
        }
    }

    /// A block in which slots were freed.
    pub(super) fn take_freed(&mut self) -> Option<u64> {
        self.freed.pop_first()
    }

    /// Takes `slots` neighbouring free slots of the current block; the number of the first.
    pub(super) fn take(&mut self, slots: u32) -> Option<u64> {
        let (block, free) = self.block.as_mut()?;
        let width = slots.clamp(1, 32);
        let mask = if width == 32 { u32::MAX } else { (1 << width) - 1 };
        // Large dnodes stand at multiples of their size, so that they fill a block.
        let step = width.next_power_of_two().min(32);
        let mut slot = 0;
        while slot + width <= 32 {
            let wanted = mask << slot;
            if *free & wanted == wanted {
                *free &= !wanted;
                return Some(*block * SLOTS_PER_BLOCK + u64::from(slot));
            }
            slot += step;
        }
        None
    }
}

impl ObjectSet {
    /// A number with `slots` free slots from it on.
    ///
    /// # Errors
    /// If a good part of the set's dnodes is damaged. There is no number left.
    pub(super) fn free_number(&self, live: &Live, slots: u32) -> Result<u64> {
        let mut damaged = 0;
        loop {
            let next = {
                let mut numbers = live.numbers.lock();
                if let Some(id) = numbers.take(slots) {
                    return Ok(id);
                }
                numbers.take_freed()
            };
            let (block, from_cursor) = match next {
                Some(block) => (block, false),
                None => (self.block_with_room(live)?, true),
            };
            let mut next = block.saturating_add(1);
            let free = match self.free_slots(live, block) {
                // Nothing more is put into a block that cannot be read, or below one.
                Err(error) if self.is_own_damage(&error) && damaged < DAMAGED => {
                    damaged += 1;
                    self.note_damage(&error);
                    let meta = self.meta_object();
                    if meta.read_above(block).is_err() {
                        next = below_next(&meta, block);
                    }
                    0
                }
                free => free?,
            };
            let mut numbers = live.numbers.lock();
            // Another thread may have moved on meanwhile; its block is as good.
            if from_cursor {
                if numbers.cursor > block {
                    continue;
                }
                numbers.cursor = next;
            }
            numbers.block = Some((block, free));
        }
    }

    /// The next block of dnodes, from the cursor on, that is not full on the disks.
    fn block_with_room(&self, live: &Live) -> Result<u64> {
        let (from, meta) = (live.numbers.lock().cursor, self.meta_object());
        let end = meta.dnode().max_block_id.saturating_add(1);
        let mut block = from;
        while block < end && block - from < LOOKED_AT {
            let last = (block + 1023).min(end - 1);
            let pointers = match meta.pointers(block, last) {
                Err(error) if self.is_own_damage(&error) => {
                    self.note_damage(&error.at_object(self.id(), 0));
                    block = below_next(&meta, block);
                    continue;
                }
                pointers => pointers?,
            };
            for (id, pointer) in (block..).zip(pointers) {
                // A block that is nearly full is not worth reading.
                if pointer.fill() < SLOTS_PER_BLOCK * 3 / 4 {
                    return Ok(id);
                }
            }
            block = last + 1;
        }
        if block >= OBJECTS_END / SLOTS_PER_BLOCK {
            return Err(Error::new(ErrorKind::InvalidArgument, "no object number is left"));
        }
        Ok(block)
    }

    /// The free slots of a block of dnodes: on the disks and in the table.
    pub(super) fn free_slots(&self, live: &Live, block: u64) -> Result<u32> {
        let mut used = u32::from(block == 0);
        let mut mark = |slot: u64, slots: u64| {
            for slot in slot..(slot + slots).min(SLOTS_PER_BLOCK) {
                used |= 1 << slot;
            }
        };
        let meta = self.meta_object();
        if block <= meta.dnode().max_block_id {
            let data = meta.read_block(block)?;
            for (slot, dnode) in dnodes_in_block(&data) {
                mark(slot, dnode.map_or(1, |dnode| u64::from(dnode.extra_slots) + 1));
            }
        } else {
            meta.read_above(block)?;
        }
        let first = block.saturating_mul(SLOTS_PER_BLOCK);
        for slot in 0..SLOTS_PER_BLOCK {
            if let Some(object) = live.known(first + slot) {
                let state = object.state.read();
                let slots = state.current.as_ref().map_or(1, |now| u64::from(now.extra_slots) + 1);
                mark(slot, slots);
            }
        }
        Ok(!used)
    }
}

/// The first block of dnodes that another indirect block leads to than the one `block` is below.
fn below_next(meta: &Object, block: u64) -> u64 {
    let shift = meta.dnode().pointers_shift();
    ((block >> shift) + 1) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_once_and_large_ones_do_not_straddle() {
        let mut numbers = Numbers::new(0);
        assert_eq!(numbers.take(1), None);
        numbers.block = Some((2, !0b1011));
        assert_eq!(numbers.take(1), Some(66));
        assert_eq!(numbers.take(2), Some(68));
        assert_eq!(numbers.take(1), Some(70));
        let mut taken = vec![];
        while let Some(id) = numbers.take(8) {
            taken.push(id);
        }
        assert_eq!(taken, [72, 80, 88]);
        assert_eq!(numbers.take(32), None);
        numbers.freed(3);
        numbers.freed(65);
        assert_eq!(numbers.take_freed(), Some(0));
        assert_eq!(numbers.take_freed(), None);
    }
}
