//! The change of one block tree: which blocks go, which are rewritten, from the bottom up.
//!
//! Chapter 04, sections 4.1 to 4.6. Invariant: whatever lies below a rewritten indirect block was
//! written before it; a subtree that goes is walked to its end before its pointer goes.

use std::collections::BTreeMap;

use bytes::Bytes;
use cenote_format::dnode::FLAG_USED_BYTES;
use cenote_format::{BlockPointer, Dnode, Level, ObjectId, ObjectType, blkptr};
use smallvec::SmallVec;

use super::ObjectSet;
use super::ahead::HeldBlocks;
use super::early::{EarlyBlocks, data_kind};
use super::sync::SyncContext;
use crate::pipe::{BlockKind, BlockPlace, BlockToWrite, Replaced, zeros};
use crate::{Error, Result};

/// What a transaction group does to an object.
#[derive(Clone, Default)]
pub(super) struct TreeChanges {
    /// Everything before goes.
    pub reset: bool,
    /// First and last of ranges of level-0 blocks that go.
    pub freed: Vec<(u64, u64)>,
    /// New level-0 blocks.
    pub blocks: BTreeMap<u64, Bytes>,
    /// Level-0 blocks that are cloned.
    pub cloned: BTreeMap<u64, BlockPointer>,
    /// What was written early.
    pub early: EarlyBlocks,
    /// The new blocks stay in the cache: what is written in parts is read again for the next one.
    pub keep: bool,
    /// Fill counts of new blocks that are not 1.
    pub fills: BTreeMap<u64, u64>,
    /// New spill block, or its removal.
    pub spill: Option<Option<Bytes>>,
    /// Indirect blocks of the tree as it is, read in advance.
    pub held: HeldBlocks,
}

/// An indirect block being rewritten.
struct Node {
    entries: Vec<BlockPointer>,
}

/// Indirect blocks that are read together where a tree goes.
const KILLED_AT_ONCE: usize = 64;

/// Bytes of all top-level vdevs.
fn capacity(context: &SyncContext<'_>) -> i128 {
    let tops = 0..context.vdevs.top_count();
    tops.filter_map(|id| context.vdevs.top_asize(id)).map(i128::from).sum()
}

/// Which pointer a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Block of a level.
    Block(u8, u64),
    /// The spill block.
    Spill,
}

/// The change of one object's tree.
pub(super) struct TreePlan {
    set: ObjectSet,
    id: ObjectId,
    dnode: Option<Dnode>,
    roots: SmallVec<[BlockPointer; 3]>,
    levels: u8,
    shift: u32,
    /// Nodes by level (index 0 is level 1) and number.
    nodes: Vec<BTreeMap<u64, Node>>,
    blocks: BTreeMap<u64, Bytes>,
    early: EarlyBlocks,
    keep: bool,
    fills: BTreeMap<u64, u64>,
    held: HeldBlocks,
    spill: Option<Bytes>,
    spill_pointer: Option<BlockPointer>,
    used: i128,
    /// Bytes that may still go with this object: not more than the pool has.
    mortal: i128,
}

impl TreePlan {
    /// Plans the change from `old` to `new`, and takes out what goes.
    pub(super) fn new(
        set: &ObjectSet,
        id: ObjectId,
        old: Option<&Dnode>,
        new: Option<Dnode>,
        changes: TreeChanges,
        context: &SyncContext<'_>,
    ) -> Result<Self> {
        let mut plan = Self {
            set: set.clone(),
            id,
            roots: SmallVec::new(),
            levels: 1,
            shift: 0,
            nodes: Vec::new(),
            blocks: BTreeMap::new(),
            early: changes.early,
            keep: changes.keep,
            fills: changes.fills,
            held: changes.held,
            spill: None,
            spill_pointer: None,
            used: 0,
            mortal: capacity(context),
            dnode: new,
        };
        let goes = changes.reset || plan.dnode.is_none();
        if let Some(old) = old.filter(|_| goes) {
            plan.kill_all(old, context)?;
        }
        if plan.dnode.is_some() {
            plan.begin_from(old.filter(|_| !goes))?;
            plan.take_out(changes.freed, context)?;
            plan.make_room(&changes.blocks, &changes.cloned)?;
            plan.blocks = changes.blocks;
            plan.put_clones(changes.cloned, context)?;
            plan.change_spill(changes.spill, context);
        }
        Ok(plan)
    }

