//! The gate every change passes: opens, holds and closes transaction groups, and slows writers.
//!
//! Invariant: `dirty` never grows while it stands above the limit, except by changes that were let
//! in before; every wait ends with the gate's deadline or its failure, except that while writing is
//! suspended nobody's patience ends: those wait until it goes on, or are refused at once. Whose request
//! is not wanted any more ([`interrupt`]) stops waiting, and begins nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use cenote_format::Txg;
use parking_lot::{Condvar, Mutex};

use super::interrupt;
use crate::{Error, ErrorKind, Result};

/// Part of the dirty limit, in percent, from which on writers are slowed down.
const SLOW_FROM: u64 = 60;
/// Part of the dirty limit (a fourth) from which on the writer does not wait for its interval.
const WRITTEN_FROM: u64 = 4;
/// Bytes of whole blocks in the open group from which on the writer does not wait either: they are
/// as they will stay, and what is written early does not have to be waited for at a sync.
const WHOLE_FROM: u64 = 48 << 20;
/// Longest pause of one change while the pool catches up; a full gate waits instead.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// Longest wait for room.
const PATIENCE: Duration = Duration::from_secs(600);

/// Lets changes into the open transaction group.
pub struct Gate {
    state: Mutex<GateState>,
    /// For who waits for groups and room.
    changed: Condvar,
    /// For the writer: a group is wanted, or the last change of a closed one is made. Apart from
    /// the other so that changes do not wake anybody.
    work: Condvar,
    /// Dirty bytes of the groups by number modulo 4.
    dirty: [AtomicU64; 4],
    /// Bytes of memory that records of intent logs take, by group as `dirty`.
    noted: [AtomicU64; 4],
    /// Bytes of whole blocks written, and of objects made, in the open group.
    whole: AtomicU64,
    limit: AtomicU64,
    /// The state's `suspended` is something.
    is_suspended: AtomicBool,
    /// Nothing may be sent to the devices.
    held: AtomicBool,
    /// See [`Gate::wait_in_step`].
    in_step: AtomicBool,
}

struct GateState {
    open: u64,
    holds: [u64; 4],
    synced: u64,
    /// A group up to this one was asked for.
    wanted: u64,
    failure: Option<Error>,
    suspended: Option<Suspension>,
    stopping: bool,
}

/// Writing does not go on until devices are back.
#[derive(Debug, Clone)]
pub struct Suspension {
    /// What could not be written.
    pub error: Error,
    /// New changes are refused; otherwise they wait.
    pub refuses: bool,
}

/// What is told to those who cannot wait.
fn suspended() -> Error {
    Error::new(ErrorKind::Io, "pool I/O is currently suspended")
}

/// What a gate shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateFigures {
    /// The open group.
    pub open: Txg,
    /// The newest group on the disks.
    pub synced: Txg,
    /// Bytes that wait to be written.
    pub dirty: u64,
}

/// A change being made: belongs to one transaction group, which is not written before this is
/// dropped.
pub struct Tx {
    txg: Txg,
    gate: Option<Arc<Gate>>,
    held: bool,
}

impl Tx {
    /// A change made by the writer of group `txg` itself, or by a test without a gate.
    pub fn detached(txg: Txg) -> Self {
        Self { txg, gate: None, held: false }
    }

    /// The group it belongs to.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Counts bytes that were made dirty.
    pub fn add_dirty(&self, bytes: u64) {
        if let Some(gate) = &self.gate {
            gate.add_dirty(self.txg, bytes);
        }
    }

    /// Counts bytes of memory that records of an intent log take more, or less: they slow writers
    /// down as dirty bytes do, but take no space in the pool.
    pub fn add_noted(&self, bytes: i64) {
        let Some(gate) = &self.gate else { return };
        match (u64::try_from(bytes), gate.noted.get(slot(self.txg.0))) {
            (Ok(0), _) | (_, None) => {}
            (Ok(more), Some(noted)) => gate.count(noted, more),
            (Err(_), Some(noted)) => subtract(noted, bytes.unsigned_abs()),
        }
    }

