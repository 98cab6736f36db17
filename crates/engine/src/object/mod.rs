//! Object sets and objects: dnodes, block trees, holes.
//!
//! Chapter 04, sections 1-4. Invariant: a walk down a block tree strictly descends (every pointer's
//! level is checked), so no image can make it loop.

mod ahead;
mod appended;
mod base;
mod changed;
mod charge;
mod clone;
mod creating;
mod early;
mod live;
mod need;
mod numbers;
mod occupied;
mod overlay;
mod plan;
mod ranges;
mod savepoint;
mod sealed;
mod sync;
mod together;
mod tree;
mod write;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cenote_format::dnode::{self, SLOT, SLOTS_PER_BLOCK};
use cenote_format::objset::ObjsetKind;
use cenote_format::{BlockPointer, Dnode, ObjectId, ObjectType, Objset};
use quick_cache::sync::Cache;
use smallvec::SmallVec;

use crate::pipe::{Decryptor, Fault, PoolIo, ReadContext, zeros};
use crate::{Error, Result};

pub use appended::Appended;
pub use base::Base;
pub use early::{DirtyBlock, DirtyBlocks, EarlyBlock};
pub use occupied::Occupied;
pub use sync::{Ledger, SyncContext, Synced, SyncedObject};
pub use together::{SetToSync, sync_objects, sync_roots};
pub use write::{INDIRECT_SHIFT, NewObject};

use live::{Committed, Live, LiveObject};

/// Object numbers end here.
const OBJECTS_END: u64 = 1 << 48;
/// Blocks without any object that a search passes over before it gives up.
const MAX_EMPTY: u32 = 1 << 20;
/// Decoded dnodes kept per object set.
const DNODES_CACHED: usize = 16384;

/// A dataset's, snapshot's or pool's set of objects. Cheap to clone.
#[derive(Clone)]
pub struct ObjectSet(Arc<Inner>);

struct Inner {
    io: Arc<PoolIo>,
    context: ReadContext,
    root: BlockPointer,
    header: Objset,
    meta: Arc<Dnode>,
    dnodes: Cache<u64, Arc<Dnode>>,
    live: Option<Live>,
}

/// Pieces of data in order; together exactly the bytes asked for.
pub type Pieces = SmallVec<[Bytes; 4]>;

impl ObjectSet {
    /// Opens the object set behind `root`. `id` is the dataset's object number (0: the MOS).
    ///
    /// Without `decryptor` an encrypted set opens, but its objects answer
    /// [`crate::ErrorKind::KeyNotLoaded`].
    pub fn open(
        io: &Arc<PoolIo>,
        root: BlockPointer,
        id: u64,
        decryptor: Option<Arc<dyn Decryptor>>,
    ) -> Result<Self> {
        let context = ReadContext { decryptor, objset: id, ..ReadContext::default() };
        Self::open_with(io, root, context)
    }

    /// Opens the object set behind `root` for reading as `context` says.
    pub fn open_with(io: &Arc<PoolIo>, root: BlockPointer, context: ReadContext) -> Result<Self> {
        let id = context.objset;
        let header = if root.is_hole() {
            None
        } else {
            if root.object_type() != ObjectType::OBJSET || root.level().0 != 0 {
                let name = root.object_type().name();
                let reason = format!("the root pointer is of type '{name}', not an object set");
                return Err(Error::corrupt(reason).at_object(id, 0));
            }
            let block = io.pipe.read(&root, &context)?;
            Some(Objset::decode(&block).map_err(|e| Error::from(e).at_object(id, 0))?)
        };
        let header = header.unwrap_or_else(empty_objset);
        let meta = Arc::new(header.meta_dnode.clone());
        let dnodes = Cache::new(DNODES_CACHED);
        let live = None;
        Ok(Self(Arc::new(Inner { io: io.clone(), context, root, header, meta, dnodes, live })))
    }

    /// Opens the object set behind `root` to be changed. Its own `header` and `root_pointer` stay
    /// those of when it was opened.
    pub fn open_live(io: &Arc<PoolIo>, root: BlockPointer, context: ReadContext) -> Result<Self> {
        let set = Self::open_with(io, root, context)?;
        Ok(Self::live_from(io, set.0.context.clone(), root, set.0.header.clone()))
    }

