//! A portion of a rebuild.
//!
//! Chapter 08, section 11. What is in use at one moment is rebuilt when everything that was on its way to the
//! disks then is there; what is freed of it meanwhile is not given out again. Invariant: nobody else writes
//! to what is rebuilt: what was allocated later lies elsewhere, and blocks of intent logs that are not
//! written yet are left out, for the devices get them when they are.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::Builder;
use std::time::{Duration, Instant};

use cenote_format::Txg;
use parking_lot::Mutex;

use super::{LivePool, Run};
use crate::Result;
use crate::alloc::Held;
use crate::pool::group::PATIENCE;
use crate::vdev::Stretch;

/// Bytes of a portion, at most.
const PORTION: u64 = 512 << 20;
/// Time that a portion is to take: freed space is not used meanwhile.
const TIME: Duration = Duration::from_secs(2);
/// Longest stretch.
const LONGEST: u64 = 4 << 20;
/// Bytes of the stretches that are read together.
const TOGETHER: u64 = 8 << 20;
/// Threads that read and write.
const WORKERS: usize = 3;
/// How long a worker sits out while somebody waits for a group.
const SITTING: Duration = Duration::from_millis(2);

/// A portion that waits for what is on its way to the disks.
#[derive(Debug)]
pub(super) struct Prepared {
    vdev: u32,
    /// Of which run it is.
    serial: u64,
    stretches: Vec<Stretch>,
    /// Everything before this is rebuilt when they are.
    end: u64,
    /// Everything is on the disks with this group.
    until: Txg,
    /// What is freed stays as it is.
    held: Held,
}

/// What a portion came to.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    bytes: u64,
    failed_bytes: u64,
    errors: u64,
}

impl LivePool {
    /// Does a portion of a rebuild. False if nothing could be done.
    pub(super) fn rebuild_portion(&self) -> bool {
        if self.gate.suspension().is_some() || self.rebuilds.worker.rests() {
            *self.rebuilds.prepared.lock() = None;
            return false;
        }
        let prepared = self.rebuilds.prepared.lock().take();
        let done = match prepared {
            Some(prepared) => self.rebuild_prepared(prepared),
            None => self.prepare_rebuild(),
        };
        done.unwrap_or_else(|error| {
            tracing::info!(%error, "a rebuild waits");
            false
        })
    }

    /// Finds what the next portion is about.
    fn prepare_rebuild(&self) -> Result<bool> {
        let next = {
            let runs = self.rebuilds.runs.lock();
            let mut waiting = runs.iter().filter(|(_, run)| !run.through && !run.idle);
            waiting.next().map(|(vdev, run)| (*vdev, *run))
        };
        let Some((vdev, run)) = next else { return Ok(false) };
        let vdevs = self.vdevs();
        if !vdevs.can_rebuild(vdev) {
            // A resilver does the rest when there is something to do again.
            self.rebuild_is_over(vdev, |run| run.idle = true);
            return Ok(false);
        }
        if !vdevs.is_readable(vdev) {
            return Ok(false);
        }
        let held = self.allocator.hold_all();
        let used = self.allocator.in_use_after(vdev, run.state.last_offset, PORTION)?;
        let Some(used) = used else {
            self.rebuild_is_over(vdev, |run| run.through = true);
            return Ok(false);
        };
        // In this order: what was on its way when it was looked is there when the group is, or is named here.
        let unwritten = self.unwritten_log_blocks(vdev);
        let until = self.gate.figures().open;
        let longest = vdevs.stretch_of(vdev, LONGEST).unwrap_or(LONGEST);
        let stretches = stretches_of(vdev, &used, run.state.last_offset, &unwritten, longest);
        let end = self.reaches(vdev, &used).unwrap_or(run.state.last_offset);
        let prepared = Prepared { vdev, serial: run.serial, stretches, end, until, held };
        *self.rebuilds.prepared.lock() = Some(prepared);
        self.gate.want(until);
        if self.options.inline {
            self.rebuilds.worker.mark();
            return Ok(true);
        }
        self.gate.wait_synced_unless_suspended(until, PATIENCE)?;
        Ok(true)
    }

