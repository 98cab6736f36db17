//! A leaf of the tree: a device (or the lack of one), its health, and what it is known to miss.
//!
//! Invariant: a read or write of a block handed to a device lies inside the device's allocatable area, or inside the
//! scratch area of a running raidz expansion; labels are never reached through here.

use super::health::{Failure, Health};
use super::inject::LeafFaults;
use super::state::{Aux, Condition, VdevState};
use super::stats::Stats;
use arc_swap::ArcSwapOption;
use cenote_device::{Device, DeviceError, Stall};
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::label::allocatable;
use cenote_format::{Guid, Txg, Uberblock};
use parking_lot::{Mutex, RwLock};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// First byte of a device's allocatable area (chapter 03, section 1).
pub const DATA_START: u64 = 0x40_0000;
/// First byte of a device's boot area, the scratch area of a raidz expansion.
pub const BOOT_START: u64 = 0x8_0000;
/// Devices smaller than this are refused.
pub const SMALLEST_DEVICE: u64 = 64 << 20;

/// Why a leaf's device cannot be used.
#[derive(Debug, Clone)]
pub struct LeafUnavailable {
    /// State and reason to show.
    pub condition: Condition,
    /// In words, for logs.
    pub reason: String,
}

impl LeafUnavailable {
    /// The device could not be opened.
    pub fn open_failed(reason: impl Into<String>) -> Self {
        let condition = Condition::new(VdevState::Unavailable, Aux::OpenFailed);
        Self { condition, reason: reason.into() }
    }

    pub(crate) fn new(aux: Aux, reason: String) -> Self {
        Self { condition: Condition::new(VdevState::Unavailable, aux), reason }
    }
}

/// Finds and opens the device of a leaf; its labels are checked here, not in the tree.
pub trait LeafOpener: Send + Sync {
    /// The device of `leaf` (of kind disk or file), or why there is none. Its `top_guid` is that of
    /// its top-level vdev.
    fn open(&self, leaf: &VdevConfig) -> Result<Arc<dyn Device>, LeafUnavailable>;
    /// Every device that has to hold this uberblock of a group does.
    fn committed(&self, _uberblock: &Uberblock) {}
    /// The device of a leaf turned out not to be one of this pool: it is not opened any more.
    fn refuse(&self, _leaf: Guid, _reason: &str) {}
    /// Whether `device`, which was opened for `leaf`, is its device by now, too; false: it is, and has lost some of its
    /// labels. What cannot be found out is taken for well.
    fn still_is(&self, _: &VdevConfig, _: &Arc<dyn Device>) -> Result<bool, LeafUnavailable> {
        Ok(true)
    }
    /// The device of a leaf is let go: what is opened for it next need not be the same.
    fn forget(&self, _leaf: Guid) {}
    /// Groups that a device just opened for `leaf` may lack though nobody noted so: it was away when the
    /// pool was opened.
    fn lacks(&self, _leaf: &VdevConfig) -> Range<u64> {
        0..0
    }
}

impl<F> LeafOpener for F
where
    F: Fn(&VdevConfig) -> Result<Arc<dyn Device>, LeafUnavailable> + Send + Sync,
{
    fn open(&self, leaf: &VdevConfig) -> Result<Arc<dyn Device>, LeafUnavailable> {
        self(leaf)
    }
}

/// What opening gave.
#[derive(Debug, Clone)]
enum Opened {
    Device(Arc<dyn Device>),
    /// It has none of its own: what it holds lies on other leaves.
    Elsewhere,
    Not(Condition),
}