    /// A new, empty set to be filled. `id` is the dataset's object number (0: the MOS).
    pub fn new_live(io: &Arc<PoolIo>, context: ReadContext, kind: ObjsetKind) -> Self {
        let mut header = empty_objset();
        header.kind = kind;
        if kind != ObjsetKind::Meta {
            // Chapter 04, section 3: deep enough for every object number from the start.
            header.meta_dnode.levels = 6;
        }
        Self::live_from(io, context, BlockPointer::HOLE, header)
    }

    fn live_from(
        io: &Arc<PoolIo>,
        context: ReadContext,
        root: BlockPointer,
        header: Objset,
    ) -> Self {
        let live = Some(Live::new(Committed::new(root, header.clone())));
        let meta = Arc::new(header.meta_dnode.clone());
        let dnodes = Cache::new(0);
        Self(Arc::new(Inner { io: io.clone(), context, root, header, meta, dnodes, live }))
    }

    /// Whether the set can be changed.
    pub fn is_live(&self) -> bool {
        self.0.live.is_some()
    }

    /// A file got a name of more than 255 bytes, for which the dataset needs the feature `longname`.
    pub fn note_long_name(&self) {
        if let Some(live) = &self.0.live {
            live.long_names.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Whether a file got such a name since the set was opened.
    pub fn has_long_names(&self) -> bool {
        let noted = |live: &Live| live.long_names.load(std::sync::atomic::Ordering::Relaxed);
        self.0.live.as_ref().is_some_and(noted)
    }

    /// Whether transaction group `txg` changed anything that is not on the disks.
    pub fn is_dirty(&self, txg: cenote_format::Txg) -> bool {
        self.0.live.as_ref().is_some_and(|live| live.is_dirty(txg))
    }

    /// Object number of the dataset (0: the MOS).
    pub fn id(&self) -> u64 {
        self.0.context.objset
    }

    /// What the set holds.
    pub fn kind(&self) -> ObjsetKind {
        self.0.header.kind
    }

    /// The decoded root block.
    pub fn header(&self) -> &Objset {
        &self.0.header
    }

    /// Pointer to the root block.
    pub fn root_pointer(&self) -> &BlockPointer {
        &self.0.root
    }

    /// How blocks of this set are read.
    pub fn context(&self) -> &ReadContext {
        &self.0.context
    }

    /// Where blocks of this set are read from.
    pub fn io(&self) -> &Arc<PoolIo> {
        &self.0.io
    }

    /// The array of all dnodes, as an object.
    pub fn meta_object(&self) -> Object {
        let live = self.0.live.as_ref();
        let dnode = live.map_or_else(|| self.0.meta.clone(), |live| live.committed().meta.clone());
        Object { set: self.clone(), id: ObjectId(0), dnode, live: None }
    }

    /// One of the space-accounting objects: user, group, project.
    pub fn accounting_object(&self, which: Accounting) -> Option<Object> {
        let id = which.id();
        if let Some(live) = &self.0.live {
            let dnode = || Ok(live.committed().header.accounting(which).cloned().map(Arc::new));
            let object = live.find(id, dnode).ok()??;
            let dnode = object.state.read().current.clone()?;
            return Some(Object { set: self.clone(), id: ObjectId(id), dnode, live: Some(object) });
        }
        self.stored_accounting(which)
    }

    /// The same as the newest group on the disks has it: while the writer of groups changes its tables, nobody
    /// else can read them.
    pub fn stored_accounting(&self, which: Accounting) -> Option<Object> {
        let dnode = match &self.0.live {
            Some(live) => live.committed().header.accounting(which).cloned(),
            None => self.0.header.accounting(which).cloned(),
        };
        Some(Object {
            set: self.clone(),
            id: ObjectId(which.id()),
            dnode: Arc::new(dnode?),
            live: None,
        })
    }

    /// The dnode of object `id`; [`crate::ErrorKind::NotFound`] if the slot is free.
    pub fn dnode(&self, id: ObjectId) -> Result<Arc<Dnode>> {
        self.object(id).map(|object| object.dnode)
    }

    fn absent(&self, id: u64) -> Error {
        Error::not_found("no such object").at_object(self.id(), id)
    }

    /// The dnode of object `id` on the disks; `None` if the slot is free.
    fn committed_dnode(&self, id: u64) -> Result<Option<Arc<Dnode>>> {
        if id == 0 || id >= OBJECTS_END {
            return Ok(None);
        }
        let (block, slot) = (id / SLOTS_PER_BLOCK, id % SLOTS_PER_BLOCK);
        let meta = self.meta_object();
        if block > meta.dnode.max_block_id {
            return Ok(None);
        }
        let data = meta.read_block(block)?;
        let from = |slot: u64| data.get(slot as usize * SLOT..).unwrap_or(&[]);
        // The number must be that of a dnode's first slot, not of its inside.
        let mut start = 0;
        while start < slot {
            start += Dnode::slots_at(from(start));
        }
        if start != slot {
            return Ok(None);
        }
        let dnode = Dnode::decode(from(slot))
            .map_err(|error| Error::from(error).at_object(self.id(), id))?;
        Ok(dnode.map(Arc::new))
    }

    /// Object `id`.
    pub fn object(&self, id: ObjectId) -> Result<Object> {
        let absent = || self.absent(id.0);
        if let Some(live) = &self.0.live {
            if id.0 >= OBJECTS_END {
                return Err(absent());
            }
            let object = live.find(id.0, || self.committed_dnode(id.0))?.ok_or_else(absent)?;
            let dnode = object.state.read().current.clone().ok_or_else(absent)?;
            return Ok(Object { set: self.clone(), id, dnode, live: Some(object) });
        }
        let dnode = match self.0.dnodes.get(&id.0) {
            Some(dnode) => dnode,
            None => {
                let dnode = self.committed_dnode(id.0)?.ok_or_else(absent)?;
                self.0.dnodes.insert(id.0, dnode.clone());
                dnode
            }
        };
        Ok(Object { set: self.clone(), id, dnode, live: None })
    }

    /// The first allocated object with a number above `after`.
    ///
    /// In a live set objects that are not on the disks yet are not found.
    pub fn next_object(&self, after: u64) -> Result<Option<ObjectId>> {
        let meta = self.meta_object();
        let mut from = after.saturating_add(1);
        for _ in 0..MAX_EMPTY {
            let Some(block) = meta.next_data_block(from / SLOTS_PER_BLOCK)? else {
                return Ok(None);
            };
            if block >= OBJECTS_END / SLOTS_PER_BLOCK {
                return Ok(None);
            }
            let first = block * SLOTS_PER_BLOCK;
            let data = meta.read_block(block)?;
            for (slot, _) in dnode::dnodes_in_block(&data) {
                let number = first + slot;
                if number >= from && number != 0 {
                    return Ok(Some(ObjectId(number)));
                }
            }
            from = first + SLOTS_PER_BLOCK;
        }
        let reason = format!("no object in {MAX_EMPTY} blocks of dnodes after {after}");
        Err(Error::corrupt(reason).at_object(self.id(), 0))
    }
}

/// Which space accounting (chapter 04, section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounting {
    /// By owner.
    User,
    /// By group.
    Group,
    /// By project id.
    Project,
}

impl Accounting {
    /// The pseudo object number. Chapter 04, section 1.
    pub fn id(self) -> u64 {
        match self {
            Self::User => u64::MAX,
            Self::Group => u64::MAX - 1,
            Self::Project => u64::MAX - 2,
        }
    }
}

/// The part of an object set's root block that holds a special dnode.
trait SpecialDnodes {
    fn accounting(&self, which: Accounting) -> Option<&Dnode>;
}

impl SpecialDnodes for Objset {
    fn accounting(&self, which: Accounting) -> Option<&Dnode> {
        match which {
            Accounting::User => self.user_used.as_ref(),
            Accounting::Group => self.group_used.as_ref(),
            Accounting::Project => self.project_used.as_ref(),
        }
    }
}

/// The set behind a hole: a dataset without objects, such as `$ORIGIN`.
fn empty_objset() -> Objset {
    Objset {
        meta_dnode: Dnode {
            object_type: ObjectType::DNODE,
            indirect_shift: 17,
            levels: 1,
            bonus_type: ObjectType::NONE,
            checksum: 0,
            compression: 0,
            flags: 0,
            data_block_sectors: 32,
            bonus_len: 0,
            extra_slots: 0,
            max_block_id: 0,
            used: 0,
            pointers: SmallVec::from_elem(BlockPointer::HOLE, 3),
            bonus_area: Vec::new(),
            spill: None,
        },
        zil_header: [0; cenote_format::objset::ZIL_HEADER],
        kind: ObjsetKind::None,
        flags: 0,
        portable_mac: [0; 32],
        local_mac: [0; 32],
        user_used: None,
        group_used: None,
        project_used: None,
        size: 4096,
    }
}

/// One object of a set. Cheap to clone.
#[derive(Clone)]
pub struct Object {
    set: ObjectSet,
    id: ObjectId,
    dnode: Arc<Dnode>,
    live: Option<Arc<LiveObject>>,
}

impl Object {
    /// An object whose dnode the caller already has.
    pub fn from_parts(set: ObjectSet, id: ObjectId, dnode: Arc<Dnode>) -> Self {
        Self { set, id, dnode, live: None }
    }

