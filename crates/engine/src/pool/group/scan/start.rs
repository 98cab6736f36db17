//! Orders about scans: to begin one, to pause it, to go on, to give it up.
//!
//! Chapter 08, sections 2.2 and 2.3. Invariant: one scan at a time; a resilver is neither paused nor given
//! up.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cenote_format::bptree::BlockBookmark;
use cenote_format::scan_state::{FLAG_SCRUB_PAUSED, ScanFunction, ScanPhase, ScanState};
use cenote_format::{ObjectId, Txg};

use super::LivePool;
use super::run::Run;
use crate::dataset::change::MosChange;
use crate::events::string;
use crate::pool::group::sync::seconds_now;
use crate::{Error, ErrorKind, Result};

/// Greatest class of dedup tables whose blocks are visited by way of the tables.
const NO_CLASS: u64 = 0;

/// Time between two resilvers that are begun without being asked for, of devices that go on failing.
const PAUSE: Duration = Duration::from_secs(60);
/// The same if a device has come back in between.
const PAUSE_AFTER_COMEBACK: Duration = Duration::from_secs(5);
/// The same if nothing is different: a device may have become well without anybody being told.
const PAUSE_IF_SAME: Duration = Duration::from_secs(600);

/// What is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanKind {
    /// Everything: what devices are found not to have is written again.
    Scrub,
    /// What was written since the last whole scrub began.
    ScrubNew,
    /// What devices are known not to have.
    Resilver,
}

/// What somebody wants of the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanOrder {
    /// That it begins, or goes on if it pauses.
    Begin(ScanKind),
    /// That it pauses.
    Pause,
    /// That it is given up.
    Stop,
    /// That what the error log lists is read again, or that goes on if it pauses.
    ScrubErrors,
    /// That the resilver under way begins anew, or one begins.
    Restart,
}

/// A resilver that was begun without being asked for.
#[derive(Debug)]
pub(super) struct Tried {
    /// What devices lacked.
    range: Range<u64>,
    /// How often some had come back.
    comebacks: u64,
    when: Instant,
}

impl Tried {
    /// Nothing is different now, or too soon.
    fn is_enough(&self, range: &Range<u64>, comebacks: u64) -> bool {
        let pause = match self.comebacks == comebacks {
            true if self.range == *range => PAUSE_IF_SAME,
            true => PAUSE,
            false => PAUSE_AFTER_COMEBACK,
        };
        self.when.elapsed() < pause
    }
}

impl LivePool {
    /// Does what somebody wants of the scan.
    ///
    /// # Errors
    /// As [`Self::order_scan`] says.
    pub fn scan(&self, order: ScanOrder) -> Result<()> {
        if let ScanOrder::Begin(ScanKind::Scrub | ScanKind::ScrubNew) | ScanOrder::Restart = order {
            self.examine_devices();
        }
        self.change(move |live, change| live.order_scan(change, order))
    }

    /// Begins a resilver if a device that is there misses something that no scan under way writes to it.
    /// A scrub that pauses gives way.
    pub(super) fn resilver_if_needed(&self) {
        let vdevs = self.vdevs();
        let Some(range) = vdevs.resilver_range() else { return };
        let is_covered = |run: &Run| {
            let record = &run.record;
            let is_all = record.min_txg.0 < range.start && range.end <= record.max_txg.0;
            record.function == ScanFunction::Resilver || is_all && !run.is_paused()
        };
        let run = self.scan.run.lock().as_ref().filter(|run| run.is_active()).cloned();
        let is_busy = self.gate.suspension().is_some() || self.is_rebuilding();
        if is_busy || run.as_ref().is_some_and(is_covered) {
            return;
        }
        let comebacks = vdevs.comebacks();
        {
            let mut tried = self.scan.tried.lock();
            if tried.as_ref().is_some_and(|tried| tried.is_enough(&range, comebacks)) {
                return;
            }
            *tried = Some(Tried { range, comebacks, when: Instant::now() });
        }
        if let Err(error) = self.scan(ScanOrder::Begin(ScanKind::Resilver)) {
            tracing::info!(%error, "no resilver");
        }
    }

    /// Does what somebody wants of the scan, within the order that `change` belongs to.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where one runs already, [`ErrorKind::NotFound`] where none does.
    pub fn order_scan(&self, change: &MosChange<'_>, order: ScanOrder) -> Result<()> {
        let now = self.scan.run.lock().as_ref().filter(|run| run.is_active()).cloned();
        let is_resilver = |run: &Run| run.record.function == ScanFunction::Resilver;
        if now.is_none() && self.is_rebuilding() && order != ScanOrder::Stop {
            let words = match order {
                ScanOrder::Begin(ScanKind::Resilver) | ScanOrder::Restart => {
                    "currently sequentially resilvering"
                }
                _ => "currently resilvering",
            };
            return Err(Error::new(ErrorKind::Busy, words));
        }
        if self.order_error_scrub(change, order, now.as_ref())? {
            return Ok(());
        }
        match (order, now) {
            (ScanOrder::Restart | ScanOrder::ScrubErrors, _) => self.restart_resilver(change),
            (ScanOrder::Begin(ScanKind::Resilver), Some(run)) if !is_resilver(&run) => {
                self.begin_scan(change, ScanKind::Resilver)
            }
            (ScanOrder::Begin(_), Some(run)) if run.is_paused() => self.pause_scan(change, false),
            (ScanOrder::Begin(_), Some(run)) if is_resilver(&run) => {
                Err(Error::new(ErrorKind::Busy, "currently resilvering"))
            }
            (ScanOrder::Begin(_), Some(_)) => {
                let reason = "currently scrubbing; use 'zpool scrub -s' to cancel scrub";
                Err(Error::new(ErrorKind::Busy, reason))
            }
            (ScanOrder::Begin(kind), None) => self.begin_scan(change, kind),
            (ScanOrder::Pause, Some(run)) if run.is_paused() => Err(Error::new(
                ErrorKind::Exists,
                "scrub is paused; use 'zpool scrub' to resume scrub",
            )),
            (ScanOrder::Pause, Some(run)) if !is_resilver(&run) => self.pause_scan(change, true),
            (ScanOrder::Stop, Some(run)) if !is_resilver(&run) => self.stop_scan(change),
            // libzfs says nothing of it, other than where there is nothing to stop.
            (ScanOrder::Pause, None) => Ok(()),
            (ScanOrder::Stop, None) => {
                Err(Error::new(ErrorKind::NotFound, "there is no active scrub"))
            }
            (ScanOrder::Pause | ScanOrder::Stop, Some(_)) => {
                Err(Error::new(ErrorKind::Busy, "currently resilvering"))
            }
        }
    }

