//! Ranges of address space.
//!
//! Invariant: where a range lies on a device is told by [`Extent::physical`] alone.

use super::leaf::{BOOT_START, DATA_START};

/// A range of a vdev's address space.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) len: u64,
    /// In the scratch area of a raidz expansion.
    pub(super) scratch: bool,
}

impl Extent {
    pub(super) fn new(offset: u64, len: u64) -> Self {
        Self { offset, len, scratch: false }
    }

    /// First byte on the device.
    pub(super) fn physical(&self) -> Option<u64> {
        self.offset.checked_add(if self.scratch { BOOT_START } else { DATA_START })
    }
}
