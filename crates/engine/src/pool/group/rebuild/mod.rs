//! Sequential rebuilds: a device gets what it lacks in the order of the disks, and no block is known.
//!
//! Each top-level vdev has a run of its own. A thread goes through what is in use of its metaslabs, a portion
//! after another ([`visit`]); each group records how far they are, in the tables of the vdevs, and their end
//! ([`record`]); a scrub follows. Chapter 08, section 11. Invariant: what is recorded as rebuilt was, and is
//! durable with the group that records it; nothing else is written to a stretch while it is rebuilt.

mod record;
mod visit;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use cenote_format::rebuild_state::{RebuildPhase, RebuildState};
use parking_lot::Mutex;

use super::LivePool;
use super::hooks::GroupHooks;
use super::worker::Worker;
use crate::Result;
use crate::dataset::change::MosChange;
use visit::Prepared;

/// A rebuild under way.
#[derive(Clone, Copy, Debug)]
struct Run {
    state: RebuildState,
    /// What was done since it was begun, or the pool was opened.
    pass: Pass,
    /// What is on the disks of it is otherwise.
    dirty: bool,
    /// Everything was visited.
    through: bool,
    /// Nothing that is there lacks anything any more.
    idle: bool,
    /// No two have the same.
    serial: u64,
}

/// What was done since a rebuild was begun, or the pool was opened.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Since 1970.
    since: Duration,
    scanned: u64,
    issued: u64,
    /// Milliseconds it had worked before.
    before: u64,
}

/// What a rebuild tells whoever looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildProgress {
    /// Top-level vdev id.
    pub vdev: u32,
    /// Its record as of now.
    pub state: RebuildState,
    /// Milliseconds since this pass began.
    pub pass_milliseconds: u64,
    /// Bytes looked at in this pass.
    pub pass_scanned: u64,
    /// Bytes read in this pass.
    pub pass_issued: u64,
}

/// The rebuilds of a pool, by top-level vdev.
#[derive(Debug, Default)]
pub(in crate::pool) struct Rebuilds {
    runs: Mutex<BTreeMap<u32, Run>>,
    /// The portion that waits for what was on its way to the disks.
    prepared: Mutex<Option<Prepared>>,
    begun: AtomicU64,
    worker: Worker,
}

impl Run {
    fn of(state: RebuildState, serial: u64) -> Self {
        let (since, before) = (crate::environment::now(), state.milliseconds);
        let pass = Pass { since, scanned: 0, issued: 0, before };
        Self { state, pass, dirty: false, through: false, idle: false, serial }
    }

    fn milliseconds(&self) -> u64 {
        let spent = crate::environment::now().saturating_sub(self.pass.since);
        u64::try_from(spent.as_millis()).unwrap_or(u64::MAX)
    }

    /// Its record as of now.
    fn state_now(&self) -> RebuildState {
        let milliseconds = self.pass.before.saturating_add(self.milliseconds());
        RebuildState { milliseconds, ..self.state }
    }
}

impl Rebuilds {
    /// A group is to be written for them.
    pub(super) fn is_due(&self) -> bool {
        self.worker.is_due()
    }

    /// Does nothing any more; returns when the portion under way has ended.
    pub(super) fn rest(&self) {
        self.worker.rest();
        *self.prepared.lock() = None;
    }

    fn is_active(&self) -> bool {
        !self.runs.lock().is_empty()
    }

    /// The run of a vdev goes on from what `state` tells.
    fn resume(&self, vdev: u32, state: RebuildState) {
        if state.phase == RebuildPhase::Active {
            let serial = self.begun.fetch_add(1, Relaxed);
            self.runs.lock().insert(vdev, Run::of(state, serial));
            self.worker.wake();
        }
    }
}

impl LivePool {
    /// Some vdev is being rebuilt.
    pub fn is_rebuilding(&self) -> bool {
        self.rebuilds.is_active()
    }

    /// What the rebuilds under way tell.
    pub fn rebuild_progress(&self) -> Vec<RebuildProgress> {
        let runs = self.rebuilds.runs.lock();
        let all = runs.iter().map(|(vdev, run)| RebuildProgress {
            vdev: *vdev,
            state: run.state_now(),
            pass_milliseconds: run.milliseconds(),
            pass_scanned: run.pass.scanned,
            pass_issued: run.pass.issued,
        });
        all.collect()
    }

    /// Starts the thread that does them.
    pub(in crate::pool) fn start_rebuilding(self: &Arc<Self>) -> Result<()> {
        if self.options.inline {
            return Ok(());
        }
        let (live, rebuilds) = (Arc::downgrade(self), self.rebuilds.clone());
        let run = move || {
            let portion = |live: &Arc<Self>| !live.is_rebuilding() || live.rebuild_portion();
            rebuilds.worker.go_on(&live, &rebuilds.runs, BTreeMap::is_empty, portion);
        };
        self.rebuilds.worker.start("rebuild", run)
    }

    /// Records how far they are, if something is new; does a portion where there are no threads.
    pub(in crate::pool) fn go_on_rebuilding(&self, change: &MosChange<'_>, hooks: &GroupHooks<'_>) {
        let portion = || {
            self.rebuild_portion();
        };
        let record = || self.record_rebuilds(change);
        let done = self.go_on_with(&self.rebuilds.worker, (change, hooks), portion, record);
        if let Err(error) = done {
            tracing::warn!(%error, "how far vdevs are rebuilt cannot be recorded");
        }
    }
}
