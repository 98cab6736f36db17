//! Writing again what a read found wrong on a device and right elsewhere.
//!
//! Invariant: only bytes that verified are written, only over the block they belong to: its space
//! was not freed since it was born, and is not handed out again before the writing has ended.

use std::sync::Arc;

use crate::alloc::Allocator;
use crate::pipe::{Healer, Pipe};
use crate::vdev::{BlockRead, Repair};

/// Heals the blocks of one pool.
pub(in crate::pool) struct PoolHealer {
    pub(in crate::pool) allocator: Arc<Allocator>,
    pub(in crate::pool) pipe: std::sync::Weak<Pipe>,
}

impl Healer for PoolHealer {
    fn heal(&self, block: &BlockRead, repairs: &[Repair]) {
        let Some(pipe) = self.pipe.upgrade() else { return };
        let Some(_held) = self.allocator.hold(block) else { return };
        let answers = pipe.vdevs().repair(repairs);
        let healed = answers.iter().filter(|answer| answer.is_ok()).count();
        let (vdev, offset) = (block.vdev, block.offset);
        tracing::info!(vdev, offset, healed, found = repairs.len(), "wrong copies were rewritten");
    }
}
