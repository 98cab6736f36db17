//! What a ZAP is read from.
//!
//! Invariant: `read_block` gives exactly `block_size` bytes or an error.

use bytes::Bytes;

use crate::object::Object;
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
