//! Writing file data: growing blocks, holes, truncation, and what a length may be.
//!
//! Chapter 05, section 10. Invariant: what lies behind the length in the last block is zeros, and
//! no block lies behind the length; a file of one block grows that block up to the record size
//! before it gets a second one.

use cenote_engine::object::{Base, Object};
use cenote_engine::txg::{Purpose, Reservation, Tx};
use cenote_format::zil::Payload;
use cenote_format::{ObjectId, pflags};

use super::nodes::Node;
use super::{FilesystemWriter, SMALL_CHANGE, SYNC_PATIENCE};
use crate::attributes::{Facts, REGULAR, TYPE};
use crate::error::{EFBIG, EINVAL, EISDIR, ENODEV, ENOSPC, EPERM};
use crate::tree::{Allocate, Errno, Result, Timestamp};
use crate::view::File;

/// Blocks freed in one transaction group at most.
const FREED_AT_ONCE: u64 = 1 << 19;
const SECTOR: u64 = 512;
/// Longest file.
const SIZE_MAX: u64 = i64::MAX as u64;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// A mode without the bits that a write by an unprivileged process takes away.
pub(super) fn without_set_id(mode: u32) -> u32 {
    match mode {
        _ if mode & TYPE != REGULAR => mode,
        _ if mode & GROUP_EXECUTE != 0 => mode & !(SET_USER_ID | SET_GROUP_ID),
        _ => mode & !SET_USER_ID,
    }
}

/// EISDIR, EINVAL, EFBIG where the length cannot be set.
pub(super) fn check_size(facts: &Facts, size: u64) -> Result<()> {
    if facts.is_directory() {
        return Err(Errno::new(EISDIR, "a directory"));
    }
    if facts.kind() != REGULAR {
        return Err(Errno::new(EINVAL, "not a regular file"));
    }
    if size > SIZE_MAX {
        return Err(Errno::new(EFBIG, "the file would be too long"));
    }
    Ok(())
}

/// The end of a range; EFBIG if it lies too far.
pub(super) fn end_of(offset: u64, len: u64) -> Result<u64> {
    let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX);
    end.ok_or_else(|| Errno::new(EFBIG, "the file would be too long"))
}

/// Facts of a file whose data was changed now.
pub(super) fn modified(facts: &Facts) -> Facts {
    let time = Timestamp::now();
    let flags = facts.flags | pflags::ARCHIVE | pflags::SCAN_MODIFIED;
    Facts { modified: time, changed: time, flags, ..*facts }
}

/// How many blocks at the end of an object of `count` blocks are surely holes: none, or at least
/// `step`. A file may be sparse, or say that it is longer than anything.
pub(super) fn empty_end(object: &Object, count: u64, step: u64) -> Result<u64> {
    let (mut empty, mut step) = (0, step);
    while step < count {
        let start = (count - step).saturating_mul(object.block_size());
        if object.seek_data(start)?.is_some() {
            return Ok(empty);
        }
        empty = step;
        step = step.saturating_mul(2);
    }
    Ok(empty)
}

/// Whether all of a range of a file has data already.
fn replaces(node: &Node, offset: u64, length: u64) -> Result<bool> {
    let state = node.read()?;
    let end = offset.saturating_add(length);
    if end > state.file.facts.size {
        return Ok(false);
    }
    let object = &state.file.object;
    let is_data = object.seek_data(offset)? == Some(offset);
    Ok(is_data && object.seek_hole(offset)?.is_none_or(|hole| hole >= end))
}

/// What changing a file's data needs, found and read before the transaction begins.
#[derive(Default)]
pub(super) struct Ready {
    base: Base,
    /// The only block becomes as large as this.
    grown: Option<u64>,
}

impl Ready {
    fn grow(&mut self, tx: &Tx, file: &File) -> Result<()> {
        match self.grown {
            Some(bytes) => Ok(file.object.resize_over(tx, bytes, &mut self.base)?),
            None => Ok(()),
        }
    }
}

