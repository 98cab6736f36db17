//! Writes and flushes of many devices at once, with one deadline.
//!
//! Invariant: every operation gets exactly one answer, in order, no later than the deadline (plus
//! a few milliseconds). What the kernel may still read from stays owned here until the kernel has
//! let go of it. A write answered with an error may have happened, in whole, in part or not at all,
//! and one that timed out may still happen; the device takes nothing new before that is settled.

use std::os::fd::RawFd;
use std::sync::Arc;

use bytes::Bytes;

use crate::batch::{Transport, check_stall, in_range};
use crate::buffer::Buffer;
use crate::patience::{Patience, Wait};
use crate::plan::{Meanwhile, Results};
use crate::ring::{ATTEMPTS, Driver, Task, Waiting};
use crate::{Device, DeviceError, RawWriter, Stall, WriteOp, lanes, ring};

/// Most bytes in a joined write.
const MAX_RUN_BYTES: usize = 1 << 20;
/// Most parts in a joined write (the kernel takes up to 1024 vectors).
const MAX_RUN_PARTS: usize = 512;

/// Writes everything in `ops` and answers in the same order. All writes are in flight together, in
/// no order: those of one batch must not overlap. Neighbours on a device go as one.
///
/// What was written is durable after [`flush_batch`]. Errors are those of
/// [`read_batch`](crate::read_batch), and [`DeviceError::ReadOnly`]. Simulated devices are written
/// on the calling thread while real ones work.
pub fn write_batch<'a>(
    ops: Vec<WriteOp>,
    patience: impl Into<Patience<'a>>,
) -> Vec<Result<(), DeviceError>> {
    write_batch_with(ops, patience.into(), Transport::Best)
}

/// As [`write_batch`], and what it calls written is durable, without waiting for what others write
/// to the same devices. For few writes: each is made durable for itself.
pub fn write_durable<'a>(
    ops: Vec<WriteOp>,
    patience: impl Into<Patience<'a>>,
) -> Vec<Result<(), DeviceError>> {
    send(ops, true, patience.into(), Transport::Best)
}

/// [`write_batch`] through a chosen transport.
pub(crate) fn write_batch_with(
    ops: Vec<WriteOp>,
    patience: Patience<'_>,
    transport: Transport,
) -> Vec<Result<(), DeviceError>> {
    send(ops, false, patience, transport)
}

/// Both of them, through a chosen transport.
pub(crate) fn send(
    ops: Vec<WriteOp>,
    durable: bool,
    patience: Patience<'_>,
    transport: Transport,
) -> Vec<Result<(), DeviceError>> {
    let waits = Wait::begin(patience);
    let mut results = Results::new(ops.len());
    let mut real = Vec::new();
    let mut simulated = Vec::new();
    for (index, op) in ops.into_iter().enumerate() {
        let checked = in_range(op.offset, op.data.len(), op.device.size())
            .and_then(|()| check_stall(&*op.device, Stall::late));
        if let Err(error) = checked {
            results.set(index, Err(error));
        } else if op.data.is_empty() {
            results.set(index, Ok(()));
        } else if let Some(raw) = op.device.raw_writer() {
            real.push((index, raw, op));
        } else {
            simulated.push((index, op));
        }
    }
    let tasks = plan(real, durable).into_iter().map(Task::Write).collect();
    let busy = !simulated.is_empty();
    let mut meanwhile = |results: &mut Results<()>| {
        for (index, op) in simulated.drain(..) {
            results.sent(index);
            let written = op.device.write(op.offset, &op.data);
            let flush = || if durable { op.device.flush() } else { Ok(()) };
            results.set(index, written.and_then(|()| flush()));
        }
    };
    carry_out(tasks, &waits, transport, busy, &mut meanwhile, &mut results);
    results.finish(&waits)
}

/// Makes what was written to `devices` durable, all of them together, and answers in the same
/// order. Covers writes that were answered before the call.
pub fn flush_batch<'a>(
    devices: &[Arc<dyn Device>],
    patience: impl Into<Patience<'a>>,
) -> Vec<Result<(), DeviceError>> {
    flush_batch_with(devices, patience.into(), Transport::Best)
}

/// [`flush_batch`] through a chosen transport.
pub(crate) fn flush_batch_with(
    devices: &[Arc<dyn Device>],
    patience: Patience<'_>,
    transport: Transport,
) -> Vec<Result<(), DeviceError>> {
    let waits = Wait::begin(patience);
    let mut results = Results::new(devices.len());
    let mut tasks = Waiting::new();
    let mut simulated = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        if let Err(error) = check_stall(&**device, Stall::late) {
            results.set(index, Err(error));
        } else if let Some(raw) = device.raw_writer() {
            let flush =
                Flush { device: device.clone(), descriptor: raw.buffered, index, attempts: 0 };
            tasks.push_back(Task::Flush(flush));
        } else {
            simulated.push((index, device));
        }
    }
    let busy = !simulated.is_empty();
    let mut meanwhile = |results: &mut Results<()>| {
        for (index, device) in simulated.drain(..) {
            results.sent(index);
            results.set(index, device.flush());
        }
    };
    carry_out(tasks, &waits, transport, busy, &mut meanwhile, &mut results);
    results.finish(&waits)
}

