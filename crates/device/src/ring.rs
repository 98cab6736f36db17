//! Operations through io_uring: one ring for each thread that sends some.
//!
//! Invariant: a task sent to the kernel sits in a slot of its ring, buffers and device included,
//! until its completion has been seen. A ring with overdue tasks leaves its thread for the attic,
//! where it waits for them; it is never closed before.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;

use crate::patience::Wait;
use crate::plan::Run;
use crate::stall::Overdue;
use crate::write::{Flush, WriteRun};
use crate::{Device, DeviceError};

/// Tasks in flight in one ring.
const DEPTH: u32 = 128;
/// Marks completions of cancel requests.
const CANCEL: u64 = u64::MAX;
/// Sendings of one task before a short answer counts as an error.
pub(crate) const ATTEMPTS: u32 = 4;
/// Time given to the kernel to take overdue tasks back.
const CANCEL_TIME: Duration = Duration::from_millis(2);

/// What the kernel is asked to do.
pub(crate) enum Task {
    Read(Run),
    Write(WriteRun),
    Flush(Flush),
}

/// Tasks that wait for a free slot.
pub(crate) type Waiting = VecDeque<Task>;

/// What to do with tasks that are done.
pub(crate) trait Driver {
    /// There is something to do while the first tasks are in flight.
    fn is_busy(&self) -> bool;
    /// Called once, while the first tasks are in flight, if there is.
    fn meanwhile(&mut self);
    /// A task goes to the kernel now, or as soon as there is room for it.
    fn sent(&mut self, task: &Task);
    /// A task was answered as the kernel answers system calls: hand out the answer, or put what is
    /// to be tried again into `again`.
    fn complete(&mut self, task: Task, result: i32, again: &mut Waiting);
    /// A task could not be sent.
    fn fail(&mut self, task: Task, error: &DeviceError);
    /// Operation `index` of the batch was done well.
    fn is_done(&self, index: usize) -> bool;
}

impl Task {
    fn device(&self) -> &Arc<dyn Device> {
        match self {
            Self::Read(run) => &run.device,
            Self::Write(run) => &run.device,
            Self::Flush(flush) => &flush.device,
        }
    }

    /// The kernel's form of it, and the vectors that form points to.
    fn entry(&mut self) -> (squeue::Entry, Box<[libc::iovec]>) {
        match self {
            Self::Read(run) => {
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
                    .build();
                (entry, vectors)
            }
            Self::Write(run) => {
                run.prepare();
                let vectors: Box<[libc::iovec]> = run
                    .slices()
                    .map(|bytes| libc::iovec {
                        iov_base: bytes.as_ptr().cast_mut().cast(),
                        iov_len: bytes.len(),
                    })
                    .collect();
                let descriptor = types::Fd(run.descriptor);
                let flags = if run.durable { libc::RWF_DSYNC } else { 0 };
                let entry = opcode::Writev::new(descriptor, vectors.as_ptr(), vectors.len() as u32)
                    .offset(run.offset)
                    .rw_flags(flags)
                    .build();
                (entry, vectors)
            }
            Self::Flush(flush) => {
                let entry = opcode::Fsync::new(types::Fd(flush.descriptor))
                    .flags(types::FsyncFlags::DATASYNC)
                    .build();
                (entry, Box::default())
            }
        }
    }
}

/// A task in the kernel's hands, with the vector the kernel reads the addresses from.
struct Slot {
    task: Task,
    /// Address and length of each buffer; boxed, so it does not move.
    _vectors: Box<[libc::iovec]>,
    overdue: Option<Overdue>,
}

// SAFETY: the raw pointers in `_vectors` point into the heap buffers owned by `task`, which move
// along with the slot; nothing in user space reads through them.
unsafe impl Send for Slot {}

