//! Orders about snapshots and bookmarks by their names.
//!
//! Invariant: as in [`orders`](super::orders): all or nothing, in one transaction group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cenote_format::bookmark::RedactionEntry;
use cenote_format::{Guid, ObjectId, Txg};

use super::orders::{DatasetOrders, destroy_all};
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY, PropertyInput, TEMPORARY_HOLDS};
use crate::dataset::{Catalog, Dataset, DatasetName, Table, check_new_name};
use crate::pool::group::LivePool;
use crate::{Error, ErrorKind, Result};

/// Groups that a snapshot is tried in, while others take one of the same dataset in each.
const SNAPSHOT_TRIES: u32 = 64;

impl LivePool {
    /// Ends the holds that were to end with an earlier life of the pool; what waited for that goes. To be called
    /// once when it has been opened.
    ///
    /// # Errors
    /// What the disks say.
    pub fn release_temporary_holds(&self) -> Result<()> {
        let catalog = self.pool().catalog();
        let directory = Table::open(catalog.mos(), OBJECT_DIRECTORY)?;
        let table = directory.map(|directory| directory.number(TEMPORARY_HOLDS)).transpose()?;
        if table.flatten().is_none_or(|id| id == 0) {
            return Ok(());
        }
        self.change(|live, change| {
            change.release_temporary_holds()?;
            live.wake_freeing();
            Ok(())
        })
    }
}

impl DatasetOrders<'_> {
    /// Takes snapshots, all or none. Where another was taken of one of the datasets in the same group, or that
    /// was only made in it, the next group is waited for.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, no space.
    pub fn snapshot(&self, names: &[String], properties: Vec<PropertyInput>) -> Result<()> {
        self.take(names, &properties, |_| Ok(()))
    }

    /// Takes a snapshot that is there until its hold `tag` is released, or until the pool is opened the next time.
    ///
    /// # Errors
    /// As above.
    pub fn snapshot_for_now(&self, name: &str, tag: &str) -> Result<()> {
        let names = [name.to_owned()];
        let (name, tag) = (name.to_owned(), tag.to_owned());
        self.take(&names, &[], move |change| {
            let snapshot = change.catalog()?.dataset_named(&name)?.id;
            change.hold(snapshot, &tag, true)?;
            change.destroy_snapshot(snapshot, true)
        })
    }

    /// Takes snapshots, and does `then` in the same group.
    fn take(
        &self,
        names: &[String],
        properties: &[PropertyInput],
        then: impl Fn(&MosChange<'_>) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            let (names, properties, then) = (names.to_vec(), properties.to_vec(), then.clone());
            let early = Arc::new(AtomicBool::new(false));
            let is_early = early.clone();
            let done = self.change(move |_, change| {
                take_all(change, &names, &properties, &is_early)?;
                then(change)
            });
            if done.is_ok() || !early.load(Relaxed) || tries == SNAPSHOT_TRIES {
                return done;
            }
        }
    }

    /// Lets a clone and what it was cloned from change places.
    ///
    /// # Errors
    /// `InvalidArgument` (no clone), `Exists` (a snapshot of both has the same name), `Permission` (outside of its
    /// encryption root).
    pub fn promote(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.change(move |_, change| {
            let clone = change.catalog()?.dataset_named(&name)?;
            change.promote(clone.id)
        })
    }

    /// Takes a filesystem, which is not mounted, or a volume back to a snapshot. What is `newer` (snapshots,
    /// bookmarks and clones, none of them mounted) is destroyed in the same group.
    ///
    /// # Errors
    /// `Exists` if there are other newer snapshots or bookmarks, no space; what refuses to be destroyed.
    pub fn rollback(&self, snapshot: &str, newer: &[String]) -> Result<()> {
        let (head, snapshot) = (snapshot.split('@').next().unwrap_or(""), snapshot.to_owned());
        self.close_for_destroy(newer, false)?;
        self.live.close_dataset(self.find(head)?.id)?;
        let newer = newer.to_vec();
        self.change(move |live, change| {
            if !newer.is_empty() {
                destroy_all(live, change, &newer, false)?;
            }
            let catalog = change.catalog()?;
            let to = catalog.dataset_named(&snapshot)?;
            let head = catalog.head(&to.directory)?;
            if head.phys.previous_snapshot != to.id {
                return Err(Error::new(ErrorKind::Exists, "more recent snapshots exist"));
            }
            live.rollback_dataset(change, head.id)
        })
    }

    /// Holds snapshots, all or none.
    ///
    /// # Errors
    /// `Exists`, `NotFound`.
    pub fn hold(&self, snapshots: &[String], tag: &str) -> Result<()> {
        let (names, tag) = (snapshots.to_vec(), tag.to_owned());
        self.change(move |_, change| {
            let catalog = change.catalog()?;
            let found = find_tagged(&catalog, &names, &tag)?;
            if found.iter().any(|(_, is_held)| *is_held) {
                return Err(Error::new(ErrorKind::Exists, "tag already exists on this dataset"));
            }
            found.into_iter().try_for_each(|(id, _)| change.hold(id, &tag, false))
        })
    }

    /// Releases the holds `tag` of those snapshots that have one.
    ///
    /// # Errors
    /// `NotFound`: none of them has; or a snapshot is not there. Then nothing is released.
    pub fn release(&self, snapshots: &[String], tag: &str) -> Result<()> {
        let (names, tag) = (snapshots.to_vec(), tag.to_owned());
        self.change(move |live, change| {
            let catalog = change.catalog()?;
            let found = find_tagged(&catalog, &names, &tag)?;
            let held = || found.iter().filter(|(_, is_held)| *is_held);
            if held().next().is_none() {
                return Err(Error::not_found("no such tag on this dataset"));
            }
            let mut destroyed = false;
            for &(id, _) in held() {
                destroyed |= change.release(id, &tag)?;
            }
            if destroyed {
                live.wake_freeing();
            }
            Ok(())
        })
    }

    /// Makes a bookmark of a snapshot or of another bookmark.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `InvalidArgument` (not of the same dataset).
    pub fn bookmark(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.change(move |_, change| make_bookmark(change, &from, &to))
    }

    /// Makes the bookmark `to` of a snapshot, with what streams of that leave out for the snapshots of `guids`.
    ///
    /// # Errors
    /// `NotFound`; `Exists`; `InvalidArgument`: there are too many of them; `Unsupported`: the feature is not
    /// enabled.
    pub fn redaction_bookmark(
        &self,
        snapshot: ObjectId,
        to: &str,
        guids: Vec<Guid>,
        entries: Vec<RedactionEntry>,
    ) -> Result<()> {
        let to = to.to_owned();
        self.change(move |_, change| {
            let (head, name) =
                to.split_once('#').ok_or_else(|| Error::invalid("not the name of a bookmark"))?;
            let head = change.catalog()?.dataset_named(head)?;
            change.create_redaction_bookmark(head.id, name, snapshot, &guids, &entries)
        })
    }
}

