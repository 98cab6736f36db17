//! Waiting for devices that came to fail beyond the redundancy: the pool is suspended.
//!
//! Invariant: only the thread that writes groups waits here, at the place where something failed,
//! and tries that again: nothing of the group is lost, and nothing of it is called written before
//! it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use cenote_format::{BlockPointer, Dva, Txg};
use parking_lot::{Condvar, Mutex};

use super::{LivePool, MosSource};
use crate::alloc::{AllocRequest, Allocator, Dvas};
use crate::object::ObjectSet;
use crate::pipe::{Addresses, Patience, Pipe, Wait};
use crate::txg::{Gate, Suspension};
use crate::{Error, ErrorKind, Result};

/// Time between two tries.
const RETRY: Duration = Duration::from_secs(2);

/// Time between two tries to read what a device that answers does not give.
const SECTOR_RETRY: Duration = Duration::from_millis(200);
/// After so many tries it counts as damaged, and what was changed there is lost: a device may be about to help itself.
const DAMAGED_AFTER: u32 = 25;
/// The same where something else was found damaged a short time ago.
const MORE_DAMAGED_AFTER: u32 = 5;
/// How long that is a short time ago.
const RECENTLY: Duration = Duration::from_secs(60);

/// What to do when devices fail beyond the redundancy: the property `failmode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum FailMode {
    /// Changes wait until the devices are back.
    #[default]
    Wait = 0,
    /// New changes are refused until then.
    Continue = 1,
    /// Nothing is written any more.
    Panic = 2,
}

impl FailMode {
    pub(in crate::pool) fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Continue,
            2 => Self::Panic,
            _ => Self::Wait,
        }
    }

    /// What the pool of this meta object set is to do.
    pub(in crate::pool) fn of(mos: &ObjectSet) -> Self {
        Self::from_number(MosSource::new(mos.clone()).pool_property("failmode").unwrap_or(0))
    }
}

/// Suspends and resumes the writing of a pool.
pub(in crate::pool) struct Outage {
    gate: Arc<Gate>,
    pipe: Arc<Pipe>,
    mode: AtomicU8,
    /// The thread that writes groups.
    writer: Mutex<Option<ThreadId>>,
    /// What it does now goes on without what it cannot read.
    is_dispensable: AtomicBool,
    orders: Mutex<Orders>,
    ordered: Condvar,
    /// When something was last found damaged.
    damaged: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Orders {
    /// Try now.
    try_now: bool,
    /// Give up what is not written.
    abandon: bool,
}

impl Outage {
    pub(in crate::pool) fn new(gate: Arc<Gate>, pipe: Arc<Pipe>, mode: FailMode) -> Arc<Self> {
        Arc::new(Self {
            gate,
            pipe,
            mode: AtomicU8::new(mode as u8),
            writer: Mutex::new(None),
            is_dispensable: AtomicBool::new(false),
            orders: Mutex::default(),
            ordered: Condvar::new(),
            damaged: Mutex::new(None),
        })
    }

    pub(in crate::pool) fn set_mode(&self, mode: FailMode) {
        self.mode.store(mode as u8, Relaxed);
        self.pipe.vdevs().events().set_failmode(mode.word());
    }

    /// What devices do.
    pub(in crate::pool) fn mode(&self) -> FailMode {
        FailMode::from_number(self.mode.load(Relaxed).into())
    }

    /// The calling thread writes groups from now on.
    pub(in crate::pool) fn is_writer(&self) {
        *self.writer.lock() = Some(std::thread::current().id());
    }

    /// Does what the thread that writes groups does beside that, and what no group waits for.
    pub(in crate::pool) fn beside_writing(&self, work: impl FnOnce()) {
        let writer = self.writer.lock().take();
        work();
        *self.writer.lock() = writer;
    }

    /// Does what goes on without blocks that cannot be read while devices are away: those do not suspend the pool.
    pub(super) fn with_what_is_there<T>(&self, work: impl FnOnce() -> T) -> T {
        self.is_dispensable.store(true, Relaxed);
        let done = work();
        self.is_dispensable.store(false, Relaxed);
        done
    }

    /// Something failed with `error`: suspends the pool and waits a little. Then it is to be tried
    /// again; an error if the pool is to stop instead.
    pub(in crate::pool) fn pause(&self, error: &Error) -> Result<()> {
        let mode = self.mode();
        // A pool that is being created is given up.
        if mode == FailMode::Panic || self.writer.lock().is_none() {
            return Err(error.clone());
        }
        {
            let mut orders = self.orders.lock();
            if orders.abandon {
                return Err(error.clone());
            }
            if self.gate.suspend(error.clone(), mode == FailMode::Continue) {
                tracing::error!(%error, "pool I/O is suspended");
                self.pipe.vdevs().events().report("io_failure", None, Vec::new());
            }
            if !std::mem::take(&mut orders.try_now) {
                self.ordered.wait_for(&mut orders, RETRY);
                orders.try_now = false;
            }
            if orders.abandon {
                return Err(error.clone());
            }
        }
        let vdevs = self.pipe.vdevs();
        vdevs.reopen();
        vdevs.probe_all();
        Ok(())
    }

