//! Whether the kernel's table of mounts has changed.
//!
//! Invariant: a change is told to the next who asks after it; without one nothing is read.

use std::fs::File;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The table of this process's mount namespace; `None` if it cannot be watched.
pub(super) struct KernelTable(Option<File>);

impl KernelTable {
    /// Begins to watch.
    pub fn watch() -> Self {
        let opened = File::open("/proc/self/mountinfo");
        Self(opened.inspect_err(|error| tracing::warn!(%error, "mounts are not watched")).ok())
    }

    /// Whether something was mounted or unmounted since this was asked the last time, or may have been.
    pub fn has_changed(&self) -> bool {
        let Some(table) = &self.0 else { return true };
        let now = Timespec::default();
        poll(&mut [PollFd::new(table, PollFlags::PRI)], Some(&now)) != Ok(0)
    }
}
