//! Bringing devices back: opening those that are missing, trying those that were given up.
//!
//! Invariant: ordinary reads never wait for a device that is tried again here; what is learned
//! reaches them through the leaf's health.

use std::time::Duration;

use super::batch::Batch;
use super::extent::Extent;
use super::health::Failure;
use super::leaf::Leaf;
use super::state::{Aux, Condition, VdevState};
use super::tree::{LeafId, Node, VdevTree};

/// Bytes read to see whether a device works.
const PROBE: u64 = 4096;

impl VdevTree {
    /// Reads a little from every device that was given up and whose pause is over. Tells whether
    /// any condition changed. For the pool's timer, every few seconds; waits for the devices.
    pub fn probe(&self) -> bool {
        self.probe_if(false)
    }

    /// As [`VdevTree::probe`], without regard to pauses.
    pub fn probe_all(&self) -> bool {
        self.probe_if(true)
    }

    fn probe_if(&self, always: bool) -> bool {
        let now = self.now();
        let before = self.conditions();
        let mut batch = Batch::new(self);
        for (id, leaf) in self.leaves.iter().enumerate() {
            // Nobody may have waited for it to the end.
            if leaf.stalls().is_some_and(|lasts| lasts >= self.deadline()) {
                let needed = self.is_needed(id);
                let mut health = leaf.health.lock();
                if !health.is_given_up() || health.sits_out() {
                    health.failed(Failure::Silent, now, needed);
                }
            }
            let (is_given_up, is_due, is_faulted) = {
                let health = leaf.health.lock();
                (health.is_given_up(), health.is_due(now), health.is_faulted())
            };
            // One that had too many errors is tried where nothing else is left.
            let due = is_due || always || is_faulted && self.is_needed(id);
            if is_given_up && due && leaf.device().is_some() {
                // A device too small for this cannot have been opened.
                let _ = batch.add(id, leaf, Extent::new(0, PROBE));
            }
        }
        batch.run(true);
        self.refresh();
        self.conditions() != before
    }

    /// A leaf did what it was asked, and `took` so long. Tells whether that changes its condition.
    pub(super) fn answered(&self, id: LeafId, leaf: &Leaf, took: Duration) -> bool {
        let is_faulted = leaf.health.lock().is_faulted();
        let needed = is_faulted && self.is_needed(id);
        leaf.health.lock().answered(self.now(), took, needed)
    }

    /// Whether every device there should be is there, and answers now: what cannot be read is not out of reach then,
    /// but damaged. Waits for the devices.
    pub fn all_answer(&self) -> bool {
        let mut batch = Batch::new(self);
        for (id, leaf) in self.leaves.iter().enumerate() {
            if leaf.device().is_none() || leaf.health.lock().is_given_up() {
                return false;
            }
            let _ = batch.add(id, leaf, Extent::new(0, PROBE));
        }
        batch.run(true).iter().all(Result::is_ok)
    }

    /// Whether a device is gone, or was not found: [`VdevTree::reopen`] may find it again.
    pub fn has_gone(&self) -> bool {
        let gone = |leaf: &Leaf| match leaf.condition() {
            Condition { state: VdevState::Removed, .. } => true,
            condition => condition.aux == Aux::OpenFailed,
        };
        self.leaves.iter().any(gone)
    }

    fn conditions(&self) -> Vec<Condition> {
        self.nodes.iter().map(Node::condition).collect()
    }

    /// Tries to open every leaf that has no device, and forgets devices that are gone. Tells
    /// whether any condition changed. Waits for the opener; not for the read path.
    pub fn reopen(&self) -> bool {
        let before = self.conditions();
        for leaf in &self.leaves {
            leaf.drop_gone();
            self.open_leaf(leaf);
        }
        self.refresh();
        self.conditions() != before
    }
}
