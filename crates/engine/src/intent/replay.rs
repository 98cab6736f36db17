//! Replaying a claimed log, and freeing it.
//!
//! Chapter 05, section 18. Invariant: records are applied in order and each at most once: the group
//! that holds what a record did also holds, in the log's header, that it was done.

use bytes::Bytes;
use cenote_format::BlockPointer;
use cenote_format::zil::{Header, Payload, REPLAY_NEEDED, Record};

use super::walk::{Met, cloned_blocks, data_block, walk};
use super::{IntentLog, LogReader};
use crate::pipe::zeros;
use crate::{Error, Result};

/// Most bytes that one record clones: a log block has room for so many pointers.
const MOST_CLONED: u64 = 1024 * (128 << 10);

/// What cloned blocks of `size` bytes hold, one after the other.
fn read_all(reader: &dyn LogReader, size: u64, blocks: &[BlockPointer]) -> Result<Bytes> {
    let length = size.checked_mul(blocks.len() as u64).filter(|length| *length <= MOST_CLONED);
    let length = length.and_then(|length| usize::try_from(length).ok());
    let mut all = Vec::with_capacity(length.ok_or_else(|| Error::corrupt("a clone that long"))?);
    for pointer in blocks {
        let data = if pointer.is_hole() { zeros(size) } else { reader.read_data(pointer)? };
        if data.len() as u64 != size {
            return Err(Error::corrupt("a cloned block of another size").at_pointer(pointer));
        }
        all.extend_from_slice(&data);
    }
    Ok(all.into())
}

/// What is to be freed of the claimed log behind `header` when it goes: its blocks, the data its
/// records point at, and the references they hold.
pub fn log_blocks(reader: &dyn LogReader, header: &Header) -> Result<Vec<BlockPointer>> {
    let mut blocks: Vec<BlockPointer> = Vec::new();
    let mut cloned: Vec<BlockPointer> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut add = |pointer: &BlockPointer| {
        let address = pointer.first_dva().map(|dva| (dva.vdev, dva.offset));
        if address.is_some_and(|address| seen.insert(address)) {
            blocks.push(*pointer);
        }
    };
    walk(reader, header, None, |met| {
        match met {
            Met::Block(pointer) => add(pointer),
            Met::Record(record) => {
                if let Some(pointer) = data_block(&record)
                    && pointer.logical_birth() >= header.claim_txg
                {
                    add(&pointer);
                }
                // Each of these has the reference that the claim gave it.
                cloned.extend(cloned_blocks(&record));
            }
        }
        Ok(true)
    })?;
    blocks.extend(cloned);
    Ok(blocks)
}

/// Who applies records: a file system or a volume.
pub trait Replay {
    /// Whether there is an object of that number.
    fn exists(&self, object: u64) -> Result<bool>;
    /// Does what the record says, in one transaction whose change it appends to the log as always:
    /// while a log is replayed, appending notes that the record is done. `block` is what a write
    /// without data points at: the whole block of the file around its offset, which is written from
    /// the offset rounded down to the block's length on; the file grows at most to the end of the
    /// record's range. Of cloned blocks it is what all of them hold, from the record's offset on.
    fn apply(&self, record: &Record, block: Option<&Bytes>) -> Result<()>;
    /// Does what a record of a cloned range says by sharing the blocks, as [`Self::apply`] otherwise.
    /// They stay in use until the log is freed. `false` if they cannot be shared: nothing was changed,
    /// and the record is to be applied with what they hold.
    fn share(&self, _record: &Record) -> Result<bool> {
        Ok(false)
    }
}

/// How a replay ended.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Records that were applied.
    pub applied: u64,
    /// Records that were done before, or whose object is gone.
    pub skipped: u64,
    /// Why it stopped before the end. The log is kept as it is: what is left can be replayed when
    /// the cause is gone, and until then nobody may change the dataset. Where losses are accepted,
    /// the rest of the log is lost.
    pub failure: Option<Error>,
}

