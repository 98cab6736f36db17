//! Volumes: one object as a block device.
//!
//! Chapter 05, section 15. Invariant: nothing beyond the volume's size is ever given or taken; a
//! write and a read of the same bytes see each other whole or not at all.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cenote_engine::intent::Replay;
use cenote_engine::object::{Base, Object, ObjectSet};
use cenote_engine::txg::{Gate, Purpose, Reservation};
use cenote_engine::zap::{self, Value, Zap};
use cenote_engine::{Error, ErrorKind};
use cenote_format::ObjectId;
use cenote_format::objset::ObjsetKind;
use cenote_format::zil::{Payload, Record};
use parking_lot::RwLock;

use crate::error::{EINVAL, EIO, ENOSPC, EOPNOTSUPP, EROFS};
use crate::stream::Streams;
use crate::tree::{Errno, Pieces, Result};
use crate::write::{ChangeLog, Durability, SpaceCheck};

const DATA: ObjectId = ObjectId(1);
const PROPERTIES: ObjectId = ObjectId(2);

/// Key of the size in the properties.
const SIZE: &str = "size";
/// Bytes freed in one transaction group at most, in blocks.
const BLOCKS_AT_ONCE: u64 = 1 << 19;
/// Longest wait for a transaction group.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a volume is written with.
pub struct VolumeWriteOptions {
    /// Where changes begin.
    pub gate: Arc<Gate>,
    /// The intent log; without it, flushing waits for a transaction group.
    pub durability: Option<Arc<dyn Durability>>,
    /// Is told of changes.
    pub log: Option<Arc<dyn ChangeLog>>,
    /// Says whether there is space.
    pub space: Option<Arc<dyn SpaceCheck>>,
}

/// A volume or a snapshot of one.
pub struct Volume {
    data: Object,
    properties: Object,
    /// Held for looking while data is read, for changing while it is written.
    size: RwLock<u64>,
    streams: Streams,
    write: Option<VolumeWriteOptions>,
}

impl Volume {
    /// Opens the volume in `objects`.
    pub fn open(objects: &ObjectSet) -> Result<Self> {
        if objects.kind() != ObjsetKind::Zvol {
            let reason = format!("dataset object {} is no volume", objects.id());
            return Err(Errno::new(EINVAL, reason));
        }
        let properties = objects.object(PROPERTIES)?;
        let size = RwLock::new(Zap::open(properties.clone())?.require_u64(SIZE)?);
        let data = objects.object(DATA)?;
        Ok(Self { data, properties, size, streams: Streams::default(), write: None })
    }

    /// Opens the volume in the live set `objects`, to be written too.
    pub fn open_writable(objects: &ObjectSet, write: VolumeWriteOptions) -> Result<Self> {
        if !objects.is_live() {
            return Err(Errno::new(EROFS, "the volume was opened for reading only"));
        }
        Ok(Self { write: Some(write), ..Self::open(objects)? })
    }

    /// Whether it can be written.
    pub fn is_writable(&self) -> bool {
        self.write.is_some()
    }

    fn options(&self) -> Result<&VolumeWriteOptions> {
        self.write.as_ref().ok_or_else(|| Errno::new(EROFS, "the volume is read-only"))
    }

