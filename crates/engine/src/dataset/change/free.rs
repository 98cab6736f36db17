//! Freeing what destroyed datasets and snapshots left, a portion in every transaction group.
//!
//! Chapter 06, sections 10.3 and 13. Invariant: a block is freed once, after every block below it;
//! where a portion ends is written down, so that whoever goes on does not free anything twice. What
//! cannot be read stays queued, with all that it names, and what is queued behind it is freed.

use std::collections::{BTreeSet, HashMap};

use cenote_format::bptree::{BlockBookmark, BptreeEntry, BptreeHeader};
use cenote_format::dsl_dataset::DslDataset;
use cenote_format::zil::Header as LogHeader;
use cenote_format::{BlockPointer, ObjectId, Objset, Txg, bptree};

use super::destroy::{ASYNC_DESTROY, DELETED_CLONES, METADATA_WORDS, TREES};
use super::livelist::LIVELIST;
use super::skeleton::FREE_LIST;
use super::space::{FREE_DIRECTORY, clipped};
use super::{Delta, MosChange, OBJECT_DIRECTORY, Share};
use crate::job::Budget;
use crate::pipe::ReadContext;
use crate::walk::{Drained, Tree, drain};
use crate::{Error, Result};

/// What bookmarks in destroyed datasets say for the object set.
const DESTROYED_SET: u64 = u64::MAX;
/// A tree that waits behind one that cannot be read is done: no block was born after this.
const ALL_FREED: Txg = Txg(u64::MAX);
/// Entries of a list after which the time is looked at.
const LIST_SLICE: u64 = 1024;

/// How far the freeing of all that is queued has come. What could not be read is not tried again in
/// the same pass.
#[derive(Debug, Default)]
pub struct FreeingPass {
    /// The first tree in the queue that was not tried.
    next_tree: u64,
    /// Lists that could not be worked off.
    given_up: BTreeSet<ObjectId>,
    /// The list that is being worked off.
    at: Option<ObjectId>,
    /// Why the first thing that could not be freed was not.
    trouble: Option<Error>,
}

/// What a portion of freeing did.
#[derive(Clone, Debug, Default)]
pub struct Freed {
    /// Space that was freed.
    pub space: Delta,
    /// The pass has come to its end: what is still queued could not be read.
    pub finished: bool,
    /// Why something stays queued.
    pub trouble: Option<Error>,
}

/// A portion under way.
struct Portion<'a> {
    pass: &'a mut FreeingPass,
    budget: Budget<'a>,
    space: Delta,
    next_tree: u64,
    trouble: Option<Error>,
}

impl FreeingPass {
    /// A portion failed with `error`, and what it did was taken back. Whether another one can be
    /// tried: it will leave out what this one failed at.
    pub fn give_up(&mut self, error: Error) -> bool {
        self.trouble.get_or_insert(error);
        self.at.take().is_some_and(|list| self.given_up.insert(list))
    }

    /// Why something stays queued.
    pub fn trouble(&self) -> Option<&Error> {
        self.trouble.as_ref()
    }

    /// Begins with a list, unless it was given up.
    fn enter(&mut self, list: ObjectId) -> bool {
        let tried = self.given_up.contains(&list);
        self.at = (!tried).then_some(list);
        !tried
    }
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

    /// Space of what waits to be freed in the background, in bytes.
    pub fn waiting_to_be_freed(&self) -> Result<u64> {
        Ok(self.directory(self.hidden_directory(FREE_DIRECTORY)?)?.used_bytes)
    }

    /// Frees what destroyed snapshots, datasets and clones left until `budget` is spent, or a
    /// little more. To be called in every group until the pass is finished.
    pub fn process_async_destroy(
        &self,
        pass: &mut FreeingPass,
        budget: Budget<'_>,
    ) -> Result<Freed> {
        let (next_tree, space, trouble) = (pass.next_tree, Delta::default(), None);
        let mut portion = Portion { pass, budget, space, next_tree, trouble };
        let finished = self.drain_free_list(&mut portion)?
            && self.drain_trees(&mut portion)?
            && self.drain_livelists(&mut portion)?;
        let Portion { pass, space, next_tree, trouble, .. } = portion;
        pass.at = None;
        self.charge(self.hidden_directory(FREE_DIRECTORY)?, Share::Head, -space)?;
        pass.next_tree = next_tree;
        pass.trouble = pass.trouble.take().or(trouble);
        Ok(Freed { space, finished, trouble: pass.trouble.clone() })
    }

    /// Whether it has come to the end of the list.
    fn drain_free_list(&self, portion: &mut Portion<'_>) -> Result<bool> {
        let Some(list) = self.pool_entry(FREE_LIST)? else { return Ok(true) };
        if !portion.pass.enter(list) {
            return Ok(true);
        }
        let mut free = |pointer: &BlockPointer, _| self.free_block(pointer);
        while !self.list_header(list)?.is_empty() {
            let slice = portion.budget.left().min(LIST_SLICE);
            if slice == 0 {
                return Ok(false);
            }
            let mut left = slice;
            portion.space += self.drain_list(list, &mut left, &mut free)?;
            portion.budget.spend(slice - left);
        }
        Ok(true)
    }

    /// Frees a block that has an address.
    pub(super) fn free_block(&self, pointer: &BlockPointer) -> Result<()> {
        if pointer.is_embedded() || pointer.is_hole() {
            return Ok(());
        }
        self.hooks.free(pointer)
    }

