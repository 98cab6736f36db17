//! Regular files and block devices.
//!
//! Invariant: a device opened read-only has no descriptor that could write; one opened exclusively
//! is held against every other process that asks for the same, and against mounts, until the last
//! handle is dropped.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::batch::{check_stall, in_range};
use crate::buffer::{Buffer, PAGE, limit_heaps};
use crate::claim;
use crate::patience::DEFAULT_DEADLINE;
use crate::threads::{call, call_on};
use crate::{
    Device, DeviceError, RawDevice, RawWriter, ReadOp, Stall, WriteOp, flush_batch, read_batch,
    write_batch,
};

/// What a device is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Reading.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
    /// Reading and writing, and nobody else may hold the device so: a block device is claimed
    /// (`O_EXCL`: not mounted, not swap, not below another device) and so are the files below it, a
    /// file is locked. Otherwise [`DeviceError::Busy`].
    Exclusive,
}

/// A regular file or block device. Cloning gives another handle to the same device.
///
/// Reads and writes go past the page cache where the filesystem allows it: the caches above are
/// better ones, and writing is faster without it (ext4 on a virtual disk, 1 MiB writes: 1200 MiB/s
/// against 760). [`Device::flush`] makes writes durable.
#[derive(Debug, Clone)]
pub struct FileDevice {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// For reading; direct if `alignment` is above 1.
    reader: File,
    writer: Option<Writer>,
    size: AtomicU64,
    sector_size: u32,
    physical_sector_size: u32,
    alignment: usize,
    is_file: bool,
    holds_up_senders: bool,
    can_trim: bool,
    stall: Stall,
}

/// What is written to.
#[derive(Debug)]
struct Writer {
    /// Through the page cache; for what direct I/O cannot take, and to flush.
    buffered: File,
    /// Past the page cache, if that works here.
    direct: Option<File>,
    /// Memory written past the page cache starts at multiples of this.
    memory_alignment: usize,
    /// Files below an exclusive block device, locked.
    _below: Vec<File>,
}

impl FileDevice {
    /// Opens the file or block device at `path`. Anything else (a directory, a FIFO, a character
    /// device) is refused with `InvalidInput`. Symbolic links are followed.
    ///
    /// # Errors
    /// [`DeviceError::Stuck`] at once if the same path was to be opened before, and has not answered since.
    pub fn open(path: impl AsRef<Path>, mode: Mode) -> Result<Self, DeviceError> {
        limit_heaps();
        let path = path.as_ref().to_path_buf();
        let opening = Opening::begin(&path)?;
        let inner = call(DEFAULT_DEADLINE, move || {
            let opened = open(path, mode);
            drop(opening);
            opened
        })?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Takes the advisory lock (`flock`) on the device, exclusive, without waiting; `WouldBlock`
    /// if another process holds it. Held until the last handle is dropped.
    pub fn lock(&self) -> Result<(), DeviceError> {
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(self.inner.reader.as_fd(), operation)
            .map_err(|error| std::io::Error::from(error).into())
    }

    /// The same, as if its filesystem kept waiting who sends it something.
    #[cfg(test)]
    pub(crate) fn served(mut self) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.holds_up_senders = true;
        }
        self
    }

    /// Whether reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.inner.alignment > 1
    }
}

/// Longest look at what is at the path of a file.
const LOOK: Duration = Duration::from_secs(2);
/// After this time nobody else waits for a path that somebody is opening.
const OPENING: Duration = Duration::from_secs(1);

/// What is being opened, by number: which path, and since when.
static OPENINGS: Mutex<BTreeMap<u64, (PathBuf, Instant)>> = Mutex::new(BTreeMap::new());

/// A path that is being opened, as long as the kernel has not answered.
struct Opening(u64);

impl Opening {
    fn begin(path: &Path) -> Result<Self, DeviceError> {
        let mut all = OPENINGS.lock();
        let silent =
            |(other, since): &&(PathBuf, Instant)| other == path && since.elapsed() > OPENING;
        let silent = all.values().filter(silent).count();
        if silent > 0 {
            return Err(DeviceError::Stuck(silent));
        }
        let number = all.last_key_value().map_or(0, |(last, _)| last.saturating_add(1));
        all.insert(number, (path.to_path_buf(), Instant::now()));
        Ok(Self(number))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENINGS.lock().remove(&self.0);
    }
}

