//! Reads through io_uring: one ring for each thread that reads.
//!
//! Invariant: a run sent to the kernel sits in a slot of its ring, buffers and device included,
//! until its completion has been seen. A ring with overdue runs leaves its thread for the attic,
//! where it waits for them; it is never closed before.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;

use crate::DeviceError;
use crate::plan::{Results, Run};

/// Runs in flight in one ring.
const DEPTH: u32 = 128;
/// Marks completions of cancel requests.
const CANCEL: u64 = u64::MAX;
/// Sendings of one run before a short answer counts as an error.
const ATTEMPTS: u32 = 4;
/// Time given to the kernel to take overdue runs back.
const CANCEL_TIME: Duration = Duration::from_millis(2);

/// A run in the kernel's hands, with the vector the kernel reads the addresses from.
struct Slot {
    run: Run,
    /// Address and length of each buffer; boxed, so it does not move.
    _vectors: Box<[libc::iovec]>,
    overdue: bool,
}

// SAFETY: the raw pointers in `_vectors` point into the heap buffers owned by `run`, which move
// along with the slot; nothing in user space reads through them.
unsafe impl Send for Slot {}

/// An io_uring with its runs.
struct Ring {
    uring: IoUring,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
}

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// Rings with overdue runs.
static ATTIC: Mutex<Vec<Ring>> = Mutex::new(Vec::new());
/// Set once io_uring turned out to be unavailable.
static UNAVAILABLE: AtomicBool = AtomicBool::new(false);

impl Ring {
    fn new() -> io::Result<Self> {
        let uring = IoUring::builder()
            .setup_coop_taskrun()
            .build(DEPTH)
            .or_else(|_| IoUring::builder().build(DEPTH))?;
        if !uring.params().is_feature_ext_arg() || !uring.params().is_feature_nodrop() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let depth = DEPTH as usize;
        let slots = (0..depth).map(|_| None).collect();
        Ok(Self { uring, slots, free: (0..depth).rev().collect() })
    }

    fn in_flight(&self) -> usize {
        self.slots.len().saturating_sub(self.free.len())
    }

    /// Queues a run; gives it back if the ring is full.
    fn push(&mut self, mut run: Run) -> Result<(), Run> {
        let Some(index) = self.free.pop() else { return Err(run) };
        let vectors: Box<[libc::iovec]> = run
            .parts
            .iter_mut()
            .map(|part| {
                let span = part.span;
                let bytes = part.buffer.as_mut_slice();
                let len = span.min(bytes.len());
                libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len }
            })
            .collect();
        let descriptor = types::Fd(run.raw.descriptor);
        let entry = opcode::Readv::new(descriptor, vectors.as_ptr(), vectors.len() as u32)
            .offset(run.offset)
            .build()
            .user_data(index as u64);
        // SAFETY: the vectors and the buffers they point to are owned by the slot filled below and
        // stay there untouched until the completion for `index` has been seen. The descriptor is
        // open as long as `run.device` lives, which the slot owns too.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        if pushed.is_err() {
            self.free.push(index);
            return Err(run);
        }
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(Slot { run, _vectors: vectors, overdue: false });
        }
        Ok(())
    }

    /// Sends what is queued and waits for one completion, at most for `wait`.
    fn submit_and_wait(&mut self, wait: Duration) -> io::Result<()> {
        let timespec = types::Timespec::new().sec(wait.as_secs()).nsec(wait.subsec_nanos());
        let arguments = types::SubmitArgs::new().timespec(&timespec);
        match self.uring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Takes the completed runs out of their slots.
    fn reap(&mut self, each: &mut dyn FnMut(Run, i32)) {
        for completion in self.uring.completion() {
            if completion.user_data() == CANCEL {
                continue;
            }
            let index = completion.user_data() as usize;
            let Some(slot) = self.slots.get_mut(index).and_then(Option::take) else { continue };
            self.free.push(index);
            if slot.overdue
                && let Some(stall) = slot.run.device.stall()
            {
                stall.remove();
            }
            each(slot.run, completion.result());
        }
    }

    /// Asks the kernel to give up every run in flight.
    fn cancel(&mut self) {
        for index in 0..self.slots.len() {
            if self.slots.get(index).is_some_and(Option::is_some) {
                let entry = opcode::AsyncCancel::new(index as u64).build().user_data(CANCEL);
                // SAFETY: a cancel request refers to no memory of ours.
                let pushed = unsafe { self.uring.submission().push(&entry) };
                if pushed.is_err() {
                    return;
                }
            }
        }
    }

    /// Counts what is still in flight as overdue and leaves the ring to the attic.
    fn retire(mut self) {
        if self.in_flight() == 0 {
            return;
        }
        for slot in self.slots.iter_mut().flatten() {
            if !slot.overdue {
                slot.overdue = true;
                if let Some(stall) = slot.run.device.stall() {
                    stall.add();
                }
            }
        }
        ATTIC.lock().push(self);
    }
}

