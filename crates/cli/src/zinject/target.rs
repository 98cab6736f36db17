//! Which object of which dataset a path is.
//!
//! Invariant: only mounts of pools are believed: the kernel says which filesystem a path is on.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file of a dataset.
pub struct Target {
    /// Name of the dataset.
    pub dataset: String,
    /// Number of the object.
    pub object: u64,
    /// Bytes of a block, as far as the filesystem tells.
    pub block_size: u64,
}

/// The object behind a path.
///
/// # Errors
/// If there is no such file, or it is in no pool.
pub fn of_path(path: &str) -> Result<Target, String> {
    let place = Path::new(path);
    let found = place.canonicalize().and_then(|full| Ok((full.metadata()?, full)));
    let (facts, full) = found.map_err(|error| format!("invalid path '{path}': {error}"))?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut best: Option<(&str, usize)> = None;
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(source), Some(at), Some(kind)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let at = at.replace("\\040", " ");
        if full.starts_with(&at) && best.is_none_or(|(_, length)| at.len() >= length) {
            let is_own = kind == "zfs" || kind == "fuse.cenote";
            best = Some((if is_own { source } else { "" }, at.len()));
        }
    }
    let dataset = best.map(|(source, _)| source.replace("\\040", " "));
    let dataset = dataset.filter(|name| !name.is_empty());
    let dataset = dataset.ok_or_else(|| format!("'{path}' is in no pool"))?;
    // What was just written may be with the kernel still. One that cannot be opened has what it has.
    if facts.is_file() {
        let _ = std::fs::File::open(&full).and_then(|file| file.sync_all());
    }
    Ok(Target { dataset, object: facts.ino(), block_size: facts.blksize() })
}