    /// Whether it has come to the end of the queue of trees.
    fn drain_trees(&self, portion: &mut Portion<'_>) -> Result<bool> {
        let Some(trees) = self.pool_entry(TREES)? else { return Ok(true) };
        if !portion.pass.enter(trees) {
            return Ok(true);
        }
        let mut header = self.trees_header(trees)?;
        let queue = self.object(trees)?;
        let entry_size = bptree::ENTRY as u64;
        let held = queue.block_count().saturating_mul(queue.block_size());
        if header.end.checked_mul(entry_size).is_none_or(|end| end > held) {
            let reason = format!("a queue of {} destroyed trees in {held} bytes", header.end);
            return Err(Error::corrupt(reason).at_object(0, trees.0));
        }
        let mut index = portion.next_tree.clamp(header.begin, header.end);
        while index < header.end {
            let at = index * entry_size;
            let raw = queue.read_vec(at, bptree::ENTRY)?;
            let mut entry = BptreeEntry::decode(&raw)
                .map_err(|error| Error::from(error).at_object(0, trees.0))?;
            if entry.birth != ALL_FREED {
                if portion.budget.is_spent() {
                    portion.next_tree = index;
                    return Ok(false);
                }
                // Entries that free nothing are work as well.
                portion.budget.spend(1);
            }
            let freed = self.free_tree(&mut entry, &mut portion.budget)?;
            portion.space += freed.space;
            match freed.finished {
                true if index == header.begin => {
                    queue.free_range(self.tx, at, entry_size)?;
                    header.begin += 1;
                }
                true if entry.birth == ALL_FREED => {}
                _ => {
                    entry.birth = if freed.finished { ALL_FREED } else { entry.birth };
                    queue.write(self.tx, at, &entry.encode())?;
                }
            }
            self.set_trees_header(trees, header, -freed.space)?;
            header = self.trees_header(trees)?;
            if !freed.finished && freed.trouble.is_none() {
                portion.next_tree = index;
                return Ok(false);
            }
            portion.trouble = portion.trouble.take().or(freed.trouble);
            index += 1;
        }
        portion.next_tree = index;
        if header.begin < header.end {
            return Ok(true);
        }
        portion.next_tree = 0;
        self.remove(OBJECT_DIRECTORY, TREES)?;
        self.free_object(trees)?;
        self.remove_reference(ASYNC_DESTROY)?;
        Ok(true)
    }

    /// Frees the blocks of a tree until `budget` is spent, and notes in `entry` where to go on.
    pub(super) fn free_tree(
        &self,
        entry: &mut BptreeEntry,
        budget: &mut Budget<'_>,
    ) -> Result<Freed> {
        let resume = entry.resume != BlockBookmark::default();
        let mut tree = Tree::new(DESTROYED_SET, entry.birth, ());
        tree.resume = resume.then_some(entry.resume);
        let mut space = Delta::default();
        let pipe = self.mos.io().pipe.clone();
        let drained = drain(&*pipe, tree, entry.pointer, budget, &mut |node| {
            self.free_block(&node.pointer)?;
            space += self.meter().space(&node.pointer).into();
            Ok(())
        })?;
        let trouble = match drained {
            Drained::All => return Ok(Freed { space, finished: true, trouble: None }),
            Drained::Part(at) => {
                entry.resume = at;
                None
            }
            Drained::Stopped { resume, lost } => {
                entry.resume = resume.unwrap_or_default();
                Some(lost.error)
            }
        };
        Ok(Freed { space, finished: false, trouble })
    }

    /// Whether it has come to the end of the livelists.
    fn drain_livelists(&self, portion: &mut Portion<'_>) -> Result<bool> {
        let Some(table) = self.pool_entry(DELETED_CLONES)? else { return Ok(true) };
        if !portion.pass.enter(table) {
            return Ok(true);
        }
        let mut all = true;
        for livelist in self.members(table)? {
            if !portion.pass.enter(livelist) {
                all = false;
                continue;
            }
            for (&key, &list) in self.deadlist_entries(livelist)?.0.iter().rev() {
                if portion.budget.is_spent() {
                    return Ok(false);
                }
                portion.space += self.free_part(list, &mut portion.budget)?;
                self.forget_part(livelist, key, list)?;
            }
            self.remove_member(table, livelist)?;
            self.free_object(livelist)?;
            self.remove_reference(LIVELIST)?;
        }
        if all {
            self.remove(OBJECT_DIRECTORY, DELETED_CLONES)?;
            self.free_object(table)?;
        }
        Ok(true)
    }

    /// Frees what a part of a livelist says was allocated and not freed.
    fn free_part(&self, list: ObjectId, budget: &mut Budget<'_>) -> Result<Delta> {
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
                    budget.spend(1);
                }
            }
        }
        Ok(space)
    }

    fn forget_part(&self, livelist: ObjectId, key: Txg, list: ObjectId) -> Result<()> {
        self.remove(livelist, &cenote_format::deadlist::integer_key(key.0))?;
        self.drop_list(list)
    }

    /// A head that goes away does not leave blocks of an intent log behind. The log it shows is its own, also
    /// where its newest snapshot shows it, too: snapshots have none, and whoever begins with the content of one
    /// has its header cleared in the same group.
    pub(super) fn give_up_log(&self, head: ObjectId, phys: &DslDataset) -> Result<()> {
        if phys.pointer.is_hole() {
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