    /// Takes out everything that an object has.
    fn kill_all(&mut self, old: &Dnode, context: &SyncContext<'_>) -> Result<()> {
        for pointer in &old.pointers {
            self.kill(pointer, None, context, 0)?;
        }
        if let Some(spill) = &old.spill {
            context.kill(spill);
        }
        self.used = 0;
        Ok(())
    }

    /// Takes over the tree of `kept`; without that, an empty one.
    fn begin_from(&mut self, kept: Option<&Dnode>) -> Result<()> {
        let Some(dnode) = &self.dnode else { return Ok(()) };
        let count = dnode.pointers.len();
        self.shift = dnode.pointers_shift();
        // A set's array of dnodes is deep from the start (section 3).
        self.levels = if dnode.object_type == ObjectType::DNODE { dnode.levels } else { 1 };
        self.roots = SmallVec::from_elem(BlockPointer::HOLE, count);
        if let Some(old) = kept {
            self.used = i128::from(old.used_bytes());
            self.levels = old.levels;
            self.spill_pointer = old.spill;
            self.roots = old.pointers.clone();
        }
        if self.roots.len() != count {
            return Err(Error::corrupt("the number of pointers in a dnode changed"));
        }
        self.nodes.resize_with(usize::from(self.levels).saturating_sub(1), BTreeMap::new);
        Ok(())
    }

    /// Takes out ranges of level-0 blocks.
    fn take_out(&mut self, ranges: Vec<(u64, u64)>, context: &SyncContext<'_>) -> Result<()> {
        ranges.into_iter().try_for_each(|(first, last)| self.free(first, last, context))
    }

    /// Makes the tree reach all that the object is to have, and takes in the indirect blocks above new
    /// blocks.
    fn make_room(
        &mut self,
        blocks: &BTreeMap<u64, Bytes>,
        cloned: &BTreeMap<u64, BlockPointer>,
    ) -> Result<()> {
        let last = blocks.keys().next_back().max(cloned.keys().next_back());
        self.grow(dnode_max(&self.dnode).max(last.copied().unwrap_or(0)))?;
        // A sealed tree is as deep as where it comes from.
        while self.dnode.as_ref().is_some_and(|dnode| dnode.levels > self.levels) {
            self.add_level()?;
        }
        if self.levels > 1 {
            for &id in blocks.keys() {
                self.node(1, id >> self.shift)?;
            }
        }
        Ok(())
    }

    fn put_clones(
        &mut self,
        cloned: BTreeMap<u64, BlockPointer>,
        context: &SyncContext<'_>,
    ) -> Result<()> {
        for (id, pointer) in cloned {
            let old = *self.entry(0, id)?;
            let charged = context.note(&old, &pointer, Replaced::Old);
            self.placed(Slot::Block(0, id), pointer, charged)?;
        }
        Ok(())
    }

    fn change_spill(&mut self, spill: Option<Option<Bytes>>, context: &SyncContext<'_>) {
        match spill {
            Some(Some(spill)) => self.spill = Some(spill),
            Some(None) => {
                if let Some(old) = self.spill_pointer.take() {
                    self.used += context.kill(&old);
                }
            }
            None => {}
        }
    }

    /// Levels of the tree, the data's included.
    pub(super) fn levels(&self) -> u8 {
        if self.dnode.is_some() { self.levels } else { 0 }
    }

    fn object_type(&self) -> ObjectType {
        self.dnode.as_ref().map_or(ObjectType::NONE, |dnode| dnode.object_type)
    }

    fn indirect_size(&self) -> u64 {
        blkptr_size() << self.shift
    }