/// A leaf with (or without) a device. What becomes of it is shared by the trees that follow each
/// other.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) config: VdevConfig,
    /// Index of its top-level vdev.
    pub(super) top: u32,
    pub(super) minimum: u64,
    opened: Arc<RwLock<Opened>>,
    pub(super) health: Arc<Mutex<Health>>,
    pub(super) stats: Arc<Stats>,
    /// Txgs whose data the leaf does not have (its dirty time log), sorted ranges.
    missing: Arc<RwLock<Vec<Range<u64>>>>,
    /// Bytes of reads under way.
    pub(super) pending: Arc<AtomicU64>,
    unflushed: Arc<Mutex<Unflushed>>,
    /// What the administrator has said of it in this life of the pool.
    said: Arc<AtomicU8>,
    /// Allocatable bytes that count for its vdev: those it had when it was opened, until somebody wants more.
    counted: Arc<AtomicU64>,
    /// What is to happen to it on purpose.
    pub(super) faults: Arc<ArcSwapOption<LeafFaults>>,
}

/// What the administrator has said of a leaf in this life of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Said {
    /// Nothing: what its configuration says counts.
    Nothing,
    /// It rests.
    Rests,
    /// It counts as faulty.
    Faulted,
    /// It is to be tried, whatever its configuration says of faults.
    Trusted,
    /// It counts as degraded.
    Degraded,
}

/// What happened to a leaf since its last flush.
#[derive(Debug, Default)]
struct Unflushed {
    /// Births of the blocks written, sorted ranges.
    written: Vec<Range<u64>>,
    /// A write was missed.
    missed: bool,
    /// The device went away: what was written and not flushed may be lost.
    lost: bool,
}

/// Adds one txg to sorted ranges that do not touch. False if it was there.
fn add_txg(ranges: &mut Vec<Range<u64>>, txg: u64) -> bool {
    let at = ranges.partition_point(|range| range.end < txg);
    match ranges.get_mut(at) {
        Some(range) if range.contains(&txg) => return false,
        Some(range) if range.end == txg => range.end = txg.saturating_add(1),
        Some(range) if range.start == txg.saturating_add(1) => range.start = txg,
        _ => {
            ranges.insert(at, txg..txg.saturating_add(1));
            return true;
        }
    }
    // It may have closed the gap to the next one.
    if let Some([range, next]) = ranges.get(at..at + 2).and_then(|pair| pair.first_chunk::<2>())
        && range.end == next.start
    {
        let end = next.end;
        if let Some(range) = ranges.get_mut(at) {
            range.end = end;
        }
        ranges.remove(at + 1);
    }
    true
}

/// Sorts ranges of groups and makes one of those that touch.
pub(crate) fn join_touching(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let touches = next.start <= range.end;
        if touches {
            range.end = range.end.max(next.end);
        }
        touches
    });
}

/// Adds a range to sorted ranges that do not touch. False if it was there.
fn add_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) -> bool {
    let inside = |known: &Range<u64>| known.start <= range.start && range.end <= known.end;
    if range.is_empty() || ranges.iter().any(inside) {
        return false;
    }
    ranges.push(range);
    join_touching(ranges);
    true
}

/// Whether and how well a leaf can serve a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fitness {
    /// Nothing speaks against it.
    Good,
    /// Works, but has had errors.
    Worn,
    /// Works, but took so long that others were read instead, or has not answered yet.
    Slow,
    /// Its dirty time log says it does not have the data.
    Stale,
}

impl Leaf {
    /// A leaf that needs at least `minimum` allocatable bytes; opened unless its configuration
    /// forbids it.
    pub(super) fn new(config: VdevConfig, top: u32, minimum: u64, opener: &dyn LeafOpener) -> Self {
        let closed = match config.kind {
            VdevKind::DistributedSpare => Opened::Elsewhere,
            _ => Opened::Not(Condition::new(VdevState::Closed, Aux::None)),
        };
        let leaf = Self {
            config,
            top,
            minimum,
            opened: Arc::new(RwLock::new(closed)),
            health: Arc::default(),
            stats: Arc::default(),
            missing: Arc::default(),
            pending: Arc::default(),
            unflushed: Arc::default(),
            said: Arc::new(AtomicU8::new(Said::Nothing as u8)),
            counted: Arc::default(),
            faults: Arc::default(),
        };
        leaf.open(opener);
        leaf
    }

    /// The same leaf as another topology has it.
    pub(super) fn as_in(&self, config: VdevConfig, top: u32, minimum: u64) -> Self {
        Self { config, top, minimum, ..self.clone() }
    }

