//! A set of byte ranges.
//!
//! Invariant: ranges neither overlap nor touch.

use std::collections::BTreeMap;

/// Ranges by start, each with its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// One range of `length` bytes.
    pub fn of(start: u64, length: u64) -> Self {
        let mut ranges = Self::default();
        ranges.add(start, length);
        ranges
    }

    /// Adds `length` bytes from `start` on.
    pub fn add(&mut self, start: u64, length: u64) {
        let (mut from, mut to) = (start, start.saturating_add(length));
        if from >= to {
            return;
        }
        // Whatever begins at or before the new end may touch; only neighbours remain in the set,
        // so the walk back ends at the first that does not.
        while let Some((begin, end)) = self.0.range(..=to).next_back().map(|(b, e)| (*b, *e)) {
            if end < from {
                break;
            }
            self.0.remove(&begin);
            (from, to) = (from.min(begin), to.max(end));
        }
        self.0.insert(from, to);
    }

    /// Takes `length` bytes from `start` on away.
    pub fn remove(&mut self, start: u64, length: u64) {
        let (from, to) = (start, start.saturating_add(length));
        if from >= to {
            return;
        }
        while let Some((begin, end)) = self.0.range(..to).next_back().map(|(b, e)| (*b, *e)) {
            if end <= from {
                break;
            }
            self.0.remove(&begin);
            if end > to {
                self.0.insert(to, end);
            }
            if begin < from {
                self.0.insert(begin, from);
                break;
            }
        }
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Lengths, in the order of addresses.
    pub fn lengths(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(|(start, end)| end - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(ranges: &Ranges) -> Vec<(u64, u64)> {
        ranges.0.iter().map(|(start, end)| (*start, *end)).collect()
    }

    #[test]
    fn ranges_join_and_split() {
        let mut ranges = Ranges::of(0, 100);
        ranges.remove(10, 10);
        ranges.remove(50, 10);
        assert_eq!(listed(&ranges), [(0, 10), (20, 50), (60, 100)]);
        ranges.remove(5, 60);
        assert_eq!(listed(&ranges), [(0, 5), (65, 100)]);
        ranges.add(5, 5);
        ranges.add(30, 10);
        assert_eq!(listed(&ranges), [(0, 10), (30, 40), (65, 100)]);
        ranges.add(10, 55);
        assert_eq!(listed(&ranges), [(0, 100)]);
        ranges.remove(0, 100);
        assert_eq!((ranges.len(), ranges.lengths().sum::<u64>()), (0, 0));
    }

    #[test]
    fn random_changes_agree_with_a_bitmap() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut ranges, mut map) = (Ranges::default(), [false; 200]);
        for _ in 0..5000 {
            let (start, length, add) = (next(180), next(20), next(2) == 0);
            for slot in &mut map[start as usize..(start + length) as usize] {
                *slot = add;
            }
            if add {
                ranges.add(start, length)
            } else {
                ranges.remove(start, length)
            }
            let set = map.iter().filter(|slot| **slot).count() as u64;
            assert_eq!(ranges.lengths().sum::<u64>(), set);
            let runs = (0..200).filter(|i| map[*i] && (*i == 0 || !map[*i - 1])).count();
            assert_eq!(ranges.len(), runs);
        }
    }
}
