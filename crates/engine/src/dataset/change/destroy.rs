//! Destroying heads with their directories.
//!
//! Chapter 06, section 13.2. Invariant: the blocks that only the head had are freed or queued to
//! be, and charged to whoever has them; nothing names the dataset afterwards.

use cenote_format::bptree::{BptreeEntry, BptreeHeader};
use cenote_format::dsl_dataset::{DslDataset, FLAG_DEFER_DESTROY, KEY_BOOKMARKS};
use cenote_format::dsl_directory::KEY_LIVELIST;
use cenote_format::{ObjectId, ObjectType, bptree};

use super::objects::LARGE_BLOCK;
use super::objects::METADATA_ZAP;
use super::space::FREE_DIRECTORY;
use super::{Delta, MosChange, OBJECT_DIRECTORY, Share};
use crate::job::Budget;
use crate::{Error, ErrorKind, Result};

/// Entry of the directory of objects: roots of destroyed datasets.
pub(super) const TREES: &str = "bptree_obj";
/// Entry of the directory of objects: livelists of destroyed clones.
pub(super) const DELETED_CLONES: &str = "com.delphix:deleted_clones";
/// Feature of pools with roots of destroyed datasets.
pub(super) const ASYNC_DESTROY: &str = "async_destroy";
/// Type of arrays of numbers that have none of their own.
pub(super) const METADATA_WORDS: ObjectType = ObjectType(0xc3);

