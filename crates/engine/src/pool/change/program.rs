//! Changes that follow from what the ones before have made: those of a channel program.
//!
//! Invariant: they are made in one group with nothing between them, each wholly or not at all; what was made
//! before one that fails stays. Datasets that are open are not taken away and not rolled back.

use std::collections::BTreeMap;

use cenote_format::ObjectId;

use super::snapshots::make_bookmark;
use crate::dataset::change::{MosChange, PropertyInput};
use crate::dataset::{
    Catalog, Dataset, DatasetName, Listed, Principal, PrincipalUsage, PropertyReader,
    PropertyValue, check_new_name,
};
use crate::object::Accounting;
use crate::pool::group::LivePool;
use crate::{Error, ErrorKind, Result};

/// A group in which a program runs.
pub struct ProgramGroup<'a> {
    live: &'a LivePool,
    change: &'a MosChange<'a>,
}

/// One change. Names are whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramStep {
    /// Takes a snapshot.
    Snapshot(String),
    /// Destroys a filesystem, volume, snapshot or bookmark; `defer`: a snapshot that is held or cloned is marked.
    Destroy {
        /// Which.
        name: String,
        /// See there.
        defer: bool,
    },
    /// A clone changes places with what it was cloned from.
    Promote(String),
    /// Takes a filesystem or volume back to its newest snapshot.
    Rollback(String),
    /// Makes the bookmark `to`.
    Bookmark {
        /// A snapshot or bookmark.
        from: String,
        /// The new bookmark.
        to: String,
    },
    /// Sets a property that is stored.
    SetProperty {
        /// Filesystem, volume or snapshot.
        dataset: String,
        /// What to set.
        input: PropertyInput,
    },
    /// Removes the local value of a property.
    Inherit {
        /// Filesystem, volume or snapshot.
        dataset: String,
        /// Which.
        property: String,
    },
    /// Gives a snapshot of a dataset another name.
    RenameSnapshot {
        /// Filesystem or volume.
        dataset: String,
        /// The old name, without the dataset's.
        from: String,
        /// The new one.
        to: String,
    },
}

impl LivePool {
    /// Has `work` look at datasets and change them as it goes, in one group; returns when that is on the disks.
    /// Every now and then it is `watched`.
    ///
    /// # Errors
    /// What `work` says; `TimedOut`: it may not have run yet.
    pub fn program<T: Send + 'static>(
        &self,
        watched: &mut dyn FnMut(),
        work: impl FnOnce(&ProgramGroup<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.change_by_steps(watched, move |live, change| {
            // Only root gives programs.
            change.beyond_limits(true, || work(&ProgramGroup { live, change }))
        })
    }

    /// Closes the heads that are open although nobody uses them, so that a program may take them away.
    ///
    /// # Errors
    /// What the disks say.
    pub fn close_unused(&self, is_used: &dyn Fn(&str) -> bool) -> Result<()> {
        let pool = self.pool().catalog().pool().to_owned();
        for dataset in self.open_below(&[pool])? {
            if !is_used(dataset.name.path()) && self.refuse_received(dataset.id).is_ok() {
                self.close_dataset(dataset.id)?;
            }
        }
        Ok(())
    }
}

