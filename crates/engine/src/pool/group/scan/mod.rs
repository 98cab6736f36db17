//! Scrubs and resilvers: every block of the pool is read, by a scrub from all its devices, and what is wrong
//! or missing is written again.
//!
//! A thread visits the blocks, a portion after another ([`visit`]); what it is to visit is a [`run`], which
//! orders about datasets change; each group records how far it has come ([`record`]). Chapter 08, sections
//! 2 to 7. Invariant: what is recorded as visited was, and its repairs are durable with the group that
//! records it; nobody who looks waits for what the thread waits for.

mod deferred;
mod in_order;
mod of_errors;
mod record;
mod run;
mod start;
mod visit;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cenote_format::scan_state::{ScanFunction, ScanPhase, ScanState};
use cenote_format::{Guid, Txg};
use parking_lot::Mutex;

use super::LivePool;
use super::hooks::GroupHooks;
use super::sync::seconds_now;
use super::worker::Worker;
use crate::Result;
use crate::dataset::change::{MosChange, ScanQueue};

pub(in crate::pool) use run::DatasetEvent;
use run::Run;
pub use start::{ScanKind, ScanOrder};

/// The scan of a pool, running or not.
#[derive(Debug, Default)]
pub(in crate::pool) struct Scan {
    run: Mutex<Option<Run>>,
    /// Its record, for who looks: the run may be held while disks are asked.
    shown: Mutex<Option<ScanState>>,
    worker: Worker,
    /// What waits, as it is on the disks.
    recorded: Mutex<ScanQueue>,
    /// Groups of which repairs failed since the scan began.
    failed: Mutex<BTreeSet<Txg>>,
    /// Leaves that could not be written for a while since it began, or may have lost what was.
    unfit: Mutex<BTreeSet<Guid>>,
    /// All that went wrong since the scan began is known: `failed` tells all groups of which devices may
    /// still lack something that they could have.
    is_sure: AtomicBool,
    /// A resilver waits for the one under way.
    waits: AtomicBool,
    /// The resilver is done in the order of the disks.
    in_order: Mutex<Option<Arc<Mutex<in_order::InOrder>>>>,
    /// The scrub of the error log.
    of_errors: Mutex<Option<of_errors::ErrorRun>>,
    tried: Mutex<Option<start::Tried>>,
    portion: visit::PortionSize,
    others: visit::Others,
    pass: Pass,
}

/// What was done since the scan was begun, or the pool was opened.
#[derive(Debug, Default)]
struct Pass {
    /// Seconds since 1970.
    started: AtomicU64,
    paused: AtomicU64,
    spent_paused: AtomicU64,
    examined: AtomicU64,
    issued: AtomicU64,
    repaired: AtomicU64,
    /// Examined and not skipped before.
    issued_before: AtomicU64,
}

/// What a scan tells whoever looks, beyond its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanProgress {
    /// What it is for, and where it stands.
    pub record: Option<ScanState>,
    /// Seconds since 1970 when this pass began.
    pub pass_start: u64,
    /// Seconds since 1970 of the pause; 0: it does not pause.
    pub paused: u64,
    /// Seconds this pass has paused.
    pub spent_paused: u64,
    /// Bytes found in this pass.
    pub pass_examined: u64,
    /// Bytes read in this pass.
    pub pass_issued: u64,
    /// Bytes read in all.
    pub issued: u64,
}

impl Pass {
    fn begin(&self, record: &ScanState) {
        let now = seconds_now();
        self.started.store(now, Relaxed);
        self.paused.store(if record.is_paused() { now } else { 0 }, Relaxed);
        let before = record.examined.saturating_sub(record.skipped);
        self.issued_before.store(before, Relaxed);
        for counter in [&self.spent_paused, &self.examined, &self.issued, &self.repaired] {
            counter.store(0, Relaxed);
        }
    }

    fn pause(&self, paused: bool) {
        let now = seconds_now();
        let since = self.paused.swap(if paused { now } else { 0 }, Relaxed);
        if !paused && since != 0 {
            self.spent_paused.fetch_add(now.saturating_sub(since), Relaxed);
        }
    }
}

