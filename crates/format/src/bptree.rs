//! The bptree: roots of destroyed datasets whose blocks are still to be freed.
//!
//! Chapter 06, section 10.3. Invariant: entries `begin..end` are live.

use crate::bpobj::Space;
use crate::bytes::{array, le_words, words_to_le};
use crate::{BlockPointer, Error, Result, Txg, blkptr};

/// Size of the bonus in bytes.
pub const HEADER: usize = 40;
/// Size of one entry in bytes.
pub const ENTRY: usize = 168;

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

    /// From its four words.
    pub fn from_words([objset, object, level, block]: [u64; 4]) -> Self {
        Self { objset, object, level: level.cast_signed(), block }
    }

    /// Its four words.
    pub fn to_words(self) -> [u64; 4] {
        [self.objset, self.object, self.level.cast_unsigned(), self.block]
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
}
