//! Whether a pool uses by itself what its devices have grown by, and when it last looked.
//!
//! Invariant: it follows the property `autoexpand` as the last group has it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::MosSource;
use crate::object::ObjectSet;

/// The property.
pub(in crate::pool) const PROPERTY: &str = "autoexpand";

/// Whether a pool grows by itself.
#[derive(Debug, Default)]
pub(in crate::pool) struct Growth {
    by_itself: AtomicBool,
    looked: Mutex<Option<Instant>>,
}

impl Growth {
    /// As the pool of this meta object set says.
    pub(in crate::pool) fn of(mos: &ObjectSet) -> Self {
        let growth = Self::default();
        let stored = MosSource::new(mos.clone()).pool_property(PROPERTY);
        growth.set(stored.is_some_and(|value| value != 0));
        growth
    }

    pub(in crate::pool) fn set(&self, by_itself: bool) {
        self.by_itself.store(by_itself, Relaxed);
    }

    pub(in crate::pool) fn by_itself(&self) -> bool {
        self.by_itself.load(Relaxed)
    }

    /// So long has passed since this was last true.
    pub(in crate::pool) fn is_due(&self, now: Instant, pause: Duration) -> bool {
        let mut looked = self.looked.lock();
        if looked.is_some_and(|then| now.saturating_duration_since(then) < pause) {
            return false;
        }
        *looked = Some(now);
        true
    }
}
