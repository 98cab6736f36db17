//! Simulated disks: bytes in memory, with faults on demand.
//!
//! Invariant: no call takes real time (a hung disk answers "timed out" at once, as if the deadline
//! had passed), except for the delay asked for with [`SimDevice::set_delay`] and reads that are held
//! ([`SimDevice::hold_reads`]).

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::batch::{MAX_READ, in_range};
use crate::patience::DEFAULT_DEADLINE;
use crate::sim_store::{Replaced, Store};
use crate::{Device, DeviceError};

/// How the whole disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// It works.
    #[default]
    Well,
    /// Every read fails with EIO.
    FailsReads,
    /// Every write and flush fails with EIO.
    FailsWrites,
    /// It does not answer.
    Hangs,
    /// It is gone.
    Gone,
    /// Every write fails: the file below has no room.
    NoRoom,
    /// It does not answer in time; what was written meanwhile gets there when it is well again.
    Late,
}

/// What a thread does before a write, and how many of its writes come before that one.
type Before = (u32, Box<dyn FnOnce()>);

thread_local! {
    static BEFORE_WRITE: RefCell<Option<Before>> = const { RefCell::new(None) };
}

/// Lets this thread do `first` before the write to a simulated disk that comes after `writes` others,
/// instead of what it was told before.
pub fn before_write(writes: u32, first: impl FnOnce() + 'static) {
    BEFORE_WRITE.set(Some((writes, Box::new(first))));
}

fn do_before_write() {
    let due = BEFORE_WRITE.with_borrow_mut(|before| match before {
        Some((0, _)) => before.take(),
        Some((writes, _)) => {
            *writes -= 1;
            None
        }
        None => None,
    });
    if let Some((_, first)) = due {
        first();
    }
}

/// A disk in memory. Writes are volatile until flushed; [`SimDevice::crash`] undoes those that
/// were not.
#[derive(Debug)]
pub struct SimDevice {
    name: String,
    size: AtomicU64,
    state: Mutex<State>,
    /// The ranges whose reads are held have changed.
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bytes: Store,
    /// What unflushed writes replaced, oldest first.
    undo: Vec<Replaced>,
    health: Health,
    /// How it is after so many writes.
    turn: Option<(u64, Health)>,
    delay: Duration,
    /// Reads touching these fail.
    bad: Vec<Range<u64>>,
    /// Reads that have these numbers in the count of all who share it fail.
    failing: Option<(Arc<AtomicU64>, Range<u64>)>,
    /// Reads touching these do not return before they are let go.
    held: Vec<Range<u64>>,
    /// Reads that are held now.
    waiting: usize,
    /// Reads of these show the bytes flipped by the mask.
    corrupt: Vec<(Range<u64>, u8)>,
    /// Writes are acknowledged and dropped.
    loses_writes: bool,
    /// The next write keeps only this many bytes.
    tear_next: Option<usize>,
    reads: u64,
    writes: u64,
    recording: Option<Recording>,
    /// Writes that get there when it is well again.
    late: Vec<(u64, Bytes)>,
}

/// What happened to a disk since [`SimDevice::record`].
#[derive(Debug)]
struct Recording {
    /// What lay there before.
    before: Store,
    events: Vec<Recorded>,
}

/// A write or flush that a disk carried out.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Its place among all recorded events of all disks of this process.
    pub order: u64,
    /// What it was.
    pub event: SimEvent,
}

/// What a disk carried out.
#[derive(Debug, Clone)]
pub enum SimEvent {
    /// Bytes written from an offset on.
    Write {
        /// First byte.
        offset: u64,
        /// What was written.
        data: Bytes,
    },
    /// Everything before is durable.
    Flush,
}

/// What power loss leaves of a write that was not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// All of it.
    All,
    /// Nothing.
    Nothing,
    /// Only its first bytes.
    First(usize),
    /// Everything but its first bytes.
    AllBut(usize),
}

/// Orders recorded events of all disks.
static ORDER: AtomicU64 = AtomicU64::new(1);

fn io_error() -> DeviceError {
    std::io::Error::from_raw_os_error(libc::EIO).into()
}

impl SimDevice {
    /// A disk of `size` zero bytes.
    pub fn new(name: impl Into<String>, size: usize) -> Self {
        Self::with(name.into(), size, Store::new(size))
    }

