//! Block 0 of a fat ZAP and its table of leaf pointers.
//!
//! Chapter 04, section 12. Invariant: a decoded header's table has as many entries as its shift
//! says and they fit the blocks it names, so a slot of any hash lies inside the table.

use super::{HEADER_BLOCK, KeySettings, Normalization};
use crate::bytes::{le64, put_le64};
use crate::{Error, Result};

/// Second word of the header block.
pub const MAGIC: u64 = 0x0002_f52a_b2ab;
/// Smallest block of a fat ZAP, as a power of two.
pub const MIN_SHIFT: u32 = 9;
/// Largest one that 16-bit chunk numbers can serve.
pub const MAX_SHIFT: u32 = 20;

fn bad(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new("fat ZAP header", reason)
}

/// log2 of the size of a fat ZAP's blocks.
pub fn block_shift(block_size: usize) -> Result<u32> {
    let shift = block_size.trailing_zeros();
    if !block_size.is_power_of_two() || !(MIN_SHIFT..=MAX_SHIFT).contains(&shift) {
        return Err(bad(format!("blocks of {block_size} bytes")));
    }
    Ok(shift)
}

/// A table of leaf pointers: `1 << shift` block numbers of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PointerTable {
    /// First block of the table, 0 if it lies in the header block.
    pub first_block: u64,
    /// Blocks of the table, 0 if it lies in the header block.
    pub blocks: u64,
    /// log2 of the number of entries.
    pub shift: u32,
    /// First block of the table of twice the size that is being filled, or 0.
    pub next_block: u64,
    /// How many blocks of this table have been copied to that one.
    pub blocks_copied: u64,
}

/// The header of a fat ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatHeader {
    /// The table of leaf pointers.
    pub table: PointerTable,
    /// First block never used.
    pub free_block: u64,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of entries.
    pub entries: u64,
    /// Salt, normalization and flags.
    pub settings: KeySettings,
    /// log2 of the block size; not stored, every block of the object has it.
    pub block_shift: u32,
}

/// Where the pointer to a hash's leaf is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerSlot {
    /// Block of the object.
    pub block: u64,
    /// Byte offset in the block.
    pub offset: usize,
}

impl FatHeader {
    /// Decodes `data`, the whole block 0.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let block_shift = block_shift(data.len())?;
        let word = |at: usize| le64(data, at).ok_or_else(|| Error::truncated("fat ZAP header"));
        if word(0)? != HEADER_BLOCK || word(8)? != MAGIC {
            return Err(bad(format!("block type {:#x}, magic {:#x}", word(0)?, word(8)?)));
        }
        let (first_block, blocks, shift) = (word(16)?, word(24)?, word(32)?);
        // Entries in one external block, and in the half of this block that may hold the table.
        let (per_block, embedded) = (block_shift - 3, block_shift - 4);
        let held = match blocks {
            0 => embedded,
            count if count.is_power_of_two() => per_block + count.trailing_zeros(),
            count => return Err(bad(format!("a pointer table of {count} blocks"))),
        };
        if shift != u64::from(held) || held > 48 {
            return Err(bad(format!("{blocks} blocks of pointer table with shift {shift}")));
        }
        if (blocks == 0) != (first_block == 0) || first_block.checked_add(blocks).is_none() {
            return Err(bad(format!("{blocks} blocks of pointer table from {first_block}")));
        }
        Ok(Self {
            table: PointerTable {
                first_block,
                blocks,
                shift: held,
                next_block: word(40)?,
                blocks_copied: word(48)?,
            },
            free_block: word(56)?,
            leaves: word(64)?,
            entries: word(72)?,
            settings: KeySettings {
                salt: word(80)?,
                normalization: Normalization(word(88)?),
                flags: word(96)?,
            },
            block_shift,
        })
    }

    /// Writes the header over the first 104 bytes of `data`, leaving the table alone.
    pub fn encode_into(&self, data: &mut [u8]) -> Result<()> {
        let words = [
            HEADER_BLOCK,
            MAGIC,
            self.table.first_block,
            self.table.blocks,
            u64::from(self.table.shift),
            self.table.next_block,
            self.table.blocks_copied,
            self.free_block,
            self.leaves,
            self.entries,
            self.settings.salt,
            self.settings.normalization.0,
            self.settings.flags,
        ];
        for (index, word) in words.iter().enumerate() {
            put_le64(data, index * 8, *word).ok_or_else(|| Error::truncated("fat ZAP header"))?;
        }
        Ok(())
    }

    /// A fresh ZAP with one leaf in block 1: its block 0.
    pub fn fresh(block_shift: u32, settings: KeySettings) -> Result<(Self, Vec<u8>)> {
        let size = 1_usize.checked_shl(block_shift).unwrap_or(0);
        self::block_shift(size)?;
        let header = Self {
            table: PointerTable { shift: block_shift - 4, ..PointerTable::default() },
            free_block: 2,
            leaves: 1,
            entries: 0,
            settings,
            block_shift,
        };
        let mut data = vec![0; size];
        header.encode_into(&mut data)?;
        for at in (size / 2..size).step_by(8) {
            put_le64(&mut data, at, 1).ok_or_else(|| Error::truncated("fat ZAP header"))?;
        }
        Ok((header, data))
    }

    /// Number of pointers in the table.
    pub fn pointers(&self) -> u64 {
        1 << self.table.shift
    }

    /// Where the table keeps the pointer to the leaf of `hash`.
    pub fn slot(&self, hash: u64) -> PointerSlot {
        self.slot_of_index(self.index_of(hash))
    }

    /// The table's index for `hash`.
    pub fn index_of(&self, hash: u64) -> u64 {
        hash.checked_shr(64 - self.table.shift).unwrap_or(0)
    }

    /// Where the table keeps pointer `index`, which must be below [`Self::pointers`].
    pub fn slot_of_index(&self, index: u64) -> PointerSlot {
        let per_block = self.block_shift - 3;
        let in_block = usize::try_from(index & ((1 << per_block) - 1)).unwrap_or(0);
        match self.table.blocks {
            0 => PointerSlot { block: 0, offset: (1 << (self.block_shift - 1)) + in_block * 8 },
            _ => PointerSlot {
                block: self.table.first_block.saturating_add(index >> per_block),
                offset: in_block * 8,
            },
        }
    }
}
