//! Encrypting log blocks with a dataset's keys.
//!
//! Chapter 05, section 19. Invariant: which bytes are encrypted follows from bytes that are not, so
//! that a reader finds the same ones; a block whose MAC does not match gives nothing.

use std::ops::Range;

use cenote_codec::cipher::CipherError;
use cenote_format::BlockPointer;
use cenote_format::bytes::{ByteOrder, le64};
use cenote_format::zil::{CHAIN_SIZE, LogBlock, RECORD_HEADER};

use super::LogCipher;
use super::block::{TYPE_WRITE, WRITE_HEADER};
use crate::keys::DatasetKeys;
use crate::{Error, ErrorKind, Result};

/// Bit of a pointer's properties: the block is encrypted.
const CRYPT: u64 = 1 << 61;
/// Bytes of the chain structure that are authenticated: all but magic and checksum.
const CHAIN_AUTHENTICATED: usize = 144;
/// Where the MAC stands: the last two words of the checksum.
const MAC: Range<usize> = 168..184;
/// Record type of a cloned range.
const TYPE_CLONE: u64 = 24;
/// Where a record's plain pointers begin.
const POINTERS: usize = 64;
/// Bits of the type that are not flags.
const TYPE_MASK: u64 = (1 << 63) - 1;

/// Authenticated bytes, and the ranges that are encrypted.
struct Parts {
    authenticated: Vec<u8>,
    encrypted: Vec<Range<usize>>,
}

fn damaged() -> Error {
    Error::corrupt("an encrypted log block whose records do not add up")
}

fn failed(error: CipherError) -> Error {
    Error::new(ErrorKind::Checksum, format!("encrypted log block: {error}"))
}

/// Takes a block with records in `records` apart.
fn parts(block: &[u8], records: Range<usize>, order: ByteOrder) -> Result<Parts> {
    let chain = block.get(..CHAIN_AUTHENTICATED).ok_or_else(damaged)?;
    let mut parts = Parts { authenticated: chain.to_vec(), encrypted: Vec::new() };
    let mut at = records.start;
    while at < records.end {
        let rest = block.get(at..records.end).ok_or_else(damaged)?;
        let kind = order.u64(rest, 0).ok_or_else(damaged)? & TYPE_MASK;
        let len = order.u64(rest, 8).and_then(|len| usize::try_from(len).ok());
        let record = len
            .filter(|len| *len >= RECORD_HEADER && len % 8 == 0)
            .and_then(|len| rest.get(..len))
            .ok_or_else(damaged)?;
        let end = at + record.len();
        let header = record.get(..RECORD_HEADER).ok_or_else(damaged)?;
        parts.authenticated.extend_from_slice(header);
        let plain = match kind {
            TYPE_WRITE => POINTERS..WRITE_HEADER,
            TYPE_CLONE => POINTERS..record.len(),
            _ => record.len()..record.len(),
        };
        let pointers = record.get(plain.clone()).ok_or_else(damaged)?;
        parts.authenticated.extend_from_slice(pointers);
        parts.encrypted.push(at + RECORD_HEADER..at + plain.start);
        parts.encrypted.push(at + plain.end..end);
        at = end;
    }
    parts.encrypted.retain(|range| !range.is_empty());
    Ok(parts)
}

impl LogCipher for DatasetKeys {
    fn prepare(&self, pointer: &mut BlockPointer) -> Result<()> {
        let (salt, iv) = self.new_parameters()?;
        let words = &mut pointer.words;
        let (head, tail) = iv.split_at(8);
        let fill = tail.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
        words[4] = u64::from_le_bytes(salt);
        words[5] = le64(head, 0).ok_or_else(damaged)?;
        words[6] |= CRYPT;
        words[11] = fill << 32;
        Ok(())
    }

    fn seal(&self, pointer: &BlockPointer, block: &mut [u8], used: usize) -> Result<()> {
        let parts = parts(block, CHAIN_SIZE..used, ByteOrder::Little)?;
        let cipher = self.cipher(pointer.salt())?;
        let mac = cipher
            .seal_segments(&pointer.iv(), &parts.authenticated, block, &parts.encrypted)
            .map_err(failed)?;
        block.get_mut(MAC).ok_or_else(damaged)?.copy_from_slice(&mac);
        Ok(())
    }

    fn open(&self, pointer: &BlockPointer, block: &mut [u8]) -> Result<()> {
        let decoded = LogBlock::decode(block, pointer)?;
        let parts = parts(block, decoded.records, decoded.order)?;
        let mut mac = [0; 16];
        // Of the older kind of block the chain stands at the end; those are never encrypted.
        mac.copy_from_slice(block.get(MAC).ok_or_else(damaged)?);
        let cipher = self.cipher(pointer.salt())?;
        cipher
            .open_segments(&pointer.iv(), &parts.authenticated, block, &parts.encrypted, &mac)
            .map_err(failed)
    }
}