/// Works through `tasks`, with `meanwhile` called while they are on their way; `busy` if that has something to do.
fn carry_out(
    tasks: Waiting,
    waits: &Wait<'_>,
    transport: Transport,
    busy: bool,
    meanwhile: &mut dyn FnMut(&mut Results<()>),
    results: &mut Results<()>,
) {
    if !tasks.is_empty() {
        let mut left = match transport {
            Transport::Best => {
                let meanwhile = busy.then_some(&mut *meanwhile as _);
                ring::drive(tasks, waits, &mut Writes { meanwhile, out: &mut *results })
            }
            #[cfg(test)]
            Transport::Threads => Err(ring::Refused { tasks, rest: ring::Rest::default() }),
        };
        while let Err(ring::Refused { tasks, mut rest }) = left {
            let mut during = |out: &mut Results<()>| {
                meanwhile(out);
                rest.look(&mut Writes { meanwhile: None, out });
            };
            lanes::write(tasks, waits, &mut during, results);
            left = rest.go_on(waits, &mut Writes { meanwhile: None, out: &mut *results });
        }
    }
    meanwhile(results);
}

/// A flush of one device.
pub(crate) struct Flush {
    /// The device; kept so that its descriptor stays open.
    pub device: Arc<dyn Device>,
    /// What to flush.
    pub descriptor: RawFd,
    /// Index of the operation in the batch.
    pub index: usize,
    /// How often it was sent before.
    attempts: u32,
}

/// One write of the batch inside a run.
struct Part {
    /// Index of the operation in the batch.
    index: usize,
    data: Bytes,
}

/// One write the kernel is asked for.
pub(crate) struct WriteRun {
    /// The device; kept so that its descriptor stays open.
    pub device: Arc<dyn Device>,
    /// What to write to.
    pub descriptor: RawFd,
    /// First byte on the device.
    pub offset: u64,
    raw: RawWriter,
    /// What is written, in order, back to back.
    parts: Vec<Part>,
    /// A copy of the parts that starts where direct I/O wants it.
    copy: Option<Buffer>,
    /// It is answered when it is durable.
    pub durable: bool,
    attempts: u16,
}

impl WriteRun {
    /// Bytes written.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.data.len()).sum()
    }

    /// Chooses the descriptor, and copies the data if direct I/O cannot take it from where it is.
    /// To be called before [`WriteRun::slices`], as late as possible: copies cost memory.
    pub(crate) fn prepare(&mut self) {
        self.descriptor = self.raw.buffered;
        let Some(direct) = self.raw.direct else { return };
        let len = self.len();
        let alignment = direct.alignment.max(1);
        if !self.offset.is_multiple_of(alignment as u64) || !len.is_multiple_of(alignment) {
            return;
        }
        let memory = self.raw.memory_alignment.max(1);
        let fits = |part: &Part| {
            (part.data.as_ptr() as usize).is_multiple_of(memory)
                && part.data.len().is_multiple_of(alignment)
        };
        if self.copy.is_none() && !self.parts.iter().all(fits) {
            let Some(mut buffer) = Buffer::new(len) else { return };
            let mut rest = buffer.as_mut_slice();
            for part in &self.parts {
                let Some((target, after)) = rest.split_at_mut_checked(part.data.len()) else {
                    return;
                };
                target.copy_from_slice(&part.data);
                rest = after;
            }
            self.copy = Some(buffer);
        }
        self.descriptor = direct.descriptor;
    }

    /// The pieces of memory to write, in order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let direct = self.raw.direct.is_some_and(|direct| direct.descriptor == self.descriptor);
        let copied = self.copy.as_ref().filter(|_| direct);
        let copied = copied.and_then(|buffer| buffer.as_slice().get(..self.len()));
        let parts = if copied.is_some() { &[] } else { self.parts.as_slice() };
        copied.into_iter().chain(parts.iter().map(|part| part.data.as_ref()))
    }

    /// The descriptor whose flush makes this durable.
    pub(crate) fn flushed_by(&self) -> RawFd {
        self.raw.buffered
    }

    /// One run for each part, for trying again alone.
    fn split(self) -> impl Iterator<Item = Task> {
        let mut offset = self.offset;
        self.parts.into_iter().map(move |part| {
            let start = offset;
            offset = offset.saturating_add(part.data.len() as u64);
            Task::Write(WriteRun {
                device: self.device.clone(),
                descriptor: self.raw.buffered,
                offset: start,
                raw: self.raw,
                parts: vec![part],
                copy: None,
                durable: self.durable,
                attempts: self.attempts + 1,
            })
        })
    }

    /// The same answer for every part.
    pub(crate) fn answer(self, answer: &Result<(), DeviceError>, out: &mut Results<()>) {
        for part in self.parts {
            out.set(part.index, answer.clone());
        }
    }

    /// Indexes in the batch.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.index)
    }

    /// Sends the parts once more, each for itself, or answers them with `error`.
    fn try_again(mut self, error: std::io::Error, again: &mut Waiting, out: &mut Results<()>) {
        let transient = matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN) | None);
        let answer = Err(error.into());
        let refused = self.is_refused(&answer);
        // One bad place must not fail its neighbours: joined writes are tried again alone.
        if (self.parts.len() > 1 || transient || refused) && u32::from(self.attempts) < ATTEMPTS {
            again.extend(self.split());
        } else {
            self.answer(&answer, out);
        }
    }

    /// Whether direct I/O was refused although the alignment is right; from now on the data goes
    /// through the page cache.
    pub(crate) fn is_refused(&mut self, answer: &Result<(), DeviceError>) -> bool {
        let Err(DeviceError::Io(error)) = answer else { return false };
        let refused = error.raw_os_error() == Some(libc::EINVAL)
            && self.raw.direct.is_some_and(|direct| direct.descriptor == self.descriptor);
        if refused {
            self.raw.direct = None;
        }
        refused
    }
}

