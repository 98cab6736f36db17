//! The free space of a loaded metaslab, by address and by size.
//!
//! Invariant: both indexes hold the same segments; none crosses a multiple of the boundary (dRAID
//! groups), so a block allocated from one segment does not either.

use std::collections::{BTreeMap, BTreeSet};

use super::histogram::{self, Histogram};
use super::ranges::{Conflict, RangeSet};

/// Bytes of addresses a first fit looks through before the best fit decides.
const SEARCH_BYTES: u64 = 16 << 20;
/// Segments it looks at.
const SEARCH_SEGMENTS: usize = 512;

/// Free segments.
#[derive(Debug)]
pub(super) struct FreeTree {
    /// End by start.
    ranges: BTreeMap<u64, u64>,
    /// Length and start.
    sizes: BTreeSet<(u64, u64)>,
    bytes: u64,
    /// Segments do not cross multiples of this; `u64::MAX` for no boundary.
    boundary: u64,
}

impl FreeTree {
    /// The segments of `free`.
    pub(super) fn new(free: &RangeSet, boundary: Option<u64>) -> Self {
        let boundary = boundary.filter(|boundary| *boundary > 0).unwrap_or(u64::MAX);
        let mut tree = Self { ranges: BTreeMap::new(), sizes: BTreeSet::new(), bytes: 0, boundary };
        for (start, end) in free.iter() {
            tree.bytes += end - start;
            tree.pieces(start, end).for_each(|(start, end)| {
                tree.ranges.insert(start, end);
                tree.sizes.insert((end - start, start));
            });
        }
        tree
    }

    /// A range cut at the boundaries.
    fn pieces(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (boundary, mut at) = (self.boundary, start);
        std::iter::from_fn(move || {
            let from = at;
            let next = (from / boundary).saturating_add(1).saturating_mul(boundary);
            at = next.min(end);
            (from < end).then_some((from, at))
        })
    }

    /// Number of segments.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Free bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Length of the largest segment; 0 without any.
    pub(super) fn largest(&self) -> u64 {
        self.sizes.last().map_or(0, |(length, _)| *length)
    }