/// Opens `path` and finds out what it is.
fn open(path: PathBuf, mode: Mode) -> Result<Inner, DeviceError> {
    // Looking first keeps a FIFO from holding up the open.
    check_kind(&path, &std::fs::metadata(&path)?.file_type())?;
    let buffered = OpenOptions::new().read(true).open(&path)?;
    let metadata = buffered.metadata()?;
    check_kind(&path, &metadata.file_type())?;
    let size = size_of(&buffered)?;
    let sector_size = if metadata.file_type().is_block_device() {
        let sector = rustix::fs::ioctl_blksszget(&buffered).map_err(std::io::Error::from)?;
        if sector.is_power_of_two() { sector.max(512) } else { 512 }
    } else {
        512
    };
    let physical_sector_size = match metadata.file_type().is_block_device() {
        true => physical_sector_size(&buffered).max(sector_size),
        false => sector_size,
    };
    let (reader, alignment) = match open_direct(&path, sector_size) {
        Some((direct, alignment)) => (direct, alignment),
        None => (buffered, 1),
    };
    let writer = match mode {
        Mode::ReadOnly => None,
        Mode::ReadWrite | Mode::Exclusive => Some(open_writer(&path, mode, alignment)?),
    };
    if metadata.file_type().is_block_device() {
        let written =
            writer.iter().flat_map(|writer| writer.direct.iter().chain([&writer.buffered]));
        for file in written.chain([&reader]) {
            // The name has come to mean another one in between.
            if file.metadata()?.rdev() != metadata.rdev() {
                return Err(DeviceError::Gone);
            }
        }
    }
    let is_file = metadata.file_type().is_file();
    let can_trim = is_file || discards(&metadata);
    let holds_up_senders = is_file && !says_when_it_would_wait(&reader);
    let (stall, size) = (Stall::default(), AtomicU64::new(size));
    Ok(Inner {
        path,
        reader,
        writer,
        size,
        sector_size,
        physical_sector_size,
        alignment,
        is_file,
        holds_up_senders,
        can_trim,
        stall,
    })
}

/// Filesystems (as `statfs` names them) that take no lock where io_uring asks them not to wait: ext4, XFS, Btrfs, F2FS, tmpfs, bcachefs, ZFS,
/// overlayfs. Others do: a write to a file served by FUSE waits, in whoever submits it, for a flush of that file.
const HEED_NOWAIT: [u64; 8] = [
    libc::EXT4_SUPER_MAGIC as u64,
    libc::XFS_SUPER_MAGIC as u64,
    libc::BTRFS_SUPER_MAGIC as u64,
    libc::F2FS_SUPER_MAGIC as u64,
    libc::TMPFS_MAGIC as u64,
    0xca45_1a4e,
    0x2fc1_2fc1,
    libc::OVERLAYFS_SUPER_MAGIC as u64,
];

/// Whether the filesystem of `file` refuses at once what it would have to wait for.
fn says_when_it_would_wait(file: &File) -> bool {
    let kind = rustix::fs::fstatfs(file).map(|facts| facts.f_type as u64 & 0xffff_ffff);
    kind.is_ok_and(|kind| HEED_NOWAIT.contains(&kind))
}

/// What a block device writes at once, as far as it tells.
fn physical_sector_size(device: &File) -> u32 {
    rustix::fs::ioctl_blkpbszget(device).ok().filter(|size| size.is_power_of_two()).unwrap_or(0)
}

/// Bytes of a file or block device.
fn size_of(file: &File) -> std::io::Result<u64> {
    let metadata = file.metadata()?;
    if metadata.file_type().is_block_device() {
        return Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?);
    }
    Ok(metadata.len())
}

