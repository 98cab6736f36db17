//! Live object sets: what was changed since the last transaction group that is on the disks.
//!
//! Invariant: for every object the newest state is the committed dnode and tree with the dirt of
//! each later transaction group laid over it, oldest first. At most two groups have dirt (the open
//! one and the one being written), and dirt of a group that is being written does not change.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cenote_format::{BlockPointer, Dnode, ObjectId, Objset, Txg};
use parking_lot::{Mutex, RwLock};

use super::charge::{DirtyDnodes, Indirects};
use super::early::EarlyBlocks;
use super::numbers::Numbers;
use super::ranges::BlockRanges;
use super::savepoint::Savepoint;
use crate::txg::{Account, DirtyMark, Tx};
use crate::{Error, Result};

/// Parts of the table of live objects.
const SHARDS: usize = 64;
/// Clean objects one part of the table keeps.
const CLEAN_KEPT: usize = 512;

/// The state of a live set.
pub(super) struct Live {
    shards: Vec<Mutex<HashMap<u64, Arc<LiveObject>>>>,
    committed: RwLock<Arc<Committed>>,
    /// Counts the groups committed: a dnode that was read before one may be stale after it.
    generation: AtomicU64,
    /// Objects with dirt, by group modulo 4.
    dirty: [Mutex<Vec<Arc<LiveObject>>>; 4],
    pub(super) numbers: Mutex<Numbers>,
    /// The intent-log header the next sync writes.
    pub(super) zil_header: Mutex<Option<Vec<u8>>>,
    /// A name of more than 255 bytes was given.
    pub(super) long_names: AtomicBool,
    pub(super) savepoint: Savepoint,
    /// Where changes promise what they can cost; those of the meta object set do not.
    pub(super) account: OnceLock<Arc<Account>>,
    /// Told when a group begins to change the set; of a set that is not open by itself nobody is told.
    pub(super) dirty_mark: OnceLock<DirtyMark>,
    /// What was promised for dnodes.
    pub(super) dirty_dnodes: DirtyDnodes,
}

/// What the last group on the disks holds.
pub(super) struct Committed {
    /// Pointer to the root block; a hole before the first sync.
    pub root: BlockPointer,
    /// The root block.
    pub header: Objset,
    /// The array of dnodes.
    pub meta: Arc<Dnode>,
}

impl Committed {
    pub(super) fn new(root: BlockPointer, header: Objset) -> Self {
        let meta = Arc::new(header.meta_dnode.clone());
        Self { root, header, meta }
    }
}

/// One object of a live set.
pub(super) struct LiveObject {
    pub(super) id: ObjectId,
    pub(super) state: RwLock<ObjectState>,
}

/// What is known of a live object.
#[derive(Clone)]
pub(super) struct ObjectState {
    /// The dnode on the disks, with its block tree; `None`: there is none.
    pub committed: Option<Arc<Dnode>>,
    /// The newest dnode; `None`: the object is free. Its pointers, levels and space are those of
    /// the last commit.
    pub current: Option<Arc<Dnode>>,
    /// Changes by transaction group, oldest first; at most two.
    pub dirt: Vec<Dirt>,
}

/// What one transaction group changes of one object.
#[derive(Clone)]
pub(super) struct Dirt {
    pub txg: Txg,
    /// The dnode as this group leaves it, set when a later group begins to change it.
    pub frozen: Option<Option<Arc<Dnode>>>,
    /// The object was freed in this group (and perhaps made anew): nothing of the tree before it
    /// is left.
    pub reset: bool,
    /// Blocks that are holes now, unless they are in `blocks` or `cloned`.
    pub freed: BlockRanges,
    /// New content of level-0 blocks.
    pub blocks: BTreeMap<u64, Bytes>,
    /// Level-0 blocks that are cloned: another part of the set has them, too. None of them is in
    /// `blocks`.
    pub cloned: BTreeMap<u64, BlockPointer>,
    /// Which of them lie on the disks already.
    pub early: EarlyBlocks,
    /// Some blocks were written in parts, and others may be next.
    pub in_parts: bool,
    /// How often a whole block was written that does not follow another of the group.
    pub jumps: u32,
    /// New spill block, or its removal.
    pub spill: Option<Option<Bytes>>,
    /// Indirect blocks that were promised.
    pub indirects: Indirects,
}

