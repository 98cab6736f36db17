//! Copying ranges between files: blocks are shared where they can be, and the rest is read and written.
//!
//! Chapter 06, section 21. Invariant: whichever way a part is copied, the files read the same
//! afterwards, and each part leaves both whole.

use cenote_engine::object::Base;
use cenote_format::zil::Payload;
use cenote_format::{BlockPointer, ObjectId};

use super::FilesystemWriter;
use super::data::{check_size, end_of};
use super::nodes::Locked;
use crate::error::EINVAL;
use crate::tree::{Errno, Result};
use crate::view::{File, View};

/// Bytes copied in one transaction.
const COPIED_AT_ONCE: u64 = 1 << 20;
/// Bytes shared in one transaction.
const SHARED_AT_ONCE: u64 = 64 << 20;

/// Pointers in one record of the intent log: as many as its largest block holds.
const POINTERS_IN_RECORD: usize = 1021;

/// A part of a file that is to be part of another.
#[derive(Clone, Copy)]
struct Part {
    from: (ObjectId, u64),
    to: (ObjectId, u64),
    len: u64,
    /// The other loses its set-id bits with it.
    kill_set_id: bool,
}

impl FilesystemWriter {
    /// Copies a range; gives the bytes copied. `kill_set_id`: whoever copies may not keep set-id bits.
    pub fn copy_range(
        &self,
        from: (ObjectId, u64),
        to: (ObjectId, u64),
        len: u64,
        kill_set_id: bool,
    ) -> Result<u64> {
        end_of(to.1, len)?;
        if from.0 == to.0 && from.1.abs_diff(to.1) < len {
            return Err(Errno::new(EINVAL, "the ranges overlap"));
        }
        let shares = self.sharable(&[]).is_some();
        let mut copied = 0;
        while copied < len {
            let rest = Part {
                from: (from.0, from.1.saturating_add(copied)),
                to: (to.0, to.1.saturating_add(copied)),
                len: len - copied,
                kill_set_id,
            };
            let (done, is_last) = match self.copy_some(&rest, shares) {
                // The caller asks again for what there was no space for.
                Err(_) if copied > 0 => break,
                done => done?,
            };
            copied += done;
            if is_last {
                break;
            }
        }
        Ok(copied)
    }

    /// Copies the beginning of a part; gives its bytes, and whether the source ended: what the copy
    /// itself adds to it does not count.
    fn copy_some(&self, rest: &Part, shares: bool) -> Result<(u64, bool)> {
        if shares {
            let shared = self.share(rest)?;
            if shared > 0 {
                return Ok((shared, false));
            }
        }
        let step = Part { len: rest.len.min(COPIED_AT_ONCE), ..*rest };
        let read = self.copy(&step)?;
        Ok((read, read < step.len))
    }

    /// Reads a part and writes it; gives the bytes there were.
    fn copy(&self, part: &Part) -> Result<u64> {
        let (source, target) = (self.node(part.from.0)?, self.node(part.to.0)?);
        let _reservation = self.admit_write(&target, part.to.1, part.len)?;
        let mut locked = Locked::new([&source, &target])?;
        let file = &locked.of(part.from.0)?.file;
        let data = View::read(file, part.from.1, part.len as usize)?.concat();
        if data.is_empty() {
            return Ok(0);
        }
        let file = &mut locked.of(part.to.0)?.file;
        self.check_target(file, part)?;
        self.put(file, (part.to.1, &data), part.kill_set_id)?;
        Ok(data.len() as u64)
    }

    fn check_target(&self, file: &File, part: &Part) -> Result<()> {
        check_size(&file.facts, 0)?;
        self.check_writable(&file.facts, part.to.1)?;
        self.check_quota(&file.facts)
    }

    /// Makes blocks at the beginning of a part belong to both files; gives the bytes of them. 0 where a
    /// block is not wholly within the part, waits to be written, or cannot be shared.
    fn share(&self, part: &Part) -> Result<u64> {
        let (source, target) = (self.node(part.from.0)?, self.node(part.to.0)?);
        let Ok(_reservation) = self.admit(part.len.min(SHARED_AT_ONCE)) else {
            // There may be space for less.
            return Ok(0);
        };
        let mut locked = Locked::new([&source, &target])?;
        let target_end = locked.of(part.to.0)?.file.facts.size;
        let file = &locked.of(part.from.0)?.file;
        let (block, size) = (file.object.block_size(), file.facts.size);
        let is_aligned = |offset: u64| offset.checked_rem(block) == Some(0);
        let there = part.len.min(SHARED_AT_ONCE).min(size.saturating_sub(part.from.1));
        let fits_there = is_aligned(part.to.1) && may_lie_at(part.to.1, there, block);
        if there == 0 || !is_aligned(part.from.1) || !fits_there {
            return Ok(0);
        }
        // The last block of a file may be shared as the last of another.
        let whole =
            match part.from.1 + there == size && part.to.1.saturating_add(there) >= target_end {
                true => there.div_ceil(block),
                false => there / block,
            };
        let mut blocks = file.object.clonable(part.from.1 / block, whole)?;
        blocks.truncate(self.sharable(&blocks).unwrap_or(0));
        let len = (blocks.len() as u64).saturating_mul(block).min(there);
        if len == 0 {
            return Ok(0);
        }
        let file = &mut locked.of(part.to.0)?.file;
        self.check_target(file, part)?;
        let fits = file.object.block_size() == block;
        if !fits && (file.facts.size > 0 || file.object.block_count() > 1) {
            return Ok(0);
        }
        let (offset, kill_set_id) = (part.to.1, part.kill_set_id);
        self.take_in(file, &Shared { offset, len, block, pointers: &blocks, kill_set_id })?;
        Ok(len)
    }

