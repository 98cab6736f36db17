//! From a word on the command line to a file or block device.
//!
//! Invariant: only regular files and block devices come out, with absolute paths; nothing is opened
//! for writing.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use cenote_control::plan::{VdevPlan, VdevPlanKind};
use cenote_device::{partition_path, planned_size};

/// Where short names are looked for, in this order; `ZPOOL_IMPORT_PATH` goes before.
const PLACES: [&str; 9] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-partuuid",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev",
];
/// Kinds of devices that are taken for whole disks though OpenZFS takes them as they are: the
/// letters their kernel names begin with, separated by commas (`loop,mmcblk`).
const OTHER_DISKS: &str = "CENOTE_WHOLE_DISKS";
/// Where the stable name of a disk is found.
const BY_ID: &str = "/dev/disk/by-id";

/// The leaf a word names.
///
/// # Errors
/// The lines of OpenZFS.
pub fn resolve(word: &str) -> Result<VdevPlan, String> {
    let path = if word.starts_with('/') {
        PathBuf::from(word)
    } else {
        short_name(word).ok_or_else(|| {
            format!(
                "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand \
                 device name"
            )
        })?
    };
    let shown = path.display();
    let data = fs::metadata(&path).map_err(|_| format!("cannot resolve path '{shown}'"))?;
    let kind = data.file_type();
    if kind.is_file() {
        return Ok(VdevPlan {
            kind: VdevPlanKind::File,
            path: Some(shown.to_string()),
            size: data.len(),
            ..VdevPlan::default()
        });
    }
    if !kind.is_block_device() {
        return Err(format!("cannot use '{shown}': must be a block device or regular file"));
    }
    let size = size_of(&path).map_err(|error| format!("cannot open '{shown}': {error}"))?;
    let whole_disk = is_whole_disk(&path);
    let planned = whole_disk.then(|| planned_size(&path).ok().flatten());
    Ok(VdevPlan {
        kind: VdevPlanKind::Disk,
        devid: stable_name(&path),
        path: Some(shown.to_string()),
        whole_disk,
        size: planned.map_or(size, Option::unwrap_or_default),
        ..VdevPlan::default()
    })
}

/// Whether the device at `path` is a disk that gets a partition table of its own.
pub fn is_whole_disk(path: &Path) -> bool {
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
    let path = short_name(word)?;
    let path = if is_whole_disk(&path) { partition_path(&path, 1) } else { path };
    Some(path).filter(|path| path.exists())
}

fn short_name(word: &str) -> Option<PathBuf> {
    if word.is_empty() || word.split('/').any(|part| matches!(part, "." | "..")) {
        return None;
    }
    let own = std::env::var("ZPOOL_IMPORT_PATH").unwrap_or_default();
    let own = own.split(':').filter(|place| place.starts_with('/')).map(PathBuf::from);
    let all = own.chain(PLACES.iter().map(PathBuf::from)).map(|place| place.join(word));
    all.into_iter().find(|path| path.exists())
}

/// Size of a block device in bytes.
fn size_of(path: &Path) -> std::io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    fs::File::open(path)?.seek(SeekFrom::End(0))
}

/// The name a disk keeps wherever it is plugged in.
pub fn stable_name(path: &Path) -> Option<String> {
    let target = fs::canonicalize(path).ok()?;
    let mut names: Vec<String> = fs::read_dir(BY_ID)
        .ok()?
        .flatten()
        .filter(|entry| fs::canonicalize(entry.path()).is_ok_and(|other| other == target))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let file = at.join("d0");
        fs::write(&file, vec![0; 4096]).unwrap();
        let leaf = resolve(&file.display().to_string()).unwrap();
        assert_eq!((leaf.kind, leaf.size), (VdevPlanKind::File, 4096));
        let shown = at.display();
        let words = format!("cannot use '{shown}': must be a block device or regular file");
        assert_eq!(resolve(&shown.to_string()), Err(words));
        assert_eq!(resolve("/d/nope"), Err("cannot resolve path '/d/nope'".into()));
        let words = "cannot open 'no-such-disk': no such device in /dev\nmust be a full path or \
                     shorthand device name";
        assert_eq!(resolve("no-such-disk"), Err(words.into()));
        assert!(resolve("./d0").is_err() && resolve("../dev/null").is_err());
    }
}
