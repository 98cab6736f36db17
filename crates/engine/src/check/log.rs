//! The blocks of intent logs.
//!
//! Invariant: a chain ends: every block is the one before's successor by sequence number, and no
//! address is visited twice.

use std::collections::HashSet;

use cenote_format::bytes::ByteOrder;
use cenote_format::zil::{Header, LogBlock};
use cenote_format::{BlockPointer, Txg};

use crate::pipe::Pipe;

/// Record type of a write, whose data may be in a block of its own.
const WRITE: u64 = 9;
/// Bits of the type that are not flags.
const TYPE_MASK: u64 = (1 << 63) - 1;
/// Where a write record has the pointer to that block.
const WRITE_POINTER: usize = 64;
/// Most blocks of a chain.
const BLOCKS_MAX: usize = 1 << 22;

/// Calls `visit` with every block of the log behind `header` that the space maps know, and every
/// data block its records point at. `unclaimed` is the first txg whose log blocks they do not.
pub(super) fn each_block(
    pipe: &Pipe,
    header: &Header,
    unclaimed: Txg,
    mut visit: impl FnMut(&BlockPointer),
) {
    let claimed = header.claim_txg.0 != 0;
    let (last_block, last_record) = match claimed {
        true => (header.claim_block_seq, header.claim_record_seq),
        false => (u64::MAX, u64::MAX),
    };
    let mut seen = HashSet::new();
    let mut first_visit = |bp: &BlockPointer| {
        let address = bp.first_dva().map(|dva| (dva.vdev, dva.offset));
        address.is_some_and(|address| seen.len() < BLOCKS_MAX && seen.insert(address))
    };
    let mut bp = header.log;
    let (mut block_seq, mut record_seq) = (0, 0);
    while !bp.is_hole() && bp.validate().is_ok() {
        let [.., sequence] = bp.checksum();
        if sequence > last_block || (!claimed && bp.logical_birth() >= unclaimed) {
            return;
        }
        if !first_visit(&bp) {
            return;
        }
        visit(&bp);
        if record_seq == last_record && block_seq == last_block {
            return;
        }
        let Ok(Some(data)) = pipe.read_log_block(&bp) else { return };
        let Ok(block) = LogBlock::decode(&data, &bp) else { return };
        for record in block.raw_records(&data) {
            let Ok(record) = record else { return };
            let word = |at| record.order.u64(record.data, at).unwrap_or(0);
            if word(24) > last_record {
                return;
            }
            record_seq = word(24);
            if word(0) & TYPE_MASK != WRITE || !claimed {
                continue;
            }
            if let Some(data) = data_pointer(record.data, record.order)
                && !data.is_hole()
                && !data.is_embedded()
                && data.logical_birth() >= header.claim_txg
                && data.validate().is_ok()
                && first_visit(&data)
            {
                visit(&data);
            }
        }
        (block_seq, bp) = (sequence, block.chain.next);
    }
}

fn data_pointer(record: &[u8], order: ByteOrder) -> Option<BlockPointer> {
    let mut bp = BlockPointer::HOLE;
    for (index, word) in bp.words.iter_mut().enumerate() {
        *word = order.u64(record, WRITE_POINTER + index * 8)?;
    }
    Some(bp)
}
