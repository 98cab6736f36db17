//! Batches without io_uring: reads, writes and flushes on threads, a few lanes for each device.
//!
//! Invariant: a silent device takes no more than its lanes; what a lane works on it owns until it
//! is done, whether or not the caller still waits.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::patience::Wait;
use crate::plan::{Results, Run};
use crate::ring::{Task, Waiting};
use crate::stall::Overdue;
use crate::threads::{give_up, submit};
use crate::write::{Flush, WriteRun};
use crate::{Device, DeviceError};

/// Threads a batch uses for one device, so that a silent one leaves some for the others.
const LANES: usize = 4;
/// Time between two looks at what is not done here.
const LOOK: Duration = Duration::from_millis(20);

/// Has the device itself read one run.
fn ask_for_run(run: &mut Run) -> Vec<Result<(), DeviceError>> {
    let read = run.device.read(run.offset, run.needed());
    let mut at = 0;
    let mut answers = Vec::with_capacity(run.parts.len());
    for part in &mut run.parts {
        let end = part.skip + part.wanted;
        answers.push(read.clone().and_then(|bytes| {
            let own = bytes.get(at..at + end);
            let own = own.zip(part.buffer.as_mut_slice().get_mut(..end));
            let short = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            own.map(|(from, to)| to.copy_from_slice(from)).ok_or_else(|| short().into())
        }));
        at += part.span;
    }
    answers
}

/// Reads one run, part by part.
fn read_run(run: &mut Run) -> Vec<Result<(), DeviceError>> {
    if run.device.keeps_waiting() {
        return ask_for_run(run);
    }
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

/// Work of a batch.
trait Transfer: Send + 'static {
    /// What doing it gives.
    type Answer: Send + 'static;
    /// What it is when somebody does without it.
    const EARLY: Overdue;
    fn device(&self) -> &Arc<dyn Device>;
    /// Descriptor it uses; tells devices apart.
    fn descriptor(&self) -> RawFd;
    /// Operations of the batch it serves.
    fn indexes(&self) -> Vec<usize>;
    fn work(&mut self) -> Self::Answer;
}

impl Transfer for Run {
    type Answer = Vec<Result<(), DeviceError>>;
    const EARLY: Overdue = Overdue::Early;

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn descriptor(&self) -> RawFd {
        self.raw.descriptor
    }

    fn indexes(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.index).collect()
    }

    fn work(&mut self) -> Self::Answer {
        read_run(self)
    }
}

impl Transfer for WriteRun {
    type Answer = Result<(), DeviceError>;
    const EARLY: Overdue = Overdue::Late;

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    fn indexes(&self) -> Vec<usize> {
        WriteRun::indexes(self).collect()
    }

    fn work(&mut self) -> Self::Answer {
        self.prepare();
        let answer = write_run(self);
        if self.is_refused(&answer) {
            self.prepare();
            return write_run(self);
        }
        answer
    }
}

impl Transfer for Flush {
    type Answer = Result<(), DeviceError>;
    const EARLY: Overdue = Overdue::Late;

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    fn indexes(&self) -> Vec<usize> {
        vec![self.index]
    }

    fn work(&mut self) -> Self::Answer {
        flush(&self.device, self.descriptor)
    }
}

/// Flushes `descriptor`, which is `device`'s.
fn flush(device: &Arc<dyn Device>, descriptor: RawFd) -> Result<(), DeviceError> {
    if device.keeps_waiting() {
        return device.flush();
    }
    // SAFETY: the descriptor is open as long as the device lives, which is borrowed here.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    Ok(rustix::fs::fdatasync(descriptor).map_err(std::io::Error::from)?)
}

/// Writes one run, slice by slice.
fn write_run(run: &WriteRun) -> Result<(), DeviceError> {
    if run.device.keeps_waiting() {
        let all: Vec<u8> = run.slices().flatten().copied().collect();
        run.device.write(run.offset, &all)?;
        return if run.durable { run.device.flush() } else { Ok(()) };
    }
    // SAFETY: the descriptor is open as long as `run.device` lives, and `run` is borrowed here.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(run.descriptor) };
    let mut offset = run.offset;
    for bytes in run.slices() {
        write_all(descriptor, offset, bytes)?;
        offset = offset.saturating_add(bytes.len() as u64);
    }
    if run.durable { flush(&run.device, run.flushed_by()) } else { Ok(()) }
}

