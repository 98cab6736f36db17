//! Writing many sets together: all their blocks of one level at a time.
//!
//! Chapter 04, sections 1 to 4. In two steps with room between them for the space accounting:
//! [`sync_objects`], [`sync_roots`]. Invariants: whatever lies below a block was written before it, of
//! every set; sets know nothing of each other: each has its own ledger, keys and properties, and is the
//! same as if it had been written alone.

use std::collections::BTreeMap;

use super::ahead::read_dnode_blocks;
use super::plan::TreePlan;
use super::sync::{DirtyObject, SyncContext, Synced, SyncedObject, gather};
use super::{ObjectSet, ahead};
use crate::pipe::{BlockToWrite, Replaced, Written};
use crate::{Error, Result};

/// A set to be written, and how. All that are written together have the same writer, group and pass.
#[derive(Clone, Copy)]
pub struct SetToSync<'a> {
    /// The set.
    pub set: &'a ObjectSet,
    /// How.
    pub context: SyncContext<'a>,
}

/// A tree to be changed, and which of the sets has it.
type Tree = (usize, TreePlan);

fn lost() -> Error {
    Error::bug("a set that is not written")
}

/// Objects whose trees are planned and written together: until then each takes some kilobytes.
const AT_ONCE: usize = 4096;

/// Writes the blocks of every object that the group changed in `sets`, and gives the objects of each:
/// their dnodes are written by [`sync_roots`], until when they may be adjusted.
pub fn sync_objects(sets: &[SetToSync<'_>]) -> Result<Vec<Vec<SyncedObject>>> {
    let changed = sets.iter().map(|one| {
        let live = one.set.live()?;
        Ok(live.take_dirty(one.context.txg).into_iter())
    });
    let mut changed = changed.collect::<Result<Vec<_>>>()?;
    let mut by_set = Vec::new();
    by_set.resize_with(sets.len(), Vec::new);
    while changed.iter().any(|rest| rest.len() > 0) {
        let mut room = AT_ONCE;
        let mut some = Vec::with_capacity(sets.len());
        for (one, rest) in sets.iter().zip(&mut changed) {
            let before = rest.len();
            some.push(gather(rest.by_ref().take(room), one.context.txg));
            room -= before - rest.len();
        }
        sync_some(sets, some, &mut by_set)?;
    }
    Ok(by_set)
}

/// Writes the blocks of some objects of each set, and adds those to what was written.
fn sync_some(
    sets: &[SetToSync<'_>],
    mut dirty: Vec<Vec<DirtyObject>>,
    by_set: &mut [Vec<SyncedObject>],
) -> Result<()> {
    let damaged = ahead::damaged_dnode_blocks(sets, &dirty)?;
    ahead::read_trees(sets, &mut dirty);
    let mut trees = Vec::new();
    let mut objects = Vec::new();
    let mut set_aside = Vec::new();
    for (index, ((one, dirty), damaged)) in sets.iter().zip(dirty).zip(damaged).enumerate() {
        for object in dirty {
            if let Some(error) = ahead::damage_of(&damaged, object.id()) {
                set_aside.push((index, one.set.set_aside(object, error, &one.context)));
                continue;
            }
            match one.set.plan(object, &one.context)? {
                (object, Some(plan)) => {
                    trees.push((index, plan));
                    objects.push(object);
                }
                (object, None) => set_aside.push((index, object)),
            }
        }
    }
    write_trees(sets, &mut trees)?;
    let written = objects.into_iter().zip(trees).map(|(mut object, (index, plan))| {
        object.new = plan.finish();
        (index, object)
    });
    for (index, object) in written.chain(set_aside) {
        by_set.get_mut(index).ok_or_else(lost)?.push(object);
    }
    Ok(())
}

/// Writes the dnodes of `objects`, the accounting objects that were changed meanwhile, and the roots.
pub fn sync_roots(
    sets: &[SetToSync<'_>],
    mut objects: Vec<Vec<SyncedObject>>,
) -> Result<Vec<Synced>> {
    for (own, more) in objects.iter_mut().zip(sync_objects(sets)?) {
        own.extend(more);
    }
    let old = read_dnode_blocks(sets, &objects)?;
    let mut trees = Vec::new();
    let mut roots = Vec::with_capacity(sets.len());
    for (index, ((one, objects), old)) in sets.iter().zip(objects).zip(old).enumerate() {
        let (root, plan) = one.set.plan_root(objects, old, &one.context)?;
        roots.push(root);
        trees.extend(plan.map(|plan| (index, plan)));
    }
    write_trees(sets, &mut trees)?;
    for (index, plan) in trees {
        let meta = plan.finish().ok_or_else(|| Error::bug("the meta dnode is gone"))?;
        roots.get_mut(index).ok_or_else(lost)?.header.meta_dnode = meta;
    }
    let requests = sets.iter().zip(&roots).map(|(one, root)| root.request(one.set, &one.context));
    let requests = requests.collect::<Result<Vec<_>>>()?;
    let places = write(sets, requests);
    let written = sets.iter().zip(roots).zip(places);
    written.map(|((one, root), written)| Ok(root.written(&written?, &one.context))).collect()
}

/// Hands blocks to the pipe.
fn write(sets: &[SetToSync<'_>], requests: Vec<BlockToWrite>) -> Vec<Result<Written>> {
    let Some(first) = sets.first() else { return Vec::new() };
    let SyncContext { writer, txg, pass, .. } = first.context;
    first.set.io().pipe.write_many(writer, txg, pass, requests)
}

/// Writes the blocks of all trees, a level at a time.
fn write_trees(sets: &[SetToSync<'_>], trees: &mut [Tree]) -> Result<()> {
    let levels = trees.iter().map(|(_, plan)| plan.levels()).max().unwrap_or(0);
    let context = |index: usize| sets.get(index).map(|one| &one.context).ok_or_else(lost);
    for level in 0..levels {
        let mut requests = Vec::new();
        let mut owners = Vec::new();
        for (number, (set, plan)) in trees.iter_mut().enumerate() {
            let context = context(*set)?;
            for (slot, request) in plan.requests(level, context)? {
                if let Some(pointer) = plan.take_early(slot, &request) {
                    let charged = context.note(&request.old, &pointer, Replaced::Old);
                    plan.placed(slot, pointer, charged)?;
                    continue;
                }
                owners.push((number, slot, request.old));
                requests.push(request);
            }
        }
        if requests.is_empty() {
            continue;
        }
        for ((number, slot, old), written) in owners.into_iter().zip(write(sets, requests)) {
            let written = written?;
            let Some((set, plan)) = trees.get_mut(number) else { continue };
            let charged = context(*set)?.note(&old, &written.pointer, written.replaced);
            plan.placed(slot, written.pointer, charged)?;
        }
    }
    for (set, plan) in trees {
        context(*set)?.free_early(plan.early_leftover());
    }
    Ok(())
}

/// Blocks of dnodes by number.
pub(super) type DnodeBlocks = BTreeMap<u64, Vec<u8>>;
