//! Scrubs of the error log: only the blocks that are known to be lost are read again.
//!
//! Chapter 08, section 8. What is on the disks is a record of how far one is; which blocks are left is known
//! from the log, so that one that was cut off reads all of it again. Invariant: what is not read again
//! stays in the log; an object set that cannot be looked into counts as not read.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use cenote_format::scan_state::{ERROR_SCRUB_PAUSED, ErrorScrubState, ScanFunction, ScanPhase};
use cenote_format::{BlockPointer, ObjectId};

use super::run::Run;
use super::start::{ScanKind, ScanOrder};
use super::{LivePool, Scan};
use crate::dataset::change::{MosChange, read_error_scrub};
use crate::object::ObjectSet;
use crate::pipe::{Fault, Scope};
use crate::pool::group::sync::seconds_now;
use crate::{Error, ErrorKind, Result};

/// The feature without which a log does not tell where blocks are.
const FEATURE: &str = "head_errlog";
/// Blocks of a portion.
const PORTION: usize = 64;
/// Time between two looks while devices are away.
const AGAIN: Duration = Duration::from_millis(100);
/// What is said to who wants something else meanwhile.
const BUSY: &str = "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub";

/// A scrub of the error log.
#[derive(Clone, Debug)]
pub(super) struct ErrorRun {
    state: ErrorScrubState,
    /// What is to be read.
    left: VecDeque<Fault>,
    /// Seconds since 1970 of its pause.
    paused: u64,
}

impl ErrorRun {
    fn has_work(&self) -> bool {
        self.state.is_active() && !self.state.is_paused()
    }
}

impl Scan {
    /// A scrub of the error log has something to do.
    pub(super) fn scrubs_errors(&self) -> bool {
        let run = self.of_errors.lock();
        run.as_ref().is_some_and(|run| run.has_work() && !run.left.is_empty())
    }
}

impl LivePool {
    /// A scrub of the error log works, or would if it did not pause.
    pub(in crate::pool) fn is_scrubbing_errors(&self) -> bool {
        self.scan.of_errors.lock().as_ref().is_some_and(|run| run.state.is_active())
    }

    /// What the scrub of the error log tells, and the second since 1970 of its pause.
    pub fn error_scrub_progress(&self) -> Option<(ErrorScrubState, u64)> {
        self.scan.of_errors.lock().as_ref().map(|run| (run.state, run.paused))
    }

    /// What an earlier life of the pool, or OpenZFS, has left of one.
    pub(in crate::pool) fn load_error_scrub(&self) -> Result<()> {
        let Some(state) = read_error_scrub(&self.mos)?.filter(ErrorScrubState::is_active) else {
            return Ok(());
        };
        let state = ErrorScrubState { examined: 0, errors: 0, ..state };
        let paused = if state.is_paused() { seconds_now() } else { 0 };
        *self.scan.of_errors.lock() = Some(ErrorRun { state, left: VecDeque::new(), paused });
        Ok(())
    }

    /// The error log is known: what it lists is to be read, if that goes on.
    pub(in crate::pool) fn list_errors_to_scrub(&self) {
        let lost = self.io.pipe.faults().lost();
        if let Some(run) = self.scan.of_errors.lock().as_mut() {
            run.left = lost.into_iter().collect();
            self.scan.worker.mark();
        }
    }