    /// Writes `data` at `offset`; all of it must lie within the volume.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let write = self.options()?;
        let len = data.len() as u64;
        let _reservation = match &write.space {
            Some(space) => {
                space.reserve(self.blocks_of(offset, len), self.block_size(), Purpose::Grow)?
            }
            None => Reservation::none(),
        };
        write.gate.throttle()?;
        let size = self.size.write();
        expect_within(*size, offset, len)?;
        let base = self.data.base_to_write(offset, len)?;
        let tx = write.gate.begin_now()?;
        self.data.write_over(&tx, offset, data, base)?;
        if let Some(log) = &write.log {
            log.note_write(&tx, DATA.0, offset, data);
        }
        Ok(())
    }

    /// Blocks with bytes `offset..offset + len`.
    fn blocks_of(&self, offset: u64, len: u64) -> u64 {
        let block = self.block_size().max(1);
        (offset % block).saturating_add(len).div_ceil(block)
    }

    /// Does what a record of the intent log says. `block` is what a write without data points at.
    fn replay(&self, payload: &Payload, block: Option<&Bytes>) -> Result<()> {
        match payload {
            Payload::Write { offset, length, data: Some(data), .. } => {
                let length = usize::try_from(*length).unwrap_or(usize::MAX);
                self.write_again(*offset, data.get(..length).unwrap_or(data))
            }
            Payload::Write { offset, .. } => {
                let block = block.filter(|block| !block.is_empty());
                let none = || Errno::new(EIO, "a record of a write without its block");
                let block = block.ok_or_else(none)?;
                self.write_again(offset - offset % block.len() as u64, block)
            }
            Payload::CloneRange { offset, length, .. } => {
                let none = || Errno::new(EIO, "a record of a cloned range without its blocks");
                let block = block.ok_or_else(none)?;
                let length = usize::try_from(*length).unwrap_or(usize::MAX);
                self.write_again(*offset, block.get(..length).unwrap_or(block))
            }
            Payload::Truncate { offset, length, .. } => {
                let size = self.size();
                let start = (*offset).min(size);
                self.discard_parts(start, (*length).min(size - start), true)
            }
            other => {
                let reason = format!("{} in the intent log of a volume", other.name());
                Err(Errno::new(EOPNOTSUPP, reason))
            }
        }
    }

    /// Writes what still lies within the volume, which may be smaller now.
    fn write_again(&self, offset: u64, data: &[u8]) -> Result<()> {
        let room = usize::try_from(self.size().saturating_sub(offset)).unwrap_or(usize::MAX);
        match data.get(..room.min(data.len())) {
            Some(data) if !data.is_empty() => self.write_at(offset, data),
            _ => Ok(()),
        }
    }

    /// Makes a range read as zeros and frees what it took.
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.discard_parts(offset, len, false)
    }

    /// The same; a record that is being replayed is done with the last part only.
    fn discard_parts(&self, offset: u64, len: u64, is_replayed: bool) -> Result<()> {
        let write = self.options()?;
        let most = write.space.as_ref().map_or(u64::MAX, |space| space.most_frees());
        let step = self.block_size().saturating_mul(BLOCKS_AT_ONCE.min(most).max(1));
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let part = step.min(end - at);
            if let Some(space) = &write.space {
                space.admit_frees(self.blocks_of(at, part))?;
            }
            write.gate.throttle()?;
            let size = self.size.write();
            expect_within(*size, offset, len)?;
            let base = self.data.base_to_free(at, part)?;
            let tx = write.gate.begin_now()?;
            // First: a commit that finds the range gone must not miss the record.
            let is_last = at.saturating_add(part) >= end;
            if let Some(log) = write.log.as_ref().filter(|_| is_last || !is_replayed) {
                log.note(&tx, DATA.0, Payload::Truncate { object: 1, offset: at, length: part })?;
            }
            self.data.free_over(&tx, at, part, base)?;
            at += part;
            let txg = tx.txg();
            drop((tx, size));
            if at < end {
                write.gate.wait_synced(txg, PATIENCE)?;
            }
        }
        Ok(())
    }

    /// Changes the size in bytes, a multiple of the block size; what lies behind it is freed.
    pub fn set_size(&self, bytes: u64) -> Result<()> {
        let write = self.options()?;
        if bytes == 0 || !bytes.is_multiple_of(self.block_size()) {
            let reason = format!("a volume of {bytes} bytes in blocks of {}", self.block_size());
            return Err(Errno::new(EINVAL, reason));
        }
        write.gate.throttle()?;
        let mut size = self.size.write();
        let base = match bytes < *size {
            true => self.data.base_to_free(bytes, u64::MAX)?,
            false => Base::default(),
        };
        let tx = write.gate.begin_now()?;
        zap::update(&self.properties, &tx, SIZE, &Value::of_u64(bytes))?;
        if bytes < *size {
            self.data.free_over(&tx, bytes, u64::MAX, base)?;
        }
        if let Some(log) = &write.log {
            log.note_whole(&tx);
        }
        *size = bytes;
        Ok(())
    }

    /// Makes everything written survive a crash.
    pub fn flush(&self) -> Result<()> {
        let Some(write) = &self.write else { return Ok(()) };
        match &write.durability {
            Some(durability) => durability.commit(0),
            None => Ok(write.gate.wait_synced(write.gate.figures().open, PATIENCE)?),
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        *self.size.read()
    }

    /// Property `volblocksize` in bytes.
    pub fn block_size(&self) -> u64 {
        self.data.block_size()
    }

    /// Reads up to `len` bytes at `offset`; short only at the end of the volume.
    pub fn read_at(&self, offset: u64, len: usize) -> Result<Pieces> {
        let size = self.size.read();
        let rest = size.saturating_sub(offset);
        let len = usize::try_from(rest).unwrap_or(usize::MAX).min(len);
        let advice = self.streams.note(0, offset, len as u64, *size);
        if let Some(ahead) = advice.ahead {
            self.data.prefetch(ahead.start, ahead.end - ahead.start, &advice.position);
        }
        Ok(self.data.read(offset, len)?)
    }

    /// The stored range at or after `offset`: where it starts, and where the next hole does; none
    /// if only holes follow.
    pub fn next_stored(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let size = *self.size.read();
        let Some(start) = self.data.seek_data(offset)?.filter(|start| *start < size) else {
            return Ok(None);
        };
        let end = self.data.block_count().saturating_mul(self.data.block_size());
        let end = self.data.seek_hole(start)?.unwrap_or(end);
        Ok(Some((start, end.max(start).min(size))))
    }
}

impl Replay for Volume {
    fn exists(&self, object: u64) -> cenote_engine::Result<bool> {
        Ok(object == DATA.0)
    }

    fn apply(&self, record: &Record, block: Option<&Bytes>) -> cenote_engine::Result<()> {
        self.replay(&record.payload, block).map_err(|error| Error::new(ErrorKind::Io, error.reason))
    }
}

/// ENOSPC, as a block device answers, unless the range lies within `size` bytes.
fn expect_within(size: u64, offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Errno::new(ENOSPC, format!("{len} bytes at {offset} of a volume of {size}"))),
    }
}