/// Makes the bookmark `to` of the snapshot or bookmark `from`.
pub(super) fn make_bookmark(change: &MosChange<'_>, from: &str, to: &str) -> Result<()> {
    let catalog = change.catalog()?;
    let (head, name) =
        to.split_once('#').ok_or_else(|| Error::invalid("not the name of a bookmark"))?;
    let head = catalog.dataset_named(head)?;
    if catalog.bookmarks(&head)?.iter().any(|(known, _)| known.to_string() == to) {
        return Err(Error::new(ErrorKind::Exists, "bookmark exists"));
    }
    if from.contains('#') {
        let from = DatasetName::parse(from)?;
        let source = catalog.bookmark(&from)?;
        let home = catalog.directory(from.path())?;
        check_ancestor(&catalog, &head, home.id, source.creation_txg)?;
        return change.copy_bookmark(head.id, name, &source);
    }
    let snapshot = catalog.dataset_named(from)?;
    let (home, txg) = (snapshot.directory.id, snapshot.phys.creation_txg);
    check_ancestor(&catalog, &head, home, txg)?;
    change.create_bookmark(head.id, name, snapshot.id)
}

/// Takes snapshots; `early`: one of the datasets is of this group.
fn take_all(
    change: &MosChange<'_>,
    names: &[String],
    properties: &[PropertyInput],
    early: &AtomicBool,
) -> Result<()> {
    let catalog = change.catalog()?;
    let mut heads = Vec::with_capacity(names.len());
    for full in names {
        let none = || Error::invalid(format!("'{full}' is no snapshot"));
        let (head, name) = full.split_once('@').ok_or_else(none)?;
        check_new_name(full)?;
        let head = catalog.dataset_named(head)?;
        let newest = head.phys.previous_snapshot_txg.max(head.phys.creation_txg);
        if newest >= change.tx.txg() && !head.is_snapshot() {
            early.store(true, Relaxed);
            let reason = format!("'{}' has changed in this transaction group", head.name);
            return Err(Error::new(ErrorKind::Busy, reason));
        }
        heads.push((head.id, name));
    }
    heads.into_iter().try_for_each(|(head, name)| {
        // Those before count where there is a limit for all of them.
        change.check_snapshot(head, name)?;
        change.create_snapshot(head, name, properties).map(drop)
    })
}

/// The snapshots of these names, and whether each is held with `tag`.
fn find_tagged(catalog: &Catalog, names: &[String], tag: &str) -> Result<Vec<(ObjectId, bool)>> {
    let found = names.iter().map(|name| {
        let snapshot = catalog.dataset_named(name)?;
        let is_held = catalog.holds(&snapshot)?.iter().any(|(held, _)| *held == tag);
        Ok((snapshot.id, is_held))
    });
    found.collect()
}

/// Refuses what was taken in `directory` in group `txg`, unless `head` comes of it.
fn check_ancestor(catalog: &Catalog, head: &Dataset, directory: ObjectId, txg: Txg) -> Result<()> {
    if directory == head.directory.id {
        return Ok(());
    }
    let mut at = head.clone();
    while let Some(previous) = catalog.previous(&at)? {
        if previous.directory.id == directory && previous.phys.creation_txg >= txg {
            return Ok(());
        }
        at = previous;
    }
    Err(Error::invalid("source is not an ancestor of the new bookmark's dataset"))
}