    /// Start and end of every segment, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(start, end)| (*start, *end))
    }

    /// Part of `start..start + length` is free.
    pub(super) fn overlaps(&self, start: u64, length: u64) -> bool {
        let before = self.ranges.range(..start.saturating_add(length)).next_back();
        before.is_some_and(|(_, end)| *end > start)
    }

    /// All of `start..start + length` is free.
    pub(super) fn contains(&self, start: u64, length: u64) -> bool {
        self.pieces(start, start.saturating_add(length)).all(|(from, to)| {
            let holding = self.ranges.range(..=from).next_back();
            holding.is_some_and(|(_, end)| *end >= to)
        })
    }

    /// Makes a range free that is not.
    pub(super) fn insert(&mut self, start: u64, length: u64) -> Result<(), Conflict> {
        let end = start.checked_add(length).ok_or(Conflict)?;
        if length == 0 || self.overlaps(start, length) {
            return Err(Conflict);
        }
        for (start, end) in self.pieces(start, end) {
            let (mut from, mut to) = (start, end);
            let before = self.ranges.range(..start).next_back().map(|(s, e)| (*s, *e));
            if let Some((before, before_end)) = before
                && before_end == start
                && !start.is_multiple_of(self.boundary)
            {
                self.sizes.remove(&(before_end - before, before));
                from = before;
            }
            if !end.is_multiple_of(self.boundary)
                && let Some(after_end) = self.ranges.remove(&end)
            {
                self.sizes.remove(&(after_end - end, end));
                to = after_end;
            }
            self.ranges.insert(from, to);
            self.sizes.insert((to - from, from));
        }
        self.bytes += length;
        Ok(())
    }

    /// Takes a range all of which is free.
    pub(super) fn remove(&mut self, start: u64, length: u64) -> Result<(), Conflict> {
        let end = start.checked_add(length).ok_or(Conflict)?;
        if length == 0 || !self.contains(start, length) {
            return Err(Conflict);
        }
        for (start, end) in self.pieces(start, end) {
            let holding = self.ranges.range(..=start).next_back().map(|(s, e)| (*s, *e));
            let (from, to) = holding.ok_or(Conflict)?;
            self.sizes.remove(&(to - from, from));
            if from == start {
                self.ranges.remove(&from);
            } else {
                self.ranges.insert(from, start);
                self.sizes.insert((start - from, from));
            }
            if to > end {
                self.ranges.insert(end, to);
                self.sizes.insert((to - end, end));
            }
        }
        self.bytes -= length;
        Ok(())
    }

    /// Start of the first `length` free bytes at or after `cursor`, if they are not far.
    pub(super) fn first_fit(&self, cursor: u64, length: u64) -> Option<u64> {
        let holding = self.ranges.range(..=cursor).next_back().map(|(_, end)| (cursor, *end));
        let holding = holding.filter(|(from, to)| to > from);
        let after =
            self.ranges.range(cursor.saturating_add(1)..).map(|(start, end)| (*start, *end));
        let mut first = None;
        for (from, to) in holding.into_iter().chain(after).take(SEARCH_SEGMENTS) {
            if from - *first.get_or_insert(from) > SEARCH_BYTES {
                break;
            }
            if to - from >= length {
                return Some(from);
            }
        }
        None
    }

    /// Start of the smallest segment of at least `length` bytes.
    pub(super) fn best_fit(&self, length: u64) -> Option<u64> {
        self.sizes.range((length, 0)..).next().map(|(_, start)| *start)
    }

    /// Adds the segments to a histogram in units of `1 << shift` bytes.
    pub(super) fn count(&self, histogram: &mut Histogram, shift: u32) {
        self.ranges.iter().for_each(|(start, end)| {
            histogram::count(histogram, end - start, shift);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(ranges: &[(u64, u64)], boundary: Option<u64>) -> FreeTree {
        let mut set = RangeSet::default();
        ranges.iter().for_each(|(start, end)| set.insert(*start, end - start).unwrap());
        FreeTree::new(&set, boundary)
    }

    fn check(tree: &FreeTree, expected: &[(u64, u64)]) {
        assert_eq!(tree.iter().collect::<Vec<_>>(), expected);
        let sizes: BTreeSet<_> = expected.iter().map(|(s, e)| (e - s, *s)).collect();
        assert_eq!(tree.sizes, sizes);
        assert_eq!(tree.bytes(), expected.iter().map(|(s, e)| e - s).sum::<u64>());
    }

    #[test]
    fn both_indexes_agree() {
        let mut free = tree(&[(0, 100), (200, 300)], None);
        free.remove(10, 20).unwrap();
        check(&free, &[(0, 10), (30, 100), (200, 300)]);
        free.insert(100, 100).unwrap();
        check(&free, &[(0, 10), (30, 300)]);
        assert_eq!(free.insert(5, 1), Err(Conflict));
        assert_eq!(free.remove(5, 30), Err(Conflict));
        assert_eq!((free.largest(), free.len()), (270, 2));
        assert_eq!(free.best_fit(5), Some(0));
        assert_eq!(free.best_fit(11), Some(30));
        assert_eq!(free.best_fit(271), None);
        assert_eq!(free.first_fit(5, 5), Some(5));
        assert_eq!(free.first_fit(5, 6), Some(30));
        assert_eq!(free.first_fit(150, 150), Some(150));
        assert_eq!(free.first_fit(150, 151), None);
    }

    #[test]
    fn segments_end_at_boundaries() {
        let mut free = tree(&[(50, 350)], Some(100));
        check(&free, &[(50, 100), (100, 200), (200, 300), (300, 350)]);
        assert!(free.contains(60, 200));
        free.remove(90, 120).unwrap();
        check(&free, &[(50, 90), (210, 300), (300, 350)]);
        free.insert(90, 120).unwrap();
        check(&free, &[(50, 100), (100, 200), (200, 300), (300, 350)]);
        assert_eq!(free.first_fit(60, 50), Some(100));
    }
}
