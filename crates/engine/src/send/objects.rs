//! Going through a snapshot: its objects in ascending order, each with its dnode first and its blocks after.
//!
//! Chapter 07, sections 5, 6, 8 and 10. A block of dnodes is the unit: where it changed, all its objects are told,
//! and all its free slots.
//!
//! Invariant: no block of an object is told before its dnode, if that is told; nothing but the blocks' births and
//! redaction lists decides what is sent.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;

use bytes::Bytes;
use cenote_format::bptree::BlockBookmark;
use cenote_format::dnode::{self, SLOT, SLOTS_PER_BLOCK};
use cenote_format::send_stream::{
    Features, FreeObjects, Object, ObjectRange, Record, Spill, TO_END,
};
use cenote_format::{Dnode, ObjectId, ObjectType, Txg};

use super::beside::{Beside, Place};
use super::blocks::{Blocks, Data, OLD_MAX_BLOCK, Piece, Wanted, sealed, swapped};
use super::source::{Resume, Source};
use crate::walk::{Node, Order, Step, Tree, Walk};
use crate::{Error, ErrorKind, Result};

/// Slots of a block of dnodes that were not told yet.
enum Slots {
    /// No objects.
    Free { first: u64, count: u64 },
    /// An object.
    Used(u64, Box<Dnode>),
}

/// What of the object's dnode its blocks need.
#[derive(Clone, Copy)]
struct Shape {
    object: u64,
    object_type: ObjectType,
    block_size: u64,
    max_block_id: u64,
}

/// Goes through the snapshot of a stream.
pub(super) struct Objects<'a> {
    source: &'a Source,
    blocks: Blocks<'a>,
    /// What is told without having changed.
    beside: Beside<'a>,
    waiting: VecDeque<Slots>,
    current: Option<Shape>,
}

impl<'a> Objects<'a> {
    pub(super) fn new(source: &'a Source, out: SyncSender<Vec<Piece>>) -> Self {
        let (blocks, beside) = (Blocks::new(source, out), Beside::new(source, (0, 0)));
        Self { source, blocks, beside, waiting: VecDeque::new(), current: None }
    }

    /// Sends everything.
    pub(super) fn send(mut self) -> Result<()> {
        let set = &self.source.set;
        let mut tree = Tree::new(set.id(), self.source.after, ());
        tree.read = set.context().clone();
        (tree.holes, tree.unborn) = (true, true);
        if let Some(resume) = self.source.resume {
            let at = self.resumed_at(resume)?;
            (tree.resume, tree.above) = (Some(at), true);
            self.beside = Beside::new(self.source, (at.object, at.block));
        }
        let pipe = &*set.io().pipe;
        for step in Walk::new(pipe, tree, *set.root_pointer(), Order::ParentFirst) {
            match step {
                Step::Lost(lost) => return Err(lost.error),
                Step::Block(node) if node.object >= self.source.end => break,
                Step::Block(node) => self.node(&node)?,
            }
        }
        self.tell_until(u64::MAX)?;
        self.beside((self.source.end, 0))?;
        self.blocks.finish()
    }

