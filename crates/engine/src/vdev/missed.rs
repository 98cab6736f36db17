//! What leaves missed, and what cannot be read because of it.
//!
//! Chapter 03, section 7. Invariant: a leaf that misses something is shown as degraded from the moment
//! that is noted until its dirty time log is empty; what is said to be out of reach is so only because
//! a device is away, for a block counts as written only if the devices that were there can give it.

use super::leaf::Leaf;
use super::topology::AllocationClass;
use super::tree::{LeafId, Node, NodeId, Shape, VdevTree};
use cenote_format::{Guid, Txg};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// A leaf and the txgs it lacks.
pub type Missed = (Guid, Vec<Range<u64>>);

/// Groups that a leaf takes part in before it is forgotten that it missed some.
const PROBATION: u64 = 4;

/// Every transaction group there can be.
const ALWAYS: Range<u64> = 0..u64::MAX;

impl VdevTree {
    /// Notes that `leaf` lacks data of `txg`.
    pub(super) fn note_missed(&self, leaf: &Leaf, txg: Txg) {
        if leaf.config.rebuild_txg.is_some() {
            // It need not be new that it lacks something of that group, and yet nobody rebuilds this.
            self.unflushed.lock().insert(leaf.config.guid);
        }
        let first = leaf.is_complete();
        if leaf.note_missed(txg) {
            self.missed_changes.fetch_add(1, Relaxed);
            if first {
                self.refresh();
            }
        }
    }

    /// Notes that `leaf` may lack data of these txgs that it had.
    pub(super) fn note_lost(&self, leaf: &Leaf, births: Range<u64>) {
        let first = leaf.is_complete();
        if leaf.note_lost(births) {
            self.missed_changes.fetch_add(1, Relaxed);
            if first {
                self.refresh();
            }
        }
    }

    /// The leaves that lack data, and the txgs (end exclusive, ascending): what their dirty time
    /// logs should say. Includes what [`VdevTree::set_missing_txgs`] told.
    pub fn missed(&self) -> Vec<Missed> {
        let missed = |leaf: &Leaf| Some((leaf.config.guid, leaf.missing()));
        self.leaves.iter().filter_map(missed).filter(|(_, ranges)| !ranges.is_empty()).collect()
    }

    /// How often [`VdevTree::missed`] has grown: compare to know whether to look again.
    pub fn missed_changes(&self) -> u64 {
        self.missed_changes.load(Relaxed)
    }

    /// Sets the txgs (end exclusive) whose data the leaf `guid` does not have: its dirty time log.
    pub fn set_missing_txgs(&self, guid: Guid, ranges: Vec<Range<u64>>) {
        for leaf in self.leaves.iter().filter(|leaf| leaf.config.guid == guid) {
            leaf.set_missing(ranges.clone());
        }
        self.refresh();
    }

    /// Adds txgs (end exclusive) whose data the leaf `guid` turns out not to have. True if that was
    /// not known.
    pub fn add_missing_txgs(&self, guid: Guid, txgs: Range<u64>) -> bool {
        let own = self.leaves.iter().filter(|leaf| leaf.config.guid == guid);
        let new = own.filter(|leaf| leaf.add_missing(txgs.clone())).count() > 0;
        if new {
            self.missed_changes.fetch_add(1, Relaxed);
            self.refresh();
        }
        new
    }

    /// The groups of which leaves that can be written lack data: the first, and the end of the last.
    pub fn resilver_range(&self) -> Option<Range<u64>> {
        self.resilver_range_of(|_, _| true)
    }

    /// The same of some leaves: their top-level vdevs, and guids.
    pub fn resilver_range_of(&self, is_wanted: impl Fn(u32, Guid) -> bool) -> Option<Range<u64>> {
        let own = self
            .leaves
            .iter()
            .filter(|leaf| is_wanted(leaf.top, leaf.config.guid) && self.may_write(leaf));
        let ranges: Vec<Range<u64>> = own.flat_map(Leaf::missing).collect();
        let first = ranges.iter().map(|range| range.start).min()?;
        let end = ranges.iter().map(|range| range.end).max()?;
        Some(first..end)
    }

