//! Short names of devices.
//!
//! Invariant: nothing is opened.

use std::path::PathBuf;

/// Directories that hold nothing but device nodes. Short names are looked for there in this order;
/// `ZPOOL_IMPORT_PATH` goes before.
pub const PLACES: [&str; 9] = [
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

/// The device of this short name, if there is one.
pub fn short_name(word: &str) -> Option<PathBuf> {
    if word.is_empty() || word.split('/').any(|part| matches!(part, "." | "..")) {
        return None;
    }
    let own = std::env::var("ZPOOL_IMPORT_PATH").unwrap_or_default();
    let own = own.split(':').filter(|place| place.starts_with('/')).map(PathBuf::from);
    let all = own.chain(PLACES.iter().map(PathBuf::from)).map(|place| place.join(word));
    all.into_iter().find(|path| path.exists())
}