    /// Its number.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Its dnode as of when the object was opened.
    pub fn dnode(&self) -> &Dnode {
        &self.dnode
    }

    /// The set it belongs to.
    pub fn set(&self) -> &ObjectSet {
        &self.set
    }

    /// Data block size in bytes.
    pub fn block_size(&self) -> u64 {
        match &self.live {
            Some(live) => match &live.state.read().current {
                Some(current) => current.block_size(),
                None => self.dnode.block_size(),
            },
            None => self.dnode.block_size(),
        }
    }

    /// Number of level-0 blocks up to the highest ever written.
    pub fn block_count(&self) -> u64 {
        let last = self.current_dnode().map_or(0, |dnode| dnode.max_block_id);
        last.saturating_add(1)
    }

    fn named(&self, error: Error) -> Error {
        error.at_object(self.set.id(), self.id.0)
    }

    /// Names the level-0 block that could not be read, and takes note of it.
    fn unread(&self, error: Error, block: u64) -> Error {
        let error = self.named(error).at(|place| place.block = Some((0, block)));
        self.set.0.io.pipe.note_fault(&error);
        error
    }

    /// Takes note that a level-0 block was read.
    fn was_read(&self, block: u64) {
        let (objset, object) = (self.set.id(), self.id.0);
        let fault = Fault { objset, object, block: Some((0, block)) };
        self.set.0.io.pipe.faults().was_read(&fault);
    }

