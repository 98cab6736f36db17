//! Blocking work with a deadline: a pool of threads that may be left behind in the kernel.
//!
//! Invariant: what a job uses it owns, so a caller that stops waiting frees nothing under it. A
//! job that has not started when its caller gives up never starts. Threads held up by a silent
//! device do not count against the pool, so other devices go on.

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::plan::{Results, Run};
use crate::{Device, DeviceError};

/// Threads that work at the same time, those held up not counted.
const THREADS: usize = 64;
/// Threads a batch uses for one device, so that a silent one leaves some for the others.
const LANES: usize = 4;
/// How long an idle thread stays.
const IDLE: Duration = Duration::from_secs(10);

/// Where a job is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Queued,
    Running,
    /// Running, and the caller has given up.
    Overdue,
    Done,
    /// Given up before it started.
    Dropped,
}

/// A job's stage and whom it holds up.
struct Ticket {
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
fn submit(
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
                if timed_out && queue.jobs.is_empty() {
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
            std::mem::replace(&mut *stage, Stage::Done) == Stage::Overdue
        };
        if overdue {
            if let Some(stall) = job.ticket.device.as_ref().and_then(|device| device.stall()) {
                stall.remove();
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
fn give_up(ticket: &Ticket) {
    let mut stage = ticket.stage.lock();
    match *stage {
        Stage::Queued => *stage = Stage::Dropped,
        Stage::Running => {
            *stage = Stage::Overdue;
            if let Some(stall) = ticket.device.as_ref().and_then(|device| device.stall()) {
                stall.add();
            }
            drop(stage);
            QUEUE.lock().get_or_insert_default().overdue += 1;
        }
        Stage::Overdue | Stage::Done | Stage::Dropped => {}
    }
}

/// Calls `work` on another thread and waits at most `deadline` for it.
pub(crate) fn call<T: Send + 'static>(
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
            give_up(&ticket);
            Err(DeviceError::TimedOut(deadline))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(std::io::Error::other("the I/O thread ended early").into())
        }
    }
}

/// Reads one run, part by part.
fn read_run(run: &mut Run) -> Vec<Result<(), DeviceError>> {
    let mut offset = run.offset;
    let descriptor = run.raw.descriptor;
    // SAFETY: the descriptor is open as long as `run.device` lives, and `run` is borrowed here.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    let mut answers = Vec::with_capacity(run.parts.len());
    for part in &mut run.parts {
        let start = offset;
        offset = offset.saturating_add(part.span as u64);
        let needed = part.skip + part.wanted;
        let span = part.span.min(part.buffer.as_slice().len());
        let target = part.buffer.as_mut_slice().get_mut(..span).unwrap_or_default();
        answers.push(read_part(descriptor, start, target, needed));
    }
    answers
}

/// Fills `target` from `start`; at least the first `needed` bytes.
fn read_part(
    descriptor: std::os::fd::BorrowedFd<'_>,
    start: u64,
    target: &mut [u8],
    needed: usize,
) -> Result<(), DeviceError> {
    let mut done = 0;
    while done < needed {
        let rest = target.get_mut(done..).unwrap_or_default();
        match rustix::io::pread(descriptor, rest, start.saturating_add(done as u64)) {
            Ok(0) => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            // Tests use pipes as devices that do not answer.
            #[cfg(test)]
            Err(rustix::io::Errno::SPIPE) => {
                done += rustix::io::read(descriptor, target.get_mut(done..).unwrap_or_default())
                    .map_err(std::io::Error::from)?
                    .max(1);
            }
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
    }
    Ok(())
}

/// Deals the runs of each device out to a few lanes, each to be read in order.
fn lanes(runs: Vec<Run>) -> Vec<Vec<Run>> {
    let mut devices: HashMap<RawFd, Vec<Vec<Run>>> = HashMap::new();
    for (turn, run) in runs.into_iter().enumerate() {
        let lanes = devices.entry(run.raw.descriptor).or_default();
        if lanes.len() < LANES {
            lanes.push(vec![run]);
        } else if let Some(lane) = lanes.get_mut(turn % LANES) {
            lane.push(run);
        }
    }
    devices.into_values().flatten().collect()
}

/// Reads `runs` on threads of the pool, with `meanwhile` called while they are on their way.
pub(crate) fn read(
    runs: Vec<Run>,
    until: Instant,
    meanwhile: &mut dyn FnMut(&mut Results),
    out: &mut Results,
) {
    let (sender, receiver) = mpsc::channel();
    let count = runs.len();
    let mut tickets = Vec::new();
    for lane in lanes(runs) {
        let sender = sender.clone();
        let Some(device) = lane.first().map(|run| run.device.clone()) else { continue };
        let indexes: Vec<usize> =
            lane.iter().flat_map(|run| run.parts.iter().map(|part| part.index)).collect();
        let submitted = submit(Some(device), move || {
            for mut run in lane {
                if Instant::now() > until {
                    return;
                }
                let answers = read_run(&mut run);
                // The receiver is gone if the caller gave up.
                let _ = sender.send((run, answers));
            }
        });
        match submitted {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => indexes.into_iter().for_each(|i| out.set(i, Err(error.clone()))),
        }
    }
    drop(sender);
    meanwhile(out);
    for _ in 0..count {
        let left = until.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left) {
            Ok((run, answers)) => {
                for (part, answer) in run.parts.into_iter().zip(answers) {
                    let (index, bytes) = part.finish();
                    out.set(index, answer.and(bytes));
                }
            }
            Err(_) => break,
        }
    }
    tickets.iter().for_each(|ticket| give_up(ticket));
}
