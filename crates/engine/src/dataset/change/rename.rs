//! Renaming datasets and snapshots.
//!
//! Chapter 06, section 14. Invariant: what a directory uses and counts moves with it from the
//! directories above its old place to those above the new one.

use cenote_format::ObjectId;
use cenote_format::crypto_key;
use cenote_format::dsl_directory::KEY_CRYPTO_KEY_OBJECT;

use super::super::name::{DEPTH_MAX, NAME_MAX};
use super::keys::Way;
use super::{Delta, MosChange, Share};
use crate::{Error, ErrorKind, Result};

impl MosChange<'_> {
    /// Moves a directory below `parent` under the name `name`.
    pub fn rename_directory(
        &self,
        directory: ObjectId,
        parent: ObjectId,
        name: &str,
    ) -> Result<()> {
        let phys = self.directory(directory)?;
        if parent != phys.parent {
            self.count_where_counted(directory, parent)?;
        }
        self.check_rename(directory, parent, name)?;
        let above = self.name_of(self.directory(parent)?.head_dataset)?;
        self.log_event("rename", Some(phys.head_dataset), &format!("-> {above}/{name}"))?;
        let source = self.directory(phys.parent)?;
        let component = self.name_in(source.child_map, directory)?;
        if parent != phys.parent {
            let (below, snapshots) = self.counts_of(directory)?;
            let (filesystems, snapshots) = (i128::from(below) + 1, i128::from(snapshots));
            self.count_filesystems(phys.parent, -filesystems)?;
            self.count_snapshots(phys.parent, -snapshots)?;
            self.count_filesystems(parent, filesystems)?;
            self.count_snapshots(parent, snapshots)?;

            let used = Delta {
                used: phys.used_bytes.into(),
                compressed: phys.compressed_bytes.into(),
                uncompressed: phys.uncompressed_bytes.into(),
            };
            let unused = Delta::used(phys.reserved.saturating_sub(phys.used_bytes).into());
            self.charge(phys.parent, Share::Children, -used)?;
            self.charge(phys.parent, Share::ChildReservations, -unused)?;
            self.charge(parent, Share::Children, used)?;
            self.charge(parent, Share::ChildReservations, unused)?;
        }
        self.remove(source.child_map, &component)?;
        self.alter_directory(directory, |phys| phys.parent = parent)?;
        self.add_number(self.directory(parent)?.child_map, name, directory.0)
    }

    fn check_rename(&self, directory: ObjectId, parent: ObjectId, name: &str) -> Result<()> {
        let phys = self.directory(directory)?;
        let target = self.directory(parent)?;
        let located = |error: Error| Err(error.at_object(0, directory.0));
        if phys.parent.0 == 0 {
            return located(Error::invalid("the root dataset cannot be renamed"));
        }
        if self.number(target.child_map, name)?.is_some() {
            return located(Error::new(ErrorKind::Exists, "dataset already exists"));
        }
        let mut at = parent;
        for _ in 0..=DEPTH_MAX {
            if at == directory {
                let reason = "New dataset name cannot be a descendant of current dataset name";
                return located(Error::invalid(reason));
            }
            if at.0 == 0 {
                break;
            }
            at = self.directory(at)?.parent;
        }
        if parent == phys.parent {
            return Ok(());
        }
        if self.hides(parent)? {
            return located(Error::invalid("the new parent is a snapshot or hidden"));
        }
        self.check_keys_stay_below(directory, parent)?;
        let (below, snapshots) = self.counts_of(directory)?;
        // What the two places have in common above them does not grow.
        let common = self.common_ancestor(phys.parent, parent)?;
        self.check_moved_limits(parent, common, below.saturating_add(1), snapshots)?;
        let growth = phys.used_bytes.max(phys.reserved);
        if growth > self.available_to_moved(phys.parent, parent, growth)? {
            return located(Error::new(ErrorKind::NoSpace, "out of space"));
        }
        Ok(())
    }

    fn hides(&self, directory: ObjectId) -> Result<bool> {
        let phys = self.directory(directory)?;
        if phys.parent.0 == 0 {
            return Ok(false);
        }
        let own = self.name_in(self.directory(phys.parent)?.child_map, directory)?;
        Ok(super::super::is_hidden(&own))
    }

    /// The nearest directory that is at or above both.
    pub(super) fn common_ancestor(&self, one: ObjectId, other: ObjectId) -> Result<ObjectId> {
        let path = |mut at: ObjectId| -> Result<Vec<ObjectId>> {
            let mut path = Vec::new();
            while at.0 != 0 && path.len() <= DEPTH_MAX {
                path.push(at);
                at = self.directory(at)?.parent;
            }
            Ok(path)
        };
        let others = path(other)?;
        let common = path(one)?.into_iter().find(|at| others.contains(at));
        common.ok_or_else(|| Error::corrupt("two directories have no common root"))
    }

    /// An encrypted directory that is not an encryption root stays below its root, and a plain one
    /// outside of encrypted ones.
    fn check_keys_stay_below(&self, directory: ObjectId, parent: ObjectId) -> Result<()> {
        let root_of = |directory: ObjectId| -> Result<Option<u64>> {
            match self.number_field(directory, KEY_CRYPTO_KEY_OBJECT)? {
                Some(keys) => self.number(ObjectId(keys), crypto_key::ROOT_DIRECTORY),
                None => Ok(None),
            }
        };
        let (own, new) = (root_of(directory)?, root_of(parent)?);
        let Some(root) = own.filter(|root| *root != directory.0) else { return Ok(()) };
        // A clone outside of the root is reached through what it was cloned from: not by what moves below it.
        let stays = |way: &Way| way.to != directory;
        if new == own && self.is_reached_from_root(ObjectId(root), parent, stays)? {
            return Ok(());
        }
        let reason = "cannot move encrypted child outside of its encryption root";
        Err(Error::new(ErrorKind::Permission, reason).at_object(0, directory.0))
    }

    /// Gives a snapshot another name.
    pub fn rename_snapshot(&self, head: ObjectId, from: &str, to: &str) -> Result<()> {
        let phys = self.dataset(head)?;
        let absent = || {
            let reason = format!("snapshot '{from}' does not exist");
            Error::not_found(reason).at_object(0, head.0)
        };
        let snapshot = self.number(phys.snapshot_names, from)?.ok_or_else(absent)?;
        if self.number(phys.snapshot_names, to)?.is_some() {
            let reason = "dataset already exists";
            return Err(Error::new(ErrorKind::Exists, reason).at_object(0, head.0));
        }
        if self.name_of(head)?.len() + 1 + to.len() > NAME_MAX {
            return Err(Error::invalid("dataset name is too long").at_object(0, head.0));
        }
        self.log_event("rename", Some(ObjectId(snapshot)), &format!("-> @{to}"))?;
        self.remove(phys.snapshot_names, from)?;
        self.put_number(phys.snapshot_names, to, snapshot)?;
        self.note_snapshot_change(phys.directory)
    }
}
