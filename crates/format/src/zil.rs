//! The intent log: what a crash would otherwise lose, as a chain of blocks full of records.
//!
//! Chapter 05, sections 16 and 17. The header lives in the object set; blocks announce their byte
//! order by their magic, so the generic swap of blocks by type must leave log blocks alone. The
//! checksum of a log block needs an algorithm and is verified by whoever reads it; [`LogBlock`] says
//! what it covers.
//!
//! Invariant: decoding terminates and allocates no more than a small multiple of its input.

mod block;
mod create;
mod fields;
mod record;
#[cfg(test)]
mod tests;

pub use block::{CHAIN_SIZE, Chain, LogBlock, Raw, next_verifier};
pub use create::{AclParts, Create, Created, ExtendedAttributes};
pub use record::{
    LogId, Payload, RECORD_HEADER, Record, RenameKind, SetAttributes, Whiteout, mask_freebsd,
    mask_linux,
};

use crate::bytes::{le64, put, put_le64, slice};
use crate::objset::ZIL_HEADER;
use crate::{BlockPointer, Error, Result, Txg, blkptr};

/// Header flag: records wait to be replayed.
pub const REPLAY_NEEDED: u64 = 1;
/// Header flag: `claim_record_seq` is valid.
pub const CLAIM_RECORD_SEQ_VALID: u64 = 2;

/// The log's header in an object set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// Transaction group in which the chain was claimed; 0 if it was not.
    pub claim_txg: Txg,
    /// Highest replayed record sequence number.
    pub replay_seq: u64,
    /// First block; a hole means there is no log.
    pub log: BlockPointer,
    /// Last claimed block sequence number.
    pub claim_block_seq: u64,
    /// [`REPLAY_NEEDED`], [`CLAIM_RECORD_SEQ_VALID`].
    pub flags: u64,
    /// Last claimed record sequence number.
    pub claim_record_seq: u64,
}

impl Header {
    /// Decodes the header as it stands in a decoded object set (little-endian).
    pub fn decode(data: &[u8]) -> Result<Self> {
        let short = || Error::truncated("intent-log header");
        let word = |at: usize| le64(data, at).ok_or_else(short);
        let log = slice(data, 16, blkptr::SIZE).ok_or_else(short)?;
        Ok(Self {
            claim_txg: Txg(word(0)?),
            replay_seq: word(8)?,
            log: BlockPointer::decode(log)?,
            claim_block_seq: word(144)?,
            flags: word(152)?,
            claim_record_seq: word(160)?,
        })
    }

    /// The header's bytes.
    pub fn encode(&self) -> Result<[u8; ZIL_HEADER]> {
        let short = || Error::truncated("intent-log header");
        let mut out = [0; ZIL_HEADER];
        for (at, word) in [
            (0, self.claim_txg.0),
            (8, self.replay_seq),
            (144, self.claim_block_seq),
            (152, self.flags),
            (160, self.claim_record_seq),
        ] {
            put_le64(&mut out, at, word).ok_or_else(short)?;
        }
        put(&mut out, 16, &self.log.encode()).ok_or_else(short)?;
        Ok(out)
    }
}
