//! How fast work goes, and how long the rest of it will take.
//!
//! Invariant: the estimate follows the speed of the last seconds, and is absent rather than made up.

use std::collections::VecDeque;
use std::time::Duration;

/// How much of the past the speed is measured over.
const WINDOW: Duration = Duration::from_secs(20);
/// How long work must be under way before its speed means anything.
const WARM_UP: Duration = Duration::from_secs(2);

/// Speed at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Bytes per second, lately.
    pub rate: u64,
    /// Time still needed at this speed; `None` while it cannot be told.
    pub remaining: Option<Duration>,
    /// It was measured for long enough to mean something.
    pub is_known: bool,
}

impl Pace {
    /// The rate, where it means something.
    pub fn known_rate(&self) -> Option<u64> {
        self.is_known.then_some(self.rate)
    }
}

/// Turns counts into a [`Pace`].
#[derive(Clone, Debug, Default)]
pub struct Speed {
    samples: VecDeque<(Duration, u64)>,
    begun: Option<Duration>,
}

impl Speed {
    /// The speed at `now`, when `done` bytes are done and `left` are left. Times ascend.
    pub fn measure(&mut self, now: Duration, done: u64, left: u64) -> Pace {
        let begun = *self.begun.get_or_insert(now);
        self.samples.push_back((now, done));
        let is_old = |at: &Duration| now.saturating_sub(*at) > WINDOW;
        while self.samples.len() > 2 && self.samples.get(1).is_some_and(|(at, _)| is_old(at)) {
            self.samples.pop_front();
        }
        let mut pace = Pace::default();
        let Some((start, before)) = self.samples.front().copied() else { return pace };
        let span = now.saturating_sub(start).as_millis();
        let bytes = u128::from(done.saturating_sub(before));
        if let Some(rate) = (bytes * 1000).checked_div(span) {
            pace.rate = u64::try_from(rate).unwrap_or(u64::MAX);
        }
        pace.is_known = now.saturating_sub(begun) >= WARM_UP;
        if pace.is_known && pace.rate > 0 {
            pace.remaining = Some(Duration::from_secs(left.div_ceil(pace.rate)));
        }
        pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_last_seconds() {
        let mut speed = Speed::default();
        let mut at = |seconds: u64, done: u64| {
            speed.measure(Duration::from_secs(seconds), done, 10_000 - done)
        };
        assert_eq!(at(0, 0).remaining, None);
        assert_eq!(at(1, 100).remaining, None);
        let now = at(10, 1000);
        assert_eq!((now.rate, now.remaining), (100, Some(Duration::from_secs(90))));
        // Ten times slower from here on: after a window the estimate knows.
        (11..60).for_each(|second| {
            at(second, 1000 + (second - 10) * 10);
        });
        let now = at(60, 1500);
        assert_eq!((now.rate, now.remaining), (10, Some(Duration::from_secs(850))));
    }
}