    /// Everything before this is rebuilt when what is `used` of a metaslab is: all of it, if that is all that is
    /// used there. What is allocated there later, the devices get as it is written.
    fn reaches(&self, vdev: u32, used: &[(u64, u64)]) -> Option<u64> {
        let (first, last) = (used.first()?.0, used.last()?.1);
        let bytes = used.iter().fold(0_u64, |sum, (start, end)| sum.saturating_add(end - start));
        let slabs = self.allocator.metaslabs(vdev);
        let own = slabs.into_iter().find(|(start, end)| (*start..*end).contains(&first));
        Some(own.filter(|_| bytes < PORTION).map_or(last, |(_, end)| end))
    }

    /// Where intent logs will write, on this vdev.
    fn unwritten_log_blocks(&self, vdev: u32) -> Vec<(u64, u64)> {
        let open: Vec<_> = self.datasets.lock().values().cloned().collect();
        let logs = open.iter().filter_map(|dataset| dataset.log());
        let pointers: Vec<_> = logs.flat_map(|log| log.unwritten()).collect();
        let dvas = pointers.iter().flat_map(|pointer| pointer.dvas());
        let own = dvas.filter(|dva| dva.vdev == vdev);
        own.map(|dva| (dva.offset, dva.offset.saturating_add(dva.asize))).collect()
    }

    /// Nothing is left to do; the next group says so.
    fn rebuild_is_over(&self, vdev: u32, mark: impl FnOnce(&mut Run)) {
        if let Some(run) = self.rebuilds.runs.lock().get_mut(&vdev) {
            mark(run);
        }
        self.rebuilds.mark_dirty(vdev);
        // Whoever waits for the end is told at once.
        self.gate.want(self.gate.figures().open);
    }

    fn rebuild_prepared(&self, prepared: Prepared) -> Result<bool> {
        if self.gate.figures().synced < prepared.until {
            *self.rebuilds.prepared.lock() = Some(prepared);
            self.rebuilds.worker.mark();
            return Ok(self.options.inline);
        }
        let is_same = |run: &&mut Run| run.serial == prepared.serial;
        let births = {
            let mut runs = self.rebuilds.runs.lock();
            let Some(run) = runs.get_mut(&prepared.vdev).filter(is_same) else { return Ok(true) };
            run.state.min_txg.0..run.state.max_txg.0
        };
        let vdevs = self.vdevs();
        if !vdevs.is_readable(prepared.vdev) {
            return Ok(false);
        }
        let (count, done) = self.rebuild_stretches(&prepared.stretches, &births);
        if self.gate.suspension().is_some() {
            // Devices may have for now failed to give what they have: the portion is done anew.
            return Ok(false);
        }
        let last = count.checked_sub(1).and_then(|last| prepared.stretches.get(last));
        let reached = match count == prepared.stretches.len() {
            true => Some(prepared.end),
            false => last.map(|last| last.offset.saturating_add(last.size)),
        };
        let mut runs = self.rebuilds.runs.lock();
        let Some(run) = runs.get_mut(&prepared.vdev).filter(is_same) else { return Ok(true) };
        run.state.last_offset = reached.unwrap_or(run.state.last_offset);
        let state = &mut run.state;
        state.scanned = state.scanned.saturating_add(done.bytes);
        state.issued = state.issued.saturating_add(done.bytes);
        let rebuilt = done.bytes.saturating_sub(done.failed_bytes);
        state.rebuilt = state.rebuilt.saturating_add(rebuilt);
        state.errors = state.errors.saturating_add(done.errors);
        state.estimated = state.estimated.max(state.scanned);
        run.pass.scanned = run.pass.scanned.saturating_add(done.bytes);
        run.pass.issued = run.pass.issued.saturating_add(done.bytes);
        run.dirty = true;
        drop(runs);
        self.rebuilds.worker.mark();
        // What was freed meanwhile can be given out again before the next portion.
        drop(prepared.held);
        if !self.options.inline {
            let open = self.gate.figures().open;
            self.gate.wait_synced_unless_suspended(open, PATIENCE)?;
        }
        Ok(true)
    }

