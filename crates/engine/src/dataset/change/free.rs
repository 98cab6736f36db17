//! Freeing what destroyed datasets and snapshots left, a portion in every transaction group.
//!
//! Chapter 06, sections 10.3 and 13. Invariant: a block is freed once, after every block below it;
//! where a portion ends is written down, so that whoever goes on does not free anything twice.

use std::collections::HashMap;

use cenote_format::bptree::{BlockBookmark, BptreeEntry, BptreeHeader};
use cenote_format::dnode::{self, SLOTS_PER_BLOCK};
use cenote_format::dsl_dataset::DslDataset;
use cenote_format::zil::Header as LogHeader;
use cenote_format::{BlockPointer, Dnode, ObjectId, ObjectType, Objset, Txg, bptree};

use super::destroy::{ASYNC_DESTROY, DELETED_CLONES, METADATA_WORDS, TREES};
use super::livelist::LIVELIST;
use super::skeleton::FREE_LIST;
use super::space::{FREE_DIRECTORY, clipped};
use super::{Delta, MosChange, OBJECT_DIRECTORY, Share};
use crate::pipe::ReadContext;
use crate::{Error, Result};

/// What bookmarks in destroyed datasets say for the object set.
const DESTROYED_SET: u64 = u64::MAX;

/// What a portion of freeing did.
#[derive(Clone, Debug, Default)]
pub struct Freed {
    /// Space that was freed.
    pub space: Delta,
    /// Nothing is left to free.
    pub finished: bool,
    /// Why not all that could have been freed was: something could not be read. It stays queued.
    pub trouble: Option<Error>,
}