    /// Adds levels until block `max` can be reached (sections 4.2 and 4.3).
    fn grow(&mut self, max: u64) -> Result<()> {
        let count = self.roots.len() as u128;
        loop {
            let shift = u32::from(self.levels - 1) * self.shift;
            if shift >= 64 || count << shift > u128::from(max) {
                return Ok(());
            }
            if self.shift == 0 || self.levels >= cenote_format::dnode::MAX_LEVELS {
                return Err(Error::invalid(format!("block {max} cannot be reached")));
            }
            self.add_level()?;
        }
    }

    /// Puts a level above those there are.
    fn add_level(&mut self) -> Result<()> {
        if self.shift == 0 || self.levels >= cenote_format::dnode::MAX_LEVELS {
            return Err(Error::corrupt("a tree deeper than any"));
        }
        let mut entries = vec![BlockPointer::HOLE; 1 << self.shift];
        let is_empty = self.roots.iter().all(|root| *root == BlockPointer::HOLE);
        let below_has_nodes = self.nodes.last().is_some_and(|nodes| !nodes.is_empty());
        for (entry, root) in entries.iter_mut().zip(&mut self.roots) {
            *entry = std::mem::replace(root, BlockPointer::HOLE);
        }
        let mut nodes = BTreeMap::new();
        if !is_empty || below_has_nodes {
            nodes.insert(0, Node { entries });
        }
        self.nodes.push(nodes);
        self.levels += 1;
        Ok(())
    }

    /// The pointer to block `id` of `level`.
    fn entry(&mut self, level: u8, id: u64) -> Result<&mut BlockPointer> {
        let lost = || Error::corrupt("a block beyond the tree");
        if level + 1 >= self.levels {
            let index = usize::try_from(id).map_err(|_| lost())?;
            return self.roots.get_mut(index).ok_or_else(lost);
        }
        let mask = (1_u64 << self.shift) - 1;
        let node = self.node(level + 1, id >> self.shift)?;
        node.entries.get_mut((id & mask) as usize).ok_or_else(lost)
    }

    /// The indirect block `id` of `level`, loaded if it was not.
    fn node(&mut self, level: u8, id: u64) -> Result<&mut Node> {
        let lost = || Error::corrupt("a level beyond the tree");
        let index = usize::from(level).checked_sub(1).ok_or_else(lost)?;
        let known = self.nodes.get(index).ok_or_else(lost)?.contains_key(&id);
        if !known {
            let pointer = *self.entry(level, id)?;
            let held = self.held.remove(&(level, id));
            let entries = self.load(&pointer, level, held)?;
            self.nodes.get_mut(index).ok_or_else(lost)?.insert(id, Node { entries });
        }
        self.nodes.get_mut(index).and_then(|nodes| nodes.get_mut(&id)).ok_or_else(lost)
    }

    /// The pointers in the indirect block behind `pointer`, which may have been read; of a hole, holes as
    /// old (section 4.4).
    fn load(
        &self,
        pointer: &BlockPointer,
        level: u8,
        held: Option<Bytes>,
    ) -> Result<Vec<BlockPointer>> {
        let count = 1_usize << self.shift;
        if pointer.is_hole() {
            let birth = pointer.logical_birth();
            let below = level.saturating_sub(1);
            let size = match below {
                0 => self.dnode.as_ref().map_or(512, Dnode::block_size),
                _ => self.indirect_size(),
            };
            let hole = match birth.0 {
                0 => BlockPointer::HOLE,
                _ => BlockPointer::hole_born(size, self.object_type(), Level(below), birth)?,
            };
            return Ok(vec![hole; count]);
        }
        if pointer.level().0 != level {
            let found = pointer.level();
            return Err(Error::corrupt(format!("pointer of level {found} where {level} belongs")));
        }
        let block = held.map_or_else(|| self.read(pointer), Ok)?;
        let entries: Vec<BlockPointer> = BlockPointer::decode_all(&block).collect();
        if entries.len() != count {
            let have = entries.len();
            return Err(Error::corrupt(format!("indirect block of {have} pointers, not {count}")));
        }
        Ok(entries)
    }

