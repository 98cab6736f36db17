//! Promoting clones: the clone takes over its origin and all snapshots before it.
//!
//! Chapter 06, section 12. Invariant: the same blocks are charged before and after; each to the
//! directory whose head or snapshot has had it first.

use std::collections::BTreeSet;

use cenote_format::bookmark::Bookmark;
use cenote_format::crypto_key::ROOT_DIRECTORY;
use cenote_format::dsl_dataset::{DslDataset, KEY_BOOKMARKS};
use cenote_format::dsl_directory::KEY_CRYPTO_KEY_OBJECT;
use cenote_format::zap::Value;
use cenote_format::zap::normalize::Normalization;
use cenote_format::{ObjectId, Txg};

use super::keys::Way;
use super::objects::METADATA_ZAP;
use super::space::{clipped, signed};
use super::{Delta, MosChange, PropertyInput, Share};
use crate::{Error, ErrorKind, Result};

/// Longest chain of snapshots that is followed.
const CHAIN_MAX: usize = 1 << 20;
/// Property that says where an encryption root's key comes from.
const KEY_LOCATION: &str = "keylocation";

/// A dataset and its bonus.
type Link = (ObjectId, DslDataset);

/// What a promotion is about.
struct Promotion {
    /// The clone's head and directory.
    clone: ObjectId,
    clone_directory: ObjectId,
    /// Head and directory that the clone was made from.
    parent: ObjectId,
    parent_directory: ObjectId,
    /// The origin of the clone.
    origin: Link,
    /// What the parent was cloned from itself.
    parent_origin: Link,
    /// Snapshots that move, newest (the origin) first.
    moving: Vec<Link>,
    /// The clone's snapshots after the origin, its head first.
    of_clone: Vec<Link>,
    /// The parent's snapshots after the origin, its head first.
    of_parent: Vec<Link>,
}