impl Dirt {
    /// Whether the blocks are worth memory once they are on the disks: what is written from one end to
    /// the other is seldom looked at soon, and a stream begins once a group.
    pub fn is_scattered(&self) -> bool {
        self.in_parts || self.jumps > 1
    }

    fn new(txg: Txg) -> Self {
        Self {
            txg,
            frozen: None,
            reset: false,
            freed: BlockRanges::default(),
            blocks: BTreeMap::new(),
            cloned: BTreeMap::new(),
            early: EarlyBlocks::default(),
            in_parts: false,
            jumps: 0,
            spill: None,
            indirects: Indirects::new(),
        }
    }
}

/// Where the newest content of a block is.
pub(super) enum Content {
    /// Changed since the last commit.
    Dirty(Bytes),
    /// Cloned since the last commit, from a block that is on the disks.
    Cloned(BlockPointer),
    /// Freed since the last commit.
    Hole,
    /// As committed.
    Committed,
}

impl ObjectState {
    pub(super) fn clean(dnode: Arc<Dnode>) -> Self {
        Self { committed: Some(dnode.clone()), current: Some(dnode), dirt: Vec::new() }
    }

    fn absent() -> Self {
        Self { committed: None, current: None, dirt: Vec::new() }
    }

    /// There is no such object, and was none since the last commit.
    pub(super) fn is_absent(&self) -> bool {
        self.committed.is_none() && self.current.is_none() && self.dirt.is_empty()
    }

    /// Newest content of level-0 block `id`.
    pub(super) fn content(&self, id: u64) -> Content {
        for dirt in self.dirt.iter().rev() {
            if let Some(block) = dirt.blocks.get(&id) {
                return Content::Dirty(block.clone());
            }
            if let Some(pointer) = dirt.cloned.get(&id) {
                return Content::Cloned(*pointer);
            }
            if dirt.reset || dirt.freed.contains(id) {
                return Content::Hole;
            }
        }
        match (&self.committed, &self.current) {
            // Blocks changed their size since: the only one, if it holds anything, is in `dirt`.
            (Some(old), Some(now)) if old.block_size() != now.block_size() => Content::Hole,
            // Behind its end there is nothing to read.
            (Some(committed), _) if id <= committed.max_block_id => Content::Committed,
            _ => Content::Hole,
        }
    }

    /// Newest spill block, if it was changed since the last commit.
    pub(super) fn dirty_spill(&self) -> Option<Option<Bytes>> {
        for dirt in self.dirt.iter().rev() {
            if let Some(spill) = &dirt.spill {
                return Some(spill.clone());
            }
            if dirt.reset {
                return Some(None);
            }
        }
        None
    }

    /// The newest dnode, to change it. Fails if the object is free.
    pub(super) fn current_mut(&mut self) -> Result<&mut Dnode> {
        match &mut self.current {
            Some(current) => Ok(Arc::make_mut(current)),
            None => Err(Error::not_found("the object was freed")),
        }
    }
}

impl LiveObject {
    /// Runs `change` on the object's state and its dirt of `tx`'s group, which is made if needed.
    pub(super) fn change<T>(
        self: &Arc<Self>,
        live: &Live,
        tx: &Tx,
        change: impl FnOnce(&mut ObjectState, &mut Dirt) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.state.write();
        let state = &mut *state;
        live.savepoint.remember(self, state)?;
        let newest = state.dirt.last().map(|dirt| dirt.txg);
        match newest {
            Some(newest) if newest == tx.txg() => {}
            Some(newest) if newest > tx.txg() => {
                let reason = format!("change in group {} after one in group {newest}", tx.txg());
                return Err(Error::corrupt(reason).at(|place| place.object = Some(self.id.0)));
            }
            _ => {
                if let Some(last) = state.dirt.last_mut() {
                    last.frozen.get_or_insert_with(|| state.current.clone());
                }
                // Few objects have more, and many may have this one.
                state.dirt.reserve_exact(1);
                state.dirt.push(Dirt::new(tx.txg()));
                live.note_dirty(tx.txg(), self.clone());
                live.promise_dnode(tx.txg(), self.id.0);
            }
        }
        let Some(mut dirt) = state.dirt.pop() else {
            return Err(Error::bug("an object without the dirt just made"));
        };
        let result = change(state, &mut dirt);
        state.dirt.push(dirt);
        result
    }

