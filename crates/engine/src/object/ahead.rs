//! What writing a group needs of the disks, read together: the indirect blocks above what many objects
//! change, level by level, and blocks of dnodes.
//!
//! Invariant: a bounded number of blocks is held for it; what does not fit, or cannot be read, is read
//! where it is needed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use cenote_format::dnode::{self, SLOTS_PER_BLOCK};
use cenote_format::{BlockPointer, Dnode, ObjectId};

use super::Object;
use super::plan::TreeChanges;
use super::sync::{DirtyObject, SyncedObject, special};
use super::together::{DnodeBlocks, SetToSync};
use crate::pipe::{Pipe, ReadContext};
use crate::{Error, Result};

/// Indirect blocks held at most.
const MOST_HELD: usize = 512;
/// Blocks of dnodes read at once.
const DNODES_AT_ONCE: usize = 4096;

/// Indirect blocks by level and number.
pub(super) type HeldBlocks = BTreeMap<(u8, u64), Bytes>;

/// One tree on its way down.
struct Descent<'a> {
    context: &'a ReadContext,
    shift: u32,
    /// Level-1 blocks that are wanted.
    wanted: BTreeSet<u64>,
    level: u8,
    /// The blocks of that level, to be read next.
    next: Vec<(u64, BlockPointer)>,
    held: HeldBlocks,
}

impl<'a> Descent<'a> {
    /// Down the tree of `dnode` to the blocks above level-0 blocks `wanted`, if there are any.
    fn new(
        context: &'a ReadContext,
        dnode: &Dnode,
        wanted: impl Iterator<Item = u64>,
    ) -> Option<Self> {
        let shift = dnode.pointers_shift();
        let level = dnode.levels.checked_sub(1).filter(|top| *top > 0 && shift > 0)?;
        let below = wanted.filter(|block| *block <= dnode.max_block_id);
        let wanted: BTreeSet<u64> = below.map(|block| block >> shift).collect();
        let mut new =
            Self { context, shift, wanted, level, next: Vec::new(), held: HeldBlocks::new() };
        let roots = (0_u64..).zip(dnode.pointers.iter().copied());
        new.next = new.of_level(level, roots);
        Some(new).filter(|new| !new.next.is_empty())
    }

    /// Those of the blocks of `level` that lie above something wanted.
    fn of_level(
        &self,
        level: u8,
        blocks: impl Iterator<Item = (u64, BlockPointer)>,
    ) -> Vec<(u64, BlockPointer)> {
        let span = u32::from(level.saturating_sub(1)).saturating_mul(self.shift);
        let is_wanted = |id: u64| {
            let first = id.checked_shl(span).unwrap_or(u64::MAX);
            let last = first | 1_u64.checked_shl(span).map_or(u64::MAX, |count| count - 1);
            self.wanted.range(first..=last).next().is_some()
        };
        let fits = |pointer: &BlockPointer| !pointer.is_hole() && pointer.level().0 == level;
        blocks.filter(|(id, pointer)| fits(pointer) && is_wanted(*id)).collect()
    }

    /// Goes a level down over what was read.
    fn go_down(&mut self, blocks: Vec<(u64, Bytes)>) {
        let below = self.level.saturating_sub(1);
        let mut next = Vec::new();
        for (id, block) in blocks {
            if below > 0 {
                let first = id.checked_shl(self.shift).unwrap_or(u64::MAX);
                let number = |index: usize| first.saturating_add(index as u64);
                let children = BlockPointer::decode_all(&block).enumerate();
                let children = children.map(|(index, child)| (number(index), child));
                next.extend(self.of_level(below, children));
            }
            self.held.insert((self.level, id), block);
        }
        self.next = next;
        self.level = below;
    }
}

