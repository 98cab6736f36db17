//! How far a check has come, and how long it will take.
//!
//! Invariant: what cannot be told is absent rather than made up.

use std::time::Duration;

use crate::job::Speed;

/// State of a running check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Block pointers visited.
    pub blocks: u64,
    /// Allocated bytes of the blocks visited.
    pub bytes: u64,
    /// Allocated bytes of the pool.
    pub total: u64,
    /// Things found wrong.
    pub findings: u64,
    /// Time since the start.
    pub elapsed: Duration,
    /// Bytes per second, lately.
    pub rate: u64,
    /// Time still needed at this speed; `None` while it cannot be told.
    pub remaining: Option<Duration>,
}

impl Progress {
    /// The same with what `speed` says of it.
    pub(super) fn at(mut self, speed: &mut Speed) -> Self {
        let pace = speed.measure(self.elapsed, self.bytes, self.total.saturating_sub(self.bytes));
        (self.rate, self.remaining) = (pace.rate, pace.remaining);
        self
    }
}