    /// The block an earlier stream had come to.
    fn resumed_at(&self, resume: Resume) -> Result<BlockBookmark> {
        let set = &self.source.set;
        let size = match set.object(ObjectId(resume.object)) {
            Ok(object) => object.block_size(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        let block = resume.offset.checked_div(size).unwrap_or(0);
        Ok(BlockBookmark { objset: set.id(), object: resume.object, level: 0, block })
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        if node.is_root() {
            return Ok(());
        }
        if node.object == 0 {
            self.tell_until(u64::MAX)?;
            if let Some((first, _)) = node.data_blocks() {
                self.beside((first.saturating_mul(SLOTS_PER_BLOCK), 0))?;
            }
            return match (node.pointer.is_hole(), node.level) {
                (true, _) => self.no_dnodes(node),
                (false, 0) => self.dnodes(node),
                (false, _) => Ok(()),
            };
        }
        self.tell_until(node.object)?;
        let of_it = self.current.filter(|shape| shape.object == node.object);
        let Some(shape) = of_it else {
            let reason = "a block of an object that its block of dnodes does not have";
            return Err(Error::corrupt(reason).at_object(self.source.set.id(), node.object));
        };
        self.block(node, shape)
    }

    /// A block of dnodes that is there.
    fn dnodes(&mut self, node: &Node) -> Result<()> {
        let set = &self.source.set;
        let first = node.block.saturating_mul(SLOTS_PER_BLOCK);
        if self.source.is_raw() && !node.pointer.is_little_endian() {
            // What is sealed would have to stay as it is, and the rest be swapped.
            let reason = "sending dnodes raw that a big-endian host wrote is not supported yet";
            return Err(Error::unsupported(reason).at_object(set.id(), first));
        }
        let content = set.io().pipe.read(&node.pointer, set.context())?;
        if self.source.is_raw() {
            let seal = sealed(&node.pointer);
            self.blocks.record(Record::ObjectRange(ObjectRange {
                first,
                slots: SLOTS_PER_BLOCK,
                to_guid: self.source.to_guid,
                salt: seal.salt,
                iv: seal.iv,
                mac: seal.mac,
                flags: swapped(&node.pointer),
            }))?;
        }
        // No object has the number 0, and those before the one an earlier stream had come to were sent.
        let begin = self.source.resume.map_or(1, |resume| resume.object.max(1));
        let mut next = first.max(begin);
        for (slot, dnode) in dnode::dnodes_in_block(&content) {
            let object = first.saturating_add(slot);
            let dnode = dnode.map_err(|error| Error::from(error).at_object(set.id(), object))?;
            let slots = u64::from(dnode.extra_slots) + 1;
            if object >= self.source.end {
                break;
            }
            if object < begin {
                next = next.max(object.saturating_add(slots));
                continue;
            }
            if object > next {
                self.waiting.push_back(Slots::Free { first: next, count: object - next });
            }
            next = object.saturating_add(slots);
            self.waiting.push_back(Slots::Used(object, Box::new(dnode)));
        }
        let end = first.saturating_add(content.len() as u64 / SLOT as u64);
        let end = end.min(self.source.end);
        if next < end {
            self.waiting.push_back(Slots::Free { first: next, count: end - next });
        }
        Ok(())
    }

    /// Blocks of dnodes that are not there.
    fn no_dnodes(&mut self, node: &Node) -> Result<()> {
        let Some((first, count)) = node.data_blocks() else { return Ok(()) };
        let first = first.saturating_mul(SLOTS_PER_BLOCK);
        self.free_objects(first, count.saturating_mul(SLOTS_PER_BLOCK))
    }

    /// Tells that there are no such objects, as far as there are slots for them.
    fn free_objects(&mut self, first: u64, count: u64) -> Result<()> {
        let last_block = self.source.set.header().meta_dnode.max_block_id;
        let slots = last_block.saturating_add(1).saturating_mul(SLOTS_PER_BLOCK);
        let slots = slots.min(self.source.end);
        let count = count.min(slots.saturating_sub(first));
        if count == 0 {
            return Ok(());
        }
        let to_guid = self.source.to_guid;
        self.blocks.record(Record::FreeObjects(FreeObjects { first, count, to_guid }))
    }

    /// Tells what waits, up to the object of this number.
    fn tell_until(&mut self, last: u64) -> Result<()> {
        let comes = |slots: &Slots| match slots {
            Slots::Free { first, .. } => *first < last,
            Slots::Used(object, _) => *object <= last,
        };
        while let Some(slots) = self.waiting.pop_front() {
            if !comes(&slots) {
                self.waiting.push_front(slots);
                break;
            }
            match slots {
                Slots::Free { first, count } => {
                    self.beside((first, 0))?;
                    self.free_objects(first, count)?;
                }
                Slots::Used(object, dnode) => {
                    self.beside((object, 0))?;
                    self.object(object, &dnode)?;
                }
            }
        }
        Ok(())
    }

    /// An object's dnode, and what lies behind its last block.
    fn object(&mut self, object: u64, dnode: &Dnode) -> Result<()> {
        let (raw, to_guid) = (self.source.is_raw(), self.source.to_guid);
        let block_size = dnode.block_size();
        let large = self.source.features.contains(Features::LARGE_BLOCKS);
        let told_size = if large { block_size } else { block_size.min(OLD_MAX_BLOCK) };
        let len = usize::from(dnode.bonus_len);
        let len = if raw && len != 0 { dnode.bonus_area.len() } else { len.next_multiple_of(8) };
        let bonus = dnode.bonus_area.get(..len).unwrap_or(&dnode.bonus_area);
        let bonus = Bytes::copy_from_slice(bonus);
        let only_raw = |value: u8| if raw { value } else { 0 };
        let record = Record::Object(Object {
            object,
            object_type: dnode.object_type,
            bonus_type: dnode.bonus_type,
            block_size: u32::try_from(told_size).unwrap_or(u32::MAX),
            bonus_len: dnode.bonus_len.into(),
            checksum: dnode.checksum,
            compression: dnode.compression,
            slots: dnode.extra_slots.saturating_add(1),
            flags: if dnode.spill.is_some() { Object::HAS_SPILL } else { 0 },
            raw_bonus_len: if raw { u32::try_from(bonus.len()).unwrap_or(0) } else { 0 },
            to_guid,
            indirect_shift: only_raw(dnode.indirect_shift),
            levels: only_raw(dnode.levels),
            pointers: only_raw(u8::try_from(dnode.pointers.len()).unwrap_or(0)),
            max_block_id: if raw { dnode.max_block_id } else { 0 },
        });
        self.blocks.add(Wanted::Record(record, bonus))?;
        self.blocks.free(object, dnode.max_offset(), TO_END)?;
        if let Some(pointer) = dnode.spill.filter(|spill| !spill.is_hole())
            && self.is_older(pointer.logical_birth())
        {
            self.blocks.add(Wanted::Spill { object, pointer, flags: Spill::UNMODIFIED })?;
        }
        let (object_type, max_block_id) = (dnode.object_type, dnode.max_block_id);
        self.current = Some(Shape { object, object_type, block_size, max_block_id });
        Ok(())
    }

    /// A block of that group is not sent.
    fn is_older(&self, birth: Txg) -> bool {
        birth <= self.source.after
    }

    fn block(&mut self, node: &Node, shape: Shape) -> Result<()> {
        let Shape { object, object_type, block_size, max_block_id } = shape;
        let pointer = node.pointer;
        if node.is_spill() {
            self.beside((object, u64::MAX))?;
            return match pointer.is_hole() {
                true => Ok(()),
                false => self.blocks.add(Wanted::Spill { object, pointer, flags: 0 }),
            };
        }
        if pointer.is_hole() {
            // What lies beyond 2^64 bytes is not there.
            let Some((first, count)) = node.data_blocks() else { return Ok(()) };
            self.beside((object, first))?;
            self.beside.pass(object, first.saturating_add(count.saturating_sub(1)));
            let Some(offset) = first.checked_mul(block_size) else { return Ok(()) };
            if first > max_block_id && !object_type.is_metadata() {
                return Ok(());
            }
            let end = first.checked_add(count).and_then(|end| end.checked_mul(block_size));
            return self.blocks.free(
                object,
                offset,
                end.unwrap_or(u64::MAX).saturating_sub(offset),
            );
        }
        if node.level > 0 {
            return Ok(());
        }
        let offset = self.source.bytes_of(object, block_size, node.block)?;
        self.beside((object, node.block))?;
        self.beside.pass(object, node.block);
        let redaction = self.source.redaction.as_ref();
        if redaction.is_some_and(|redaction| redaction.covers(object, node.block)) {
            return self.blocks.redact(object, offset, block_size);
        }
        self.blocks.add(Wanted::Data(Data { object, object_type, offset, block_size, pointer }))
    }

    /// Tells what comes before that place although it did not change.
    fn beside(&mut self, end: Place) -> Result<()> {
        self.beside.tell_before(end, &mut self.blocks)
    }
}
