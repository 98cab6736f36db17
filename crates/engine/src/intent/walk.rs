//! Following the chain of a log.
//!
//! Chapter 05, sections 16.2 and 18. Invariant: a walk ends: every block must carry the sequence
//! number after the one before, and no address is visited twice; what a header says was not claimed
//! is never given out. Only a block of which no copy is right ends a chain, and none that was
//! claimed; a device that does not answer is an error.

use std::collections::HashSet;

use cenote_format::BlockPointer;
use cenote_format::zil::{CLAIM_RECORD_SEQ_VALID, Header, LogBlock, Raw};

use super::{LogCipher, LogReader};
use crate::{Error, ErrorKind, Result};

/// Most blocks of a chain.
const MOST_BLOCKS: u64 = 1 << 22;

/// Where a walk came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Blocks that were given out.
    pub blocks: u64,
    /// Sequence number of the last of them.
    pub block_seq: u64,
    /// Records that were given out.
    pub records: u64,
    /// Sequence number of the last of them.
    pub record_seq: u64,
}

/// What is met on a walk.
#[derive(Clone, Copy, Debug)]
pub enum Met<'a> {
    /// A block, before it is read: it may never have been written.
    Block(&'a BlockPointer),
    /// A record.
    Record(Raw<'a>),
}

/// Gives `visit` every block of the log behind `header` and the records in it, in order, until
/// there are no more or `visit` answers false. With a cipher the records are decrypted.
pub fn walk(
    reader: &dyn LogReader,
    header: &Header,
    cipher: Option<&dyn LogCipher>,
    mut visit: impl FnMut(Met<'_>) -> Result<bool>,
) -> Result<Ended> {
    let claimed = header.claim_txg.0 != 0;
    let last_block = if claimed { header.claim_block_seq } else { u64::MAX };
    let known = claimed && header.flags & CLAIM_RECORD_SEQ_VALID != 0;
    let last_record = if known { header.claim_record_seq } else { u64::MAX };
    let mut ended = Ended::default();
    let mut seen = HashSet::new();
    let mut pointer = header.log;
    while !pointer.is_hole() && ended.blocks < MOST_BLOCKS {
        let [.., sequence] = pointer.checksum();
        let address = pointer.first_dva().map(|dva| (dva.vdev, dva.offset));
        let new = address.is_some_and(|address| seen.insert(address));
        if sequence > last_block || !new || !visit(Met::Block(&pointer))? {
            break;
        }
        (ended.blocks, ended.block_seq) = (ended.blocks + 1, sequence);
        if ended.block_seq == last_block && ended.record_seq == last_record {
            break;
        }
        let data = match reader.read_log_block(&pointer) {
            Err(error) if !reader.accepts_losses() => return Err(error.at_pointer(&pointer)),
            data => data.ok().flatten(),
        };
        let block = data.and_then(|data| Some((LogBlock::decode(&data, &pointer).ok()?, data)));
        let Some((block, data)) = block else {
            // The end of the chain is a block that was never written. What was claimed was read
            // once, and with it all records up to the last that was claimed.
            let was_there =
                claimed && (sequence < last_block || (known && ended.record_seq < last_record));
            if was_there && !reader.accepts_losses() {
                let reason =
                    format!("block {sequence} of the intent log is damaged on all devices");
                return Err(Error::new(ErrorKind::Checksum, reason).at_pointer(&pointer));
            }
            break;
        };
        let mut opened = Vec::new();
        let data = match cipher.filter(|_| pointer.is_crypt()) {
            Some(cipher) => {
                opened.extend_from_slice(&data);
                cipher.open(&pointer, &mut opened)?;
                opened.as_slice()
            }
            None => &data,
        };
        for record in block.raw_records(data) {
            let Ok(record) = record else { return Ok(ended) };
            let sequence = record.order.u64(record.data, 24).unwrap_or(u64::MAX);
            if sequence > last_record || !visit(Met::Record(record))? {
                return Ok(ended);
            }
            (ended.records, ended.record_seq) = (ended.records + 1, sequence);
        }
        pointer = block.chain.next;
    }
    Ok(ended)
}

/// Record type of a write, whose data may be in a block of its own.
const WRITE: u64 = 9;
/// Record type of a cloned range.
const CLONE: u64 = 24;
/// Where a write record has the pointer to that block.
const WRITE_POINTER: usize = 64;
/// Where a record of a cloned range has the number of its pointers, and these.
const CLONE_COUNT: usize = 64;
const CLONE_POINTERS: usize = 72;
/// Bits of the type that are not flags.
const TYPE_MASK: u64 = (1 << 63) - 1;

fn kind(record: &Raw<'_>) -> u64 {
    record.order.u64(record.data, 0).unwrap_or(0) & TYPE_MASK
}

/// The block a write record points at, if it points at one on the disks.
pub fn data_block(record: &Raw<'_>) -> Option<BlockPointer> {
    if kind(record) != WRITE {
        return None;
    }
    let mut pointer = BlockPointer::HOLE;
    for (index, word) in pointer.words.iter_mut().enumerate() {
        *word = record.order.u64(record.data, WRITE_POINTER + index * 8)?;
    }
    Some(pointer).filter(|pointer| !pointer.is_hole() && !pointer.is_embedded())
}

/// The blocks that a record clones, as far as they are on the disks.
pub fn cloned_blocks(record: &Raw<'_>) -> Vec<BlockPointer> {
    let word = |at: usize| record.order.u64(record.data, at);
    let count = word(CLONE_COUNT).filter(|_| kind(record) == CLONE).unwrap_or(0);
    let all = (0..count).map_while(|number| {
        let start =
            usize::try_from(number).ok()?.checked_mul(BlockPointer::HOLE.words.len() * 8)?;
        let mut pointer = BlockPointer::HOLE;
        for (index, place) in pointer.words.iter_mut().enumerate() {
            *place = word(start.checked_add(CLONE_POINTERS + index * 8)?)?;
        }
        Some(pointer)
    });
    all.filter(|pointer| !pointer.is_hole() && !pointer.is_embedded()).collect()
}
