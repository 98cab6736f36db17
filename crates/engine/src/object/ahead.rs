//! What writing a group needs of the disks, read together: the indirect blocks above what many objects
//! change, level by level, and blocks of dnodes.
//!
//! Invariant: a bounded number of blocks is held for it; what does not fit, or cannot be read, is read
//! where it is needed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use cenote_format::dnode::{self, SLOTS_PER_BLOCK};
use cenote_format::{BlockPointer, Dnode};

use super::Object;
use super::plan::TreeChanges;
use super::sync::{DirtyObject, SyncedObject, special};
use super::together::{DnodeBlocks, SetToSync};
use crate::Result;
use crate::pipe::{Pipe, ReadContext};

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
    if number > meta.dnode().max_block_id {
        return Ok(BlockPointer::HOLE);
    }
    match held.get(&(1, number >> shift)) {
        Some(block) => meta.child_in(block, number),
        None => meta.pointer(0, number),
    }
}

/// Reads the blocks that hold the dnodes of `objects`, of all sets together, and what lies above them. Those that
/// are damaged are left out.
pub(super) fn read_dnode_blocks(
    sets: &[SetToSync<'_>],
    objects: &[Vec<SyncedObject>],
) -> Result<Vec<(DnodeBlocks, HeldBlocks)>> {
    let Some(first) = sets.first() else { return Ok(Vec::new()) };
    let pipe = &first.set.io().pipe;
    let metas: Vec<Object> = sets.iter().map(|one| one.set.meta_object()).collect();
    let numbers = |objects: &Vec<SyncedObject>| -> BTreeSet<u64> {
        let ids = objects.iter().map(|object| object.id().0).filter(|id| special(*id).is_none());
        ids.map(|id| id / SLOTS_PER_BLOCK).collect()
    };
    let wanted: Vec<BTreeSet<u64>> = objects.iter().map(numbers).collect();
    let descents = metas.iter().zip(&wanted).map(|(meta, wanted)| {
        Descent::new(meta.set().context(), meta.dnode(), wanted.iter().copied())
    });
    let mut descents: Vec<_> = descents.collect();
    descend(pipe, &mut descents);
    let held = descents.into_iter().map(|descent| descent.map(|one| one.held).unwrap_or_default());
    let mut found: Vec<_> = held.map(|held| (DnodeBlocks::new(), held)).collect();
    let mut asked = Vec::new();
    for ((meta, wanted), (index, (_, held))) in
        metas.iter().zip(&wanted).zip(found.iter().enumerate())
    {
        for &number in wanted {
            let place = place_of(meta, held, number);
            match place.map_err(|error| meta.unread(error, number)) {
                Ok(place) => asked.push((index, meta, number, place)),
                Err(error) if meta.set().is_own_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    let none = ReadContext::default();
    for some in asked.chunks(DNODES_AT_ONCE) {
        let pointers: Vec<BlockPointer> = some.iter().map(|(.., pointer)| *pointer).collect();
        let context = |at: usize| some.get(at).map_or(&none, |(_, meta, ..)| meta.set().context());
        let read = pipe.read_each(&pointers, context);
        for ((index, meta, number, pointer), block) in some.iter().zip(read) {
            let block = match pointer.is_hole() {
                true => vec![0; dnode::BLOCK],
                false => {
                    let block = block.and_then(|block| meta.sized(pointer, block));
                    match block.map_err(|error| meta.unread(error, *number)) {
                        Ok(block) => block.to_vec(),
                        Err(error) if meta.set().is_own_damage(&error) => continue,
                        Err(error) => return Err(error),
                    }
                }
            };
            if !pointer.is_hole() {
                meta.was_read(*number);
            }
            if let Some((blocks, _)) = found.get_mut(*index) {
                blocks.insert(*number, block);
            }
        }
    }
    Ok(found)
}
