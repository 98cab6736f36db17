//! Orders about datasets by their names: making, destroying, renaming them, and their settings.
//!
//! Invariant: each order makes its whole change or none of it, in one transaction group, and returns when
//! whoever opens the catalog anew sees it. Names are looked up again in the group that makes the change.

use std::sync::Arc;

use cenote_format::delegation::Key;
use cenote_format::objset::ObjsetKind;

use super::keys::Encryption;
use crate::dataset::change::{MosChange, NewDataset, PropertyInput};
use crate::dataset::{Dataset, DatasetName};
use crate::keys::Wrapping;
use crate::object::ObjectSet;
use crate::pool::group::LivePool;
use crate::txg::Tx;
use crate::{Error, ErrorKind, Result};

/// A filesystem or volume to be made, its parent being there.
pub struct NewNamed {
    /// Its whole name.
    pub name: String,
    /// Properties that are stored.
    pub properties: Vec<PropertyInput>,
    /// The user who gets what `zfs allow -c` promises creators.
    pub creator: u32,
    /// How it is encrypted.
    pub encryption: Encryption,
    /// A filesystem or a volume.
    pub kind: ObjsetKind,
    /// Names in it are not told apart by case.
    pub case_insensitive: bool,
}

/// What fills new filesystems.
pub type Fill = Arc<dyn Fn(&ObjectSet, &Tx) -> Result<()> + Send + Sync>;

/// Filesystems above a new name that are made with it, as far as they are not there.
#[derive(Clone)]
pub struct Parents {
    /// Their whole names, outermost first.
    pub names: Vec<String>,
    /// The user who gets what `zfs allow -c` promises creators.
    pub creator: u32,
    /// Names in them are not told apart by case.
    pub case_insensitive: bool,
    /// Fills each.
    pub fill: Fill,
}

impl Parents {
    fn make(&self, live: &LivePool, change: &MosChange<'_>) -> Result<()> {
        for whole in &self.names {
            let (parent, name) = parent_of(whole)?;
            match change.catalog()?.directory(whole) {
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let above = change.catalog()?.directory(parent)?;
            change.check_filesystem_limit(above.id, 1)?;
            let new = NewDataset {
                parent: above.id,
                name,
                creator: Some(self.creator),
                case_insensitive: self.case_insensitive,
                ..NewDataset::default()
            };
            let fill = |set: &ObjectSet, tx: &Tx| (self.fill)(set, tx);
            live.make_encrypted_dataset(
                change,
                &new,
                &Encryption::Inherited,
                ObjsetKind::Zfs,
                fill,
            )?;
        }
        Ok(())
    }
}

/// Orders about the datasets of a pool.
#[derive(Clone)]
pub struct DatasetOrders<'a> {
    pub(super) live: &'a LivePool,
    /// The command line that gives the order, and who gave it.
    command: Option<(String, u64)>,
    /// Made before.
    parents: Option<Parents>,
    /// Limits on numbers of filesystems and snapshots do not count.
    beyond_limits: bool,
    /// Done when the change is made.
    then: Option<Then>,
}

/// What is done in the middle of a group.
type Then = Arc<dyn Fn() + Send + Sync>;

impl LivePool {
    /// Orders about its datasets.
    pub fn orders(&self) -> DatasetOrders<'_> {
        DatasetOrders { live: self, command: None, parents: None, beyond_limits: false, then: None }
    }
}

/// What a receive into a dataset that is there fills.
const PARTIAL: &str = "%recv";

fn parent_of(name: &str) -> Result<(&str, &str)> {
    name.rsplit_once('/').ok_or_else(|| Error::invalid(format!("'{name}' is the name of a pool")))
}

