//! Who may leave or rest: devices without which nothing is lost, and those whose part others have taken.
//!
//! Chapter 08, section 15. Invariant: what a device misses, or fails to give, counts for as much as that it
//! is away.

use super::tree::VdevTree;
use cenote_format::Guid;
use cenote_format::config::{VdevConfig, VdevKind};

impl VdevTree {
    /// Without the leaf `guid` its top-level vdev could give less than it can now.
    pub fn is_required(&self, guid: Guid) -> bool {
        let Some(id) = self.leaves.iter().position(|leaf| leaf.config.guid == guid) else {
            return false;
        };
        let top = self.leaves.get(id).and_then(|leaf| self.tops.get(leaf.top as usize));
        top.is_some_and(|top| self.lacks(top.node, Some(id)) != self.lacks(top.node, None))
    }

    /// A device that can leave because the one that replaces it has everything.
    pub fn replaced(&self) -> Option<Guid> {
        let nodes = self.topology().root().walk().filter(|node| node.kind == VdevKind::Replacing);
        let mut old = nodes.filter_map(|node| {
            let (first, last) = (node.children().first()?, node.children().last()?);
            let is_taken = first.guid != last.guid && self.is_whole(last);
            (is_taken && !self.is_required(first.guid)).then_some(first.guid)
        });
        old.next()
    }

    fn is_whole(&self, node: &VdevConfig) -> bool {
        let own = self.leaves.iter().find(|leaf| leaf.config.guid == node.guid);
        own.is_some_and(|leaf| leaf.is_complete() && leaf.condition().state.is_readable())
    }

    /// Lets the leaf `guid` rest: it is neither read nor written any more.
    pub fn rest(&self, guid: Guid) {
        for leaf in self.leaves.iter().filter(|leaf| leaf.config.guid == guid) {
            leaf.rest();
        }
        self.refresh();
    }

    /// Takes the leaf `guid` into use that rested or was away, and forgives it.
    pub fn wake(&self, guid: Guid) {
        for leaf in self.leaves.iter().filter(|leaf| leaf.config.guid == guid) {
            leaf.drop_gone();
            leaf.wake();
            leaf.open(self.opener.as_ref());
            leaf.health.lock().clear();
        }
        self.refresh();
    }
}
