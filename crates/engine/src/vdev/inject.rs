//! Faults on purpose: a device that fails, lies, loses or tears what it is written, or is slow, as somebody
//! asked for to see what comes of it.
//!
//! Invariant: nothing here happens unless it was asked for in this life of the pool, and then only to the
//! leaf it was asked for; without faults a leaf's device is used as it is.

use bytes::{Bytes, BytesMut};
use cenote_device::{Device, DeviceError, RawDevice, RawWriter, Stall};
use parking_lot::Mutex;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// All of the chances that [`DeviceFault::chance`] counts in.
pub const ALWAYS: u32 = 1_000_000;
/// Most bytes that are held until a flush.
const MOST_HELD: usize = 64 << 20;
/// How often who waits on purpose looks whether that was taken back.
const LOOK: Duration = Duration::from_millis(20);
/// The number of an error of input or output.
const EIO: i32 = 5;

/// What a device is asked when a fault may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultAt {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Whatever it is asked.
    Any,
}

/// What happens then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// It fails with EIO.
    Io,
    /// The device is gone (ENXIO), and cannot be opened either while everything fails so.
    Gone,
    /// Bytes that were read are not those that lie there.
    Garbage,
    /// One bit that was read is another.
    BitRead,
    /// One bit is written otherwise than it was given.
    BitWritten,
    /// Only the first part of what is written gets there.
    Torn,
    /// What is written does not get there, and nobody is told.
    Lost,
    /// What is written stays in a memory that a power loss empties, until a flush.
    Held,
    /// It takes so long, and only so many are at work at once.
    Slow(Duration, u32),
}

/// A fault that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFault {
    /// What the device is asked.
    pub at: FaultAt,
    /// What happens.
    pub kind: FaultKind,
    /// How often, of [`ALWAYS`] times.
    pub chance: u32,
    /// Only to what touches these bytes of the device.
    pub range: Option<Range<u64>>,
}

/// The faults of a leaf.
#[derive(Debug)]
pub(super) struct LeafFaults(pub(super) Vec<Arc<Rule>>);

/// A fault, and what becomes of it.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) id: u64,
    pub(super) fault: DeviceFault,
    happened: AtomicU64,
    state: AtomicU64,
    /// Until when those are busy that are at work at once.
    lanes: Mutex<Vec<Instant>>,
    /// What waits for a flush, in the order it was written.
    held: Mutex<Vec<(u64, Bytes)>>,
    /// It was taken back.
    is_over: AtomicBool,
}

