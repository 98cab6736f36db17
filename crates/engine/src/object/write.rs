//! Changing objects of a live set: allocate, write, free, bonus, spill.
//!
//! Invariant: a change touches only the dirt of its own transaction group; nothing here waits for a
//! disk while a lock is held. Callers serialise changes of one object. Chapter 04, sections 2 to 4.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cenote_format::dnode::{FLAG_SPILL, FLAG_USED_BYTES, SLOT};
use cenote_format::{BlockPointer, Dnode, ObjectId, ObjectType, blkptr};
use smallvec::SmallVec;

use super::base::Base;
use super::charge::Due;
use super::live::{Dirt, Live, LiveObject, ObjectState};
use super::{OBJECTS_END, Object, ObjectSet};
use crate::pipe::zeros;
use crate::txg::Tx;
use crate::{Error, ErrorKind, Result};

/// log2 of the size of new indirect blocks in bytes.
pub const INDIRECT_SHIFT: u8 = 17;

/// Bytes of memory that a new object takes beside its blocks until its group is written, about.
const MADE: u64 = 3 << 10;

/// What a new object is.
#[derive(Clone, Debug)]
pub struct NewObject {
    /// What the blocks hold.
    pub object_type: ObjectType,
    /// Data block size in bytes: a multiple of 512, at most 16 MiB.
    pub block_size: u64,
    /// log2 of the indirect block size in bytes (12 to 17).
    pub indirect_shift: u8,
    /// What the bonus holds.
    pub bonus_type: ObjectType,
    /// The bonus.
    pub bonus: Vec<u8>,
    /// 512-byte slots of the dnode (1 to 32).
    pub slots: u8,
    /// Compression id of its blocks; 0 inherits.
    pub compression: u8,
    /// Checksum id of its blocks; 0 inherits.
    pub checksum: u8,
}

impl NewObject {
    /// An object of blocks of `block_size` bytes, without a bonus, in one slot.
    pub fn new(object_type: ObjectType, block_size: u64) -> Self {
        Self {
            object_type,
            block_size,
            indirect_shift: INDIRECT_SHIFT,
            bonus_type: ObjectType::NONE,
            bonus: Vec::new(),
            slots: 1,
            compression: 0,
            checksum: 0,
        }
    }

    /// The same with a bonus.
    #[must_use]
    pub fn with_bonus(mut self, bonus_type: ObjectType, bonus: Vec<u8>) -> Self {
        self.bonus_type = bonus_type;
        self.bonus = bonus;
        self
    }

    /// The dnode of the new object. Chapter 04, section 2.
    pub(super) fn dnode(&self) -> Result<Dnode> {
        let bad = |what: String| Error::invalid(format!("a new object {what}"));
        let sectors = self.block_size / blkptr::SECTOR;
        if !self.block_size.is_multiple_of(blkptr::SECTOR) || !(1..=32768).contains(&sectors) {
            return Err(bad(format!("with blocks of {} bytes", self.block_size)));
        }
        if !(1..=32).contains(&self.slots) || !(12..=17).contains(&self.indirect_shift) {
            return Err(bad(format!(
                "of {} slots, indirect blocks 2^{}",
                self.slots, self.indirect_shift
            )));
        }
        let size = usize::from(self.slots) * SLOT;
        let room = size.saturating_sub(192);
        if self.bonus.len() > room {
            return Err(bad(format!("with a bonus of {} bytes in {room}", self.bonus.len())));
        }
        let count = if self.bonus_type == ObjectType::SYSTEM_ATTRIBUTES {
            1
        } else if self.bonus_type == ObjectType::NONE {
            3
        } else {
            (1 + (room - self.bonus.len()) / blkptr::SIZE).min(3)
        };
        let mut bonus_area = self.bonus.clone();
        bonus_area.resize(size.saturating_sub(64 + count * blkptr::SIZE), 0);
        Ok(Dnode {
            object_type: self.object_type,
            indirect_shift: self.indirect_shift,
            levels: 1,
            bonus_type: self.bonus_type,
            checksum: self.checksum,
            compression: self.compression,
            flags: FLAG_USED_BYTES,
            data_block_sectors: sectors as u16,
            bonus_len: self.bonus.len() as u16,
            extra_slots: self.slots - 1,
            max_block_id: 0,
            used: 0,
            pointers: SmallVec::from_elem(BlockPointer::HOLE, count),
            bonus_area,
            spill: None,
        })
    }
}

