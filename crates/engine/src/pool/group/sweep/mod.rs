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
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use cenote_format::Guid;
use parking_lot::{Condvar, Mutex};

use super::LivePool;
use super::hooks::GroupHooks;
use crate::dataset::change::MosChange;
use crate::{Error, ErrorKind, Result};

use run::{Run, State};
pub use run::{SweepKind, SweepOrder};

/// How often a thread without work looks whether the pool is still there.
const GLANCE: Duration = Duration::from_secs(1);

/// A run: of which leaf, and what for.
type Key = (Guid, SweepKind);

/// What goes on of these in a pool.
#[derive(Debug, Default)]
pub(in crate::pool) struct Sweeps {
    runs: Mutex<BTreeMap<Key, Run>>,
    pub(in crate::pool) by_itself: by_itself::ByItself,
    /// There may be something to do.
    work: Condvar,
    /// Something is to be recorded.
    dirty: AtomicBool,
    /// Nothing is done any more.
    rests: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sweeps {
    /// A group is to be written for them.
    pub(super) fn is_due(&self) -> bool {
        self.dirty.load(Relaxed)
    }

    /// Does nothing any more; returns when the portion under way has ended.
    pub(super) fn rest(&self) {
        self.rests.store(true, Relaxed);
        self.work.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    fn is_active(&self) -> bool {
        self.runs.lock().values().any(|run| run.state == State::Active)
    }
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
        let thread =
            std::thread::Builder::new().name("sweep".into()).spawn(move || work(&live, &sweeps));
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}"))
        })?;
        *self.sweeps.thread.lock() = Some(thread);
        Ok(())
    }

    /// Records how far they are, if something is new; does a portion where there are no threads.
    pub(in crate::pool) fn go_on_sweeping(&self, change: &MosChange<'_>, hooks: &GroupHooks<'_>) {
        if self.options.inline && !self.sweeps.rests.load(Relaxed) {
            self.outage.beside_writing(|| {
                self.sweep_portion();
            });
        }
        if !self.sweeps.dirty.swap(false, Relaxed) {
            return;
        }
        let record = || self.record_sweeps(change);
        if let Err(error) = self.all_or_nothing(change.tx.txg(), hooks, record) {
            tracing::warn!(%error, "how far devices are initialized or trimmed cannot be recorded");
        }
    }
}

/// The thread that does them.
fn work(live: &Weak<LivePool>, sweeps: &Sweeps) {
    loop {
        {
            let mut runs = sweeps.runs.lock();
            let is_active = runs.values().any(|run| run.state == State::Active);
            if !is_active && !sweeps.rests.load(Relaxed) {
                sweeps.work.wait_for(&mut runs, GLANCE);
            }
        }
        let Some(live) = live.upgrade() else { return };
        if sweeps.rests.load(Relaxed) {
            return;
        }
        if !live.sweep_portion() {
            // What is active cannot go on now.
            let mut runs = sweeps.runs.lock();
            sweeps.work.wait_for(&mut runs, GLANCE);
        }
    }
}
