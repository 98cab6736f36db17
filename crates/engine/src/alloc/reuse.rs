//! Where addresses were freed since the pool was opened, and keeping them from being handed out again
//! while somebody writes to a block he only read.
//!
//! Chapter 03, section 8. Invariant: while a [`Held`] lives, nothing is handed out again that was in
//! use when it was made; what was freed before that comes back while holders follow one another.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::Txg;

use super::allocator::Allocator;
use crate::vdev::BlockRead;

/// log2 of the bytes that share an entry at first.
const SHIFT: u32 = 12;
/// Most entries; beyond, twice as many bytes share one.
const MOST: usize = 1 << 18;

/// The newest group that freed anything in each piece of the address space.
#[derive(Debug)]
pub(super) struct Freed {
    shift: u32,
    /// By vdev and number of the piece.
    pieces: BTreeMap<(u32, u64), Txg>,
}

impl Default for Freed {
    fn default() -> Self {
        Self { shift: SHIFT, pieces: BTreeMap::new() }
    }
}

impl Freed {
    /// Group `txg` frees these addresses.
    pub(super) fn note(&mut self, vdev: u32, offset: u64, length: u64, txg: Txg) {
        let last = offset.saturating_add(length.saturating_sub(1));
        for piece in offset >> self.shift..=last >> self.shift {
            let newest = self.pieces.entry((vdev, piece)).or_default();
            *newest = txg.max(*newest);
        }
        while self.pieces.len() > MOST && self.shift < 63 {
            self.shift += 1;
            for ((vdev, piece), txg) in std::mem::take(&mut self.pieces) {
                let newest = self.pieces.entry((vdev, piece >> 1)).or_default();
                *newest = txg.max(*newest);
            }
        }
    }

    /// Nothing near these addresses was freed in group `since` or later.
    fn is_untouched(&self, vdev: u32, offset: u64, length: u64, since: Txg) -> bool {
        let last = offset.saturating_add(length.saturating_sub(1));
        let pieces = (vdev, offset >> self.shift)..=(vdev, last >> self.shift);
        self.pieces.range(pieces).all(|(_, newest)| *newest < since)
    }
}

/// Keeps freed space from being handed out again.
#[derive(Debug)]
pub struct Held {
    allocator: Arc<Allocator>,
    /// What this group and later ones free is kept.
    since: Txg,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.allocator.state.lock();
        if let Err(error) = state.end_hold(self.since) {
            state.failure.get_or_insert(error);
        }
    }
}

impl Allocator {
    /// Lets the caller write the bytes of a block again that he read and verified: `None` if the
    /// block may not be the owner of its addresses any more, or is not on the disks for good.
    pub fn hold(self: &Arc<Self>, block: &BlockRead) -> Option<Held> {
        let asize = self.vdevs.load().asize(block.vdev, block.size, block.birth)?;
        let mut state = self.state.lock();
        let owns = block.birth <= state.synced
            && state.top(block.vdev).is_some()
            && state.recycled.is_untouched(block.vdev, block.offset, asize, block.birth);
        owns.then(|| Held { allocator: self.clone(), since: state.begin_hold() })
    }

    /// Keeps everything from being given out that is in use now, or was freed in the newest groups: whoever
    /// looks afterwards what is in use, in the pool as it is shown, finds nothing else. What older groups freed
    /// nobody finds any more, so it is kept for the sake of earlier holders only.
    pub fn hold_all(self: &Arc<Self>) -> Held {
        let since = self.state.lock().begin_hold();
        Held { allocator: self.clone(), since }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_after_a_birth_is_touched() {
        let mut freed = Freed::default();
        freed.note(0, 3 << 20, 4096, Txg(10));
        freed.note(0, 3 << 20, 4096, Txg(8));
        let untouched =
            |freed: &Freed, offset, since| freed.is_untouched(0, offset, 4096, Txg(since));
        assert!(!untouched(&freed, 3 << 20, 10) && !untouched(&freed, (3 << 20) + 512, 10));
        assert!(untouched(&freed, 3 << 20, 11) && untouched(&freed, 4 << 20, 5));
        assert!(freed.is_untouched(1, 3 << 20, 4096, Txg(5)));
        // Many: coarser, never forgotten.
        for piece in 0..MOST as u64 + 10 {
            freed.note(0, piece << 12, 4096, Txg(20));
        }
        assert!(freed.pieces.len() <= MOST && freed.shift > SHIFT);
        assert!(!untouched(&freed, 5 << 12, 20) && untouched(&freed, 5 << 12, 21));
    }
}
