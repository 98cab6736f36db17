//! The one place where a pool's vdevs are, for all that use them.
//!
//! The pipeline, the allocator, the write queue and the writer of groups hold a [`VdevHandle`] and
//! take what is current when an operation begins. The writer of groups exchanges it when an order that
//! changes the topology has succeeded, in the middle of the group that records it: so that group has
//! the new configuration and writes the labels of all devices. No block of that group is on a
//! vdev that it adds, and none at all on one that it takes away, so nobody is told something else than
//! before. Those who only look see the configuration change with the group (`Pool::config`). Invariant:
//! each tree follows from the one before, so nothing noted of a device is lost between two.

use super::error::VdevError;
use super::precedence::Precedence;
use super::tree::VdevTree;
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use std::sync::Arc;

/// Gives a pool's vdevs as they are now; a copy gives the same.
#[derive(Debug, Clone)]
pub struct VdevHandle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    current: ArcSwap<VdevTree>,
    /// Held while a tree is made from the current one.
    changing: Mutex<()>,
    precedence: Precedence,
}

impl VdevHandle {
    /// A handle on `tree`.
    pub fn new(tree: Arc<VdevTree>) -> Self {
        let precedence = Precedence::default();
        Self(Arc::new(Shared {
            current: ArcSwap::new(tree),
            changing: Mutex::default(),
            precedence,
        }))
    }

    /// Who comes first at the devices.
    pub fn precedence(&self) -> &Precedence {
        &self.0.precedence
    }

    /// The vdevs, for as long as they are wanted.
    pub fn current(&self) -> Arc<VdevTree> {
        self.0.current.load_full()
    }

    /// The vdevs for one short operation.
    pub fn load(&self) -> Guard<Arc<VdevTree>> {
        self.0.current.load()
    }

    /// Puts `tree` in the place of the current one.
    pub fn exchange(&self, tree: Arc<VdevTree>) {
        let _alone = self.0.changing.lock();
        self.0.current.store(tree);
    }

    /// Puts what `change` makes of the current tree in its place.
    ///
    /// # Errors
    /// Those of `change`; nothing is exchanged then.
    pub fn change(
        &self,
        change: impl FnOnce(&VdevTree) -> Result<VdevTree, VdevError>,
    ) -> Result<(), VdevError> {
        let _alone = self.0.changing.lock();
        let next = change(&self.current())?;
        self.0.current.store(Arc::new(next));
        Ok(())
    }
}
