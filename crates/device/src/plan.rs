//! Turns the reads of a batch into runs: one system-level read each, adjacent reads joined.
//!
//! Invariant: every part of a run keeps a buffer of its own, so large results are handed out
//! without a copy, and a run's parts lie back to back on the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::patience::Wait;
use crate::{Device, DeviceError, RawDevice, ReadOp};

/// Most bytes in a joined run.
const MAX_RUN_BYTES: usize = 1 << 20;
/// Most parts in a run (the kernel takes up to 1024 vectors).
const MAX_RUN_PARTS: usize = 128;

/// One read of the batch inside a run.
pub(crate) struct Part {
    /// Index of the operation in the batch.
    pub index: usize,
    /// Where the data goes.
    pub buffer: Buffer,
    /// Bytes read because of rounding, before the ones asked for.
    pub skip: usize,
    /// Bytes asked for.
    pub wanted: usize,
    /// Bytes the device is asked for: rounded, at least `skip + wanted`.
    pub span: usize,
}

impl Part {
    /// The bytes asked for.
    pub(crate) fn finish(self) -> (usize, Result<bytes::Bytes, DeviceError>) {
        (self.index, Ok(self.buffer.into_bytes(self.skip, self.wanted)))
    }
}

/// One read the kernel is asked for.
pub(crate) struct Run {
    /// The device; kept so that its descriptor stays open.
    pub device: Arc<dyn Device>,
    /// Its descriptor and alignment.
    pub raw: RawDevice,
    /// First byte on the device.
    pub offset: u64,
    /// The reads it serves, in order.
    pub parts: Vec<Part>,
    /// How often it was sent before.
    pub attempts: u32,
}

impl Run {
    /// Bytes the device is asked for.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.span).sum()
    }

    /// Bytes that must come back for every part to be whole (rounding may reach past the end).
    pub(crate) fn needed(&self) -> usize {
        match self.parts.split_last() {
            Some((last, before)) => {
                before.iter().map(|part| part.span).sum::<usize>() + last.skip + last.wanted
            }
            None => 0,
        }
    }

    /// One run for each part, for trying again alone.
    pub(crate) fn split(self) -> Vec<Run> {
        let mut offset = self.offset;
        let mut runs = Vec::with_capacity(self.parts.len());
        for part in self.parts {
            let span = part.span as u64;
            runs.push(Run {
                device: self.device.clone(),
                raw: self.raw,
                offset,
                parts: vec![part],
                attempts: self.attempts + 1,
            });
            offset = offset.saturating_add(span);
        }
        runs
    }

    /// The same answer for every part.
    pub(crate) fn fail(self, error: &DeviceError, out: &mut Results) {
        for part in self.parts {
            out.set(part.index, Err(error.clone()));
        }
    }

    /// Hands out the parts.
    pub(crate) fn finish(self, out: &mut Results) {
        for part in self.parts {
            let (index, result) = part.finish();
            out.set(index, result);
        }
    }
}

/// What is to be done while operations of a batch are on their way, if anything.
pub(crate) type Meanwhile<'a, T> = Option<&'a mut dyn FnMut(&mut Results<T>)>;

/// Answers of a batch, filled in any order.
pub(crate) struct Results<T = bytes::Bytes> {
    answers: Vec<Option<Result<T, DeviceError>>>,
    /// When each was sent, and how long it took.
    times: Vec<(Option<Instant>, Duration)>,
}

impl<T> Results<T> {
    /// Room for `count` answers.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            answers: (0..count).map(|_| None).collect(),
            times: vec![(None, Duration::ZERO); count],
        }
    }

    /// Operation `index` goes to the device now.
    pub(crate) fn sent(&mut self, index: usize) {
        self.sent_at(index, Instant::now());
    }

    /// It went to the device then.
    pub(crate) fn sent_at(&mut self, index: usize, when: Instant) {
        if let Some((sent, _)) = self.times.get_mut(index) {
            *sent = Some(when);
        }
    }

    /// Records the answer of operation `index`.
    pub(crate) fn set(&mut self, index: usize, answer: Result<T, DeviceError>) {
        if let Some(slot) = self.answers.get_mut(index) {
            *slot = Some(answer);
        }
        if let Some((sent, took)) = self.times.get_mut(index) {
            *took = sent.map_or(Duration::ZERO, |sent| sent.elapsed());
        }
    }

    /// Operation `index` was done well.
    pub(crate) fn is_done(&self, index: usize) -> bool {
        matches!(self.answers.get(index), Some(Some(Ok(_))))
    }

    /// All answers in order; what has none was waited for as long as anybody does.
    pub(crate) fn finish(self, waits: &Wait<'_>) -> Vec<Result<T, DeviceError>> {
        let waited = waits.waited();
        let took =
            self.answers.iter().zip(&self.times).map(|(answer, (sent, took))| match answer {
                Some(_) => *took,
                None => sent.map_or(waited, |sent| sent.elapsed().min(waited)),
            });
        waits.tell(took.collect());
        let late = || Err(DeviceError::TimedOut(waited));
        self.answers.into_iter().map(|answer| answer.unwrap_or_else(late)).collect()
    }
}

/// Makes a part of `op`, rounded out to `alignment`; also the offset it starts at.
fn part(index: usize, op: &ReadOp, alignment: usize) -> Result<(u64, Part), DeviceError> {
    let alignment = alignment.max(1);
    let skip = (op.offset % alignment as u64) as usize;
    let span = (skip + op.len).next_multiple_of(alignment);
    let buffer = Buffer::new(span)
        .ok_or_else(|| DeviceError::from(std::io::Error::from(std::io::ErrorKind::OutOfMemory)))?;
    Ok((op.offset - skip as u64, Part { index, buffer, skip, wanted: op.len, span }))
}

/// Joins the reads of real devices into runs, in device order. Reads that cannot get memory are
/// answered in `out`.
pub(crate) fn plan(mut reads: Vec<(usize, RawDevice, ReadOp)>, out: &mut Results) -> Vec<Run> {
    reads.sort_by_key(|(_, raw, op)| (raw.descriptor, op.offset));
    let mut runs: Vec<Run> = Vec::new();
    for (index, raw, op) in reads {
        let (offset, part) = match part(index, &op, raw.alignment) {
            Ok(made) => made,
            Err(error) => {
                out.set(index, Err(error));
                continue;
            }
        };
        if let Some(run) = runs.last_mut() {
            let len = run.len();
            if run.raw.descriptor == raw.descriptor
                && run.offset.checked_add(len as u64) == Some(offset)
                && len + part.span <= MAX_RUN_BYTES
                && run.parts.len() < MAX_RUN_PARTS
            {
                run.parts.push(part);
                continue;
            }
        }
        runs.push(Run { device: op.device, raw, offset, parts: vec![part], attempts: 0 });
    }
    runs
}
