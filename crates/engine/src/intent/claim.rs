//! Claiming a log when a pool is imported for writing: its blocks are in no space map yet.
//!
//! Chapter 05, section 18. Invariant: nothing is allocated in the pool before every log is claimed,
//! and a claimed log is exactly the part that will be replayed. Where it is not known how far a log
//! goes, nothing is claimed.

use std::cell::RefCell;

use cenote_format::zil::{CLAIM_RECORD_SEQ_VALID, Header, REPLAY_NEEDED};
use cenote_format::{BlockPointer, Txg, Uberblock};

use super::LogReader;
use super::walk::{Met, cloned_blocks, data_block, walk};
use crate::Result;

/// Who marks blocks as allocated.
pub trait Claimer {
    /// Whether the data behind a record's pointer was written; it need not be decrypted. An error
    /// says that it is not known: a device does not answer.
    fn is_written(&self, pointer: &BlockPointer) -> Result<bool>;
    /// Marks all addresses of a block, those of a gang's parts included, as allocated.
    fn claim(&self, pointer: &BlockPointer) -> Result<()>;
    /// Has every device that should hold the block hold it, as far as it is written: it was written
    /// outside of any group, and no dirty time log tells who missed it.
    fn complete(&self, pointer: &BlockPointer);
    /// Counts one reference more to a block that is in use.
    fn refer(&self, pointer: &BlockPointer) -> Result<()>;
}

/// Log blocks born from this transaction group on are in no space map of the state behind `uberblock`.
pub fn first_unclaimed(uberblock: &Uberblock) -> Txg {
    match uberblock.checkpoint_txg {
        0 => Txg(uberblock.txg.0.saturating_add(1)),
        // It leads to what a checkpoint held.
        txg => Txg(txg.saturating_add(1)),
    }
}

/// Blocks of the log behind `header` that are in the space maps of the state a pool is taken back to, which are those
/// born before group `first`: the rest of the log came after that state and says nothing of it.
pub fn blocks_before(
    reader: &dyn LogReader,
    header: &Header,
    first: Txg,
) -> Result<Vec<BlockPointer>> {
    let mut blocks = Vec::new();
    walk(reader, header, None, |met| {
        if let Met::Block(pointer) = met {
            if pointer.validate().is_err() || pointer.logical_birth() >= first {
                return Ok(false);
            }
            blocks.push(*pointer);
        }
        Ok(true)
    })?;
    Ok(blocks)
}

/// Claims the log behind `header`, of which what was born in group `first` or later is in no space map.
/// Returns the header to be written in the next group; `None` if there is nothing to claim.
pub fn claim(
    reader: &dyn LogReader,
    claimer: &dyn Claimer,
    header: &Header,
    first: Txg,
) -> Result<Option<Header>> {
    if header.log.is_hole() || header.claim_txg.0 != 0 {
        return Ok(None);
    }
    // An address is claimed once, however often records name it.
    let claimed = RefCell::new(std::collections::HashSet::new());
    let claim = |pointer: &BlockPointer| -> Result<()> {
        let address = pointer.first_dva().map(|dva| (dva.vdev, dva.offset));
        let new = address.is_some_and(|address| claimed.borrow_mut().insert(address));
        if new && pointer.logical_birth() >= first {
            claimer.claim(pointer)?;
        }
        // One that was allocated before the last group may have been written after it.
        if new {
            claimer.complete(pointer);
        }
        Ok(())
    };
    let ended = walk(reader, header, None, |met| {
        match met {
            Met::Block(pointer) => {
                if pointer.validate().is_err() {
                    return Ok(false);
                }
                claim(pointer)?;
            }
            Met::Record(record) => {
                let cloned = cloned_blocks(&record);
                // What is cloned was on the disks before; all records count, as in OpenZFS, which
                // may be the one to free the log.
                let is_later = |pointer: &BlockPointer| pointer.logical_birth() >= first;
                if cloned.iter().any(|pointer| pointer.validate().is_err() || is_later(pointer)) {
                    return Ok(false);
                }
                cloned.iter().try_for_each(|pointer| claimer.refer(pointer))?;
                if let Some(pointer) = data_block(&record) {
                    if pointer.validate().is_err() {
                        return Ok(false);
                    }
                    if pointer.logical_birth() >= first {
                        if !claimer.is_written(&pointer)? {
                            return Ok(false);
                        }
                        claim(&pointer)?;
                    }
                }
            }
        }
        Ok(true)
    })?;
    let replay = ended.records > 0 || ended.blocks > 1;
    Ok(Some(Header {
        claim_txg: first,
        claim_block_seq: ended.block_seq,
        claim_record_seq: ended.record_seq,
        flags: CLAIM_RECORD_SEQ_VALID | if replay { REPLAY_NEEDED } else { 0 },
        ..*header
    }))
}
