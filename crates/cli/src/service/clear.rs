//! `zpool clear`: devices are forgiven, a suspended pool tries to go on.
//!
//! Invariant: it waits for no order under way and for no transaction group.

use std::sync::Arc;

use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::pool::Pool;

use super::Service;
use super::orders::Warnings;

impl Service {
    /// Forgives devices. `device` is a path, its last part, or a guid.
    pub(super) fn clear(
        &self,
        pool: &Arc<Pool>,
        device: Option<&str>,
        start: &str,
    ) -> Result<Warnings, Failure> {
        let vdevs = pool.vdevs();
        let guid = match device {
            None => None,
            Some(device) => {
                let tree = pool.config().vdev_tree.clone();
                let found = tree.as_ref().and_then(|tree| {
                    tree.walk().find(|node| {
                        let path = node.path.as_deref().unwrap_or_default();
                        path == device
                            || path.rsplit('/').next() == Some(device)
                            || node.guid.to_string() == device
                    })
                });
                let unknown = || {
                    let words = format!("{start}: no such device in pool");
                    Failure::new(FailureKind::NotFound, words)
                };
                Some(found.ok_or_else(unknown)?.guid)
            }
        };
        vdevs.reopen();
        vdevs.clear(guid);
        self.changes.cleared();
        Ok(Vec::new())
    }
}
