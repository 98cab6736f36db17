//! How long devices are waited for that others can stand in for.
//!
//! Invariant: nobody ends his wait early for what only the silent device can give or keep.

use super::tree::{LeafId, NodeId, Shape, VdevTree};
use std::collections::HashSet;
use std::time::Duration;

/// After this time what a device should have read is read from others.
pub(super) const READ: Duration = Duration::from_secs(1);
/// After this time a device misses what it should have written.
pub(super) const WRITE: Duration = Duration::from_secs(5);

impl VdevTree {
    /// All that these leaves hold can be had, and kept, without them.
    pub(super) fn can_do_without(&self, late: &HashSet<LeafId>) -> bool {
        let now = self.now();
        let is_there = |id: LeafId| {
            let leaf = self.leaves.get(id).filter(|_| !late.contains(&id));
            leaf.is_some_and(|leaf| {
                leaf.device().is_some() && leaf.is_complete() && leaf.health.lock().may_try(now)
            })
        };
        let tops: HashSet<u32> =
            late.iter().filter_map(|id| self.leaves.get(*id)).map(|leaf| leaf.top).collect();
        let mut tops = tops.into_iter().filter_map(|top| self.tops.get(top as usize));
        tops.all(|top| self.stands(top.node, &is_there))
    }

    /// What is on `node` can be read from the leaves that are there.
    pub(super) fn stands(&self, node: NodeId, is_there: &dyn Fn(LeafId) -> bool) -> bool {
        let Some(node) = self.nodes.get(node) else { return false };
        let gone = || node.children.iter().filter(|&&child| !self.stands(child, is_there)).count();
        match &node.shape {
            Shape::Leaf(leaf) => is_there(*leaf),
            Shape::Copies => gone() < node.children.len(),
            Shape::Raidz(raidz) => gone() <= raidz.parity(),
            Shape::Draid(draid) => gone() <= draid.parity(),
            // Lies on other children, never together with the column it stands in for.
            Shape::DistributedSpare { .. } => true,
            Shape::Indirect(_) => true,
            Shape::Root | Shape::Nothing(_) => false,
        }
    }
}
