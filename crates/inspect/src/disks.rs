//! What block devices are.
//!
//! Invariant: nothing is opened for writing.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use cenote_control::device_names;
use cenote_control::look::{Disk, Kind};
use cenote_device::{partition_path, planned_size, stable_name};

/// What is at a path.
pub fn kind(path: &Path) -> Option<Kind> {
    let data = fs::metadata(path).ok()?;
    Some(match data.file_type() {
        kind if kind.is_file() => Kind::File(data.len()),
        kind if kind.is_block_device() => Kind::BlockDevice,
        _ => Kind::Other,
    })
}

/// Kinds of devices that are taken for whole disks though OpenZFS takes them as they are: the
/// letters their kernel names begin with, separated by commas (`loop,mmcblk`).
const OTHER_DISKS: &str = "CENOTE_WHOLE_DISKS";
/// The block device at `path`.
///
/// # Errors
/// What the system says.
pub fn disk(path: &Path) -> Result<Disk, String> {
    let size = size_of(path).map_err(|error| error.to_string())?;
    let whole = is_whole_disk(path);
    let planned = whole.then(|| planned_size(path).ok().flatten());
    Ok(Disk {
        whole,
        size: planned.map_or(size, Option::unwrap_or_default),
        stable_name: stable_name(path),
    })
}

/// Whether the device at `path` is a disk that gets a partition table of its own.
fn is_whole_disk(path: &Path) -> bool {
    let others = std::env::var(OTHER_DISKS).unwrap_or_default();
    let others: Vec<&str> = others.split(',').filter(|kind| !kind.is_empty()).collect();
    cenote_device::is_whole_disk(path, &others)
}

/// The device a word means to commands that work on one device: a path as it is, else a short name;
/// of a whole disk the partition that holds its pool.
pub fn with_label(word: &str) -> Option<PathBuf> {
    let path = Path::new(word);
    if word.starts_with('/') || path.exists() {
        return Some(path.to_path_buf());
    }
    let path = device_names::short_name(word)?;
    let path = if is_whole_disk(&path) { partition_path(&path, 1) } else { path };
    Some(path).filter(|path| path.exists())
}

/// Size of a block device in bytes.
fn size_of(path: &Path) -> std::io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    fs::File::open(path)?.seek(SeekFrom::End(0))
}
