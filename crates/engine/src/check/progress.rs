//! How far a check has come, and how long it will take.
//!
//! Invariant: the estimate follows the speed of the last seconds, and is absent rather than made
//! up.

use std::collections::VecDeque;
use std::time::Duration;

/// How much of the past the speed is measured over.
const WINDOW: Duration = Duration::from_secs(20);
/// How long a check must have run before its speed means anything.
const WARM_UP: Duration = Duration::from_secs(2);

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

/// Turns counts into [`Progress`].
#[derive(Debug, Default)]
pub(super) struct Meter {
    samples: VecDeque<(Duration, u64)>,
}

impl Meter {
    /// The state at `elapsed`, with speed and estimate filled in.
    pub(super) fn measure(&mut self, mut now: Progress) -> Progress {
        self.samples.push_back((now.elapsed, now.bytes));
        while self.samples.len() > 2
            && self.samples.get(1).is_some_and(|(at, _)| now.elapsed - *at > WINDOW)
        {
            self.samples.pop_front();
        }
        let Some((start, bytes)) = self.samples.front().copied() else { return now };
        let span = now.elapsed.saturating_sub(start).as_millis();
        let done = u128::from(now.bytes.saturating_sub(bytes));
        if let Some(rate) = (done * 1000).checked_div(span) {
            now.rate = u64::try_from(rate).unwrap_or(u64::MAX);
        }
        if now.elapsed >= WARM_UP && now.rate > 0 {
            let left = now.total.saturating_sub(now.bytes);
            now.remaining = Some(Duration::from_secs(left.div_ceil(now.rate)));
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_last_seconds() {
        let mut meter = Meter::default();
        let at = |seconds: u64, bytes: u64| Progress {
            bytes,
            total: 10_000,
            elapsed: Duration::from_secs(seconds),
            ..Progress::default()
        };
        assert_eq!(meter.measure(at(0, 0)).remaining, None);
        assert_eq!(meter.measure(at(1, 100)).remaining, None);
        let now = meter.measure(at(10, 1000));
        assert_eq!((now.rate, now.remaining), (100, Some(Duration::from_secs(90))));
        // Ten times slower from here on: after a window the estimate knows.
        (11..60).for_each(|second| {
            meter.measure(at(second, 1000 + (second - 10) * 10));
        });
        let now = meter.measure(at(60, 1500));
        assert_eq!((now.rate, now.remaining), (10, Some(Duration::from_secs(850))));
    }
}