/// Writes all of `bytes` from `start` on.
fn write_all(
    descriptor: std::os::fd::BorrowedFd<'_>,
    start: u64,
    mut bytes: &[u8],
) -> Result<(), DeviceError> {
    let mut offset = start;
    while !bytes.is_empty() {
        match rustix::io::pwrite(descriptor, bytes, offset) {
            Ok(0) => return Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into()),
            Ok(count) => {
                bytes = bytes.get(count..).unwrap_or_default();
                offset = offset.saturating_add(count as u64);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
    }
    Ok(())
}

/// Deals the jobs of each device out to a few lanes, each to be done in order.
fn lanes<J: Transfer>(jobs: Vec<J>) -> Vec<Vec<J>> {
    let mut devices: HashMap<RawFd, Vec<Vec<J>>> = HashMap::new();
    for (turn, job) in jobs.into_iter().enumerate() {
        let lanes = devices.entry(job.descriptor()).or_default();
        if lanes.len() < LANES {
            lanes.push(vec![job]);
        } else if let Some(lane) = lanes.get_mut(turn % LANES) {
            lane.push(job);
        }
    }
    devices.into_values().flatten().collect()
}

/// Does `jobs` on threads of the pool, with `meanwhile` called now and again while they are on their way.
fn work<J: Transfer, T>(
    jobs: Vec<J>,
    waits: &Wait<'_>,
    meanwhile: &mut dyn FnMut(&mut Results<T>),
    out: &mut Results<T>,
    finish: impl Fn(J, J::Answer, &mut Results<T>),
) {
    let (sender, receiver) = mpsc::channel();
    let mut missing = jobs.len();
    let mut tickets = Vec::new();
    for lane in lanes(jobs) {
        let sender = sender.clone();
        let Some(device) = lane.first().map(|job| job.device().clone()) else { continue };
        let indexes: Vec<usize> = lane.iter().flat_map(Transfer::indexes).collect();
        let until = waits.until;
        let submitted = submit(Some(device), move || {
            for mut job in lane {
                let begun = Instant::now();
                if begun > until {
                    return;
                }
                let answer = job.work();
                // The receiver is gone if the caller gave up.
                let _ = sender.send((job, begun, answer));
            }
        });
        match submitted {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => indexes.into_iter().for_each(|i| out.set(i, Err(error.clone()))),
        }
    }
    drop(sender);
    meanwhile(out);
    while missing > 0 {
        match receiver.recv_timeout(waits.left().min(LOOK)) {
            Ok((job, begun, answer)) => {
                job.indexes().into_iter().for_each(|index| out.sent_at(index, begun));
                finish(job, answer, out);
                missing -= 1;
            }
            Err(RecvTimeoutError::Timeout) if !waits.is_over() => meanwhile(out),
            Err(_) => break,
        }
        if missing > 0 && waits.will_do(&|index| out.is_done(index)) {
            break;
        }
    }
    // Lanes that have answered everything are as good as done.
    if missing > 0 {
        let overdue = if waits.is_over() { Overdue::Late } else { J::EARLY };
        tickets.iter().for_each(|ticket| give_up(ticket, overdue));
    }
}

/// Reads `runs` on threads of the pool, with `meanwhile` called while they are on their way.
pub(crate) fn read(
    runs: Vec<Run>,
    waits: &Wait<'_>,
    meanwhile: &mut dyn FnMut(&mut Results),
    out: &mut Results,
) {
    work(runs, waits, meanwhile, out, |run, answers, out| {
        for (part, answer) in run.parts.into_iter().zip(answers) {
            let (index, bytes) = part.finish();
            out.set(index, answer.and(bytes));
        }
    });
}

/// Writes and flushes on threads of the pool, with `meanwhile` called while they are on their way.
/// A joined write that fails fails as a whole.
pub(crate) fn write(
    tasks: Waiting,
    waits: &Wait<'_>,
    meanwhile: &mut dyn FnMut(&mut Results<()>),
    out: &mut Results<()>,
) {
    let (mut runs, mut flushes) = (Vec::new(), Vec::new());
    for task in tasks {
        match task {
            Task::Write(run) => runs.push(run),
            Task::Flush(flush) => flushes.push(flush),
            Task::Read(_) => {}
        }
    }
    work(runs, waits, meanwhile, out, |run, answer, out| run.answer(&answer, out));
    work(flushes, waits, meanwhile, out, |flush, answer, out| out.set(flush.index, answer));
}