    fn read(&self, pointer: &BlockPointer) -> Result<Bytes> {
        self.set.io().pipe.read(pointer, self.set.context())
    }

    /// Kills a block, which may have been read, and everything below it.
    fn kill(
        &mut self,
        pointer: &BlockPointer,
        block: Option<Result<Bytes>>,
        context: &SyncContext<'_>,
        depth: u8,
    ) -> Result<()> {
        if pointer.is_hole() {
            return Ok(());
        }
        let level = pointer.level().0;
        if depth > 0 && level + depth > cenote_format::dnode::MAX_LEVELS {
            return Err(Error::corrupt("a tree deeper than its levels"));
        }
        if level > 0 {
            let block = block.unwrap_or_else(|| self.read(pointer))?;
            let children: Vec<BlockPointer> =
                BlockPointer::decode_all(&block).filter(|child| !child.is_hole()).collect();
            if children.iter().any(|child| child.level().0 + 1 != level) {
                return Err(Error::corrupt("a pointer of the wrong level"));
            }
            for some in children.chunks(KILLED_AT_ONCE) {
                let pipe = &self.set.io().pipe;
                let blocks = match level {
                    1 => Vec::new(),
                    _ => pipe.read_many(some, self.set.context()),
                };
                let blocks = blocks.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
                for (child, block) in some.iter().zip(blocks) {
                    self.kill(child, block, context, depth + 1)?;
                }
            }
        }
        let size = context.kill(pointer);
        self.used += size;
        // A tree whose pointers meet in the same blocks can seem to have any number of them.
        self.mortal -= size.abs().max(512);
        if self.mortal < 0 {
            let reason = "the object's blocks are more than the pool has room for";
            return Err(Error::corrupt(reason));
        }
        Ok(())
    }

    /// Takes out level-0 blocks `first..=last`.
    fn free(&mut self, first: u64, last: u64, context: &SyncContext<'_>) -> Result<()> {
        let top = self.levels - 1;
        let span = u32::from(top) * self.shift;
        for index in 0..self.roots.len() as u64 {
            if span < 64 && index.checked_shl(span).is_some_and(|from| from > last) {
                break;
            }
            self.free_in(top, index, first, last, context)?;
        }
        Ok(())
    }

    fn free_in(
        &mut self,
        level: u8,
        id: u64,
        first: u64,
        last: u64,
        context: &SyncContext<'_>,
    ) -> Result<()> {
        let span = u32::from(level) * self.shift;
        let from = u128::from(id) << span.min(64);
        let to = ((u128::from(id) + 1) << span.min(64)) - 1;
        if from > u128::from(last) || to < u128::from(first) {
            return Ok(());
        }
        let pointer = *self.entry(level, id)?;
        let index = usize::from(level).checked_sub(1);
        let loaded = index.and_then(|index| self.nodes.get(index));
        let loaded = loaded.is_some_and(|nodes| nodes.contains_key(&id));
        if pointer.is_hole() && !loaded {
            return Ok(());
        }
        if !loaded && from >= u128::from(first) && to <= u128::from(last) {
            self.kill(&pointer, None, context, 0)?;
            let hole = self.hole(&pointer, context)?;
            *self.entry(level, id)? = hole;
            return Ok(());
        }
        // Partly: go on below.
        self.node(level, id)?;
        let child_span = u32::from(level - 1) * self.shift;
        let children = id << self.shift..(id + 1) << self.shift;
        let start = children.start.max(first.checked_shr(child_span).unwrap_or(0));
        let end = children.end.min(last.checked_shr(child_span).unwrap_or(0).saturating_add(1));
        for child in start..end {
            self.free_in(level - 1, child, first, last, context)?;
        }
        Ok(())
    }

    /// What is left where `old` was.
    fn hole(&self, old: &BlockPointer, context: &SyncContext<'_>) -> Result<BlockPointer> {
        if !context.writer.rules.features.hole_birth {
            return Ok(BlockPointer::HOLE);
        }
        let (size, kind) = (old.lsize(), old.object_type());
        Ok(BlockPointer::hole_born(size, kind, old.level(), context.txg)?)
    }

