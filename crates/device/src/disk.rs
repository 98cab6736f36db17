//! Whole disks: which devices are, and giving one the partitions a pool wants.
//!
//! Invariant: nothing is written to a disk that somebody else holds, or that has no room for a
//! pool; a partition is handed out only when its node leads to the partition just made.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::DeviceError;
use crate::table::{Identity, Layout, PartitionTable, Table, read_table};
use crate::threads::call;

/// How long the kernel may take to show a partition it has read.
const SHOWN_DEADLINE: Duration = Duration::from_secs(5);
/// How long the partition's node may take to appear.
const NODE_DEADLINE: Duration = Duration::from_secs(30);
/// How long somebody who only looks may keep the kernel from reading the table.
const READ_DEADLINE: Duration = Duration::from_secs(10);
/// How long everything may take.
const DEADLINE: Duration = Duration::from_secs(90);
/// How often is looked again.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a node has to stay: udev may have the kernel read the table once more.
const SETTLED: Duration = Duration::from_millis(50);
/// How far the time of a file may lie behind the clock.
const CLOCK: Duration = Duration::from_millis(10);
/// Bytes from the start of a disk that hold its table.
const HEAD: u64 = 128 << 10;
/// Bytes of a label of a pool; two lie at the start of a device, two before its end.
const LABEL: u64 = 256 << 10;
/// Where the stable names of disks are; their partitions end in `-part1`.
const STABLE_NAMES: &str = "/dev/disk";
/// Where the stable name of a disk is found.
const BY_ID: &str = "/dev/disk/by-id";
/// Unit of places and sizes in sysfs, in bytes.
const UNIT: u64 = 512;

/// Kinds of disks, by their kernel names, that get a table of their own. OpenZFS takes others as
/// they are: loop devices, device mapper, memory cards, RAM disks.
const KINDS: [&str; 8] = ["hd", "sd", "vd", "xvd", "dasd", "nvme", "zd", "md"];
/// Those that are told apart by letters, not by numbers.
const LETTERED: [&str; 5] = ["hd", "sd", "vd", "xvd", "dasd"];

/// The pool's partition of a disk. As long as this lives the kernel does not read the disk's table
/// anew, as udev has it do whenever somebody who could write a disk is done with it: partitions
/// come and go meanwhile.
#[derive(Debug)]
pub struct PoolPartition {
    /// Its node, named after the path of the disk.
    pub path: PathBuf,
    /// Its bytes.
    pub size: u64,
    _open: File,
}

/// Why a disk could not be partitioned.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DiskError {
    /// It cannot be opened, read or written, or somebody holds it.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// There is no room for a pool, or its sectors are of a strange size.
    #[error("a disk of {size} bytes in sectors of {sector_size} cannot be partitioned")]
    Unfit {
        /// Bytes of the disk.
        size: u64,
        /// Bytes of a sector.
        sector_size: u64,
    },
    /// The kernel did not take the new table.
    #[error("the kernel does not read its partition table: {0}")]
    NotRead(std::sync::Arc<Error>),
    /// The kernel shows no partitions.
    #[error("the kernel does not show '{}': it may not know GPT", .0.display())]
    NotShown(PathBuf),
    /// The partition's node did not appear.
    #[error("failed to detect device partitions on '{}': {}", .0.display(), libc::ENODEV)]
    NoNode(PathBuf),
    /// What was written reads differently.
    #[error(
        "freshly written EFI label on '{}' is damaged.  Ensure\nthis device is not in use, and is \
         functioning properly",
        .0.display()
    )]
    Damaged(PathBuf),
}

impl From<Error> for DiskError {
    fn from(error: Error) -> Self {
        Self::Device(error.into())
    }
}

/// Whether the block device at `path` is a whole disk that gets a partition table. `others` are
/// further kinds that are to get one, by the letters their kernel names begin with.
pub fn is_whole_disk(path: &Path, others: &[&str]) -> bool {
    let Some(sysfs) = sysfs_of(path) else { return false };
    let name = sysfs.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    is_disk_name(&name, others) && !sysfs.join("partition").exists()
}

fn is_disk_name(name: &str, others: &[&str]) -> bool {
    let kind = name.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    KINDS.iter().chain(others).any(|known| match LETTERED.contains(known) {
        true => kind.strip_prefix(known).is_some_and(|rest| !rest.is_empty()),
        false => kind == *known,
    })
}

/// The name of partition `number` of the disk at `path`.
pub fn partition_path(path: &Path, number: u32) -> PathBuf {
    let name = path.to_string_lossy();
    let ends_in_digit = name.ends_with(|c: char| c.is_ascii_digit());
    let between = match path.starts_with(STABLE_NAMES) {
        true => "-part",
        false if ends_in_digit => "p",
        false => "",
    };
    format!("{name}{between}{number}").into()
}