    /// Begins to read everything after a rebuild, which looked at no checksum; `lacking`: what devices still
    /// lack.
    pub(in crate::pool::group) fn begin_scrub_after(
        &self,
        change: &MosChange<'_>,
        lacking: Option<Range<u64>>,
    ) -> Result<()> {
        self.begin_scan_of(change, ScanKind::Scrub, lacking)
    }

    pub(super) fn begin_scan(&self, change: &MosChange<'_>, kind: ScanKind) -> Result<()> {
        self.begin_scan_of(change, kind, self.vdevs().resilver_range())
    }

    pub(super) fn begin_scan_of(
        &self,
        change: &MosChange<'_>,
        kind: ScanKind,
        lacking: Option<Range<u64>>,
    ) -> Result<()> {
        let txg = change.tx.txg();
        let function = match kind {
            ScanKind::Resilver => ScanFunction::Resilver,
            ScanKind::Scrub | ScanKind::ScrubNew => ScanFunction::Scrub,
        };
        if kind == ScanKind::Resilver && lacking.is_none() {
            // No device that is there misses anything.
            return Ok(());
        }
        if self.is_scanning().is_some() {
            self.stop_scan(change)?;
        }
        let (min, max) = match (&lacking, kind) {
            (Some(range), _) => (Txg(range.start.saturating_sub(1)), Txg(range.end)),
            (None, ScanKind::ScrubNew) => (change.last_scrubbed()?, txg),
            (None, _) => (Txg(0), txg),
        };
        let record = ScanState {
            function,
            phase: ScanPhase::Scanning,
            queue: ObjectId(0),
            min_txg: min,
            max_txg: max,
            current_min_txg: min,
            current_max_txg: max,
            start_time: seconds_now(),
            end_time: 0,
            to_examine: self.allocator.figures().all_allocated(),
            examined: 0,
            skipped: 0,
            processed: 0,
            errors: 0,
            dedup_class_max: NO_CLASS,
            // Past every class: blocks in the tables are visited by way of their datasets.
            dedup_bookmark: [NO_CLASS + 1, 0, 0, 0],
            bookmark: BlockBookmark { objset: 0, object: 0, level: 0, block: 0 },
            flags: 0,
        };
        self.cancel_error_scrub(change)?;
        change.forget_error_scrub()?;
        if function == ScanFunction::Resilver {
            self.forget_rebuilds(change)?;
        }
        let number = u64::from(function);
        let text = format!("func={number} mintxg={} maxtxg={}", min.0, max.0);
        change.log_event("scan setup", None, &text)?;
        match lacking {
            Some(_) => self.tell("resilver_start", vec![("resilver_type", string("healing"))]),
            None => self.tell("scrub_start", Vec::new()),
        }
        self.config.lock().topology_changed();
        self.when_done(move |live| {
            live.scan.failed.lock().clear();
            drop(live.vdevs().take_unflushed());
            live.scan.unfit.lock().clear();
            live.scan.is_sure.store(true, Relaxed);
            live.io.pipe.faults().scan_begins();
            live.scan.resume(Run::new(record, BTreeMap::new()));
            live.scan.alter(|_| ());
        });
        Ok(())
    }

    fn pause_scan(&self, change: &MosChange<'_>, paused: bool) -> Result<()> {
        let word = if paused { "scan paused" } else { "scan resumed" };
        self.tell(if paused { "scrub_paused" } else { "scrub_resume" }, Vec::new());
        change.log_event(
            word,
            None,
            &format!("flag={}", if paused { FLAG_SCRUB_PAUSED } else { 0 }),
        )?;
        self.when_done(move |live| {
            live.scan.pass.pause(paused);
            live.scan.alter(|run| run.pause(paused));
        });
        Ok(())
    }

    pub(in crate::pool::group) fn stop_scan(&self, change: &MosChange<'_>) -> Result<()> {
        let Some(mut run) = self.scan.run.lock().clone() else { return Ok(()) };
        self.end_scan(change, &mut run, ScanPhase::Cancelled)?;
        if run.record.function == ScanFunction::Scrub {
            self.tell("scrub_abort", Vec::new());
        }
        self.when_done(move |live| {
            live.scan.show(&run);
            *live.scan.run.lock() = Some(run);
            live.scan.recorded.lock().clear();
        });
        Ok(())
    }
}