/// An io_uring with its tasks.
struct Ring {
    uring: IoUring,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
}

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// Rings with overdue tasks.
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

    /// Queues a task; gives it back if the ring is full.
    fn push(&mut self, mut task: Task) -> Result<(), Task> {
        let Some(index) = self.free.pop() else { return Err(task) };
        #[cfg(test)]
        tests::count(&task);
        let (entry, vectors) = task.entry();
        let entry = entry.user_data(index as u64);
        // SAFETY: the vectors and the buffers they point to are owned by the slot filled below and
        // stay there untouched until the completion for `index` has been seen. The descriptor is
        // open as long as the task's device lives, which the slot owns too.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        if pushed.is_err() {
            self.free.push(index);
            return Err(task);
        }
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(Slot { task, _vectors: vectors, overdue: None });
        }
        Ok(())
    }

    /// Sends what is queued and waits for one completion, at most for `wait`.
    fn submit_and_wait(&mut self, wait: Duration) -> io::Result<()> {
        #[cfg(test)]
        tests::count_call();
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

    /// Takes the completed tasks out of their slots.
    fn reap(&mut self, each: &mut dyn FnMut(Task, i32)) {
        for completion in self.uring.completion() {
            if completion.user_data() == CANCEL {
                continue;
            }
            let index = completion.user_data() as usize;
            let Some(slot) = self.slots.get_mut(index).and_then(Option::take) else { continue };
            self.free.push(index);
            if let Some(overdue) = slot.overdue
                && let Some(stall) = slot.task.device().stall()
            {
                stall.remove(overdue);
            }
            each(slot.task, completion.result());
        }
    }

    /// Asks the kernel to give up every task in flight.
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

    /// Has the kernel give up every task in flight, as far as it does so at once.
    fn take_back(&mut self, driver: &mut dyn Driver) {
        self.cancel();
        let patience = Instant::now() + CANCEL_TIME;
        while self.in_flight() > 0 {
            let left = patience.saturating_duration_since(Instant::now());
            if left.is_zero() || self.submit_and_wait(left).is_err() {
                return;
            }
            // Not tried again: late is late. What was taken back has no answer.
            let mut again = Waiting::new();
            self.reap(&mut |task, result| {
                if result != -libc::ECANCELED {
                    driver.complete(task, result, &mut again);
                }
            });
        }
    }

    /// Counts what is still in flight as overdue and leaves the ring to the attic. `early` if that was before the
    /// deadline.
    fn retire(mut self, early: bool) {
        if self.in_flight() == 0 {
            return;
        }
        for slot in self.slots.iter_mut().flatten() {
            if slot.overdue.is_none() {
                let is_read = matches!(slot.task, Task::Read(_));
                let overdue = if is_read && early { Overdue::Early } else { Overdue::Late };
                slot.overdue = Some(overdue);
                if let Some(stall) = slot.task.device().stall() {
                    stall.add(overdue);
                }
            }
        }
        ATTIC.lock().push(self);
    }
}

/// Looks whether overdue tasks have come back.
pub(crate) fn sweep() {
    if let Some(mut attic) = ATTIC.try_lock() {
        for ring in attic.iter_mut() {
            ring.reap(&mut |_, _| {});
        }
        attic.retain(|ring| ring.in_flight() > 0);
    }
}

/// What io_uring cannot do now, for the kernel has no thread for it, and what it has in its hands meanwhile.
pub(crate) struct Refused {
    pub(crate) tasks: Waiting,
    pub(crate) rest: Rest,
}

/// Tasks of a batch that is to go on. Dropped before that it leaves them to the attic.
#[derive(Default)]
pub(crate) struct Rest {
    ring: Option<Box<Ring>>,
    waiting: Waiting,
    refused: Waiting,
}

impl Drop for Rest {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.retire(false);
        }
    }
}

impl Rest {
    /// Takes the answers that have come, without waiting.
    pub(crate) fn look(&mut self, driver: &mut dyn Driver) {
        let Some(ring) = &mut self.ring else { return };
        reap(ring, &mut self.waiting, &mut self.refused, driver);
    }

    /// Goes on working through the batch, as [`drive`] does.
    pub(crate) fn go_on(
        mut self,
        waits: &Wait<'_>,
        driver: &mut dyn Driver,
    ) -> Result<(), Refused> {
        let Some(ring) = self.ring.take() else { return Ok(()) };
        let (waiting, refused) =
            (std::mem::take(&mut self.waiting), std::mem::take(&mut self.refused));
        drive_on(*ring, [waiting, refused], false, waits, driver)
    }
}

