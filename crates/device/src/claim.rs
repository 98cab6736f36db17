//! Holding a device against everybody else, by the bytes it consists of.
//!
//! A name is no identity: a loop device over a file, a partition of it, or a device mapped onto it
//! are the same bytes under another inode. The kernel's own claims (`O_EXCL`) tell block devices
//! apart that it stacked itself, but know nothing of files; `flock` knows the inode only. So a file
//! is locked twice, with `flock` (what older releases and other programs ask for) and with an open
//! file description lock over its whole range; and who opens a block device locks the range of every
//! file found below it. Such locks belong to the open file: they end when its last user ends,
//! writes that are still under way included, and with nothing else.
//!
//! Invariant: two devices that share bytes of a file are never claimed at the same time. What no
//! longer has a name (a deleted file below a loop device), or cannot be opened, is not locked.

use std::fs::{File, OpenOptions};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// How many devices may lie below each other.
const DEPTH: usize = 16;
/// What the kernel adds to the name of a file that has none any more.
const DELETED: &str = " (deleted)";

/// Bytes of a file below a block device; a length of 0 reaches to the end, wherever that is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    file: PathBuf,
    start: u64,
    length: u64,
    /// The device is those bytes; otherwise it may use some of them (device mapper, MD).
    exactly: bool,
}

/// Whether `error` means that somebody else holds it.
pub(crate) fn is_busy(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN))
}

/// Claims a regular file, which must be open for writing.
pub(crate) fn claim_file(file: &File) -> Result<(), Error> {
    flock(file, FlockOperation::NonBlockingLockExclusive)?;
    lock_range(file, true, 0, 0)
}

/// Claims the files below the block device of this number. Keep what is returned: it is the claim.
pub(crate) fn claim_below(number: u64) -> Result<Vec<File>, Error> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let mut pieces = Vec::new();
    let sysfs = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    find(&sysfs, &|path| path.canonicalize().ok(), (0, 0), true, DEPTH, &mut pieces);
    let mut held = Vec::new();
    for piece in pieces {
        // Without a name here nobody else can open it by one either.
        let Some((file, writable)) = open(&piece.file) else { continue };
        lock_range(&file, writable && piece.exactly, piece.start, piece.length)?;
        held.push(file);
    }
    Ok(held)
}

fn open(path: &Path) -> Option<(File, bool)> {
    if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return None;
    }
    let writable = OpenOptions::new().read(true).write(true).open(path);
    writable.map(|file| (file, true)).or_else(|_| File::open(path).map(|file| (file, false))).ok()
}

/// The files below the device whose directory in sysfs is `device`, of which the bytes `within` are
/// used (start and length, 0 for all that follows).
fn find(
    device: &Path,
    canonical: &dyn Fn(&Path) -> Option<PathBuf>,
    within: (u64, u64),
    exactly: bool,
    depth: usize,
    pieces: &mut Vec<Piece>,
) {
    let Some(below) = depth.checked_sub(1) else { return };
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(device.join(name)).ok()?.trim().parse().ok()
    };
    if device.join("partition").exists() {
        let (Some(start), Some(size)) = (number("start"), number("size")) else { return };
        let start = start.saturating_mul(512).saturating_add(within.0);
        let length = if within.1 == 0 { size.saturating_mul(512) } else { within.1 };
        if let Some(disk) = canonical(device).and_then(|path| path.parent().map(Path::to_path_buf))
        {
            find(&disk, canonical, (start, length), exactly, below, pieces);
        }
        return;
    }
    if let Ok(name) = std::fs::read_to_string(device.join("loop/backing_file")) {
        let name = name.trim_end_matches('\n');
        let file = PathBuf::from(name);
        if name.ends_with(DELETED) && !file.exists() {
            return;
        }
        let start = number("loop/offset").unwrap_or(0).saturating_add(within.0);
        let limit = number("loop/sizelimit").unwrap_or(0);
        let length = if within.1 == 0 { limit } else { within.1 };
        match std::fs::metadata(&file) {
            Ok(metadata) if metadata.file_type().is_block_device() => {
                let number = metadata.rdev();
                let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
                let lower = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
                find(&lower, canonical, (start, length), exactly, below, pieces);
            }
            _ => pieces.push(Piece { file, start, length, exactly }),
        }
        return;
    }
    for slave in std::fs::read_dir(device.join("slaves")).into_iter().flatten().flatten() {
        find(&slave.path(), canonical, (0, 0), false, below, pieces);
    }
}

/// Locks bytes of `file`, exclusively or against exclusive locks only, without waiting. A
/// filesystem that has no such locks is no obstacle.
fn lock_range(file: &File, exclusive: bool, start: u64, length: u64) -> Result<(), Error> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    let (Ok(start), Ok(length)) = (i64::try_from(start), i64::try_from(length)) else {
        return Err(Error::other("a device reaches beyond the end of the file below it"));
    };
    // SAFETY: a structure of integers; all zeros is a value of it.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = length;
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the kernel only reads `lock`.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if answer == 0 {
        return Ok(());
    }
    let error = Error::last_os_error();
    if is_busy(&error) { Err(error) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    fn below(root: &Path, name: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let canonical = |path: &Path| Some(path.to_path_buf());
        find(&root.join(name), &canonical, (0, 0), true, DEPTH, &mut pieces);
        pieces
    }

    #[test]
    fn the_file_below_is_found_with_its_range() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        tree(
            root,
            &[
                ("loop0/loop/backing_file", "/d/a b\n"),
                ("loop0/loop/offset", "1024\n"),
                ("loop0/loop/sizelimit", "0\n"),
                ("loop0/loop0p2/partition", "2\n"),
                ("loop0/loop0p2/start", "2048\n"),
                ("loop0/loop0p2/size", "100\n"),
                ("dm-0/slaves/loop0/loop/backing_file", "/d/c\n"),
                ("sda/size", "9\n"),
            ],
        );
        let piece = |file: &str, start, length, exactly| {
            vec![Piece { file: file.into(), start, length, exactly }]
        };
        assert_eq!(below(root, "loop0"), piece("/d/a b", 1024, 0, true));
        assert_eq!(below(root, "loop0/loop0p2"), piece("/d/a b", 1024 + 2048 * 512, 51_200, true));
        assert_eq!(below(root, "dm-0"), piece("/d/c", 0, 0, false));
        assert_eq!(below(root, "sda"), []);
    }

    #[test]
    fn ranges_that_overlap_are_held_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, [0; 8192]).unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (first, second, whole) = (open(), open(), open());
        lock_range(&first, true, 0, 4096).unwrap();
        lock_range(&second, true, 4096, 4096).unwrap();
        assert!(is_busy(&claim_file(&whole).unwrap_err()));
        drop((first, second));
        let shared = (open(), open());
        lock_range(&shared.0, false, 0, 0).unwrap();
        lock_range(&shared.1, false, 0, 0).unwrap();
        assert!(is_busy(&lock_range(&whole, true, 100, 1).unwrap_err()));
        drop(shared);
        lock_range(&whole, true, 0, 0).unwrap();
    }
}