impl MosChange<'_> {
    /// Whether a head can be destroyed: it has no snapshots and nothing lies below it.
    pub fn check_destroy_head(&self, head: ObjectId) -> Result<()> {
        let phys = self.dataset(head)?;
        let located = |error: Error| Err(error.at_object(0, head.0));
        if phys.is_snapshot() {
            return located(Error::invalid("not a filesystem or volume"));
        }
        let directory = self.directory(phys.directory)?;
        if directory.parent.0 == 0 {
            let reason = "operation does not apply to pools";
            return located(Error::invalid(reason).with_advice("use 'zpool destroy'"));
        }
        if !self.numbers(phys.snapshot_names)?.is_empty()
            || !self.numbers(directory.child_map)?.is_empty()
        {
            return located(Error::new(ErrorKind::Exists, "filesystem has children"));
        }
        Ok(())
    }

    /// Destroys a head and its directory; what an earlier life of the pool left in its intent log goes
    /// with it. If it was the last thing that an origin marked for it waited for, that goes too.
    pub fn destroy_head(&self, head: ObjectId) -> Result<()> {
        self.check_destroy_head(head)?;
        let phys = self.dataset(head)?;
        let given_up = self.give_up_log(head, &phys);
        given_up.map_err(|error| error.at_object(0, head.0))?;
        self.clear_refreservation(head, &phys)?;
        let way = if self.livelist(phys.directory)?.is_some() {
            "livelist, "
        } else if self.is_enabled(ASYNC_DESTROY)? {
            "bptree, "
        } else {
            ""
        };
        let text = format!("({way}mintxg={})", phys.previous_snapshot_txg);
        self.log_event("destroy", Some(head), &text)?;
        self.deactivate_all(head)?;
        let origin = self.leave_origin(head, &phys)?;
        self.free_deadlist(phys.deadlist)?;
        self.free_remapped(head)?;
        self.give_up_blocks(&phys)?;

        self.free_if_any(phys.snapshot_names)?;
        self.destroy_bookmark_table(head)?;
        self.clear_bootfs(head)?;
        self.free_if_any(phys.properties)?;
        self.free_if_any(phys.holds)?;
        self.free_if_any(phys.next_clones)?;
        self.alter_directory(phys.directory, |phys| phys.head_dataset = ObjectId(0))?;
        self.free_object(head)?;
        self.forget_errors(head)?;
        self.hooks.head_destroyed(head);
        self.destroy_directory(phys.directory)?;
        match origin {
            Some(origin) => self.destroy_snapshot(origin, false),
            None => Ok(()),
        }
    }

    fn clear_refreservation(&self, head: ObjectId, phys: &DslDataset) -> Result<()> {
        let reserved = self.refreservation(&self.directory(phys.directory)?)?;
        if reserved != 0 {
            self.log_event("set", Some(head), "refreservation=0")?;
        }
        let unused = reserved.saturating_sub(phys.unique_bytes);
        self.charge(phys.directory, Share::Refreservation, Delta::used(-i128::from(unused)))
    }

    /// The origin forgets a clone. The origin, if it only waited for that to be destroyed.
    fn leave_origin(&self, head: ObjectId, phys: &DslDataset) -> Result<Option<ObjectId>> {
        if phys.previous_snapshot.0 == 0 {
            return Ok(None);
        }
        let mut origin = self.dataset(phys.previous_snapshot)?;
        origin.children = origin.children.saturating_sub(1);
        self.set_dataset(phys.previous_snapshot, &origin)?;
        if origin.next_clones.0 != 0 {
            self.remove_member(origin.next_clones, head)?;
        }
        let home = self.directory(origin.directory)?;
        if home.clones.0 != 0 {
            self.remove_member(home.clones, head)?;
        }
        let waits = origin.flags & FLAG_DEFER_DESTROY != 0
            && origin.children == 1
            && self.numbers(origin.holds)?.is_empty();
        Ok(waits.then_some(phys.previous_snapshot))
    }

    /// Queues or frees the blocks that only the head has, and charges them to whoever has them
    /// then.
    fn give_up_blocks(&self, phys: &DslDataset) -> Result<()> {
        let directory = self.directory(phys.directory)?;
        let whole = Delta {
            used: directory.used_bytes.into(),
            compressed: directory.compressed_bytes.into(),
            uncompressed: directory.uncompressed_bytes.into(),
        };
        let queued = if let Some(livelist) = self.livelist(phys.directory)? {
            self.remove_field(phys.directory, KEY_LIVELIST)?;
            let table = match self.pool_entry(DELETED_CLONES)? {
                Some(table) => table,
                None => {
                    let table = self.new_table(METADATA_ZAP)?;
                    self.add_number(OBJECT_DIRECTORY, DELETED_CLONES, table.0)?;
                    table
                }
            };
            self.add_member(table, livelist)?;
            true
        } else if phys.pointer.is_hole() {
            false
        } else if self.is_enabled(ASYNC_DESTROY)? {
            self.queue_tree(phys, whole)?;
            true
        } else {
            let mut entry = BptreeEntry {
                pointer: phys.pointer,
                birth: phys.previous_snapshot_txg,
                ..BptreeEntry::default()
            };
            let freed = self.free_tree(&mut entry, &mut Budget::blocks(u64::MAX))?;
            if let Some(error) = freed.trouble {
                return Err(error);
            }
            self.charge(phys.directory, Share::Head, -freed.space)?;
            false
        };
        if queued {
            self.charge(phys.directory, Share::Head, -whole)?;
            self.charge(self.hidden_directory(FREE_DIRECTORY)?, Share::Head, whole)?;
        }
        Ok(())
    }

    fn queue_tree(&self, phys: &DslDataset, space: Delta) -> Result<()> {
        let trees = match self.pool_entry(TREES)? {
            Some(trees) => trees,
            None => {
                let bonus = BptreeHeader::default().encode();
                let trees = self.new_object(METADATA_WORDS, LARGE_BLOCK, METADATA_WORDS, bonus)?;
                self.add_number(OBJECT_DIRECTORY, TREES, trees.0)?;
                self.add_reference(ASYNC_DESTROY)?;
                trees
            }
        };
        let mut header = self.trees_header(trees)?;
        let entry = BptreeEntry {
            pointer: phys.pointer,
            birth: phys.previous_snapshot_txg,
            ..BptreeEntry::default()
        };
        let at = header.end.checked_mul(bptree::ENTRY as u64);
        let at = at.ok_or_else(|| Error::corrupt("too many destroyed datasets"))?;
        self.object(trees)?.write(self.tx, at, &entry.encode())?;
        header.end += 1;
        self.set_trees_header(trees, header, space)
    }

    /// Frees a directory that has neither head nor children.
    pub(super) fn destroy_directory(&self, directory: ObjectId) -> Result<()> {
        self.reserve(directory, 0)?;
        let phys = self.directory(directory)?;
        if phys.used_bytes != 0 {
            let reason = format!("a directory that goes still uses {} bytes", phys.used_bytes);
            return Err(Error::corrupt(reason).at_object(0, directory.0));
        }
        self.release_keys(directory)?;
        self.free_if_any(phys.child_map)?;
        self.free_if_any(phys.properties)?;
        self.free_if_any(phys.clones)?;
        if phys.delegation.0 != 0 {
            for (_, permissions) in self.numbers(phys.delegation)? {
                self.free_object(ObjectId(permissions))?;
            }
            self.free_object(phys.delegation)?;
        }
        let children = self.directory(phys.parent)?.child_map;
        let name = self.name_in(children, directory)?;
        self.remove(children, &name)?;
        self.count_filesystems(phys.parent, -1)?;
        self.free_object(directory)
    }

    fn destroy_bookmark_table(&self, head: ObjectId) -> Result<()> {
        let Some(table) = self.number_field(head, KEY_BOOKMARKS)? else { return Ok(()) };
        for (name, bookmark) in self.bookmarks(head)? {
            self.remove_bookmark_record(ObjectId(table), &name, &bookmark)?;
        }
        self.free_object(ObjectId(table))?;
        self.remove_field(head, KEY_BOOKMARKS)?;
        self.remove_reference("bookmarks")
    }
}
