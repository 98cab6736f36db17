//! How many operations of a device missed their deadline and have not come back.
//!
//! Invariant: every `add` is followed by exactly one `remove`, when the kernel returns the
//! operation; so the count reaches zero again once the device has answered everything.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Count of overdue operations of one device.
#[derive(Debug, Default)]
pub struct Stall(AtomicUsize);

impl Stall {
    /// Operations that are overdue now.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// An operation missed its deadline.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// An overdue operation came back.
    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