/// The name a disk keeps wherever it is plugged in.
pub fn stable_name(path: &Path) -> Option<String> {
    let target = std::fs::canonicalize(path).ok()?;
    let mut names: Vec<String> = std::fs::read_dir(BY_ID)
        .ok()?
        .flatten()
        .filter(|entry| std::fs::canonicalize(entry.path()).is_ok_and(|other| other == target))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.into_iter().next()
}

/// The partition table of the disk at `path`.
pub fn partition_table(path: &Path) -> Result<PartitionTable, DeviceError> {
    let path = path.to_path_buf();
    call(DEADLINE, move || {
        let disk = File::open(path)?;
        let (size, sector_size) = shape(&disk)?;
        let mut head = vec![0; usize::try_from(size.min(HEAD)).unwrap_or(0)];
        disk.read_exact_at(&mut head, 0)?;
        let found = read_table(&head, sector_size);
        if found != PartitionTable::Nothing {
            return Ok(found);
        }
        // A copy at the end tells that the first was lost.
        let mut copy = [0; 8];
        disk.read_exact_at(&mut copy, (size / sector_size).saturating_sub(1) * sector_size)?;
        Ok(if copy == *b"EFI PART" { PartitionTable::Damaged } else { found })
    })
}

/// Bytes the pool's partition will have on the disk at `path`; none if there is no room for one.
pub fn planned_size(path: &Path) -> Result<Option<u64>, DeviceError> {
    let path = path.to_path_buf();
    call(DEADLINE, move || {
        let (size, sector_size) = shape(&File::open(path)?)?;
        Ok(Layout::of(size, sector_size).map(|layout| layout.size()))
    })
}

/// Gives the whole disk at `path` the partition table OpenZFS gives it, whatever was on it: one
/// partition for a pool, and a small one after it. Labels of pools that lay on the disk itself are
/// wiped. Returns when the kernel has read the table and the node of the pool's partition is there;
/// what is returned should live until the pool holds the partition.
pub fn partition_disk(path: &Path) -> Result<PoolPartition, DiskError> {
    let path = path.to_path_buf();
    call(DEADLINE, move || Ok(partition(&path)))?
}

fn partition(path: &Path) -> Result<PoolPartition, DiskError> {
    let node = partition_path(path, 1);
    let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_EXCL).open(path);
    let disk = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => DeviceError::Busy(path.to_path_buf()),
        _ => error.into(),
    })?;
    let (size, sector_size) = shape(&disk)?;
    let unfit = DiskError::Unfit { size, sector_size };
    let layout = Layout::of(size, sector_size).ok_or(unfit)?;
    let missing = || DiskError::NoNode(node.clone());
    let sysfs = sysfs_of(path).ok_or_else(missing)?;
    // A device that takes no partitions, or one whose partitions are in use, says so now.
    reread(&disk)?;
    write(&disk, &layout)?;
    let before = SystemTime::now();
    reread(&disk)?;
    let mut head = vec![0; usize::try_from(HEAD).unwrap_or(0)];
    disk.read_exact_at(&mut head, 0)?;
    if read_table(&head, sector_size) != PartitionTable::Partitions(vec![1, 9]) {
        return Err(DiskError::Damaged(path.to_path_buf()));
    }
    let until = Instant::now() + NODE_DEADLINE;
    // Opened before the disk is closed, and the disk closed before anybody may hold the partition.
    let open = loop {
        wait_for(&sysfs, &layout, &node, before)?;
        match File::open(&node) {
            Ok(open) => break open,
            // Who opened the disk beside us had the kernel read the table once more.
            Err(error) if Instant::now() < until && is_away(&error) => std::thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    };
    drop(disk);
    Ok(PoolPartition { path: node, size: layout.size(), _open: open })
}

/// There is no such device, at the moment.
fn is_away(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOENT | libc::ENODEV))
}

/// Writes the table, and zeros where labels may lie.
fn write(disk: &File, layout: &Layout) -> Result<(), Error> {
    let mut boot = [0; 512];
    disk.read_exact_at(&mut boot, 0)?;
    let mut table = Table::new(layout, &Identity::random()?, &boot)?;
    let size = layout.sectors * layout.sector_size;
    let labels = (size / LABEL * LABEL).saturating_sub(2 * LABEL).min(table.tail_offset);
    let zeros = usize::try_from(table.tail_offset - labels).unwrap_or(0);
    table.tail.splice(0..0, std::iter::repeat_n(0, zeros));
    table.head.resize(usize::try_from(2 * LABEL).unwrap_or(0).max(table.head.len()), 0);
    disk.write_all_at(&table.tail, labels)?;
    disk.write_all_at(&table.head, 0)?;
    disk.sync_all()
}