impl Scan {
    /// Goes on with what a record on the disks tells.
    fn resume(&self, run: Run) {
        *self.in_order.lock() = None;
        self.pass.begin(&run.record);
        self.show(&run);
        *self.run.lock() = Some(run);
        self.worker.wake();
    }

    /// Changes the run, if there is one; something is to be recorded then.
    fn alter(&self, change: impl FnOnce(&mut Run)) {
        if let Some(run) = self.run.lock().as_mut() {
            change(run);
            self.show(run);
            self.worker.mark();
            self.worker.wake();
        }
    }

    /// Who looks is told of it.
    fn show(&self, run: &Run) {
        *self.shown.lock() = Some(run.record);
    }

    /// A group is to be written for it.
    pub(super) fn is_due(&self) -> bool {
        self.worker.is_due()
    }

    /// Group `txg` does this to a dataset.
    pub(in crate::pool) fn happened(&self, txg: Txg, event: DatasetEvent) {
        self.alter(|run| run.happened(txg, event));
    }

    /// Whether something is to be visited.
    fn has_work(run: Option<&Run>) -> bool {
        run.is_some_and(|run| run.is_active() && !run.is_paused() && !run.is_through())
    }

    /// What it tells.
    pub(super) fn progress(&self) -> ScanProgress {
        let pass = &self.pass;
        let issued = pass.issued.load(Relaxed);
        let mut record = *self.shown.lock();
        if let Some(record) = record.as_mut().filter(|record| record.phase == ScanPhase::Scanning) {
            // What the portion under way has repaired.
            record.processed = record.processed.max(pass.repaired.load(Relaxed));
        }
        ScanProgress {
            record,
            pass_start: pass.started.load(Relaxed),
            paused: pass.paused.load(Relaxed),
            spent_paused: pass.spent_paused.load(Relaxed),
            pass_examined: pass.examined.load(Relaxed),
            pass_issued: issued,
            issued: pass.issued_before.load(Relaxed).saturating_add(issued),
        }
    }

    /// Visits nothing any more; returns when the portion under way has ended.
    pub(super) fn rest(&self) {
        self.worker.rest();
    }
}

impl LivePool {
    /// What the scan of the pool tells; `record` is `None` if there never was one since the pool was
    /// opened.
    pub fn scan_progress(&self) -> ScanProgress {
        self.scan.progress()
    }

    /// Whether a resilver or scrub runs or pauses.
    pub fn is_scanning(&self) -> Option<ScanFunction> {
        let run = self.scan.run.lock();
        run.as_ref().filter(|run| run.is_active()).map(|run| run.record.function)
    }

    /// Goes on with a scan that the pool's metadata tells of.
    pub(in crate::pool) fn start_scanning(self: &Arc<Self>) -> Result<()> {
        if self.options.inline {
            return Ok(());
        }
        let (live, scan) = (Arc::downgrade(self), self.scan.clone());
        let run = move || {
            let is_idle =
                |run: &Option<Run>| !Scan::has_work(run.as_ref()) && !scan.scrubs_errors();
            scan.worker.go_on(&live, &scan.run, is_idle, |live| {
                live.scan_by_itself();
                true
            });
        };
        self.scan.worker.start("scan", run)
    }

    /// What the thread does each time: what nobody has to ask for, and a portion.
    fn scan_by_itself(&self) {
        if self.options.resilvers {
            self.resilver_if_needed();
            self.let_replaced_go();
            self.grow_by_itself();
            self.replace_by_itself();
            self.let_spares_step_in();
        }
        self.visit_portion();
        self.scrub_some_errors();
    }

    /// Records how far the scan is, if something is new; visits a portion where there are no threads.
    pub(in crate::pool) fn go_on_scanning(&self, change: &MosChange<'_>, hooks: &GroupHooks<'_>) {
        let portion = || {
            self.visit_portion();
            self.scrub_some_errors();
        };
        let record = || {
            self.record_error_scrub(change)?;
            self.record_scan(change)
        };
        let done = self.go_on_with(&self.scan.worker, (change, hooks), portion, record);
        if let Err(error) = done {
            tracing::warn!(%error, "how far the scan is cannot be recorded");
        }
    }
}