    /// Level-0 block `id`: exactly `block_size` bytes, zeros for holes and beyond the end.
    pub fn read_block(&self, id: u64) -> Result<Bytes> {
        if self.live.is_some() {
            return self.read_live_block(id);
        }
        let read = || {
            let bp = self.pointer(0, id)?;
            let block = self.set.0.io.pipe.read(&bp, &self.set.0.context)?;
            self.sized(&bp, block)
        };
        let block = read().map_err(|error| self.unread(error, id))?;
        self.was_read(id);
        Ok(block)
    }

    /// Brings a block to the object's block size, whatever its pointer claims.
    fn sized(&self, bp: &BlockPointer, block: Bytes) -> Result<Bytes> {
        let size = self.block_size();
        if block.len() as u64 == size {
            return Ok(block);
        }
        if bp.is_hole() {
            return Ok(zeros(size));
        }
        Err(Error::corrupt(format!("block of {} bytes in an object of {size}", block.len())))
    }

    /// Bytes `offset..offset + len`; holes and what lies beyond the last block read as zeros.
    ///
    /// The caller clips to the length of the file.
    pub fn read(&self, offset: u64, len: usize) -> Result<Pieces> {
        if self.live.is_some() {
            return self.read_live(offset, len);
        }
        let mut pieces = Pieces::new();
        let (size, end) = (self.block_size(), offset.saturating_add(len as u64));
        if len == 0 {
            return Ok(pieces);
        }
        let (first, last) = (offset / size, (end - 1) / size);
        for (id, block) in (first..).zip(self.read_blocks(first, last)?) {
            pieces.push(part_of(&block, id.saturating_mul(size), offset, end));
        }
        Ok(pieces)
    }

