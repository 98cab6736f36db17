//! How many operations of a device missed their deadline and have not come back.
//!
//! Invariant: every `add` is followed by exactly one `remove`, when the kernel returns the
//! operation; so the count reaches zero again once the device has answered everything.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What is overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// A read that somebody could do without before its deadline.
    Early,
    /// A read after its deadline; a write or a flush, which may still change the device.
    Late,
}

/// Count of overdue operations of one device.
#[derive(Debug, Default)]
pub struct Stall {
    early: AtomicUsize,
    late: AtomicUsize,
    /// When the first of those that are out now was given up.
    since: Mutex<Option<Instant>>,
}

impl Stall {
    /// Operations that are overdue now.
    pub fn count(&self) -> usize {
        self.early.load(Ordering::Acquire).saturating_add(self.late())
    }

    /// Of those, what nothing is sent beside.
    pub(crate) fn late(&self) -> usize {
        self.late.load(Ordering::Acquire)
    }

    /// How long operations have been overdue; none if all have come back.
    pub fn lasts(&self) -> Option<Duration> {
        self.since.lock().filter(|_| self.count() > 0).map(|since| since.elapsed())
    }

    fn counter(&self, what: Overdue) -> &AtomicUsize {
        match what {
            Overdue::Early => &self.early,
            Overdue::Late => &self.late,
        }
    }

    /// An operation missed its deadline.
    pub(crate) fn add(&self, what: Overdue) {
        let mut since = self.since.lock();
        if self.count() == 0 {
            *since = Some(Instant::now());
        }
        self.counter(what).fetch_add(1, Ordering::AcqRel);
    }

    /// An overdue operation came back.
    pub(crate) fn remove(&self, what: Overdue) {
        self.counter(what).fetch_sub(1, Ordering::AcqRel);
    }
}
