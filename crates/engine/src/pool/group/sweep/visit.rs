//! A portion of initializing or trimming.
//!
//! Chapter 08, sections 12 and 13. Invariant: a portion is small, and ends after the write or discard under way when
//! somebody needs the space it is about, or the device refuses one; free segments lie in metaslabs, metaslabs ascend on each device, and so does what is done.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cenote_device::DeviceError;
use cenote_format::Guid;

use super::run::{Run, State};
use super::{Key, LivePool, SweepKind};
use crate::ErrorKind;
use crate::alloc::Swept as Lent;
use crate::vdev::{DATA_START, LeafWrite, VdevTree};

/// What is written over free space, again and again.
const PATTERN: u64 = 0xdead_beef_dead_beee;
/// Bytes of one write.
const WRITE: usize = 1 << 20;
/// Bytes that are overwritten in one portion.
const WRITE_PORTION: u64 = 16 << 20;
/// Bytes that are given up in one portion.
const TRIM_PORTION: u64 = 512 << 20;
/// Most bytes given up at once.
const TRIM: u64 = 128 << 20;
/// A metaslab is lent for so long, and the time that one write or discard takes.
const LENT: Duration = Duration::from_millis(500);
/// Free segments of fewer bytes are not worth being given up.
const TRIM_LEAST: u64 = 32 << 10;
/// Longest pause for the sake of a rate.
const PAUSE: Duration = Duration::from_secs(1);

/// What was done with free space that was lent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Swept {
    pub(super) bytes: u64,
    /// Where the rest begins; `None`: all of it is done.
    pub(super) next: Option<u64>,
    /// The device did not take the last of it.
    pub(super) failed: bool,
}

/// What a portion did.
enum Done {
    /// So many bytes, up to this byte of the allocatable area; nothing is left of the vdev's space.
    Some { bytes: u64, end: u64, all: bool },
    /// Nothing: the device is away, or does not take it.
    Nothing,
}

impl LivePool {
    /// Does a portion of each run. False if nothing could be done.
    pub(super) fn sweep_portion(&self) -> bool {
        let active: Vec<(Key, Run)> = {
            let (mut runs, vdevs) = (self.sweeps.runs.lock(), self.vdevs());
            // What was recorded of a leaf went with it.
            runs.retain(|(leaf, _), _| vdevs.topology().find(*leaf).is_some());
            let all = runs.iter().filter(|(_, run)| run.state == State::Active);
            all.map(|(key, run)| (*key, *run)).collect()
        };
        let mut any = self.trim_by_itself();
        for (key, run) in active {
            if self.sweeps.worker.rests() || self.gate.suspension().is_some() {
                return false;
            }
            if self.is_faulted(key) {
                let mut runs = self.sweeps.runs.lock();
                if let Some(now) = runs.get_mut(&key).filter(|now| now.state == State::Active) {
                    *now = now.given_up();
                    self.sweeps.worker.mark();
                }
                continue;
            }
            let Done::Some { bytes, end, all } = self.sweep_some(key, run.done) else { continue };
            any = true;
            {
                let mut runs = self.sweeps.runs.lock();
                // An order may have come meanwhile.
                let now = runs.get_mut(&key).filter(|now| {
                    (now.state, now.done, now.time) == (State::Active, run.done, run.time)
                });
                let Some(now) = now else { continue };
                now.done = end.saturating_add(DATA_START);
                now.dirty = true;
                if all {
                    *now = now.ended();
                }
            }
            self.sweeps.worker.mark();
            if all {
                self.gate.want(self.gate.figures().open);
            }
            if let Some(pause) = pause(bytes, run.rate).filter(|_| !self.options.inline) {
                std::thread::sleep(pause);
            }
        }
        any
    }

    /// Somebody said that the leaf is faulty.
    fn is_faulted(&self, (leaf, _): Key) -> bool {
        self.vdevs().topology().find(leaf).is_some_and(|node| node.faulted)
    }