impl DatasetOrders<'_> {
    /// The line goes into the history with what it changes, in the same group.
    #[must_use]
    pub fn given_by(mut self, line: &str, user: u64) -> Self {
        self.command = Some((line.to_owned(), user));
        self
    }

    /// These are made in the same group, or nothing is: for what gets a new name below them.
    #[must_use]
    pub fn with_parents(mut self, parents: Parents) -> Self {
        self.parents = Some(parents);
        self
    }

    /// Limits on numbers of filesystems and snapshots do not hold for who may set them.
    #[must_use]
    pub fn beyond_limits(mut self) -> Self {
        self.beyond_limits = true;
        self
    }

    /// Calls `then` when the change is made, before its group goes on, however long after the order was given
    /// that is. The writer of groups waits for it: only tests let it take its time.
    #[must_use]
    pub fn and_then(mut self, then: impl Fn() + Send + Sync + 'static) -> Self {
        self.then = Some(Arc::new(then));
        self
    }

    /// Changes the metadata, and the history with it.
    pub(super) fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.live.change(self.noted(work))
    }

    /// `work`, and the line of the history.
    fn noted<T, W>(
        &self,
        work: W,
    ) -> impl FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + use<T, W>
    where
        W: FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + 'static,
    {
        let (command, parents) = (self.command.clone(), self.parents.clone());
        let (then, lifted) = (self.then.clone(), self.beyond_limits);
        move |live, change| {
            let done = change.beyond_limits(lifted, || {
                parents.map_or(Ok(()), |parents| parents.make(live, change))?;
                work(live, change)
            })?;
            if let Some((line, user)) = command
                && let Err(error) = change.log_command(&line, user)
            {
                // A damaged history keeps nobody from changing the pool.
                tracing::warn!(%error, line, "not in the history");
            }
            if let Some(then) = then {
                then();
            }
            Ok(done)
        }
    }

    /// The dataset of this name as the last group on the disks has it.
    pub(super) fn find(&self, name: &str) -> Result<Dataset> {
        self.live.pool().catalog().dataset_named(name)
    }

    /// Creates a filesystem or volume that `fill` fills.
    ///
    /// # Errors
    /// `Exists`, `NotFound` (its parent), no space, `KeyNotLoaded`.
    pub fn create(
        &self,
        new: NewNamed,
        fill: impl FnOnce(&ObjectSet, &Tx) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        parent_of(&new.name)?;
        self.change(move |live, change| {
            let (parent, name) = parent_of(&new.name)?;
            let catalog = change.catalog()?;
            let above = catalog.directory(parent)?;
            match catalog.directory(&new.name) {
                Ok(_) => return Err(Error::new(ErrorKind::Exists, "dataset already exists")),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            change.check_filesystem_limit(above.id, 1)?;
            let dataset = NewDataset {
                parent: above.id,
                name,
                creator: Some(new.creator),
                properties: &new.properties,
                case_insensitive: new.case_insensitive,
                ..NewDataset::default()
            };
            live.make_encrypted_dataset(change, &dataset, &new.encryption, new.kind, fill).map(drop)
        })
    }

    /// Makes a filesystem or volume `name` of a snapshot; its parent is there.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, no space.
    pub fn clone_snapshot(
        &self,
        origin: &str,
        name: &str,
        properties: Vec<PropertyInput>,
        creator: u32,
    ) -> Result<()> {
        let (parent, name) = parent_of(name)?;
        let (parent, name, origin) = (parent.to_owned(), name.to_owned(), origin.to_owned());
        self.change(move |live, change| {
            let catalog = change.catalog()?;
            let above = catalog.directory(&parent)?;
            let origin = catalog.dataset_named(&origin)?;
            change.check_filesystem_limit(above.id, 1)?;
            let dataset = NewDataset {
                parent: above.id,
                name: &name,
                origin: Some(origin.id),
                creator: Some(creator),
                properties: &properties,
                ..NewDataset::default()
            };
            live.clone_dataset(change, &dataset).map(drop)
        })
    }

    /// Destroys filesystems, volumes, snapshots and bookmarks in this order; none is mounted. `defer`:
    /// snapshots that are held or cloned are marked instead.
    ///
    /// # Errors
    /// `Busy` (held, cloned, has children), `NotFound`.
    pub fn destroy(&self, names: &[String], defer: bool) -> Result<()> {
        self.close_for_destroy(names, defer)?;
        let names = names.to_vec();
        self.change(move |live, change| destroy_all(live, change, &names, defer))
    }

    /// Refuses what [`Self::destroy`] could not do, and changes nothing.
    ///
    /// # Errors
    /// As [`Self::destroy`].
    pub fn check_destroy(&self, names: &[String]) -> Result<()> {
        let names = names.to_vec();
        self.live.change(move |_, change| check_destroy(change, &names, false))
    }

    /// Closes what is to be destroyed, and gives up what was being received into it.
    pub(super) fn close_for_destroy(&self, names: &[String], defer: bool) -> Result<()> {
        // Where datasets are closed, or what was received in part is given up, what can be refused is refused before.
        let is_snapshot = |name: &String| name.contains('@');
        if names.iter().any(is_snapshot) && !names.iter().all(is_snapshot) {
            let checked = names.to_vec();
            self.live.change(move |_, change| check_destroy(change, &checked, defer))?;
        }
        let is_named = |name: &String| names.contains(&format!("{name}/{PARTIAL}"));
        let mut unnamed = names.iter().filter(|name| !is_named(name));
        unnamed.try_for_each(|name| self.destroy_partial(name))?;
        for name in names {
            if let Ok(dataset) = self.find(name)
                && !dataset.is_snapshot()
            {
                self.live.refuse_received(dataset.id)?;
                self.live.close_dataset(dataset.id)?;
            }
        }
        Ok(())
    }

    /// Destroys what a receive that was cut off has left below a filesystem or volume.
    fn destroy_partial(&self, name: &str) -> Result<()> {
        let catalog = self.live.pool().catalog();
        let Ok(directory) = catalog.directory(name) else { return Ok(()) };
        let Ok(partial) = catalog.child(&directory, PARTIAL) else { return Ok(()) };
        self.live.refuse_received(partial.phys.head_dataset)?;
        self.live.close_dataset(partial.phys.head_dataset)?;
        self.live.change(move |live, change| {
            live.refuse_received(partial.phys.head_dataset)?;
            change.destroy_head(partial.phys.head_dataset)
        })
    }

    /// Renames, all at once: either one filesystem or volume (with what is below it), or snapshots, each
    /// within its dataset.
    ///
    /// # Errors
    /// `Exists`, `NotFound`.
    pub fn rename(&self, pairs: &[(String, String)]) -> Result<()> {
        let pairs = pairs.to_vec();
        self.change(move |_, change| {
            for (from, to) in &pairs {
                let catalog = change.catalog()?;
                if let (Some((head, from)), Some((_, to))) =
                    (from.split_once('@'), to.split_once('@'))
                {
                    let head = catalog.dataset_named(head)?;
                    change.rename_snapshot(head.id, from, to)?;
                } else {
                    let (parent, name) = parent_of(to)?;
                    let (directory, parent) =
                        (catalog.directory(from)?, catalog.directory(parent)?);
                    change.rename_directory(directory.id, parent.id, name)?;
                }
            }
            Ok(())
        })
    }

    /// Sets properties that are stored, of every dataset its own: all of them or none.
    ///
    /// # Errors
    /// No space (a reservation that does not fit), `InvalidArgument`.
    pub fn set_properties(&self, datasets: Vec<(String, Vec<PropertyInput>)>) -> Result<()> {
        self.change(move |_, change| set_all(change, &datasets))
    }

    /// Sets properties that are stored together with what is kept `inside` a dataset that is open: that is
    /// written in the transaction given, after all else was found possible.
    ///
    /// # Errors
    /// As [`Self::set_properties`].
    pub fn set_with(
        &self,
        dataset: &str,
        inputs: Vec<PropertyInput>,
        inside: impl FnOnce(&Tx) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let all = vec![(dataset.to_owned(), inputs)];
        // The group's blocks of the dataset are not written yet.
        self.live.change_early(self.noted(move |_, change| {
            set_all(change, &all)?;
            inside(change.tx)
        }))
    }

    /// Removes the local values of a property, of all these datasets or of none; `received`: the received one
    /// shows again, else it is hidden too.
    ///
    /// # Errors
    /// What the disks say.
    pub fn inherit(&self, datasets: &[String], property: &str, received: bool) -> Result<()> {
        let (names, property) = (datasets.to_vec(), property.to_owned());
        self.change(move |_, change| {
            let catalog = change.catalog()?;
            names.iter().try_for_each(|name| {
                let dataset = catalog.dataset_named(name)?;
                change.inherit_property(dataset.id, &property, received)
            })
        })
    }

    /// Gives permissions on a dataset.
    ///
    /// # Errors
    /// `NotFound`, `InvalidArgument`.
    pub fn allow(&self, dataset: &str, given: Vec<(Key, Vec<String>)>) -> Result<()> {
        let name = dataset.to_owned();
        self.change(move |_, change| {
            change.allow(change.catalog()?.dataset_named(&name)?.directory.id, &given)
        })
    }

    /// Takes permissions on datasets away; `None`: all that a key stands for.
    ///
    /// # Errors
    /// `NotFound`, `InvalidArgument`.
    pub fn disallow(
        &self,
        datasets: &[String],
        taken: Vec<(Key, Option<Vec<String>>)>,
    ) -> Result<()> {
        let names = datasets.to_vec();
        self.change(move |_, change| {
            let catalog = change.catalog()?;
            let found = names.iter().map(|name| catalog.dataset_named(name));
            let found = found.collect::<Result<Vec<_>>>()?;
            found.iter().try_for_each(|dataset| change.disallow(dataset.directory.id, &taken))
        })
    }

    /// Gives an encryption root a new user key and its location, or makes a dataset one; `None`: it takes
    /// over its parent's.
    ///
    /// # Errors
    /// `KeyNotLoaded`.
    pub fn change_key(&self, dataset: &str, key: Option<(Wrapping, String)>) -> Result<()> {
        let name = dataset.to_owned();
        self.change(move |live, change| {
            let new = key.as_ref().map(|(wrapping, location)| (wrapping, location.as_str()));
            live.change_key(change, &name, new)
        })
    }
}