impl MosChange<'_> {
    /// The datasets from `newest` back to, and without, `end`.
    fn chain(&self, newest: ObjectId, end: ObjectId) -> Result<Vec<Link>> {
        let (mut chain, mut at) = (Vec::new(), newest);
        while at != end {
            if at.0 == 0 || chain.len() >= CHAIN_MAX {
                let reason = "the snapshots form no chain to the origin";
                return Err(Error::corrupt(reason).at_object(0, newest.0));
            }
            let phys = self.dataset(at)?;
            let previous = phys.previous_snapshot;
            chain.push((at, phys));
            at = previous;
        }
        Ok(chain)
    }

    fn plan_promotion(&self, clone: ObjectId) -> Result<Promotion> {
        let phys = self.dataset(clone)?;
        let located = |error: Error| error.at_object(0, clone.0);
        let no_clone = || located(Error::invalid("not a cloned filesystem"));
        if phys.is_snapshot() {
            return Err(no_clone());
        }
        let directory = self.directory(phys.directory)?;
        if directory.origin.0 == 0 || directory.origin == self.empty_snapshot()? {
            return Err(no_clone());
        }
        let origin = self.dataset(directory.origin)?;
        let above = self.directory(origin.directory)?;
        Ok(Promotion {
            clone,
            clone_directory: phys.directory,
            parent: above.head_dataset,
            parent_directory: origin.directory,
            parent_origin: (above.origin, self.dataset(above.origin)?),
            moving: self.chain(directory.origin, above.origin)?,
            of_clone: self.chain(clone, directory.origin)?,
            of_parent: self.chain(above.head_dataset, directory.origin)?,
            origin: (directory.origin, origin),
        })
    }

    /// Whether a clone can be promoted. On [`ErrorKind::Exists`] the reason names the snapshots, or the
    /// bookmark, whose names are taken; [`ErrorKind::Permission`]: it would be out of its encryption root's
    /// reach.
    pub fn check_promote(&self, clone: ObjectId) -> Result<()> {
        let plan = self.plan_promotion(clone)?;
        self.check_keys_stay_reached(&plan)?;
        let taken: BTreeSet<String> = self.snapshot_names(clone)?.into_iter().collect();
        let moving = self.names_of_moving(&plan)?;
        let twice: Vec<&str> =
            moving.iter().filter(|m| taken.contains(&m.0)).map(|m| m.0.as_str()).collect();
        let located = |error: Error| Err(error.at_object(0, clone.0));
        if !twice.is_empty() {
            let reason = format!("snapshot name '{}' from origin conflicts", twice.join("', '"));
            return located(Error::new(ErrorKind::Exists, reason));
        }
        let bookmarks = self.bookmarks(plan.clone)?;
        let mut twice = self.moving_bookmarks(&plan)?.0;
        twice.retain(|(name, _)| bookmarks.iter().any(|(own, _)| own == name));
        if let Some((name, _)) = twice.first() {
            let reason = format!("bookmark name '{name}' from origin conflicts");
            return located(Error::new(ErrorKind::Exists, reason));
        }
        let (moved, ..) = self.promoted_space(&plan)?;
        let moved = clipped(0, moved.used);
        if moved > self.available_to_moved(plan.parent_directory, plan.clone_directory, moved)? {
            return located(Error::new(ErrorKind::NoSpace, "out of space"));
        }
        let visible = moving.iter().filter(|(name, _)| !name.starts_with('%')).count() as u64;
        let common = self.common_ancestor(plan.clone_directory, plan.parent_directory)?;
        self.check_moved_limits(plan.clone_directory, common, 0, visible)
    }

    fn snapshot_names(&self, head: ObjectId) -> Result<Vec<String>> {
        let names = self.numbers(self.dataset(head)?.snapshot_names)?;
        Ok(names.into_iter().map(|(name, _)| name).collect())
    }

    fn names_of_moving(&self, plan: &Promotion) -> Result<Vec<(String, ObjectId)>> {
        let moving: BTreeSet<ObjectId> = plan.moving.iter().map(|(id, _)| *id).collect();
        let names = self.numbers(self.dataset(plan.parent)?.snapshot_names)?;
        let named = names.into_iter().map(|(name, id)| (name, ObjectId(id)));
        Ok(named.filter(|(_, id)| moving.contains(id)).collect())
    }

    /// The space that moves, what the clone's snapshots use then, and what the parent's do.
    fn promoted_space(&self, plan: &Promotion) -> Result<(Delta, i128, i128)> {
        let referenced = |phys: &DslDataset| Delta {
            used: phys.referenced_bytes.into(),
            compressed: phys.compressed_bytes.into(),
            uncompressed: phys.uncompressed_bytes.into(),
        };
        let mut moved = referenced(&plan.origin.1) - referenced(&plan.parent_origin.1);
        for (_, phys) in &plan.moving {
            moved += self.deadlist_total(phys.deadlist)?.into();
        }
        let dead = |links: &[Link], after: Txg| -> Result<i128> {
            links.iter().try_fold(0, |sum, (_, phys)| {
                Ok(sum + self.deadlist_range(phys.deadlist, after, Txg(u64::MAX))?.used)
            })
        };
        let first = plan.parent_origin.1.creation_txg;
        let clone = dead(&plan.moving, first)? + dead(&plan.of_clone, first)?;
        let parent = dead(&plan.of_parent, plan.origin.1.creation_txg)?;
        Ok((moved, clone, parent))
    }

    /// Promotes a clone.
    pub fn promote(&self, clone: ObjectId) -> Result<()> {
        self.check_promote(clone)?;
        let plan = self.plan_promotion(clone)?;
        let names = self.names_of_moving(&plan)?;
        let (moved, clone_dead, parent_dead) = self.promoted_space(&plan)?;
        self.log_event("promote", Some(clone), " ")?;
        self.move_encryption_root(&plan)?;

        let missing = || Error::corrupt("a head is missing from its own chain");
        let clone_first = plan.of_clone.last().ok_or_else(missing)?;
        let parent_first = plan.of_parent.last().ok_or_else(missing)?.0;
        let before = plan.origin.1.previous_snapshot_txg;
        let unique = self.deadlist_range(clone_first.1.deadlist, before, Txg(u64::MAX))?;
        let origin = plan.origin.0;
        self.alter_dataset(origin, |phys| {
            phys.next_snapshot = clone_first.0;
            phys.unique_bytes = clipped(0, unique.used);
        })?;
        let clones = plan.origin.1.next_clones;
        if clones.0 != 0 {
            self.remove_member(clones, clone_first.0)?;
            self.add_member(clones, parent_first)?;
        }
        self.move_clones(&plan, parent_first)?;
        self.alter_directory(plan.clone_directory, |phys| phys.origin = plan.parent_origin.0)?;
        self.alter_directory(plan.parent_directory, |phys| phys.origin = origin)?;
        self.move_snapshots(&plan, &names)?;
        self.move_bookmarks(&plan)?;
        self.pass_errors(plan.parent, clone, plan.origin.1.creation_txg)?;
        self.renew_freed(clone, origin)?;

        let snapshots = |directory| -> Result<i128> {
            Ok(signed(self.directory(directory)?.used_breakdown.snapshots))
        };
        let change = clone_dead - snapshots(plan.clone_directory)?;
        let head = Delta { used: moved.used - change, ..moved };
        self.charge(plan.clone_directory, Share::Snapshots, Delta::used(change))?;
        self.charge(plan.clone_directory, Share::Head, head)?;
        let change = parent_dead - snapshots(plan.parent_directory)?;
        let head = Delta { used: -moved.used - change, ..-moved };
        self.charge(plan.parent_directory, Share::Snapshots, Delta::used(change))?;
        self.charge(plan.parent_directory, Share::Head, head)?;
        self.drop_livelist(plan.clone_directory)?;
        self.drop_livelist(plan.parent_directory)
    }

    /// The directories' lists of clones, after which the parent is a clone of the origin.
    fn move_clones(&self, plan: &Promotion, parent_first: ObjectId) -> Result<()> {
        let parent_clones = self.directory(plan.parent_directory)?.clones;
        let old_home = plan.parent_origin.1.directory;
        self.remove_member(parent_clones, plan.clone)?;
        self.add_clone(old_home, plan.clone)?;
        self.remove_member(self.directory(old_home)?.clones, plan.parent)?;
        self.add_clone(plan.clone_directory, plan.parent)?;
        for (_, phys) in &plan.moving {
            for first in self.members(phys.next_clones)? {
                if first == parent_first {
                    continue;
                }
                let head = self.directory(self.dataset(first)?.directory)?.head_dataset;
                if head != plan.clone {
                    self.remove_member(parent_clones, head)?;
                    self.add_clone(plan.clone_directory, head)?;
                }
            }
        }
        Ok(())
    }

    fn move_snapshots(&self, plan: &Promotion, names: &[(String, ObjectId)]) -> Result<()> {
        let from = self.dataset(plan.parent)?.snapshot_names;
        let to = self.dataset(plan.clone)?.snapshot_names;
        for (name, snapshot) in names {
            self.remove(from, name)?;
            self.add_number(to, name, snapshot.0)?;
            self.alter_dataset(*snapshot, |phys| phys.directory = plan.clone_directory)?;
        }
        let visible = names.iter().filter(|(name, _)| !name.starts_with('%')).count() as i128;
        self.count_snapshots(plan.parent_directory, -visible)?;
        self.count_snapshots(plan.clone_directory, visible)?;
        self.note_snapshot_change(plan.parent_directory)?;
        self.note_snapshot_change(plan.clone_directory)
    }

    /// The bookmarks that move, those of snapshots up to the origin, and whether others stay.
    fn moving_bookmarks(&self, plan: &Promotion) -> Result<(Vec<(String, Bookmark)>, bool)> {
        let last = plan.origin.1.creation_txg;
        let mut all = self.bookmarks(plan.parent)?;
        let before = all.len();
        all.retain(|(_, bookmark)| bookmark.creation_txg <= last);
        let others_stay = all.len() < before;
        Ok((all, others_stay))
    }

    /// Bookmarks of snapshots up to the origin go with them.
    fn move_bookmarks(&self, plan: &Promotion) -> Result<()> {
        let (moving, others_stay) = self.moving_bookmarks(plan)?;
        let Some(from) = self.number_field(plan.parent, KEY_BOOKMARKS)?.map(ObjectId) else {
            return Ok(());
        };
        if moving.is_empty() {
            return Ok(());
        }
        let to = match self.number_field(plan.clone, KEY_BOOKMARKS)? {
            Some(table) => ObjectId(table),
            None => {
                let upper = Normalization(Normalization::UPPER);
                let table = self.new_normal_table(METADATA_ZAP, upper)?;
                self.set_number_field(plan.clone, KEY_BOOKMARKS, table.0)?;
                self.add_reference("bookmarks")?;
                table
            }
        };
        for (name, bookmark) in &moving {
            self.remove(from, name)?;
            self.put(to, name, &Value::of_u64s(&bookmark.to_words())?)?;
        }
        if !others_stay {
            self.remove_field(plan.parent, KEY_BOOKMARKS)?;
            self.free_object(from)?;
            self.remove_reference("bookmarks")?;
        }
        Ok(())
    }

    /// Refuses a clone that its encryption root reaches as a clone only, unless it becomes the root: what it
    /// was cloned from will be the clone.
    fn check_keys_stay_reached(&self, plan: &Promotion) -> Result<()> {
        let keys = self.number_field(plan.parent_directory, KEY_CRYPTO_KEY_OBJECT)?;
        let Some(keys) = keys.map(ObjectId) else { return Ok(()) };
        let root = self.number(keys, ROOT_DIRECTORY)?.map(ObjectId);
        let Some(root) = root.filter(|root| *root != plan.parent_directory) else { return Ok(()) };
        // Of a clone the promoted one becomes a clone in its place.
        let (origin, _) = plan.parent_origin;
        let parent_is_clone = origin.0 != 0 && origin != self.empty_snapshot()?;
        let above = self.directory(plan.clone_directory)?.parent;
        let stays = |way: &Way| !(way.is_clone && way.from == plan.parent_directory);
        if parent_is_clone || self.is_reached_from_root(root, above, stays)? {
            return Ok(());
        }
        let reason = "cannot promote dataset outside its encryption root";
        Err(Error::new(ErrorKind::Permission, reason).at_object(0, plan.clone.0))
    }

    /// If the parent is the encryption root of the keys that the clone shares, the clone is from
    /// now on.
    fn move_encryption_root(&self, plan: &Promotion) -> Result<()> {
        let keys = self.number_field(plan.clone_directory, KEY_CRYPTO_KEY_OBJECT)?;
        let Some(keys) = keys.map(ObjectId) else { return Ok(()) };
        let root = self.number(keys, ROOT_DIRECTORY)?.map(ObjectId);
        if root != Some(plan.parent_directory) {
            return Ok(());
        }
        let from = self.directory(plan.parent_directory)?.properties;
        if let Some(location) = self.value(from, KEY_LOCATION)? {
            let text = location.as_c_string().unwrap_or_default();
            let text = String::from_utf8_lossy(text).into_owned();
            self.set_property(plan.clone, &PropertyInput::text(KEY_LOCATION, &text))?;
            self.remove(from, KEY_LOCATION)?;
        }
        let mut all = self.directories_of_root(plan.parent_directory, plan.parent_directory)?;
        all.extend(self.directories_of_root(plan.clone_directory, plan.parent_directory)?);
        for (_, keys) in all {
            self.put_number(keys, ROOT_DIRECTORY, plan.clone_directory.0)?;
        }
        self.hooks.keys_moved(plan.parent_directory, plan.clone_directory);
        Ok(())
    }
}
