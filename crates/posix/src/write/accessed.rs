//! When a file was read last, until its object says so.
//!
//! Invariant: of several times that are noted the latest stays.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crate::tree::Timestamp;

const SECOND: i64 = 1_000_000_000;

/// When a file was read last, if its object does not say so yet: nanoseconds since 1970, or 0.
#[derive(Default)]
pub(super) struct Accessed(AtomicI64);

impl Accessed {
    /// Notes a time; whether none was noted.
    pub(super) fn note(&self, time: Timestamp) -> bool {
        let nanoseconds = time.seconds.saturating_mul(SECOND);
        self.0.fetch_max(nanoseconds.saturating_add(time.nanoseconds.into()), Relaxed) == 0
    }

    /// What is noted.
    pub(super) fn get(&self) -> Option<Timestamp> {
        time_of(self.0.load(Relaxed))
    }

    /// What was noted is noted no more: the object says it, or another time was set.
    pub(super) fn take(&self) -> Option<Timestamp> {
        time_of(self.0.swap(0, Relaxed))
    }
}

fn time_of(nanoseconds: i64) -> Option<Timestamp> {
    (nanoseconds != 0).then(|| Timestamp {
        seconds: nanoseconds.div_euclid(SECOND),
        nanoseconds: nanoseconds.rem_euclid(SECOND) as u32,
    })
}
