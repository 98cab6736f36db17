//! Finding out that devices are not the pool's any more, before what relies on them is done.
//!
//! Invariant: a device is left out only if it says so twice, the second time when no label is about to be written that
//! tells it by another guid.

use std::time::Duration;

use crate::pool::group::LivePool;

/// Time between two looks: half the labels may just be written.
const AGAIN: Duration = Duration::from_millis(100);

impl LivePool {
    /// Leaves out devices that were overwritten, deleted or replaced while they were open; those of which some labels
    /// are left, or that nothing can do without, get their labels back.
    pub(in crate::pool) fn examine_devices(&self) {
        let found = self.vdevs().examine_devices();
        if !found.has_strangers() {
            if found.is_torn() {
                self.dirty_labels();
            }
            return;
        }
        if found.has_others() && self.gate.suspension().is_none() {
            // Labels tell the guids of now only when the group that changed those is on the disks.
            if let Err(error) = self.sync() {
                tracing::info!(%error, "devices are not looked at again");
                return;
            }
        } else {
            std::thread::sleep(AGAIN);
        }
        let vdevs = self.vdevs();
        let found = vdevs.examine_devices();
        if found.is_torn() {
            self.dirty_labels();
        }
        if found.has_strangers() {
            vdevs.leave_out_strangers(found);
            vdevs.reopen();
        }
    }
}