/// Works through `tasks` until all are done or whoever waits has waited enough. Gives back all of them if io_uring
/// is unavailable, and those that the kernel cannot do this way now, as soon as it says so: it has no thread for
/// them, or their device [holds up senders](Device::holds_up_senders), or who asks it. The batch goes on with the rest then.
pub(crate) fn drive(
    tasks: Waiting,
    waits: &Wait<'_>,
    driver: &mut dyn Driver,
) -> Result<(), Refused> {
    let all = |tasks| Err(Refused { tasks, rest: Rest::default() });
    if UNAVAILABLE.load(Ordering::Relaxed) {
        return all(tasks);
    }
    let ring = match RING.with_borrow_mut(Option::take).map_or_else(Ring::new, Ok) {
        Ok(ring) => ring,
        Err(error) => {
            // Out of descriptors or memory may pass; refused or unknown will not.
            if !matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) {
                UNAVAILABLE.store(true, Ordering::Relaxed);
            }
            return all(tasks);
        }
    };
    let busy = driver.is_busy();
    drive_on(ring, [tasks, Waiting::new()], busy, waits, driver)
}

fn reap(ring: &mut Ring, waiting: &mut Waiting, refused: &mut Waiting, driver: &mut dyn Driver) {
    ring.reap(&mut |task, result| match result == -libc::ECANCELED {
        // Nobody here has taken it back.
        true => refused.push_back(task),
        false => driver.complete(task, result, waiting),
    });
}

/// Whether handing this to the kernel may take as long as the device.
fn is_for_threads(task: &Task) -> bool {
    #[cfg(test)]
    if tests::is_refused(task) {
        return true;
    }
    task.device().holds_up_senders() || task.device().keeps_waiting()
}

/// `busy`: there is something to do when the first tasks are sent.
fn drive_on(
    mut ring: Ring,
    [mut waiting, mut refused]: [Waiting; 2],
    mut busy: bool,
    waits: &Wait<'_>,
    driver: &mut dyn Driver,
) -> Result<(), Refused> {
    loop {
        while let Some(task) = waiting.pop_front() {
            if is_for_threads(&task) {
                refused.push_back(task);
                continue;
            }
            driver.sent(&task);
            if let Err(task) = ring.push(task) {
                waiting.push_front(task);
                break;
            }
        }
        if ring.in_flight() == 0 {
            break;
        }
        // Sending and waiting is one call where nothing else is to be done.
        let wait = if busy || !refused.is_empty() { Duration::ZERO } else { waits.left() };
        if let Err(error) = ring.submit_and_wait(wait) {
            let error = DeviceError::from(error);
            for task in waiting.drain(..) {
                driver.fail(task, &error);
            }
            // What the kernel did not take stays in the ring; it must not be freed.
            std::mem::forget(ring);
            return none_of(refused);
        }
        reap(&mut ring, &mut waiting, &mut refused, driver);
        if busy {
            busy = false;
            driver.meanwhile();
        } else if ring.in_flight() > 0
            && (waits.is_over() || waits.will_do(&|index| driver.is_done(index)))
        {
            ring.take_back(driver);
            break;
        }
        if !refused.is_empty() && ring.in_flight() > 0 {
            // They wait for nobody who does not answer.
            let rest = Rest { ring: Some(Box::new(ring)), waiting, refused: Waiting::new() };
            return Err(Refused { tasks: refused, rest });
        }
    }
    if ring.in_flight() > 0 {
        ring.retire(!waits.is_over());
    } else {
        RING.set(Some(ring));
    }
    none_of(refused)
}

fn none_of(tasks: Waiting) -> Result<(), Refused> {
    if tasks.is_empty() { Ok(()) } else { Err(Refused { tasks, rest: Rest::default() }) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::Task;
    use crate::Device;

    thread_local! {
        /// Tasks of this device are refused here.
        static REFUSES: Cell<Option<*const ()>> = const { Cell::new(None) };
        /// Tasks this thread sent, and those of devices that hold up senders.
        static SENT: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
        /// Calls of the kernel by this thread.
        static CALLS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count(task: &Task) {
        let (all, held_up) = SENT.get();
        SENT.set((all + 1, held_up + usize::from(task.device().holds_up_senders())));
    }

    pub(super) fn count_call() {
        CALLS.set(CALLS.get() + 1);
    }

    pub(crate) fn calls() -> usize {
        CALLS.get()
    }

    pub(crate) fn sent() -> (usize, usize) {
        SENT.get()
    }

    fn address(device: &dyn Device) -> *const () {
        std::ptr::from_ref(device).cast()
    }

    /// From now on the kernel has no thread for what this thread wants of `device`.
    pub(crate) fn refuse(device: Option<&dyn Device>) {
        REFUSES.set(device.map(address));
    }

    pub(super) fn is_refused(task: &Task) -> bool {
        REFUSES.get().is_some_and(|refused| refused == address(&**task.device()))
    }
}
