//! Activity writes: how other hosts see that the pool is in use (`multihost`).
//!
//! Chapter 01, section 12. While the property is on, each leaf in turn gets an uberblock in the last
//! slot of one of its labels: that of the newest group on the disks, with the time, a sequence number,
//! and what an import has to know to tell how long to watch. If none gets through for ten intervals,
//! another host may take the pool: writing is suspended, and ends if another host did.
//!
//! Invariant: nothing but the last slot of a ring is written, which no group uses while the property
//! is on; one silent device does not keep the others from being written. While writing is suspended for want of
//! activity nothing at all is sent to the devices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_format::uberblock::{ACTIVITY_MAGIC, Uberblock};
use cenote_format::{BlockPointer, Txg};

use super::sync::seconds_now;
use super::{LivePool, MosSource};
use crate::object::ObjectSet;
use crate::pool::choose::read_uberblocks;
use crate::pool::host::HostIdentity;
use crate::pool::{labels, parallel};
use crate::{Error, ErrorKind, Result};

/// Name of the property.
pub(in crate::pool) const PROPERTY: &str = "multihost";
/// Time between two writes of a leaf, unless told otherwise.
pub(in crate::pool) const INTERVAL: Duration = Duration::from_millis(1000);
/// Intervals without a write after which another host may take the pool.
const FAIL_INTERVALS: u32 = 10;
/// Intervals for which they must get through again before writing goes on: as long as another host that was about
/// to take the pool needs to show itself.
const SETTLED_INTERVALS: u32 = 5;
/// Time between two looks at whether the property is on.
const IDLE: Duration = Duration::from_millis(200);
/// Longest wait for one write.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where the activity writes of a pool are.
#[derive(Debug)]
pub(in crate::pool) struct Activity {
    on: bool,
    /// Time between two writes of a leaf.
    interval: Duration,
    /// How many were tried.
    tried: usize,
    /// Time and sequence number of the last one.
    stamp: (u64, u16),
    /// When the last one got through.
    last: Instant,
    /// Decaying average of the time between two that got through.
    delay: Duration,
    /// Since when they get through again, while writing is suspended for want of them.
    well_since: Option<Instant>,
    /// Number and root of the newest group whose uberblock was made here.
    newest: Option<(Txg, BlockPointer)>,
}

impl Activity {
    /// As the property of the pool of this meta object set says.
    pub(in crate::pool) fn of(mos: &ObjectSet, interval: Duration) -> Self {
        let stored = MosSource::new(mos.clone()).pool_property(PROPERTY);
        let on = stored.is_some_and(|value| value != 0);
        let last = Instant::now();
        let (tried, stamp, delay) = (0, (0, 0), interval);
        let (well_since, newest) = (None, None);
        Self { on, interval, tried, stamp, last, delay, well_since, newest }
    }

    /// For so long none got through that another host may have taken the pool.
    fn is_late(&self) -> bool {
        self.last.elapsed() > self.interval * FAIL_INTERVALS
    }

    /// Whether another host wrote it; `shown`: that of the newest group on the disks.
    fn is_foreign(&self, found: &Uberblock, shown: &Uberblock) -> bool {
        let state = (found.txg, found.root);
        match state == (shown.txg, shown.root) {
            // Only its last activity write was after ours.
            true => found.timestamp > self.stamp.0.max(shown.timestamp),
            false => found.txg >= shown.txg && Some(state) != self.newest,
        }
    }

    /// What the uberblock of a group, or one with this sequence number, says of the activity.
    fn mark(&self, uberblock: &mut Uberblock, sequence: u16) {
        let interval = u64::try_from(self.interval.as_millis()).unwrap_or(0) & 0x00ff_ffff;
        uberblock.activity_magic = ACTIVITY_MAGIC;
        (uberblock.activity_delay, uberblock.activity_config) = match self.on {
            false => (0, 0),
            true => (
                u64::try_from(self.delay.as_nanos()).unwrap_or(u64::MAX).max(1),
                0b111 | interval << 8 | u64::from(sequence) << 32 | u64::from(FAIL_INTERVALS) << 48,
            ),
        };
    }

    /// Notes that one got through.
    fn got_through(&mut self) {
        let elapsed = self.last.elapsed();
        self.last = Instant::now();
        // Long ones count at once and are forgotten slowly.
        let average = (self.delay.saturating_mul(127) + elapsed) / 128;
        self.delay = elapsed.max(average).max(Duration::from_millis(1));
    }
}

/// The refusal of a host without identity; `None` where the property is off.
pub(in crate::pool) fn refusal(on: bool) -> Option<Error> {
    (on && HostIdentity::of_this_machine().id == 0).then(|| {
        let reason = "requires a non-zero system hostid";
        Error::invalid(reason).with_advice("set one with zgenhostid(8)")
    })
}

impl LivePool {
    /// Turns the activity writes on or off.
    pub(in crate::pool) fn set_multihost(&self, on: bool) {
        let mut activity = self.activity.lock();
        if on && !activity.on {
            activity.last = Instant::now();
        }
        activity.on = on;
        drop(activity);
        // Who watches compares the host of the labels with its own.
        self.dirty_labels();
    }