impl FilesystemWriter {
    /// EPERM where the flags of a file forbid to change its data at `offset`. What the log tells of was allowed, maybe
    /// in another form (a whole block for what was appended to it).
    pub(super) fn check_writable(&self, facts: &Facts, offset: u64) -> Result<()> {
        let fixed = facts.flags & (pflags::IMMUTABLE | pflags::READONLY) != 0;
        let appends_only = facts.flags & pflags::APPEND_ONLY != 0 && offset < facts.size;
        match (fixed || appends_only) && !self.is_replaying() {
            true => Err(Errno::new(EPERM, "the file's flags forbid it")),
            false => Ok(()),
        }
    }

    /// Writes `data` at `offset`.
    pub fn write(&self, id: ObjectId, offset: u64, data: &[u8], kill_set_id: bool) -> Result<()> {
        let node = self.node(id)?;
        let _reservation = self.admit_write(&node, offset, data.len() as u64)?;
        let mut state = node.write()?;
        let file = &mut state.file;
        check_size(&file.facts, 0)?;
        self.check_writable(&file.facts, offset)?;
        end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        self.check_quota(&file.facts)?;
        self.put(file, (offset, data), kill_set_id)
    }

    /// Writes data into a file that may be written to, and notes it in the log.
    pub(super) fn put(
        &self,
        file: &mut File,
        (offset, data): (u64, &[u8]),
        kill_set_id: bool,
    ) -> Result<()> {
        let ready = self.ready_to_write(file, offset, data.len() as u64)?;
        let tx = self.begin()?;
        self.write_data(&tx, file, (offset, data), ready)?;
        self.grown(&tx, file, offset.saturating_add(data.len() as u64), kill_set_id)?;
        if let Some(log) = self.log.as_ref().filter(|_| file.facts.links != 0) {
            log.note_write(&tx, file.object.id().0, offset, data);
        }
        Ok(())
    }

    /// Notes that data was changed up to `end`. Before the data is noted: nobody is to find what was
    /// written with the power that the file had before.
    pub(super) fn grown(
        &self,
        tx: &Tx,
        file: &mut File,
        end: u64,
        kill_set_id: bool,
    ) -> Result<()> {
        let old = file.facts;
        let mut facts = modified(&old);
        facts.size = facts.size.max(end);
        if kill_set_id {
            facts.mode = without_set_id(facts.mode);
        }
        self.store_mode(tx, file, facts)?;
        self.note_mode(tx, file, &old)
    }

    /// Reserves space for a write. In a full pool what is there can still be written over.
    pub(super) fn admit_write(&self, node: &Node, offset: u64, length: u64) -> Result<Reservation> {
        let block = {
            let object = &node.read()?.file.object;
            let now = object.block_size();
            if object.block_count() > 1 { now } else { now.max(self.properties().record_size) }
        };
        let from = offset.checked_rem(block).unwrap_or(0);
        let blocks = from.saturating_add(length).div_ceil(block.max(1));
        match self.admit_for(blocks, block, Purpose::Grow) {
            Err(error) if error.code == ENOSPC && replaces(node, offset, length)? => {
                self.admit_for(blocks, block, Purpose::Replace)
            }
            admitted => admitted,
        }
    }

    /// Reads what writing `len` bytes at `offset` needs.
    pub(super) fn ready_to_write(&self, file: &File, offset: u64, len: u64) -> Result<Ready> {
        let grown = self.grown_block(file, file.facts.size, offset.saturating_add(len));
        let base = match grown {
            Some(_) => file.object.base_to_resize()?,
            None => file.object.base_to_write(offset, len)?,
        };
        Ok(Ready { base, grown })
    }

    /// Writes data to an offset.
    pub(super) fn write_data(
        &self,
        tx: &Tx,
        file: &File,
        (offset, data): (u64, &[u8]),
        mut ready: Ready,
    ) -> Result<()> {
        ready.grow(tx, file)?;
        Ok(file.object.write_over(tx, offset, data, ready.base)?)
    }

    /// How large the only block of a file of `size` bytes that is to end at `end` becomes, if it grows.
    fn grown_block(&self, file: &File, size: u64, end: u64) -> Option<u64> {
        let object = &file.object;
        let now = object.block_size();
        if end <= now || size > now || object.block_count() > 1 {
            return None;
        }
        let record = self.properties().record_size;
        let limit = match now > record {
            // Such a block came from a larger record size: it becomes a power of two at least.
            true => now.next_power_of_two(),
            false => record,
        };
        Some(end.min(limit).next_multiple_of(SECTOR)).filter(|wanted| *wanted > now)
    }

