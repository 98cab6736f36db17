//! Writing the dirt of one transaction group: blocks of objects, blocks of dnodes, the root.
//!
//! Chapter 04, sections 1 to 4. Done by one thread; `together` goes through the steps with many sets.
//! Nothing the set shows changes before [`ObjectSet::commit`], which the pool calls when every write has
//! ended.
//! Invariant: every block a new tree refers to was told to the ledger as born, every block that is
//! in the old tree only as killed, each once.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cenote_format::dnode::{SLOT, SLOTS_PER_BLOCK, dnodes_in_block};
use cenote_format::{BlockPointer, Dnode, ObjectId, ObjectType, Objset, Txg};
use parking_lot::Mutex;

use super::ahead::HeldBlocks;
use super::early::EarlyBlocks;
use super::live::{Committed, Dirt, LiveObject, ObjectState};
use super::plan::{TreeChanges, TreePlan};
use super::together::DnodeBlocks;
use super::{Accounting, ObjectSet};
use crate::pipe::{
    BlockKind, BlockPlace, BlockToWrite, BlockWriter, ObjsetPolicy, Replaced, Written, zeros,
};
use crate::txg::Tx;
use crate::vdev::VdevTree;
use crate::{Error, Result};

/// Bytes that writing or freeing a block takes beside its data, about.
const BLOCK_COST: u64 = 1 << 10;

/// Who is told which blocks of a set are born and die while it is written. Holes are not told.
pub trait Ledger: Sync {
    /// `pointer` is part of the set now.
    fn born(&self, pointer: &BlockPointer);
    /// `pointer` is no longer part of the set.
    fn killed(&self, pointer: &BlockPointer);
}

/// What writing a set takes.
#[derive(Clone, Copy)]
pub struct SyncContext<'a> {
    /// How blocks leave.
    pub writer: &'a BlockWriter,
    /// Where they go.
    pub vdevs: &'a VdevTree,
    /// The group being written.
    pub txg: Txg,
    /// Pass of the pool's writing, from 1.
    pub pass: u32,
    /// The set's properties.
    pub policy: &'a ObjsetPolicy,
    /// Who is told of blocks.
    pub ledger: &'a dyn Ledger,
}

/// An object whose blocks were written, and whose dnode is to be.
pub struct SyncedObject {
    live: Arc<LiveObject>,
    /// The dnode on the disks before; `None`: there was none.
    pub old: Option<Arc<Dnode>>,
    /// The new one; `None`: the object was freed.
    pub new: Option<Dnode>,
    /// It stays as it was: what it needs is damaged.
    is_aside: bool,
}

impl SyncedObject {
    /// One that stays as it was; nothing is counted of it but what was written early and is given back.
    fn aside(
        live: Arc<LiveObject>,
        old: Option<Arc<Dnode>>,
        (early, cloned): (EarlyBlocks, &BTreeMap<u64, BlockPointer>),
        context: &SyncContext<'_>,
    ) -> Self {
        context.give_up(early, cloned);
        let new = old.as_deref().cloned();
        Self { live, old, new, is_aside: true }
    }

    /// Whether it stays as it was, because what it needs is damaged.
    pub(super) fn is_aside(&self) -> bool {
        self.is_aside
    }

    /// The object's number.
    pub fn id(&self) -> ObjectId {
        self.live.id
    }
}

/// A set that was written, but is not shown yet.
pub struct Synced {
    txg: Txg,
    root: BlockPointer,
    header: Objset,
    objects: Vec<(Arc<LiveObject>, Option<Arc<Dnode>>)>,
}

impl Synced {
    /// The new root.
    pub fn root(&self) -> BlockPointer {
        self.root
    }
}

/// What a group changes in an object.
pub(super) struct DirtyObject {
    live: Arc<LiveObject>,
    /// The dnode on the disks; `None`: there is none.
    pub(super) old: Option<Arc<Dnode>>,
    /// The dnode as the group leaves it; `None`: the object is freed.
    pub(super) new: Option<Arc<Dnode>>,
    pub(super) changes: TreeChanges,
}

impl DirtyObject {
    /// The object's number.
    pub(super) fn id(&self) -> ObjectId {
        self.live.id
    }
}

/// The root of a set to be written.
pub(super) struct NewRoot {
    pub(super) header: Objset,
    old: BlockPointer,
    objects: Vec<SyncedObject>,
}

