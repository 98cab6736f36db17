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
    /// The chunk to look for a free one first.
    pub(super) next: usize,
}

/// Takes what is remembered of `block`.
pub(super) fn take(block: &Bytes) -> Option<Indexed> {
    if block.len() <= SMALL {
        return None;
    }
    let mut recent = RECENT.lock();
    let same =
        |one: &Indexed| one.block.as_ptr() == block.as_ptr() && one.block.len() == block.len();
    let at = recent.iter().position(same)?;
    Some(recent.remove(at))
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
