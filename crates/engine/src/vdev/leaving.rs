//! Who may leave or rest: devices without which nothing is lost, and those whose part others have taken.
//!
//! Chapter 08, section 15. Invariant: what a device misses, or fails to give, counts for as much as that it
//! is away.

use super::leaf::Leaf;
use super::state::{Aux, Condition, VdevState};
use super::tree::{LeafId, NodeId, VdevTree};
use cenote_format::Guid;
use cenote_format::config::{VdevConfig, VdevKind};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl VdevTree {
    /// Without the leaf `guid` something of its top-level vdev may be out of reach. It does not matter whether it is
    /// with it, too: of a group that two leaves lack a part of, each may have what the other has not.
    pub fn is_required(&self, guid: Guid) -> bool {
        self.place_of(guid).is_some_and(|(top, id)| !self.lacks(top, Some(id)).is_empty())
    }

    /// The leaf `guid` came in the place of another, or as a spare for it, and has nothing yet that the others have
    /// not, all of which are there: it may go again although others lack something, too.
    pub fn is_blank(&self, guid: Guid) -> bool {
        let Some((top, id)) = self.place_of(guid) else { return false };
        let root = self.topology().root();
        let is_newcomer = root.walk().any(|node| {
            let is_pair = matches!(node.kind, VdevKind::Replacing | VdevKind::Spare);
            is_pair && node.children().last().is_some_and(|last| last.guid == guid)
        });
        let Some(own) = self.leaves.get(id).filter(|_| is_newcomer) else { return false };
        let mut all = self.leaves.iter().filter(|leaf| leaf.top == own.top);
        if !all.all(|leaf| leaf.condition().state.is_readable()) {
            return false;
        }
        let (without, missing) = (self.lacks(top, Some(id)), own.missing());
        let is_in = |range: &Range<u64>| {
            missing.iter().any(|own| own.start <= range.start && range.end <= own.end)
        };
        without == self.lacks(top, None) && without.iter().all(is_in)
    }

    /// The top-level vdev of a leaf, and that itself.
    fn place_of(&self, guid: Guid) -> Option<(NodeId, LeafId)> {
        let id = self.leaves.iter().position(|leaf| leaf.config.guid == guid)?;
        let top = self.leaves.get(id).and_then(|leaf| self.tops.get(leaf.top as usize))?;
        Some((top.node, id))
    }

    /// A device that can leave: the one that replaces it has everything, or it is a hot spare and the one it
    /// stands in for has everything again.
    pub fn replaced(&self) -> Option<Guid> {
        let mut old = self.topology().root().walk().filter_map(|node| {
            let (first, last) = (node.children().first()?, node.children().last()?);
            let (goes, stays) = match node.kind {
                VdevKind::Replacing => (first, last),
                VdevKind::Spare if first.unspare && last.is_spare => (last, first),
                _ => return None,
            };
            let is_worn = node.kind == VdevKind::Spare && self.is_worn(stays.guid);
            let is_well = self.is_whole(stays) && !is_worn;
            let may_go = goes.guid != stays.guid && is_well;
            (may_go && !self.is_required(goes.guid)).then_some(goes.guid)
        });
        old.next()
    }

    /// Leaves that gave wrong bytes too often, of which that is not recorded yet.
    pub fn lying(&self) -> Vec<Guid> {
        let is_new = |leaf: &&Leaf| !leaf.is_degraded() && leaf.health.lock().is_lying();
        self.leaves.iter().filter(is_new).map(|leaf| leaf.config.guid).collect()
    }

    /// What was said in favour of these leaves counts no more.
    pub fn doubt(&self, guids: &[Guid]) {
        let own = self.leaves.iter().filter(|leaf| guids.contains(&leaf.config.guid));
        own.for_each(Leaf::doubt);
        self.refresh();
    }

    /// It is recorded of the leaf `guid` that it had too many errors.
    pub fn is_worn(&self, guid: Guid) -> bool {
        self.leaves.iter().any(|leaf| leaf.config.guid == guid && leaf.is_worn())
    }

    /// Devices that are lost, or had too many errors, and that nothing stands in for yet; what the administrator took
    /// offline is not among them.
    pub fn lost(&self) -> Vec<Guid> {
        let mut lost = Vec::new();
        let root = self.topology().root();
        for node in root.walk() {
            let is_data = !node.top.is_some_and(|top| top.is_log);
            let has_help = matches!(node.kind, VdevKind::Replacing | VdevKind::Spare);
            let children = node.children().iter().filter(|_| is_data && !has_help);
            lost.extend(children.filter(|child| self.is_lost(child)).map(|child| child.guid));
        }
        lost
    }

    fn is_lost(&self, node: &VdevConfig) -> bool {
        let own = self.leaves.iter().find(|leaf| leaf.config.guid == node.guid);
        own.is_some_and(|leaf| {
            let state = leaf.condition().state;
            let rests = matches!(state, VdevState::Offline | VdevState::Closed);
            leaf.is_worn() || !state.is_readable() && !rests
        })
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

    /// Has the leaf `guid` count as what its configuration says: if that is faulty, it is neither read nor
    /// written any more.
    pub fn give_up(&self, guid: Guid) {
        for leaf in self.leaves.iter().filter(|leaf| leaf.config.guid == guid) {
            match leaf.config.faulted {
                true => leaf.give_up(),
                false => leaf.degrade(),
            }
        }
        self.refresh();
    }

    /// Leaves out the device of leaf `guid`: it turned out not to be one of this pool.
    pub fn refuse(&self, guid: Guid, reason: &str) {
        tracing::warn!(leaf = guid.0, reason, "device left out");
        self.opener.refuse(guid, reason);
        for leaf in self.leaves.iter().filter(|leaf| leaf.config.guid == guid) {
            leaf.leave_out(Condition::new(VdevState::Unavailable, Aux::CorruptData));
        }
        self.refresh();
    }

    /// Takes the leaf `guid` into use that rested or was away, and forgives it.
    pub fn wake(&self, guid: Guid) {
        for leaf in self.leaves.iter().filter(|leaf| leaf.config.guid == guid) {
            leaf.drop_gone();
            leaf.wake();
            self.open_leaf(leaf);
            leaf.health.lock().clear();
        }
        self.refresh();
    }

    /// Takes leaves into use that somebody said were faulty or degraded: the leaf `below`, those below it,
    /// or all. Those of which something was said.
    pub fn trust(&self, below: Option<Guid>) -> Vec<Guid> {
        let root = self.topology().root();
        let node = below.map_or(Some(root), |guid| self.topology().find(guid));
        let all: Vec<Guid> =
            node.into_iter().flat_map(VdevConfig::devices).map(|n| n.guid).collect();
        let own = self.leaves.iter().filter(|leaf| all.contains(&leaf.config.guid));
        let trusted: Vec<Guid> = own
            .filter(|leaf| leaf.trust())
            .inspect(|leaf| {
                self.open_leaf(leaf);
                leaf.health.lock().clear();
            })
            .map(|leaf| leaf.config.guid)
            .collect();
        if !trusted.is_empty() {
            self.refresh();
        }
        trusted
    }

    /// Opens a leaf that has no device; what it turns out to lack is noted.
    pub(super) fn open_leaf(&self, leaf: &Leaf) {
        if leaf.open(self.opener.as_ref()) {
            leaf.health.lock().reopened(self.now());
            if !leaf.is_complete() {
                self.missed_changes.fetch_add(1, Relaxed);
            }
        }
    }
}