    /// Does what somebody wants, if it is about a scrub of the error log; `now`: the scan under way. False:
    /// it is not.
    pub(super) fn order_error_scrub(
        &self,
        change: &MosChange<'_>,
        order: ScanOrder,
        now: Option<&Run>,
    ) -> Result<bool> {
        let busy = |words: &str| Err(Error::new(ErrorKind::Busy, words.to_owned()));
        let own = self.scan.of_errors.lock().clone().filter(|run| run.state.is_active());
        let pauses = own.as_ref().map(|run| run.state.is_paused());
        match (order, pauses, now) {
            (ScanOrder::ScrubErrors, Some(true), _) => self.pause_error_scrub(change, false)?,
            (ScanOrder::Begin(ScanKind::Scrub | ScanKind::ScrubNew), Some(_), _)
            | (ScanOrder::ScrubErrors, Some(false), _) => return busy(BUSY),
            (ScanOrder::Pause, Some(true), _) => {
                let words = "error scrub is paused; use 'zpool scrub -e' to resume error scrub";
                return Err(Error::new(ErrorKind::Exists, words));
            }
            (ScanOrder::Pause, Some(false), _) => self.pause_error_scrub(change, true)?,
            (ScanOrder::Stop, Some(_), _) => self.cancel_error_scrub(change)?,
            (ScanOrder::ScrubErrors, None, Some(run)) => {
                let is_resilver = run.record.function == ScanFunction::Resilver;
                return busy(match run.is_paused() {
                    _ if is_resilver => "currently resilvering",
                    true => {
                        "scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to \
                         cancel scrub"
                    }
                    false => "currently scrubbing; use 'zpool scrub -s' to cancel scrub",
                });
            }
            (ScanOrder::ScrubErrors, None, None) => self.begin_error_scrub(change)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn begin_error_scrub(&self, change: &MosChange<'_>) -> Result<()> {
        if !change.is_enabled(FEATURE)? {
            let words = "operation not supported on this type of pool";
            return Err(Error::unsupported(words));
        }
        let left: VecDeque<Fault> = self.io.pipe.faults().lost().into_iter().collect();
        if left.is_empty() {
            return Ok(());
        }
        let state = ErrorScrubState {
            function: ScanFunction::ErrorScrub,
            phase: ScanPhase::ErrorScrubbing,
            cursor: 0,
            start_time: seconds_now(),
            end_time: 0,
            to_examine: left.len() as u64,
            examined: 0,
            errors: 0,
            flags: 0,
        };
        change.put_error_scrub(&state)?;
        let words = format!("func={} mintxg=0 maxtxg={}", 3, change.tx.txg().0);
        change.log_event("error scrub setup", None, &words)?;
        self.tell("errorscrub_start", Vec::new());
        self.when_done(move |live| {
            live.io.pipe.faults().scan_begins();
            *live.scan.of_errors.lock() = Some(ErrorRun { state, left, paused: 0 });
            live.scan.worker.wake();
        });
        Ok(())
    }

    fn pause_error_scrub(&self, change: &MosChange<'_>, paused: bool) -> Result<()> {
        let Some(mut run) = self.scan.of_errors.lock().clone() else { return Ok(()) };
        match paused {
            true => run.state.flags = ERROR_SCRUB_PAUSED,
            false => run.state.flags = 0,
        }
        change.put_error_scrub(&run.state)?;
        self.tell(if paused { "errorscrub_paused" } else { "errorscrub_resume" }, Vec::new());
        let flags = run.state.flags;
        self.when_done(move |live| {
            if let Some(run) = live.scan.of_errors.lock().as_mut() {
                (run.state.flags, run.paused) = (flags, if paused { seconds_now() } else { 0 });
            }
            live.scan.worker.wake();
        });
        Ok(())
    }

    /// Gives one up, if there is one.
    pub(super) fn cancel_error_scrub(&self, change: &MosChange<'_>) -> Result<()> {
        let active = self.scan.of_errors.lock().clone().filter(|run| run.state.is_active());
        let Some(run) = active else { return Ok(()) };
        self.end_error_scrub(change, run, ScanPhase::Cancelled)
    }

    fn end_error_scrub(
        &self,
        change: &MosChange<'_>,
        run: ErrorRun,
        phase: ScanPhase,
    ) -> Result<()> {
        let complete = phase == ScanPhase::Finished;
        let state = ErrorScrubState { phase, flags: 0, end_time: seconds_now(), ..run.state };
        change.put_error_scrub(&state)?;
        let event = if complete { "error scrub done" } else { "error scrub canceled" };
        change.log_event(event, None, &format!("errors={}", state.errors))?;
        self.tell(if complete { "errorscrub_finish" } else { "errorscrub_abort" }, Vec::new());
        self.when_done(move |live| {
            *live.scan.of_errors.lock() =
                Some(ErrorRun { state, left: VecDeque::new(), paused: 0 });
            live.errors.scan_ended(complete);
        });
        Ok(())
    }

    /// Writes what is new of it into the group.
    pub(super) fn record_error_scrub(&self, change: &MosChange<'_>) -> Result<()> {
        let active = self.scan.of_errors.lock().clone().filter(ErrorRun::has_work);
        match active {
            Some(run) if run.left.is_empty() => {
                self.end_error_scrub(change, run, ScanPhase::Finished)
            }
            Some(run) => change.put_error_scrub(&run.state),
            None => Ok(()),
        }
    }

    /// Reads some of what is left.
    pub(super) fn scrub_some_errors(&self) {
        if !self.scan.scrubs_errors() {
            return;
        }
        if self.gate.suspension().is_some() {
            if !self.options.inline {
                std::thread::sleep(AGAIN);
            }
            return;
        }
        let some: Vec<Fault> = {
            let run = self.scan.of_errors.lock();
            run.iter().flat_map(|run| run.left.iter().take(PORTION).copied()).collect()
        };
        for fault in some {
            if self.scan.worker.rests() {
                return;
            }
            let is_lost = self.scrub_fault(&fault);
            let mut run = self.scan.of_errors.lock();
            let Some(run) = run.as_mut().filter(|run| run.left.front() == Some(&fault)) else {
                return;
            };
            run.left.pop_front();
            run.state.examined = run.state.examined.saturating_add(1);
            run.state.errors = run.state.errors.saturating_add(u64::from(is_lost));
        }
        self.scan.worker.mark();
        if !self.scan.scrubs_errors() && !self.options.inline {
            // Whoever waits for the end is told at once.
            self.gate.want(self.gate.figures().open);
        }
    }

    /// Reads one block wherever it is still used: whether it is lost.
    fn scrub_fault(&self, fault: &Fault) -> bool {
        // What is freed from now on stays where it is.
        let _held = self.allocator.hold_all();
        let pointers = match self.pointers_of(fault) {
            Ok(pointers) => pointers,
            Err(error) => {
                self.note_lost_still(fault, &error);
                return true;
            }
        };
        let mut is_lost = false;
        for pointer in pointers {
            let one = self.io.pipe.scrub(&pointer, Scope::ALL);
            if let Some(error) = one.lost {
                self.note_lost_still(fault, &error);
                is_lost = true;
            }
        }
        is_lost
    }

    fn note_lost_still(&self, fault: &Fault, error: &Error) {
        let told = Error::new(ErrorKind::Io, error.reason().to_owned()).at(|place| {
            place.objset = Some(fault.objset);
            place.object = Some(fault.object);
            place.block = fault.block;
        });
        self.io.pipe.note_fault(&told);
    }

    /// The blocks that are at this place of a dataset, or of its snapshots.
    fn pointers_of(&self, fault: &Fault) -> Result<Vec<BlockPointer>> {
        let catalog = self.pool.catalog();
        let mut roots = Vec::new();
        if fault.objset == 0 {
            roots.push((0, *self.pool.mos().root_pointer()));
        } else {
            let dataset = match catalog.dataset_by_id(ObjectId(fault.objset)) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                dataset => dataset?,
            };
            let head = catalog.head(&dataset.directory)?;
            roots.extend(catalog.snapshots(&head)?.iter().map(|one| (one.id.0, one.phys.pointer)));
            roots.push((head.id.0, head.phys.pointer));
        }
        let Some((level, block)) = fault.block.filter(|_| fault.object != 0) else {
            return Err(Error::new(ErrorKind::Io, "which block is lost is not known"));
        };
        let (mut pointers, mut known) = (Vec::new(), BTreeSet::new());
        for (id, root) in roots.into_iter().filter(|(_, root)| !root.is_hole()) {
            let set = ObjectSet::open(&self.io, root, id, None)?;
            let object = match set.object(ObjectId(fault.object)) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                object => object?,
            };
            if u64::from(level) >= u64::from(object.dnode().levels) {
                continue;
            }
            let pointer = object.pointer(level, block)?;
            let Some(dva) = pointer.first_dva().filter(|_| !pointer.is_hole()) else { continue };
            if known.insert((dva.vdev, dva.offset, pointer.physical_birth())) {
                pointers.push(pointer);
            }
        }
        Ok(pointers)
    }
}
