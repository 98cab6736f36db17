//! Sets of byte ranges: what was allocated, freed, held back.
//!
//! Invariant: ranges of a set are not empty, do not overlap and do not touch; adding what is there
//! or removing what is not is refused and changes nothing.

use std::collections::BTreeMap;

/// A range that cannot be added because part of it is there, or not removed because part is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conflict;

/// A set of ranges of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet {
    /// End by start.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl RangeSet {
    /// Nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Sum of their lengths.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Start and end of every range, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(start, end)| (*start, *end))
    }

    /// The range that holds `at`, if there is one.
    fn holding(&self, at: u64) -> Option<(u64, u64)> {
        let (start, end) = self.ranges.range(..=at).next_back()?;
        (*end > at).then_some((*start, *end))
    }

    /// Part of `start..start + length` is in the set.
    pub(super) fn overlaps(&self, start: u64, length: u64) -> bool {
        let before = self.ranges.range(..start.saturating_add(length)).next_back();
        before.is_some_and(|(_, end)| *end > start)
    }

    /// Adds a range of which nothing is in the set yet.
    pub(super) fn insert(&mut self, start: u64, length: u64) -> Result<(), Conflict> {
        let end = start.checked_add(length).ok_or(Conflict)?;
        if length == 0 || self.overlaps(start, length) {
            return Err(Conflict);
        }
        let (mut from, mut to) = (start, end);
        if let Some((before, before_end)) = self.ranges.range(..start).next_back()
            && *before_end == start
        {
            from = *before;
        }
        if let Some(after_end) = self.ranges.remove(&end) {
            to = after_end;
        }
        self.ranges.insert(from, to);
        self.bytes += length;
        Ok(())
    }

    /// Removes a range all of which is in the set.
    pub(super) fn remove(&mut self, start: u64, length: u64) -> Result<(), Conflict> {
        let end = start.checked_add(length).ok_or(Conflict)?;
        let (from, to) = self.holding(start).ok_or(Conflict)?;
        if length == 0 || to < end {
            return Err(Conflict);
        }
        if from == start {
            self.ranges.remove(&from);
        } else {
            self.ranges.insert(from, start);
        }
        if to > end {
            self.ranges.insert(end, to);
        }
        self.bytes -= length;
        Ok(())
    }

    /// Removes what of a range is in the set; gives start and end of the pieces that were not.
    pub(super) fn cut(&mut self, start: u64, length: u64) -> Vec<(u64, u64)> {
        let end = start.saturating_add(length);
        let mut absent = Vec::new();
        let mut at = start;
        while at < end {
            if let Some((_, to)) = self.holding(at) {
                let to = to.min(end);
                // It is there: `holding` just said so.
                if self.remove(at, to - at).is_err() {
                    break;
                }
                at = to;
            } else {
                let next = self.ranges.range(at..end).next().map_or(end, |(start, _)| *start);
                absent.push((at, next));
                at = next;
            }
        }
        absent
    }

    /// Adds every range of `other`.
    pub(super) fn insert_all(&mut self, other: &Self) -> Result<(), Conflict> {
        other.iter().try_for_each(|(start, end)| self.insert(start, end - start))
    }

    /// Removes every range of `other`.
    pub(super) fn remove_all(&mut self, other: &Self) -> Result<(), Conflict> {
        other.iter().try_for_each(|(start, end)| self.remove(start, end - start))
    }

    /// What of `start..start + length` is not in the set, as start and end, ascending.
    pub(super) fn gaps(&self, start: u64, length: u64) -> Vec<(u64, u64)> {
        let end = start.saturating_add(length);
        let mut gaps = Vec::new();
        let mut at = self.holding(start).map_or(start, |(_, to)| to);
        for (from, to) in self.ranges.range(at.min(end)..end) {
            if *from > at {
                gaps.push((at, *from));
            }
            at = *to;
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(u64, u64)]) -> RangeSet {
        let mut set = RangeSet::default();
        ranges.iter().for_each(|(start, end)| set.insert(*start, end - start).unwrap());
        set
    }

    #[test]
    fn neighbours_join_and_part() {
        let mut ranges = set(&[(10, 20), (30, 40), (20, 30)]);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(10, 40)]);
        ranges.remove(15, 10).unwrap();
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(10, 15), (25, 40)]);
        assert_eq!((ranges.bytes(), ranges.iter().count()), (20, 2));
        assert_eq!(ranges.remove(14, 2), Err(Conflict));
        assert_eq!(ranges.insert(14, 2), Err(Conflict));
        assert_eq!(ranges.insert(20, 0), Err(Conflict));
        assert_eq!(ranges.insert(u64::MAX, 2), Err(Conflict));
        assert!(ranges.overlaps(0, 11) && !ranges.overlaps(15, 10));
    }

    #[test]
    fn cutting_tells_what_was_absent() {
        let mut ranges = set(&[(10, 20), (30, 40)]);
        assert_eq!(ranges.cut(5, 30), [(5, 10), (20, 30)]);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(35, 40)]);
        assert_eq!(set(&[(0, 5), (8, 9)]).gaps(2, 10), [(5, 8), (9, 12)]);
        assert_eq!(set(&[]).gaps(2, 10), [(2, 12)]);
        assert_eq!(set(&[(0, 20)]).gaps(2, 10), []);
    }
}