    /// The blocks of `level` to be written.
    pub(super) fn requests(
        &mut self,
        level: u8,
        context: &SyncContext<'_>,
    ) -> Result<Vec<(Slot, BlockToWrite)>> {
        let Some(dnode) = &self.dnode else { return Ok(Vec::new()) };
        let kind = BlockKind { level, ..data_kind(dnode) };
        let bonus_type = dnode.bonus_type;
        let mut requests = Vec::new();
        if level > 0 {
            let Some(nodes) = self.nodes.get(usize::from(level) - 1) else {
                return Ok(requests);
            };
            let mut made = Vec::with_capacity(nodes.len());
            for (&id, node) in nodes {
                let fills = node.entries.iter().map(BlockPointer::fill);
                let fill = fills.fold(0, u64::saturating_add);
                let data = if node.entries.iter().all(BlockPointer::is_hole) {
                    zeros(self.indirect_size())
                } else {
                    let mut data = Vec::with_capacity(node.entries.len() * blkptr::SIZE);
                    node.entries.iter().for_each(|entry| data.extend_from_slice(&entry.encode()));
                    Bytes::from(data)
                };
                made.push((id, data, fill));
            }
            for (id, data, fill) in made {
                let at = place_of(&self.set, self.id, id);
                let old = *self.entry(level, id)?;
                let request = context.request(&kind, at, data, old, fill, true)?;
                requests.push((Slot::Block(level, id), request));
            }
            return Ok(requests);
        }
        if let Some(spill) = self.spill.take() {
            let kind = BlockKind { spill: true, ..BlockKind::new(bonus_type, 0) };
            let old = self.spill_pointer.unwrap_or(BlockPointer::HOLE);
            let at = place_of(&self.set, self.id, u64::MAX);
            let request = context.request(&kind, at, spill, old, 1, true)?;
            requests.push((Slot::Spill, request));
        }
        for (id, data) in std::mem::take(&mut self.blocks) {
            let fill = self.fills.get(&id).copied().unwrap_or(1);
            let old = *self.entry(0, id)?;
            let at = place_of(&self.set, self.id, id);
            let request = context.request(&kind, at, data, old, fill, self.keep)?;
            requests.push((Slot::Block(0, id), request));
        }
        Ok(requests)
    }

    /// Where the block of a request lies, if it was written early.
    pub(super) fn take_early(
        &mut self,
        slot: Slot,
        request: &BlockToWrite,
    ) -> Option<BlockPointer> {
        match slot {
            Slot::Block(0, number) => self.early.take(number, request),
            Slot::Block(..) | Slot::Spill => None,
        }
    }

    /// What was written early and not taken.
    pub(super) fn early_leftover(&mut self) -> &mut EarlyBlocks {
        &mut self.early
    }

    /// A block was written: its new pointer, and the change of the space charged.
    pub(super) fn placed(&mut self, slot: Slot, pointer: BlockPointer, used: i128) -> Result<()> {
        self.used += used;
        match slot {
            Slot::Block(level, id) => *self.entry(level, id)? = pointer,
            Slot::Spill => self.spill_pointer = Some(pointer),
        }
        Ok(())
    }

    /// The new dnode; `None`: the object is freed.
    pub(super) fn finish(self) -> Option<Dnode> {
        let mut dnode = self.dnode?;
        dnode.pointers = self.roots;
        dnode.levels = self.levels;
        dnode.flags |= FLAG_USED_BYTES;
        dnode.used = u64::try_from(self.used).unwrap_or(0);
        if dnode.spill.is_some() {
            dnode.spill = self.spill_pointer.or(dnode.spill);
        }
        Some(dnode)
    }
}

pub(super) fn place_of(set: &ObjectSet, object: ObjectId, block: u64) -> BlockPlace {
    BlockPlace { objset: set.id(), object, block }
}

fn dnode_max(dnode: &Option<Dnode>) -> u64 {
    dnode.as_ref().map_or(0, |dnode| dnode.max_block_id)
}

fn blkptr_size() -> u64 {
    blkptr::SIZE as u64
}