    /// Tries to open the device if there is none. True if it now has one that it had not.
    pub(super) fn open(&self, opener: &dyn LeafOpener) -> bool {
        if !matches!(*self.opened.read(), Opened::Not(_)) {
            return false;
        }
        let opened = match self.try_open(opener) {
            Ok(device) => {
                // Nothing is read from it in good faith before that is known.
                self.add_missing(opener.lacks(&self.config));
                self.counted.store(allocatable(device.size()), Relaxed);
                Opened::Device(device)
            }
            Err(why) => {
                tracing::warn!(
                    leaf = self.config.guid.0,
                    reason = why.reason,
                    "device unavailable"
                );
                Opened::Not(why.condition)
            }
        };
        let has_device = matches!(opened, Opened::Device(_));
        *self.opened.write() = opened;
        has_device
    }

    fn try_open(&self, opener: &dyn LeafOpener) -> Result<Arc<dyn Device>, LeafUnavailable> {
        let refused = |state, aux, reason: &str| LeafUnavailable {
            condition: Condition::new(state, aux),
            reason: reason.into(),
        };
        if self.counts_as_faulty() {
            return Err(refused(VdevState::Faulted, Aux::External, "faulted by the administrator"));
        }
        if self.config.offline || self.said() == Said::Rests {
            return Err(refused(VdevState::Offline, Aux::None, "taken offline"));
        }
        if self.faults.load().as_ref().is_some_and(|faults| faults.refuses_open()) {
            return Err(refused(VdevState::Removed, Aux::None, "gone on purpose"));
        }
        let device = opener.open(&self.config).map_err(|mut why| {
            if self.config.removed && why.condition.aux == Aux::OpenFailed {
                why.condition = Condition::new(VdevState::Removed, Aux::None);
            }
            why
        })?;
        let size = device.size();
        if size < SMALLEST_DEVICE {
            return Err(LeafUnavailable::new(Aux::TooSmall, format!("only {size} bytes")));
        }
        if allocatable(size) < self.minimum {
            let reason = format!("{} bytes, needs {}", allocatable(size), self.minimum);
            return Err(LeafUnavailable::new(Aux::BadLabel, reason));
        }
        Ok(device)
    }

    /// Its condition: the device's, or what errors made of it, or what its configuration says.
    pub(super) fn condition(&self) -> Condition {
        match &*self.opened.read() {
            Opened::Not(condition) => *condition,
            Opened::Device(_) | Opened::Elsewhere => {
                let condition = self.health.lock().condition();
                if condition == Condition::ONLINE && self.is_degraded() {
                    let by_hand = self.config.is_external() || self.said() == Said::Degraded;
                    let aux = if by_hand { Aux::External } else { Aux::ErrorsExceeded };
                    return Condition::new(VdevState::Degraded, aux);
                }
                // One that missed writes is not what it should be until it was resilvered.
                if condition == Condition::ONLINE && !self.missing.read().is_empty() {
                    return Condition::new(VdevState::Degraded, Aux::None);
                }
                condition
            }
        }
    }

    pub(super) fn device(&self) -> Option<Arc<dyn Device>> {
        let device = match &*self.opened.read() {
            Opened::Device(device) => Arc::clone(device),
            Opened::Not(_) | Opened::Elsewhere => return None,
        };
        Some(match &*self.faults.load() {
            None => device,
            Some(faults) => faults.around(device),
        })
    }

    /// It is recorded that it counts as degraded.
    pub(super) fn is_degraded(&self) -> bool {
        self.config.degraded && self.said() != Said::Trusted
    }

    /// It is recorded that it had too many errors.
    pub(super) fn is_worn(&self) -> bool {
        self.is_degraded() && !self.config.is_external() && self.said() != Said::Degraded
    }

    /// What somebody said in its favour counts no more.
    pub(super) fn doubt(&self) {
        if self.said() == Said::Trusted {
            self.said.store(Said::Nothing as u8, Relaxed);
        }
    }

