//! Where bytes lie: files, block devices and simulated disks.
//!
//! Invariant: every wait here has a deadline. A device that does not answer gives
//! [`DeviceError::TimedOut`]; the buffers it may still write into stay owned by this crate until
//! the kernel has let go of them. While writes are overdue, or reads after their deadline, new operations on that device fail at
//! once with [`DeviceError::Stuck`]; when the last of them has come back the device works again.
//!
//! The ways in are [`read_batch`], [`write_batch`], [`write_durable`] and [`flush_batch`]: they take operations of any
//! number of devices and have them all in flight together. [`FileDevice`] is a file or block device, [`SimDevice`] a simulated disk.
//! [`HostLock`] is a pool's lock on this machine. [`partition_disk`] makes a whole disk one partition for a pool.

mod batch;
mod buffer;
mod claim;
mod disk;
pub mod environment;
mod file;
mod host_lock;
mod lanes;
mod patience;
mod plan;
mod ring;
mod sim;
mod sim_store;
mod stall;
mod table;
#[cfg(test)]
mod tests;
mod threads;
mod write;
#[cfg(test)]
mod write_tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use batch::{MAX_READ, read_batch};
pub use buffer::{aligned_copy, keep_buffers};
pub use bytes::Bytes;
pub use disk::{
    DiskError, PoolPartition, is_whole_disk, partition_disk, partition_path, partition_table,
    planned_size, stable_name,
};
pub use file::{FileDevice, Mode};
pub use host_lock::{HostLock, HostLockError};
pub use patience::{DEFAULT_DEADLINE, Enough, Patience, Took};
pub use sim::{Health, Keep, Recorded, SimDevice, SimEvent, before_write};
pub use stall::Stall;
pub use table::PartitionTable;
pub use write::{flush_batch, write_batch, write_durable};

/// Why a device did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeviceError {
    /// The operating system reported an error.
    #[error("{0}")]
    Io(Arc<std::io::Error>),
    /// The range reaches beyond the end of the device.
    #[error("range {offset:#x}+{len:#x} is beyond the device's {size:#x} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// No answer within the deadline.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// Operations sent earlier have not come back yet; nothing new is sent until they do.
    #[error("{0} earlier operations have not come back")]
    Stuck(usize),
    /// The device was opened for reading only.
    #[error("the device is open for reading only")]
    ReadOnly,
    /// Somebody else has the device: it is mounted, or held by another process.
    #[error("{} is in use by another process or filesystem", .0.display())]
    Busy(PathBuf),
    /// The device is gone.
    #[error("the device is gone")]
    Gone,
}

impl From<std::io::Error> for DeviceError {
    fn from(error: std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM) => Self::Gone,
            _ => Self::Io(Arc::new(error)),
        }
    }
}

/// A place that holds bytes: a file, a block device, or a simulation of one.
///
/// Offsets and lengths are bytes from the start of the device; any alignment is accepted, the
/// implementation rounds to what its medium needs.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Path as the user knows it.
    fn path(&self) -> PathBuf;
    /// Size in bytes: what it was when it was opened, or measured last.
    fn size(&self) -> u64;
    /// Looks whether it has grown, and tells its size. One that became smaller keeps its size.
    fn measure(&self) -> u64 {
        self.size()
    }
    /// Lets go of what it holds in this range: reads give zeros, or anything, from then on. May do
    /// nothing; only where [`Device::can_trim`] says so.
    fn trim(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Err(std::io::Error::from(std::io::ErrorKind::Unsupported).into())
    }
    /// Logical sector size in bytes (a power of two, at least 512).
    fn sector_size(&self) -> u32;
    /// Bytes that the medium writes at once: what is smaller costs it a read (a power of two).
    fn physical_sector_size(&self) -> u32 {
        self.sector_size()
    }
    /// Reads `len` bytes at `offset`.
    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError>;
    /// Writes `data` at `offset`. Durable only after [`Device::flush`].
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError>;
    /// Makes every write that has returned durable.
    fn flush(&self) -> Result<(), DeviceError>;
    /// Descriptor and alignment for batched I/O; none for simulated devices.
    fn raw(&self) -> Option<RawDevice> {
        None
    }
    /// Descriptors for batched writes and flushes; none for simulated devices and those open for
    /// reading only. Without it, [`Device::write`] and [`Device::flush`] are called.
    fn raw_writer(&self) -> Option<RawWriter> {
        None
    }
    /// Whether it is a file: what is written to for the first time gets its place in another
    /// filesystem then, and a flush waits until that is recorded.
    fn is_file(&self) -> bool {
        false
    }
    /// Whether it is a file that nobody finds by its path any more: it was deleted, or another file has its name.
    /// What cannot be found out in time is not.
    fn is_deleted(&self) -> bool {
        false
    }
    /// Whether the kernel may hold up who only sends it something, however that is asked not to wait: threads that can
    /// be left behind send it then.
    fn holds_up_senders(&self) -> bool {
        false
    }
    /// Whether it keeps those waiting who ask it, on purpose: whatever descriptors it has, threads that can be left behind
    /// ask [`Device::read`], [`Device::write`] and [`Device::flush`] themselves.
    fn keeps_waiting(&self) -> bool {
        false
    }
    /// Whether it can be told that what it holds somewhere is no longer needed (trim).
    fn can_trim(&self) -> bool {
        false
    }
    /// Count of operations that missed their deadline and are still out; none for devices that
    /// answer by themselves.
    fn stall(&self) -> Option<&Stall> {
        None
    }
}

/// What batched I/O needs to know of a real device.
#[derive(Debug, Clone, Copy)]
pub struct RawDevice {
    /// Open file descriptor; valid as long as the device lives.
    pub descriptor: std::os::fd::RawFd,
    /// Offsets, lengths and buffers must be multiples of this many bytes (1 if buffered).
    pub alignment: usize,
}

/// What batched writes need to know of a real device.
#[derive(Debug, Clone, Copy)]
pub struct RawWriter {
    /// Descriptor that goes past the page cache, if there is one; valid as long as the device
    /// lives. Offsets and lengths must be multiples of its alignment.
    pub direct: Option<RawDevice>,
    /// Memory written through `direct` must start at a multiple of this many bytes.
    pub memory_alignment: usize,
    /// Descriptor that goes through the page cache: any alignment. Also the one to flush.
    pub buffered: std::os::fd::RawFd,
}

/// One write of a batch. The data may not be changed before the device has let go of it, which
/// [`Bytes`] ensures.
#[derive(Debug, Clone)]
pub struct WriteOp {
    /// The device to write.
    pub device: Arc<dyn Device>,
    /// First byte.
    pub offset: u64,
    /// What to write.
    pub data: Bytes,
}

/// One read of a batch.
#[derive(Debug, Clone)]
pub struct ReadOp {
    /// The device to read.
    pub device: Arc<dyn Device>,
    /// First byte.
    pub offset: u64,
    /// Bytes to read.
    pub len: usize,
}
