//! The compressions by their ids on disk (chapter 02, section 7.1).
//!
//! Invariant: [`Algorithm`] is what a block pointer can say, enough to decompress; [`Method`] adds
//! what a writer must choose.

use super::ZstdLevel;

/// How the block a pointer names is compressed, from bits 32..38 of its property word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Id 2: stored as it is.
    Off,
    /// Id 3.
    Lzjb,
    /// Ids 5 to 13: gzip-1 to gzip-9. The level does not matter to a reader.
    Gzip(u8),
    /// Id 14: runs of zeros.
    Zle,
    /// Id 15.
    Lz4,
    /// Id 16.
    Zstd,
}

impl Algorithm {
    /// The algorithm with this id. `None` for 0 (inherit), 1 (on) and 4 (empty), which are
    /// properties and policies and stand in no pointer to stored bytes, and for unknown ids.
    pub fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            2 => Self::Off,
            3 => Self::Lzjb,
            5..=13 => Self::Gzip(id - 4),
            14 => Self::Zle,
            15 => Self::Lz4,
            16 => Self::Zstd,
            _ => return None,
        })
    }

    /// The id on disk.
    pub fn id(self) -> u8 {
        match self {
            Self::Off => 2,
            Self::Lzjb => 3,
            Self::Gzip(level) => 4 + level.clamp(1, 9),
            Self::Zle => 14,
            Self::Lz4 => 15,
            Self::Zstd => 16,
        }
    }

    /// The name shown to users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Lzjb => "lzjb",
            Self::Gzip(..=1) => "gzip-1",
            Self::Gzip(2) => "gzip-2",
            Self::Gzip(3) => "gzip-3",
            Self::Gzip(4) => "gzip-4",
            Self::Gzip(5) => "gzip-5",
            Self::Gzip(6) => "gzip-6",
            Self::Gzip(7) => "gzip-7",
            Self::Gzip(8) => "gzip-8",
            Self::Gzip(9..) => "gzip-9",
            Self::Zle => "zle",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// A compression to write with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Byte for byte what the reference writes.
    Lzjb,
    /// At level 1 to 9.
    Gzip(u8),
    /// Byte for byte what the reference writes.
    Zle,
    /// Any decoder reads it; the bytes are not those of the reference.
    Lz4,
    /// At a level.
    Zstd(ZstdLevel),
}

impl Method {
    /// What a block pointer says of the result.
    pub fn algorithm(self) -> Algorithm {
        match self {
            Self::Lzjb => Algorithm::Lzjb,
            Self::Gzip(level) => Algorithm::Gzip(level),
            Self::Zle => Algorithm::Zle,
            Self::Lz4 => Algorithm::Lz4,
            Self::Zstd(_) => Algorithm::Zstd,
        }
    }
}
