//! Blocks of a stream: written, freed, and beside the attributes.
//!
//! Chapter 07, section 13. Invariant: what is written lies in an object that the stream named or that its
//! source has; no length of the stream is believed before it was held against what can be.

use bytes::Bytes;
use cenote_codec::compress::{Algorithm, decompress};

use super::Landing;
use crate::dataset::change::ResumePoint;
use crate::object::Object;
use crate::txg::Purpose;
use crate::{Error, Result};

/// Largest block.
const BLOCK_MAX: u64 = 16 << 20;
/// Bytes of a block of metadata that a change of nothing else is taken to cost.
const METADATA_BLOCK: u64 = 128 << 10;

impl Landing {
    /// Writes `data`, in little-endian order where that matters, at `offset` of an object.
    ///
    /// # Errors
    /// `InvalidArgument`: no such object, no such place; no space; what the disks say.
    pub fn write(&mut self, object: u64, offset: u64, data: &[u8]) -> Result<()> {
        let found = self.current(object)?;
        let (size, len) = (found.block_size(), data.len() as u64);
        let blocks = len.div_ceil(size).saturating_add(1);
        let base = found.base_to_write(offset, len).map_err(|error| self.at(error, object))?;
        let written = self.changing((blocks, size), Purpose::Grow, |tx| {
            found.write_over(tx, offset, data, base)?;
            self.note(tx, object, offset);
            Ok(())
        });
        written.map_err(|error| self.at(error, object))
    }

    /// The range of an object reads as zeros; `u64::MAX`: to its end.
    ///
    /// # Errors
    /// As [`Landing::write`].
    pub fn free(&mut self, object: u64, offset: u64, len: u64) -> Result<()> {
        if len != u64::MAX && offset.checked_add(len).is_none() {
            return Err(self.at(Error::invalid("a range beyond 2^64 bytes is freed"), object));
        }
        let found = self.current(object)?;
        let size = found.block_size();
        // Every object comes with what lies behind its end.
        if offset >= found.block_count().saturating_mul(size) {
            return Ok(());
        }
        let base = found.base_to_free(offset, len).map_err(|error| self.at(error, object))?;
        let freed =
            self.changing((2, size), Purpose::Spare, |tx| found.free_over(tx, offset, len, base));
        freed.map_err(|error| self.at(error, object))
    }

    /// The spill block of an object is `data`, a multiple of 512 bytes; `unmodified`: it is sent only for
    /// whoever has lost it.
    ///
    /// # Errors
    /// As [`Landing::write`].
    pub fn spill(&mut self, object: u64, data: &[u8], unmodified: bool) -> Result<()> {
        let len = data.len() as u64;
        if !len.is_multiple_of(512) || !(512..=BLOCK_MAX).contains(&len) {
            let reason = format!("the stream has a spill block of {len} bytes");
            return Err(self.at(Error::invalid(reason), object));
        }
        let found = self.current(object)?;
        if unmodified && found.dnode().spill.is_some() {
            return Ok(());
        }
        let data = Bytes::copy_from_slice(data);
        let cost = (1, len.max(METADATA_BLOCK));
        let set = self.changing(cost, Purpose::Grow, |tx| found.set_spill(tx, Some(data)));
        self.current = None;
        set.map_err(|error| self.at(error, object))
    }

    /// So many bytes of the stream were read, of which the change that comes next is the last.
    pub fn note_bytes(&mut self, count: u64) {
        self.bytes = self.bytes.saturating_add(count);
    }

    /// Notes where a stream that is cut off after this can go on.
    pub(super) fn note(&self, tx: &crate::txg::Tx, object: u64, offset: u64) {
        if self.order.resumable {
            let point = ResumePoint { object, offset, bytes: self.bytes };
            self.live.note_received(tx, self.filled.id(), point);
        }
    }

    /// The object that a record is about, which must be there.
    pub(super) fn current(&mut self, id: u64) -> Result<Object> {
        if let Some(current) = self.current.as_ref().filter(|current| current.id().0 == id) {
            return Ok(current.clone());
        }
        let missing = || Error::invalid("the stream changes an object that it has not told of");
        let found = self.find(id)?.ok_or_else(|| self.at(missing(), id))?;
        self.current = Some(found.clone());
        Ok(found)
    }
}

/// Expands what a stream has compressed.
///
/// # Errors
/// `InvalidArgument` if it does not expand to `len` bytes, or no block can be so large.
pub(super) fn expanded(compression: u8, data: &[u8], len: u64) -> Result<Vec<u8>> {
    let wrong = |what: &str| Error::invalid(format!("a compressed block of the stream {what}"));
    let algorithm = Algorithm::from_id(compression).ok_or_else(|| wrong("has an unknown kind"))?;
    let size = usize::try_from(len).ok().filter(|_| len <= BLOCK_MAX);
    let mut expanded = vec![0; size.ok_or_else(|| wrong("is too large"))?];
    if algorithm == Algorithm::Off {
        let short = data.len().min(expanded.len());
        if let (Some(to), Some(from)) = (expanded.get_mut(..short), data.get(..short)) {
            to.copy_from_slice(from);
        }
        return Ok(expanded);
    }
    decompress(algorithm, data, &mut expanded).map_err(|error| wrong(&error.to_string()))?;
    Ok(expanded)
}
