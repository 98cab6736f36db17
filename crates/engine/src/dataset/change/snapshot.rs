//! Taking snapshots.
//!
//! Chapter 06, section 11. Invariant: a snapshot is taken after the head's blocks of this group were
//! written, at most once in a group; what the head loses from then on goes to its new deadlist.

use cenote_format::bookmark::FLAG_HAS_FREED_BEFORE_NEXT;
use cenote_format::dsl_dataset::{
    DslDataset, FLAG_UNIQUE_ACCURATE, KEY_IVSET_GUID, KEY_REMAP_DEADLIST,
};
use cenote_format::dsl_directory::{KEY_CRYPTO_KEY_OBJECT, KEY_SNAPSHOTS_CHANGED};
use cenote_format::zap::Value;
use cenote_format::{ObjectId, ObjectType, Txg};

use super::objects::{EXTENSIBLE, SMALL_BLOCK};
use super::properties::PropertyInput;
use super::{Delta, MosChange, Share};
use crate::{Error, ErrorKind, Result};

/// Bits of the identity of an IV set.
const IVSET_MASK: u64 = (1 << 56) - 1;

impl MosChange<'_> {
    /// Whether a snapshot of `head` called `name` can be taken in this group, limits on the number
    /// of snapshots included.
    pub fn check_snapshot(&self, head: ObjectId, name: &str) -> Result<()> {
        self.check_unlimited_snapshot(head, name)?;
        match name.starts_with('%') {
            true => Ok(()),
            false => self.check_snapshot_limit(self.dataset(head)?.directory, 1),
        }
    }

    fn check_unlimited_snapshot(&self, head: ObjectId, name: &str) -> Result<()> {
        let phys = self.dataset(head)?;
        let located = |error: Error| Err(error.at_object(0, head.0));
        if phys.is_snapshot() {
            return located(Error::invalid("a snapshot cannot be taken of a snapshot"));
        }
        if self.number(phys.snapshot_names, name)?.is_some() {
            return located(Error::new(ErrorKind::Exists, "dataset already exists"));
        }
        if phys.previous_snapshot_txg >= self.tx.txg() {
            let reason = "another snapshot was taken in this transaction group";
            return located(Error::new(ErrorKind::TimedOut, reason));
        }
        if phys.is_inconsistent() {
            return Err(Error::new(ErrorKind::Busy, "dataset is busy"));
        }
        let directory = self.directory(phys.directory)?;
        let held = phys.unique_bytes.min(self.refreservation(&directory)?);
        if held > self.available_to(phys.directory)? {
            return located(Error::new(ErrorKind::NoSpace, "out of space"));
        }
        Ok(())
    }

    /// Takes a snapshot of `head`, whose root is the one of this group. Limits on the number of
    /// snapshots are the caller's to check ([`Self::check_snapshot`]).
    pub fn create_snapshot(
        &self,
        head: ObjectId,
        name: &str,
        properties: &[PropertyInput],
    ) -> Result<ObjectId> {
        self.hooks.check_room()?;
        self.check_unlimited_snapshot(head, name)?;
        let snapshot = self.take_snapshot(head, name)?;
        self.log_event("snapshot", Some(snapshot), " ")?;
        for property in properties {
            self.set_property(snapshot, property)?;
        }
        Ok(snapshot)
    }

    pub(super) fn take_snapshot(&self, head: ObjectId, name: &str) -> Result<ObjectId> {
        let mut phys = self.dataset(head)?;
        let txg = self.creation_txg();
        if phys.previous_snapshot_txg >= self.tx.txg() {
            let reason = "another snapshot was taken in this transaction group";
            return Err(Error::new(ErrorKind::TimedOut, reason).at_object(0, head.0));
        }
        if !name.starts_with('%') {
            self.count_snapshots(phys.directory, 1)?;
        }
        let taken = DslDataset {
            directory: phys.directory,
            previous_snapshot: phys.previous_snapshot,
            previous_snapshot_txg: phys.previous_snapshot_txg,
            next_snapshot: head,
            children: 1,
            creation_time: self.now,
            creation_txg: txg,
            deadlist: phys.deadlist,
            referenced_bytes: phys.referenced_bytes,
            compressed_bytes: phys.compressed_bytes,
            uncompressed_bytes: phys.uncompressed_bytes,
            fsid_guid: self.new_fsid(),
            guid: self.new_guid(),
            flags: phys.flags,
            pointer: phys.pointer,
            ..DslDataset::default()
        };
        let dataset = ObjectType::DSL_DATASET;
        let snapshot = self.new_object(dataset, SMALL_BLOCK, dataset, taken.encode())?;
        self.copy_features(head, snapshot)?;
        self.precede(phys.previous_snapshot, head, snapshot)?;

        let directory = self.directory(phys.directory)?;
        let held = phys.unique_bytes.min(self.refreservation(&directory)?);
        let delta = Delta::used(held.into());
        self.charge(phys.directory, Share::Refreservation, delta)?;

        phys.deadlist = self.next_deadlist(head, &taken)?;
        phys.previous_snapshot = snapshot;
        phys.previous_snapshot_txg = txg;
        phys.unique_bytes = 0;
        phys.flags |= FLAG_UNIQUE_ACCURATE;
        self.set_dataset(head, &phys)?;
        if let Some(remapped) = self.number_field(head, KEY_REMAP_DEADLIST)? {
            self.remove_field(head, KEY_REMAP_DEADLIST)?;
            self.set_number_field(snapshot, KEY_REMAP_DEADLIST, remapped)?;
        }
        let encrypted = self.number_field(phys.directory, KEY_CRYPTO_KEY_OBJECT)?.is_some();
        if encrypted && self.is_enabled("bookmark_v2")? {
            let guid = (self.hooks.random() & IVSET_MASK).max(1);
            self.set_number_field(snapshot, KEY_IVSET_GUID, guid)?;
        }
        self.put_number(phys.snapshot_names, name, snapshot.0)?;
        self.note_snapshot_change(phys.directory)?;
        self.hooks.snapshot_taken(head, snapshot);
        Ok(snapshot)
    }

    /// A deadlist for what `head` loses after the snapshot `taken`.
    fn next_deadlist(&self, head: ObjectId, taken: &DslDataset) -> Result<ObjectId> {
        let (end, newest) = (Txg(u64::MAX), taken.previous_snapshot);
        let deadlist = self.clone_deadlist(taken.deadlist, end, newest)?;
        self.add_deadlist_key(deadlist, taken.previous_snapshot_txg)?;
        // Where there were no keys before, those of all bookmarks are missing.
        let since = match self.is_plain(taken.deadlist)? {
            true => Txg(0),
            false => taken.previous_snapshot_txg,
        };
        for (_, bookmark) in self.bookmarks(head)? {
            let flags = bookmark.details.map_or(0, |details| details.flags);
            let counted = flags & FLAG_HAS_FREED_BEFORE_NEXT != 0;
            if counted && bookmark.creation_txg > since {
                self.add_deadlist_key(deadlist, bookmark.creation_txg)?;
            }
        }
        Ok(deadlist)
    }

    /// After `previous` comes `snapshot` from now on instead of `head`.
    fn precede(&self, previous: ObjectId, head: ObjectId, snapshot: ObjectId) -> Result<()> {
        if previous.0 == 0 {
            return Ok(());
        }
        let mut phys = self.dataset(previous)?;
        if phys.next_snapshot == head {
            phys.next_snapshot = snapshot;
            return self.set_dataset(previous, &phys);
        }
        if phys.next_clones.0 != 0 {
            self.remove_member(phys.next_clones, head)?;
            self.add_member(phys.next_clones, snapshot)?;
        }
        Ok(())
    }

    /// A snapshot of a directory's head came or went.
    pub(super) fn note_snapshot_change(&self, directory: ObjectId) -> Result<()> {
        if !self.is_enabled(EXTENSIBLE)? {
            return Ok(());
        }
        let time = Value::of_u64s(&[self.now, 0])?;
        self.set_field(directory, KEY_SNAPSHOTS_CHANGED, &time)
    }
}
