//! Reads of many devices at once, with one deadline.
//!
//! Invariant: every operation gets exactly one answer, in order, no later than the deadline (plus
//! a few milliseconds), whatever the devices do.

use bytes::Bytes;

use crate::patience::{Patience, Wait};
use crate::plan::{Meanwhile, Results, Run, plan};
use crate::ring::{ATTEMPTS, Driver, Task, Waiting};
use crate::{Device, DeviceError, ReadOp, Stall, lanes, ring};

/// Most bytes one read may ask for (64 MiB).
pub const MAX_READ: usize = 64 << 20;

/// How real devices are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// io_uring, or threads where it is unavailable.
    Best,
    /// Threads.
    #[cfg(test)]
    Threads,
}

/// Reads everything in `ops` and answers in the same order. All reads are in flight together;
/// adjacent ones of a device go as one. Each answer has its own buffer.
///
/// An operation that has no answer in the end gets [`DeviceError::TimedOut`]; its device answers who would do
/// without it [`DeviceError::Stuck`] at once until the kernel has returned the operation, and after the deadline
/// everybody.
/// Ranges beyond the device's size get [`DeviceError::OutOfRange`]. Simulated devices are read on
/// the calling thread while real ones work.
pub fn read_batch<'a>(
    ops: Vec<ReadOp>,
    patience: impl Into<Patience<'a>>,
) -> Vec<Result<Bytes, DeviceError>> {
    read_batch_with(ops, patience.into(), Transport::Best)
}

/// [`read_batch`] through a chosen transport.
pub(crate) fn read_batch_with(
    ops: Vec<ReadOp>,
    patience: Patience<'_>,
    transport: Transport,
) -> Vec<Result<Bytes, DeviceError>> {
    let waits = Wait::begin(patience);
    let mut results = Results::new(ops.len());
    let mut real = Vec::new();
    let mut simulated = Vec::new();
    for (index, op) in ops.into_iter().enumerate() {
        if let Err(error) = check(&op, &patience) {
            results.set(index, Err(error));
        } else if op.len == 0 {
            results.set(index, Ok(Bytes::new()));
        } else if let Some(raw) = op.device.raw() {
            real.push((index, raw, op));
        } else {
            simulated.push((index, op));
        }
    }
    let busy = !simulated.is_empty();
    let mut meanwhile = |results: &mut Results| {
        for (index, op) in simulated.drain(..) {
            results.sent(index);
            results.set(index, op.device.read(op.offset, op.len));
        }
    };
    if real.is_empty() {
        meanwhile(&mut results);
        return results.finish(&waits);
    }
    let runs = plan(real, &mut results);
    let tasks = runs.into_iter().map(Task::Read).collect();
    let mut left = match transport {
        Transport::Best => {
            let meanwhile = busy.then_some(&mut meanwhile as _);
            let mut reads = Reads { meanwhile, out: &mut results };
            ring::drive(tasks, &waits, &mut reads)
        }
        #[cfg(test)]
        Transport::Threads => Err(ring::Refused { tasks, rest: ring::Rest::default() }),
    };
    while let Err(ring::Refused { tasks, mut rest }) = left {
        let runs = tasks.into_iter().filter_map(|task| match task {
            Task::Read(run) => Some(run),
            Task::Write(_) | Task::Flush(_) => None,
        });
        let mut during = |out: &mut Results| {
            meanwhile(out);
            rest.look(&mut Reads { meanwhile: None, out });
        };
        lanes::read(runs.collect(), &waits, &mut during, &mut results);
        left = rest.go_on(&waits, &mut Reads { meanwhile: None, out: &mut results });
    }
    meanwhile(&mut results);
    results.finish(&waits)
}

/// Reads in the ring's hands.
struct Reads<'a> {
    meanwhile: Meanwhile<'a, Bytes>,
    out: &'a mut Results,
}

impl Driver for Reads<'_> {
    fn is_busy(&self) -> bool {
        self.meanwhile.is_some()
    }

    fn meanwhile(&mut self) {
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile(self.out);
        }
    }

    fn sent(&mut self, task: &Task) {
        if let Task::Read(run) = task {
            run.parts.iter().for_each(|part| self.out.sent(part.index));
        }
    }

    fn complete(&mut self, task: Task, result: i32, again: &mut Waiting) {
        let Task::Read(run) = task else { return };
        complete(run, result, again, self.out);
    }

    fn fail(&mut self, task: Task, error: &DeviceError) {
        if let Task::Read(run) = task {
            run.fail(error, self.out);
        }
    }

    fn is_done(&self, index: usize) -> bool {
        self.out.is_done(index)
    }
}

/// What to do with a completed run: hand out its parts, or try again.
fn complete(run: Run, result: i32, again: &mut Waiting, out: &mut Results) {
    let mut retry = |run: Run| again.extend(run.split().into_iter().map(Task::Read));
    if result < 0 {
        let code = -result;
        let transient = matches!(code, libc::EINTR | libc::EAGAIN);
        // One bad place must not fail its neighbours: joined reads are tried again alone.
        if (run.parts.len() > 1 || transient) && run.attempts < ATTEMPTS {
            retry(run);
        } else {
            run.fail(&std::io::Error::from_raw_os_error(code).into(), out);
        }
    } else if (result as usize) < run.needed() {
        if run.parts.len() > 1 || (result > 0 && run.attempts < ATTEMPTS) {
            retry(run);
        } else {
            run.fail(&std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into(), out);
        }
    } else {
        run.finish(out);
    }
}

/// Whether `op` may be sent.
fn check(op: &ReadOp, patience: &Patience<'_>) -> Result<(), DeviceError> {
    in_range(op.offset, op.len, op.device.size())?;
    if op.len > MAX_READ {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput).into());
    }
    let is_patient = patience.early.is_none();
    // Who can do without it does not wait for it again.
    check_stall(&*op.device, if is_patient { Stall::late } else { Stall::count })
}

/// Whether the device has answered in time what `counts`.
pub(crate) fn check_stall(
    device: &dyn Device,
    counts: fn(&Stall) -> usize,
) -> Result<(), DeviceError> {
    let Some(stall) = device.stall() else { return Ok(()) };
    if stall.count() > 0 {
        ring::sweep();
    }
    match counts(stall) {
        0 => Ok(()),
        count => Err(DeviceError::Stuck(count)),
    }
}

/// Whether `offset` and `len` lie within a device of `size` bytes.
pub(crate) fn in_range(offset: u64, len: usize, size: u64) -> Result<(), DeviceError> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(DeviceError::OutOfRange { offset, len: len as u64, size }),
    }
}
