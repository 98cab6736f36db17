//! What vdevs are called in listings.
//!
//! Invariant: the names are those `zpool` prints for the same config, so scripts can find them again.

use cenote_format::config::{VdevConfig, VdevKind};

/// What a name should show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameStyle {
    /// The guid instead of anything else.
    pub guid: bool,
    /// The whole path of a disk instead of its last part.
    pub full_path: bool,
}

/// The name of `node`: a device's path, or the kind and id of an interior vdev.
pub fn vdev_name(node: &VdevConfig, style: NameStyle) -> String {
    let is_device = node.kind.has_device() || node.kind == VdevKind::DistributedSpare;
    if style.guid || (is_device && node.not_present) {
        return node.guid.to_string();
    }
    if is_device {
        let Some(path) = node.path.as_deref() else { return node.guid.to_string() };
        return match node.kind {
            VdevKind::Disk if !style.full_path => disk_name(path, node.whole_disk == Some(true)),
            _ => path.to_string(),
        };
    }
    interior_name(node, node.children().len())
}

/// The name of an interior vdev of so many children, which need not be those that `node` lists: its kind
/// and id.
pub fn interior_name(node: &VdevConfig, children: usize) -> String {
    let parity = node.nparity.unwrap_or(1);
    let kind = match (node.kind, &node.draid) {
        (VdevKind::Raidz, _) => format!("raidz{parity}"),
        (VdevKind::Draid, Some(draid)) => {
            format!("draid{parity}:{}d:{children}c:{}s", draid.data, draid.spares)
        }
        (kind, _) => kind.name().to_string(),
    };
    match node.id {
        Some(id) if node.kind != VdevKind::Root => format!("{kind}-{id}"),
        _ => kind,
    }
}

/// The last part of a disk's path, without the partition if the pool has the whole disk.
fn disk_name(path: &str, whole_disk: bool) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    if whole_disk { without_partition(name) } else { name }.to_string()
}

/// `sda1`, `nvme0n1p1`, `ata-X-part1` without what names the partition.
fn without_partition(name: &str) -> &str {
    let base = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if base.len() == name.len() {
        return name;
    }
    if let Some(stem) = base.strip_suffix("-part") {
        return stem;
    }
    if let Some(stem) = base.strip_suffix('p')
        && stem.ends_with(|c: char| c.is_ascii_digit())
    {
        return stem;
    }
    let letters = ["sd", "hd", "vd", "xvd"].iter().find_map(|prefix| base.strip_prefix(prefix));
    let is_plain = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_lowercase());
    if letters.is_some_and(is_plain) { base } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::testing::{leaf, top};
    use cenote_format::config::Draid;

    #[test]
    fn interiors_have_kind_and_id() {
        let style = NameStyle::default();
        let children: Vec<_> = (0..11).map(|id| leaf(id, 11 + id, "/tmp/d")).collect();
        assert_eq!(vdev_name(&top(VdevKind::Mirror, 3, 10, children.clone()), style), "mirror-3");
        assert_eq!(vdev_name(&top(VdevKind::Raidz, 0, 10, children.clone()), style), "raidz1-0");
        let mut draid = top(VdevKind::Draid, 0, 10, children);
        draid.nparity = Some(2);
        draid.draid = Some(Draid { data: 4, spares: 1, groups: 5, children: None });
        assert_eq!(vdev_name(&draid, style), "draid2:4d:11c:1s-0");
        assert_eq!(vdev_name(&VdevConfig::placeholder(VdevKind::Indirect, 1), style), "indirect-1");
    }

    #[test]
    fn devices_have_paths() {
        let style = NameStyle::default();
        let mut node = leaf(0, 11, "/tmp/p/d0");
        assert_eq!(vdev_name(&node, style), "/tmp/p/d0");
        node.not_present = true;
        assert_eq!(vdev_name(&node, style), "11");
        let mut disk = leaf(0, 12, "/dev/disk/by-id/ata-X-part1");
        disk.kind = VdevKind::Disk;
        assert_eq!(vdev_name(&disk, style), "ata-X-part1");
        assert_eq!(vdev_name(&disk, NameStyle { guid: true, ..style }), "12");
        disk.whole_disk = Some(true);
        assert_eq!(vdev_name(&disk, style), "ata-X");
        let full = NameStyle { full_path: true, ..style };
        assert_eq!(vdev_name(&disk, full), "/dev/disk/by-id/ata-X-part1");
    }

    #[test]
    fn partitions_are_left_off() {
        for (name, base) in [
            ("sda1", "sda"),
            ("xvdb12", "xvdb"),
            ("nvme0n1p1", "nvme0n1"),
            ("mmcblk0p2", "mmcblk0"),
            ("wwn-0x5000-part9", "wwn-0x5000"),
            ("nvme0n1", "nvme0n1"),
            ("label7", "label7"),
            ("sda", "sda"),
            ("1", "1"),
        ] {
            assert_eq!(without_partition(name), base);
        }
    }
}
