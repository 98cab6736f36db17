//! The place of the tree behind a mount, which another can take.
//!
//! Invariant: a tree is not exchanged while somebody uses it; who comes while none is there waits for the
//! next, but not if the mount is given up.

use std::sync::Arc;
use std::time::Duration;

use cenote_posix::tree::Tree;
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How often who waits looks whether the mount is given up.
const GLANCE: Duration = Duration::from_millis(100);

/// A tree that stays as long as this is held.
pub(super) type Held<'a> = MappedRwLockReadGuard<'a, dyn Tree>;

/// See the module.
pub(super) struct Slot(RwLock<Option<Arc<dyn Tree>>>);

impl Slot {
    /// With a tree in it.
    pub(super) fn new(tree: Arc<dyn Tree>) -> Self {
        Self(RwLock::new(Some(tree)))
    }

    /// The tree; none if `is_given_up` while it is waited for, or if it is gone for good.
    pub(super) fn hold(&self, is_given_up: impl Fn() -> bool) -> Option<Held<'_>> {
        loop {
            if let Some(slot) = self.0.try_read_for(GLANCE) {
                return held(slot);
            }
            if is_given_up() {
                return None;
            }
        }
    }

    /// The tree, if it is there now.
    pub(super) fn hold_at_once(&self) -> Option<Held<'_>> {
        held(self.0.try_read()?)
    }

    /// Whoever comes waits from now on until this is dropped; none if those who use the tree need longer.
    pub(super) fn stop(
        &self,
        patience: Duration,
    ) -> Option<RwLockWriteGuard<'_, Option<Arc<dyn Tree>>>> {
        self.0.try_write_for(patience)
    }
}

fn held<'a>(slot: RwLockReadGuard<'a, Option<Arc<dyn Tree>>>) -> Option<Held<'a>> {
    RwLockReadGuard::try_map(slot, Option::as_deref).ok()
}