impl ProgramGroup<'_> {
    /// The datasets as they are now.
    ///
    /// # Errors
    /// What the disks say.
    pub fn catalog(&self) -> Result<Catalog> {
        self.change.catalog()
    }

    /// A property of a dataset; `None` if it does not apply or has no value.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such property.
    pub fn property(&self, dataset: &Dataset, name: &str) -> Result<Option<PropertyValue>> {
        self.read(|reader| reader.get(&Listed::Dataset(dataset.clone()), name))
    }

    /// The user properties of a dataset.
    ///
    /// # Errors
    /// What the disks say.
    pub fn user_properties(&self, dataset: &Dataset) -> Result<Vec<PropertyValue>> {
        let mut all = self.read(|reader| reader.all(&Listed::Dataset(dataset.clone())))?;
        all.retain(|value| value.property.is_none());
        Ok(all)
    }

    fn read<T>(&self, look: impl FnOnce(&PropertyReader<'_>) -> Result<T>) -> Result<T> {
        let catalog = self.change.catalog()?;
        let keys = self.live.pool().keys();
        look(&PropertyReader::new(&catalog, self.live.capacity(), keys.as_ref(), ""))
    }

    /// Whether a dataset counts what its owners use.
    ///
    /// # Errors
    /// What the disks say.
    pub fn counts_owners(&self, dataset: &Dataset) -> Result<bool> {
        let set = self.change.catalog()?.sealed_object_set(dataset)?;
        Ok(set.accounting_object(Accounting::User).is_some())
    }

    /// Who uses how much of a filesystem.
    ///
    /// # Errors
    /// What the disks say; `KeyNotLoaded`.
    pub fn usage(&self, dataset: &Dataset) -> Result<BTreeMap<Principal, PrincipalUsage>> {
        self.change.catalog()?.usage(dataset, self.live.pool().keys().as_ref())
    }

    /// Refuses a step that would fail.
    ///
    /// # Errors
    /// Why it would.
    pub fn check(&self, step: &ProgramStep) -> Result<()> {
        match step {
            ProgramStep::Snapshot(name) => self.check_snapshot(name).map(drop),
            ProgramStep::Destroy { name, defer } => self.check_destroy(name, *defer),
            ProgramStep::Promote(name) => self.check_promote(name).map(drop),
            ProgramStep::Rollback(name) => self.check_rollback(name).map(drop),
            ProgramStep::SetProperty { dataset, input } => {
                self.check_property(dataset, input).map(drop)
            }
            ProgramStep::Bookmark { .. }
            | ProgramStep::Inherit { .. }
            | ProgramStep::RenameSnapshot { .. } => self.try_out(step),
        }
    }

    /// Makes a step and takes it back.
    fn try_out(&self, step: &ProgramStep) -> Result<()> {
        let mut outcome = Ok(());
        let undone: Result<()> = self.live.step(self.change, || {
            outcome = self.make_step(step);
            // Whatever it came to, nothing of it stays.
            Err(Error::new(ErrorKind::Interrupted, "only tried out"))
        });
        match undone {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => outcome,
        }
    }

    /// Makes a step: all of it, or nothing.
    ///
    /// # Errors
    /// Why it was not made.
    pub fn make(&self, step: &ProgramStep) -> Result<()> {
        self.live.step(self.change, || self.make_step(step))
    }

    fn make_step(&self, step: &ProgramStep) -> Result<()> {
        let change = self.change;
        match step {
            ProgramStep::Snapshot(full) => {
                let head = self.check_snapshot(full)?;
                let name = full.split_once('@').map_or("", |(_, name)| name);
                change.create_snapshot(head, name, &[]).map(drop)
            }
            ProgramStep::Destroy { name, defer } => self.destroy(name, *defer),
            ProgramStep::Promote(name) => {
                let clone = self.check_promote(name)?;
                change.promote(clone)
            }
            ProgramStep::Rollback(name) => {
                let head = self.check_rollback(name)?;
                self.live.rollback_dataset(change, head)
            }
            ProgramStep::Bookmark { from, to } => {
                DatasetName::parse(to)?;
                make_bookmark(change, from, to)
            }
            ProgramStep::SetProperty { dataset, input } => {
                let dataset = self.check_property(dataset, input)?;
                change.set_property(dataset, input)
            }
            ProgramStep::Inherit { dataset, property } => {
                let dataset = change.catalog()?.dataset_named(dataset)?;
                change.inherit_property(dataset.id, property, false)
            }
            ProgramStep::RenameSnapshot { dataset, from, to } => {
                DatasetName::parse(&format!("{dataset}@{to}"))?;
                let head = change.catalog()?.dataset_named(dataset)?;
                change.rename_snapshot(head.id, from, to)
            }
        }
    }

    /// Adds a command line to the history.
    ///
    /// # Errors
    /// What the disks say.
    pub fn log_command(&self, line: &str, user: u64) -> Result<()> {
        self.live.step(self.change, || self.change.log_command(line, user))
    }

    /// The head of which the snapshot `full` can be taken.
    fn check_snapshot(&self, full: &str) -> Result<ObjectId> {
        let none = || Error::invalid(format!("'{full}' is no snapshot"));
        let (head, name) = full.split_once('@').ok_or_else(none)?;
        check_new_name(full)?;
        DatasetName::parse(full)?;
        let head = self.change.catalog()?.dataset_named(head)?;
        if self.is_fresh(head.id) {
            return Err(early(&head));
        }
        self.change.check_snapshot(head.id, name)?;
        Ok(head.id)
    }

    fn check_promote(&self, name: &str) -> Result<ObjectId> {
        let clone = self.change.catalog()?.dataset_named(name)?;
        if self.is_fresh(clone.id) {
            return Err(early(&clone));
        }
        self.change.check_promote(clone.id)?;
        Ok(clone.id)
    }

    fn check_rollback(&self, name: &str) -> Result<ObjectId> {
        let head = self.change.catalog()?.dataset_named(name)?;
        if !head.is_snapshot() {
            self.refuse_open(&head)?;
        }
        self.change.check_rollback(head.id)?;
        Ok(head.id)
    }

    fn check_property(&self, dataset: &str, input: &PropertyInput) -> Result<ObjectId> {
        let catalog = self.change.catalog()?;
        let dataset = catalog.dataset_named(dataset)?;
        self.change.check_property(dataset.id, catalog.kind(&dataset)?, input)?;
        Ok(dataset.id)
    }

    fn check_destroy(&self, name: &str, defer: bool) -> Result<()> {
        let catalog = self.change.catalog()?;
        if name.contains('#') {
            let name = DatasetName::parse(name)?;
            return catalog.bookmark(&name).map(drop);
        }
        let dataset = catalog.dataset_named(name)?;
        if dataset.is_snapshot() {
            return match self.change.check_destroy_snapshot(dataset.id) {
                Err(error)
                    if defer && matches!(error.kind(), ErrorKind::Busy | ErrorKind::Exists) =>
                {
                    Ok(())
                }
                checked => checked,
            };
        }
        self.refuse_open(&dataset)?;
        if !catalog.snapshots(&dataset)?.is_empty() {
            return Err(Error::new(ErrorKind::Busy, "dataset has snapshots"));
        }
        self.change.check_destroy_head(dataset.id)
    }

    fn destroy(&self, name: &str, defer: bool) -> Result<()> {
        self.check_destroy(name, defer)?;
        let catalog = self.change.catalog()?;
        if let Some((head, mark)) = name.split_once('#') {
            return self.change.destroy_bookmark(catalog.dataset_named(head)?.id, mark);
        }
        let dataset = catalog.dataset_named(name)?;
        if dataset.is_snapshot() {
            self.change.destroy_snapshot(dataset.id, defer)?;
        } else {
            self.live.change_closed(dataset.id)?;
            self.change.destroy_head(dataset.id)?;
        }
        self.live.wake_freeing();
        Ok(())
    }

    /// Refuses a head that is mounted, sent to, or in use otherwise.
    fn refuse_open(&self, head: &Dataset) -> Result<()> {
        self.live.refuse_received(head.id)?;
        match self.live.datasets.lock().contains_key(&head.id) {
            true => Err(Error::new(ErrorKind::Busy, "dataset is busy")),
            false => Ok(()),
        }
    }

    /// The head has got content in this group that is still to be written.
    fn is_fresh(&self, head: ObjectId) -> bool {
        self.live.fresh.lock().iter().any(|fresh| fresh.id() == head)
    }
}

fn early(head: &Dataset) -> Error {
    let reason = format!("'{}' has changed in this transaction group", head.name);
    Error::new(ErrorKind::TimedOut, reason)
}
