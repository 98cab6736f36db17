//! Blocking work with a deadline: a pool of threads that may be left behind in the kernel.
//!
//! Invariant: what a job uses it owns, so a caller that stops waiting frees nothing under it. A
//! job that has not started when its caller gives up never starts. Threads held up by a silent
//! device do not count against the pool, so other devices go on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::stall::Overdue;
use crate::{Device, DeviceError};

/// Threads that work at the same time, those held up not counted.
const THREADS: usize = 64;
/// How long an idle thread stays, if there are others.
const IDLE: Duration = Duration::from_secs(10);

/// Where a job is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Queued,
    Running,
    /// Running, and the caller has given up.
    Overdue(Overdue),
    Done,
    /// Given up before it started.
    Dropped,
}

/// A job's stage and whom it holds up.
pub(crate) struct Ticket {
    stage: Mutex<Stage>,
    device: Option<Arc<dyn Device>>,
}

struct Job {
    ticket: Arc<Ticket>,
    work: Box<dyn FnOnce() + Send>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    overdue: usize,
}

static QUEUE: Mutex<Option<Queue>> = Mutex::new(None);
static WAKE: Condvar = Condvar::new();

/// Queues a job and makes sure a thread will take it.
pub(crate) fn submit(
    device: Option<Arc<dyn Device>>,
    work: impl FnOnce() + Send + 'static,
) -> Result<Arc<Ticket>, DeviceError> {
    let ticket = Arc::new(Ticket { stage: Mutex::new(Stage::Queued), device });
    let mut guard = QUEUE.lock();
    let queue = guard.get_or_insert_default();
    queue.jobs.push_back(Job { ticket: ticket.clone(), work: Box::new(work) });
    if queue.idle < queue.jobs.len() && queue.threads < THREADS + queue.overdue {
        let spawned = std::thread::Builder::new().name("device".into()).spawn(worker);
        match spawned {
            Ok(_) => queue.threads += 1,
            Err(error) if queue.threads == queue.overdue => {
                queue.jobs.pop_back();
                return Err(error.into());
            }
            Err(_) => {}
        }
    }
    WAKE.notify_one();
    Ok(ticket)
}

fn worker() {
    loop {
        let job = {
            let mut guard = QUEUE.lock();
            loop {
                let queue = guard.get_or_insert_default();
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                queue.idle += 1;
                let timed_out = WAKE.wait_for(&mut guard, IDLE).timed_out();
                let queue = guard.get_or_insert_default();
                queue.idle -= 1;
                // The last one stays: another might not come where threads are short.
                if timed_out && queue.jobs.is_empty() && queue.threads > queue.overdue + 1 {
                    queue.threads -= 1;
                    return;
                }
            }
        };
        {
            let mut stage = job.ticket.stage.lock();
            if *stage != Stage::Queued {
                continue;
            }
            *stage = Stage::Running;
        }
        (job.work)();
        let overdue = {
            let mut stage = job.ticket.stage.lock();
            std::mem::replace(&mut *stage, Stage::Done)
        };
        if let Stage::Overdue(overdue) = overdue {
            if let Some(stall) = job.ticket.device.as_ref().and_then(|device| device.stall()) {
                stall.remove(overdue);
            }
            let mut guard = QUEUE.lock();
            let queue = guard.get_or_insert_default();
            queue.overdue -= 1;
            if queue.threads > THREADS + queue.overdue {
                queue.threads -= 1;
                return;
            }
        }
    }
}

/// The caller stops waiting for a job.
pub(crate) fn give_up(ticket: &Ticket, overdue: Overdue) {
    let mut stage = ticket.stage.lock();
    match *stage {
        Stage::Queued => *stage = Stage::Dropped,
        Stage::Running => {
            *stage = Stage::Overdue(overdue);
            if let Some(stall) = ticket.device.as_ref().and_then(|device| device.stall()) {
                stall.add(overdue);
            }
            drop(stage);
            QUEUE.lock().get_or_insert_default().overdue += 1;
        }
        Stage::Overdue(_) | Stage::Done | Stage::Dropped => {}
    }
}

/// Calls `work`, which changes no device, on another thread and waits at most `deadline` for it.
pub(crate) fn call<T: Send + 'static>(
    deadline: Duration,
    work: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
) -> Result<T, DeviceError> {
    call_for(None, deadline, work)
}

/// The same of what may change `device`: until it has ended, nothing is sent beside it.
pub(crate) fn call_on<T: Send + 'static>(
    device: Arc<dyn Device>,
    deadline: Duration,
    work: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
) -> Result<T, DeviceError> {
    call_for(Some(device), deadline, work)
}

fn call_for<T: Send + 'static>(
    device: Option<Arc<dyn Device>>,
    deadline: Duration,
    work: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
) -> Result<T, DeviceError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let ticket = submit(device, move || {
        // The receiver may be gone: the caller gave up.
        let _ = sender.send(work());
    })?;
    match receiver.recv_timeout(deadline) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Timeout) => {
            give_up(&ticket, Overdue::Late);
            Err(DeviceError::TimedOut(deadline))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(std::io::Error::other("the I/O thread ended early").into())
        }
    }
}