    /// The dirt of group `txg` and the dnode as that group leaves it (`None`: freed), for the
    /// writer. The group must be closed.
    pub(super) fn closed<T>(
        &self,
        txg: Txg,
        look: impl FnOnce(&ObjectState, &Dirt, Option<Arc<Dnode>>) -> T,
    ) -> Option<T> {
        let state = self.state.read();
        let dirt = state.dirt.iter().find(|dirt| dirt.txg == txg)?;
        let dnode = dirt.frozen.clone().unwrap_or_else(|| state.current.clone());
        Some(look(&state, dirt, dnode))
    }

    /// Group `txg` is on the disks: `dnode` is what it left there.
    pub(super) fn commit(&self, txg: Txg, dnode: Option<Arc<Dnode>>) {
        let mut state = self.state.write();
        let state = &mut *state;
        state.dirt.retain(|dirt| dirt.txg > txg);
        let reset_since = state.dirt.iter().any(|dirt| dirt.reset);
        match (&dnode, &mut state.current) {
            (Some(committed), Some(current)) if !state.dirt.is_empty() && !reset_since => {
                let current = Arc::make_mut(current);
                current.pointers.clone_from(&committed.pointers);
                current.levels = committed.levels;
                current.used = committed.used;
                let kept = cenote_format::dnode::FLAG_SPILL;
                current.flags = current.flags & kept | committed.flags & !kept;
                if current.spill.is_some() {
                    current.spill = committed.spill.or(current.spill);
                }
            }
            _ if state.dirt.is_empty() => state.current = dnode.clone(),
            _ => {}
        }
        state.committed = dnode;
    }

    fn is_clean(&self) -> bool {
        self.state.try_read().is_some_and(|state| state.dirt.is_empty())
    }
}