    /// Leaves that can be written and lack something that was born in group `end` or later.
    pub fn lacking_since(&self, end: Txg) -> Vec<Guid> {
        let is_late = |leaf: &&Leaf| leaf.missing().last().is_some_and(|last| last.end > end.0);
        let own = self.leaves.iter().filter(|leaf| self.may_write(leaf));
        own.filter(is_late).map(|leaf| leaf.config.guid).collect()
    }

    /// The leaf `guid` lacks data of `txg`.
    pub fn misses(&self, guid: Guid, txg: Txg) -> bool {
        self.leaves.iter().any(|leaf| leaf.config.guid == guid && leaf.misses(txg))
    }

    /// Some leaf of a top-level vdev that can be written lacks data of `txg`. Of a vdev that was
    /// removed nobody knows.
    pub fn lacks_some(&self, vdev: u32, txg: Txg) -> bool {
        match self.top_node(vdev).map(|node| &node.shape) {
            Some(Shape::Indirect(_)) => true,
            _ => {
                let mut own =
                    self.leaves.iter().filter(|leaf| leaf.top == vdev && self.may_write(leaf));
                own.any(|leaf| leaf.misses(txg))
            }
        }
    }

    /// Leaves that missed nothing since `end` have to take part in more groups than there were until
    /// `now`, before it is certain that they do not go on failing.
    pub fn is_too_soon(&self, end: Txg, now: Txg) -> bool {
        let last = |leaf: &Leaf| leaf.missing().last().map(|range| range.end);
        let mut lacking = self.leaves.iter().filter(|leaf| self.may_write(leaf)).filter_map(last);
        lacking.any(|last| last <= end.0 && last.saturating_add(PROBATION) > now.0)
    }

    /// Everything born before `end` was written to those leaves of `is_done` that are there and missed nothing
    /// since, but what was born in the groups of `failed`. True if that was not known.
    pub fn forget_missed(
        &self,
        is_done: impl Fn(Guid) -> bool,
        end: Txg,
        failed: &BTreeSet<Txg>,
    ) -> bool {
        let mut any = false;
        let all = self.leaves.iter().filter(|leaf| is_done(leaf.config.guid));
        let own = all.filter(|leaf| self.may_write(leaf));
        for leaf in own {
            any |= leaf.alter_missing(|known| {
                // Who missed something since goes on failing, and may not even have an uberblock that tells.
                if known.last().is_some_and(|range| range.end > end.0) {
                    return known.to_vec();
                }
                let mut left: Vec<Range<u64>> = Vec::new();
                for range in known {
                    let again =
                        failed.range(Txg(range.start)..Txg(range.end.min(end.0).max(range.start)));
                    left.extend(again.map(|txg| txg.0..txg.0.saturating_add(1)));
                    let rest = range.start.max(end.0)..range.end;
                    left.extend((!rest.is_empty()).then_some(rest));
                }
                left
            });
        }
        if any {
            self.missed_changes.fetch_add(1, Relaxed);
            self.refresh();
        }
        any
    }

    /// Leaves that lack something and cannot be written now.
    pub fn lacking_and_away(&self) -> Vec<Guid> {
        let away = self.leaves.iter().filter(|leaf| !self.may_write(leaf) && !leaf.is_complete());
        away.map(|leaf| leaf.config.guid).collect()
    }

    /// The leaf has a device that is there and not given up.
    pub(super) fn may_write(&self, leaf: &Leaf) -> bool {
        !is_away(leaf) && leaf.health.lock().may_try(self.now())
    }

    /// Some device of the pool cannot be read now.
    pub fn has_away(&self) -> bool {
        self.leaves.iter().any(is_away)
    }

    /// How often a device that could not be read could be read again.
    pub fn comebacks(&self) -> u64 {
        self.comebacks.load(Relaxed)
    }

