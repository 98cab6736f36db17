//! How long devices are waited for that others can stand in for.
//!
//! Invariant: nobody ends his wait early for what only the silent device can give or keep, and no device is called late
//! as long as it does what any disk does.

use super::health::PROMPT;
use super::leaf::Leaf;
use super::tree::{LeafId, NodeId, Shape, VdevTree};
use cenote_device::DeviceError;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// After this time what a device should have read is read from others.
pub(super) const READ: Duration = PROMPT;
/// How long writes wait in all for a device that is late again and again; then it misses what it should have written.
const WRITE: Duration = Duration::from_secs(4);
/// What any disk may need for an operation among many.
const OPERATION: Duration = Duration::from_millis(5);
/// Bytes that any disk writes in a millisecond.
const BYTES: u64 = 20 << 10;

/// What a batch of writes, or of flushes, waits for devices that are late.
pub(super) struct WriteWait<'a> {
    tree: &'a VdevTree,
    waits: RefCell<Waits>,
}

struct Waits {
    /// When it was last asked how long to wait.
    asked: Instant,
    late: Option<Late>,
}

/// What is missing while all the rest is done.
struct Late {
    since: Instant,
    leaves: HashSet<LeafId>,
    /// Operations without an answer, and since when there are as many.
    missing: usize,
    still: Instant,
    /// What any disk would need for them.
    allowed: Duration,
}

impl Late {
    /// How long too long was waited: a device is late that answers nothing at all, or more slowly than any disk.
    fn waited(&self, now: Instant) -> Duration {
        let silent = now.saturating_duration_since(self.still);
        silent.max(now.saturating_duration_since(self.since).saturating_sub(self.allowed))
    }
}

impl<'a> WriteWait<'a> {
    pub(super) fn begin(tree: &'a VdevTree) -> Self {
        Self { tree, waits: RefCell::new(Waits { asked: Instant::now(), late: None }) }
    }

    /// Something that is missing is needed.
    pub(super) fn needs(&self) -> Option<Duration> {
        *self.waits.borrow_mut() = Waits { asked: Instant::now(), late: None };
        None
    }

    /// The same as [`Self::left`] if nothing is needed of those that are missing, beside what is lost.
    pub(super) fn left_beside(
        &self,
        lost: &HashSet<LeafId>,
        missing: &[(LeafId, u64)],
    ) -> Option<Duration> {
        let late = lost.iter().copied().chain(missing.iter().map(|(leaf, _)| *leaf)).collect();
        if self.tree.can_do_without(&late) { self.left(missing) } else { self.needs() }
    }

    /// All that is needed was done: how much longer to wait for what is missing, leaves and bytes.
    pub(super) fn left(&self, missing: &[(LeafId, u64)]) -> Option<Duration> {
        let now = Instant::now();
        let mut waits = self.waits.borrow_mut();
        let asked = std::mem::replace(&mut waits.asked, now);
        let late = waits.late.get_or_insert_with(|| {
            let (missing, allowed) = (missing.len(), allowed(missing));
            Late { since: asked, leaves: HashSet::new(), missing, still: asked, allowed }
        });
        if late.missing != missing.len() {
            (late.missing, late.still) = (missing.len(), now);
        }
        late.leaves = missing.iter().map(|(leaf, _)| *leaf).collect();
        let at = self.tree.now();
        let of_leaf = |id: &LeafId| {
            let lateness = self.tree.leaves.get(*id)?.health.lock().lateness(at);
            Some(WRITE.saturating_sub(lateness).max(PROMPT))
        };
        let most = late.leaves.iter().filter_map(of_leaf).max().unwrap_or_default();
        Some(most.saturating_sub(late.waited(now)))
    }
}

impl Drop for WriteWait<'_> {
    fn drop(&mut self) {
        let Some(late) = self.waits.get_mut().late.take() else { return };
        let waited = late.waited(Instant::now());
        // Others may have been waited for as long.
        if waited < PROMPT {
            return;
        }
        let now = self.tree.now();
        for leaf in late.leaves.iter().filter_map(|id| self.tree.leaves.get(*id)) {
            leaf.health.lock().was_late(now.saturating_sub(waited)..now);
        }
    }
}

/// What any disk would need for what the leaf with most of it has not answered.
fn allowed(missing: &[(LeafId, u64)]) -> Duration {
    let mut leaves: HashMap<LeafId, Duration> = HashMap::new();
    for (leaf, len) in missing {
        let needs =
            OPERATION.saturating_add(Duration::from_micros(len.saturating_mul(1000) / BYTES));
        let own = leaves.entry(*leaf).or_default();
        *own = own.saturating_add(needs);
    }
    leaves.into_values().max().unwrap_or_default()
}

impl VdevTree {
    /// The device has not answered yet, and it was not waited for to the end.
    pub(super) fn is_only_slow(&self, leaf: &Leaf, error: &DeviceError) -> bool {
        let deadline = self.deadline();
        match error {
            DeviceError::TimedOut(waited) => *waited < deadline,
            // It may have come back since.
            DeviceError::Stuck(_) => leaf.stalls().is_none_or(|lasts| lasts < deadline),
            _ => false,
        }
    }

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
