//! Exchanging the content of a head and a clone of its newest snapshot, and going back to a
//! snapshot with it.
//!
//! Chapter 06, section 14. Invariant: names, guids, properties and snapshots stay where they are;
//! content, and what follows from it, changes sides.

use cenote_format::dsl_dataset::{DslDataset, KEY_REMAP_DEADLIST};
use cenote_format::{ObjectId, Txg};

use super::{Delta, MosChange, NewDataset, Share};
use crate::{Error, ErrorKind, Result};

/// Name of the clone that takes what a rollback throws away.
const ROLLBACK: &str = "%rollback";

/// What a receive may go beyond a refquota, in bytes: what one transaction of OpenZFS may (64 MiB, and up to 24 times
/// that on the disks), so that what the sender's quota let in is let in.
const BEYOND_QUOTA: u64 = 24 * (64 << 20);

impl MosChange<'_> {
    /// Whether `head` can go back to its newest snapshot.
    pub fn check_rollback(&self, head: ObjectId) -> Result<()> {
        let phys = self.dataset(head)?;
        let located = |error: Error| Err(error.at_object(0, head.0));
        if phys.is_snapshot() {
            return located(Error::invalid("a snapshot cannot be rolled back"));
        }
        let names = self.numbers(phys.snapshot_names)?;
        if !names.iter().any(|(_, id)| *id == phys.previous_snapshot.0) {
            return located(Error::not_found("the dataset has no snapshots"));
        }
        // What is written in the rest of the group would be as old as the snapshot, and nobody's to free.
        if phys.previous_snapshot_txg >= self.tx.txg() {
            let reason = "its newest snapshot was taken in this transaction group";
            return located(Error::new(ErrorKind::TimedOut, reason));
        }
        let newer = |txg: Txg| txg > phys.previous_snapshot_txg;
        if self.bookmarks(head)?.iter().any(|(_, bookmark)| newer(bookmark.creation_txg)) {
            let reason = "more recent bookmarks exist";
            return located(Error::new(ErrorKind::Exists, reason));
        }
        let directory = self.directory(phys.directory)?;
        let quota = self.refquota(&directory)?;
        if quota != 0 && self.dataset(phys.previous_snapshot)?.referenced_bytes > quota {
            return located(Error::new(ErrorKind::Quota, "disk quota exceeded"));
        }
        let reserved = self.refreservation(&directory)?;
        if phys.unique_bytes.min(reserved) > self.available_to(phys.directory)? {
            return located(Error::new(ErrorKind::NoSpace, "out of space"));
        }
        Ok(())
    }

    /// Takes `head` back to its newest snapshot. The intent-log header of the new content is to be
    /// cleared in this group.
    pub fn rollback(&self, head: ObjectId) -> Result<()> {
        self.check_rollback(head)?;
        let clone = self.begin_rollback(head)?;
        self.destroy_head(clone)
    }

    /// Takes `head` back; what it had is the content of the clone that is returned.
    pub(super) fn begin_rollback(&self, head: ObjectId) -> Result<ObjectId> {
        let phys = self.dataset(head)?;
        let new = NewDataset {
            parent: phys.directory,
            name: ROLLBACK,
            origin: Some(phys.previous_snapshot),
            ..NewDataset::default()
        };
        // Going back is how one gets out of a dataset, or a pool, that is full.
        let clone = self.create_unchecked(&new)?.dataset;
        self.swap_clone(clone, head)?;
        Ok(clone)
    }

    /// Refuses a clone whose content `head` has no room for by its own quota and reservation.
    pub fn check_swap(&self, clone: ObjectId, head: ObjectId) -> Result<()> {
        let (new, old) = (self.dataset(clone)?, self.dataset(head)?);
        let directory = self.directory(old.directory)?;
        let quota = self.refquota(&directory)?;
        if quota != 0 && new.referenced_bytes > quota.saturating_add(BEYOND_QUOTA) {
            let error = Error::new(ErrorKind::Quota, "it refers to more than its refquota");
            return Err(error.at_object(0, head.0));
        }
        let reserved = self.refreservation(&directory)?;
        let unused = old.unique_bytes.min(reserved).saturating_sub(new.unique_bytes.min(reserved));
        if unused > 0 && unused > self.available_to(old.directory)? {
            let error = Error::new(ErrorKind::NoSpace, "its refreservation has no room");
            return Err(error.at_object(0, head.0));
        }
        Ok(())
    }

    /// Exchanges the content of `clone` and of `head`, whose newest snapshot it is a clone of.
    pub fn swap_clone(&self, clone: ObjectId, head: ObjectId) -> Result<()> {
        let (mut new, mut old) = (self.dataset(clone)?, self.dataset(head)?);
        let origin = old.previous_snapshot;
        if new.previous_snapshot != origin || new.is_snapshot() || old.is_snapshot() {
            let reason = "only a clone of the newest snapshot can take a dataset's place";
            return Err(Error::invalid(reason).at_object(0, head.0));
        }
        let before = self.dataset(origin)?.previous_snapshot_txg;
        let all = Txg(u64::MAX);
        let unique = self.deadlist_range(new.deadlist, before, all)?.used;
        self.alter_dataset(origin, |phys| {
            phys.unique_bytes = super::space::clipped(0, unique);
        })?;

        let reserved = self.refreservation(&self.directory(old.directory)?)?;
        let had = |unique: u64| i128::from(unique.min(reserved));
        let released = Delta::used(had(old.unique_bytes) - had(new.unique_bytes));
        let weight = |phys: &DslDataset| -> Result<Delta> {
            let referenced = Delta {
                used: phys.referenced_bytes.into(),
                compressed: phys.compressed_bytes.into(),
                uncompressed: phys.uncompressed_bytes.into(),
            };
            Ok(referenced + self.deadlist_total(phys.deadlist)?.into())
        };
        let gained = weight(&new)? - weight(&old)?;
        let origin_txg = self.origin_txg(&self.directory(old.directory)?)?;
        let dead = |deadlist| Ok::<_, Error>(self.deadlist_range(deadlist, origin_txg, all)?.used);
        let died = dead(new.deadlist)? - dead(old.deadlist)?;

        self.swap_features(clone, head)?;
        self.swap_remapped(clone, head)?;
        std::mem::swap(&mut new.pointer, &mut old.pointer);
        std::mem::swap(&mut new.deadlist, &mut old.deadlist);
        std::mem::swap(&mut new.referenced_bytes, &mut old.referenced_bytes);
        std::mem::swap(&mut new.compressed_bytes, &mut old.compressed_bytes);
        std::mem::swap(&mut new.uncompressed_bytes, &mut old.uncompressed_bytes);
        std::mem::swap(&mut new.unique_bytes, &mut old.unique_bytes);
        self.set_dataset(clone, &new)?;
        self.set_dataset(head, &old)?;

        self.charge(old.directory, Share::Head, gained)?;
        self.charge(new.directory, Share::Head, -gained)?;
        self.transfer(old.directory, died, Share::Head, Share::Snapshots)?;
        self.charge(old.directory, Share::Refreservation, released)?;
        self.renew_freed(head, origin)?;
        self.drop_livelist(old.directory)?;
        self.drop_livelist(new.directory)?;
        self.swap_errors(clone, head, self.dataset(origin)?.creation_txg)?;
        self.hooks.heads_swapped(clone, head);
        let name = self.name_of(head)?;
        let component = name.rsplit('/').next().unwrap_or_default();
        self.log_event("clone swap", Some(clone), &format!("parent={component}"))
    }

    fn swap_features(&self, one: ObjectId, other: ObjectId) -> Result<()> {
        let (of_one, of_other) = (self.dataset_features(one)?, self.dataset_features(other)?);
        self.deactivate_all(one)?;
        self.deactivate_all(other)?;
        for (dataset, features) in [(one, of_other), (other, of_one)] {
            for (feature, value) in features {
                self.activate(dataset, feature, &value)?;
            }
        }
        Ok(())
    }

    fn swap_remapped(&self, one: ObjectId, other: ObjectId) -> Result<()> {
        let of_one = self.number_field(one, KEY_REMAP_DEADLIST)?;
        let of_other = self.number_field(other, KEY_REMAP_DEADLIST)?;
        for (dataset, remapped) in [(one, of_other), (other, of_one)] {
            match remapped {
                Some(remapped) => self.set_number_field(dataset, KEY_REMAP_DEADLIST, remapped)?,
                None => {
                    self.remove_field(dataset, KEY_REMAP_DEADLIST)?;
                }
            }
        }
        Ok(())
    }
}
