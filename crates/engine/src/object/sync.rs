//! Writing the dirt of one transaction group: blocks of objects, blocks of dnodes, the root.
//!
//! Chapter 04, sections 1 to 4. Done by one thread, in two steps with room between them for the
//! space accounting: [`ObjectSet::sync_objects`], [`ObjectSet::sync_root`]. Nothing the set shows
//! changes before [`ObjectSet::commit`], which the pool calls when every write has ended.
//! Invariant: every block a new tree refers to was told to the ledger as born, every block that is
//! in the old tree only as killed, each once.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cenote_format::dnode::{self, SLOT, SLOTS_PER_BLOCK, dnodes_in_block};
use cenote_format::{BlockPointer, Dnode, ObjectId, ObjectType, Objset, Txg};
use parking_lot::Mutex;

use super::early::EarlyBlocks;
use super::live::{Committed, LiveObject};
use super::plan::{Changes, TreePlan};
use super::{Accounting, ObjectSet};
use crate::pipe::{BlockKind, BlockPlace, BlockToWrite, ObjsetPolicy, Replaced, Writer, zeros};
use crate::txg::Tx;
use crate::vdev::VdevTree;
use crate::{Error, Result};

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
    pub writer: &'a Writer,
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
}

impl SyncedObject {
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

impl ObjectSet {
    /// Writes the blocks of every object that the group changed, and gives the objects: their
    /// dnodes are written by [`ObjectSet::sync_root`], until when they may be adjusted.
    pub fn sync_objects(&self, context: &SyncContext<'_>) -> Result<Vec<SyncedObject>> {
        let live = self.live()?;
        let mut plans = Vec::new();
        let mut objects = Vec::new();
        let mut set_aside = Vec::new();
        for object in live.take_dirty(context.txg) {
            let gathered = object.closed(context.txg, |state, dirt, dnode| {
                let old = state.committed.clone();
                let changes = Changes {
                    reset: dirt.reset,
                    freed: dirt.freed.iter().collect(),
                    blocks: dirt.blocks.clone(),
                    cloned: dirt.cloned.clone(),
                    early: dirt.early.clone(),
                    keep: dirt.is_scattered(),
                    fills: BTreeMap::new(),
                    spill: dirt.spill.clone(),
                };
                (old, dnode, changes)
            });
            let Some((old, new, changes)) = gathered else { continue };
            let named = |error: Error| error.at_object(self.id(), object.id.0);
            let new = new.map(|new| (*new).clone());
            let (early, cloned) = (changes.early.clone(), changes.cloned.clone());
            let held = HeldLedger::default();
            let own = SyncContext { ledger: &held, ..*context };
            match TreePlan::new(self, object.id, old.as_deref(), new, changes, &own) {
                Ok(plan) => {
                    held.pass_on(context.ledger);
                    plans.push(plan);
                    objects.push((object, old));
                }
                Err(error) if self.is_own_damage(&error) => {
                    self.note_set_aside(object.id, &named(error));
                    context.give_up(early, &cloned);
                    let new = old.as_deref().cloned();
                    set_aside.push(SyncedObject { live: object, old, new });
                }
                Err(error) => return Err(named(error)),
            }
        }
        self.write_plans(&mut plans, context)?;
        let written = objects.into_iter().zip(plans);
        let written =
            written.map(|((live, old), plan)| SyncedObject { live, old, new: plan.finish() });
        Ok(written.chain(set_aside).collect())
    }