impl MosChange<'_> {
    pub(super) fn trees_header(&self, trees: ObjectId) -> Result<BptreeHeader> {
        let bonus = self.bonus(trees, METADATA_WORDS)?;
        BptreeHeader::decode(&bonus).map_err(|error| Error::from(error).at_object(0, trees.0))
    }

    /// Writes the header after its totals changed by `space`.
    pub(super) fn set_trees_header(
        &self,
        trees: ObjectId,
        mut header: BptreeHeader,
        space: Delta,
    ) -> Result<()> {
        let total = &mut header.space;
        total.used = clipped(total.used, space.used);
        total.compressed = clipped(total.compressed, space.compressed);
        total.uncompressed = clipped(total.uncompressed, space.uncompressed);
        self.set_bonus(trees, METADATA_WORDS, &header.encode())
    }

    /// Frees at most about `budget` of the blocks that destroyed snapshots, datasets and clones
    /// left. To be called in every group.
    pub fn process_async_destroy(&self, budget: u64) -> Result<Freed> {
        let mut left = budget;
        let mut freed = Freed::default();
        let emptied = self.drain_free_list(&mut left, &mut freed)?
            && self.drain_trees(&mut left, &mut freed)?
            && self.drain_livelists(&mut left, &mut freed)?;
        freed.finished = emptied && freed.trouble.is_none();
        self.charge(self.hidden_directory(FREE_DIRECTORY)?, Share::Head, -freed.space)?;
        Ok(freed)
    }

    fn drain_free_list(&self, left: &mut u64, freed: &mut Freed) -> Result<bool> {
        let Some(list) = self.pool_entry(FREE_LIST)? else { return Ok(true) };
        freed.space += self.drain_list(list, left, &mut |pointer, _| self.free_block(pointer))?;
        Ok(self.list_header(list)?.is_empty())
    }

    /// Frees a block that has an address.
    pub(super) fn free_block(&self, pointer: &BlockPointer) -> Result<()> {
        if pointer.is_embedded() || pointer.is_hole() {
            return Ok(());
        }
        self.hooks.free(pointer)
    }

    fn drain_trees(&self, left: &mut u64, freed: &mut Freed) -> Result<bool> {
        let Some(trees) = self.pool_entry(TREES)? else { return Ok(true) };
        let mut header = self.trees_header(trees)?;
        let entry_size = bptree::ENTRY as u64;
        while header.begin < header.end {
            if *left == 0 {
                return Ok(false);
            }
            // Entries that free nothing are work as well.
            *left -= 1;
            let object = self.object(trees)?;
            let held = object.block_count().saturating_mul(object.block_size());
            if header.end.checked_mul(entry_size).is_none_or(|end| end > held) {
                let reason = format!("a queue of {} destroyed trees in {held} bytes", header.end);
                return Err(Error::corrupt(reason).at_object(0, trees.0));
            }
            let raw = object.read_vec(header.begin * entry_size, bptree::ENTRY)?;
            let mut entry = BptreeEntry::decode(&raw)
                .map_err(|error| Error::from(error).at_object(0, trees.0))?;
            let portion = self.free_tree(&mut entry, left)?;
            freed.space += portion.space;
            if portion.finished {
                object.free_range(self.tx, header.begin * entry_size, entry_size)?;
                header.begin += 1;
            } else {
                object.write(self.tx, header.begin * entry_size, &entry.encode())?;
            }
            self.set_trees_header(trees, header, -portion.space)?;
            header = self.trees_header(trees)?;
            if portion.trouble.is_some() {
                freed.trouble = portion.trouble;
                return Ok(false);
            }
        }
        self.remove(OBJECT_DIRECTORY, TREES)?;
        self.free_object(trees)?;
        self.remove_reference(ASYNC_DESTROY)?;
        Ok(true)
    }

    /// Frees at most `budget` blocks of a tree, and notes in `entry` where to go on.
    pub(super) fn free_tree(&self, entry: &mut BptreeEntry, budget: &mut u64) -> Result<Freed> {
        let resume = entry.resume != BlockBookmark::default();
        let mut walk = TreeWalk {
            change: self,
            birth: entry.birth,
            resume: resume.then_some(entry.resume),
            budget,
            space: Delta::default(),
        };
        let outcome =
            walk.visit(&entry.pointer, &Role::Root, bookmark(0, BlockBookmark::ROOT_LEVEL, 0));
        let space = walk.space;
        let trouble = match outcome {
            Ok(()) => return Ok(Freed { space, finished: true, trouble: None }),
            Err(Halt::Budget(at)) => {
                entry.resume = at;
                None
            }
            Err(Halt::Unreadable(at, error)) => {
                entry.resume = at;
                Some(error)
            }
            Err(Halt::Failed(error)) => return Err(error),
        };
        Ok(Freed { space, finished: false, trouble })
    }

    fn drain_livelists(&self, left: &mut u64, freed: &mut Freed) -> Result<bool> {
        let Some(table) = self.pool_entry(DELETED_CLONES)? else { return Ok(true) };
        for livelist in self.members(table)? {
            for (key, list) in self.deadlist_entries(livelist)?.0.into_iter().rev() {
                if *left == 0 {
                    return Ok(false);
                }
                freed.space += self.free_part(list, left)?;
                self.forget_part(livelist, key, list)?;
            }
            self.remove_member(table, livelist)?;
            self.free_object(livelist)?;
            self.remove_reference(LIVELIST)?;
        }
        self.remove(OBJECT_DIRECTORY, DELETED_CLONES)?;
        self.free_object(table)?;
        Ok(true)
    }

    /// Frees what a part of a livelist says was allocated and not freed.
    fn free_part(&self, list: ObjectId, left: &mut u64) -> Result<Delta> {
        // Of the same block, the last record is met first: a FREE before its ALLOC.
        let mut cancelled: HashMap<([u64; 2], Txg), u64> = HashMap::new();
        let mut alive = Vec::new();
        let mut all = u64::MAX;
        self.drain_list(list, &mut all, &mut |pointer, freed| {
            let address = pointer.first_dva().map_or([0; 2], |dva| dva.to_words());
            let identity = (address, pointer.logical_birth());
            if freed {
                *cancelled.entry(identity).or_default() += 1;
            } else {
                alive.push((identity, *pointer));
            }
            Ok(())
        })?;
        let mut space = Delta::default();
        for (identity, pointer) in alive {
            match cancelled.get_mut(&identity).filter(|count| **count > 0) {
                Some(count) => *count -= 1,
                None => {
                    space += self.meter().space(&pointer).into();
                    self.free_block(&pointer)?;
                    *left = left.saturating_sub(1);
                }
            }
        }
        Ok(space)
    }

    fn forget_part(&self, livelist: ObjectId, key: Txg, list: ObjectId) -> Result<()> {
        self.remove(livelist, &cenote_format::deadlist::integer_key(key.0))?;
        self.drop_list(list)
    }

    /// A head that goes away does not leave blocks of an intent log behind.
    pub(super) fn give_up_log(&self, head: ObjectId, phys: &DslDataset) -> Result<()> {
        // A log that is also a snapshot's is not the head's own.
        let is_shared = phys.pointer.logical_birth() <= phys.previous_snapshot_txg;
        if phys.pointer.is_hole() || is_shared {
            return Ok(());
        }
        let block = self.mos.io().pipe.read(&phys.pointer, &sealed())?;
        let header = LogHeader::decode(&Objset::decode(&block)?.zil_header)?;
        if header.log.is_hole() {
            return Ok(());
        }
        self.hooks.free_log(head, &header)
    }
}

fn sealed() -> ReadContext {
    ReadContext { transient: true, sealed: true, ..ReadContext::default() }
}

fn bookmark(object: u64, level: i64, block: u64) -> BlockBookmark {
    BlockBookmark { objset: DESTROYED_SET, object, level, block }
}

