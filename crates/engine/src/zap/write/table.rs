//! The table of leaf pointers of a fat ZAP being changed.
//!
//! Chapter 04, sections 12 and 15. Invariant: a growth is finished in the operation that starts it,
//! and one that OpenZFS left unfinished is finished before any pointer changes; so there is only
//! ever one table to keep right.

use bytes::Bytes;
use cenote_format::bytes::{le64, put_le64};

use super::BlockSink;
use super::fat::{FatWriter, no_space};
use crate::{Error, Result};

/// Bytes of a pointer.
const POINTER: usize = 8;
/// Longest table that is changed, in blocks: with blocks of 16 KiB one of 256 MiB, for 32 million
/// leaves. A change holds what it touches in memory.
const BLOCKS_MAX: u64 = 1 << 14;

fn short() -> Error {
    Error::corrupt("the ZAP's pointer table ends early")
}

impl<S: BlockSink> FatWriter<'_, S> {
    /// Makes the pointers of all hashes that start with `prefix`, which lead to leaf `from`, lead to
    /// leaf `to`.
    pub(super) fn point_at(
        &mut self,
        prefix: u64,
        prefix_len: u32,
        from: u64,
        to: u64,
    ) -> Result<()> {
        let header = self.body.header;
        self.check_length()?;
        let per_leaf = header.table.shift.checked_sub(prefix_len).ok_or_else(short)?;
        let (mut index, end) = (prefix << per_leaf, (prefix + 1) << per_leaf);
        while index < end {
            // Up to the end of the range or of the block.
            let slot = header.slot_of_index(index);
            let block = self.table_block(slot.block)?;
            let here = (block.len().saturating_sub(slot.offset) / POINTER) as u64;
            let count = here.min(end - index);
            if count == 0 {
                return Err(short());
            }
            let bytes = usize::try_from(count).map_err(|_| short())? * POINTER;
            let old = block.get(slot.offset..slot.offset + bytes).ok_or_else(short)?;
            if let Some(at) = old.chunks(POINTER).position(|one| le64(one, 0) != Some(from)) {
                return Err(Error::corrupt(format!(
                    "the ZAP's pointer {} does not lead to leaf {from}, whose range it is in",
                    index + at as u64
                )));
            }
            let mut pointers = Vec::with_capacity(bytes);
            for _ in 0..count {
                pointers.extend_from_slice(&to.to_le_bytes());
            }
            let at = (slot.block << header.block_shift) + slot.offset as u64;
            self.sink.write_at(self.tx, at, &pointers)?;
            if slot.block == 0 {
                self.body.block = self.sink.read_block(0)?;
            }
            index += count;
        }
        Ok(())
    }

    fn check_length(&self) -> Result<()> {
        match self.body.header.table.blocks {
            blocks if blocks <= BLOCKS_MAX => Ok(()),
            _ => Err(no_space("the ZAP's table of pointers is longer than is changed here")),
        }
    }

    fn table_block(&self, id: u64) -> Result<Bytes> {
        match id {
            0 => Ok(self.body.block.clone()),
            id => self.sink.read_block(id),
        }
    }

    /// Twice as many pointers, each where two will be that it stands for.
    pub(super) fn grow_table(&mut self) -> Result<()> {
        let table = self.body.header.table;
        if table.shift + 2 >= self.body.header.settings.width().bits() {
            return Err(no_space("the ZAP's table of pointers is at its largest"));
        }
        self.check_length()?;
        if table.blocks == 0 {
            let half = self.body.block.len() / 2;
            let block = self.body.block.slice(half..);
            let first = self.take_blocks(1)?;
            self.sink.write_block(self.tx, first, doubled(&block)?.into())?;
            self.body.header.table.first_block = first;
            self.body.header.table.blocks = 1;
            self.body.header.table.shift = table.shift + 1;
            return Ok(());
        }
        let count = table.blocks.checked_mul(2).ok_or_else(short)?;
        self.body.header.table.next_block = self.take_blocks(count)?;
        self.body.header.table.blocks_copied = 0;
        self.finish_growth()
    }

    /// Copies what is left to be copied to the larger table and makes that the table.
    pub(super) fn finish_growth(&mut self) -> Result<()> {
        let mut table = self.body.header.table;
        if table.next_block == 0 {
            return Ok(());
        }
        self.check_length()?;
        let next = table.next_block;
        let end = table.blocks.checked_mul(2).and_then(|blocks| blocks.checked_add(next));
        let bad = end.is_none_or(|end| end > self.body.header.free_block);
        if bad || table.blocks == 0 || table.blocks_copied > table.blocks {
            return Err(Error::corrupt(format!(
                "the ZAP's next pointer table at block {next}, {} blocks copied",
                table.blocks_copied
            )));
        }
        for index in table.blocks_copied..table.blocks {
            let old = self.sink.read_block(table.first_block.saturating_add(index))?;
            let both = Bytes::from(doubled(&old)?);
            let at = next + 2 * index;
            self.sink.write_block(self.tx, at, both.slice(..old.len()))?;
            self.sink.write_block(self.tx, at + 1, both.slice(old.len()..))?;
        }
        let (old_first, old_blocks) = (table.first_block, table.blocks);
        table.first_block = next;
        table.blocks = old_blocks * 2;
        table.shift += 1;
        (table.next_block, table.blocks_copied) = (0, 0);
        self.body.header.table = table;
        self.sink.free_blocks(self.tx, old_first, old_blocks)
    }
}

/// Every pointer twice.
fn doubled(pointers: &[u8]) -> Result<Vec<u8>> {
    let mut out = vec![0; pointers.len() * 2];
    for at in (0..pointers.len()).step_by(POINTER) {
        let pointer = le64(pointers, at).ok_or_else(short)?;
        put_le64(&mut out, at * 2, pointer).ok_or_else(short)?;
        put_le64(&mut out, at * 2 + POINTER, pointer).ok_or_else(short)?;
    }
    Ok(out)
}
