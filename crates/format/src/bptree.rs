//! The bptree: roots of destroyed datasets whose blocks are still to be freed.
//!
//! Chapter 06, section 10.3. Invariant: entries `begin..end` are live.

use crate::bpobj::Space;
use crate::bytes::{array, le_words, words_to_le};
use crate::dnode::SLOTS_PER_BLOCK;
use crate::{BlockPointer, Error, Result, Txg, blkptr};

/// Size of the bonus in bytes.
pub const HEADER: usize = 40;
/// Size of one entry in bytes.
pub const ENTRY: usize = 168;

/// Number of the first of the accounting objects, which lie outside the array of dnodes and come
/// last in a walk.
const FIRST_ACCOUNTING: u64 = u64::MAX - 2;

/// Where in a pool a block stands: object set, object, level, block id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockBookmark {
    /// Dataset object number; 0 for the meta object set.
    pub objset: u64,
    /// Object number.
    pub object: u64,
    /// Height in the block tree; -1 is the object-set block, -2 an intent-log block.
    pub level: i64,
    /// Block id at that level.
    pub block: u64,
}

impl BlockBookmark {
    /// Size of the structure in bytes.
    pub const SIZE: usize = 32;
    /// Level of an object set's root.
    pub const ROOT_LEVEL: i64 = -1;
    /// Block id of the spill block of an object, whose level is 0.
    pub const SPILL_BLOCK: u64 = u64::MAX;

    /// From its four words.
    pub fn from_words([objset, object, level, block]: [u64; 4]) -> Self {
        Self { objset, object, level: level.cast_signed(), block }
    }

    /// Its four words.
    pub fn to_words(self) -> [u64; 4] {
        [self.objset, self.object, self.level.cast_unsigned(), self.block]
    }

    /// A walk over one object set, by object and block, children first, that stopped before `stop`
    /// was done with this block: it comes before, or lies below it. `shift`: pointers in an indirect
    /// block of this object, as an exponent of 2. To be asked on the way down: not of what lies
    /// below an indirect block of dnodes that is done.
    pub fn is_done_before(&self, stop: &Self, shift: u32) -> bool {
        if self.level == Self::ROOT_LEVEL {
            return false;
        }
        let Ok(stop_level) = u32::try_from(stop.level) else {
            // Only the root is left.
            return true;
        };
        let is_spill = self.block == Self::SPILL_BLOCK;
        let level = u32::try_from(self.level).unwrap_or(0);
        let end = || end_of(self.block, level, shift);
        match (self.object, stop.object) {
            (own, other) if own == other => {
                let last = end_of(stop.block, stop_level, shift);
                let limit = match level < stop_level {
                    true => last,
                    false => last.saturating_sub(shifted_left(1, shift.saturating_mul(stop_level))),
                };
                !is_spill && end() <= limit
            }
            // The block of dnodes that holds the object is not done.
            (0, other) => other >= FIRST_ACCOUNTING || end() <= other / SLOTS_PER_BLOCK,
            (own, 0) => {
                let below = stop_level == 0 && own / SLOTS_PER_BLOCK <= stop.block;
                below && own < FIRST_ACCOUNTING
            }
            (own, other) => own < other,
        }
    }

    /// A walk over one object set, by object and block, parents first, that stopped before `stop`
    /// was done with this block and all below it. `shift` as in [`Self::is_done_before`], and to be
    /// asked on the way down as well.
    pub fn is_passed_before(&self, stop: &Self, shift: u32) -> bool {
        if self.level == Self::ROOT_LEVEL {
            return false;
        }
        let Ok(stop_level) = u32::try_from(stop.level) else { return false };
        let is_spill = self.block == Self::SPILL_BLOCK;
        let level = u32::try_from(self.level).unwrap_or(0);
        let end = || end_of(self.block, level, shift);
        match (self.object, stop.object) {
            (own, other) if own == other => {
                !is_spill && end() <= start_of(stop.block, stop_level, shift)
            }
            (0, other) => other >= FIRST_ACCOUNTING || end() <= other / SLOTS_PER_BLOCK,
            (own, 0) => {
                let before = stop_level == 0 && own / SLOTS_PER_BLOCK < stop.block;
                before && own < FIRST_ACCOUNTING
            }
            (own, other) => own < other,
        }
    }