/// Joins the writes of real devices into runs, in device order.
fn plan(mut writes: Vec<(usize, RawWriter, WriteOp)>, durable: bool) -> Vec<WriteRun> {
    writes.sort_by_key(|(_, raw, op)| (raw.buffered, op.offset));
    let mut runs: Vec<WriteRun> = Vec::new();
    let mut len = 0;
    for (index, raw, op) in writes {
        let part = Part { index, data: op.data };
        let added = part.data.len();
        if let Some(run) = runs.last_mut()
            && run.raw.buffered == raw.buffered
            && run.offset.checked_add(len as u64) == Some(op.offset)
            && len + added <= MAX_RUN_BYTES
            && run.parts.len() < MAX_RUN_PARTS
        {
            run.parts.push(part);
            len += added;
            continue;
        }
        len = added;
        runs.push(WriteRun {
            device: op.device,
            descriptor: raw.buffered,
            offset: op.offset,
            raw,
            parts: vec![part],
            copy: None,
            durable,
            attempts: 0,
        });
    }
    runs
}

/// Writes and flushes in the ring's hands.
struct Writes<'a> {
    meanwhile: Meanwhile<'a, ()>,
    out: &'a mut Results<()>,
}

impl Driver for Writes<'_> {
    fn is_busy(&self) -> bool {
        self.meanwhile.is_some()
    }

    fn meanwhile(&mut self) {
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile(self.out);
        }
    }

    fn sent(&mut self, task: &Task) {
        match task {
            Task::Write(run) => run.indexes().for_each(|index| self.out.sent(index)),
            Task::Flush(flush) => self.out.sent(flush.index),
            Task::Read(_) => {}
        }
    }

    fn complete(&mut self, task: Task, result: i32, again: &mut Waiting) {
        let error = (result < 0).then(|| std::io::Error::from_raw_os_error(-result));
        match (task, error) {
            (Task::Write(run), Some(error)) => run.try_again(error, again, self.out),
            (Task::Write(run), None) if (result as usize) < run.len() => {
                run.try_again(std::io::ErrorKind::WriteZero.into(), again, self.out);
            }
            (Task::Write(run), None) => run.answer(&Ok(()), self.out),
            (Task::Flush(mut flush), Some(error))
                if error.raw_os_error() == Some(libc::EINTR) && flush.attempts < ATTEMPTS =>
            {
                flush.attempts += 1;
                again.push_back(Task::Flush(flush));
            }
            (Task::Flush(flush), Some(error)) => self.out.set(flush.index, Err(error.into())),
            (Task::Flush(flush), None) => self.out.set(flush.index, Ok(())),
            (Task::Read(_), _) => {}
        }
    }

    fn is_done(&self, index: usize) -> bool {
        self.out.is_done(index)
    }

    fn fail(&mut self, task: Task, error: &DeviceError) {
        match task {
            Task::Write(run) => run.answer(&Err(error.clone()), self.out),
            Task::Flush(flush) => self.out.set(flush.index, Err(error.clone())),
            Task::Read(_) => {}
        }
    }
}
