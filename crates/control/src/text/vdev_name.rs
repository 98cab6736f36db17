//! How a device is called on the screen, and how wide a tree of devices is.
//!
//! Invariant: a name depends on the report and the options only, except that `-L` asks the
//! filesystem where a link leads.

use std::path::Path;

use crate::device_names::PLACES;
use crate::report::{VdevClass, VdevReport};

/// What the options `-g`, `-L` and `-P` ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// Guids instead of names (`-g`).
    pub guids: bool,
    /// Follow links (`-L`).
    pub follow: bool,
    /// Full paths (`-P`).
    pub paths: bool,
}

/// Name of one device.
pub fn name(vdev: &VdevReport, naming: Naming) -> String {
    if vdev.kind == "root" {
        return vdev.name.clone();
    }
    if naming.guids || vdev.not_present {
        return vdev.guid.to_string();
    }
    let Some(path) = &vdev.path else {
        return vdev.name.clone();
    };
    if vdev.kind == "dspare" {
        return vdev.name.clone();
    }
    let path = match naming.follow.then(|| std::fs::canonicalize(path)) {
        Some(Ok(real)) => real.to_string_lossy().into_owned(),
        _ => path.clone(),
    };
    if naming.paths || vdev.kind != "disk" {
        return path;
    }
    let short = without_directory(&path);
    if vdev.whole_disk { without_partition(short) } else { short.to_owned() }
}

/// Whether `word` means this device: its path or the end of that, for a whole disk also without the
/// partition, its guid, or its name.
pub fn answers_to(vdev: &VdevReport, word: &str) -> bool {
    let path = vdev.path.as_deref().unwrap_or_default();
    let (directory, last) = path.rsplit_once('/').unwrap_or(("", path));
    let disk = if vdev.whole_disk { without_partition(last) } else { last.to_owned() };
    let is_path = word == path || word == format!("{directory}/{disk}");
    let is_named = vdev.kind != "root" && vdev.name == word;
    is_path || word == last || word == disk || vdev.guid.to_string() == word || is_named
}

/// The path of a device without the directory, if nothing but nodes lies there.
pub fn without_directory(path: &str) -> &str {
    let below = |place: &&str| path.strip_prefix(*place)?.strip_prefix('/');
    PLACES.iter().find_map(below).unwrap_or(path)
}

/// Takes the partition off: `sda1`, `nvme0n1p1`, `wwn-0x5000-part1`.
fn without_partition(name: &str) -> String {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if stem.len() == name.len() {
        return name.to_owned();
    }
    if let Some(disk) = stem.strip_suffix("-part") {
        return disk.to_owned();
    }
    let letters = |prefix: &str| {
        stem.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_lowercase()))
    };
    if ["sd", "hd", "vd", "xvd"].into_iter().any(letters) {
        return stem.to_owned();
    }
    match stem.strip_suffix('p') {
        Some(disk) if disk.ends_with(|c: char| c.is_ascii_digit()) => disk.to_owned(),
        _ => name.to_owned(),
    }
}

/// The class headings of a tree in the order they are shown, with the class each one holds.
pub const SECTIONS: [(&str, VdevClass); 3] =
    [("dedup", VdevClass::Dedup), ("special", VdevClass::Special), ("logs", VdevClass::Log)];

/// Whether a device is shown at all: holes and devices that were removed are not.
pub fn is_shown(vdev: &VdevReport) -> bool {
    vdev.kind != "hole" && vdev.kind != "indirect"
}

/// The top-level devices of one class.
pub fn tops(root: &VdevReport, class: VdevClass) -> impl Iterator<Item = &VdevReport> {
    root.children.iter().filter(move |vdev| vdev.class == class)
}

/// Width of the widest name of a tree, each level two columns further in; `depth` is the
/// indentation of `vdev` itself.
pub fn widest(vdev: &VdevReport, depth: usize, naming: Naming) -> usize {
    let own = name(vdev, naming).len() + depth;
    let below = vdev.children.iter().map(|child| widest(child, depth + 2, naming)).max();
    own.max(below.unwrap_or(0))
}

/// Whether the path exists as it is spelled.
pub fn exists(path: &str) -> bool {
    Path::new(path).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(path: &str, whole_disk: bool) -> String {
        let vdev = VdevReport {
            kind: "disk".into(),
            path: Some(path.into()),
            whole_disk,
            guid: 7,
            ..VdevReport::default()
        };
        name(&vdev, Naming::default())
    }

    #[test]
    fn devices_answer_to_their_names() {
        let mut vdev = VdevReport {
            kind: "disk".into(),
            path: Some("/dev/vdb1".into()),
            whole_disk: true,
            guid: 7,
            ..VdevReport::default()
        };
        for word in ["/dev/vdb1", "/dev/vdb", "vdb1", "vdb", "7"] {
            assert!(answers_to(&vdev, word), "{word}");
        }
        assert!(!answers_to(&vdev, "vd") && !answers_to(&vdev, "vdc"));
        vdev.whole_disk = false;
        assert!(answers_to(&vdev, "vdb1") && !answers_to(&vdev, "vdb"));
    }

    #[test]
    fn disks_lose_directory_and_partition() {
        assert_eq!(disk("/dev/sda1", true), "sda");
        assert_eq!(disk("/dev/sda1", false), "sda1");
        assert_eq!(disk("/dev/nvme0n1p1", true), "nvme0n1");
        assert_eq!(disk("/dev/disk/by-id/wwn-0x5000-part1", true), "wwn-0x5000");
        assert_eq!(disk("/dev/disk/by-id/ata-X_1", false), "ata-X_1");
    }
}
