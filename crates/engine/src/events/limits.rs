//! How many reports of a kind are told.
//!
//! The numbers are OpenZFS's: 20 reports of wrong checksums and 20 of slow answers a second from one device;
//! the very same report of an error once in 15 minutes. Invariant: what is remembered is bounded by
//! [`MOST_REMEMBERED`].

use std::collections::HashMap;
use std::time::Duration;

use cenote_format::Guid;

/// Reports of one kind from one device within a second.
const A_SECOND: u32 = 20;
/// How long the very same report is not told again.
const SAME: Duration = Duration::from_secs(900);
/// Reports that are remembered.
const MOST_REMEMBERED: usize = 2000;

/// What makes a report one of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limited {
    /// Its class, without what all have in front.
    pub class: &'static str,
    /// The device.
    pub vdev: Guid,
    /// First byte and bytes on the device, or numbers of the dataset and object: what makes it the same as
    /// another.
    pub place: Option<(u64, u64)>,
    /// More of that: the error, or the number of the block.
    pub number: u64,
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    /// The second, and how many there were in it.
    rates: HashMap<(&'static str, Guid), (u64, u32)>,
    told: HashMap<Limited, Duration>,
    dropped: u64,
}

impl Limits {
    pub(super) fn admit(&mut self, what: &Limited, now: Duration) -> bool {
        if what.place.is_some() && what.class != "delay" {
            if let Some(before) = self.told.get(what)
                && now.saturating_sub(*before) < SAME
            {
                return false;
            }
            if self.told.len() >= MOST_REMEMBERED {
                self.told.retain(|_, before| now.saturating_sub(*before) < SAME);
            }
            if self.told.len() >= MOST_REMEMBERED {
                self.told.clear();
            }
            self.told.insert(*what, now);
        }
        if !matches!(what.class, "checksum" | "delay") {
            return true;
        }
        if self.rates.len() >= MOST_REMEMBERED {
            self.rates.clear();
        }
        let rate = self.rates.entry((what.class, what.vdev)).or_default();
        if rate.0 != now.as_secs() {
            *rate = (now.as_secs(), 0);
        }
        rate.1 = rate.1.saturating_add(1);
        let is_one_of_few = rate.1 <= A_SECOND;
        if !is_one_of_few {
            self.dropped = self.dropped.saturating_add(1);
            // It was not told.
            self.told.remove(what);
        }
        is_one_of_few
    }

    pub(super) fn forget(&mut self) {
        self.told.clear();
    }

    /// How many were too many since this was last asked.
    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_tells_twenty_a_second_and_nothing_twice() {
        let (mut limits, second) = (Limits::default(), Duration::from_secs(1));
        let what = |class, place| Limited { class, vdev: Guid(1), place: Some(place), number: 52 };
        let told = (0..50).filter(|n| limits.admit(&what("checksum", (*n, 8)), second)).count();
        assert_eq!((told, limits.take_dropped(), limits.take_dropped()), (20, 30, 0));
        assert!(!limits.admit(&what("checksum", (3, 8)), second * 2));
        assert!(limits.admit(&what("checksum", (40, 8)), second * 2));
        assert!(limits.admit(&what("checksum", (3, 8)), second * 902));
        assert!((0..50).all(|n| limits.admit(&what("io", (n, 8)), second)));
        assert!(!limits.admit(&what("io", (3, 8)), second * 3));
        limits.forget();
        assert!(limits.admit(&what("io", (3, 8)), second * 3));
    }
}
