//! Counts of filesystems and snapshots below directories, and the limits on them.
//!
//! Chapter 06, section 17. Invariant: a directory that has a count has the right one; a climb stops
//! at the first that has none.

use std::sync::atomic::Ordering::Relaxed;

use cenote_format::dsl_directory::{KEY_FILESYSTEM_COUNT, KEY_SNAPSHOT_COUNT};
use cenote_format::{ObjectId, dsl_directory};

use super::super::is_hidden;
use super::super::name::DEPTH_MAX;
use super::MosChange;
use super::space::clipped;
use crate::{Error, ErrorKind, Result};

/// Feature of pools with limits.
const LIMITS: &str = "filesystem_limits";

impl MosChange<'_> {
    /// A new directory begins to count where directories do.
    pub(super) fn begin_counts(&self, directory: ObjectId) -> Result<()> {
        if !self.is_active(LIMITS)? {
            return Ok(());
        }
        self.set_number_field(directory, KEY_FILESYSTEM_COUNT, 0)?;
        self.set_number_field(directory, KEY_SNAPSHOT_COUNT, 0)
    }

    /// There are `change` filesystems more below `directory`.
    pub(super) fn count_filesystems(&self, directory: ObjectId, change: i128) -> Result<()> {
        self.count(directory, KEY_FILESYSTEM_COUNT, change)
    }

    /// There are `change` snapshots more in or below `directory`.
    pub(super) fn count_snapshots(&self, directory: ObjectId, change: i128) -> Result<()> {
        self.count(directory, KEY_SNAPSHOT_COUNT, change)
    }

    fn count(&self, directory: ObjectId, key: &str, change: i128) -> Result<()> {
        if change == 0 || !self.is_active(LIMITS)? {
            return Ok(());
        }
        let mut at = directory;
        for _ in 0..=DEPTH_MAX {
            let Some(count) = self.number_field(at, key)? else { return Ok(()) };
            self.set_number_field(at, key, clipped(count, change))?;
            at = self.directory(at)?.parent;
            if at.0 == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Does `work`; if `lifted`, no limit counts for it: who may set them is not bound by them.
    pub fn beyond_limits<T>(&self, lifted: bool, work: impl FnOnce() -> T) -> T {
        let before = self.beyond_limits.swap(lifted, Relaxed);
        let done = work();
        self.beyond_limits.store(before, Relaxed);
        done
    }

    /// Checks that `more` filesystems may come below `directory`.
    pub fn check_filesystem_limit(&self, directory: ObjectId, more: u64) -> Result<()> {
        self.check_limit(directory, ObjectId(0), KEY_FILESYSTEM_COUNT, "filesystem_limit", more)
    }

    /// Checks that `more` snapshots may come in or below `directory`.
    pub fn check_snapshot_limit(&self, directory: ObjectId, more: u64) -> Result<()> {
        self.check_limit(directory, ObjectId(0), KEY_SNAPSHOT_COUNT, "snapshot_limit", more)
    }

    /// Checks that so many filesystems and snapshots may move below `directory` from elsewhere
    /// below `common`.
    pub(super) fn check_moved_limits(
        &self,
        directory: ObjectId,
        common: ObjectId,
        filesystems: u64,
        snapshots: u64,
    ) -> Result<()> {
        let (count, limit) = (KEY_FILESYSTEM_COUNT, "filesystem_limit");
        self.check_limit(directory, common, count, limit, filesystems)?;
        let (count, limit) = (KEY_SNAPSHOT_COUNT, "snapshot_limit");
        self.check_limit(directory, common, count, limit, snapshots)
    }

    /// Checks from `directory` up to, and without, `end`.
    fn check_limit(
        &self,
        directory: ObjectId,
        end: ObjectId,
        key: &str,
        limit: &str,
        more: u64,
    ) -> Result<()> {
        if more == 0 || self.beyond_limits.load(Relaxed) || !self.is_active(LIMITS)? {
            return Ok(());
        }
        let mut at = directory;
        for _ in 0..=DEPTH_MAX {
            if at == end {
                return Ok(());
            }
            let Some(count) = self.number_field(at, key)? else { return Ok(()) };
            let phys = self.directory(at)?;
            let most = self.own_number(phys.properties, limit)?.unwrap_or(u64::MAX);
            if count.saturating_add(more) > most {
                let reason = format!("{limit} of {most} would be exceeded");
                return Err(Error::new(ErrorKind::Quota, reason).at_object(0, at.0));
            }
            at = phys.parent;
        }
        Ok(())
    }

    /// A limit is set on `directory`: it and all below begin to count.
    pub(super) fn begin_limits(&self, directory: ObjectId) -> Result<()> {
        if !self.is_active(LIMITS)? {
            self.add_reference(LIMITS)?;
        }
        self.begin_limits_below(directory, 0).map(|_| ())
    }

    /// How many filesystems a directory says to be below it, and snapshots in and below it.
    pub(super) fn counts_of(&self, directory: ObjectId) -> Result<(u64, u64)> {
        let count = |key| Ok::<_, Error>(self.number_field(directory, key)?.unwrap_or(0));
        Ok((count(KEY_FILESYSTEM_COUNT)?, count(KEY_SNAPSHOT_COUNT)?))
    }

    /// A tree that has no counts and is to move below `parent`, which has, begins to count.
    pub(super) fn count_where_counted(&self, tree: ObjectId, parent: ObjectId) -> Result<()> {
        if self.is_active(LIMITS)? && self.number_field(parent, KEY_FILESYSTEM_COUNT)?.is_some() {
            self.begin_limits_below(tree, 0)?;
        }
        Ok(())
    }

    /// The filesystems below a directory and the snapshots in and below it; counts them where
    /// they were not counted.
    fn begin_limits_below(&self, directory: ObjectId, depth: usize) -> Result<(u64, u64)> {
        if depth > DEPTH_MAX {
            let reason = "directories are nested too deeply";
            return Err(Error::corrupt(reason).at_object(0, directory.0));
        }
        let known = (
            self.number_field(directory, KEY_FILESYSTEM_COUNT)?,
            self.number_field(directory, KEY_SNAPSHOT_COUNT)?,
        );
        if let (Some(filesystems), Some(snapshots)) = known {
            return Ok((filesystems, snapshots));
        }
        let phys = self.directory(directory)?;
        let (mut filesystems, mut snapshots) = (0, 0);
        for (name, child) in self.numbers(phys.child_map)? {
            // A temporary child counts, as it does when it comes while there are counts.
            if !name.starts_with('$') {
                let (below, inside) = self.begin_limits_below(ObjectId(child), depth + 1)?;
                let sum = |count: u64, more: u64| count.saturating_add(more);
                filesystems = sum(filesystems, sum(below, 1));
                snapshots = sum(snapshots, inside);
            }
        }
        if phys.head_dataset.0 != 0 {
            let names = self.numbers(self.dataset(phys.head_dataset)?.snapshot_names)?;
            let visible = names.iter().filter(|(name, _)| !is_hidden(name)).count() as u64;
            snapshots = u64::saturating_add(snapshots, visible);
        }
        self.set_number_field(directory, dsl_directory::KEY_FILESYSTEM_COUNT, filesystems)?;
        self.set_number_field(directory, dsl_directory::KEY_SNAPSHOT_COUNT, snapshots)?;
        Ok((filesystems, snapshots))
    }
}
