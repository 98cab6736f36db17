//! Blocks that get their place on the disks before their transaction group is written.
//!
//! The intent log writes the data of large writes where it is to stay, so that it is written once.
//! Invariant: a group refers to such a block if it still holds those very bytes and would be written
//! the same way; otherwise it frees the block, which no earlier group knows, and writes anew.

use std::collections::BTreeMap;

use bytes::Bytes;
use cenote_format::{BlockPointer, Dnode, Txg};

use super::Object;
use super::plan::place_of;
use crate::Result;
use crate::pipe::{BlockKind, BlockToWrite, ObjsetPolicy, Replaced, WriteFeatures, WritePolicy};
use crate::txg::Tx;

/// Level-0 blocks of one object as a transaction group has changed them.
pub struct DirtyBlocks {
    /// The object.
    pub object: Object,
    /// Bytes in a block.
    pub block_size: u64,
    /// They are likely to be read again.
    pub keep: bool,
    /// Ascending, without gaps.
    pub blocks: Vec<DirtyBlock>,
}

/// One of them.
pub struct DirtyBlock {
    /// Its number.
    pub number: u64,
    /// What it holds.
    pub data: Bytes,
    /// The range has all of it.
    pub whole: bool,
    /// Where it lies on the disks already, if so.
    pub pointer: Option<BlockPointer>,
}

/// A block that was written early.
#[derive(Clone)]
pub struct EarlyBlock {
    /// Where it lies.
    pub pointer: BlockPointer,
    /// What it holds.
    pub data: Bytes,
    /// How it was written.
    pub policy: WritePolicy,
}

impl EarlyBlock {
    /// The very same memory: it cannot have changed while it is held here.
    fn holds(&self, data: &Bytes) -> bool {
        self.data.as_ptr() == data.as_ptr() && self.data.len() == data.len()
    }

    /// Whether it is what a group would write for `request`.
    fn serves(&self, request: &BlockToWrite) -> bool {
        self.holds(&request.data) && self.policy.writes_like(&request.policy)
    }
}

/// Early blocks of one object in one transaction group.
#[derive(Clone, Default)]
pub(super) struct EarlyBlocks {
    current: BTreeMap<u64, EarlyBlock>,
    /// What no block of the group holds any more.
    outdated: Vec<BlockPointer>,
}

impl EarlyBlocks {
    fn insert(&mut self, number: u64, block: EarlyBlock) {
        if let Some(old) = self.current.insert(number, block) {
            self.outdated.push(old.pointer);
        }
    }

    /// Where block `number` lies if it may stay there.
    pub(super) fn take(&mut self, number: u64, request: &BlockToWrite) -> Option<BlockPointer> {
        let found = self.current.remove(&number)?;
        if found.serves(request) {
            return Some(found.pointer);
        }
        self.outdated.push(found.pointer);
        None
    }

    /// All that was not taken, for the group to free.
    pub(super) fn leftover(&mut self) -> impl Iterator<Item = BlockPointer> + use<> {
        let current = std::mem::take(&mut self.current).into_values();
        let outdated = std::mem::take(&mut self.outdated);
        current.map(|block| block.pointer).chain(outdated)
    }
}

/// What level-0 blocks of the object behind `dnode` are.
pub(super) fn data_kind(dnode: &Dnode) -> BlockKind {
    BlockKind {
        compression: dnode.compression,
        checksum: dnode.checksum,
        ..BlockKind::new(dnode.object_type, 0)
    }
}

impl DirtyBlocks {
    /// The request to write `block` of these early.
    pub fn request(
        &self,
        block: &DirtyBlock,
        policy: &ObjsetPolicy,
        features: &WriteFeatures,
    ) -> Result<BlockToWrite> {
        let object = &self.object;
        let kind = data_kind(object.current_dnode().as_deref().unwrap_or(&object.dnode));
        Ok(BlockToWrite {
            data: block.data.clone(),
            policy: policy.block(&kind, features)?,
            old: BlockPointer::HOLE,
            fill: 1,
            place: place_of(&object.set, object.id, block.number),
            keep: self.keep,
        })
    }
}

impl Object {
    /// The blocks with bytes `offset..offset + length` if group `txg`, which must be held open, has
    /// changed all of them; `None` if not, or if they are metadata.
    pub fn dirty_blocks(&self, txg: Txg, offset: u64, length: u64) -> Option<DirtyBlocks> {
        let state = self.live.as_ref()?.state.read();
        let dirt = state.dirt.iter().find(|dirt| dirt.txg == txg)?;
        let dnode = dirt.frozen.as_ref().unwrap_or(&state.current).as_ref()?;
        let block_size = dnode.block_size();
        let first = offset.checked_div(block_size)?;
        let last = offset.checked_add(length.checked_sub(1)?)?.checked_div(block_size)?;
        if data_kind(dnode).is_metadata() || last > dnode.max_block_id {
            return None;
        }
        let block = |number: u64| {
            let data = dirt.blocks.get(&number)?.clone();
            let early = dirt.early.current.get(&number).filter(|early| early.holds(&data));
            let pointer = early.map(|early| early.pointer);
            let start = number.checked_mul(block_size)?;
            let whole = offset <= start && start.checked_add(block_size)? <= offset + length;
            (data.len() as u64 == block_size).then_some(DirtyBlock { number, data, whole, pointer })
        };
        let blocks = (first..=last).map(block).collect::<Option<Vec<_>>>()?;
        Some(DirtyBlocks { object: self.clone(), block_size, keep: dirt.is_scattered(), blocks })
    }

    /// Hands a block that was written early in the group of `tx` over to that group: to be used,
    /// or, if it is not `usable`, to be freed.
    pub fn adopt(&self, tx: &Tx, number: u64, block: EarlyBlock, usable: bool) {
        let Some(live) = &self.live else { return };
        let mut state = live.state.write();
        let Some(dirt) = state.dirt.iter_mut().find(|dirt| dirt.txg == tx.txg()) else {
            tracing::error!(object = self.id.0, "a block written early has lost its group");
            return;
        };
        match usable {
            true => dirt.early.insert(number, block),
            false => dirt.early.outdated.push(block.pointer),
        }
    }
}

impl super::SyncContext<'_> {
    /// Frees what was written early in this group and is not part of it.
    pub(super) fn free_early(&self, early: &mut EarlyBlocks) {
        for pointer in early.leftover() {
            self.note(&BlockPointer::HOLE, &pointer, Replaced::Old);
            self.kill(&pointer);
        }
    }
}