    /// This block leads to `stop`, which lies below it. `shift` as in [`Self::is_done_before`].
    pub fn leads_to(&self, stop: &Self, shift: u32) -> bool {
        if self.level == Self::ROOT_LEVEL {
            return stop.level != Self::ROOT_LEVEL;
        }
        let (Ok(level), Ok(stop_level)) = (u32::try_from(self.level), u32::try_from(stop.level))
        else {
            return false;
        };
        if self.block == Self::SPILL_BLOCK || stop.object == self.object && level <= stop_level {
            return false;
        }
        let at = match (self.object, stop.object) {
            (own, other) if own == other => start_of(stop.block, stop_level, shift),
            (0, other) if other < FIRST_ACCOUNTING => other / SLOTS_PER_BLOCK,
            _ => return false,
        };
        let is_spill = stop.block == Self::SPILL_BLOCK && self.object != 0;
        let range = start_of(self.block, level, shift)..end_of(self.block, level, shift);
        !is_spill && range.contains(&at)
    }
}

/// First block of level 0 below the block with this id and level.
fn start_of(block: u64, level: u32, shift: u32) -> u64 {
    shifted_left(block, shift.saturating_mul(level))
}

/// First block of level 0 behind those below the block with this id and level.
fn end_of(block: u64, level: u32, shift: u32) -> u64 {
    shifted_left(block.saturating_add(1), shift.saturating_mul(level))
}

/// `number * 2^bits`, at most the largest number there is.
fn shifted_left(number: u64, bits: u32) -> u64 {
    match number {
        0 => 0,
        _ if bits >= number.leading_zeros() => u64::MAX,
        _ => number << bits,
    }
}

/// The bonus of the bptree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BptreeHeader {
    /// First live entry.
    pub begin: u64,
    /// One past the last entry.
    pub end: u64,
    /// Totals of what is still to be freed.
    pub space: Space,
}

impl BptreeHeader {
    /// Decodes the bonus.
    pub fn decode(bonus: &[u8]) -> Result<Self> {
        let [begin, end, used, compressed, uncompressed] =
            le_words(bonus).ok_or_else(|| Error::truncated("bptree"))?;
        if begin > end {
            return Err(Error::new("bptree", format!("begins at {begin}, ends at {end}")));
        }
        Ok(Self { begin, end, space: Space { used, compressed, uncompressed } })
    }

    /// The [`HEADER`] bytes of the bonus.
    pub fn encode(&self) -> Vec<u8> {
        let space = &self.space;
        words_to_le(&[self.begin, self.end, space.used, space.compressed, space.uncompressed])
    }
}

/// One tree of blocks to free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BptreeEntry {
    /// Root of the tree.
    pub pointer: BlockPointer,
    /// Only blocks born after this are freed.
    pub birth: Txg,
    /// Where an interrupted traversal goes on.
    pub resume: BlockBookmark,
}