    /// Says that so many bytes (already counted as dirty) are whole blocks, or objects just made.
    pub fn add_whole(&self, bytes: u64) {
        if let Some(gate) = &self.gate {
            gate.add_whole(bytes);
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if let (Some(gate), true) = (&self.gate, self.held) {
            let mut state = gate.state.lock();
            if let Some(holds) = state.holds.get_mut(slot(self.txg.0)) {
                *holds = holds.saturating_sub(1);
                if *holds == 0 && state.open > self.txg.0 {
                    gate.work.notify_all();
                }
            }
        }
    }
}

fn subtract(counter: &AtomicU64, bytes: u64) {
    let _ = counter.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(bytes)));
}

pub(super) fn slot(txg: u64) -> usize {
    (txg & 3) as usize
}

impl Gate {
    /// A gate whose last written group is `synced`; `limit` bytes may be dirty.
    pub fn new(synced: Txg, limit: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(GateState {
                open: synced.0 + 1,
                holds: [0; 4],
                synced: synced.0,
                wanted: 0,
                failure: None,
                suspended: None,
                stopping: false,
            }),
            changed: Condvar::new(),
            work: Condvar::new(),
            dirty: Default::default(),
            noted: Default::default(),
            whole: AtomicU64::new(0),
            is_suspended: AtomicBool::new(false),
            held: AtomicBool::new(false),
            in_step: AtomicBool::new(false),
            limit: AtomicU64::new(limit.max(1 << 20)),
        })
    }

    /// Starts a change in the open group. Slows down as dirty bytes grow, and waits for room at
    /// the limit. Fails when the pool cannot be written any more.
    pub fn begin(self: &Arc<Self>) -> Result<Tx> {
        self.throttle()?;
        self.begin_now()
    }

    /// As [`Gate::begin`] without slowing down: for what frees space or must not wait.
    pub fn begin_now(self: &Arc<Self>) -> Result<Tx> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.suspended.as_ref().is_some_and(|now| now.refuses) {
            return Err(suspended());
        }
        interrupt::begin()?;
        let open = state.open;
        if let Some(holds) = state.holds.get_mut(slot(open)) {
            *holds += 1;
        }
        Ok(Tx { txg: Txg(open), gate: Some(self.clone()), held: true })
    }

    /// What [`Gate::begin`] does before it begins: for who takes locks in between and then calls
    /// [`Gate::begin_now`]. Waits while writing is suspended, or refuses.
    pub fn throttle(&self) -> Result<()> {
        if self.is_suspended.load(Relaxed) {
            let mut state = self.state.lock();
            while let Some(now) = &state.suspended {
                if now.refuses {
                    return Err(suspended());
                }
                interrupt::wait(&self.changed, &mut state, None)?;
            }
        }
        self.wait_in_step();
        let limit = self.limit.load(Relaxed);
        let dirty = self.held_bytes();
        let slow_from = limit / 100 * SLOW_FROM;
        if dirty < slow_from {
            return Ok(());
        }
        if dirty < limit {
            self.want_next();
            // The pause grows from nothing to the longest as the room left shrinks.
            let part = (dirty - slow_from) as f64 / (limit - slow_from).max(1) as f64;
            std::thread::sleep(LONGEST_PAUSE.mul_f64(part * part));
            return Ok(());
        }
        let mut until = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while self.held_bytes() >= limit {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if let Some(now) = &state.suspended {
                if now.refuses {
                    return Err(suspended());
                }
                until = Instant::now() + PATIENCE;
            }
            state.wanted = state.wanted.max(state.open);
            self.work.notify_all();
            if interrupt::wait(&self.changed, &mut state, Some(until))? {
                if state.suspended.is_some() {
                    continue;
                }
                let reason = "the pool does not take writes: its devices do not keep up";
                return Err(Error::new(ErrorKind::TimedOut, reason));
            }
        }
        Ok(())
    }

    /// Whether [`Gate::throttle`] would let a change through as it comes.
    pub fn has_room(&self) -> bool {
        let slow_from = self.limit.load(Relaxed) / 100 * SLOW_FROM;
        !self.is_suspended.load(Relaxed) && self.held_bytes() < slow_from
    }

    /// Whether changes do not begin while a group is due or being written: which of them a group holds then
    /// follows from what was done, not from when the writer woke up.
    pub fn keep_in_step(&self, keep: bool) {
        self.in_step.store(keep, Relaxed);
    }

    /// If changes are to be in step with groups: waits until no group is due or being written. Nothing may be
    /// held. If a group fails, the change hears of it when it begins.
    pub fn wait_in_step(&self) {
        while self.in_step.load(Relaxed) {
            let state = self.state.lock();
            let open = state.open;
            let is_due = state.wanted >= open || self.is_filling();
            let last = if is_due { open } else { open.saturating_sub(1) };
            if state.synced >= last {
                return;
            }
            drop(state);
            if self.wait_for(Txg(last), PATIENCE, true).is_err() {
                return;
            }
        }
    }

    fn want_next(&self) {
        let mut state = self.state.lock();
        if state.wanted < state.open {
            state.wanted = state.open;
            self.work.notify_all();
        }
    }

    fn add_dirty(&self, txg: Txg, bytes: u64) {
        if let Some(dirty) = self.dirty.get(slot(txg.0)) {
            self.count(dirty, bytes);
        }
    }

    fn add_whole(&self, bytes: u64) {
        self.count(&self.whole, bytes);
    }

    /// Adds to a counter the writer begins by, and wakes it if it is due now.
    fn count(&self, counter: &AtomicU64, bytes: u64) {
        let was_filling = self.is_filling();
        counter.fetch_add(bytes, Relaxed);
        if !was_filling && self.is_filling() {
            // Under the lock, or the writer might look just before and sleep just after.
            let _state = self.state.lock();
            self.work.notify_all();
        }
    }

    /// Enough is dirty for the writer to begin.
    fn is_filling(&self) -> bool {
        let from = self.limit.load(Relaxed) / WRITTEN_FROM;
        self.held_bytes() >= from || self.whole.load(Relaxed) >= from.min(WHOLE_FROM)
    }

    /// Takes back bytes that are on the disks before their group has ended.
    pub fn written(&self, txg: Txg, bytes: u64) {
        if let Some(dirty) = self.dirty.get(slot(txg.0)) {
            subtract(dirty, bytes);
        }
        self.changed.notify_all();
    }

    /// Bytes that wait to be written.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.iter().map(|dirty| dirty.load(Relaxed)).sum()
    }

    /// Bytes of memory that groups hold until they are on the disks.
    fn held_bytes(&self) -> u64 {
        let noted: u64 = self.noted.iter().map(|noted| noted.load(Relaxed)).sum();
        self.dirty_bytes().saturating_add(noted)
    }

    /// Records of an intent log in group `txg` take so many bytes of memory less.
    pub fn settle_noted(&self, txg: Txg, bytes: u64) {
        let state = self.state.lock();
        // What is counted in the place of a group that is written is another's.
        if let Some(noted) = self.noted.get(slot(txg.0)).filter(|_| txg.0 > state.synced) {
            subtract(noted, bytes);
        }
    }

    /// Sets how many bytes may be dirty.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit.max(1 << 20), Relaxed);
    }

    /// What the gate shows.
    pub fn figures(&self) -> GateFigures {
        let state = self.state.lock();
        GateFigures { open: Txg(state.open), synced: Txg(state.synced), dirty: self.dirty_bytes() }
    }

    /// Asks for group `txg` to be written soon.
    pub fn want(&self, txg: Txg) {
        let mut state = self.state.lock();
        state.wanted = state.wanted.max(txg.0);
        self.work.notify_all();
    }

    /// Waits until a group after `seen` is on the disks, at most so long, and asks for none. The newest
    /// that is.
    pub fn wait_past(&self, seen: Txg, patience: Duration) -> Txg {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        while state.synced <= seen.0 {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        Txg(state.synced)
    }

    /// Waits until group `txg` is on the disks. The time while writing is suspended does not count,
    /// unless changes are refused: then this is.
    pub fn wait_synced(&self, txg: Txg, patience: Duration) -> Result<()> {
        self.wait_for(txg, patience, false)
    }

    /// As [`Gate::wait_synced`]; while writing is suspended it does not wait.
    pub fn wait_synced_unless_suspended(&self, txg: Txg, patience: Duration) -> Result<()> {
        self.wait_for(txg, patience, true)
    }

    fn wait_for(&self, txg: Txg, patience: Duration, impatient: bool) -> Result<()> {
        let mut until = Instant::now() + patience;
        let mut state = self.state.lock();
        state.wanted = state.wanted.max(txg.0);
        self.work.notify_all();
        while state.synced < txg.0 {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if let Some(now) = &state.suspended {
                if now.refuses || impatient {
                    return Err(suspended());
                }
                until = Instant::now() + patience;
            }
            if interrupt::wait(&self.changed, &mut state, Some(until))? {
                if state.suspended.is_some() {
                    continue;
                }
                let reason = format!("transaction group {txg} was not written in {patience:?}");
                return Err(Error::new(ErrorKind::TimedOut, reason));
            }
        }
        Ok(())
    }

    /// For the writer: sleeps until a group is wanted, `interval` has passed, or the gate stops.
    /// False when it stops.
    pub fn wait_for_work(&self, interval: Duration) -> bool {
        let until = Instant::now() + interval;
        let mut state = self.state.lock();
        while !state.stopping && state.wanted < state.open {
            if self.is_filling() || self.work.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        !state.stopping
    }

    /// For the writer: closes the open group and waits until every change in it is made.
    pub fn close(&self) -> Txg {
        let mut state = self.state.lock();
        let closed = state.open;
        state.open += 1;
        self.whole.store(0, Relaxed);
        while state.holds.get(slot(closed)).is_some_and(|holds| *holds > 0) {
            self.work.wait(&mut state);
        }
        Txg(closed)
    }

    /// For the writer: group `txg` is on the disks.
    pub fn finished(&self, txg: Txg) {
        if let Some(dirty) = self.dirty.get(slot(txg.0)) {
            dirty.store(0, Relaxed);
        }
        if let Some(noted) = self.noted.get(slot(txg.0)) {
            noted.store(0, Relaxed);
        }
        let mut state = self.state.lock();
        state.synced = state.synced.max(txg.0);
        self.changed.notify_all();
    }

    /// Nothing more can be written: everybody who waits or begins gets `error`.
    pub fn fail(&self, error: Error) {
        let mut state = self.state.lock();
        state.failure.get_or_insert(error);
        state.suspended = None;
        self.is_suspended.store(false, Relaxed);
        self.changed.notify_all();
    }

    /// Writing does not go on until [`Gate::resume`], because of `error`; `refuses`: new changes get
    /// an error instead of waiting. True if it did go on before.
    pub fn suspend(&self, error: Error, refuses: bool) -> bool {
        let mut state = self.state.lock();
        if state.failure.is_some() {
            return false;
        }
        let fresh = state.suspended.replace(Suspension { error, refuses }).is_none();
        self.is_suspended.store(true, Relaxed);
        // Who waits may have to be refused.
        self.changed.notify_all();
        fresh
    }

    /// Writing goes on, unless it [is held](Self::hold). True if it was suspended.
    pub fn resume(&self) -> bool {
        if !self.is_suspended.load(Relaxed) || self.is_held() {
            return false;
        }
        let mut state = self.state.lock();
        let resumed = state.suspended.take().is_some();
        self.is_suspended.store(false, Relaxed);
        self.changed.notify_all();
        resumed
    }

    /// Waits until writing is not suspended, for so long at most.
    pub fn wait_resumed(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        while state.suspended.is_some() && state.failure.is_none() {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// Nothing more may be sent to the devices, even if they take it, until it is said that it may.
    pub fn hold(&self, on: bool) {
        self.held.store(on, SeqCst);
    }

    /// Whether nothing may be sent to the devices.
    pub fn is_held(&self) -> bool {
        self.held.load(SeqCst)
    }

    /// Whether writing is suspended, and how.
    pub fn suspension(&self) -> Option<Suspension> {
        match self.is_suspended.load(Relaxed) {
            true => self.state.lock().suspended.clone(),
            false => None,
        }
    }

    /// Why nothing more can be written, if so.
    pub fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone()
    }

    /// Whether somebody asked for group `txg` to be written.
    pub fn is_wanted(&self, txg: Txg) -> bool {
        self.state.lock().wanted >= txg.0
    }

    /// Whether somebody waits for group `txg`, which is being written, or for what comes after it.
    pub fn is_waited_for(&self, txg: Txg) -> bool {
        self.is_wanted(txg) || self.is_filling()
    }

    /// Tells the writer to stop.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
        self.work.notify_all();
    }
}

#[cfg(test)]
mod tests;
