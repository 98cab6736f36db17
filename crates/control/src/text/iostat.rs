//! What all tables of `zpool iostat` share: options, headings, and the counters they come from.
//!
//! Invariant: nothing here is about one of the tables alone.

use super::vdev_name::Naming;
use crate::report::{IoCounters, IoDetail};

/// Which table is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A line a device.
    #[default]
    Lines,
    /// Sizes of operations (`-r`), a table a device.
    Sizes,
    /// Waits (`-w`), a table a device.
    Waits,
}

/// Options of `zpool iostat` that change what is printed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `-g`, `-L`, `-P`.
    pub naming: Naming,
    /// Exact numbers (`-p`).
    pub exact: bool,
    /// For scripts (`-H`).
    pub scripted: bool,
    /// Devices too (`-v`).
    pub verbose: bool,
    /// Mean waits (`-l`).
    pub latency: bool,
    /// Operations under way (`-q`).
    pub queues: bool,
    /// Lines or histograms.
    pub kind: Kind,
    /// Only these devices, by guid, without their pools; none: all.
    pub devices: Vec<u64>,
}

impl Options {
    /// Devices are shown, not only pools.
    pub fn shows_devices(&self) -> bool {
        self.verbose || !self.devices.is_empty()
    }
}

/// What of a device grows.
pub(super) struct Work<'a> {
    /// Operations and bytes.
    pub counters: IoCounters,
    /// Reads and writes.
    pub details: [&'a IoDetail; 2],
}

/// The heading `text` over `columns` columns of `width`.
pub(super) fn over(text: &str, columns: usize, width: usize) -> String {
    let span = width * columns + 2 * (columns - 1);
    let left = (span / columns).saturating_sub(text.len() / columns);
    let right = span.saturating_sub(left + text.len());
    format!("  {}{text}{}", " ".repeat(left), " ".repeat(right))
}
