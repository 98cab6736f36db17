//! Sets of ranges of block numbers.
//!
//! Invariant: ranges neither overlap nor touch; both ends belong to a range.

use std::collections::BTreeMap;

/// A set of block numbers, kept as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockRanges {
    /// First to last of each range.
    ranges: BTreeMap<u64, u64>,
}

impl BlockRanges {
    /// The range that holds `id`.
    pub(super) fn range_of(&self, id: u64) -> Option<(u64, u64)> {
        let (&first, &last) = self.ranges.range(..=id).next_back()?;
        (last >= id).then_some((first, last))
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.range_of(id).is_some()
    }

    /// The first member at or after `id`.
    pub(super) fn first_from(&self, id: u64) -> Option<u64> {
        if self.contains(id) {
            return Some(id);
        }
        self.ranges.range(id..).next().map(|(&first, _)| first)
    }

    /// Adds `first..=last`.
    pub(super) fn insert(&mut self, first: u64, last: u64) {
        if last < first {
            return;
        }
        let (mut first, mut last) = (first, last);
        if let Some((&before, &end)) = self.ranges.range(..=first).next_back()
            && end.saturating_add(1) >= first
        {
            first = before;
            last = last.max(end);
        }
        while let Some((&start, &end)) = self.ranges.range(first..).next()
            && start <= last.saturating_add(1)
        {
            last = last.max(end);
            self.ranges.remove(&start);
        }
        self.ranges.insert(first, last);
    }

    /// The ranges, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&first, &last)| (first, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn members_are_what_was_inserted(parts in prop::collection::vec((0u64..64, 0u64..8), 0..12)) {
            let mut set = BlockRanges::default();
            let mut model = [false; 80];
            for (first, len) in parts {
                set.insert(first, first + len);
                model[first as usize..=(first + len) as usize].fill(true);
            }
            for id in 0..80u64 {
                prop_assert_eq!(set.contains(id), model[id as usize]);
                let next = (id as usize..80).find(|&i| model[i]).map(|i| i as u64);
                prop_assert_eq!(set.first_from(id), next);
            }
            let all: Vec<_> = set.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
        }
    }

    #[test]
    fn the_end_of_numbers_is_a_range_too() {
        let mut set = BlockRanges::default();
        set.insert(5, u64::MAX);
        set.insert(0, 4);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(0, u64::MAX)]);
    }
}
