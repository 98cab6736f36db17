//! Which nodes the kernel holds references to.
//!
//! Every reply that hands out a node gives the kernel one reference; FORGET takes some back. When
//! none is left, the tree is told, and a file without names goes.
//!
//! Invariant: a node is handed out again only after the tree has finished forgetting it: otherwise
//! a file that was found, opened and unlinked meanwhile would be lost under its user.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cenote_posix::tree::NodeId;
use parking_lot::{Condvar, Mutex};

/// Independent tables, so that threads seldom meet. A power of two.
const SHARDS: usize = 16;
/// How long after a change a node's attributes may change by themselves: allocated sizes are known
/// once the change is on disk.
const SETTLING: Duration = Duration::from_secs(60);

/// A node the kernel knows.
#[derive(Debug, Default)]
struct Known {
    /// References of the kernel.
    references: u64,
    /// The tree is forgetting it right now.
    leaving: bool,
    /// When it was changed last.
    changed: Option<Instant>,
}

#[derive(Debug, Default)]
struct Shard {
    table: Mutex<HashMap<NodeId, Known>>,
    left: Condvar,
}

/// The nodes the kernel knows, by the tree's numbers.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    shards: [Shard; SHARDS],
    ended: AtomicBool,
}

impl Nodes {
    fn shard(&self, node: NodeId) -> &Shard {
        let [first, ..] = &self.shards;
        self.shards.get(node as usize % SHARDS).unwrap_or(first)
    }

    /// The kernel is given a reference.
    pub(super) fn hold(&self, node: NodeId) {
        let shard = self.shard(node);
        let mut table = shard.table.lock();
        while table.get(&node).is_some_and(|known| known.leaving) {
            shard.left.wait(&mut table);
        }
        let known = table.entry(node).or_default();
        known.references = known.references.saturating_add(1);
    }

    /// The kernel gives up `references`; after the last one calls `forget`.
    pub(super) fn release(&self, node: NodeId, references: u64, forget: impl FnOnce(NodeId)) {
        let shard = self.shard(node);
        {
            let mut table = shard.table.lock();
            let Some(known) = table.get_mut(&node) else { return };
            known.references = known.references.saturating_sub(references);
            if known.references > 0 || known.leaving {
                return;
            }
            known.leaving = true;
        }
        // However the call ends, those that wait for the node must go on.
        let _gone = Leaving { shard, node };
        forget(node);
    }

    /// `node` is being changed.
    pub(super) fn changed(&self, node: NodeId) {
        if let Some(known) = self.shard(node).table.lock().get_mut(&node) {
            known.changed = Some(Instant::now());
        }
    }

    /// Whether attributes of `node` may still change by themselves.
    pub(super) fn is_settling(&self, node: NodeId) -> bool {
        let mut table = self.shard(node).table.lock();
        let Some(known) = table.get_mut(&node) else { return false };
        let settling = known.changed.is_some_and(|changed| changed.elapsed() < SETTLING);
        if !settling {
            known.changed = None;
        }
        settling
    }

    /// The nodes that were changed a short time ago.
    pub(super) fn settling(&self) -> Vec<NodeId> {
        let is_new = |known: &Known| known.changed.is_some_and(|at| at.elapsed() < SETTLING);
        let mut found = Vec::new();
        for shard in &self.shards {
            let table = shard.table.lock();
            found.extend(table.iter().filter(|(_, known)| is_new(known)).map(|(node, _)| *node));
        }
        found
    }

    /// The nodes the kernel holds now.
    pub(super) fn held(&self) -> Vec<NodeId> {
        self.shards
            .iter()
            .flat_map(|s| s.table.lock().keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// The kernel is gone: calls `forget` for everything it held, once.
    pub(super) fn release_all(&self, mut forget: impl FnMut(NodeId)) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.table.lock());
            nodes
                .into_iter()
                .filter(|(_, known)| !known.leaving)
                .for_each(|(node, _)| forget(node));
        }
    }
}

/// A node the tree is forgetting.
struct Leaving<'a> {
    shard: &'a Shard,
    node: NodeId,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.shard.table.lock().remove(&self.node);
        self.shard.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reference_forgets_once() {
        let nodes = Nodes::default();
        let mut forgotten = Vec::new();
        nodes.hold(5);
        nodes.hold(5);
        nodes.hold(21);
        nodes.release(5, 1, |node| forgotten.push(node));
        nodes.release(6, 1, |node| forgotten.push(node));
        assert!(forgotten.is_empty());
        nodes.release(5, 9, |node| forgotten.push(node));
        nodes.release(5, 1, |node| forgotten.push(node));
        assert_eq!(forgotten, [5]);
        nodes.hold(5);
        let mut held = nodes.held();
        held.sort_unstable();
        assert_eq!(held, [5, 21]);
        nodes.release_all(|node| forgotten.push(node));
        nodes.release_all(|node| forgotten.push(node));
        forgotten.sort_unstable();
        assert_eq!(forgotten, [5, 5, 21]);
    }

    #[test]
    fn a_node_comes_back_only_after_it_has_left() {
        let nodes = Nodes::default();
        let (started, starts) = std::sync::mpsc::channel();
        let done = AtomicBool::new(false);
        nodes.hold(7);
        std::thread::scope(|scope| {
            let (nodes, done) = (&nodes, &done);
            scope.spawn(move || {
                nodes.release(7, 1, |_| {
                    started.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                    done.store(true, Ordering::Release);
                });
            });
            starts.recv().unwrap();
            nodes.hold(7);
            assert!(done.load(Ordering::Acquire));
        });
        assert_eq!(nodes.held(), [7]);
    }

    #[test]
    fn changed_nodes_settle() {
        let nodes = Nodes::default();
        nodes.changed(3);
        nodes.hold(3);
        assert!(!nodes.is_settling(3));
        nodes.changed(3);
        assert!(nodes.is_settling(3));
    }
}