impl NewRoot {
    /// The request to write it.
    pub(super) fn request(
        &self,
        set: &ObjectSet,
        context: &SyncContext<'_>,
    ) -> Result<BlockToWrite> {
        let fills = self.header.meta_dnode.pointers.iter().map(BlockPointer::fill);
        let fill = fills.fold(0, u64::saturating_add);
        let kind = BlockKind::new(ObjectType::OBJSET, 0);
        let place = BlockPlace { objset: set.id(), ..BlockPlace::default() };
        context.request(&kind, place, Bytes::from(self.header.encode()?), self.old, fill, true)
    }

    /// It was written.
    pub(super) fn written(self, written: &Written, context: &SyncContext<'_>) -> Synced {
        context.note(&self.old, &written.pointer, written.replaced);
        let objects = self.objects.into_iter();
        let objects = objects.map(|object| (object.live, object.new.map(Arc::new))).collect();
        Synced { txg: context.txg, root: written.pointer, header: self.header, objects }
    }
}

/// What a ledger is to be told of an object if its tree can be changed.
#[derive(Default)]
struct HeldLedger(Mutex<Vec<(bool, BlockPointer)>>);

impl HeldLedger {
    fn pass_on(self, to: &dyn Ledger) {
        for (born, pointer) in self.0.into_inner() {
            if born { to.born(&pointer) } else { to.killed(&pointer) }
        }
    }
}

impl Ledger for HeldLedger {
    fn born(&self, pointer: &BlockPointer) {
        self.0.lock().push((true, *pointer));
    }

    fn killed(&self, pointer: &BlockPointer) {
        self.0.lock().push((false, *pointer));
    }
}

impl SyncContext<'_> {
    /// Frees what was written early of an object that stays as it was, and the references its cloned
    /// blocks got.
    fn give_up(&self, mut early: EarlyBlocks, cloned: &BTreeMap<u64, BlockPointer>) {
        self.free_early(&mut early);
        for pointer in cloned.values() {
            self.note(&BlockPointer::HOLE, pointer, Replaced::Old);
            self.kill(pointer);
        }
    }

    /// Tells the ledger what became of a pointer; gives the change of the space charged.
    pub(super) fn note(&self, old: &BlockPointer, new: &BlockPointer, how: Replaced) -> i128 {
        if how != Replaced::Old {
            return 0;
        }
        self.kill(old) + self.bear(new)
    }

    fn dsize(&self, pointer: &BlockPointer) -> i128 {
        i128::from(pointer.dsize(|vdev| self.vdevs.deflate_ratio(vdev)))
    }

    fn bear(&self, pointer: &BlockPointer) -> i128 {
        if pointer.is_hole() {
            return 0;
        }
        self.ledger.born(pointer);
        self.dsize(pointer)
    }

    pub(super) fn kill(&self, pointer: &BlockPointer) -> i128 {
        if pointer.is_hole() {
            return 0;
        }
        self.ledger.killed(pointer);
        -self.dsize(pointer)
    }

    /// A request to write a block.
    pub(super) fn request(
        &self,
        kind: &BlockKind,
        place: BlockPlace,
        data: Bytes,
        old: BlockPointer,
        fill: u64,
        keep: bool,
    ) -> Result<BlockToWrite> {
        let policy = self.policy.block(kind, &self.writer.rules.features)?;
        Ok(BlockToWrite { data, policy, old, fill, place, keep })
    }
}

/// What the group changed in each of these objects.
pub(super) fn gather(objects: impl Iterator<Item = Arc<LiveObject>>, txg: Txg) -> Vec<DirtyObject> {
    let gathered = objects.filter_map(|live| {
        let gathered = live.closed(txg, |state, dirt, new| {
            let changes = TreeChanges {
                reset: dirt.reset,
                freed: dirt.freed.iter().collect(),
                blocks: dirt.blocks.clone(),
                cloned: dirt.cloned.clone(),
                early: dirt.early.clone(),
                keep: dirt.is_scattered(),
                spill: dirt.spill.clone(),
                ..TreeChanges::default()
            };
            (state.committed.clone(), new, changes)
        });
        gathered.map(|(old, new, changes)| DirtyObject { live, old, new, changes })
    });
    gathered.collect()
}

