//! Initialize and trim: the free space of a device is overwritten once, or given up to it.
//!
//! Each leaf has a run of its own of each kind ([`run`]); a thread does a portion after another ([`visit`]); each
//! group records how far they are, in the tables of the leaves ([`record`]). Chapter 08, sections 12 and 13.
//! Invariant: only space is touched that is free in every group that can still be opened, and in which nothing is
//! allocated meanwhile; what is recorded as done was done.

pub(in crate::pool) mod by_itself;
mod record;
mod run;
mod visit;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::Guid;
use parking_lot::Mutex;

use super::LivePool;
use super::hooks::GroupHooks;
use super::worker::Worker;
use crate::Result;
use crate::dataset::change::MosChange;

use run::{Run, State};
pub use run::{SweepKind, SweepOrder};

/// A run: of which leaf, and what for.
type Key = (Guid, SweepKind);

/// What goes on of these in a pool.
#[derive(Debug, Default)]
pub(in crate::pool) struct Sweeps {
    runs: Mutex<BTreeMap<Key, Run>>,
    pub(in crate::pool) by_itself: by_itself::ByItself,
    worker: Worker,
}

impl Sweeps {
    /// A group is to be written for them.
    pub(super) fn is_due(&self) -> bool {
        self.worker.is_due()
    }

    /// Does nothing any more; returns when the portion under way has ended.
    pub(super) fn rest(&self) {
        self.worker.rest();
    }

    fn is_active(&self) -> bool {
        any_active(&self.runs.lock())
    }
}

fn any_active(runs: &BTreeMap<Key, Run>) -> bool {
    runs.values().any(|run| run.state == State::Active)
}

impl LivePool {
    /// Does what somebody wants of the initializing or trimming of a leaf.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the pool has no such leaf, or nothing goes on that could be stopped;
    /// [`ErrorKind::InvalidArgument`] for what is no leaf that is there; [`ErrorKind::Busy`] if it goes on already;
    /// [`ErrorKind::Unsupported`] where it cannot be done.
    pub fn sweep(&self, leaf: Guid, kind: SweepKind, order: SweepOrder) -> Result<()> {
        self.change(move |live, change| live.order_sweep(change, (leaf, kind), order))
    }

    /// Some leaf is being initialized or trimmed.
    pub fn is_sweeping(&self) -> bool {
        self.sweeps.is_active()
    }

    /// Starts the thread that does them.
    pub(in crate::pool) fn start_sweeping(self: &Arc<Self>) -> Result<()> {
        if self.options.inline {
            return Ok(());
        }
        let (live, sweeps) = (Arc::downgrade(self), self.sweeps.clone());
        let run = move || {
            let is_idle =
                |runs: &BTreeMap<Key, Run>| !any_active(runs) && sweeps.by_itself.is_idle();
            sweeps.worker.go_on(&live, &sweeps.runs, is_idle, |live| live.sweep_portion());
        };
        self.sweeps.worker.start("sweep", run)
    }

    /// Records how far they are, if something is new; does a portion where there are no threads.
    pub(in crate::pool) fn go_on_sweeping(&self, change: &MosChange<'_>, hooks: &GroupHooks<'_>) {
        let portion = || {
            self.sweep_portion();
        };
        let record = || self.record_sweeps(change);
        let done = self.go_on_with(&self.sweeps.worker, (change, hooks), portion, record);
        if let Err(error) = done {
            tracing::warn!(%error, "how far devices are initialized or trimmed cannot be recorded");
        }
    }
}