    /// No activity is written from now on.
    pub(in crate::pool) fn end_activity(&self) {
        self.activity.lock().on = false;
    }

    /// Whether this host may write the pool.
    pub(in crate::pool) fn check_host(&self) -> Result<()> {
        refusal(self.activity.lock().on).map_or(Ok(()), Err)
    }

    /// Has the uberblock of a group tell of the activity.
    pub(in crate::pool) fn mark_activity(&self, uberblock: &mut Uberblock) {
        let mut activity = self.activity.lock();
        activity.mark(uberblock, 0);
        activity.newest = Some((uberblock.txg, uberblock.root));
    }

    /// Starts the thread that writes activity.
    pub(in crate::pool) fn start_activity(self: &Arc<Self>) -> Result<()> {
        let weak = Arc::downgrade(self);
        let gate = self.gate.clone();
        let run = move || {
            let mut pause = IDLE;
            loop {
                std::thread::sleep(pause);
                let Some(live) = weak.upgrade() else { return };
                if gate.failure().is_some() {
                    return;
                }
                pause = live.write_activity();
            }
        };
        let thread = std::thread::Builder::new().name("multihost".into()).spawn(run);
        thread.map(drop).map_err(Error::no_thread)
    }

    /// Writes to the leaf whose turn it is, if the property is on; the time to the next turn.
    fn write_activity(&self) -> Duration {
        let vdevs = self.vdevs();
        let leaves = vdevs.devices();
        let count = u32::try_from(leaves.len()).unwrap_or(1).max(1);
        let (leaf, uberblock) = {
            let mut activity = self.activity.lock();
            let leaf = leaves.get(activity.tried % leaves.len().max(1)).cloned();
            let Some(leaf) = leaf.filter(|_| activity.on) else { return IDLE };
            activity.tried = activity.tried.wrapping_add(1);
            let mut uberblock = self.pool.uberblock();
            let now = seconds_now().max(uberblock.timestamp);
            let (time, sequence) = activity.stamp;
            activity.stamp = if now > time { (now, 1) } else { (time, sequence.saturating_add(1)) };
            uberblock.timestamp = activity.stamp.0;
            let sequence = activity.stamp.1;
            activity.mark(&mut uberblock, sequence);
            (leaf, uberblock)
        };
        if uberblock.txg == Txg(0) {
            return IDLE;
        }
        // Nothing of ours is written over what another host has there.
        let may_be_taken = self.gate.is_held() || self.activity.lock().is_late();
        if may_be_taken && self.stops_if_taken() == Some(true) {
            return IDLE;
        }
        let tree = vdevs.clone();
        let job = move || labels::write_activity(&tree, &leaf, &uberblock);
        let written = parallel::run(vec![job], 1, PATIENCE).pop().flatten();
        let through = matches!(written, Some(Ok(())));
        self.judge_activity(through);
        self.options.activity_interval / count
    }

    /// Suspends writing when nothing has got through for too long, and takes it up again.
    fn judge_activity(&self, through: bool) {
        let (suspend, settled) = {
            let mut activity = self.activity.lock();
            if !activity.on {
                return;
            }
            let suspend = activity.is_late() && !self.gate.is_held();
            if !through {
                activity.well_since = None;
            } else {
                activity.got_through();
                activity.well_since.get_or_insert_with(Instant::now);
            }
            let since = activity.well_since;
            let settled =
                since.is_some_and(|at| at.elapsed() > activity.interval * SETTLED_INTERVALS);
            (suspend, settled)
        };
        if suspend {
            let reason = "multihost writes failed or were delayed; another system could import \
                          the pool undetected";
            tracing::error!("{reason}");
            self.gate.hold(true);
            self.gate.suspend(Error::new(ErrorKind::Io, reason), false);
            self.activity.lock().well_since = None;
            return;
        }
        // If nobody knows, it is asked again when the next one gets through.
        if settled && self.gate.is_held() && self.stops_if_taken() == Some(false) {
            self.gate.hold(false);
            self.outage.over();
        }
    }

    /// Whether another host has written to the pool: then nothing more is written here. `None`: nobody knows.
    fn stops_if_taken(&self) -> Option<bool> {
        let found = self.uberblocks_there();
        if found.is_empty() {
            return None;
        }
        let foreign = {
            let activity = self.activity.lock();
            let shown = self.pool.uberblock();
            found.into_iter().find(|found| activity.is_foreign(found, &shown))
        };
        if let Some(foreign) = &foreign {
            let reason = format!("another host took the pool and wrote group {}", foreign.txg);
            tracing::error!("{reason}");
            self.stop_with(Error::new(ErrorKind::Io, reason));
        }
        Some(foreign.is_some())
    }

    /// The uberblocks on the disks, whoever wrote them.
    fn uberblocks_there(&self) -> Vec<Uberblock> {
        let jobs = self
            .vdevs()
            .devices()
            .into_iter()
            .map(|leaf| move || read_uberblocks(&*leaf.device, None).unwrap_or_default());
        let found = parallel::run(jobs.collect(), 32, PATIENCE);
        found.into_iter().flatten().flatten().collect()
    }
}
