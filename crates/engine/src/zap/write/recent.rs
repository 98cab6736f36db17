//! The indexes of micro ZAPs changed lately, so that filling a directory does not hash all its
//! names again for each new one.
//!
//! Invariant: an index is only given to whoever shows the very buffer it was made of, which is
//! unchangeable and held here; so no change by anybody else can make it wrong.

use bytes::Bytes;
use cenote_format::zap::MicroIndex;
use parking_lot::Mutex;

/// Micro ZAPs remembered.
const REMEMBERED: usize = 32;
/// Smaller blocks are hashed anew: that costs as much as remembering them.
const SMALL: usize = 2048;

static RECENT: Mutex<Vec<Indexed>> = Mutex::new(Vec::new());

/// A micro block and where its entries lie.
pub(super) struct Indexed {
    /// The block.
    pub(super) block: Bytes,
    /// Its entries by hash.
    pub(super) index: MicroIndex,
    /// No chunk below is free: where an entry goes follows from the block, not from what is remembered of it.
    pub(super) first_free: u32,
}

impl Indexed {
    fn is_of(&self, block: &Bytes) -> bool {
        self.block.as_ptr() == block.as_ptr() && self.block.len() == block.len()
    }
}

/// Takes what is remembered of `block`.
pub(super) fn take(block: &Bytes) -> Option<Indexed> {
    if block.len() <= SMALL {
        return None;
    }
    let mut recent = RECENT.lock();
    let at = recent.iter().position(|one| one.is_of(block))?;
    Some(recent.remove(at))
}

/// Asks the index of `block`, if it is remembered.
pub(in crate::zap) fn look<T>(block: &Bytes, ask: impl FnOnce(&MicroIndex) -> T) -> Option<T> {
    if block.len() <= SMALL {
        return None;
    }
    let recent = RECENT.lock();
    recent.iter().find(|one| one.is_of(block)).map(|one| ask(&one.index))
}

/// Remembers `indexed`, forgetting the oldest.
pub(super) fn put(indexed: Indexed) {
    if indexed.block.len() <= SMALL {
        return;
    }
    let mut recent = RECENT.lock();
    recent.truncate(REMEMBERED - 1);
    recent.insert(0, indexed);
}
