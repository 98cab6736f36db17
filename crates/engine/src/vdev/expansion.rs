//! How far the expansion of a RAID-Z vdev has come, for all that read and write blocks there meanwhile.
//!
//! Chapter 03, section 4; chapter 08, section 21.3. Sectors are moved from the front to the back, and a block
//! whose rows were moved is found at its new place from the moment an uberblock on the disks says so. Invariant:
//! while sectors are moved nothing is written to the vdev; places from which something was moved are written over
//! only when nobody reads there any more.

use super::error::VdevError;
use super::raidz::Reflow;
use super::topology::Topology;
use arc_swap::ArcSwap;
use cenote_format::Guid;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often it is looked whether those who read have ended.
const GLANCE: Duration = Duration::from_millis(1);

/// What the trees of a pool share as long as the same vdev is being expanded, or none.
#[derive(Debug, Default)]
pub(super) struct Expansion {
    /// The vdev.
    pub(super) of: Option<Guid>,
    place: ArcSwap<Reflow>,
    /// Places that somebody may read by still.
    outdated: Mutex<Vec<Weak<Reflow>>>,
    /// What trees shared before: who has one of those knows nothing of this.
    earlier: Vec<Weak<Expansion>>,
    /// Shared by who writes blocks.
    moving: RwLock<()>,
    waiting: AtomicUsize,
    /// An uberblock is not on all devices.
    pub(super) unspread: AtomicBool,
    /// Somebody wants to have it tried again.
    pub(super) again: AtomicBool,
}

/// While it lives no block is written to vdevs that are being expanded.
pub struct Moving<'a> {
    expansion: &'a Expansion,
    _alone: RwLockWriteGuard<'a, ()>,
}

impl Moving<'_> {
    /// Somebody waits to write.
    pub fn is_waited_for(&self) -> bool {
        self.expansion.waiting.load(SeqCst) > 0
    }

    /// The uberblock with this word is on the disks: from now on blocks are where that says.
    pub fn came_to(&self, word: u64) {
        self.expansion.set(Reflow::from_word(word));
    }

    /// Waits until nobody reads by a place that was left.
    ///
    /// # Errors
    /// [`VdevError::Unfit`] if somebody does so for longer than `patience`.
    pub fn wait_for_readers(&self, patience: Duration) -> Result<(), VdevError> {
        self.expansion.wait_until_settled(patience)
    }
}

/// The vdev of `topology` that is being expanded.
fn expanding(topology: &Topology) -> Option<Guid> {
    topology.tops().iter().find(|top| top.raidz_expanding).map(|top| top.guid)
}

impl Expansion {
    /// Of the first tree of a pool.
    pub(super) fn of(topology: &Topology) -> Arc<Self> {
        let unspread = AtomicBool::new(true);
        Arc::new(Self { of: expanding(topology), unspread, ..Self::default() })
    }

    /// Of a tree that follows one that shares `self`.
    pub(super) fn next(self: &Arc<Self>, topology: &Topology) -> Arc<Self> {
        let of = expanding(topology);
        if of == self.of {
            return self.clone();
        }
        let known = self.earlier.iter().filter(|one| one.strong_count() > 0).cloned();
        let earlier = known.chain([Arc::downgrade(self)]).collect();
        let unspread = AtomicBool::new(true);
        Arc::new(Self { of, earlier, unspread, ..Self::default() })
    }

    pub(super) fn place(&self) -> Arc<Reflow> {
        self.place.load_full()
    }

    pub(super) fn set(&self, place: Reflow) {
        let before = self.place.swap(Arc::new(place));
        self.outdated.lock().push(Arc::downgrade(&before));
    }

    /// Held while blocks are laid out and written.
    pub(super) fn writing(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.of?;
        if let Some(guard) = self.moving.try_read() {
            return Some(guard);
        }
        self.waiting.fetch_add(1, SeqCst);
        let guard = self.moving.read();
        self.waiting.fetch_sub(1, SeqCst);
        Some(guard)
    }

    /// Has nobody write blocks until what this gives is dropped.
    ///
    /// # Errors
    /// [`VdevError::Unfit`] if somebody still reads by a place that was left.
    pub(super) fn alone(&self, patience: Duration) -> Result<Moving<'_>, VdevError> {
        self.wait_until_settled(patience)?;
        Ok(Moving { expansion: self, _alone: self.moving.write() })
    }

    fn wait_until_settled(&self, patience: Duration) -> Result<(), VdevError> {
        let end = Instant::now() + patience;
        while !self.is_settled() {
            if Instant::now() > end {
                return Err(VdevError::Unfit("somebody still reads where sectors were before"));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        let mut outdated = self.outdated.lock();
        outdated.retain(|place| place.strong_count() > 0);
        outdated.is_empty() && self.earlier.iter().all(|one| one.strong_count() == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_found_a_place_before_it_was_left_is_waited_for() {
        let expansion = Expansion::default();
        let reader = expansion.place();
        let moving = expansion.alone(Duration::ZERO).unwrap();
        // Nothing is where that reader would look for it, as soon as it is written over.
        moving.came_to(5);
        let newer = expansion.place();
        assert!(moving.wait_for_readers(Duration::from_millis(5)).is_err());
        drop(reader);
        moving.wait_for_readers(Duration::ZERO).unwrap();
        drop(newer);
    }
}