/// Looks whether overdue runs have come back.
pub(crate) fn sweep() {
    if let Some(mut attic) = ATTIC.try_lock() {
        for ring in attic.iter_mut() {
            ring.reap(&mut |_, _| {});
        }
        attic.retain(|ring| ring.in_flight() > 0);
    }
}

/// Runs that wait for a free slot.
type Waiting = std::collections::VecDeque<Run>;

/// What to do with a completed run: hand out its parts, or try again.
fn complete(run: Run, result: i32, waiting: &mut Waiting, out: &mut Results) {
    if result < 0 {
        let code = -result;
        if code == libc::ECANCELED {
            return;
        }
        let transient = matches!(code, libc::EINTR | libc::EAGAIN);
        // One bad place must not fail its neighbours: joined reads are tried again alone.
        if (run.parts.len() > 1 || transient) && run.attempts < ATTEMPTS {
            waiting.extend(run.split());
        } else {
            run.fail(&io::Error::from_raw_os_error(code).into(), out);
        }
    } else if (result as usize) < run.needed() {
        if run.parts.len() > 1 || (result > 0 && run.attempts < ATTEMPTS) {
            waiting.extend(run.split());
        } else {
            run.fail(&DeviceError::from(io::Error::from(io::ErrorKind::UnexpectedEof)), out);
        }
    } else {
        run.finish(out);
    }
}

/// Reads `runs`, with `meanwhile` called once while they are in flight. Gives the runs back if
/// io_uring is unavailable.
pub(crate) fn read(
    runs: Vec<Run>,
    until: Instant,
    meanwhile: &mut dyn FnMut(&mut Results),
    out: &mut Results,
) -> Result<(), Vec<Run>> {
    if UNAVAILABLE.load(Ordering::Relaxed) {
        return Err(runs);
    }
    let mut ring = match RING.with_borrow_mut(Option::take).map_or_else(Ring::new, Ok) {
        Ok(ring) => ring,
        Err(error) => {
            // Out of descriptors or memory may pass; refused or unknown will not.
            if !matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) {
                UNAVAILABLE.store(true, Ordering::Relaxed);
            }
            return Err(runs);
        }
    };
    let mut waiting = Waiting::from(runs);
    let mut first = true;
    loop {
        while let Some(run) = waiting.pop_front() {
            if let Err(run) = ring.push(run) {
                waiting.push_front(run);
                break;
            }
        }
        if ring.in_flight() == 0 {
            break;
        }
        let left = until.saturating_duration_since(Instant::now());
        let wait = if first { Duration::ZERO } else { left };
        if let Err(error) = ring.submit_and_wait(wait) {
            let error = DeviceError::from(error);
            for run in waiting.drain(..) {
                run.fail(&error, out);
            }
            // What the kernel did not take stays in the ring; it must not be freed.
            std::mem::forget(ring);
            return Ok(());
        }
        ring.reap(&mut |run, result| complete(run, result, &mut waiting, out));
        if first {
            first = false;
            meanwhile(out);
        } else if left.is_zero() && ring.in_flight() > 0 {
            ring.cancel();
            let patience = Instant::now() + CANCEL_TIME;
            while ring.in_flight() > 0 {
                let left = patience.saturating_duration_since(Instant::now());
                if left.is_zero() || ring.submit_and_wait(left).is_err() {
                    break;
                }
                // Not tried again: late is late.
                let mut again = Waiting::new();
                ring.reap(&mut |run, result| complete(run, result, &mut again, out));
            }
            break;
        }
    }
    if ring.in_flight() > 0 {
        ring.retire();
    } else {
        RING.set(Some(ring));
    }
    Ok(())
}
