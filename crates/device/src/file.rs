//! Regular files and block devices.
//!
//! Invariant: a device opened read-only has no descriptor that could write.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::batch::{DEFAULT_DEADLINE, in_range};
use crate::buffer::{Buffer, PAGE, limit_heaps};
use crate::threads::call;
use crate::{Device, DeviceError, RawDevice, ReadOp, Stall, read_batch};

/// What a device is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Reading.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// A regular file or block device. Cloning gives another handle to the same device.
///
/// Reads go past the page cache where the filesystem allows it (the caches above are better ones);
/// writes go through it, and [`Device::flush`] makes them durable.
#[derive(Debug, Clone)]
pub struct FileDevice {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// For reading; direct if `alignment` is above 1.
    reader: File,
    /// For writing, through the page cache.
    writer: Option<File>,
    size: u64,
    sector_size: u32,
    alignment: usize,
    stall: Stall,
}

impl FileDevice {
    /// Opens the file or block device at `path`. Anything else (a directory, a FIFO, a character
    /// device) is refused with `InvalidInput`. Symbolic links are followed.
    pub fn open(path: impl AsRef<Path>, mode: Mode) -> Result<Self, DeviceError> {
        limit_heaps();
        let path = path.as_ref().to_path_buf();
        let inner = call(None, DEFAULT_DEADLINE, move || open(path, mode))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Takes the advisory lock (`flock`) on the device, exclusive, without waiting; `WouldBlock`
    /// if another process holds it. Held until the last handle is dropped.
    pub fn lock(&self) -> Result<(), DeviceError> {
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(self.inner.reader.as_fd(), operation)
            .map_err(|error| std::io::Error::from(error).into())
    }

    /// Whether reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.inner.alignment > 1
    }

    /// Calls `work` with the descriptor to write to, within the deadline.
    fn with_writer(
        &self,
        work: impl FnOnce(&File) -> std::io::Result<()> + Send + 'static,
    ) -> Result<(), DeviceError> {
        if self.inner.writer.is_none() {
            return Err(DeviceError::ReadOnly);
        }
        match self.inner.stall.count() {
            0 => {}
            count => return Err(DeviceError::Stuck(count)),
        }
        let inner = self.inner.clone();
        call(Some(Arc::new(self.clone())), DEFAULT_DEADLINE, move || match &inner.writer {
            Some(writer) => Ok(work(writer)?),
            None => Err(DeviceError::ReadOnly),
        })
    }
}

/// Opens `path` and finds out what it is.
fn open(path: PathBuf, mode: Mode) -> Result<Inner, DeviceError> {
    // Looking first keeps a FIFO from holding up the open.
    check_kind(&path, &std::fs::metadata(&path)?.file_type())?;
    let buffered = OpenOptions::new().read(true).open(&path)?;
    let metadata = buffered.metadata()?;
    check_kind(&path, &metadata.file_type())?;
    let (size, sector_size) = if metadata.file_type().is_block_device() {
        let size = rustix::fs::seek(&buffered, rustix::fs::SeekFrom::End(0))
            .map_err(std::io::Error::from)?;
        let sector = rustix::fs::ioctl_blksszget(&buffered).map_err(std::io::Error::from)?;
        (size, if sector.is_power_of_two() { sector.max(512) } else { 512 })
    } else {
        (metadata.len(), 512)
    };
    let writer = match mode {
        Mode::ReadOnly => None,
        Mode::ReadWrite => Some(OpenOptions::new().read(true).write(true).open(&path)?),
    };
    let (reader, alignment) = match open_direct(&path, sector_size) {
        Some((direct, alignment)) => (direct, alignment),
        None => (buffered, 1),
    };
    Ok(Inner { path, reader, writer, size, sector_size, alignment, stall: Stall::default() })
}

/// Refuses what is neither a regular file nor a block device.
fn check_kind(path: &Path, kind: &std::fs::FileType) -> Result<(), DeviceError> {
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    let message = format!("{} is neither a regular file nor a block device", path.display());
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, message).into())
}

/// Opens `path` for direct reads and finds the smallest alignment that works; none if no direct
/// read works here.
fn open_direct(path: &Path, sector_size: u32) -> Option<(File, usize)> {
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
    let mut buffer = Buffer::new(PAGE)?;
    for alignment in [sector_size as usize, PAGE] {
        let target = buffer.as_mut_slice().get_mut(..alignment)?;
        // An error other than "wrong alignment" is for the first real read to report.
        match direct.read_at(target, 0) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            _ => return Some((direct, alignment)),
        }
    }
    None
}

impl Device for FileDevice {
    fn path(&self) -> PathBuf {
        self.inner.path.clone()
    }

    fn size(&self) -> u64 {
        self.inner.size
    }

    fn sector_size(&self) -> u32 {
        self.inner.sector_size
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        let op = ReadOp { device: Arc::new(self.clone()), offset, len };
        read_batch(vec![op], DEFAULT_DEADLINE).pop().unwrap_or(Err(DeviceError::Gone))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        in_range(offset, data.len(), self.inner.size)?;
        let data = data.to_vec();
        self.with_writer(move |file| file.write_all_at(&data, offset))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.with_writer(|file| file.sync_data())
    }

    fn raw(&self) -> Option<RawDevice> {
        Some(RawDevice {
            descriptor: self.inner.reader.as_raw_fd(),
            alignment: self.inner.alignment,
        })
    }

    fn stall(&self) -> Option<&Stall> {
        Some(&self.inner.stall)
    }
}
