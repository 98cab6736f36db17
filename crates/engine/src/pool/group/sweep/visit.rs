//! A portion of initializing or trimming.
//!
//! Chapter 08, sections 12 and 13. Invariant: a portion is small, so that nobody waits long for the space it is
//! about; free segments lie in metaslabs, metaslabs ascend on each device, and so does what is done.

use std::time::Duration;

use bytes::Bytes;
use cenote_device::DeviceError;
use cenote_format::Guid;

use super::run::{Run, State};
use super::{Key, LivePool, SweepKind};
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
/// Free segments of fewer bytes are not worth being given up.
pub(super) const TRIM_LEAST: u64 = 32 << 10;
/// Longest pause for the sake of a rate.
const PAUSE: Duration = Duration::from_secs(1);

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
            let Some((bytes, reached)) =
                self.sweep_metaslab(&vdevs, (leaf, kind), top, index, after)
            else {
                return Done::Nothing;
            };
            let is_whole = reached.is_none();
            let all = is_whole && index.saturating_add(1) == slabs.len();
            return Done::Some { bytes, end: reached.unwrap_or(end), all };
        }
        Done::Some { bytes: 0, end: after, all: true }
    }

    /// Does what is free of a metaslab, as far as a portion goes: the bytes done, and where the next portion goes
    /// on in it. `None`: the device did not take it.
    fn sweep_metaslab(
        &self,
        vdevs: &VdevTree,
        (leaf, kind): Key,
        top: u32,
        index: usize,
        after: u64,
    ) -> Option<(u64, Option<u64>)> {
        let swept = match self.allocator.sweep(top, index) {
            Ok(swept) => swept,
            Err(error) => {
                tracing::warn!(vdev = top, metaslab = index, %error, "free space is left as it is");
                return Some((0, None));
            }
        };
        let portion = match kind {
            SweepKind::Initialize => WRITE_PORTION,
            SweepKind::Trim => TRIM_PORTION,
        };
        let mut bytes = 0;
        for segment in swept.free() {
            let (start, end) = vdevs.on_leaf(leaf, *segment)?;
            let start = start.max(after);
            if start >= end || kind == SweepKind::Trim && end - start < TRIM_LEAST {
                continue;
            }
            let length = (end - start).min(portion.saturating_sub(bytes));
            if length == 0 {
                return Some((bytes, Some(start)));
            }
            let sent = match kind {
                SweepKind::Initialize => overwrite(vdevs, leaf, start, length),
                SweepKind::Trim => give_up(vdevs, leaf, start, length),
            };
            if let Err(error) = sent {
                tracing::warn!(leaf = leaf.0, start, %error, "free space is left as it is");
                if !vdevs.is_written_to(leaf) {
                    return None;
                }
            }
            bytes = bytes.saturating_add(length);
            if length < end - start {
                return Some((bytes, Some(start.saturating_add(length))));
            }
        }
        Some((bytes, None))
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
pub(super) fn give_up(
    vdevs: &VdevTree,
    leaf: Guid,
    start: u64,
    length: u64,
) -> Result<(), DeviceError> {
    let device = vdevs.device_of(leaf).ok_or(DeviceError::Gone)?;
    let (mut at, end) = (start, start.saturating_add(length));
    while at < end {
        let size = (end - at).min(TRIM);
        device.trim(at.saturating_add(DATA_START), size)?;
        at = at.saturating_add(size);
    }
    Ok(())
}
