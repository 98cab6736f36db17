//! Asking for faults of a pool's leaves, and taking them back.
//!
//! Invariant: a fault stays with its leaf, whatever becomes of the tree around it, until it is taken back or
//! the leaf leaves.

use super::inject::{DeviceFault, FaultKind, LeafFaults, Rule};
use super::leaf::Leaf;
use super::tree::VdevTree;
use cenote_format::Guid;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A fault that may happen.
#[derive(Debug, Clone)]
pub struct Injected {
    /// Its number.
    pub id: u64,
    /// The leaf.
    pub leaf: Guid,
    /// What was asked for.
    pub fault: DeviceFault,
    /// How often it happened.
    pub happened: u64,
}

impl VdevTree {
    /// From now on this may happen to a leaf: the number of the fault; `None` if there is no such leaf.
    pub fn inject(&self, leaf: Guid, fault: DeviceFault) -> Option<u64> {
        let own = self.leaves.iter().find(|own| own.config.guid == leaf)?;
        let id = self.next_fault();
        let mut rules = rules_of(own);
        rules.push(Arc::new(Rule::new(id, fault)));
        own.faults.store(Some(Arc::new(LeafFaults(rules))));
        Some(id)
    }

    /// A number for one more fault.
    pub fn next_fault(&self) -> u64 {
        self.faults.fetch_add(1, Relaxed).saturating_add(1)
    }

    /// The faults that may happen.
    pub fn injected(&self) -> Vec<Injected> {
        let of_leaf = |leaf: &Leaf| {
            let rules = rules_of(leaf).into_iter();
            let guid = leaf.config.guid;
            let shown = rules.map(move |rule| Injected {
                id: rule.id,
                leaf: guid,
                fault: rule.fault.clone(),
                happened: rule.happened(),
            });
            shown.collect::<Vec<_>>()
        };
        let mut all: Vec<Injected> = self.leaves.iter().flat_map(of_leaf).collect();
        all.sort_by_key(|one| one.id);
        all
    }

    /// The fault of this number, or all, happen no more; how many there were.
    pub fn forget_injected(&self, id: Option<u64>) -> usize {
        let mut gone = 0;
        for leaf in &self.leaves {
            let mut rules = rules_of(leaf);
            let before = rules.len();
            let holds = rules.iter().any(|rule| rule.fault.kind == FaultKind::Held);
            if holds && let Some(device) = leaf.device() {
                // What is held is not lost by this.
                let _ = device.flush();
            }
            let stays = |rule: &Arc<Rule>| id.is_some_and(|id| id != rule.id);
            rules.iter().filter(|rule| !stays(rule)).for_each(|rule| rule.end());
            rules.retain(stays);
            gone += before - rules.len();
            if rules.len() < before {
                let rest = (!rules.is_empty()).then(|| Arc::new(LeafFaults(rules)));
                leaf.faults.store(rest);
            }
        }
        gone
    }
}

fn rules_of(leaf: &Leaf) -> Vec<Arc<Rule>> {
    leaf.faults.load_full().map(|faults| faults.0.clone()).unwrap_or_default()
}