impl ObjectSet {
    pub(super) fn live(&self) -> Result<&Live> {
        self.0.live.as_ref().ok_or_else(|| {
            let error = Error::new(ErrorKind::ReadOnly, "this object set cannot be changed");
            error.at(|place| place.objset = Some(self.id()))
        })
    }

    /// Makes an object under this number; [`ErrorKind::Exists`] if it is taken.
    pub fn claim_object(&self, tx: &Tx, id: ObjectId, new: &NewObject) -> Result<Object> {
        if id.0 == 0 || id.0 >= OBJECTS_END {
            return Err(Error::invalid(format!("object number {id}")));
        }
        self.make(tx, id, new.dnode()?)
    }

    pub(super) fn make(&self, tx: &Tx, id: ObjectId, dnode: Dnode) -> Result<Object> {
        let live = self.live()?;
        let object = live.find_or_absent(id.0, || self.committed_dnode(id.0))?;
        let dnode = Arc::new(dnode);
        object.change(live, tx, |state, _| {
            if state.current.is_some() {
                let error = Error::new(ErrorKind::Exists, "the object exists");
                return Err(error.at_object(self.id(), id.0));
            }
            state.current = Some(dnode.clone());
            Ok(())
        })?;
        tx.add_dirty(MADE);
        tx.add_whole(MADE);
        Ok(Object { set: self.clone(), id, dnode, live: Some(object) })
    }

    /// Frees an object and all its blocks.
    pub fn free_object(&self, tx: &Tx, id: ObjectId) -> Result<()> {
        self.object(id)?.need_to_free_all()?;
        self.free_readable(tx, id)
    }

    /// As [`ObjectSet::free_object`], of an object that [`Object::need_to_free_all`] found good.
    pub fn free_readable(&self, tx: &Tx, id: ObjectId) -> Result<()> {
        let live = self.live()?;
        let absent = || Error::not_found("no such object").at_object(self.id(), id.0);
        let object = live.find(id.0, || self.committed_dnode(id.0))?.ok_or_else(absent)?;
        object.change(live, tx, |state, dirt| {
            if state.current.take().is_none() {
                return Err(absent());
            }
            dirt.reset = true;
            dirt.blocks.clear();
            dirt.cloned.clear();
            dirt.freed = Default::default();
            dirt.spill = None;
            Ok(())
        })?;
        tx.add_dirty(SLOT as u64);
        Ok(())
    }
}

impl Object {
    fn alive(&self) -> Result<(&Live, &Arc<LiveObject>)> {
        let live = self.set.live()?;
        match &self.live {
            Some(object) => Ok((live, object)),
            None => Err(Error::new(ErrorKind::ReadOnly, "this object cannot be changed")),
        }
    }

    pub(super) fn change<T>(
        &self,
        tx: &Tx,
        change: impl FnOnce(&mut ObjectState, &mut Dirt) -> Result<T>,
    ) -> Result<T> {
        let (live, object) = self.alive()?;
        object
            .change(live, tx, |state, dirt| {
                if state.current.is_none() {
                    return Err(Error::not_found("the object was freed"));
                }
                change(state, dirt)
            })
            .map_err(|error| self.named(error))
    }