/// Reads what lies above what `descents` want, all of a level together.
fn descend(pipe: &Pipe, descents: &mut [Option<Descent<'_>>]) {
    let (mut room, none) = (MOST_HELD, ReadContext::default());
    loop {
        let mut pointers = Vec::new();
        let mut contexts = Vec::new();
        for descent in descents.iter().flatten() {
            for (_, pointer) in descent.next.iter().take(room.saturating_sub(pointers.len())) {
                pointers.push(*pointer);
                contexts.push(descent.context);
            }
        }
        if pointers.is_empty() {
            return;
        }
        room -= pointers.len().min(room);
        let context = |index: usize| contexts.get(index).copied().unwrap_or(&none);
        let mut blocks = pipe.read_each(&pointers, context).into_iter();
        let mut left = pointers.len();
        for descent in descents.iter_mut().flatten() {
            let asked = descent.next.len().min(left);
            left -= asked;
            let ids: Vec<u64> = descent.next.iter().take(asked).map(|(id, _)| *id).collect();
            let read = ids.into_iter().zip(blocks.by_ref().take(asked));
            let read = read.filter_map(|(id, block)| Some((id, block.ok()?))).collect();
            descent.go_down(read);
        }
    }
}

/// The level-0 blocks whose indirect blocks a change meets: all but those in the middle of a range that
/// goes.
fn met(changes: &TreeChanges) -> impl Iterator<Item = u64> {
    let ends = changes.freed.iter().flat_map(|(first, last)| [*first, *last]);
    changes.blocks.keys().chain(changes.cloned.keys()).copied().chain(ends)
}

/// Reads the indirect blocks above what is to be changed, of all objects of all sets together.
pub(super) fn read_trees(sets: &[SetToSync<'_>], dirty: &mut [Vec<DirtyObject>]) {
    let Some(first) = sets.first() else { return };
    let mut descents = Vec::new();
    for (one, dirty) in sets.iter().zip(dirty.iter()) {
        for object in dirty {
            let old = object.old.as_ref().filter(|old| old.levels > 1);
            let old = old.filter(|_| object.new.is_some() && !object.changes.reset);
            let wanted = met(&object.changes);
            descents.push(old.and_then(|old| Descent::new(one.set.context(), old, wanted)));
        }
    }
    descend(&first.set.io().pipe, &mut descents);
    for (object, descent) in dirty.iter_mut().flatten().zip(descents) {
        object.changes.held = descent.map(|descent| descent.held).unwrap_or_default();
    }
}

/// Where level-0 block `number` of `meta` lies.
fn place_of(meta: &Object, held: &HeldBlocks, number: u64) -> Result<BlockPointer> {
    let shift = meta.dnode().pointers_shift();
    let is_new = number > meta.dnode().max_block_id;
    match held.get(&(1, number >> shift)) {
        Some(_) if is_new => Ok(BlockPointer::HOLE),
        Some(block) => meta.child_in(block, number),
        // What it is to be written under has to be there.
        None if is_new => meta.read_above(number).map(|()| BlockPointer::HOLE),
        None => meta.pointer(0, number),
    }
}

/// Told of a block of dnodes that was read: of which set, its number, its bytes; `None` where there is none yet.
type DnodeBlockRead<'a> = &'a mut dyn FnMut(usize, u64, Result<Option<Bytes>>) -> Result<()>;

/// Reads the blocks of dnodes that are `wanted` of each set, of all sets together, and what lies above them.
fn read_blocks_of_dnodes(
    sets: &[SetToSync<'_>],
    wanted: &[BTreeSet<u64>],
    each: DnodeBlockRead<'_>,
) -> Result<Vec<HeldBlocks>> {
    let Some(first) = sets.first() else { return Ok(Vec::new()) };
    let pipe = &first.set.io().pipe;
    let metas: Vec<Object> = sets.iter().map(|one| one.set.meta_object()).collect();
    let descents = metas.iter().zip(wanted).map(|(meta, wanted)| {
        Descent::new(meta.set().context(), meta.dnode(), wanted.iter().copied())
    });
    let mut descents: Vec<_> = descents.collect();
    descend(pipe, &mut descents);
    let held = descents.into_iter().map(|descent| descent.map(|one| one.held).unwrap_or_default());
    let held: Vec<HeldBlocks> = held.collect();
    let mut asked = Vec::new();
    for (index, ((meta, wanted), held)) in metas.iter().zip(wanted).zip(&held).enumerate() {
        for &number in wanted {
            match place_of(meta, held, number) {
                Ok(place) if place.is_hole() => each(index, number, Ok(None))?,
                Ok(place) => asked.push((index, meta, number, place)),
                Err(error) => each(index, number, Err(meta.unread(error, number)))?,
            }
        }
    }
    let none = ReadContext::default();
    for some in asked.chunks(DNODES_AT_ONCE) {
        let pointers: Vec<BlockPointer> = some.iter().map(|(.., pointer)| *pointer).collect();
        let context = |at: usize| some.get(at).map_or(&none, |(_, meta, ..)| meta.set().context());
        let read = pipe.read_each(&pointers, context);
        for ((index, meta, number, pointer), block) in some.iter().zip(read) {
            let block = block.and_then(|block| meta.sized(pointer, block));
            let block = block.inspect(|_| meta.was_read(*number)).map(Some);
            each(*index, *number, block.map_err(|error| meta.unread(error, *number)))?;
        }
    }
    Ok(held)
}

/// The blocks of dnodes of these objects.
fn blocks_of_dnodes(ids: impl Iterator<Item = u64>) -> BTreeSet<u64> {
    ids.filter(|id| special(*id).is_none()).map(|id| id / SLOTS_PER_BLOCK).collect()
}

/// Of each set, the blocks of dnodes of what is `dirty` that are damaged: what is in them cannot be changed.
pub(super) fn damaged_dnode_blocks(
    sets: &[SetToSync<'_>],
    dirty: &[Vec<DirtyObject>],
) -> Result<Vec<BTreeMap<u64, Error>>> {
    let wanted = dirty.iter().map(|own| blocks_of_dnodes(own.iter().map(|one| one.id().0)));
    let wanted: Vec<BTreeSet<u64>> = wanted.collect();
    let mut damaged = vec![BTreeMap::new(); sets.len()];
    read_blocks_of_dnodes(sets, &wanted, &mut |index, number, block| {
        let set = sets.get(index).map(|one| one.set);
        match block {
            Err(error) if set.is_some_and(|set| set.is_own_damage(&error)) => {
                damaged.get_mut(index).map(|own| own.insert(number, error));
                Ok(())
            }
            other => other.map(drop),
        }
    })?;
    Ok(damaged)
}

/// What is wrong with the block of dnodes of object `id`, if that is among those `damaged`.
pub(super) fn damage_of(damaged: &BTreeMap<u64, Error>, id: ObjectId) -> Option<&Error> {
    let number = Some(id.0).filter(|id| special(*id).is_none())? / SLOTS_PER_BLOCK;
    damaged.get(&number)
}

/// Reads the blocks that hold the dnodes of `objects`, of all sets together, and what lies above them.
pub(super) fn read_dnode_blocks(
    sets: &[SetToSync<'_>],
    objects: &[Vec<SyncedObject>],
) -> Result<Vec<(DnodeBlocks, HeldBlocks)>> {
    let changed = |own: &Vec<SyncedObject>| {
        blocks_of_dnodes(own.iter().filter(|one| !one.is_aside()).map(|one| one.id().0))
    };
    let wanted: Vec<BTreeSet<u64>> = objects.iter().map(changed).collect();
    let mut found: Vec<DnodeBlocks> = Vec::new();
    found.resize_with(sets.len(), DnodeBlocks::new);
    let held = read_blocks_of_dnodes(sets, &wanted, &mut |index, number, block| {
        let block = block?.map_or_else(|| vec![0; dnode::BLOCK], |block| block.to_vec());
        if let Some(blocks) = found.get_mut(index) {
            blocks.insert(number, block);
        }
        Ok(())
    })?;
    Ok(found.into_iter().zip(held).collect())
}