impl ObjectSet {
    /// Bytes of memory that writing what group `txg` writes and frees in this set takes beside its data, about.
    pub fn memory_to_sync(&self, txg: Txg) -> u64 {
        let (mut blocks, mut indirects) = (0_u64, 0_u64);
        let count = |state: &ObjectState, dirt: &Dirt, _: Option<Arc<Dnode>>| {
            let all = state.committed.as_ref().filter(|_| dirt.reset);
            let all = all.map_or(1, |committed| committed.max_block_id.saturating_add(1));
            let freed = dirt.freed.iter().map(|(first, last)| last.saturating_sub(first));
            freed.fold(all.saturating_add(dirt.blocks.len() as u64), u64::saturating_add)
        };
        if let Ok(live) = self.live() {
            live.each_dirty(txg, |object| {
                blocks = blocks.saturating_add(object.closed(txg, count).unwrap_or(0));
            });
            // However few objects there are: sets have indirect levels for every number there could be.
            let meta = &live.committed().meta;
            let each = 1_u64.checked_shl(meta.indirect_shift.into()).unwrap_or(u64::MAX);
            indirects = each.saturating_mul(u64::from(meta.levels));
        }
        // As they are on the disks and as they become.
        blocks.saturating_mul(BLOCK_COST).saturating_add(indirects.saturating_mul(2))
    }

    /// Plans the change of an object's tree; without a plan, the object stays as it was.
    pub(super) fn plan(
        &self,
        object: DirtyObject,
        context: &SyncContext<'_>,
    ) -> Result<(SyncedObject, Option<TreePlan>)> {
        let DirtyObject { live, old, new, changes } = object;
        let named = |error: Error| error.at_object(self.id(), live.id.0);
        let new = new.map(|new| (*new).clone());
        let (early, cloned) = (changes.early.clone(), changes.cloned.clone());
        let held = HeldLedger::default();
        let own = SyncContext { ledger: &held, ..*context };
        match TreePlan::new(self, live.id, old.as_deref(), new, changes, &own) {
            Ok(plan) => {
                held.pass_on(context.ledger);
                Ok((SyncedObject { live, old, new: None, is_aside: false }, Some(plan)))
            }
            Err(error) if self.is_own_damage(&error) => {
                self.note_set_aside(live.id, &named(error));
                Ok((SyncedObject::aside(live, old, (early, &cloned), context), None))
            }
            Err(error) => Err(named(error)),
        }
    }

    /// Leaves an object as it was, whose block of dnodes is damaged.
    pub(super) fn set_aside(
        &self,
        object: DirtyObject,
        error: &Error,
        context: &SyncContext<'_>,
    ) -> SyncedObject {
        let DirtyObject { live, old, changes, .. } = object;
        self.note_set_aside(live.id, &error.clone().at_object(self.id(), live.id.0));
        SyncedObject::aside(live, old, (changes.early, &changes.cloned), context)
    }

    /// Whether group `txg` has something to write in this set: objects or the intent log's header.
    pub fn needs_sync(&self, txg: Txg) -> bool {
        let live = self.0.live.as_ref();
        live.is_some_and(|live| live.is_dirty(txg) || live.zil_header.lock().is_some())
    }

    /// Sets the intent-log header that the next sync writes (chapter 05, section 16.1).
    pub fn set_zil_header(&self, header: &[u8]) -> Result<()> {
        *self.live()?.zil_header.lock() = Some(header.to_vec());
        Ok(())
    }

    /// The intent-log header as the last group left it.
    pub fn zil_header(&self) -> [u8; cenote_format::objset::ZIL_HEADER] {
        match &self.0.live {
            Some(live) => live.committed().header.zil_header,
            None => self.0.header.zil_header,
        }
    }

    /// The space-accounting object, made if there is none yet.
    pub fn accounting_to_change(&self, tx: &Tx, which: Accounting) -> Result<super::Object> {
        if let Some(object) = self.accounting_object(which) {
            return Ok(object);
        }
        let new = super::NewObject { slots: 1, ..super::NewObject::new(ObjectType::USED, 512) };
        self.make(tx, ObjectId(which.id()), new.dnode()?)
    }

