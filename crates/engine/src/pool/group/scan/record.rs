//! Recording how far a scan is, and its end.
//!
//! Chapter 08, sections 5 and 7. Invariant: a record names a place that OpenZFS can go on at; the end of a
//! scan and what devices do not miss any more are told by the same group.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use cenote_format::Guid;
use cenote_format::scan_state::{FLAG_SCRUB_PAUSED, ScanFunction, ScanPhase};

use super::LivePool;
use super::run::{Run, Successors};
use crate::Result;
use crate::dataset::change::{MosChange, read_scan};
use crate::events::string;
use crate::pool::group::discarding::has_checkpoint;
use crate::pool::group::sync::seconds_now;

/// Datasets without a block in the range that are passed over in one group.
const PASSED_OVER: u32 = 1000;

impl LivePool {
    /// What an earlier life of the pool, or OpenZFS, has left to scan.
    pub(in crate::pool) fn load_scan(&self) -> Result<()> {
        let Some((record, queue)) = read_scan(&self.mos)? else { return Ok(()) };
        if record.phase == ScanPhase::Scanning {
            // What an earlier life knows is lost, but for whether there is anything.
            self.scan.is_sure.store(record.errors == 0, Relaxed);
            *self.scan.recorded.lock() = queue.clone();
            let run = Run::new(record, queue);
            // OpenZFS records that everything was visited before it records the end.
            let is_to_be_ended = run.is_through() && !run.is_paused();
            self.scan.resume(run);
            if is_to_be_ended {
                self.scan.worker.mark();
            }
        }
        Ok(())
    }

    /// Writes what is new of the scan into the group.
    pub(super) fn record_scan(&self, change: &MosChange<'_>) -> Result<()> {
        let mut slot = self.scan.run.lock();
        let Some(run) = slot.as_mut() else { return Ok(()) };
        let mut next = run.clone();
        if !begin_next(&mut next, change)? {
            // Nothing that can be recorded yet.
            *run = next;
            self.scan.worker.mark();
            return Ok(());
        }
        if next.is_active() && next.is_through() && self.is_too_soon(&next, change) {
            *run = next;
            self.scan.worker.mark();
            self.gate.want(self.gate.figures().open);
            return Ok(());
        }
        if next.is_active() && next.is_through() {
            self.end_scan(change, &mut next, ScanPhase::Finished)?;
            self.scan.recorded.lock().clear();
        } else if next.is_active() {
            let mut recorded = self.scan.recorded.lock();
            next.record = change.put_scan(&next.record, &recorded, next.queue())?;
            recorded.clone_from(next.queue());
        }
        let has_ended = run.is_active() && !next.is_active();
        *run = next;
        let now = run.clone();
        drop(slot);
        // Who waits for the end of resilvers sees none between the two.
        if !(has_ended && self.begin_deferred(change)) {
            self.scan.show(&now);
        }
        Ok(())
    }

    /// Devices that seem to be whole now are watched for some groups more.
    fn is_too_soon(&self, run: &Run, change: &MosChange<'_>) -> bool {
        self.scan.is_sure.load(Relaxed)
            && self.vdevs().is_too_soon(run.record.max_txg, change.tx.txg())
    }

    /// Ends the scan: everything was visited, or somebody wants no more of it.
    pub(super) fn end_scan(
        &self,
        change: &MosChange<'_>,
        run: &mut Run,
        phase: ScanPhase,
    ) -> Result<()> {
        let record = &mut run.record;
        let complete = phase == ScanPhase::Finished;
        record.phase = phase;
        record.flags &= !FLAG_SCRUB_PAUSED;
        record.end_time = seconds_now();
        let max = record.max_txg;
        let is_scrub = record.function == ScanFunction::Scrub;
        run.record = change.end_scan(&run.record, (complete && is_scrub).then_some(max))?;
        let whole = complete && is_scrub && run.record.min_txg.0 == 0;
        self.when_done(move |live| live.errors.scan_ended(whole));
        self.forget_deferred(change)?;
        let event = if complete { "scan done" } else { "scan cancelled" };
        change.log_event(event, None, &format!("errors={}", run.record.errors))?;
        self.when_done(move |live| {
            live.vdevs().events().forget_told();
            if complete {
                live.jobs.wake_troubled();
            }
        });
        if complete && !has_checkpoint(change.mos)? {
            match is_scrub {
                true => self.tell("scrub_finish", Vec::new()),
                false => self.tell("resilver_finish", vec![("resilver_type", string("healing"))]),
            }
        }
        if complete && self.scan.is_sure.load(Relaxed) && !has_checkpoint(change.mos)? {
            // What is lost everywhere nobody misses any more. Last: this is not taken back.
            self.note_unfit();
            let (unfit, failed) = (self.scan.unfit.lock(), self.scan.failed.lock());
            self.vdevs().forget_missed(|leaf| !unfit.contains(&leaf), max, &failed);
            self.mark_resilvered(change);
        }
        Ok(())
    }

    /// The configuration of leaves that lack nothing any more does not say since when they were resilvered.
    fn mark_resilvered(&self, change: &MosChange<'_>) {
        let vdevs = self.vdevs();
        let lacks: BTreeSet<Guid> = vdevs.missed().into_iter().map(|(leaf, _)| leaf).collect();
        let all = vdevs.topology().root().devices();
        let done = all.filter(|leaf| leaf.resilver_txg.is_some() && !lacks.contains(&leaf.guid));
        let done = done.map(|leaf| leaf.guid).collect();
        self.mark_leaves(change, done, |leaf| leaf.resilver_txg = None);
    }
}

/// Begins the next dataset, for what is not begun cannot be recorded. False if there are too many without
/// a block in the range.
fn begin_next(run: &mut Run, change: &MosChange<'_>) -> Result<bool> {
    for _ in 0..PASSED_OVER {
        let Some(dataset) = run.to_be_begun() else { return Ok(true) };
        let Ok(phys) = change.dataset(dataset) else {
            run.record.errors = run.record.errors.saturating_add(1);
            run.leave_out();
            continue;
        };
        let after = || {
            let next = change.catalog()?.successors_of(dataset, &phys)?;
            Ok(Successors { birth: phys.creation_txg, next })
        };
        if run.take_up(&phys, after)? {
            return Ok(true);
        }
    }
    Ok(false)
}
