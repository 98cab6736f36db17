//! Changes of the metadata that wait for the next group, and who waits for them.
//!
//! Invariant: a task is done by the thread that writes groups only, and answered when its group is on the
//! disks; a suspended pool takes none that somebody waits for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_format::Txg;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;

use super::{LivePool, PATIENCE};
use crate::dataset::change::MosChange;
use crate::{Error, ErrorKind, Result};

/// How often who waits for a change looks whether the pool is suspended.
const GLANCE: Duration = Duration::from_millis(500);

/// How often it is watched who makes a change by steps, which keeps groups from being written.
const GLANCE_AT_STEPS: Duration = Duration::from_millis(25);

/// A task's answer, to be sent when its group is on the disks.
pub(in crate::pool) type Answers = Vec<(Sender<Result<()>>, Result<()>)>;

/// A change of the metadata.
pub(in crate::pool) type Work = Box<dyn FnOnce(&LivePool, &MosChange<'_>) -> Result<()> + Send>;

/// Work for the thread that writes groups.
pub(in crate::pool) struct Task {
    pub(in crate::pool) run: Work,
    /// Before anything else of the group is written.
    pub(in crate::pool) early: bool,
    /// No group before this one does it: what was changed before it was asked for is in this group or an earlier one.
    pub(in crate::pool) since: Txg,
    /// It consists of steps, each of which is made wholly or not at all: what was made stays if a later one fails.
    pub(in crate::pool) by_steps: bool,
    pub(in crate::pool) done: Sender<Result<()>>,
}

/// How a task is done.
#[derive(Clone, Copy, Default)]
struct Manner {
    early: bool,
    by_steps: bool,
}

impl LivePool {
    /// Has `work` change the pool's metadata, and waits until it is on the disks.
    ///
    /// `work` runs in the thread that writes groups. If it fails, nothing is changed.
    pub fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.order(Manner::default(), &mut || {}, work)
    }

    /// The same before anything of the group is written or freed.
    pub(in crate::pool) fn change_early<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.order(Manner { early: true, ..Manner::default() }, &mut || {}, work)
    }

    /// Has `work` make changes by steps ([`LivePool::step`]), one after another and nothing between them, in one
    /// group. What was made stays if it fails later. Every now and then it is `watched`.
    pub(in crate::pool) fn change_by_steps<T: Send + 'static>(
        &self,
        watched: &mut dyn FnMut(),
        work: impl FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.order(Manner { by_steps: true, ..Manner::default() }, watched, work)
    }

    /// Has `work` change the pool's metadata in the next group that is written, and waits for nothing.
    pub(in crate::pool) fn change_when_it_goes_on(
        &self,
        work: impl FnOnce(&LivePool, &MosChange<'_>) -> Result<()> + Send + 'static,
    ) {
        self.enqueue(&mut self.tasks.lock(), Manner::default(), Box::new(work));
    }

    /// Adds a task to those that wait; where its answer will be.
    fn enqueue(&self, tasks: &mut Vec<Task>, manner: Manner, run: Work) -> Receiver<Result<()>> {
        let (done, wait) = bounded(1);
        let Manner { early, by_steps } = manner;
        let since = self.gate.figures().open;
        tasks.push(Task { run, early, since, by_steps, done });
        wait
    }

    /// Those that group `txg` does.
    pub(super) fn take_tasks(&self, txg: Txg) -> Vec<Task> {
        self.tasks.lock().extract_if(.., |task| task.since <= txg).collect()
    }

    fn order<T: Send + 'static>(
        &self,
        manner: Manner,
        watched: &mut dyn FnMut(),
        work: impl FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        let run = move |live: &LivePool, change: &MosChange<'_>| {
            *slot.lock() = Some(work(live, change)?);
            Ok(())
        };
        let wait = {
            let mut tasks = self.tasks.lock();
            if let Some(failure) = self.gate.failure() {
                return Err(failure);
            }
            self.refuse_suspended()?;
            self.enqueue(&mut tasks, manner, Box::new(run))
        };
        self.gate.want(self.gate.figures().open);
        let until = Instant::now() + PATIENCE;
        let glance = if manner.by_steps { GLANCE_AT_STEPS } else { GLANCE };
        loop {
            watched();
            match wait.recv_timeout(glance) {
                Ok(Ok(())) => break,
                Ok(Err(error)) => return Err(error),
                Err(RecvTimeoutError::Timeout) if self.gate.suspension().is_some() => {
                    let reason = "pool I/O is currently suspended; the change is made when it \
                                  goes on";
                    return Err(Error::new(ErrorKind::TimedOut, reason));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(_) => {
                    let reason = format!("the change was not on the disks after {PATIENCE:?}");
                    return Err(Error::new(ErrorKind::TimedOut, reason));
                }
            }
        }
        let value = result.lock().take();
        value.ok_or_else(|| Error::bug("a change without a result"))
    }

    /// An error if writing is suspended: for orders, which do not wait.
    pub(in crate::pool) fn refuse_suspended(&self) -> Result<()> {
        match self.gate.suspension() {
            Some(_) => Err(Error::new(ErrorKind::Io, "pool I/O is currently suspended")),
            None => Ok(()),
        }
    }
}
