//! ZAP objects: maps from names (or arrays of words) to arrays of integers.
//!
//! Chapter 04, sections 10-17. A ZAP is one micro block, or a fat one: a header with a table of
//! pointers, and leaves. Invariant: everything here works on single blocks in little-endian form
//! (see [`crate::byteswap`]); no function follows a link more often than its block has chunks.

pub mod cursor;
pub mod fat;
pub mod hash;
pub mod leaf;
pub mod leaf_build;
pub mod micro;
mod normal_form;
pub mod normalize;
mod unicode_5_0;
mod value;

#[cfg(test)]
mod tests;

pub use cursor::Cursor;
pub use fat::FatHeader;
pub use hash::{HashWidth, KeySettings};
pub use leaf::{Leaf, LeafEntry};
pub use leaf_build::LeafBuilder;
pub use micro::{Micro, MicroBuilder, MicroEntry, MicroIndex};
pub use normalize::{MatchKind, Normalization};
pub use value::Value;

use crate::bytes::le64;

/// First word of a micro ZAP block.
pub const MICRO_BLOCK: u64 = 0x8000_0000_0000_0003;
/// First word of a fat ZAP header block.
pub const HEADER_BLOCK: u64 = 0x8000_0000_0000_0001;
/// First word of a fat ZAP leaf block.
pub const LEAF_BLOCK: u64 = 0x8000_0000_0000_0000;
/// Most bytes of one value.
pub const MAX_VALUE_BYTES: usize = 8192;
/// Most bytes of a name without its NUL (255 without the `longname` feature).
pub const MAX_NAME_BYTES: usize = 1023;

/// What block 0 of a ZAP object says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One block of 64-byte chunks.
    Micro,
    /// Header, pointer table and leaves.
    Fat,
}

impl Kind {
    /// The kind of the ZAP whose block 0 is `data`; `None` if it is no ZAP.
    pub fn of(data: &[u8]) -> Option<Self> {
        match le64(data, 0)? {
            MICRO_BLOCK => Some(Self::Micro),
            HEADER_BLOCK => Some(Self::Fat),
            _ => None,
        }
    }
}