impl IntentLog {
    /// Applies what an earlier life of the pool left in the log, then frees that. The caller holds
    /// no transaction. A record that fails is tried once more after its group was written; if it
    /// fails again, or the log cannot be read, the log stays.
    pub fn replay(&self, reader: &dyn LogReader, target: &dyn Replay) -> Result<Replayed> {
        let header = self.old_header();
        let mut report = Replayed::default();
        if header.log.is_hole() {
            return Ok(report);
        }
        if header.claim_txg.0 == 0 {
            return Err(Error::invalid("a log that was not claimed cannot be replayed"));
        }
        if header.flags & REPLAY_NEEDED != 0 {
            let cipher = self.cipher().cloned();
            let walked = walk(reader, &header, cipher.as_deref(), |met| {
                let Met::Record(raw) = met else { return Ok(true) };
                let done = raw
                    .decode()
                    .map_err(Error::from)
                    .and_then(|record| self.replay_one(reader, target, &header, &record));
                match done {
                    Ok(true) => report.applied += 1,
                    Ok(false) => report.skipped += 1,
                    Err(error) => {
                        report.failure = Some(error);
                        return Ok(false);
                    }
                }
                Ok(true)
            });
            self.set_replaying(None);
            if let Err(error) = walked {
                report.failure.get_or_insert(error);
            }
        }
        if report.failure.is_none() || reader.accepts_losses() {
            report.failure = self.discard(reader).err().or(report.failure);
        }
        Ok(report)
    }

    /// Frees a claimed log without replaying it.
    pub fn discard(&self, reader: &dyn LogReader) -> Result<()> {
        let header = self.old_header();
        if header.log.is_hole() {
            return Ok(());
        }
        self.free_old(log_blocks(reader, &header)?)
    }

    /// Applies one record; false if it was left out.
    fn replay_one(
        &self,
        reader: &dyn LogReader,
        target: &dyn Replay,
        header: &Header,
        record: &Record,
    ) -> Result<bool> {
        if record.sequence <= header.replay_seq || record.txg < header.claim_txg {
            return Ok(false);
        }
        if let Payload::Unknown(kind) = record.payload {
            return Err(Error::unsupported(format!("an intent-log record of type {kind}")));
        }
        if let Some(object) = any_order(&record.payload)
            && !target.exists(object)?
        {
            return Ok(false);
        }
        self.set_replaying(Some(record.sequence));
        let is_clone = matches!(record.payload, Payload::CloneRange { .. });
        // What is in its way may be in the way of copying, too: that tells why.
        if is_clone && target.share(record).unwrap_or(false) {
            return Ok(true);
        }
        let block = match &record.payload {
            Payload::Write { block, data: None, .. } => Some(reader.read_data(block)?),
            Payload::CloneRange { block_size, blocks, .. } => {
                Some(read_all(reader, *block_size, blocks)?)
            }
            _ => None,
        };
        let apply = || target.apply(record, block.as_ref());
        if let Err(error) = apply() {
            tracing::info!(%error, sequence = record.sequence, "a record of the log fails");
            self.not_replayed(record.sequence)?;
            // What is in its way may be a change that is still being written.
            let txg = self.pool().begin()?.txg();
            self.pool().wait_synced(txg)?;
            if let Err(error) = apply() {
                self.not_replayed(record.sequence)?;
                return Err(error);
            }
        }
        // A record that changed nothing made no transaction.
        let tx = self.pool().begin()?;
        self.note_replayed(&tx);
        Ok(true)
    }
}

/// The object of a record that may come after the object is gone.
fn any_order(payload: &Payload) -> Option<u64> {
    match payload {
        Payload::Write { object, .. }
        | Payload::WriteExtend { object, .. }
        | Payload::Truncate { object, .. }
        | Payload::SetOldAcl { object, .. }
        | Payload::SetAcl { object, .. }
        | Payload::SetXattr { object, .. }
        | Payload::CloneRange { object, .. } => Some(*object),
        Payload::SetAttributes(set) => Some(set.object),
        _ => None,
    }
}