    /// The txgs (end exclusive, ascending) whose data may be on no device that is there: those that
    /// are there missed them, beyond the redundancy. Nothing while no device is away.
    pub fn out_of_reach(&self) -> Vec<Range<u64>> {
        let data = (0..self.top_count()).filter(|top| self.class(*top) != AllocationClass::Log);
        let tops = data.filter_map(|top| Some(self.tops.get(top as usize)?.node));
        let lacking = tops.filter(|&top| self.has_away_below(top)).map(|top| self.lacks(top, None));
        covered(&lacking.collect::<Vec<_>>(), 1)
    }

    fn has_away_below(&self, id: NodeId) -> bool {
        let Some(node) = self.nodes.get(id) else { return false };
        match &node.shape {
            Shape::Leaf(leaf) => self.leaves.get(*leaf).is_some_and(is_away),
            _ => node.children.iter().any(|&child| self.has_away_below(child)),
        }
    }

    /// The txgs whose data `id` cannot give, or could not without a leaf.
    pub(super) fn lacks(&self, id: NodeId, without: Option<LeafId>) -> Vec<Range<u64>> {
        let Some(node) = self.nodes.get(id) else { return Vec::new() };
        let below = |node: &Node| -> Vec<Vec<Range<u64>>> {
            node.children.iter().map(|&child| self.lacks(child, without)).collect()
        };
        match &node.shape {
            Shape::Leaf(leaf) | Shape::DistributedSpare { leaf, .. } if without == Some(*leaf) => {
                vec![ALWAYS]
            }
            Shape::Leaf(leaf) | Shape::DistributedSpare { leaf, .. } => {
                match self.leaves.get(*leaf) {
                    Some(leaf) if is_away(leaf) => vec![ALWAYS],
                    Some(leaf) => leaf.missing(),
                    None => Vec::new(),
                }
            }
            Shape::Copies => covered(&below(node), node.children.len()),
            Shape::Raidz(raidz) => covered(&below(node), raidz.parity() + 1),
            Shape::Draid(draid) if draid.domains() > 1 => {
                let set = (node.children.len() / draid.domains() as usize).max(1);
                let all = below(node);
                let domain = |first: usize| -> Vec<Range<u64>> {
                    let own = all.iter().skip(first).step_by(set).cloned();
                    covered(&own.collect::<Vec<_>>(), 1)
                };
                covered(&(0..set).map(domain).collect::<Vec<_>>(), draid.parity() + 1)
            }
            Shape::Draid(draid) => covered(&below(node), draid.parity() + 1),
            Shape::Indirect(_) | Shape::Root | Shape::Nothing(_) => Vec::new(),
        }
    }
}

/// It has no device that can be read.
fn is_away(leaf: &Leaf) -> bool {
    !leaf.condition().state.is_readable()
}

/// What at least `least` of `sets` (each of ascending ranges apart from each other) have in common.
fn covered(sets: &[Vec<Range<u64>>], least: usize) -> Vec<Range<u64>> {
    let mut edges: Vec<(u64, bool)> = Vec::new();
    for range in sets.iter().flatten().filter(|range| !range.is_empty()) {
        edges.push((range.start, true));
        edges.push((range.end, false));
    }
    // Where one ends and another begins, the beginning comes first, so that they join.
    edges.sort_unstable_by_key(|&(at, begins)| (at, !begins));
    let (mut depth, mut since, mut out) = (0_usize, None, Vec::new());
    for (at, begins) in edges {
        depth = if begins { depth + 1 } else { depth.saturating_sub(1) };
        match since {
            None if depth >= least => since = Some(at),
            Some(start) if depth < least => {
                if at > start {
                    out.push(start..at);
                }
                since = None;
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what this is about")]
mod tests {
    use super::*;

    #[test]
    fn what_enough_sets_have_in_common() {
        let sets = [vec![1..5, 8..10], vec![3..9], vec![ALWAYS]];
        assert_eq!(covered(&sets, 3), [3..5, 8..9]);
        assert_eq!(covered(&sets, 2), [1..10]);
        assert_eq!(covered(&sets, 1), [ALWAYS]);
        assert_eq!(covered(&sets[..2], 2), [3..5, 8..9]);
        assert_eq!(covered(&[vec![1..2], vec![2..3]], 2), []);
        assert_eq!(covered(&[vec![1..2], vec![2..3]], 1), [1..3]);
    }
}
