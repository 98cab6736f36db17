//! Dying on purpose.
//!
//! Invariant: the group with which the process dies is on the disks but for its uberblock, so that
//! nothing of it counts, and nobody was told that it does.

use std::sync::atomic::Ordering::SeqCst;

use super::LivePool;

impl LivePool {
    /// From now on (or not any more, if `dies` is false) the process ends as by SIGABRT when the next group is
    /// written but does not count yet. Whether that was so before.
    pub fn die_before_next_group(&self, dies: bool) -> bool {
        self.dies.swap(dies, SeqCst)
    }

    pub(super) fn die_if_asked(&self) {
        if self.dies.load(SeqCst) {
            tracing::error!("the process dies on purpose before its group counts");
            std::process::abort();
        }
    }
}
