//! Reads of many devices at once, with one deadline.
//!
//! Invariant: every operation gets exactly one answer, in order, no later than the deadline (plus
//! a few milliseconds), whatever the devices do.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::plan::{Results, plan};
use crate::{DeviceError, ReadOp, ring, threads};

/// Deadline of single reads, writes and flushes.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);
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
/// An operation that has no answer after `deadline` gets [`DeviceError::TimedOut`]; its device
/// answers [`DeviceError::Stuck`] at once until the kernel has returned the operation.
/// Ranges beyond the device's size get [`DeviceError::OutOfRange`]. Simulated devices are read on
/// the calling thread while real ones work.
pub fn read_batch(ops: Vec<ReadOp>, deadline: Duration) -> Vec<Result<Bytes, DeviceError>> {
    read_batch_with(ops, deadline, Transport::Best)
}

/// [`read_batch`] through a chosen transport.
pub(crate) fn read_batch_with(
    ops: Vec<ReadOp>,
    deadline: Duration,
    transport: Transport,
) -> Vec<Result<Bytes, DeviceError>> {
    let now = Instant::now();
    let until = now.checked_add(deadline).unwrap_or(now + DEFAULT_DEADLINE);
    let mut results = Results::new(ops.len());
    let mut real = Vec::new();
    let mut simulated = Vec::new();
    for (index, op) in ops.into_iter().enumerate() {
        if let Err(error) = check(&op) {
            results.set(index, Err(error));
        } else if op.len == 0 {
            results.set(index, Ok(Bytes::new()));
        } else if let Some(raw) = op.device.raw() {
            real.push((index, raw, op));
        } else {
            simulated.push((index, op));
        }
    }
    let mut meanwhile = |results: &mut Results| {
        for (index, op) in simulated.drain(..) {
            results.set(index, op.device.read(op.offset, op.len));
        }
    };
    if real.is_empty() {
        meanwhile(&mut results);
        return results.finish(deadline);
    }
    let runs = plan(real, &mut results);
    let runs = match transport {
        Transport::Best => ring::read(runs, until, &mut meanwhile, &mut results).err(),
        #[cfg(test)]
        Transport::Threads => Some(runs),
    };
    if let Some(runs) = runs {
        threads::read(runs, until, &mut meanwhile, &mut results);
    }
    meanwhile(&mut results);
    results.finish(deadline)
}

/// Whether `op` may be sent.
fn check(op: &ReadOp) -> Result<(), DeviceError> {
    in_range(op.offset, op.len, op.device.size())?;
    if op.len > MAX_READ {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput).into());
    }
    let Some(stall) = op.device.stall() else { return Ok(()) };
    if stall.count() > 0 {
        ring::sweep();
    }
    match stall.count() {
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
