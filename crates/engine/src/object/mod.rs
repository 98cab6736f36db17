//! Object sets and objects: dnodes, block trees, holes.
//!
//! Chapter 04, sections 1-4. Invariant: a walk down a block tree strictly descends (every pointer's
//! level is checked), so no image can make it loop.

mod tree;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cenote_format::dnode::{self, SLOT, SLOTS_PER_BLOCK};
use cenote_format::objset::ObjsetKind;
use cenote_format::{BlockPointer, Dnode, ObjectId, ObjectType, Objset};
use quick_cache::sync::Cache;
use smallvec::SmallVec;

use crate::pipe::{Decryptor, PoolIo, ReadContext, zeros};
use crate::{Error, Result};

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
        Ok(Self(Arc::new(Inner { io: io.clone(), context, root, header, meta, dnodes })))
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
        Object { set: self.clone(), id: ObjectId(0), dnode: self.0.meta.clone() }
    }

    /// One of the space-accounting objects: user, group, project.
    pub fn accounting_object(&self, which: Accounting) -> Option<Object> {
        let (dnode, id) = match which {
            Accounting::User => (&self.0.header.user_used, u64::MAX),
            Accounting::Group => (&self.0.header.group_used, u64::MAX - 1),
            Accounting::Project => (&self.0.header.project_used, u64::MAX - 2),
        };
        let dnode = Arc::new(dnode.clone()?);
        Some(Object { set: self.clone(), id: ObjectId(id), dnode })
    }

    /// The dnode of object `id`; [`crate::ErrorKind::NotFound`] if the slot is free.
    pub fn dnode(&self, id: ObjectId) -> Result<Arc<Dnode>> {
        if let Some(dnode) = self.0.dnodes.get(&id.0) {
            return Ok(dnode);
        }
        let absent = || Error::not_found("no such object").at_object(self.id(), id.0);
        if id.0 == 0 || id.0 >= OBJECTS_END {
            return Err(absent());
        }
        let (block, slot) = (id.0 / SLOTS_PER_BLOCK, id.0 % SLOTS_PER_BLOCK);
        if block > self.0.meta.max_block_id {
            return Err(absent());
        }
        let data = self.meta_object().read_block(block)?;
        let from = |slot: u64| data.get(slot as usize * SLOT..).unwrap_or(&[]);
        // The number must be that of a dnode's first slot, not of its inside.
        let mut start = 0;
        while start < slot {
            start += Dnode::slots_at(from(start));
        }
        if start != slot {
            return Err(absent());
        }
        let dnode = Dnode::decode(from(slot))
            .map_err(|error| Error::from(error).at_object(self.id(), id.0))?
            .ok_or_else(absent)?;
        let dnode = Arc::new(dnode);
        self.0.dnodes.insert(id.0, dnode.clone());
        Ok(dnode)
    }

    /// Object `id`.
    pub fn object(&self, id: ObjectId) -> Result<Object> {
        Ok(Object { set: self.clone(), id, dnode: self.dnode(id)? })
    }

    /// The first allocated object with a number above `after`.
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
}

impl Object {
    /// An object whose dnode the caller already has.
    pub fn from_parts(set: ObjectSet, id: ObjectId, dnode: Arc<Dnode>) -> Self {
        Self { set, id, dnode }
    }

    /// Its number.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Its dnode.
    pub fn dnode(&self) -> &Dnode {
        &self.dnode
    }

    /// The set it belongs to.
    pub fn set(&self) -> &ObjectSet {
        &self.set
    }

    /// Data block size in bytes.
    pub fn block_size(&self) -> u64 {
        self.dnode.block_size()
    }

    /// Number of level-0 blocks up to the highest ever written.
    pub fn block_count(&self) -> u64 {
        self.dnode.max_block_id.saturating_add(1)
    }

    fn named(&self, error: Error) -> Error {
        error.at_object(self.set.id(), self.id.0)
    }

    /// Level-0 block `id`: exactly `block_size` bytes, zeros for holes and beyond the end.
    pub fn read_block(&self, id: u64) -> Result<Bytes> {
        let read = || {
            let bp = self.pointer(0, id)?;
            let block = self.set.0.io.pipe.read(&bp, &self.set.0.context)?;
            self.sized(&bp, block)
        };
        read().map_err(|error| self.named(error).at(|place| place.block = Some((0, id))))
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
        let mut pieces = Pieces::new();
        let (size, end) = (self.block_size(), offset.saturating_add(len as u64));
        if len == 0 {
            return Ok(pieces);
        }
        let (first, last) = (offset / size, (end - 1) / size);
        let pointers = self.pointers(first, last).map_err(|error| self.named(error))?;
        let blocks = self.set.0.io.pipe.read_many(&pointers, &self.set.0.context);
        for (index, (bp, block)) in pointers.iter().zip(blocks).enumerate() {
            let id = first + index as u64;
            let block = block
                .and_then(|block| self.sized(bp, block))
                .map_err(|error| self.named(error).at(|place| place.block = Some((0, id))))?;
            let start = id.saturating_mul(size);
            let from = offset.saturating_sub(start).min(size) as usize;
            let to = end.saturating_sub(start).min(size) as usize;
            pieces.push(block.slice(from.min(to)..to));
        }
        Ok(pieces)
    }

    /// Bytes `offset..offset + len` as one vector.
    pub fn read_vec(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(len);
        // Block by block groups: a huge `len` must not hold all pieces at once.
        let step = 1 << 20;
        while out.len() < len {
            let at = offset.saturating_add(out.len() as u64);
            for piece in self.read(at, step.min(len - out.len()))? {
                out.extend_from_slice(&piece);
            }
        }
        Ok(out)
    }

    /// Loads a range into the cache in the background; only a hint. What `position` (a byte offset
    /// that the reader moves on) has passed by the time its turn comes is not loaded.
    pub fn prefetch(&self, offset: u64, len: u64, position: &Arc<AtomicU64>) {
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
        let size = self.block_size();
        let (first, end) = (offset / size, offset.saturating_add(len) / size);
        let Some(last) = end.checked_sub(1).filter(|last| *last >= first) else { return };
        if let Ok(pointers) = self.pointers(first, last) {
            self.set.0.io.pipe.forget(&pointers);
        }
    }

    /// The spill block of system attributes, if there is one.
    pub fn spill(&self) -> Result<Option<Bytes>> {
        let Some(bp) = &self.dnode.spill else { return Ok(None) };
        if bp.is_hole() {
            return Ok(None);
        }
        let block = self.set.0.io.pipe.read(bp, &self.set.0.context);
        block.map(Some).map_err(|error| self.named(error))
    }
}