impl BptreeEntry {
    /// Decodes one entry.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let short = || Error::truncated("bptree entry");
        let tail: [u8; 40] = array(data, blkptr::SIZE).ok_or_else(short)?;
        let [birth, objset, object, level, block] = le_words(&tail).ok_or_else(short)?;
        Ok(Self {
            pointer: BlockPointer::decode(data)?,
            birth: Txg(birth),
            resume: BlockBookmark::from_words([objset, object, level, block]),
        })
    }

    /// The [`ENTRY`] bytes of this entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.pointer.encode().to_vec();
        out.extend_from_slice(&self.birth.0.to_le_bytes());
        out.extend(words_to_le(&self.resume.to_words()));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_t9_round_trips() {
        let header = BptreeHeader {
            begin: 0,
            end: 1,
            space: Space { used: 0x3800, compressed: 0x1c00, uncompressed: 0x1c00 },
        };
        assert_eq!(BptreeHeader::decode(&header.encode()).unwrap(), header);
        let mut raw = vec![0; ENTRY];
        raw[0] = 1;
        raw[128] = 1;
        let entry = BptreeEntry::decode(&raw).unwrap();
        assert_eq!((entry.birth, entry.resume), (Txg(1), BlockBookmark::default()));
        assert_eq!(entry.encode(), raw);
        assert!(BptreeEntry::decode(&raw[..167]).is_err());
        let backwards = BptreeHeader { begin: 2, end: 1, space: Space::default() };
        assert!(BptreeHeader::decode(&backwards.encode()).is_err());
    }

    #[test]
    fn a_walk_is_done_with_what_comes_before_and_below() {
        let at = |object, level, block| BlockBookmark { objset: 0, object, level, block };
        let root = at(0, BlockBookmark::ROOT_LEVEL, 0);
        let spill = |object| at(object, 0, BlockBookmark::SPILL_BLOCK);
        let done = |block: BlockBookmark, stop: BlockBookmark| block.is_done_before(&stop, 10);

        assert!(!done(root, root) && done(at(7, 0, 0), root) && done(spill(7), root));
        // One object: before it, itself, below it, above it, behind it.
        let stop = at(7, 1, 3);
        assert!(done(at(7, 1, 2), stop) && done(at(7, 0, 3071), stop));
        assert!(!done(stop, stop) && done(at(7, 0, 4095), stop) && !done(at(7, 2, 0), stop));
        assert!(!done(at(7, 0, 4096), stop) && !done(at(7, 1, 4), stop) && !done(spill(7), stop));
        assert!(done(at(7, 1, 9), spill(7)) && !done(spill(7), spill(7)));
        // Other objects, and the blocks of dnodes that hold them.
        assert!(done(at(6, 2, 5), stop) && done(spill(6), stop) && !done(at(8, 0, 0), stop));
        assert!(done(at(0, 0, 1), at(64, 0, 0)) && !done(at(0, 0, 2), at(64, 0, 0)));
        assert!(done(at(63, 0, 0), at(0, 0, 1)) && !done(at(64, 0, 0), at(0, 0, 1)));
        assert!(done(at(0, 5, 0), at(u64::MAX - 2, 0, 0)));
        assert!(!done(at(u64::MAX, 0, 0), at(0, 5, u64::MAX)));
        // Below an indirect block of dnodes, however many pointers it has, nothing is asked for.
        assert!(!done(at(64, 0, 0), at(0, 1, 0)) && !done(at(1 << 20, 0, 0), at(0, 1, 0)));
        // Ids no tree has.
        assert!(!done(at(7, 60, 1 << 60), at(7, 2, 1)) && done(at(7, 0, 0), at(7, 60, 1 << 60)));
    }

    #[test]
    fn a_walk_parents_first_is_above_what_it_stopped_at() {
        let at = |object, level, block| BlockBookmark { objset: 0, object, level, block };
        let root = at(0, BlockBookmark::ROOT_LEVEL, 0);
        let spill = |object| at(object, 0, BlockBookmark::SPILL_BLOCK);
        let passed = |block: BlockBookmark, stop: BlockBookmark| block.is_passed_before(&stop, 10);
        let above = |block: BlockBookmark, stop: BlockBookmark| block.leads_to(&stop, 10);

        assert!(!passed(at(0, 0, 0), root) && !above(root, root) && above(root, at(7, 0, 0)));
        let stop = at(7, 1, 3);
        assert!(passed(at(7, 1, 2), stop) && passed(at(7, 0, 3071), stop) && !passed(stop, stop));
        assert!(!passed(at(7, 0, 3072), stop) && !passed(at(7, 2, 0), stop));
        assert!(above(at(7, 2, 0), stop) && !above(at(7, 2, 1), stop) && !above(stop, stop));
        assert!(passed(at(7, 2, 0), spill(7)) && !passed(spill(7), stop) && !above(spill(7), stop));
        // The blocks of dnodes above it, and accounting objects behind all of them.
        assert!(passed(at(6, 1, 9), stop) && passed(spill(6), stop) && !passed(at(8, 0, 0), stop));
        assert!(above(at(0, 0, 2), at(64, 1, 5)) && above(at(0, 1, 0), spill(64)));
        assert!(passed(at(0, 0, 1), at(64, 0, 0)) && !passed(at(0, 0, 2), at(64, 0, 0)));
        assert!(passed(at(0, 5, 0), at(u64::MAX, 0, 0)) && !above(at(0, 5, 0), at(u64::MAX, 0, 0)));
        assert!(passed(at(31, 0, 0), at(0, 0, 1)) && !passed(at(32, 0, 0), at(0, 0, 1)));
        assert!(above(at(0, 2, 0), at(0, 0, 9)) && !above(at(1, 2, 0), at(2, 0, 9)));
    }
}