/// Whether the path of a file does not lead to it: nothing has its last name, or something else has the path. One that
/// was moved has a name, and as long as nothing is at its path nobody takes anything else for it.
fn is_replaced(inner: &Inner) -> std::io::Result<bool> {
    let own = inner.writer.as_ref().map_or(&inner.reader, |writer| &writer.buffered).metadata()?;
    if own.nlink() == 0 {
        return Ok(true);
    }
    match std::fs::metadata(&inner.path) {
        Ok(there) => Ok((there.dev(), there.ino()) != (own.dev(), own.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the kernel hands discards on to this block device; a partition asks its disk.
fn discards(device: &std::fs::Metadata) -> bool {
    let number = device.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let most = ["queue", "../queue"].iter().find_map(|queue| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/discard_max_bytes");
        std::fs::read_to_string(path).ok()
    });
    most.is_some_and(|bytes| bytes.trim().parse::<u64>().is_ok_and(|bytes| bytes > 0))
}

/// Opens `path` for writing, claims it if `mode` says so. The claim belongs to the descriptor that
/// most is written through: writes under way when this process is killed hold it until they end.
fn open_writer(path: &Path, mode: Mode, alignment: usize) -> Result<Writer, DeviceError> {
    let busy = |error: std::io::Error| match error.raw_os_error() {
        Some(libc::EBUSY | libc::EAGAIN) => DeviceError::Busy(path.to_path_buf()),
        _ => error.into(),
    };
    let metadata = std::fs::metadata(path)?;
    let is_block = metadata.file_type().is_block_device();
    let exclusive = mode == Mode::Exclusive;
    let claim = if exclusive && is_block { libc::O_EXCL } else { 0 };
    let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    let direct = match (alignment > 1).then(|| open(libc::O_DIRECT | claim)) {
        Some(Ok(direct)) => Some(direct),
        Some(Err(error)) if error.raw_os_error() == Some(libc::EBUSY) => return Err(busy(error)),
        Some(Err(_)) | None => None,
    };
    let buffered = open(if direct.is_some() { 0 } else { claim }).map_err(busy)?;
    let mut below = Vec::new();
    if exclusive {
        let held = |error: std::io::Error| match claim::is_busy(&error) {
            true => DeviceError::Busy(path.to_path_buf()),
            false => error.into(),
        };
        match is_block {
            true => below = claim::claim_below(metadata.rdev()).map_err(held)?,
            false => claim::claim_file(direct.as_ref().unwrap_or(&buffered)).map_err(held)?,
        }
    }
    let memory_alignment = direct
        .as_ref()
        .and_then(memory_alignment)
        .unwrap_or(if direct.is_some() { PAGE } else { 1 });
    let memory_alignment = memory_alignment.clamp(1, PAGE);
    Ok(Writer { buffered, direct, memory_alignment, _below: below })
}

/// Alignment of memory that direct I/O on `file` wants, if the kernel tells.
fn memory_alignment(file: &File) -> Option<usize> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let facts = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let known = facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    Some(facts.stx_dio_mem_align as usize).filter(|&size| known && size > 0)
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
        self.inner.size.load(Relaxed)
    }

    fn measure(&self) -> u64 {
        let inner = self.inner.clone();
        let measured = call(DEFAULT_DEADLINE, move || Ok(size_of(&inner.reader)?));
        if let Ok(size) = measured {
            self.inner.size.fetch_max(size, Relaxed);
        }
        self.size()
    }

    fn trim(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        in_range(offset, usize::try_from(len).unwrap_or(usize::MAX), self.size())?;
        if self.inner.writer.is_none() {
            return Err(DeviceError::ReadOnly);
        }
        let inner = self.inner.clone();
        check_stall(self, Stall::late)?;
        call_on(Arc::new(self.clone()), DEFAULT_DEADLINE, move || {
            let Some(writer) = &inner.writer else { return Err(DeviceError::ReadOnly) };
            // Of a file a hole is made; the kernel makes a discard of it for a block device.
            use rustix::fs::FallocateFlags;
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let file = writer.direct.as_ref().unwrap_or(&writer.buffered);
            rustix::fs::fallocate(file, hole, offset, len).map_err(std::io::Error::from)?;
            Ok(())
        })
    }

    fn sector_size(&self) -> u32 {
        self.inner.sector_size
    }

    fn physical_sector_size(&self) -> u32 {
        self.inner.physical_sector_size
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        let op = ReadOp { device: Arc::new(self.clone()), offset, len };
        read_batch(vec![op], DEFAULT_DEADLINE).pop().unwrap_or(Err(DeviceError::Gone))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        if self.inner.writer.is_none() {
            return Err(DeviceError::ReadOnly);
        }
        let data = Bytes::copy_from_slice(data);
        let op = WriteOp { device: Arc::new(self.clone()), offset, data };
        write_batch(vec![op], DEFAULT_DEADLINE).pop().unwrap_or(Err(DeviceError::Gone))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.inner.writer.is_none() {
            return Err(DeviceError::ReadOnly);
        }
        let device: Arc<dyn Device> = Arc::new(self.clone());
        flush_batch(&[device], DEFAULT_DEADLINE).pop().unwrap_or(Err(DeviceError::Gone))
    }

    fn raw(&self) -> Option<RawDevice> {
        Some(RawDevice {
            descriptor: self.inner.reader.as_raw_fd(),
            alignment: self.inner.alignment,
        })
    }

    fn raw_writer(&self) -> Option<RawWriter> {
        let writer = self.inner.writer.as_ref()?;
        let alignment = self.inner.alignment;
        let direct = writer
            .direct
            .as_ref()
            .map(|file| RawDevice { descriptor: file.as_raw_fd(), alignment });
        Some(RawWriter {
            direct,
            memory_alignment: writer.memory_alignment,
            buffered: writer.buffered.as_raw_fd(),
        })
    }

    fn is_file(&self) -> bool {
        self.inner.is_file
    }

    fn is_deleted(&self) -> bool {
        if !self.inner.is_file {
            return false;
        }
        let inner = self.inner.clone();
        call(LOOK, move || Ok(is_replaced(&inner)?)).unwrap_or(false)
    }

    fn holds_up_senders(&self) -> bool {
        self.inner.holds_up_senders
    }

    fn can_trim(&self) -> bool {
        self.inner.can_trim
    }

    fn stall(&self) -> Option<&Stall> {
        Some(&self.inner.stall)
    }
}