    /// Puts the dnodes of `objects` into their blocks, which are `blocks`: the root to be, and the change
    /// of the array of dnodes, if it changes. `held` are indirect blocks of that.
    pub(super) fn plan_root(
        &self,
        objects: Vec<SyncedObject>,
        (mut blocks, held): (DnodeBlocks, HeldBlocks),
        context: &SyncContext<'_>,
    ) -> Result<(NewRoot, Option<TreePlan>)> {
        let live = self.live()?;
        let committed = live.committed();
        let mut header = committed.header.clone();
        if let Some(new) = live.zil_header.lock().take() {
            let fits = new.len().min(header.zil_header.len());
            if let (Some(to), Some(from)) = (header.zil_header.get_mut(..fits), new.get(..fits)) {
                to.copy_from_slice(from);
            }
        }
        for object in &objects {
            match special(object.id().0) {
                Some(Accounting::User) => header.user_used.clone_from(&object.new),
                Some(Accounting::Group) => header.group_used.clone_from(&object.new),
                Some(Accounting::Project) => header.project_used.clone_from(&object.new),
                None if object.is_aside => {}
                None => self.put_dnode(&mut blocks, object)?,
            }
        }
        let plan = self.plan_dnode_blocks(&committed, blocks, held, context)?;
        Ok((NewRoot { header, old: committed.root, objects }, plan))
    }

    /// Puts the dnode of `object` in its block of dnodes.
    fn put_dnode(&self, blocks: &mut DnodeBlocks, object: &SyncedObject) -> Result<()> {
        let id = object.id().0;
        let (number, slot) = (id / SLOTS_PER_BLOCK, id % SLOTS_PER_BLOCK);
        let misplaced = || Error::corrupt("a dnode beyond its block").at_object(self.id(), id);
        let block = blocks.get_mut(&number).ok_or_else(misplaced)?;
        let start = slot as usize * SLOT;
        if let Some(old) = &object.old {
            let end = start + (usize::from(old.extra_slots) + 1) * SLOT;
            block.get_mut(start..end).ok_or_else(misplaced)?.fill(0);
        }
        if let Some(new) = &object.new {
            let bytes = new.encode()?;
            let end = start + bytes.len();
            let target = block.get_mut(start..end).ok_or_else(misplaced)?;
            if target.iter().any(|byte| *byte != 0) {
                let reason = "a new dnode lies over another";
                return Err(Error::corrupt(reason).at_object(self.id(), id));
            }
            target.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Plans the writing of blocks of dnodes.
    fn plan_dnode_blocks(
        &self,
        committed: &Committed,
        blocks: DnodeBlocks,
        held: HeldBlocks,
        context: &SyncContext<'_>,
    ) -> Result<Option<TreePlan>> {
        if blocks.is_empty() {
            return Ok(None);
        }
        let mut new = (*committed.meta).clone();
        let mut changes = TreeChanges { held, ..TreeChanges::default() };
        for (number, block) in blocks {
            new.max_block_id = new.max_block_id.max(number);
            let fill = dnodes_in_block(&block).count() as u64;
            changes.fills.insert(number, fill);
            let is_empty = block.iter().all(|byte| *byte == 0);
            let block = if is_empty { zeros(block.len() as u64) } else { Bytes::from(block) };
            changes.blocks.insert(number, block);
        }
        let old = Some(&*committed.meta);
        TreePlan::new(self, ObjectId(0), old, Some(new), changes, context).map(Some)
    }

    /// Shows what was written: every write of the group has ended.
    pub fn commit(&self, synced: Synced) -> Result<()> {
        let committed = Committed::new(synced.root, synced.header);
        self.live()?.commit(synced.txg, committed, synced.objects);
        Ok(())
    }

    /// The root as the last commit left it.
    pub fn committed_root(&self) -> BlockPointer {
        match &self.0.live {
            Some(live) => live.committed().root,
            None => self.0.root,
        }
    }

    /// The `FLAG_*` bits of the set's root.
    pub fn flags(&self) -> u64 {
        match &self.0.live {
            Some(live) => live.committed().header.flags,
            None => self.0.header.flags,
        }
    }

    /// Sets the `FLAG_*` bits of a set that was never written.
    pub fn set_flags(&self, flags: u64) -> Result<()> {
        self.live()?.change_header(|header| header.flags = flags);
        Ok(())
    }
}

/// Which accounting object this is, if it is one.
pub(super) fn special(id: u64) -> Option<Accounting> {
    let all = [Accounting::User, Accounting::Group, Accounting::Project];
    all.into_iter().find(|which| which.id() == id)
}
