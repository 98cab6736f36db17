//! Places for the data of large writes, in a real pool.
//!
//! Invariant: every block that was given an address is handed to the group of the change that asked,
//! whatever became of it, so that no space is lost.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cenote_format::{BlockPointer, Dva};
use parking_lot::{Mutex, RwLock};

use crate::Result;
use crate::alloc::Allocator;
use crate::object::{DirtyBlocks, EarlyBlock, Object};
use crate::pipe::{BlockWriter, DEDUP_OFF, ObjsetPolicy, PoolIo, Rules, Submit, Workers};
use crate::txg::Tx;
use crate::vdev::BlockWrite;

/// How the pool's blocks are written, as of the newest group; `None` before the first.
pub type SharedRules = Arc<RwLock<Option<Arc<Rules>>>>;

/// What the properties of a dataset say about its blocks, as they are in effect.
pub type SharedPolicy = Arc<RwLock<ObjsetPolicy>>;

/// How data of one dataset is written before its group.
pub struct DataWriter {
    /// Threads that compress and hash.
    pub workers: Arc<Workers>,
    /// Rules of the pool.
    pub rules: SharedRules,
    /// Properties of the dataset.
    pub policy: SharedPolicy,
}

impl DataWriter {
    /// Whether blocks of the dataset can be written before their group: encrypted and deduplicated
    /// ones cannot.
    pub fn can_write(&self) -> bool {
        let policy = self.policy.read();
        policy.encryptor.is_none() && policy.dedup == DEDUP_OFF && self.rules.read().is_some()
    }

    /// Finds places for `ranges` in the group of `tx`; `None` if there are none. Blocks of which a
    /// range has a part only are left out without `parts`: a part is written sooner to the log.
    pub(super) fn place(
        &self,
        io: &PoolIo,
        allocator: &Arc<Allocator>,
        tx: &Tx,
        ranges: &[DirtyBlocks],
        parts: bool,
    ) -> Result<Option<Placement>> {
        let Some(rules) = self.rules.read().clone() else { return Ok(None) };
        let policy = self.policy.read().clone();
        let mut placement = Placement::default();
        let mut requests = Vec::new();
        let mut owners = Vec::new();
        for range in ranges {
            for block in range.blocks.iter().filter(|block| block.whole || parts) {
                let key = (range.object.id().0, block.number);
                if placement.pointers.contains_key(&key) {
                    continue;
                }
                placement.pointers.insert(key, block.pointer);
                if block.pointer.is_none() {
                    requests.push(range.request(block, &policy, &rules.features)?);
                    owners.push((range.object.clone(), block.number));
                }
            }
        }
        if placement.pointers.is_empty() {
            return Ok(None);
        }
        let collected = Arc::new(Collected::default());
        let writer = BlockWriter {
            addresses: allocator.clone(),
            submit: collected.clone(),
            workers: self.workers.clone(),
            rules,
            dedup: None,
        };
        let made: Vec<_> =
            requests.iter().map(|one| (one.data.clone(), one.policy.clone())).collect();
        let written = io.pipe.write_many(&writer, tx.txg(), 1, requests);
        let mut complete = true;
        for (((object, number), (data, policy)), written) in
            owners.into_iter().zip(made).zip(written)
        {
            let Ok(written) = written else {
                complete = false;
                continue;
            };
            let pointer = written.pointer;
            // What needs no place is told in full: not every release reads such a pointer here.
            if pointer.is_hole() || pointer.is_embedded() {
                continue;
            }
            placement.pointers.insert((object.id().0, number), Some(pointer));
            placement.blocks.push((object, number, EarlyBlock { pointer, data, policy }));
        }
        placement.writes = std::mem::take(&mut *collected.0.lock());
        if !complete {
            placement.adopt(tx, false);
            return Ok(None);
        }
        Ok(Some(placement))
    }
}

/// Keeps the writes of blocks, for the log to write together with its own.
#[derive(Default)]
struct Collected(Mutex<Vec<BlockWrite>>);

impl Submit for Collected {
    fn submit(&self, write: BlockWrite) -> Result<()> {
        self.0.lock().push(write);
        Ok(())
    }

    fn pending(&self, _vdev: u32, _offset: u64) -> Option<Bytes> {
        None
    }
}

/// Blocks that got their places before their group is written.
#[derive(Default)]
pub struct Placement {
    /// By object and block.
    pointers: HashMap<(u64, u64), Option<BlockPointer>>,
    blocks: Vec<(Object, u64, EarlyBlock)>,
    writes: Vec<BlockWrite>,
}

impl Placement {
    /// Where block `number` of `object` lies; `None` if its data must go into the log.
    pub(super) fn pointer(&self, object: u64, number: u64) -> Option<BlockPointer> {
        self.pointers.get(&(object, number)).copied().flatten()
    }

    /// Where the blocks lie that got their places now.
    pub(super) fn dvas(&self) -> Vec<Dva> {
        self.blocks.iter().flat_map(|(_, _, block)| block.pointer.dvas()).collect()
    }

    /// What has to be written before a record that points there counts.
    pub(super) fn take_writes(&mut self) -> Vec<BlockWrite> {
        std::mem::take(&mut self.writes)
    }

    /// Hands the blocks over to the group of `tx`: to be used if they are `written`.
    pub(super) fn adopt(&mut self, tx: &Tx, written: bool) {
        for (object, number, block) in self.blocks.drain(..) {
            object.adopt(tx, number, block, written);
        }
    }
}