    /// A disk that holds `bytes`.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self::with(name.into(), bytes.len(), Store::of(&bytes))
    }

    fn with(name: String, size: usize, bytes: Store) -> Self {
        let state = Mutex::new(State { bytes, ..State::default() });
        Self { name, size: AtomicU64::new(size as u64), state, released: Condvar::new() }
    }

    /// Puts `bytes`, as many as the disk has, in place of everything, at once and however the disk is: it was
    /// written elsewhere while it was away.
    pub fn replace_content(&self, bytes: &[u8]) {
        self.state.lock().bytes = Store::of(bytes);
    }

    /// Sets how the whole disk is.
    pub fn set_health(&self, health: Health) {
        let state = &mut *self.state.lock();
        state.health = health;
        state.turn = None;
        if health == Health::Well {
            for (offset, data) in std::mem::take(&mut state.late) {
                // It lies within the disk, else it would not have been taken.
                let _ = state.put(offset, &data);
            }
        }
    }

    /// It is like this from the write or flush on that comes after `writes` in all ([`Self::counts`]).
    pub fn set_health_after(&self, writes: u64, health: Health) {
        self.state.lock().turn = Some((writes, health));
    }

    /// Makes every read and write take at least this long (real time).
    pub fn set_delay(&self, delay: Duration) {
        self.state.lock().delay = delay;
    }

    /// Makes reads that touch `range` (bytes) fail with EIO until it is written again.
    pub fn fail_range(&self, range: Range<u64>) {
        self.state.lock().bad.push(range);
    }

    /// Makes the reads fail with EIO that get one of `numbers` from `count`, which disks can share; with `None` none
    /// does any more.
    pub fn fail_reads(&self, failing: Option<(Arc<AtomicU64>, Range<u64>)>) {
        self.state.lock().failing = failing;
    }

    /// Makes reads that touch one of `ranges` (bytes) wait; those of ranges given before go on.
    pub fn hold_reads(&self, ranges: Vec<Range<u64>>) {
        self.state.lock().held = ranges;
        self.released.notify_all();
    }

    /// How many reads wait.
    pub fn held_reads(&self) -> usize {
        self.state.lock().waiting
    }

    /// Makes reads show every byte of `range` XORed with `mask` until it is written again.
    pub fn corrupt_range(&self, range: Range<u64>, mask: u8) {
        self.state.lock().corrupt.push((range, mask));
    }

    /// Whether writes are acknowledged but never happen.
    pub fn lose_writes(&self, lose: bool) {
        self.state.lock().loses_writes = lose;
    }

    /// The next write is acknowledged but keeps only its first `keep` bytes.
    pub fn tear_next_write(&self, keep: usize) {
        self.state.lock().tear_next = Some(keep);
    }

    /// Power loss: everything written since the last flush is undone.
    pub fn crash(&self) {
        let state = &mut *self.state.lock();
        for replaced in state.undo.drain(..).rev() {
            state.bytes.restore(replaced);
        }
    }

    /// Ends every fault; the bytes stay.
    pub fn heal(&self) {
        let state = &mut *self.state.lock();
        let bytes = std::mem::take(&mut state.bytes);
        let undo = std::mem::take(&mut state.undo);
        let recording = state.recording.take();
        let (reads, writes, waiting) = (state.reads, state.writes, state.waiting);
        *state = State { bytes, undo, reads, writes, waiting, recording, ..State::default() };
        self.released.notify_all();
    }

    /// Starts to record writes and flushes anew. Costs memory for what is written.
    pub fn record(&self) {
        let state = &mut *self.state.lock();
        state.recording = Some(Recording { before: state.bytes.clone(), events: Vec::new() });
    }

    /// What was recorded so far, in order.
    pub fn recorded(&self) -> Vec<Recorded> {
        let state = self.state.lock();
        state.recording.as_ref().map(|recording| recording.events.clone()).unwrap_or_default()
    }

    /// It has `size` bytes from now on, the new ones zero; who has it open learns of that when he
    /// measures it.
    pub fn grow(&self, size: usize) {
        self.state.lock().bytes.grow(size);
    }

    /// The order of the newest event that any disk of this process recorded.
    pub fn newest_order() -> u64 {
        ORDER.load(Ordering::SeqCst) - 1
    }

    /// The disk as power loss would have left it right before the event numbered `order`
    /// (`u64::MAX`: now): what had been flushed is there, and of every later write what `keep` says.
    /// As it is at present if nothing was recorded. It shares what was not written with this one.
    pub fn after_crash(&self, order: u64, keep: &mut dyn FnMut(&Recorded) -> Keep) -> Self {
        let state = self.state.lock();
        let size = self.size() as usize;
        let Some(recording) = &state.recording else {
            return Self::with(self.name.clone(), size, state.bytes.clone());
        };
        let mut bytes = recording.before.clone();
        bytes.grow(size);
        let mut put = |offset: u64, data: &[u8]| bytes.put(offset as usize, data).map(drop);
        let before = recording.events.partition_point(|recorded| recorded.order < order);
        let events = recording.events.get(..before).unwrap_or_default();
        let flushed = events.iter().rposition(|recorded| matches!(recorded.event, SimEvent::Flush));
        for (index, recorded) in events.iter().enumerate() {
            let SimEvent::Write { offset, data } = &recorded.event else { continue };
            let kept = match flushed {
                Some(flush) if index < flush => Keep::All,
                _ => keep(recorded),
            };
            match kept {
                Keep::All => put(*offset, data),
                Keep::Nothing => None,
                Keep::First(count) => put(*offset, data.get(..count).unwrap_or(data)),
                Keep::AllBut(count) => {
                    let count = count.min(data.len());
                    put(*offset + count as u64, data.get(count..).unwrap_or_default())
                }
            };
        }
        Self::with(self.name.clone(), size, bytes)
    }

    /// What lies on the disk and may be something else than zeros: offsets and bytes, ascending.
    pub fn written(&self) -> Vec<(u64, Vec<u8>)> {
        self.state.lock().bytes.written()
    }

    /// Reads and writes that reached the disk.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.reads, state.writes)
    }

    /// Health check and delay of one operation.
    fn begin(&self, writes: bool) -> Result<(), DeviceError> {
        let (health, delay) = {
            let mut state = self.state.lock();
            if writes {
                state.writes += 1;
            } else {
                state.reads += 1;
            }
            let writes = state.writes;
            if let Some((_, health)) = state.turn.take_if(|(after, _)| *after < writes) {
                state.health = health;
            }
            (state.health, state.delay)
        };
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        match health {
            Health::Gone => Err(DeviceError::Gone),
            Health::Hangs | Health::Late => Err(DeviceError::TimedOut(DEFAULT_DEADLINE)),
            Health::FailsReads if !writes => Err(io_error()),
            Health::FailsWrites if writes => Err(io_error()),
            Health::NoRoom if writes => Err(std::io::Error::from_raw_os_error(libc::ENOSPC).into()),
            Health::Well | Health::FailsReads | Health::FailsWrites | Health::NoRoom => Ok(()),
        }
    }
}