/// Size and sector size of a block device, in bytes.
fn shape(disk: &File) -> Result<(u64, u64), Error> {
    if !disk.metadata()?.file_type().is_block_device() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a block device"));
    }
    let size = rustix::fs::seek(disk, rustix::fs::SeekFrom::End(0))?;
    Ok((size, u64::from(rustix::fs::ioctl_blksszget(disk)?)))
}

/// Has the kernel read the table anew.
fn reread(disk: &File) -> Result<(), DiskError> {
    /// `BLKRRPART` of `<linux/fs.h>`.
    const REREAD: libc::Ioctl = 0x125f;
    let until = Instant::now() + READ_DEADLINE;
    loop {
        // SAFETY: the descriptor is open, and BLKRRPART takes no argument: it reads and writes no
        // memory of this process.
        let answer = unsafe { libc::ioctl(disk.as_raw_fd(), REREAD) };
        if answer == 0 {
            return Ok(());
        }
        let error = Error::last_os_error();
        let looked_at = error.raw_os_error() == Some(libc::EBUSY);
        if !looked_at || Instant::now() >= until {
            return Err(DiskError::NotRead(error.into()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Where sysfs describes the block device at `path`.
fn sysfs_of(path: &Path) -> Option<PathBuf> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

/// Waits until the kernel shows the first partition of `layout`, which was read after `before`, and
/// `node` leads to it.
fn wait_for(
    sysfs: &Path,
    layout: &Layout,
    node: &Path,
    before: SystemTime,
) -> Result<(), DiskError> {
    let start = Instant::now();
    let (mut shown, mut since) = (false, None::<Instant>);
    while start.elapsed() < NODE_DEADLINE {
        let number = number_of(sysfs, layout);
        shown |= number.is_some();
        if !shown && start.elapsed() > SHOWN_DEADLINE {
            return Err(DiskError::NotShown(node.to_path_buf()));
        }
        let there = number.is_some_and(|number| leads_to(node, number, before));
        since = since.or_else(|| Some(Instant::now())).filter(|_| there);
        if since.is_some_and(|since| since.elapsed() >= SETTLED) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err(DiskError::NoNode(node.to_path_buf()))
}

/// Device number of the first partition of `layout`, if the kernel knows it.
fn number_of(sysfs: &Path, layout: &Layout) -> Option<u64> {
    let units = layout.sector_size / UNIT;
    let facts = [("partition", 1), ("start", layout.start * units), ("size", layout.len * units)];
    let text = |place: &Path| std::fs::read_to_string(place).ok();
    let fits = |part: &PathBuf| {
        facts.iter().all(|(name, wanted)| {
            let value = text(&part.join(name)).and_then(|value| value.trim().parse::<u64>().ok());
            value == Some(*wanted)
        })
    };
    let parts = std::fs::read_dir(sysfs).ok()?.flatten().map(|entry| entry.path());
    let number = text(&parts.into_iter().find(fits)?.join("dev"))?;
    let (major, minor) = number.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Whether `node` is the block device of this number, and udev, where it runs, is done with what it
/// was told after `before`: it takes names away and gives them again.
fn leads_to(node: &Path, number: u64, before: SystemTime) -> bool {
    let udev = Path::new("/run/udev");
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let is_it = std::fs::metadata(node)
        .is_ok_and(|found| found.file_type().is_block_device() && found.rdev() == number);
    let is_done = || {
        let noted = std::fs::metadata(udev.join(format!("data/b{major}:{minor}")));
        let since = noted.and_then(|noted| noted.modified());
        since.is_ok_and(|since| since + CLOCK >= before) && !udev.join("queue").exists()
    };
    is_it && (!udev.join("control").exists() || is_done())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_known_by_their_names() {
        for name in ["sda", "sdaa", "vdb", "xvda", "hda", "dasda", "nvme0n1", "zd16", "md127"] {
            assert!(is_disk_name(name, &[]), "{name}");
        }
        for name in ["loop0", "dm-3", "mmcblk0", "ram0", "zram0", "nbd0", "sr0", "sd", ""] {
            assert!(!is_disk_name(name, &[]), "{name}");
        }
        assert!(is_disk_name("loop0", &["loop"]) && !is_disk_name("nbd0", &["loop"]));
        assert!(!is_whole_disk(Path::new("/dev/null"), &[]));
        assert!(!is_whole_disk(Path::new("/no/such"), &[]));
    }

    #[test]
    fn partitions_are_named_after_their_disk() {
        for (disk, first) in [
            ("/dev/sda", "/dev/sda1"),
            ("/dev/nvme0n1", "/dev/nvme0n1p1"),
            ("/dev/disk/by-id/ata-X_1", "/dev/disk/by-id/ata-X_1-part1"),
            ("/dev/disk/by-vdev/A0", "/dev/disk/by-vdev/A0-part1"),
        ] {
            assert_eq!(partition_path(Path::new(disk), 1), Path::new(first));
        }
    }
}
