//! A bpobj: an object that lists block pointers, and other such objects.
//!
//! Chapter 06, section 10.1. The data of the object is an array of 128-byte pointers; the bonus
//! counts them. Invariant: a header keeps the length it was decoded with, so old forms stay old.

use crate::bytes::{le_words, words_to_le};
use crate::{BlockPointer, Error, ObjectId, Result};

/// Pointers that fit the usual 128 KiB block; lists up to this size are copied, not linked.
pub const ENTRIES_PER_BLOCK: u64 = 1024;
/// Bonus length of the newest form (used while the livelist feature is active).
pub const BONUS_WITH_FREED: usize = 56;
/// Bonus length of the form with sub-objects.
pub const BONUS_WITH_SUBOBJECTS: usize = 48;
/// Bonus length of the form with compressed and uncompressed totals.
pub const BONUS_WITH_COMPRESSED: usize = 32;
/// Bonus length of the first form.
pub const BONUS_FIRST: usize = 16;

/// Allocated, physical and logical bytes of a set of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Allocated bytes.
    pub used: u64,
    /// Physical bytes.
    pub compressed: u64,
    /// Logical bytes.
    pub uncompressed: u64,
}

/// The bonus of a bpobj.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpobjHeader {
    /// Pointers in the object itself.
    pub pointers: u64,
    /// Totals of its pointers and of all sub-objects; compressed and uncompressed are 0 in the
    /// first form.
    pub space: Space,
    /// Object with the array of sub-object numbers, or 0.
    pub subobjects: ObjectId,
    /// Number of sub-objects.
    pub subobject_count: u64,
    /// Entries that are FREE records of a livelist.
    pub freed: u64,
    /// Bytes of the bonus this came from: which form it has.
    pub bonus_len: usize,
}

impl BpobjHeader {
    /// An empty header of the given form (one of the `BONUS_*` lengths).
    pub fn new(bonus_len: usize) -> Self {
        Self {
            pointers: 0,
            space: Space::default(),
            subobjects: ObjectId(0),
            subobject_count: 0,
            freed: 0,
            bonus_len,
        }
    }

    /// Decodes the valid bytes of a bonus; their number tells the form.
    pub fn decode(bonus: &[u8]) -> Result<Self> {
        let bonus_len = match bonus.len() {
            BONUS_WITH_FREED.. => BONUS_WITH_FREED,
            BONUS_WITH_SUBOBJECTS.. => BONUS_WITH_SUBOBJECTS,
            BONUS_WITH_COMPRESSED.. => BONUS_WITH_COMPRESSED,
            BONUS_FIRST.. => BONUS_FIRST,
            _ => return Err(Error::truncated("bpobj")),
        };
        let mut padded = bonus.get(..bonus_len).unwrap_or(&[]).to_vec();
        padded.resize(BONUS_WITH_FREED, 0);
        let [pointers, used, compressed, uncompressed, subobjects, subobject_count, freed] =
            le_words(&padded).ok_or_else(|| Error::truncated("bpobj"))?;
        Ok(Self {
            pointers,
            space: Space { used, compressed, uncompressed },
            subobjects: ObjectId(subobjects),
            subobject_count,
            freed,
            bonus_len,
        })
    }

    /// The bonus in the form it was decoded from.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = words_to_le(&[
            self.pointers,
            self.space.used,
            self.space.compressed,
            self.space.uncompressed,
            self.subobjects.0,
            self.subobject_count,
            self.freed,
        ]);
        out.truncate(self.bonus_len);
        out
    }

    /// Nothing is listed here or below.
    pub fn is_empty(&self) -> bool {
        self.pointers == 0 && self.subobject_count == 0
    }
}

/// The pointer as a bpobj stores it: no fill, no checksum unless the dedup table needs it, no
/// embedded payload. `freed` marks a FREE record of a livelist.
pub fn stored(pointer: &BlockPointer, freed: bool) -> BlockPointer {
    let mut out = *pointer;
    if pointer.is_embedded() {
        out = BlockPointer::HOLE;
        out.words[6] = pointer.words[6];
        out.words[10] = pointer.words[10];
    } else {
        if !pointer.is_dedup() {
            out.words[12..].fill(0);
        }
        out.words[11] = 0;
    }
    if freed {
        out.words[11] |= 1;
    }
    out
}

/// A livelist entry says that the block was freed (else: allocated).
pub fn is_freed_entry(pointer: &BlockPointer) -> bool {
    pointer.words[11] & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_t3_round_trips_in_every_form() {
        let mut raw =
            hex::decode("0b00000000000000004a000000000000002e000000000000003e000000000000")
                .unwrap();
        raw.resize(48, 0);
        let header = BpobjHeader::decode(&raw).unwrap();
        assert_eq!(header.pointers, 11);
        assert_eq!(header.space, Space { used: 0x4a00, compressed: 0x2e00, uncompressed: 0x3e00 });
        assert_eq!(header.encode(), raw);
        for len in [16, 32, 48, 56] {
            raw.resize(56, 7);
            assert_eq!(BpobjHeader::decode(&raw[..len]).unwrap().encode(), raw[..len]);
        }
        assert!(BpobjHeader::decode(&raw[..15]).is_err());
    }

    #[test]
    fn stored_form_drops_what_t4_lacks() {
        let mut pointer = BlockPointer::HOLE;
        pointer.words[0] = 1;
        pointer.words[1] = 0xc0;
        pointer.words[6] = 0x8013_0702_0000_0000;
        pointer.words[10] = 0x10;
        let mut full = pointer;
        full.words[11] = 1;
        full.words[12] = 0x1234;
        assert_eq!(stored(&full, false), pointer);
        assert!(is_freed_entry(&stored(&full, true)) && !is_freed_entry(&stored(&full, false)));
        full.words[6] |= 1 << 62;
        assert_eq!(stored(&full, false).words[12], 0x1234);
        let mut embedded = full;
        embedded.words[6] = 0x8013_008f_4800_0fff;
        let kept = stored(&embedded, false);
        assert_eq!((kept.words[0], kept.words[6], kept.words[10]), (0, embedded.words[6], 0x10));
    }
}