impl State {
    /// `data` lies at `offset` from now on.
    fn put(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let replaced = self.bytes.put(offset as usize, data).ok_or_else(io_error)?;
        self.undo.push(replaced);
        if let Some(recording) = &mut self.recording {
            let data = Bytes::copy_from_slice(data);
            let order = ORDER.fetch_add(1, Ordering::SeqCst);
            recording.events.push(Recorded { order, event: SimEvent::Write { offset, data } });
        }
        // Written sectors are good again.
        let written = offset..offset + data.len() as u64;
        let mut bad = Vec::new();
        for range in self.bad.drain(..) {
            subtract(range, &written, |left| bad.push(left));
        }
        self.bad = bad;
        let mut corrupt = Vec::new();
        for (range, mask) in self.corrupt.drain(..) {
            subtract(range, &written, |left| corrupt.push((left, mask)));
        }
        self.corrupt = corrupt;
        Ok(())
    }
}

/// Whether two ranges share a byte.
fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Device for SimDevice {
    fn path(&self) -> PathBuf {
        PathBuf::from(&self.name)
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    fn measure(&self) -> u64 {
        let size = self.state.lock().bytes.size() as u64;
        self.size.fetch_max(size, Ordering::SeqCst).max(size)
    }

    fn can_trim(&self) -> bool {
        true
    }

    fn trim(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let zeros = vec![0; len.min(1 << 30) as usize];
        self.write(offset, &zeros)
    }

    fn sector_size(&self) -> u32 {
        512
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        in_range(offset, len, self.size())?;
        if len > MAX_READ {
            return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput).into());
        }
        self.begin(false)?;
        let mut state = self.state.lock();
        if let Some((count, numbers)) = &state.failing
            && numbers.contains(&count.fetch_add(1, Ordering::SeqCst))
        {
            return Err(io_error());
        }
        let range = offset..offset + len as u64;
        state.waiting += 1;
        while state.held.iter().any(|held| overlap(held, &range)) {
            self.released.wait(&mut state);
        }
        state.waiting -= 1;
        if state.bad.iter().any(|bad| overlap(bad, &range)) {
            return Err(io_error());
        }
        let start = offset as usize;
        let mut bytes = state.bytes.get(start, len).ok_or_else(io_error)?;
        for (corrupt, mask) in &state.corrupt {
            let from = corrupt.start.max(range.start);
            let to = corrupt.end.min(range.end);
            if from < to
                && let Some(hit) = bytes.get_mut((from - offset) as usize..(to - offset) as usize)
            {
                hit.iter_mut().for_each(|byte| *byte ^= mask);
            }
        }
        Ok(bytes.into())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        in_range(offset, data.len(), self.size())?;
        do_before_write();
        let begun = self.begin(true);
        let state = &mut *self.state.lock();
        if state.health == Health::Late {
            state.late.push((offset, Bytes::copy_from_slice(data)));
        }
        begun?;
        if state.loses_writes {
            return Ok(());
        }
        let keep = state.tear_next.take().unwrap_or(data.len()).min(data.len());
        state.put(offset, data.get(..keep).unwrap_or_default())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.begin(true)?;
        let state = &mut *self.state.lock();
        state.undo.clear();
        if let Some(recording) = &mut state.recording {
            let order = ORDER.fetch_add(1, Ordering::SeqCst);
            recording.events.push(Recorded { order, event: SimEvent::Flush });
        }
        Ok(())
    }
}

/// Hands out what is left of `range` without `hole`.
fn subtract(range: Range<u64>, hole: &Range<u64>, mut left: impl FnMut(Range<u64>)) {
    if !overlap(&range, hole) {
        return left(range);
    }
    if range.start < hole.start {
        left(range.start..hole.start);
    }
    if hole.end < range.end {
        left(hole.end..range.end);
    }
}
