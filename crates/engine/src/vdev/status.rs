//! What commands show of the tree: a copy of configuration, condition and counters of each node.
//!
//! Invariant: making it waits for no I/O and holds no lock while anything is read from a device.

use super::state::{Aux, Condition, VdevState};
use super::stats::VdevStats;
use super::topology::AllocationClass;
use super::tree::{NodeId, Shape, VdevTree};
use std::ops::Range;

use cenote_format::Guid;
use cenote_format::config::VdevConfig;

/// A node of the tree at one moment.
#[derive(Debug, Clone)]
pub struct VdevStatus {
    /// Its configuration, without its children's.
    pub config: VdevConfig,
    /// State and reason. A device that cannot be spared stays in use whatever it does; one that fails
    /// always is shown as what it is all the same, and what needs it as well.
    pub condition: Condition,
    /// Traffic of this node and all below it; errors of this node only.
    pub stats: VdevStats,
    /// Class of the top-level vdev it belongs to.
    pub class: AllocationClass,
    /// Allocatable bytes (top-level vdevs only, else 0).
    pub asize: u64,
    /// Bytes it could have more (top-level vdevs and leaves only, else 0).
    pub expandable: u64,
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

    /// A device without which data is lost, and which fails whatever it is asked.
    fn fails_always(&self, leaf: usize) -> bool {
        let fails = self.leaves.get(leaf).is_some_and(|leaf| leaf.health.lock().fails_always());
        fails && self.is_needed(leaf)
    }

    fn node_status(&self, id: NodeId, top: Option<u32>) -> Option<VdevStatus> {
        let node = self.nodes.get(id)?;
        let mut stats = node.stats.snapshot();
        let (mut missed, mut expandable) = (0, 0);
        if let Shape::Leaf(leaf) = node.shape {
            let leaf = self.leaves.get(leaf)?;
            stats = leaf.stats.snapshot();
            expandable = self.uncounted(leaf);
            let groups = |range: Range<u64>| range.end.saturating_sub(range.start);
            missed = leaf.missing().into_iter().map(groups).fold(0, u64::saturating_add);
        }
        if let Shape::DistributedSpare { leaf, .. } = node.shape {
            let leaf = self.leaves.get(leaf)?;
            let groups = |range: Range<u64>| range.end.saturating_sub(range.start);
            missed = leaf.missing().into_iter().map(groups).fold(0, u64::saturating_add);
        }
        let mut condition = node.condition();
        if let Shape::Leaf(leaf) = node.shape
            && self.fails_always(leaf)
        {
            condition = Condition::new(VdevState::Faulted, Aux::ErrorsExceeded);
        }
        let is_root = matches!(node.shape, Shape::Root);
        let mut children = Vec::with_capacity(node.children.len());
        for (position, &id_of_child) in (0u32..).zip(&node.children) {
            let child = self.node_status(id_of_child, top.or(is_root.then_some(position)))?;
            stats.add_traffic(&child.stats);
            // Only what cannot be spared is shown otherwise than it counts.
            let counts = self.nodes.get(id_of_child).map(|node| node.condition());
            let spared = is_root && child.class == AllocationClass::Log;
            if counts.is_some_and(|counts| counts.state.is_readable())
                && !child.condition.state.is_readable()
                && !spared
            {
                condition = Condition::new(VdevState::Unavailable, Aux::NoReplicas);
            }
            children.push(child);
        }
        let is_top =
            top.is_some_and(|top| self.tops.get(top as usize).is_some_and(|t| t.node == id));
        Some(VdevStatus {
            config: node.config.clone(),
            condition,
            stats,
            class: top.map_or(AllocationClass::Normal, |top| self.class(top)),
            asize: top.filter(|_| is_top).and_then(|top| self.top_asize(top)).unwrap_or(0),
            expandable: top.filter(|_| is_top).map_or(expandable, |top| self.expandable(top)),
            missed,
            children,
        })
    }
}