    /// Goes on with a leaf after byte `done` of its device.
    fn sweep_some(&self, (leaf, kind): Key, done: u64) -> Done {
        let vdevs = self.vdevs();
        let Some(top) = vdevs.topology().top_of(leaf).filter(|_| vdevs.is_written_to(leaf)) else {
            return Done::Nothing;
        };
        let after = done.saturating_sub(DATA_START);
        let slabs = self.allocator.metaslabs(top);
        for (index, slab) in slabs.iter().enumerate() {
            let Some((_, end)) = vdevs.on_leaf(leaf, *slab) else { return Done::Nothing };
            if end <= after {
                continue;
            }
            let swept = self.sweep_metaslab(&vdevs, (leaf, kind), top, index, after);
            let Some(Swept { bytes, next, .. }) = swept else { return Done::Nothing };
            let all = next.is_none() && index.saturating_add(1) == slabs.len();
            return Done::Some { bytes, end: next.unwrap_or(end), all };
        }
        Done::Some { bytes: 0, end: after, all: true }
    }

    /// Does what is free of a metaslab, as far as a portion goes. `None`: nothing could be done now.
    fn sweep_metaslab(
        &self,
        vdevs: &VdevTree,
        key: Key,
        top: u32,
        index: usize,
        after: u64,
    ) -> Option<Swept> {
        match self.allocator.sweep(top, index) {
            Ok(lent) => self.sweep_lent(vdevs, key, &lent, after),
            Err(error) if error.kind() == ErrorKind::Busy => None,
            Err(error) => {
                tracing::warn!(vdev = top, metaslab = index, %error, "free space is left as it is");
                Some(Swept::default())
            }
        }
    }

    /// Does free space that is lent, from byte `after` of the leaf's allocatable area on, until there was enough for a
    /// portion, somebody needs the space, or the device does not take it. `None`: the leaf has no such space, or is away.
    pub(super) fn sweep_lent(
        &self,
        vdevs: &VdevTree,
        (leaf, kind): Key,
        lent: &Lent<'_>,
        after: u64,
    ) -> Option<Swept> {
        let (portion, most) = match kind {
            SweepKind::Initialize => (WRITE_PORTION, WRITE_PORTION),
            SweepKind::Trim => (TRIM_PORTION, TRIM),
        };
        // Where everything is to come out the same each time, the clock decides nothing.
        let longest = if self.options.inline { Duration::MAX } else { LENT };
        let started = Instant::now();
        let mut bytes = 0_u64;
        for segment in lent.free() {
            let (start, end) = vdevs.on_leaf(leaf, *segment)?;
            let mut at = start.max(after);
            if kind == SweepKind::Trim && end.saturating_sub(at) < TRIM_LEAST {
                continue;
            }
            while at < end {
                let is_enough =
                    bytes >= portion || started.elapsed() >= longest || lent.is_wanted();
                if bytes > 0 && is_enough {
                    return Some(Swept { bytes, next: Some(at), failed: false });
                }
                let length = (end - at).min(most).min(portion - bytes);
                let sent = match kind {
                    SweepKind::Initialize => overwrite(vdevs, leaf, at, length),
                    SweepKind::Trim => give_up(vdevs, leaf, at, length),
                };
                at = at.saturating_add(length);
                bytes = bytes.saturating_add(length);
                if let Err(error) = sent {
                    tracing::warn!(leaf = leaf.0, at, %error, "free space is left as it is");
                    let swept = Swept { bytes, next: Some(at), failed: true };
                    return vdevs.is_written_to(leaf).then_some(swept);
                }
            }
        }
        Some(Swept { bytes, ..Swept::default() })
    }
}

/// How long it takes to do so many bytes.
fn pause(bytes: u64, rate: u64) -> Option<Duration> {
    let micros = bytes.saturating_mul(1_000_000).checked_div(rate)?;
    Some(Duration::from_micros(micros).min(PAUSE))
}

fn overwrite(vdevs: &VdevTree, leaf: Guid, start: u64, length: u64) -> Result<(), DeviceError> {
    let block = Bytes::from(PATTERN.to_ne_bytes().repeat(WRITE / 8));
    let mut writes = Vec::new();
    let (mut at, end) = (start, start.saturating_add(length));
    while at < end {
        let size = usize::try_from(end - at).unwrap_or(WRITE).min(WRITE);
        let offset = at.saturating_add(DATA_START);
        writes.push(LeafWrite { leaf, offset, data: block.slice(..size) });
        at = at.saturating_add(size as u64);
    }
    vdevs.write_leaves(writes, false).into_iter().collect()
}

/// Gives up a range of a leaf's allocatable area.
fn give_up(vdevs: &VdevTree, leaf: Guid, start: u64, length: u64) -> Result<(), DeviceError> {
    let device = vdevs.device_of(leaf).ok_or(DeviceError::Gone)?;
    device.trim(start.saturating_add(DATA_START), length)
}
