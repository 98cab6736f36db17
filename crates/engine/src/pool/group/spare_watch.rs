//! Which devices have been lost long enough for a hot spare to step in.
//!
//! Invariant: a device is given time to come back, and what did not work is not tried again at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cenote_format::Guid;
use parking_lot::Mutex;

/// How long a device may be lost before a spare steps in.
const GRACE: Duration = Duration::from_secs(10);
/// How long it is before that is tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// Since when devices are lost, and when a spare last was to step in.
#[derive(Debug, Default)]
pub(in crate::pool) struct SpareWatch(Mutex<BTreeMap<Guid, Instant>>);

impl SpareWatch {
    /// Those of `lost` that were lost long enough by `now`; they are not told again for a while.
    pub(in crate::pool) fn due(&self, lost: &[Guid], now: Instant) -> Vec<Guid> {
        let mut since = self.0.lock();
        since.retain(|leaf, _| lost.contains(leaf));
        let mut due = Vec::new();
        for leaf in lost {
            let then = since.entry(*leaf).or_insert(now);
            if now.saturating_duration_since(*then) >= GRACE {
                *then = now + AGAIN;
                due.push(*leaf);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_device_has_time_to_come_back() {
        let (watch, start) = (SpareWatch::default(), Instant::now());
        let (one, two) = (Guid(1), Guid(2));
        assert!(watch.due(&[one], start).is_empty());
        assert!(watch.due(&[one, two], start + GRACE / 2).is_empty());
        assert_eq!(watch.due(&[one, two], start + GRACE), [one]);
        // It is not told again at once, and one that was back begins anew.
        assert!(watch.due(&[one], start + GRACE * 2).is_empty());
        assert!(watch.due(&[one, two], start + GRACE * 2).is_empty());
        assert_eq!(watch.due(&[one, two], start + GRACE * 3), [two]);
        assert_eq!(watch.due(&[one], start + GRACE * 2 + AGAIN), [one]);
    }
}