    fn said(&self) -> Said {
        match self.said.load(Relaxed) {
            1 => Said::Rests,
            2 => Said::Faulted,
            3 => Said::Trusted,
            4 => Said::Degraded,
            _ => Said::Nothing,
        }
    }

    /// Allocatable bytes; 0 without a device.
    pub(super) fn asize(&self) -> u64 {
        self.device().map_or(0, |device| allocatable(device.size()))
    }

    /// Allocatable bytes that count for its vdev; 0 without a device.
    pub(super) fn counted(&self) -> u64 {
        self.asize().min(self.counted.load(Relaxed))
    }

    /// All that its device has counts for its vdev.
    pub(super) fn count_all(&self) {
        self.counted.store(self.asize(), Relaxed);
    }

    /// How well it serves a block born in `birth`; `None` if it has no device, or is given up and
    /// `desperate` is false.
    pub(super) fn fitness(&self, birth: Txg, now: Duration, desperate: bool) -> Option<Fitness> {
        if !matches!(*self.opened.read(), Opened::Device(_)) {
            return None;
        }
        let (condition, is_slow) = {
            let health = self.health.lock();
            if !desperate && !health.may_try(now) {
                return None;
            }
            (health.condition(), health.is_slow(now))
        };
        if self.misses(birth) {
            Some(Fitness::Stale)
        } else if is_slow || self.stalls().is_some() {
            Some(Fitness::Slow)
        } else if condition != Condition::ONLINE || self.is_degraded() {
            Some(Fitness::Worn)
        } else {
            Some(Fitness::Good)
        }
    }

    /// For how long its device has not answered something.
    pub(super) fn stalls(&self) -> Option<Duration> {
        match &*self.opened.read() {
            Opened::Device(device) => device.stall().and_then(Stall::lasts),
            Opened::Not(_) | Opened::Elsewhere => None,
        }
    }

    /// Its dirty time log says that it has no data of `txg`.
    pub(super) fn misses(&self, txg: Txg) -> bool {
        self.missing.read().iter().any(|range| range.contains(&txg.0))
    }

    /// Sets the txgs whose data it does not have.
    pub(super) fn set_missing(&self, ranges: Vec<Range<u64>>) {
        *self.missing.write() = ranges;
    }

    /// Exchanges the txgs whose data it does not have; nobody adds one meanwhile. True if they are others now.
    pub(super) fn alter_missing(
        &self,
        alter: impl FnOnce(&[Range<u64>]) -> Vec<Range<u64>>,
    ) -> bool {
        let mut missing = self.missing.write();
        let left = alter(&missing);
        let is_other = left != *missing;
        *missing = left;
        is_other
    }

    /// Adds txgs whose data it does not have. False if all were known.
    pub(super) fn add_missing(&self, range: Range<u64>) -> bool {
        add_range(&mut self.missing.write(), range)
    }

    /// It misses nothing.
    pub(super) fn is_complete(&self) -> bool {
        self.missing.read().is_empty()
    }

    /// The txgs whose data it does not have.
    pub(super) fn missing(&self) -> Vec<Range<u64>> {
        self.missing.read().clone()
    }

    /// Notes that it lacks data of `txg`. False if that was known.
    pub(super) fn note_missed(&self, txg: Txg) -> bool {
        self.unflushed.lock().missed = true;
        !self.misses(txg) && add_txg(&mut self.missing.write(), txg.0)
    }

    /// Notes that data born in `birth` was written and waits for a flush.
    pub(super) fn wrote(&self, birth: Txg) {
        add_txg(&mut self.unflushed.lock().written, birth.0);
    }

    /// The same of blocks of any of these groups.
    pub(super) fn wrote_all(&self, births: &Range<u64>) {
        add_range(&mut self.unflushed.lock().written, births.clone());
    }

    /// What was written of these groups may be lost.
    pub(super) fn note_lost(&self, births: Range<u64>) -> bool {
        self.unflushed.lock().missed = true;
        self.add_missing(births)
    }