    /// How many of these blocks, from the first on, files may share now; `None`: they may share none.
    fn sharable(&self, blocks: &[BlockPointer]) -> Option<usize> {
        self.cloning.as_ref().and_then(|cloning| cloning(blocks))
    }

    /// Makes blocks part of `file`, whose own have the same size or hold nothing.
    fn take_in(&self, file: &mut File, shared: &Shared<'_>) -> Result<()> {
        let Shared { offset, len, block, pointers, kill_set_id } = *shared;
        let before = file.object.block_size();
        let first = offset.checked_div(block).unwrap_or(0);
        let base = file.object.base_to_clone(first, pointers.len() as u64)?;
        let mut only = match before == block {
            true => Base::default(),
            false => file.object.base_to_resize()?,
        };
        let tx = &self.begin()?;
        if before != block {
            file.object.resize_over(tx, block, &mut only)?;
        }
        file.object.clone_over(tx, first, pointers, &base)?;
        self.grown(tx, file, offset.saturating_add(len), kill_set_id)?;
        if file.facts.links == 0 {
            return Ok(());
        }
        if before > block {
            // OpenZFS does not make blocks smaller when it replays the record.
            self.note_whole(tx);
            return Ok(());
        }
        let id = file.object.id();
        let mut done = 0;
        for blocks in pointers.chunks(POINTERS_IN_RECORD) {
            let length = (blocks.len() as u64).saturating_mul(block).min(len - done);
            self.note(tx, id, || Payload::CloneRange {
                object: id.0,
                offset: offset + done,
                length,
                block_size: block,
                blocks: blocks.to_vec(),
            })?;
            done += length;
        }
        Ok(())
    }

    /// Does again what a record of the intent log says was shared; `false` if it has to be copied.
    pub(super) fn share_again(&self, record: &Payload) -> Result<bool> {
        let Payload::CloneRange { object, offset, length, block_size, blocks } = record else {
            return Ok(false);
        };
        let (offset, len, block) = (*offset, *length, *block_size);
        let count = len.checked_div(block).unwrap_or(0) + u64::from(len % block.max(1) != 0);
        let fits_there = offset.checked_rem(block) == Some(0) && may_lie_at(offset, len, block);
        let is_whole = count == blocks.len() as u64;
        if !fits_there || !is_whole || len == 0 || self.sharable(blocks) != Some(blocks.len()) {
            return Ok(false);
        }
        let end = end_of(offset, len)?;
        let _reservation = self.admit(len)?;
        let node = self.node(ObjectId(*object))?;
        let mut state = node.write()?;
        let file = &mut state.file;
        check_size(&file.facts, 0)?;
        let size = file.facts.size;
        let is_empty = size == 0 && file.object.block_count() <= 1;
        let fits = file.object.block_size() == block || is_empty;
        let ends_right = len.is_multiple_of(block) || end >= size;
        if !fits || !ends_right || !file.object.may_clone_all(blocks, block) {
            return Ok(false);
        }
        let kill_set_id = false;
        self.take_in(file, &Shared { offset, len, block, pointers: blocks, kill_set_id })?;
        Ok(true)
    }
}

/// Whether a file may have blocks of this size there: only a file of one block has one that is no power of two.
fn may_lie_at(offset: u64, len: u64, block: u64) -> bool {
    block.is_power_of_two() || offset == 0 && len <= block
}

/// Blocks that become part of a file.
#[derive(Clone, Copy)]
struct Shared<'a> {
    /// Where in the file, in bytes.
    offset: u64,
    /// Bytes of them that count.
    len: u64,
    /// Bytes of each.
    block: u64,
    pointers: &'a [BlockPointer],
    kill_set_id: bool,
}

#[cfg(test)]
mod tests {
    use super::may_lie_at;

    #[test]
    fn only_files_of_one_block_have_odd_ones() {
        assert!(may_lie_at(0, 1536, 1536) && may_lie_at(0, 700, 1536));
        assert!(!may_lie_at(1536, 1536, 1536) && !may_lie_at(0, 3072, 1536));
        assert!(may_lie_at(4096, 1 << 20, 4096));
    }
}
