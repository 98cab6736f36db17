//! What a ZAP is read from and written to.
//!
//! Invariant: `read_block` gives exactly `block_size` bytes or an error, and what was written last.

use bytes::Bytes;

use crate::object::Object;
use crate::txg::Tx;
use crate::{Error, Result};

/// Blocks of equal size, by number.
pub trait BlockSource {
    /// Bytes of a block.
    fn block_size(&self) -> u64;
    /// Blocks up to the last one ever written.
    fn block_count(&self) -> u64;
    /// Block `id`: exactly `block_size` bytes, zeros if it is a hole.
    fn read_block(&self, id: u64) -> Result<Bytes>;
    /// Block `id` will be wanted soon.
    fn prefetch_block(&self, id: u64);
    /// Says of which object an error is.
    fn named(&self, error: Error) -> Error;
}

/// Blocks that can be changed, as part of a transaction.
///
/// The caller of a ZAP change makes sure that nobody else changes the same ZAP meanwhile.
pub trait BlockSink: BlockSource {
    /// Reads what is needed to write block `id`: where that cannot be read, nothing is begun.
    fn ready_to_write(&self, id: u64) -> Result<()>;
    /// Replaces block `id`, whole: exactly `block_size` bytes.
    fn write_block(&self, tx: &Tx, id: u64, data: Bytes) -> Result<()>;
    /// Overwrites bytes from `offset` of the object on, within one block.
    fn write_at(&self, tx: &Tx, offset: u64, data: &[u8]) -> Result<()>;
    /// Changes the block size (a multiple of 512, larger or smaller) while there is only block 0,
    /// whose content the caller writes next.
    fn set_block_size(&self, tx: &Tx, bytes: u64) -> Result<()>;
    /// Frees `count` blocks from `first` on: they read as zeros.
    fn free_blocks(&self, tx: &Tx, first: u64, count: u64) -> Result<()>;
}

impl BlockSource for Object {
    fn block_size(&self) -> u64 {
        Object::block_size(self)
    }

    fn block_count(&self) -> u64 {
        Object::block_count(self)
    }

    fn read_block(&self, id: u64) -> Result<Bytes> {
        Object::read_block(self, id)
    }

    fn prefetch_block(&self, id: u64) {
        let size = self.block_size();
        self.prefetch(id.saturating_mul(size), size, &Default::default());
    }

    fn named(&self, error: Error) -> Error {
        error.at_object(self.set().id(), self.id().0)
    }
}

impl BlockSink for Object {
    fn ready_to_write(&self, id: u64) -> Result<()> {
        self.need_to_write(id, id)
    }

    fn write_block(&self, tx: &Tx, id: u64, data: Bytes) -> Result<()> {
        Object::write_block(self, tx, id, data)
    }

    fn write_at(&self, tx: &Tx, offset: u64, data: &[u8]) -> Result<()> {
        Object::write(self, tx, offset, data)
    }

    fn set_block_size(&self, tx: &Tx, bytes: u64) -> Result<()> {
        Object::set_block_size(self, tx, bytes)
    }

    fn free_blocks(&self, tx: &Tx, first: u64, count: u64) -> Result<()> {
        let size = self.block_size();
        self.free_range(tx, first.saturating_mul(size), count.saturating_mul(size))
    }
}
