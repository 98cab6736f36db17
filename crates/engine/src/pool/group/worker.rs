//! A thread beside the one that writes groups, which does a portion of something after another.
//!
//! Invariant: when [`Worker::rest`] has returned nothing is done any more, until it is started again.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::LivePool;
use super::hooks::GroupHooks;
use crate::dataset::change::MosChange;
use crate::{Error, Result};

/// How often a thread without work looks whether the pool is still there.
const GLANCE: Duration = Duration::from_secs(1);

/// The thread, and what it and others tell each other.
#[derive(Debug, Default)]
pub(super) struct Worker {
    /// There may be something to do.
    work: Condvar,
    /// Something is to be recorded.
    dirty: AtomicBool,
    /// Nothing is done for the time being.
    rests: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
        self.rests.store(false, Relaxed);
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        *self.thread.lock() = Some(thread.map_err(Error::no_thread)?);
        Ok(())
    }

    /// Does nothing until it is started again; returns when the portion under way has ended.
    pub(super) fn rest(&self) {
        self.rests.store(true, Relaxed);
        self.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// Whether nothing is to be done.
    pub(super) fn rests(&self) -> bool {
        self.rests.load(Relaxed)
    }

    /// There may be something to do.
    pub(super) fn wake(&self) {
        self.work.notify_all();
    }

    /// Waits a moment, or until it is woken; what is to be done is behind `guard`.
    fn glance<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.work.wait_for(guard, GLANCE);
    }

    /// What the thread does: one `portion` after another, until nothing is to be done any more or the pool is gone.
    /// Waits while what is behind `state` `is_idle`, and after a portion that says that nothing could be done.
    pub(super) fn go_on<T>(
        &self,
        live: &Weak<LivePool>,
        state: &Mutex<T>,
        is_idle: impl Fn(&T) -> bool,
        portion: impl Fn(&Arc<LivePool>) -> bool,
    ) {
        loop {
            {
                let mut guard = state.lock();
                if is_idle(&guard) && !self.rests() {
                    self.glance(&mut guard);
                }
            }
            let Some(live) = live.upgrade() else { return };
            if self.rests() {
                return;
            }
            if !portion(&live) {
                self.glance(&mut state.lock());
            }
        }
    }

    /// Something is to be recorded.
    pub(super) fn mark(&self) {
        self.dirty.store(true, Relaxed);
    }

    /// A group is to be written for it.
    pub(super) fn is_due(&self) -> bool {
        self.dirty.load(Relaxed)
    }
}

impl LivePool {
    /// Has what `worker` has done recorded, if something is new; does a `portion` where there are no threads.
    pub(super) fn go_on_with(
        &self,
        worker: &Worker,
        (change, hooks): (&MosChange<'_>, &GroupHooks<'_>),
        portion: impl FnOnce(),
        record: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.options.inline && !worker.rests() {
            self.outage.beside_writing(portion);
        }
        match worker.dirty.swap(false, Relaxed) {
            true => self.all_or_nothing(change.tx.txg(), hooks, record),
            false => Ok(()),
        }
    }
}