    /// Level-0 blocks `first..=last` of an object that is not live.
    fn read_blocks(&self, first: u64, last: u64) -> Result<Vec<Bytes>> {
        let pointers = self.pointers(first, last).map_err(|error| self.unread(error, first))?;
        let blocks = self.set.0.io.pipe.read_many(&pointers, &self.set.0.context);
        let mut out = Vec::with_capacity(blocks.len());
        for (id, (bp, block)) in (first..).zip(pointers.iter().zip(blocks)) {
            let block = block
                .and_then(|block| self.sized(bp, block))
                .map_err(|error| self.unread(error, id))?;
            self.was_read(id);
            out.push(block);
        }
        Ok(out)
    }

    /// Bytes `offset..offset + len` as one vector.
    pub fn read_vec(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(len.min(1 << 30));
        // Block by block groups: a huge `len` must not hold all pieces at once.
        let step = 1 << 20;
        while out.len() < len {
            let before = out.len();
            let at = offset.saturating_add(before as u64);
            for piece in self.read(at, step.min(len - before))? {
                out.extend_from_slice(&piece);
            }
            if out.len() == before {
                return Err(self.named(Error::corrupt("a read beyond 2^64 bytes")));
            }
        }
        Ok(out)
    }

    /// Loads a range into the cache in the background; only a hint. What `position` (a byte offset
    /// that the reader moves on) has passed by the time its turn comes is not loaded.
    pub fn prefetch(&self, offset: u64, len: u64, position: &Arc<AtomicU64>) {
        if self.live.is_some() {
            return self.committed_object().prefetch(offset, len, position);
        }
        let size = self.block_size();
        let last_block = self.dnode.max_block_id;
        let first = offset / size;
        let last = (offset.saturating_add(len).saturating_sub(1) / size).min(last_block);
        // One job is about a mebibyte, so that several threads share a large range.
        let step = ((1 << 20) / size).max(1);
        let mut from = first;
        while from <= last {
            let to = last.min(from.saturating_add(step - 1));
            let (object, position) = (self.clone(), position.clone());
            let asked = self.set.0.io.prefetcher.ask(move || {
                let passed = position.load(Ordering::Relaxed) / size;
                let from = from.max(passed);
                if from > to {
                    return;
                }
                if let Ok(pointers) = object.pointers(from, to) {
                    object.set.0.io.pipe.read_many(&pointers, &object.set.0.context);
                }
            });
            if !asked {
                break;
            }
            from = to + 1;
        }
    }

    /// Drops the blocks that end in a range from the cache: a stream has read them.
    pub fn forget(&self, offset: u64, len: u64) {
        if self.live.is_some() {
            return self.committed_object().forget(offset, len);
        }
        let size = self.block_size();
        let (first, end) = (offset / size, offset.saturating_add(len) / size);
        let Some(last) = end.checked_sub(1).filter(|last| *last >= first) else { return };
        if let Ok(pointers) = self.pointers(first, last) {
            self.set.0.io.pipe.forget(&pointers);
        }
    }

    /// The spill block of system attributes, if there is one.
    pub fn spill(&self) -> Result<Option<Bytes>> {
        if self.live.is_some() {
            return self.live_spill();
        }
        let Some(bp) = &self.dnode.spill else { return Ok(None) };
        if bp.is_hole() {
            return Ok(None);
        }
        let block = self.set.0.io.pipe.read(bp, &self.set.0.context);
        block.map(Some).map_err(|error| self.named(error))
    }
}

/// The part of a block, which begins at byte `start` of its object, that lies in bytes `offset..end`.
fn part_of(block: &Bytes, start: u64, offset: u64, end: u64) -> Bytes {
    let within = |at: u64| at.saturating_sub(start).min(block.len() as u64) as usize;
    let (from, to) = (within(offset), within(end));
    block.slice(from.min(to)..to)
}
