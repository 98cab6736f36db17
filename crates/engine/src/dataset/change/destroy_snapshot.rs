//! Destroying snapshots: which blocks become free, and who answers for the rest.
//!
//! Chapter 06, section 13.1. Invariant: exactly the blocks that only the snapshot had are queued to
//! be freed; every other block of its deadlist moves to the next dataset's.

use std::collections::HashSet;

use cenote_format::bookmark::{FLAG_HAS_FREED_BEFORE_NEXT, FLAG_SNAPSHOT_EXISTS};
use cenote_format::dsl_dataset::{DslDataset, FLAG_DEFER_DESTROY, KEY_REMAP_DEADLIST};
use cenote_format::{ObjectId, Txg};

use super::skeleton::FREE_LIST;
use super::space::{FREE_DIRECTORY, clipped};
use super::{Delta, MosChange, Share};
use crate::{Error, ErrorKind, Result};

impl MosChange<'_> {
    /// Whether a snapshot can be destroyed: nothing holds it and nothing was cloned of it.
    pub fn check_destroy_snapshot(&self, snapshot: ObjectId) -> Result<()> {
        let phys = self.dataset(snapshot)?;
        let located = |error: Error| Err(error.at_object(0, snapshot.0));
        if !phys.is_snapshot() {
            return located(Error::invalid("not a snapshot"));
        }
        self.check_not_kept(snapshot)?;
        if !self.numbers(phys.holds)?.is_empty() {
            return located(Error::new(ErrorKind::Busy, "dataset is busy"));
        }
        if phys.children > 1 {
            let reason = "snapshot has dependent clones";
            return located(Error::new(ErrorKind::Exists, reason));
        }
        Ok(())
    }

    /// Refuses a snapshot that is being sent. That is no hold: one that was marked for the sake of it would
    /// not go when it ends.
    pub fn check_not_kept(&self, snapshot: ObjectId) -> Result<()> {
        match self.hooks.is_kept(snapshot) {
            true => Err(Error::new(ErrorKind::Busy, "dataset is busy").at_object(0, snapshot.0)),
            false => Ok(()),
        }
    }

    /// Destroys a snapshot. With `defer`, one that is held or has clones is only marked: it goes
    /// with the last of them.
    pub fn destroy_snapshot(&self, snapshot: ObjectId, defer: bool) -> Result<()> {
        self.check_not_kept(snapshot)?;
        match self.check_destroy_snapshot(snapshot) {
            Ok(()) => {}
            Err(error) if defer && matches!(error.kind(), ErrorKind::Busy | ErrorKind::Exists) => {
                self.alter_dataset(snapshot, |phys| phys.flags |= FLAG_DEFER_DESTROY)?;
                return self.log_event("defer_destroy", Some(snapshot), " ");
            }
            Err(error) => return Err(error),
        }
        self.log_event("destroy", Some(snapshot), " ")?;
        let phys = self.dataset(snapshot)?;
        let key_stays = self.close_bookmarks(&phys)?;
        self.deactivate_all(snapshot)?;
        let follows = self.unlink(snapshot, &phys)?;
        self.sort_dead(&phys, follows)?;
        if !key_stays {
            self.remove_clones_key(phys.directory, phys.creation_txg)?;
        }
        self.pass_on(&phys, key_stays)?;
        self.hooks.snapshot_destroyed(snapshot, phys.next_snapshot);
        self.forget_snapshot(snapshot, &phys)
    }

    /// What bookmarks of the head know of a snapshot that goes. Whether one of them still needs
    /// the deadlists' keys of its txg.
    fn close_bookmarks(&self, phys: &DslDataset) -> Result<bool> {
        let head = self.directory(phys.directory)?.head_dataset;
        let next = self.dataset(phys.next_snapshot)?;
        let mut needed = false;
        for (name, mut bookmark) in self.bookmarks(head)? {
            let txg = bookmark.creation_txg;
            let Some(details) = bookmark.details.as_mut() else { continue };
            let counts = details.flags & FLAG_HAS_FREED_BEFORE_NEXT != 0;
            if txg == phys.creation_txg {
                needed |= counts;
                details.flags &= !FLAG_SNAPSHOT_EXISTS;
                self.put_bookmark(head, &name, &bookmark)?;
            } else if counts && (phys.previous_snapshot_txg..phys.creation_txg).contains(&txg) {
                let died = self.deadlist_range(next.deadlist, Txg(0), txg)?;
                self.add_freed(head, &name, bookmark, died)?;
            }
        }
        Ok(needed)
    }

    /// Takes a snapshot out of the chain. Whether the previous one is of the same dataset.
    fn unlink(&self, snapshot: ObjectId, phys: &DslDataset) -> Result<bool> {
        let mut follows = false;
        if phys.previous_snapshot.0 != 0 {
            let mut previous = self.dataset(phys.previous_snapshot)?;
            follows = previous.next_snapshot == snapshot;
            if follows {
                previous.next_snapshot = phys.next_snapshot;
                self.set_dataset(phys.previous_snapshot, &previous)?;
            } else if previous.next_clones.0 != 0 {
                self.remove_member(previous.next_clones, snapshot)?;
                self.add_member(previous.next_clones, phys.next_snapshot)?;
            }
        }
        self.alter_dataset(phys.next_snapshot, |next| {
            next.previous_snapshot = phys.previous_snapshot;
            next.previous_snapshot_txg = phys.previous_snapshot_txg;
        })?;
        Ok(follows)
    }

    /// Frees what only the snapshot had, and merges its deadlist into the next dataset's.
    fn sort_dead(&self, phys: &DslDataset, follows: bool) -> Result<()> {
        let next = self.dataset(phys.next_snapshot)?;
        let before = phys.previous_snapshot_txg;
        if follows {
            let previous = self.dataset(phys.previous_snapshot)?;
            let low = previous.previous_snapshot_txg;
            let gained = self.deadlist_range(next.deadlist, low, before)?;
            self.alter_dataset(phys.previous_snapshot, |previous| {
                previous.unique_bytes = clipped(previous.unique_bytes, gained.used);
            })?;
        }
        let missing = || Error::corrupt("the pool has no list of blocks to be freed");
        let list = self.pool_entry(FREE_LIST)?.ok_or_else(missing)?;
        let freed = self.move_dead(next.deadlist, before, list)?;
        self.charge(phys.directory, Share::Snapshots, -freed)?;
        self.charge(self.hidden_directory(FREE_DIRECTORY)?, Share::Head, freed)?;
        self.merge_deadlist(next.deadlist, phys.deadlist)
    }

    /// Removes a key from the deadlists of every clone, direct or not, of a later snapshot.
    pub(super) fn remove_clones_key(&self, directory: ObjectId, key: Txg) -> Result<()> {
        let (mut rest, mut seen) = (vec![directory], HashSet::new());
        while let Some(directory) = rest.pop() {
            if !seen.insert(directory) {
                continue;
            }
            for head in self.members(self.directory(directory)?.clones)? {
                let clone = self.dataset(head)?;
                if self.origin_txg(&self.directory(clone.directory)?)? <= key {
                    continue;
                }
                self.remove_deadlist_key(clone.deadlist, key)?;
                if let Some(remapped) = self.number_field(head, KEY_REMAP_DEADLIST)? {
                    self.remove_deadlist_key(ObjectId(remapped), key)?;
                }
                rest.push(clone.directory);
            }
        }
        Ok(())
    }

    /// The next dataset has for its own what it shared with the snapshot alone.
    fn pass_on(&self, phys: &DslDataset, key_stays: bool) -> Result<()> {
        let next = self.dataset(phys.next_snapshot)?;
        if next.is_snapshot() {
            let later = self.dataset(next.next_snapshot)?;
            let (low, high) = (phys.previous_snapshot_txg, phys.creation_txg);
            let gained = self.deadlist_range(later.deadlist, low, high)?;
            self.alter_dataset(phys.next_snapshot, |next| {
                next.unique_bytes = clipped(next.unique_bytes, gained.used);
            })?;
            if !key_stays {
                let head = self.directory(phys.directory)?.head_dataset;
                self.remove_deadlist_key(self.dataset(head)?.deadlist, phys.creation_txg)?;
            }
            return Ok(());
        }
        let (before, now) = self.recompute_unique(phys.next_snapshot)?;
        let reserved = self.refreservation(&self.directory(phys.directory)?)?;
        let released = Delta::between(reserved.min(before), reserved.min(now)).max(0);
        self.charge(phys.directory, Share::Refreservation, Delta::used(-released))
    }

    /// Computes a head's unique bytes anew; returns the old number and the new one.
    pub(super) fn recompute_unique(&self, head: ObjectId) -> Result<(u64, u64)> {
        let mut phys = self.dataset(head)?;
        let (mut shared, mut dead) = (0, 0);
        if phys.previous_snapshot.0 != 0 {
            shared = self.dataset(phys.previous_snapshot)?.referenced_bytes;
            dead = self.deadlist_total(phys.deadlist)?.used;
        }
        let before = phys.unique_bytes;
        let kept = i128::from(shared) - i128::from(dead);
        phys.unique_bytes = clipped(phys.referenced_bytes, -kept);
        self.set_dataset(head, &phys)?;
        Ok((before, phys.unique_bytes))
    }

    /// Removes a snapshot's name and its objects.
    fn forget_snapshot(&self, snapshot: ObjectId, phys: &DslDataset) -> Result<()> {
        let head = self.dataset(self.directory(phys.directory)?.head_dataset)?;
        let name = self.name_in(head.snapshot_names, snapshot)?;
        self.remove(head.snapshot_names, &name)?;
        if !name.starts_with('%') {
            self.count_snapshots(phys.directory, -1)?;
        }
        self.note_snapshot_change(phys.directory)?;
        self.clear_bootfs(snapshot)?;
        self.free_if_any(phys.next_clones)?;
        self.free_if_any(phys.properties)?;
        self.free_if_any(phys.holds)?;
        self.free_remapped(snapshot)?;
        self.free_object(snapshot)
    }

    /// A dataset that goes away has no list of blocks that were moved away from it; each counts once for
    /// its feature.
    pub(super) fn free_remapped(&self, dataset: ObjectId) -> Result<()> {
        let Some(remapped) = self.number_field(dataset, KEY_REMAP_DEADLIST)? else {
            return Ok(());
        };
        self.free_deadlist(ObjectId(remapped))?;
        if self.is_active("obsolete_counts")? {
            self.remove_reference("obsolete_counts")?;
        }
        Ok(())
    }

    /// The pool does not boot from a dataset that goes away.
    pub(super) fn clear_bootfs(&self, dataset: ObjectId) -> Result<()> {
        let Some(table) = self.pool_entry("pool_props")? else { return Ok(()) };
        let stored = self.value(table, "bootfs")?;
        if stored.is_some_and(|value| value.as_u64() == Some(dataset.0)) {
            self.remove(table, "bootfs")?;
        }
        Ok(())
    }
}
