//! Why a vdev did not give or take the bytes asked of it.
//!
//! Invariant: every error names the vdev by its top-level id or its guid and says what is wrong;
//! none of them carries data.

use cenote_device::DeviceError;
use cenote_format::Guid;

/// A geometry or a configuration that cannot be used, or a read or write that cannot be answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VdevError {
    /// The configuration describes no possible vdev.
    #[error("bad vdev configuration: {0}")]
    Config(String),
    /// The pool has no vdev of this guid.
    #[error("no such device in pool: {0}")]
    NoSuchDevice(Guid),
    /// The vdevs of the pool cannot be changed like this.
    #[error("{0}")]
    Unfit(&'static str),
    /// No top-level vdev has this id, or it holds no data (a hole or a missing device).
    #[error("top-level vdev {vdev} cannot hold data: {reason}")]
    NoSuchVdev {
        /// Top-level id asked for.
        vdev: u32,
        /// Why it has no data.
        reason: &'static str,
    },
    /// The address lies outside the vdev or does not fit its layout.
    #[error("bad address {offset:#x}+{size:#x} on top-level vdev {vdev}: {reason}")]
    BadAddress {
        /// Top-level id.
        vdev: u32,
        /// Byte offset in the vdev's address space.
        offset: u64,
        /// Bytes asked for.
        size: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A removed vdev whose mapping has not been given to the tree yet.
    #[error("the mapping of removed top-level vdev {0} is not loaded")]
    MappingNotLoaded(u32),
    /// Too many devices are unavailable to give the bytes.
    #[error("not enough devices of top-level vdev {vdev} answer: {reason}")]
    Unavailable {
        /// Top-level id.
        vdev: u32,
        /// What is missing.
        reason: String,
    },
    /// A device failed while reading; other copies or parity may still give the bytes.
    #[error("reading device {leaf:#x} of top-level vdev {vdev}: {error}")]
    Device {
        /// Top-level id.
        vdev: u32,
        /// Guid of the leaf.
        leaf: u64,
        /// What the device said.
        error: DeviceError,
    },
    /// A write or flush failed on more devices than the redundancy makes up for.
    #[error("writing top-level vdev {vdev}: {reason}")]
    NotWritten {
        /// Top-level id.
        vdev: u32,
        /// The device and what it said.
        reason: String,
    },
    /// Every combination of copies and parity was tried and none has the right checksum.
    #[error("no copy on top-level vdev {vdev} at {offset:#x}+{size:#x} is intact")]
    NoIntactCopy {
        /// Top-level id.
        vdev: u32,
        /// Byte offset in the vdev's address space.
        offset: u64,
        /// Bytes asked for.
        size: u64,
        /// Not everything could be tried: a device is away, or did not answer.
        away: bool,
    },
}

impl VdevError {
    /// A configuration error.
    pub(super) fn config(reason: impl Into<String>) -> Self {
        Self::Config(reason.into())
    }
}
