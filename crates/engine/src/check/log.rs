//! The blocks of intent logs.
//!
//! Invariant: a chain ends: every block is the one before's successor by sequence number, and no
//! address is visited twice.

use std::collections::HashSet;

use cenote_format::zil::{Header, LogBlock};
use cenote_format::{BlockPointer, Txg};

use crate::intent::{cloned_blocks, data_block};
use crate::pipe::Pipe;

/// Most blocks of a chain.
const BLOCKS_MAX: usize = 1 << 22;

/// Calls `visit` with every block of the log behind `header` that the space maps know, and every
/// data block its records point at. `unclaimed` is the first txg whose log blocks they do not. A cloned block
/// belongs to others, unless it `is_of_log` alone.
pub(super) fn each_block(
    pipe: &Pipe,
    header: &Header,
    unclaimed: Txg,
    is_of_log: impl Fn(&BlockPointer) -> bool,
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
            if !claimed {
                continue;
            }
            let written = data_block(&record).filter(|it| it.logical_birth() >= header.claim_txg);
            let cloned = cloned_blocks(&record).into_iter().filter(|it| is_of_log(it));
            for data in written.into_iter().chain(cloned) {
                if data.validate().is_ok() && first_visit(&data) {
                    visit(&data);
                }
            }
        }
        (block_seq, bp) = (sequence, block.chain.next);
    }
}