    /// Grows the only block of a file of `size` bytes that is to end at `end`.
    pub(super) fn grow_block(&self, tx: &Tx, file: &File, size: u64, end: u64) -> Result<()> {
        match self.grown_block(file, size, end) {
            Some(bytes) => Ok(file.object.set_block_size(tx, bytes)?),
            None => Ok(()),
        }
    }

    /// Reads what giving a file its length needs.
    pub(super) fn ready_for_size(&self, file: &File, size: u64) -> Result<Ready> {
        let old = file.facts.size;
        if size < old {
            let base = file.object.base_to_free(size, u64::MAX)?;
            return Ok(Ready { base, grown: None });
        }
        match self.grown_block(file, old, size) {
            None => Ok(Ready::default()),
            grown => Ok(Ready { base: file.object.base_to_resize()?, grown }),
        }
    }

    /// Notes that a range (of no length: all from the offset on) is about to go. Before it does: a
    /// commit that finds it gone must not miss the record.
    pub(super) fn note_truncate(
        &self,
        tx: &Tx,
        file: &File,
        (offset, length): (u64, u64),
    ) -> Result<()> {
        let object = file.object.id();
        match file.facts.links {
            0 => Ok(()),
            _ => self.note(tx, object, || Payload::Truncate { object: object.0, offset, length }),
        }
    }

    /// Gives a file its length; blocks behind it are freed.
    pub(super) fn set_size(&self, tx: &Tx, file: &File, size: u64, mut ready: Ready) -> Result<()> {
        if size < file.facts.size {
            return Ok(file.object.free_over(tx, size, u64::MAX, ready.base)?);
        }
        ready.grow(tx, file)
    }

    /// Frees what lies far behind `size`, from the end on, over several transaction groups. The length
    /// shrinks with each of them: whenever power is lost, the file is as if it was cut off somewhere.
    pub(super) fn cut_most(&self, id: ObjectId, size: u64) -> Result<()> {
        let node = self.node(id)?;
        let fixed = pflags::IMMUTABLE | pflags::READONLY | pflags::APPEND_ONLY;
        loop {
            let at_once = self.frees_at_once(FREED_AT_ONCE);
            let frees = {
                let file = &node.read()?.file;
                // It will be refused.
                if check_size(&file.facts, size).is_err() || file.facts.flags & fixed != 0 {
                    return Ok(());
                }
                file.object.block_count().saturating_sub(size.div_ceil(file.object.block_size()))
            };
            self.admit_frees(frees.min(at_once))?;
            if frees <= at_once {
                return Ok(());
            }
            let _reservation = self.admit_freeing()?;
            let mut state = node.write()?;
            let file = &mut state.file;
            let block = file.object.block_size();
            let kept = size.div_ceil(block);
            let keep = kept.saturating_add(at_once);
            let count = file.object.block_count();
            if count <= keep || file.facts.flags & fixed != 0 {
                // Somebody was faster: look again.
                continue;
            }
            let empty = empty_end(&file.object, count, at_once)?;
            let goes = if empty == 0 { at_once } else { empty };
            let start = count.saturating_sub(goes).max(keep);
            let start = start.saturating_mul(block);
            let base = file.object.base_to_free(start, u64::MAX)?;
            let tx = self.begin()?;
            if empty == 0 && file.facts.size > start {
                // A record being replayed is done with the last group of these only.
                if !self.is_replaying() {
                    self.note_truncate(&tx, file, (start, 0))?;
                }
                self.store(&tx, file, &Facts { size: start, ..file.facts }, &[])?;
            }
            file.object.free_over(&tx, start, u64::MAX, base)?;
            let txg = tx.txg();
            drop((tx, state));
            if empty == 0 {
                self.gate.wait_synced(txg, SYNC_PATIENCE)?;
            }
        }
    }