impl Live {
    pub(super) fn new(committed: Committed) -> Self {
        let end = committed.meta.max_block_id;
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            committed: RwLock::new(Arc::new(committed)),
            generation: AtomicU64::new(0),
            dirty: Default::default(),
            numbers: Mutex::new(Numbers::new(end)),
            zil_header: Mutex::new(None),
            long_names: AtomicBool::new(false),
            savepoint: Savepoint::default(),
            account: OnceLock::new(),
            dirty_mark: OnceLock::new(),
            dirty_dnodes: DirtyDnodes::default(),
        }
    }

    pub(super) fn committed(&self) -> Arc<Committed> {
        self.committed.read().clone()
    }

    /// Changes what the next root block is made from.
    pub(super) fn change_header(&self, change: impl FnOnce(&mut Objset)) {
        let mut committed = self.committed.write();
        let mut header = committed.header.clone();
        change(&mut header);
        *committed = Arc::new(Committed::new(committed.root, header));
    }

    fn shard(&self, id: u64) -> Option<&Mutex<HashMap<u64, Arc<LiveObject>>>> {
        // Neighbours lie in different parts.
        self.shards.get((id % SHARDS as u64) as usize)
    }

    fn note_dirty(&self, txg: Txg, object: Arc<LiveObject>) {
        let Some(list) = self.dirty.get((txg.0 & 3) as usize) else { return };
        let is_first = {
            let mut list = list.lock();
            list.push(object);
            list.len() == 1
        };
        if let Some(mark) = self.dirty_mark.get().filter(|_| is_first) {
            mark.mark(txg);
        }
    }

    /// How many objects were noted as changed by group `txg`.
    pub(super) fn dirty_count(&self, txg: Txg) -> usize {
        self.dirty.get((txg.0 & 3) as usize).map_or(0, |list| list.lock().len())
    }

    /// Forgets all but the first `count` objects noted as changed by group `txg`.
    pub(super) fn shorten_dirty(&self, txg: Txg, count: usize) {
        if let Some(list) = self.dirty.get((txg.0 & 3) as usize) {
            list.lock().truncate(count);
        }
    }

    /// Forgets an object that never came to be.
    pub(super) fn forget(&self, id: u64) {
        if let Some(shard) = self.shard(id) {
            shard.lock().remove(&id);
        }
    }

    /// Takes the objects that group `txg` changed since the last call.
    pub(super) fn take_dirty(&self, txg: Txg) -> Vec<Arc<LiveObject>> {
        self.dirty
            .get((txg.0 & 3) as usize)
            .map(|list| std::mem::take(&mut *list.lock()))
            .unwrap_or_default()
    }

    /// Looks at the objects that group `txg` changed.
    pub(super) fn each_dirty(&self, txg: Txg, look: impl FnMut(&Arc<LiveObject>)) {
        if let Some(list) = self.dirty.get((txg.0 & 3) as usize) {
            list.lock().iter().for_each(look);
        }
    }

    /// Whether group `txg` changed anything.
    pub(super) fn is_dirty(&self, txg: Txg) -> bool {
        let objects = self.dirty.get((txg.0 & 3) as usize);
        objects.is_some_and(|list| !list.lock().is_empty())
    }

    /// The object if it is in the table.
    pub(super) fn known(&self, id: u64) -> Option<Arc<LiveObject>> {
        self.shard(id)?.lock().get(&id).cloned()
    }

    /// The objects in the table whose numbers are `wanted`.
    pub(super) fn all_known(&self, wanted: impl Fn(u64) -> bool) -> Vec<Arc<LiveObject>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            found.extend(
                shard.iter().filter(|(id, _)| wanted(**id)).map(|(_, known)| known.clone()),
            );
        }
        found
    }

    /// The object, made by `load` (which gives its committed dnode) where the table does not have
    /// it. `None` if it is free.
    pub(super) fn find(
        &self,
        id: u64,
        load: impl Fn() -> Result<Option<Arc<Dnode>>>,
    ) -> Result<Option<Arc<LiveObject>>> {
        loop {
            if let Some(known) = self.known(id) {
                return Ok(Some(known));
            }
            let generation = self.generation.load(Relaxed);
            let Some(dnode) = load()? else { return Ok(None) };
            let Some(shard) = self.shard(id) else { return Ok(None) };
            let mut shard = shard.lock();
            if self.generation.load(Relaxed) != generation {
                continue;
            }
            if shard.len() >= CLEAN_KEPT {
                shard.retain(|_, object| Arc::strong_count(object) > 1 || !object.is_clean());
            }
            let state = RwLock::new(ObjectState::clean(dnode));
            let fresh = || Arc::new(LiveObject { id: ObjectId(id), state });
            return Ok(Some(shard.entry(id).or_insert_with(fresh).clone()));
        }
    }

    /// The object, or a free one of this number to be made.
    pub(super) fn find_or_absent(
        &self,
        id: u64,
        load: impl Fn() -> Result<Option<Arc<Dnode>>>,
    ) -> Result<Arc<LiveObject>> {
        if let Some(found) = self.find(id, load)? {
            return Ok(found);
        }
        let Some(shard) = self.shard(id) else { return Err(Error::bug("no shard")) };
        let fresh =
            || Arc::new(LiveObject { id: ObjectId(id), state: RwLock::new(ObjectState::absent()) });
        Ok(shard.lock().entry(id).or_insert_with(fresh).clone())
    }

    /// Group `txg` is on the disks: `committed` is what it left, `objects` the dnodes of the
    /// objects it changed.
    pub(super) fn commit(
        &self,
        txg: Txg,
        committed: Committed,
        objects: Vec<(Arc<LiveObject>, Option<Arc<Dnode>>)>,
    ) {
        *self.committed.write() = Arc::new(committed);
        self.dirty_dnodes.forget(txg);
        for (object, dnode) in objects {
            object.commit(txg, dnode);
            let free = object.state.read().current.is_none();
            if free {
                self.numbers.lock().freed(object.id.0);
                // A free object that nobody changes again is not kept.
                if let Some(shard) = self.shard(object.id.0) {
                    let mut shard = shard.lock();
                    let state = object.state.read();
                    if state.current.is_none() && state.dirt.is_empty() {
                        shard.remove(&object.id.0);
                    }
                }
            }
        }
        self.generation.fetch_add(1, Relaxed);
    }
}
