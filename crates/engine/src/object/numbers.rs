//! Numbers for new objects.
//!
//! Invariant: a number is given out only while its slots are free on the disks, in every later
//! group, and were not given out before. Numbers that were freed come back when their group is on
//! the disks.

use std::collections::BTreeSet;

use cenote_format::dnode::SLOTS_PER_BLOCK;

/// Blocks of dnodes with freed slots that are remembered.
const FREED_KEPT: usize = 4096;

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
