//! The end of a receive: the snapshot, or everything as it was.
//!
//! Chapter 07, section 14. Invariant: what was received shows in one transaction group, or not at all; what
//! is given up goes at once, or when the pool is opened the next time.

use cenote_format::ObjectId;
use cenote_format::dsl_dataset::DslDataset;

use super::{Landing, ReceiveOrder, StreamFacts, TEMPORARY, Target};
use crate::dataset::change::{MosChange, ReceivedSnapshot};
use crate::dataset::{Catalog, Dataset, DatasetKind};
use crate::pool::group::LivePool;
use crate::{Error, ErrorKind, Result};

impl Landing {
    /// What is received takes the place of a dataset that is there: nothing of that may be open when it ends.
    pub fn replaces(&self) -> bool {
        self.target != Target::Itself
    }

    /// Refuses what it takes the place of if that has another name by now: what is done by its name (mounts
    /// taken down, properties set) would be done to another, or to nothing.
    ///
    /// # Errors
    /// `NotFound`; what the disks say.
    pub fn check_name(&self) -> Result<()> {
        match self.target {
            Target::Itself => Ok(()),
            Target::Head { head, .. } => {
                check_name(&self.live.pool().catalog(), &self.order.dataset, head)
            }
        }
    }

    /// Whether the dataset is a clone or snapshot's successor: an incremental receive.
    pub fn is_incremental(&self) -> bool {
        self.facts.from.0 != 0
    }

    /// The whole stream is there: takes its snapshot, and shows it. The names of properties that came with
    /// the stream and cannot be had here.
    ///
    /// # Errors
    /// `Outdated`: the dataset was changed meanwhile; `NotFound`: it was renamed; `Busy`: snapshots that would
    /// have to go are held; what the disks say. Nothing has changed then.
    pub fn end(mut self) -> Result<Vec<String>> {
        self.check_name()?;
        self.current = None;
        let (filled, target) = (self.filled.id(), self.target);
        self.live.close_received(filled)?;
        if let Target::Head { head, .. } = target {
            self.live.close_dataset(head)?;
        }
        let (facts, order) = (self.facts.clone(), self.order.clone());
        let refused = self.live.change(move |live, change| {
            change.beyond_limits(order.beyond_limits, || {
                end(live, change, (filled, target), &facts, &order)
            })
        })?;
        self.is_over = true;
        self.live.release_received(filled);
        self.refused.extend(refused);
        Ok(std::mem::take(&mut self.refused))
    }

    /// Gives up what was received, unless it can go on.
    fn give_up(&mut self) -> Result<()> {
        self.current = None;
        let filled = self.filled.id();
        let closed = self.live.close_received(filled);
        self.live.release_received(filled);
        closed?;
        if self.order.resumable {
            return Ok(());
        }
        destroy(&self.live, filled)
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if let Err(error) = self.give_up() {
            let dataset = &self.order.dataset;
            tracing::warn!(%error, dataset, "what was received in part is still there");
        }
    }
}

/// Takes the snapshot of what was received, where that is to be.
fn end(
    live: &LivePool,
    change: &MosChange<'_>,
    (filled, target): (ObjectId, Target),
    facts: &StreamFacts,
    order: &ReceiveOrder,
) -> Result<Vec<String>> {
    let end = ReceivedSnapshot {
        name: order.snapshot.clone(),
        guid: facts.to,
        creation_time: facts.creation_time,
    };
    let mut refused = Vec::new();
    let snapshot = match target {
        Target::Itself => change.end_receive(filled, &end)?,
        Target::Head { head, from } => {
            check_name(&change.catalog()?, &order.dataset, head)?;
            live.change_closed(head)?;
            change.check_swap(filled, head)?;
            if let Some(from) = from {
                change.make_way_for_received(head, from, order.force)?;
            }
            change.swap_clone(filled, head)?;
            let snapshot = change.end_receive(head, &end)?;
            refused.extend(order.store_received(change, head, facts.dataset_kind())?);
            change.destroy_head(filled)?;
            live.wake_freeing();
            snapshot
        }
    };
    if let Some(raw) = &facts.raw {
        let head = match target {
            Target::Itself => filled,
            Target::Head { head, .. } => head,
        };
        // What became a root comes wrapped with a key of its own. What is none any more waits for what is above it.
        if let Some(root) = order.root.as_ref().filter(|root| root.is_root) {
            live.follow_root(change, root)?;
        }
        let anew = change.receive_seals(head, snapshot, raw.ivset, &raw.keys)?;
        if let Some(root) = anew {
            // What is made below it is wrapped with the user's key of now, or not at all.
            live.when_done(move |live| live.pool().keys().forget_wrapping(root));
        }
    }
    let kind = DatasetKind::Filesystem;
    refused.extend(change.set_received(snapshot, kind, &order.of_snapshot)?);
    order.holds.iter().try_for_each(|tag| change.hold(snapshot, tag, false))?;
    Ok(refused)
}

/// Refuses if `name` is not the name of `head`.
fn check_name(catalog: &Catalog, name: &str, head: ObjectId) -> Result<()> {
    match catalog.dataset_named(name)?.id == head {
        true => Ok(()),
        false => Err(Error::not_found("another dataset has its name by now")),
    }
}

pub(super) fn destroy(live: &LivePool, filled: ObjectId) -> Result<()> {
    live.change(move |live, change| {
        change.destroy_head(filled)?;
        live.wake_freeing();
        Ok(())
    })
}

/// Destroys what an earlier life of the pool received in part and cannot go on with; nothing is mounted
/// or received. How many datasets there were.
///
/// # Errors
/// What the disks say.
pub fn destroy_interrupted(live: &LivePool) -> Result<usize> {
    let catalog = live.pool().catalog();
    let mut left = Vec::new();
    for directory in catalog.walk(&catalog.root()?)? {
        let temporary = match catalog.child(&directory, TEMPORARY) {
            Ok(temporary) => Some(temporary),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        for directory in temporary.iter().chain([&directory]) {
            if directory.phys.head_dataset.0 == 0 {
                continue;
            }
            let head = catalog.head(directory)?;
            if head.phys.is_inconsistent() && !can_go_on(&catalog, &head)? {
                left.push(head.id);
            }
        }
    }
    let count = left.len();
    for head in left {
        destroy(live, head)?;
    }
    Ok(count)
}

fn can_go_on(catalog: &Catalog, head: &Dataset) -> Result<bool> {
    let key = cenote_format::dsl_dataset::resume::TO_GUID;
    Ok(catalog.dataset_field(head, key)?.is_some())
}

/// Gives up what a resumable receive left in a dataset: `zfs receive -A`. Nothing of it is open.
///
/// # Errors
/// `NotFound` if there is no such thing.
pub fn give_up_partial(live: &LivePool, dataset: &str) -> Result<()> {
    let name = dataset.to_owned();
    live.change(move |live, change| {
        let catalog = change.catalog()?;
        let head = catalog.dataset_named(&name)?;
        let filled = match is_partial(&head.phys) {
            true => head,
            false => {
                let none = |_| Error::not_found("no receive was cut off here");
                let directory = catalog.child(&head.directory, TEMPORARY).map_err(none)?;
                catalog.head(&directory)?
            }
        };
        live.refuse_received(filled.id)?;
        change.destroy_head(filled.id)?;
        live.wake_freeing();
        Ok(())
    })
}

fn is_partial(phys: &DslDataset) -> bool {
    phys.is_inconsistent()
}
