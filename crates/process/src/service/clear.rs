//! Devices that orders name, and `zpool clear`: devices are forgiven, a suspended pool tries to go on.
//!
//! Invariant: clearing waits for no order under way and for no transaction group.

use std::sync::Arc;

use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::VdevReport;
use cenote_control::server::PoolService;
use cenote_control::text::vdev_name;
use cenote_engine::pool::Pool;
use cenote_format::Guid;

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
        let guid = device.map(|device| self.device_guid(device, start)).transpose()?;
        vdevs.reopen();
        vdevs.clear(guid);
        pool.io().pipe.faults().forget_passing();
        self.changes.cleared();
        Ok(Vec::new())
    }
}

impl Service {
    /// A device of the pool, spares and cache devices included: by path, the end of that, name or
    /// guid. `start` begins the refusal.
    pub(super) fn device_guid(&self, device: &str, start: &str) -> Result<Guid, Failure> {
        fn find<'a>(node: &'a VdevReport, device: &str) -> Option<&'a VdevReport> {
            let is_it = vdev_name::answers_to(node, device);
            let below = || node.children.iter().find_map(|child| find(child, device));
            if is_it && vdev_name::is_shown(node) { Some(node) } else { below() }
        }
        let report = self.report();
        let all = std::iter::once(&report.root).chain(&report.spares).chain(&report.caches);
        let found = all.into_iter().find_map(|node| find(node, device));
        let unknown =
            || Failure::new(FailureKind::NotFound, format!("{start}: no such device in pool"));
        found.map(|node| Guid(node.guid)).ok_or_else(unknown)
    }
}