impl Rule {
    pub(super) fn new(id: u64, fault: DeviceFault) -> Self {
        Self {
            id,
            fault,
            happened: AtomicU64::new(0),
            state: AtomicU64::new(id),
            lanes: Mutex::default(),
            held: Mutex::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// It was taken back: nobody waits for it any longer.
    pub(super) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// How often it happened.
    pub(super) fn happened(&self) -> u64 {
        self.happened.load(Relaxed)
    }

    /// The next number that depends on nothing but how many there were (splitmix64).
    fn number(&self) -> u64 {
        let mut z = self.state.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Whether it happens to this.
    fn happens(&self, at: FaultAt, offset: u64, len: u64) -> bool {
        let is_own = self.fault.at == FaultAt::Any || self.fault.at == at;
        let touches = self
            .fault
            .range
            .as_ref()
            .is_none_or(|range| range.start < offset.saturating_add(len) && offset < range.end);
        let happens =
            is_own && touches && self.number() % u64::from(ALWAYS) < u64::from(self.fault.chance);
        if happens {
            self.happened.fetch_add(1, Relaxed);
        }
        happens
    }

    /// Waits as long as a slow device takes.
    fn wait(&self, time: Duration, lanes: u32) {
        let end = {
            let now = Instant::now();
            let mut busy = self.lanes.lock();
            busy.resize(lanes.max(1) as usize, now);
            let Some(first) = busy.iter_mut().min() else { return };
            *first = now.max(*first) + time;
            *first
        };
        while !self.is_over.load(Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}

impl LeafFaults {
    /// A device that is gone whatever it is asked cannot be opened.
    pub(super) fn refuses_open(&self) -> bool {
        self.0.iter().any(|rule| {
            let DeviceFault { at, kind, chance, range } = &rule.fault;
            let is_whole = *at == FaultAt::Any && range.is_none();
            *kind == FaultKind::Gone && is_whole && *chance >= ALWAYS
        })
    }

    fn holding(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.0.iter().filter(|rule| rule.fault.kind == FaultKind::Held)
    }

    /// `device` with these faults.
    pub(super) fn around(self: &Arc<Self>, device: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(Faulty { device, faults: self.clone() })
    }
}

/// A device to which faults happen.
#[derive(Debug)]
struct Faulty {
    device: Arc<dyn Device>,
    faults: Arc<LeafFaults>,
}

impl Faulty {
    /// Writes what was held.
    fn let_go(&self, held: &mut Vec<(u64, Bytes)>) -> Result<(), DeviceError> {
        held.iter().try_for_each(|(offset, data)| self.device.write(*offset, data))?;
        held.clear();
        Ok(())
    }

    /// The faults that happen now; an error if one of them is that.
    fn now(&self, at: FaultAt, offset: u64, len: u64) -> Result<Vec<&Rule>, DeviceError> {
        let mut all = Vec::new();
        for rule in self.faults.0.iter().filter(|rule| rule.happens(at, offset, len)) {
            match rule.fault.kind {
                FaultKind::Io => {
                    let error = std::io::Error::from_raw_os_error(EIO);
                    return Err(error.into());
                }
                FaultKind::Gone => return Err(DeviceError::Gone),
                FaultKind::Slow(time, lanes) => rule.wait(time, lanes),
                _ => all.push(&**rule),
            }
        }
        Ok(all)
    }
}

/// Puts the part of `data`, which was written to `at`, into `bytes`, which lie at `offset`.
fn lay_over(bytes: &mut [u8], offset: u64, at: u64, data: &[u8]) {
    let skip = |from: u64, to: u64| usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
    let (into, from) = (skip(offset, at), skip(at, offset));
    let room = bytes.get_mut(into..).unwrap_or_default();
    let data = data.get(from..).unwrap_or_default();
    let count = room.len().min(data.len());
    if let (Some(room), Some(data)) = (room.get_mut(..count), data.get(..count)) {
        room.copy_from_slice(data);
    }
}

/// One bit of `bytes` becomes another.
fn flip(bytes: &mut [u8], number: u64) {
    let length = bytes.len().max(1) as u64;
    let place = usize::try_from(number % length).unwrap_or(0);
    if let Some(byte) = bytes.get_mut(place) {
        *byte ^= 1 << (number >> 32 & 7);
    }
}

impl Device for Faulty {
    fn path(&self) -> PathBuf {
        self.device.path()
    }

    fn size(&self) -> u64 {
        self.device.size()
    }

    fn sector_size(&self) -> u32 {
        self.device.sector_size()
    }

    fn physical_sector_size(&self) -> u32 {
        self.device.physical_sector_size()
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        let rules = self.now(FaultAt::Read, offset, len as u64)?;
        let bytes = self.device.read(offset, len)?;
        let holds: Vec<&Arc<Rule>> = self.faults.holding().collect();
        if rules.is_empty() && holds.is_empty() {
            return Ok(bytes);
        }
        let mut bytes = BytesMut::from(&bytes[..]);
        for (at, data) in holds.iter().flat_map(|rule| rule.held.lock().clone()) {
            lay_over(&mut bytes, offset, at, &data);
        }
        for rule in rules {
            let number = rule.number();
            match rule.fault.kind {
                FaultKind::Garbage => {
                    bytes.iter_mut().for_each(|byte| *byte ^= number.to_le_bytes()[0] | 1);
                }
                FaultKind::BitRead => flip(&mut bytes, number),
                _ => {}
            }
        }
        Ok(bytes.freeze())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let rules = self.now(FaultAt::Write, offset, data.len() as u64)?;
        let mut changed = std::borrow::Cow::Borrowed(data);
        for rule in rules {
            match rule.fault.kind {
                FaultKind::Lost => return Ok(()),
                FaultKind::Torn => {
                    let half = (changed.len() / 2).next_multiple_of(512).min(changed.len());
                    changed.to_mut().truncate(half);
                }
                FaultKind::BitWritten => flip(changed.to_mut(), rule.number()),
                FaultKind::Held => {
                    let mut held = rule.held.lock();
                    held.push((offset, Bytes::copy_from_slice(&changed)));
                    let all: usize = held.iter().map(|(_, data)| data.len()).sum();
                    // A real one has no more room either, and writes the oldest.
                    return if all > MOST_HELD { self.let_go(&mut held) } else { Ok(()) };
                }
                _ => {}
            }
        }
        self.device.write(offset, &changed)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.now(FaultAt::Flush, 0, 0)?;
        self.faults.holding().try_for_each(|rule| self.let_go(&mut rule.held.lock()))?;
        self.device.flush()
    }

    fn is_file(&self) -> bool {
        self.device.is_file()
    }

    fn is_deleted(&self) -> bool {
        self.device.is_deleted()
    }

    // Only for those who let threads do what takes long.
    fn raw(&self) -> Option<RawDevice> {
        self.device.raw().filter(|_| self.keeps_waiting())
    }

    fn raw_writer(&self) -> Option<RawWriter> {
        self.device.raw_writer().filter(|_| self.keeps_waiting())
    }

    fn keeps_waiting(&self) -> bool {
        self.faults.0.iter().any(|rule| matches!(rule.fault.kind, FaultKind::Slow(..)))
    }

    fn stall(&self) -> Option<&Stall> {
        self.device.stall()
    }

    fn measure(&self) -> u64 {
        self.device.measure()
    }

    fn can_trim(&self) -> bool {
        self.device.can_trim()
    }

    fn trim(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let rules = self.now(FaultAt::Write, offset, len)?;
        match rules.iter().any(|rule| matches!(rule.fault.kind, FaultKind::Lost)) {
            true => Ok(()),
            false => self.device.trim(offset, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_device::SimDevice;

    fn faulty(kind: FaultKind, at: FaultAt, chance: u32) -> (Arc<SimDevice>, Arc<dyn Device>) {
        let device = Arc::new(SimDevice::new("d", 1 << 20));
        let fault = DeviceFault { at, kind, chance, range: Some(4096..1 << 20) };
        let faults = Arc::new(LeafFaults(vec![Arc::new(Rule::new(1, fault))]));
        (device.clone(), faults.around(device))
    }

    #[test]
    fn devices_fail_lie_lose_and_tear_where_they_are_asked_to() {
        let (_, fails) = faulty(FaultKind::Io, FaultAt::Read, ALWAYS);
        assert!(fails.read(0, 512).is_ok() && fails.read(4000, 512).is_err());
        assert!(fails.write(8192, &[1; 512]).is_ok());
        let (below, lies) = faulty(FaultKind::BitWritten, FaultAt::Write, ALWAYS);
        lies.write(8192, &[0; 4096]).unwrap();
        let ones: u32 = below.read(8192, 4096).unwrap().iter().map(|byte| byte.count_ones()).sum();
        assert_eq!(ones, 1);
        let (below, tears) = faulty(FaultKind::Torn, FaultAt::Write, ALWAYS);
        tears.write(8192, &[7; 4096]).unwrap();
        let count = below.read(8192, 4096).unwrap().iter().filter(|byte| **byte == 7).count();
        assert_eq!(count, 2048);
        let (below, loses) = faulty(FaultKind::Lost, FaultAt::Any, ALWAYS);
        loses.write(8192, &[7; 512]).unwrap();
        assert_eq!(below.read(8192, 1).unwrap()[0], 0);
        let (_, garbage) = faulty(FaultKind::Garbage, FaultAt::Read, ALWAYS);
        assert_ne!(garbage.read(8192, 1).unwrap()[0], 0);
        let (_, slow) = faulty(FaultKind::Slow(Duration::from_millis(20), 1), FaultAt::Any, ALWAYS);
        let start = Instant::now();
        slow.read(8192, 512).unwrap();
        slow.read(8192, 512).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(40));
    }

    #[test]
    fn what_is_held_is_read_and_gets_there_with_a_flush() {
        let (below, holds) = faulty(FaultKind::Held, FaultAt::Write, ALWAYS);
        holds.write(8192, &[1; 4096]).unwrap();
        holds.write(9216, &[2; 512]).unwrap();
        let read = holds.read(7680, 8192).unwrap();
        let expected = [vec![0; 512], vec![1; 1024], vec![2; 512], vec![1; 2560], vec![0; 3584]];
        assert!(read[..] == expected.concat());
        assert_eq!(below.read(8192, 1).unwrap()[0], 0);
        holds.flush().unwrap();
        assert_eq!(below.read(9216, 1).unwrap()[0], 2);
    }

    #[test]
    fn some_of_all_fail() {
        let (_, fails) = faulty(FaultKind::Io, FaultAt::Read, ALWAYS / 10);
        let failed = (0..1000).filter(|_| fails.read(8192, 512).is_err()).count();
        assert!((50..150).contains(&failed), "{failed}");
    }
}