    /// `fallocate`; `kill_set_id` as in [`Self::copy_range`].
    pub fn allocate(
        &self,
        id: ObjectId,
        (mut offset, len): (u64, u64),
        what: Allocate,
        kill_set_id: bool,
    ) -> Result<()> {
        if len == 0 {
            return Err(Errno::new(EINVAL, "an empty range"));
        }
        let end = end_of(offset, len)?;
        if !matches!(what, Allocate::Reserve { .. }) {
            while let Some(part) = self.part_to_punch(id, (offset, end))? {
                // As in `cut_most`: a record being replayed is done with the last part only.
                let notes = !self.is_replaying();
                let hole = Allocate::PunchHole;
                self.allocate_at_once(id, (offset, part), hole, kill_set_id, notes)?;
                offset = part;
            }
        }
        self.allocate_at_once(id, (offset, end), what, kill_set_id, true)
    }

    /// The end of what of a range may become a hole in one group; none: all of it. That is admitted.
    fn part_to_punch(&self, id: ObjectId, (offset, end): (u64, u64)) -> Result<Option<u64>> {
        let at_once = self.frees_at_once(u64::MAX);
        if at_once == u64::MAX {
            return Ok(None);
        }
        let node = self.node(id)?;
        let (block, from, stop) = {
            let file = &node.read()?.file;
            let stop = end.min(file.facts.size);
            if check_size(&file.facts, 0)
                .and_then(|()| self.check_writable(&file.facts, offset))
                .is_err()
                || offset >= stop
            {
                // It will be refused, or there is nothing.
                return Ok(None);
            }
            let from = file.object.seek_data(offset)?.unwrap_or(stop);
            (file.object.block_size(), from, stop)
        };
        let blocks = stop.saturating_sub(from).div_ceil(block).saturating_add(1);
        self.admit_frees(blocks.min(at_once))?;
        let next = from.saturating_add(at_once.saturating_mul(block)).next_multiple_of(block);
        Ok(Some(next).filter(|next| blocks > at_once && *next < stop))
    }

    /// `notes`: the log is told of what becomes a hole.
    fn allocate_at_once(
        &self,
        id: ObjectId,
        (offset, end): (u64, u64),
        what: Allocate,
        kill_set_id: bool,
        notes: bool,
    ) -> Result<()> {
        let len = end - offset;
        let node = self.node(id)?;
        let _reservation = self.admit(match what {
            Allocate::Reserve { .. } => len,
            _ => SMALL_CHANGE,
        })?;
        let mut state = node.write()?;
        let file = &mut state.file;
        let old = file.facts;
        match old.kind() {
            REGULAR => {}
            _ if old.is_directory() => return Err(Errno::new(EISDIR, "a directory")),
            _ => return Err(Errno::new(ENODEV, "not a regular file")),
        }
        let (keep_size, punches) = match what {
            Allocate::Reserve { keep_size } => (keep_size, false),
            Allocate::ZeroRange { keep_size } => (keep_size, true),
            Allocate::PunchHole => (true, true),
        };
        self.check_writable(&old, if punches { offset } else { old.size })?;
        if !keep_size && end > old.size {
            self.check_quota(&old)?;
        }
        // What lies behind the length is zeros already.
        let stop = end.min(old.size);
        let punched = punches && stop > offset;
        let grows = !keep_size && end > old.size;
        let mode = if kill_set_id { without_set_id(old.mode) } else { old.mode };
        if !punched && !grows && mode == old.mode {
            return Ok(());
        }
        let size = if grows { end } else { old.size };
        let tx = match punched {
            true => {
                let base = file.object.base_to_free(offset, stop - offset)?;
                let tx = self.begin()?;
                if notes {
                    self.note_truncate(&tx, file, (offset, stop - offset))?;
                }
                file.object.free_over(&tx, offset, stop - offset, base)?;
                // The only block was changed by that, if there is only one: nothing is read for it.
                self.grow_block(&tx, file, old.size, size)?;
                tx
            }
            false => {
                let ready = self.ready_for_size(file, size)?;
                let tx = self.begin()?;
                self.set_size(&tx, file, size, ready)?;
                tx
            }
        };
        self.grown(&tx, file, size, kill_set_id)?;
        if grows {
            self.note_truncate(&tx, file, (end, 0))?;
        }
        Ok(())
    }
}
