//! The files a writable filesystem has in memory: one [`Node`] per object, with the file's lock.
//!
//! Invariant: of an object there is never more than one node that is not gone, so its lock orders
//! all changes of the file. A node leaves the table only when nobody holds it, or for good when its
//! file is freed. What a node says of its file is what the object says.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cenote_format::ObjectId;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;

use super::accessed::Accessed;
use crate::error::ESTALE;
use crate::tree::{Errno, Result};
use crate::view::File;

/// Parts of the table.
const SHARDS: usize = 64;
/// Nodes a part keeps before it drops those not used lately.
const KEPT: usize = 1024;

/// A file in memory.
pub struct Node {
    id: ObjectId,
    state: RwLock<GuardedFile>,
    /// When it was read last, if the object does not say so yet.
    pub(super) accessed: Accessed,
    /// Used since the table was last gone through.
    used: AtomicBool,
}

/// A file in memory, guarded by its node's lock.
pub struct GuardedFile {
    /// The file.
    pub file: File,
    gone: bool,
}

impl GuardedFile {
    /// The file's object was freed.
    pub fn set_gone(&mut self) {
        self.gone = true;
    }
}

fn gone() -> Errno {
    Errno::new(ESTALE, "the file is gone")
}

impl Node {
    fn new(id: ObjectId, file: File) -> Arc<Self> {
        let state = RwLock::new(GuardedFile { file, gone: false });
        Arc::new(Self { id, state, accessed: Accessed::default(), used: AtomicBool::new(true) })
    }

    /// The object.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The file, for looking; ESTALE if it was freed.
    pub fn read(&self) -> Result<RwLockReadGuard<'_, GuardedFile>> {
        let state = self.state.read();
        if state.gone { Err(gone()) } else { Ok(state) }
    }

    /// The file, for changing; ESTALE if it was freed.
    pub fn write(&self) -> Result<RwLockWriteGuard<'_, GuardedFile>> {
        let state = self.state.write();
        if state.gone { Err(gone()) } else { Ok(state) }
    }

    /// The same, if nobody uses it.
    pub(super) fn try_write(&self) -> Option<Result<RwLockWriteGuard<'_, GuardedFile>>> {
        let state = self.state.try_write()?;
        Some(if state.gone { Err(gone()) } else { Ok(state) })
    }
}

/// Several files locked for changing, in ascending order of their objects.
pub struct Locked<'a> {
    guards: SmallVec<[(ObjectId, RwLockWriteGuard<'a, GuardedFile>); 4]>,
}

impl<'a> Locked<'a> {
    /// Locks `nodes`; one that is named twice is locked once. ESTALE if one is gone.
    pub fn new(nodes: impl IntoIterator<Item = &'a Arc<Node>>) -> Result<Self> {
        let mut sorted: SmallVec<[&Arc<Node>; 4]> = nodes.into_iter().collect();
        sorted.sort_by_key(|node| node.id);
        sorted.dedup_by_key(|node| node.id);
        let mut guards = SmallVec::new();
        for node in sorted {
            guards.push((node.id, node.write()?));
        }
        Ok(Self { guards })
    }

    /// One of them.
    pub fn of(&mut self, id: ObjectId) -> Result<&mut GuardedFile> {
        let found = self.guards.iter_mut().find(|(own, _)| *own == id);
        found.map(|(_, state)| &mut **state).ok_or_else(gone)
    }
}

#[derive(Default)]
struct Shard {
    nodes: HashMap<u64, Arc<Node>>,
    /// Counts removals: what was read before one may be older than what it left behind.
    removals: u64,
}

/// The table of nodes.
pub struct Nodes {
    shards: Vec<Mutex<Shard>>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Nodes {
    fn shard(&self, id: ObjectId) -> Result<&Mutex<Shard>> {
        self.shards.get((id.0 % SHARDS as u64) as usize).ok_or_else(gone)
    }

    /// The node of an object; `load` reads the file where the table does not have it.
    pub fn get(&self, id: ObjectId, load: impl Fn() -> Result<File>) -> Result<Arc<Node>> {
        let shard = self.shard(id)?;
        loop {
            let removals = {
                let shard = shard.lock();
                if let Some(node) = shard.nodes.get(&id.0) {
                    node.used.store(true, Relaxed);
                    return Ok(node.clone());
                }
                shard.removals
            };
            let file = load()?;
            let mut shard = shard.lock();
            if shard.removals != removals {
                continue;
            }
            shard.make_room();
            let node = shard.nodes.entry(id.0).or_insert_with(|| Node::new(id, file));
            return Ok(node.clone());
        }
    }

    /// Adds the node of an object that was just made.
    pub fn add(&self, id: ObjectId, file: File) -> Result<Arc<Node>> {
        let mut shard = self.shard(id)?.lock();
        shard.make_room();
        // Another thread may have been quicker: it read the same new object.
        let node = shard.nodes.entry(id.0).or_insert_with(|| Node::new(id, file));
        Ok(node.clone())
    }

    /// Drops the node of an object that was freed.
    pub fn remove(&self, id: ObjectId) {
        if let Ok(shard) = self.shard(id) {
            let mut shard = shard.lock();
            shard.nodes.remove(&id.0);
            shard.removals += 1;
        }
    }

    /// The node of an object, if the table has it.
    pub fn known(&self, id: ObjectId) -> Option<Arc<Node>> {
        self.shard(id).ok()?.lock().nodes.get(&id.0).cloned()
    }
}

impl Shard {
    fn make_room(&mut self) {
        if self.nodes.len() < KEPT {
            return;
        }
        let keep = |node: &Arc<Node>| {
            let used = node.used.swap(false, Relaxed);
            used || Arc::strong_count(node) > 1
        };
        self.nodes.retain(|_, node| keep(node));
        if self.nodes.len() >= KEPT {
            // All were used: every one starts anew.
            let free = |node: &Arc<Node>| Arc::strong_count(node) == 1;
            let mut index = 0_u32;
            self.nodes.retain(|_, node| {
                index += 1;
                !free(node) || index.is_multiple_of(2)
            });
        }
        self.removals += 1;
    }
}