/// Why a walk ended early.
enum Halt {
    /// The budget is used up; go on here.
    Budget(BlockBookmark),
    /// This block could not be read; nothing at or after it was freed.
    Unreadable(BlockBookmark, Error),
    /// Freeing failed.
    Failed(Error),
}

/// What a block's content leads to.
enum Role<'a> {
    Root,
    /// A block of the tree of `dnode`; level and number are in the bookmark.
    Tree(&'a Dnode),
    Spill,
}

/// A walk that frees blocks, children first, in the order of object numbers and block numbers.
struct TreeWalk<'c, 'a> {
    change: &'c MosChange<'a>,
    birth: Txg,
    /// Where an earlier walk stopped: everything before it is freed.
    resume: Option<BlockBookmark>,
    budget: &'c mut u64,
    space: Delta,
}

impl TreeWalk<'_, '_> {
    fn visit(
        &mut self,
        pointer: &BlockPointer,
        role: &Role<'_>,
        at: BlockBookmark,
    ) -> Result<(), Halt> {
        if pointer.is_hole() || pointer.logical_birth() <= self.birth || self.is_done(role, &at) {
            return Ok(());
        }
        if self.resume.is_some_and(|resume| position(&resume) == position(&at)) {
            // What is below it was freed before.
            self.resume = None;
        } else {
            self.descend(pointer, role, &at)?;
        }
        if *self.budget == 0 {
            return Err(Halt::Budget(at));
        }
        self.change.free_block(pointer).map_err(Halt::Failed)?;
        *self.budget -= 1;
        self.space += self.change.meter().space(pointer).into();
        Ok(())
    }

    /// Everything at and below a block was freed by an earlier walk.
    fn is_done(&self, role: &Role<'_>, at: &BlockBookmark) -> bool {
        let shift = match role {
            Role::Tree(dnode) => dnode.pointers_shift(),
            Role::Root | Role::Spill => 0,
        };
        self.resume.is_some_and(|resume| at.is_done_before(&resume, shift))
    }

    fn descend(
        &mut self,
        pointer: &BlockPointer,
        role: &Role<'_>,
        at: &BlockBookmark,
    ) -> Result<(), Halt> {
        let unreadable = |error: Error| Halt::Unreadable(*at, error.at_pointer(pointer));
        let leads_on = match role {
            Role::Root => true,
            Role::Spill => false,
            Role::Tree(dnode) => at.level > 0 || dnode.object_type == ObjectType::DNODE,
        };
        if !leads_on {
            return Ok(());
        }
        let read = || {
            pointer.validate()?;
            let level = at.level.max(0);
            if i64::from(pointer.level().0) != level {
                return Err(Error::corrupt(format!("pointer of another level than {level}")));
            }
            self.change.mos.io().pipe.read(pointer, &sealed())
        };
        let block = read().map_err(unreadable)?;
        match role {
            Role::Root => {
                let set = Objset::decode(&block).map_err(|error| unreadable(error.into()))?;
                self.dnode(&set.meta_dnode, 0)?;
                let used = [&set.project_used, &set.group_used, &set.user_used];
                for (dnode, number) in used.into_iter().zip([2, 1, 0]) {
                    if let Some(dnode) = dnode {
                        self.dnode(dnode, u64::MAX - number)?;
                    }
                }
            }
            Role::Tree(_) if at.level > 0 => {
                let count = (block.len() / cenote_format::blkptr::SIZE) as u64;
                let first = at.block.saturating_mul(count);
                for (place, child) in (0..).zip(BlockPointer::decode_all(&block)) {
                    let id = first.saturating_add(place);
                    self.visit(&child, role, bookmark(at.object, at.level - 1, id))?;
                }
            }
            _ => {
                for (slot, dnode) in dnode::dnodes_in_block(&block) {
                    let object = at.block.saturating_mul(SLOTS_PER_BLOCK).saturating_add(slot);
                    let dnode = dnode.map_err(|error| unreadable(error.into()))?;
                    self.dnode(&dnode, object)?;
                }
            }
        }
        Ok(())
    }

    fn dnode(&mut self, dnode: &Dnode, object: u64) -> Result<(), Halt> {
        let level = i64::from(dnode.levels.saturating_sub(1));
        for (id, pointer) in (0..).zip(&dnode.pointers) {
            self.visit(pointer, &Role::Tree(dnode), bookmark(object, level, id))?;
        }
        match &dnode.spill {
            Some(spill) => {
                let at = bookmark(object, 0, BlockBookmark::SPILL_BLOCK);
                self.visit(spill, &Role::Spill, at)
            }
            None => Ok(()),
        }
    }
}

/// A bookmark without its object set, which does not matter within one.
fn position(at: &BlockBookmark) -> (u64, i64, u64) {
    (at.object, at.level, at.block)
}
