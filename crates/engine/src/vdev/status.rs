//! What commands show of the tree: a copy of configuration, condition and counters of each node.
//!
//! Invariant: making it waits for no I/O and holds no lock while anything is read from a device.

use super::state::Condition;
use super::stats::VdevStats;
use super::tree::{AllocationClass, NodeId, Shape, VdevTree};
use std::ops::Range;

use cenote_format::Guid;
use cenote_format::config::VdevConfig;

/// A node of the tree at one moment.
#[derive(Debug, Clone)]
pub struct VdevStatus {
    /// Its configuration, without its children's.
    pub config: VdevConfig,
    /// State and reason.
    pub condition: Condition,
    /// Traffic of this node and all below it; errors of this node only.
    pub stats: VdevStats,
    /// Class of the top-level vdev it belongs to.
    pub class: AllocationClass,
    /// Allocatable bytes (top-level vdevs only, else 0).
    pub asize: u64,
    /// How many transaction groups it missed writes of (leaves only, else 0).
    pub missed: u64,
    /// Its children.
    pub children: Vec<VdevStatus>,
}

impl VdevStatus {
    /// The node with this guid, at or below this one.
    pub fn find(&self, guid: Guid) -> Option<&Self> {
        if self.config.guid == guid {
            return Some(self);
        }
        self.children.iter().find_map(|child| child.find(guid))
    }
}

impl VdevTree {
    /// The whole tree as it is now.
    pub fn status(&self) -> Option<VdevStatus> {
        self.node_status(0, None)
    }

    fn node_status(&self, id: NodeId, top: Option<u32>) -> Option<VdevStatus> {
        let node = self.nodes.get(id)?;
        let mut stats = node.stats.snapshot();
        let mut missed = 0;
        if let Shape::Leaf(leaf) = node.shape {
            let leaf = self.leaves.get(leaf)?;
            stats = leaf.stats.snapshot();
            let groups = |range: Range<u64>| range.end.saturating_sub(range.start);
            missed = leaf.missing().into_iter().map(groups).fold(0, u64::saturating_add);
        }
        let is_root = matches!(node.shape, Shape::Root);
        let mut children = Vec::with_capacity(node.children.len());
        for (position, &child) in (0u32..).zip(&node.children) {
            let child = self.node_status(child, top.or(is_root.then_some(position)))?;
            stats.add_traffic(&child.stats);
            children.push(child);
        }
        let is_top =
            top.is_some_and(|top| self.tops.get(top as usize).is_some_and(|t| t.node == id));
        Some(VdevStatus {
            config: node.config.clone(),
            condition: node.condition(),
            stats,
            class: top.map_or(AllocationClass::Normal, |top| self.class(top)),
            asize: top.filter(|_| is_top).and_then(|top| self.top_asize(top)).unwrap_or(0),
            missed,
            children,
        })
    }
}