    /// Writes the blocks of all plans, a level at a time.
    fn write_plans(&self, plans: &mut [TreePlan], context: &SyncContext<'_>) -> Result<()> {
        let levels = plans.iter().map(TreePlan::levels).max().unwrap_or(0);
        let pipe = &self.io().pipe;
        for level in 0..levels {
            let mut requests = Vec::new();
            let mut owners = Vec::new();
            for (index, plan) in plans.iter_mut().enumerate() {
                for (slot, request) in plan.requests(level, context)? {
                    if let Some(pointer) = plan.take_early(slot, &request) {
                        let charged = context.note(&request.old, &pointer, Replaced::Old);
                        plan.placed(slot, pointer, charged)?;
                        continue;
                    }
                    owners.push((index, slot, request.old));
                    requests.push(request);
                }
            }
            if requests.is_empty() {
                continue;
            }
            let written = pipe.write_many(context.writer, context.txg, context.pass, requests);
            for ((index, slot, old), written) in owners.into_iter().zip(written) {
                let written = written?;
                let charged = context.note(&old, &written.pointer, written.replaced);
                if let Some(plan) = plans.get_mut(index) {
                    plan.placed(slot, written.pointer, charged)?;
                }
            }
        }
        plans.iter_mut().for_each(|plan| context.free_early(plan.early_leftover()));
        Ok(())
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

    /// Writes the dnodes of `objects`, the accounting objects that were changed meanwhile, and the
    /// root.
    pub fn sync_root(
        &self,
        context: &SyncContext<'_>,
        mut objects: Vec<SyncedObject>,
    ) -> Result<Synced> {
        let live = self.live()?;
        objects.extend(self.sync_objects(context)?);
        let committed = live.committed();
        let mut header = committed.header.clone();
        if let Some(new) = live.zil_header.lock().take() {
            let fits = new.len().min(header.zil_header.len());
            if let (Some(to), Some(from)) = (header.zil_header.get_mut(..fits), new.get(..fits)) {
                to.copy_from_slice(from);
            }
        }
        let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for object in &objects {
            let id = object.id().0;
            if let Some(which) = special(id) {
                let slot = match which {
                    Accounting::User => &mut header.user_used,
                    Accounting::Group => &mut header.group_used,
                    Accounting::Project => &mut header.project_used,
                };
                slot.clone_from(&object.new);
                continue;
            }
            self.put_dnode(&mut blocks, object)?;
        }
        header.meta_dnode = self.write_dnode_blocks(&committed, blocks, context)?;
        let fills = header.meta_dnode.pointers.iter().map(BlockPointer::fill);
        let fill = fills.fold(0, u64::saturating_add);
        let kind = BlockKind::new(ObjectType::OBJSET, 0);
        let place = BlockPlace { objset: self.id(), ..BlockPlace::default() };
        let data = Bytes::from(header.encode()?);
        let request = context.request(&kind, place, data, committed.root, fill, true)?;
        let pipe = &self.io().pipe;
        let written = pipe.write_many(context.writer, context.txg, context.pass, vec![request]);
        let written =
            written.into_iter().next().unwrap_or_else(|| Err(Error::corrupt("no root")))?;
        context.note(&committed.root, &written.pointer, written.replaced);
        let objects = objects.into_iter().map(|object| (object.live, object.new.map(Arc::new)));
        Ok(Synced { txg: context.txg, root: written.pointer, header, objects: objects.collect() })
    }

    /// Puts the dnode of `object` in its block of dnodes.
    fn put_dnode(&self, blocks: &mut BTreeMap<u64, Vec<u8>>, object: &SyncedObject) -> Result<()> {
        let id = object.id().0;
        let (number, slot) = (id / SLOTS_PER_BLOCK, id % SLOTS_PER_BLOCK);
        let block = match blocks.entry(number) {
            std::collections::btree_map::Entry::Occupied(block) => block.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let meta = self.meta_object();
                let old = match number <= meta.dnode().max_block_id {
                    true => meta.read_block(number)?.to_vec(),
                    false => vec![0; dnode::BLOCK],
                };
                free.insert(old)
            }
        };
        let start = slot as usize * SLOT;
        let misplaced = || Error::corrupt("a dnode beyond its block").at_object(self.id(), id);
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

    /// Writes blocks of dnodes; the new meta dnode.
    fn write_dnode_blocks(
        &self,
        committed: &Committed,
        blocks: BTreeMap<u64, Vec<u8>>,
        context: &SyncContext<'_>,
    ) -> Result<Dnode> {
        let mut new = (*committed.meta).clone();
        if blocks.is_empty() {
            return Ok(new);
        }
        let mut changes = Changes::default();
        for (number, block) in blocks {
            new.max_block_id = new.max_block_id.max(number);
            let fill = dnodes_in_block(&block).count() as u64;
            changes.fills.insert(number, fill);
            let is_empty = block.iter().all(|byte| *byte == 0);
            let block = if is_empty { zeros(block.len() as u64) } else { Bytes::from(block) };
            changes.blocks.insert(number, block);
        }
        let old = &*committed.meta;
        let id = ObjectId(0);
        let mut plans = [TreePlan::new(self, id, Some(old), Some(new), changes, context)?];
        self.write_plans(&mut plans, context)?;
        let [plan] = plans;
        plan.finish().ok_or_else(|| Error::corrupt("the meta dnode is gone"))
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

fn special(id: u64) -> Option<Accounting> {
    let all = [Accounting::User, Accounting::Group, Accounting::Project];
    all.into_iter().find(|which| which.id() == id)
}