    /// The births of what was written since the last call, whether anything was missed, and whether
    /// the device went away since.
    pub(super) fn take_unflushed(&self) -> (Vec<Range<u64>>, bool, bool) {
        let Unflushed { written, missed, lost } = std::mem::take(&mut *self.unflushed.lock());
        (written, missed, lost)
    }

    /// What to call it in messages.
    pub(super) fn name(&self) -> String {
        self.config.path.clone().unwrap_or_else(|| self.config.guid.to_string())
    }

    /// Drops a device that is gone, so that it is opened anew.
    pub(super) fn drop_gone(&self) {
        let gone = self.health.lock().condition().state == VdevState::Removed;
        if gone {
            self.close(Condition::new(VdevState::Removed, Aux::None));
        }
    }

    /// Somebody said that it is faulty.
    fn counts_as_faulty(&self) -> bool {
        match self.said() {
            Said::Trusted => false,
            Said::Faulted => true,
            _ => self.config.faulted && self.config.is_external(),
        }
    }

    /// Somebody has said that it is not to be used.
    pub(super) fn is_put_away(&self) -> bool {
        matches!(self.said(), Said::Rests | Said::Faulted)
    }

    /// Is neither read nor written until [`Leaf::wake`]. One that counts as faulty goes on so.
    pub(super) fn rest(&self) {
        if self.counts_as_faulty() {
            return;
        }
        self.said.store(Said::Rests as u8, Relaxed);
        self.close(Condition::new(VdevState::Offline, Aux::None));
    }

    /// Has no device any more: what it had is none of this pool's.
    pub(super) fn leave_out(&self, condition: Condition) {
        self.close(condition);
    }

    /// Counts as degraded, as its configuration says, until [`Leaf::trust`].
    pub(super) fn degrade(&self) {
        self.said.store(Said::Degraded as u8, Relaxed);
    }

    /// Counts as faulty until [`Leaf::trust`].
    pub(super) fn give_up(&self) {
        self.said.store(Said::Faulted as u8, Relaxed);
        self.close(Condition::new(VdevState::Faulted, Aux::External));
    }

    /// May be opened again if it rested.
    pub(super) fn wake(&self) {
        if self.said() == Said::Rests {
            self.said.store(Said::Nothing as u8, Relaxed);
        }
    }

    /// May be opened again if it counted as faulty. True if it did, or was said to be degraded.
    pub(super) fn trust(&self) -> bool {
        let is_marked = self.config.faulted || self.config.degraded;
        if self.said() != Said::Faulted && !is_marked {
            return false;
        }
        self.said.store(Said::Trusted as u8, Relaxed);
        true
    }

    fn close(&self, condition: Condition) {
        let mut unflushed = self.unflushed.lock();
        unflushed.lost |= !unflushed.written.is_empty();
        drop(unflushed);
        *self.opened.write() = Opened::Not(condition);
    }
}

/// What a device error says of the device; `None` if it says nothing (the address was bad).
pub(super) fn failure_of(error: &DeviceError) -> Option<Failure> {
    match error {
        DeviceError::Io(_) => Some(Failure::Io),
        DeviceError::TimedOut(_) | DeviceError::Stuck(_) => Some(Failure::Silent),
        DeviceError::Gone => Some(Failure::Gone),
        DeviceError::OutOfRange { .. } | DeviceError::ReadOnly | DeviceError::Busy(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn txgs_join_into_ranges() {
        let mut ranges = Vec::new();
        for txg in [5, 3, 9, 4, 4, 10, 1] {
            add_txg(&mut ranges, txg);
        }
        assert_eq!(ranges, [1..2, 3..6, 9..11]);
        assert!(add_txg(&mut ranges, 2));
        assert_eq!(ranges, [1..6, 9..11]);
        assert!(!add_txg(&mut ranges, 9));
        for txg in [8, 7, 6] {
            assert!(add_txg(&mut ranges, txg));
        }
        assert_eq!((ranges.len(), ranges[0].clone()), (1, 1..11));
    }
}