/// Sets properties of datasets, after it was found that they fit.
fn set_all(change: &MosChange<'_>, datasets: &[(String, Vec<PropertyInput>)]) -> Result<()> {
    let catalog = change.catalog()?;
    for (name, inputs) in datasets {
        let dataset = catalog.dataset_named(name)?;
        inputs.iter().try_for_each(|input| change.check_value(dataset.id, input))?;
        inputs.iter().try_for_each(|input| change.set_property(dataset.id, input))?;
    }
    Ok(())
}

/// Destroys what [`DatasetOrders::destroy`] is to.
pub(super) fn destroy_all(
    live: &LivePool,
    change: &MosChange<'_>,
    names: &[String],
    defer: bool,
) -> Result<()> {
    // What can be refused is refused before anything is changed.
    check_destroy(change, names, defer)?;
    change.keeping_deadlists(|| destroy_each(live, change, names, defer))?;
    live.wake_freeing();
    Ok(())
}

fn destroy_each(
    live: &LivePool,
    change: &MosChange<'_>,
    names: &[String],
    defer: bool,
) -> Result<()> {
    for name in names {
        if let Some((head, mark)) = name.split_once('#') {
            let head = change.catalog()?.dataset_named(head)?;
            change.destroy_bookmark(head.id, mark)?;
            continue;
        }
        let dataset = match change.catalog()?.dataset_named(name) {
            // It was there: it was marked, and went with the last of its clones.
            Err(error) if error.kind() == ErrorKind::NotFound && name.contains('@') => continue,
            found => found?,
        };
        if dataset.is_snapshot() {
            change.destroy_snapshot(dataset.id, defer)?;
        } else {
            live.refuse_received(dataset.id)?;
            live.change_closed(dataset.id)?;
            change.check_destroy_head(dataset.id)?;
            change.destroy_head(dataset.id)?;
        }
    }
    Ok(())
}

/// Refuses what [`DatasetOrders::destroy`] cannot do.
fn check_destroy(change: &MosChange<'_>, names: &[String], defer: bool) -> Result<()> {
    for name in names.iter().filter(|name| name.contains('@')) {
        let catalog = change.catalog()?;
        let snapshot = catalog.dataset_named(name)?;
        if defer {
            change.check_not_kept(snapshot.id)?;
            continue;
        }
        match change.check_destroy_snapshot(snapshot.id) {
            // Its clones go before it.
            Err(error) if error.kind() == ErrorKind::Exists => {
                let goes = |clone: &DatasetName| {
                    let name = clone.to_string();
                    // What was received into a dataset in part goes with that.
                    let into = name.rsplit_once('/').filter(|(_, last)| *last == PARTIAL);
                    names.contains(&name)
                        || into.is_some_and(|(of, _)| names.iter().any(|n| n == of))
                };
                if !catalog.clones(&snapshot)?.iter().all(goes) {
                    return Err(error);
                }
            }
            checked => checked?,
        }
    }
    Ok(())
}