    /// Writes `data` at `offset`. The object's blocks stay as large as they are. What it needs is read
    /// within the transaction: callers of files read it before ([`Object::write_over`]).
    pub fn write(&self, tx: &Tx, offset: u64, data: &[u8]) -> Result<()> {
        self.write_over(tx, offset, data, self.base_to_write(offset, data.len() as u64)?)
    }

    /// As [`Object::write`], over what [`Object::base_to_write`] read.
    pub fn write_over(&self, tx: &Tx, offset: u64, data: &[u8], mut base: Base) -> Result<()> {
        let size = self.block_size();
        let too_far = || self.named(Error::invalid("a write beyond 2^64 bytes"));
        let end = offset.checked_add(data.len() as u64).ok_or_else(too_far)?;
        if end > offset && !base.is_checked() {
            self.need_to_write(offset / size, (end - 1) / size)?;
        }
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (id, from) = (at / size, (at % size) as usize);
            let len = rest.len().min(size as usize - from);
            let Some((part, after)) = rest.split_at_checked(len) else { break };
            if len as u64 == size {
                self.replace_block(tx, id, cenote_device::aligned_copy(part, part.len()))?;
                tx.add_whole(size);
            } else {
                self.write_part(tx, id, from, part, &mut base)?;
            }
            rest = after;
            at += len as u64;
        }
        Ok(())
    }

    /// Replaces level-0 block `id`; `data` has exactly the block size.
    pub fn write_block(&self, tx: &Tx, id: u64, data: Bytes) -> Result<()> {
        self.need_to_write(id, id)?;
        self.replace_block(tx, id, data)
    }

    fn replace_block(&self, tx: &Tx, id: u64, data: Bytes) -> Result<()> {
        let len = data.len() as u64;
        let due = self.change(tx, |state, dirt| {
            let current = state.current_mut()?;
            if current.block_size() != len {
                let size = current.block_size();
                return Err(Error::invalid(format!("a block of {len} bytes, not {size}")));
            }
            current.max_block_id = current.max_block_id.max(id);
            dirt.cloned.remove(&id);
            let follows = |before| dirt.blocks.contains_key(&before);
            if !id.checked_sub(1).is_none_or(follows) {
                dirt.jumps = dirt.jumps.saturating_add(1);
            }
            if dirt.blocks.insert(id, data).is_some() {
                return Ok(Due::default());
            }
            Ok(Due::of(&mut dirt.indirects, current, id, len))
        })?;
        self.promise(tx, due);
        Ok(())
    }

    /// What a block holds that `base` may know, read if it does not.
    fn taken(&self, base: &mut Base, id: u64) -> Result<Option<Bytes>> {
        base.take(id).map_or_else(|| self.content_now(id), Ok)
    }

    /// Writes part of a block.
    fn write_part(
        &self,
        tx: &Tx,
        id: u64,
        from: usize,
        part: &[u8],
        base: &mut Base,
    ) -> Result<()> {
        let known = self.taken(base, id)?;
        let due = self.change(tx, |state, dirt| {
            let size = state.current.as_ref().map_or(0, |now| now.block_size());
            let (old, new) = match dirt.blocks.remove(&id) {
                Some(block) => {
                    // The only one who has it changes it in place.
                    drop(known);
                    (block, false)
                }
                None => (state.laid_under(dirt, id, known).unwrap_or_else(|| zeros(size)), true),
            };
            let mut block = match old.try_into_mut() {
                Ok(block) => block,
                Err(shared) => BytesMut::from(shared.as_ref()),
            };
            if (block.len() as u64) < size {
                // A hole of an object whose block has grown since.
                block.resize(size as usize, 0);
            }
            let end = from.saturating_add(part.len());
            let Some(target) = block.get_mut(from..end) else {
                let reason = format!("bytes {from}..{end} of a block of {size}");
                return Err(Error::invalid(reason));
            };
            target.copy_from_slice(part);
            dirt.blocks.insert(id, block.freeze());
            dirt.cloned.remove(&id);
            dirt.in_parts = true;
            let current = state.current_mut()?;
            current.max_block_id = current.max_block_id.max(id);
            Ok(match new {
                true => Due::of(&mut dirt.indirects, current, id, size),
                false => Due::default(),
            })
        })?;
        self.promise(tx, due);
        Ok(())
    }

    /// Makes `offset..offset + len` read as zeros; `u64::MAX` means to the end. Whole blocks become
    /// holes, and where the end is freed the object gets shorter. What it needs is read within the
    /// transaction: callers of files read it before ([`Object::free_over`]).
    pub fn free_range(&self, tx: &Tx, offset: u64, len: u64) -> Result<()> {
        self.free_over(tx, offset, len, self.base_to_free(offset, len)?)
    }

    /// As [`Object::free_range`], over what [`Object::base_to_free`] read.
    pub fn free_over(&self, tx: &Tx, offset: u64, len: u64, mut base: Base) -> Result<()> {
        let size = self.block_size();
        let end = offset.saturating_add(len);
        let to_end = end == u64::MAX;
        let max = self.current_dnode().map_or(0, |dnode| dnode.max_block_id);
        let first = offset.div_ceil(size);
        if !base.is_checked() {
            self.need_to_free(offset / size, if to_end { u64::MAX } else { end / size })?;
        }
        // The part of a block before the first whole one, and after the last.
        let head = first.saturating_mul(size).min(end);
        if head > offset {
            self.zero(tx, offset, head - offset, max, &mut base)?;
        }
        let stop = if to_end { u64::MAX } else { end / size };
        if !to_end && end > head && stop >= first && end > stop.saturating_mul(size) {
            let from = stop.saturating_mul(size);
            self.zero(tx, from, end - from, max, &mut base)?;
        }
        if stop <= first && !to_end {
            return Ok(());
        }
        let last = if to_end { u64::MAX } else { stop - 1 };
        self.change(tx, |state, dirt| {
            let ids: Vec<u64> = dirt.blocks.range(first..=last).map(|(&id, _)| id).collect();
            for id in ids {
                dirt.blocks.remove(&id);
            }
            dirt.cloned.retain(|id, _| !(first..=last).contains(id));
            let current = state.current_mut()?;
            if first <= current.max_block_id {
                dirt.freed.insert(first, last.min(current.max_block_id));
                if last >= current.max_block_id {
                    current.max_block_id = first.saturating_sub(1);
                }
            }
            Ok(())
        })
    }

    /// Writes zeros within one block, unless it is a hole already.
    fn zero(&self, tx: &Tx, offset: u64, len: u64, max: u64, base: &mut Base) -> Result<()> {
        let size = self.block_size();
        let id = offset / size;
        if id > max {
            return Ok(());
        }
        let Some(known) = self.taken(base, id)? else { return Ok(()) };
        base.put(id, known);
        self.write_part(tx, id, (offset % size) as usize, &zeros(len), base)
    }

    /// Replaces the bonus.
    pub fn set_bonus(&self, tx: &Tx, bonus_type: ObjectType, bonus: &[u8]) -> Result<()> {
        self.change(tx, |state, _| {
            let current = state.current_mut()?;
            let capacity = current.bonus_area.len();
            if bonus.len() > capacity {
                let reason = format!("a bonus of {} bytes in {capacity}", bonus.len());
                return Err(Error::invalid(reason));
            }
            current.bonus_type = bonus_type;
            current.bonus_len = bonus.len() as u16;
            current.bonus_area.clear();
            current.bonus_area.extend_from_slice(bonus);
            current.bonus_area.resize(capacity, 0);
            Ok(())
        })
    }

    /// Replaces or removes the spill block (a multiple of 512 bytes). A spill takes 128 bytes from
    /// the bonus's room.
    pub fn set_spill(&self, tx: &Tx, spill: Option<Bytes>) -> Result<()> {
        let len = spill.as_ref().map_or(0, Bytes::len) as u64;
        self.change(tx, |state, dirt| {
            let current = state.current_mut()?;
            let area = current.bonus_area.len();
            match (&spill, current.spill.is_some()) {
                (Some(_), false) => {
                    let room = area.saturating_sub(blkptr::SIZE);
                    if usize::from(current.bonus_len) > room {
                        return Err(Error::invalid("the bonus leaves no room for a spill pointer"));
                    }
                    current.bonus_area.truncate(room);
                    current.spill = Some(BlockPointer::HOLE);
                    current.flags |= FLAG_SPILL;
                }
                (None, true) => {
                    current.bonus_area.resize(area + blkptr::SIZE, 0);
                    current.spill = None;
                    current.flags &= !FLAG_SPILL;
                }
                _ => {}
            }
            dirt.spill = Some(spill);
            Ok(())
        })?;
        self.promise(tx, Due { block: len, metadata: true, ..Due::default() });
        Ok(())
    }

    /// Changes the block size, which an object of at most one block may; block 0 is cut or filled
    /// with zeros. What it needs is read within the transaction: callers of files read it before
    /// ([`Object::resize_over`]).
    pub fn set_block_size(&self, tx: &Tx, bytes: u64) -> Result<()> {
        self.resize_over(tx, bytes, &mut Base::default())
    }

    /// As [`Object::set_block_size`], over what [`Object::base_to_resize`] read; what is left of that is
    /// for a write that follows.
    pub fn resize_over(&self, tx: &Tx, bytes: u64, base: &mut Base) -> Result<()> {
        let sectors = bytes / blkptr::SECTOR;
        if !bytes.is_multiple_of(blkptr::SECTOR) || !(1..=32768).contains(&sectors) {
            return Err(self.named(Error::invalid(format!("blocks of {bytes} bytes"))));
        }
        if self.block_size() == bytes {
            return Ok(());
        }
        let known = self.taken(base, 0)?;
        let grown = self.change(tx, |state, dirt| {
            let blocks = state.current.as_ref().map_or(0, |current| current.max_block_id);
            if blocks > 0 {
                let reason = format!("{} blocks cannot change their size", blocks + 1);
                return Err(Error::invalid(reason));
            }
            // A block of this very group is not copied: small appends would cost its length each.
            let own = dirt.blocks.remove(&0);
            let before = own.as_ref().map_or(0, |own| own.len() as u64);
            let old = match own {
                Some(own) => {
                    drop(known);
                    Some(own)
                }
                None => state.laid_under(dirt, 0, known),
            };
            // Not before the content was looked up: what it is depends on the size.
            state.current_mut()?.data_block_sectors = sectors as u16;
            let Some(old) = old else {
                // The block on the disks, if there is one, is a hole of the old size.
                dirt.freed.insert(0, 0);
                return Ok(Due::default());
            };
            let mut block =
                old.try_into_mut().unwrap_or_else(|shared| BytesMut::from(shared.as_ref()));
            block.resize(bytes as usize, 0);
            dirt.cloned.remove(&0);
            dirt.blocks.insert(0, block.freeze());
            let due = Due::of(&mut dirt.indirects, state.current_mut()?, 0, bytes);
            Ok(Due { before, ..due })
        })?;
        self.promise(tx, grown);
        Ok(())
    }

    /// Changes what the object is said to hold, as when a directory object becomes a ZAP as well.
    pub fn set_type(&self, tx: &Tx, object_type: ObjectType) -> Result<()> {
        self.change(tx, |state, _| {
            state.current_mut()?.object_type = object_type;
            Ok(())
        })
    }

    /// Sets how the object's blocks are compressed and checked from now on (ids; 0 inherits).
    pub fn set_storage(&self, tx: &Tx, compression: u8, checksum: u8) -> Result<()> {
        self.change(tx, |state, _| {
            let current = state.current_mut()?;
            current.compression = compression;
            current.checksum = checksum;
            Ok(())
        })
    }
}