    /// Rebuilds the first of `stretches`, as many as there is time for: how many.
    fn rebuild_stretches(&self, stretches: &[Stretch], births: &Range<u64>) -> (usize, Done) {
        let mut batches: Vec<&[Stretch]> = Vec::new();
        let (mut first, mut bytes) = (0, 0_u64);
        for (index, stretch) in stretches.iter().enumerate() {
            bytes = bytes.saturating_add(stretch.size);
            if bytes >= TOGETHER || index + 1 == stretches.len() {
                batches.extend(stretches.get(first..=index));
                (first, bytes) = (index + 1, 0);
            }
        }
        let (next, done, started) =
            (AtomicUsize::new(0), Mutex::new(Done::default()), Instant::now());
        let rebuild = || {
            loop {
                let is_enough = started.elapsed() > TIME && next.load(Relaxed) > 0;
                if self.rebuilds.worker.rests() || is_enough && !self.options.inline {
                    break;
                }
                let Some(batch) = batches.get(next.fetch_add(1, Relaxed)) else { break };
                if !self.options.inline && self.gate.is_waited_for(self.gate.figures().open) {
                    std::thread::sleep(SITTING);
                }
                let answers = self.vdevs().rebuild(batch, births);
                let mut done = done.lock();
                for (stretch, answer) in batch.iter().zip(answers) {
                    done.bytes = done.bytes.saturating_add(stretch.size);
                    if let Err(error) = answer {
                        tracing::warn!(vdev = stretch.vdev, offset = stretch.offset, %error,
                            "a part of a vdev is not rebuilt");
                        done.errors = done.errors.saturating_add(1);
                        done.failed_bytes = done.failed_bytes.saturating_add(stretch.size);
                    }
                }
            }
        };
        match self.options.inline {
            true => rebuild(),
            false => std::thread::scope(|scope| {
                let workers = WORKERS.min(batches.len());
                // Where no thread can be had it is slower.
                let begin = |_| Builder::new().name("rebuild".into()).spawn_scoped(scope, rebuild);
                (1..workers).map(begin).take_while(Result::is_ok).for_each(drop);
                rebuild();
            }),
        }
        // Each one that was taken was done.
        let taken = next.load(Relaxed).min(batches.len());
        let count = batches.iter().take(taken).map(|batch| batch.len()).sum();
        (count, done.into_inner())
    }
}

/// What is `used` (starts and ends, ascending) from `from` on but for what is not `written` yet, in stretches
/// of at most `longest` bytes.
fn stretches_of(
    vdev: u32,
    used: &[(u64, u64)],
    from: u64,
    unwritten: &[(u64, u64)],
    longest: u64,
) -> Vec<Stretch> {
    let mut holes = unwritten.to_vec();
    holes.sort_unstable();
    let mut stretches = Vec::new();
    for (start, end) in used {
        let mut at = (*start).max(from);
        for (hole, after) in holes.iter().filter(|(hole, after)| hole < end && after > start) {
            cut(vdev, at, (*hole).min(*end), longest, &mut stretches);
            at = at.max(*after);
        }
        cut(vdev, at, *end, longest, &mut stretches);
    }
    stretches
}

fn cut(vdev: u32, mut at: u64, end: u64, longest: u64, stretches: &mut Vec<Stretch>) {
    while at < end {
        let size = longest.min(end - at);
        stretches.push(Stretch { vdev, offset: at, size });
        at = at.saturating_add(size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_leave_out_what_is_not_written() {
        let of = |used: &[(u64, u64)], from, holes: &[(u64, u64)]| -> Vec<(u64, u64)> {
            let all = stretches_of(3, used, from, holes, 100);
            all.iter().map(|one| (one.offset, one.offset + one.size)).collect()
        };
        assert_eq!(of(&[(0, 250)], 0, &[]), [(0, 100), (100, 200), (200, 250)]);
        assert_eq!(of(&[(0, 50), (60, 70)], 20, &[]), [(20, 50), (60, 70)]);
        assert_eq!(of(&[(0, 50)], 0, &[(30, 40), (10, 20)]), [(0, 10), (20, 30), (40, 50)]);
        assert_eq!(of(&[(10, 50)], 0, &[(0, 20), (45, 60)]), [(20, 45)]);
        assert_eq!(of(&[(10, 20)], 0, &[(10, 20)]), []);
    }
}