    /// Waits while nothing may be sent to the devices.
    pub(in crate::pool) fn wait_while_held(&self) -> Result<()> {
        while self.gate.is_held() {
            let reason = "another host may have the pool: nothing is written until that is known";
            self.pause(&Error::new(ErrorKind::Io, reason))?;
        }
        Ok(())
    }

    /// No top-level device is away.
    fn is_whole(&self) -> bool {
        self.pipe.vdevs().condition().state.is_readable()
    }

    /// What failed before did not fail now.
    pub(in crate::pool) fn over(&self) {
        if self.gate.resume() {
            tracing::info!("pool I/O goes on");
        }
    }

    /// What cannot be written is given up from now on.
    pub(super) fn give_up(&self) {
        self.order(|orders| orders.abandon = true);
    }

    fn order(&self, give: impl FnOnce(&mut Orders)) {
        give(&mut self.orders.lock());
        self.ordered.notify_all();
    }
}

impl Patience for Outage {
    fn wait(&self, pointer: &BlockPointer, error: &Error, tries: u32) -> Wait {
        let writes = *self.writer.lock() == Some(std::thread::current().id());
        // Where devices are away, copies that do not fit may be the stale ones of others.
        let away = match error.kind() {
            ErrorKind::Io => true,
            ErrorKind::Checksum => error.is_passing(),
            _ => false,
        };
        if !writes || !away {
            return Wait::No;
        }
        // Without what has three copies, as the pool's own metadata has, nothing can go on.
        let is_vital = pointer.dvas().count() > 2;
        if !is_vital && self.pipe.vdevs().all_answer() {
            // A few sectors that cannot be read, or a device that has just come back.
            let mut damaged = self.damaged.lock();
            let is_more = damaged.is_some_and(|at| at.elapsed() < RECENTLY);
            if tries >= if is_more { MORE_DAMAGED_AFTER } else { DAMAGED_AFTER } {
                *damaged = Some(Instant::now());
                return Wait::Damaged;
            }
            drop(damaged);
            std::thread::sleep(SECTOR_RETRY);
            return Wait::Again;
        }
        if !is_vital && self.is_dispensable.load(Relaxed) {
            return Wait::No;
        }
        match self.pause(error) {
            Ok(()) => Wait::Anew,
            Err(_) => Wait::No,
        }
    }

    fn over(&self) {
        if *self.writer.lock() == Some(std::thread::current().id()) {
            Self::over(self);
        }
    }
}

/// Addresses for the writer of groups: those of devices that are away are waited for.
pub(in crate::pool) struct PatientAddresses {
    pub(in crate::pool) allocator: Arc<Allocator>,
    pub(in crate::pool) outage: Arc<Outage>,
}

impl PatientAddresses {
    /// No smaller block can be asked for.
    fn is_least(&self, request: &AllocRequest) -> bool {
        let least = self.outage.pipe.vdevs().data_units().min();
        request.psize <= least.unwrap_or(u64::MAX)
    }
}

impl Addresses for PatientAddresses {
    fn allocate(&self, request: &AllocRequest) -> Result<Dvas> {
        loop {
            match self.allocator.allocate(request) {
                Err(error) if error.kind() == ErrorKind::NoSpace && !self.outage.is_whole() => {
                    let reason = "no device that takes blocks is available";
                    self.outage.pause(&Error::new(ErrorKind::Io, reason))?;
                }
                // A larger block is written in pieces.
                Err(error) if error.kind() == ErrorKind::NoSpace && self.is_least(request) => {
                    let reason = "there is no free space for what was accepted already";
                    let error = Error::new(ErrorKind::NoSpace, reason);
                    self.outage.pause(&error.with_advice("report this; nothing is lost"))?;
                }
                // Somebody has the space, or reads where it is, and does not come to an end.
                Err(error) if error.kind() == ErrorKind::TimedOut => self.outage.pause(&error)?,
                other => return other,
            }
        }
    }

    fn unallocate(&self, dva: &Dva, txg: Txg) {
        Addresses::unallocate(&*self.allocator, dva, txg);
    }
}

impl LivePool {
    /// If the pool is suspended, tries to go on at once; otherwise jobs try again what they could not
    /// do.
    pub fn retry_now(&self) {
        self.jobs.wake_troubled();
        if self.gate.suspension().is_some() {
            self.outage.order(|orders| orders.try_now = true);
        }
    }

    /// Whether the pool is suspended: what failed, and how changes are treated.
    pub fn suspension(&self) -> Option<Suspension> {
        self.gate.suspension()
    }

    /// Stops writing a suspended pool, without what is not on the disks. The newest group that is;
    /// intent logs on the disks keep what was acknowledged after it.
    pub fn abandon(&self) -> Txg {
        self.outage.give_up();
        let reason = "the pool was exported while it was suspended";
        self.gate.fail(Error::new(ErrorKind::Io, reason));
        self.stop();
        self.gate.figures().synced
    }
}
