//! One block of the log: its chain structure and the records in it.
//!
//! Chapter 05, section 16.2.

use std::ops::Range;

use super::fields::{pointer, push_words};
use super::record::{RECORD_HEADER, Record};
use crate::bytes::{ByteOrder, slice};
use crate::{BlockPointer, Error, Result, blkptr};

/// Bytes of the chain structure.
pub const CHAIN_SIZE: usize = 184;
/// Blocks of the newer kind are written and checksummed in multiples of this.
const UNIT: usize = 4096;
/// Identifies a log block and its byte order.
const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Checksum id of the newer kind, chain at the start of the block.
const ZILOG2: u8 = 9;
/// Checksum id of the older kind, chain at the end of the block.
const ZILOG: u8 = 5;

/// The chain structure of a log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Next block of the chain; a hole ends it.
    pub next: BlockPointer,
    /// Bytes in use: with the chain structure in the newer kind, without it in the older.
    pub used: u64,
    /// Stored checksum.
    pub checksum: [u64; 4],
}

impl Chain {
    /// The chain's bytes, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(CHAIN_SIZE);
        push_words(&mut out, &[0]);
        out.extend_from_slice(&self.next.encode());
        push_words(&mut out, &[self.used, MAGIC]);
        push_words(&mut out, &self.checksum);
        out
    }
}

/// A record as it stands in a log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'a> {
    /// The whole record, header included.
    pub data: &'a [u8],
    /// Its byte order.
    pub order: ByteOrder,
}

/// A log block with a credible chain structure; its checksum is not verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBlock {
    /// Byte order of the block.
    pub order: ByteOrder,
    /// The chain structure.
    pub chain: Chain,
    /// Bytes the checksum covers.
    pub covered: Range<usize>,
    /// Where the 32-byte checksum field is; the verifier takes its place during verification.
    pub checksum_at: usize,
    /// Where the records are.
    pub records: Range<usize>,
}

impl LogBlock {
    /// Understands `data`, the whole block behind `pointer`.
    pub fn decode(data: &[u8], pointer_to_it: &BlockPointer) -> Result<Self> {
        let bad = |reason: &str| Error::new("intent-log block", reason.to_owned());
        let short = || Error::truncated("intent-log block");
        let at = match pointer_to_it.checksum_id() {
            ZILOG2 => 0,
            ZILOG => data.len().checked_sub(CHAIN_SIZE).ok_or_else(short)?,
            other => return Err(bad(&format!("checksum {other} is not one of a log block"))),
        };
        let raw = slice(data, at, CHAIN_SIZE).ok_or_else(short)?;
        let magic = ByteOrder::Little.u64(raw, 144).ok_or_else(short)?;
        let order = match magic {
            MAGIC => ByteOrder::Little,
            _ if magic.swap_bytes() == MAGIC => ByteOrder::Big,
            _ => return Err(bad("no magic: never written")),
        };
        let word = |at: usize| order.u64(raw, at).ok_or_else(short);
        let chain = Chain {
            next: pointer(slice(raw, 8, blkptr::SIZE).ok_or_else(short)?, order)?,
            used: word(136)?,
            checksum: [word(152)?, word(160)?, word(168)?, word(176)?],
        };
        let used = usize::try_from(chain.used).unwrap_or(usize::MAX);
        let (covered, records) = if at == 0 {
            if !(CHAIN_SIZE..=data.len()).contains(&used) {
                return Err(bad(&format!("{used} bytes used of {}", data.len())));
            }
            (0..used.next_multiple_of(UNIT).min(data.len()), CHAIN_SIZE..used)
        } else {
            if used > at {
                return Err(bad(&format!("{used} bytes used of {at}")));
            }
            (0..data.len(), 0..used)
        };
        let verifier = pointer_to_it.checksum();
        if !chain.next.is_hole() && chain.next.checksum() != next_verifier(verifier) {
            return Err(bad("the next pointer belongs to another chain"));
        }
        Ok(Self { order, chain, covered, checksum_at: at + 152, records })
    }

    /// The records of the block `data`; stops after an impossible length, which it yields as an
    /// error.
    pub fn raw_records<'a>(&self, data: &'a [u8]) -> impl Iterator<Item = Result<Raw<'a>>> + 'a {
        let order = self.order;
        let mut rest = data.get(self.records.clone()).unwrap_or(&[]);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let len = order.u64(rest, 8).and_then(|len| usize::try_from(len).ok());
            let split = len
                .filter(|len| *len >= RECORD_HEADER && len % 8 == 0)
                .and_then(|len| rest.split_at_checked(len));
            let Some((data, after)) = split else {
                rest = &[];
                return Some(Err(Error::new("intent-log block", "impossible record length")));
            };
            rest = after;
            Some(Ok(Raw { data, order }))
        })
    }
}

impl Raw<'_> {
    /// Decodes the record.
    pub fn decode(&self) -> Result<Record> {
        Record::decode(self.data, self.order)
    }
}

/// The verifier of the block after the one with `verifier`.
pub fn next_verifier(verifier: [u64; 4]) -> [u64; 4] {
    let [first, second, objset, sequence] = verifier;
    [first, second, objset, sequence.wrapping_add(1)]
}
