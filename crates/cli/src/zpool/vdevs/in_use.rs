//! Whether a device is used by a pool, a filesystem or the system.
//!
//! Invariant: devices are only read; what cannot be told for sure is not called free.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_control::plan::{VdevPlan, VdevPlanKind};
use cenote_control::report::VdevClass;
use cenote_device::Mode;
use cenote_engine::pool::discover::{FileOpener, Opener, ScanOptions, scan};
use cenote_format::config::PoolState;

/// What the labels of a device say of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// State of the pool, or kind of the device.
    pub state: PoolState,
    /// Name of the pool; empty for spares and cache devices.
    pub pool: String,
    /// Guid of the pool.
    pub pool_guid: u64,
    /// Guid of the device.
    pub guid: u64,
}

/// What is imported on this machine.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// Guids of pools.
    pub pools: Vec<u64>,
    /// Guids of hot spares, with the names of their pools.
    pub spares: Vec<(u64, String)>,
    /// Guids of cache devices, with the names of their pools.
    pub caches: Vec<(u64, String)>,
}

/// A use of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The line to print.
    pub words: String,
    /// `-f` makes it no obstacle.
    pub can_be_forced: bool,
}

/// What the labels on a device say, if it has any that count.
pub fn membership(path: &Path) -> Option<Membership> {
    let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: Mode::ReadOnly });
    let found = scan(&opener, &ScanOptions::new(vec![path.to_path_buf()]));
    let device = found.devices.first()?;
    let config = device.config()?;
    Some(Membership {
        state: config.state?,
        pool: config.name.clone().unwrap_or_default(),
        pool_guid: config.pool_guid.unwrap_or_default().0,
        guid: device.guid().0,
    })
}

/// The uses of a leaf that stand against taking it for a new pool or device.
pub fn uses(leaf: &VdevPlan, imported: &Imported) -> Vec<Use> {
    let Some(path) = leaf.path.as_deref().map(Path::new) else { return Vec::new() };
    let shown = path.display().to_string();
    if let Some(found) = by_pool(&shown, membership(path).as_ref(), leaf.class, imported) {
        return vec![found];
    }
    if leaf.kind == VdevPlanKind::Disk { by_system(path, &shown) } else { Vec::new() }
}

fn by_pool(
    shown: &str,
    found: Option<&Membership>,
    class: VdevClass,
    imported: &Imported,
) -> Option<Use> {
    let found = found?;
    let pool = &found.pool;
    let part = |what: &str, can_be_forced| {
        let words = format!("{shown} is part of {what} pool '{pool}'");
        Some(Use { words, can_be_forced })
    };
    let listed = |list: &[(u64, String)]| {
        list.iter().find(|(guid, _)| *guid == found.guid).map(|(_, pool)| pool.clone())
    };
    match found.state {
        PoolState::Active if imported.pools.contains(&found.pool_guid) => part("active", false),
        PoolState::Active => part("potentially active", true),
        PoolState::Exported => part("exported", true),
        PoolState::Destroyed => None,
        // a spare may belong to several pools
        PoolState::Spare => listed(&imported.spares).map(|pool| Use {
            words: format!("{shown} is reserved as a hot spare for pool {pool}"),
            can_be_forced: class == VdevClass::Spare,
        }),
        PoolState::Cache => listed(&imported.caches).map(|pool| Use {
            words: format!("{shown} is part of active pool '{pool}'"),
            can_be_forced: false,
        }),
    }
}

/// Mounted, used for swapping, or holding another filesystem.
fn by_system(path: &Path, shown: &str) -> Vec<Use> {
    let Ok(data) = fs::metadata(path) else { return Vec::new() };
    let number = data.rdev();
    let refuse = |words: String| vec![Use { words, can_be_forced: false }];
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (source, target, kind) = (fields.next(), fields.next(), fields.next());
        if source.is_some_and(|source| is_device(Path::new(source), number)) {
            let (kind, target) = (kind.unwrap_or("unknown"), target.unwrap_or("?"));
            return refuse(format!("{shown} is mounted at {target} ({kind})"));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut swaps = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    if swaps.any(|swap| is_device(Path::new(swap), number)) {
        return refuse(format!("{shown} is in use as swap"));
    }
    if let Some(holder) = holder(path) {
        return refuse(format!("{shown} is in use by {holder}"));
    }
    let kind = signature(path);
    let words = kind.map(|kind| format!("{shown} contains a filesystem of type '{kind}'"));
    words.map(|words| Use { words, can_be_forced: true }).into_iter().collect()
}

fn is_device(path: &Path, number: u64) -> bool {
    path.starts_with("/")
        && fs::metadata(path)
            .is_ok_and(|data| data.file_type().is_block_device() && data.rdev() == number)
}

/// What is built on a device (software RAID, logical volumes, encryption).
fn holder(path: &Path) -> Option<String> {
    let name = fs::canonicalize(path).ok()?;
    let name = name.file_name()?.to_owned();
    let holders = PathBuf::from("/sys/class/block").join(name).join("holders");
    let first = fs::read_dir(holders).ok()?.flatten().next()?;
    Some(first.file_name().to_string_lossy().into_owned())
}

/// The filesystem whose mark is on a device.
fn signature(path: &Path) -> Option<&'static str> {
    use std::io::Read;
    let mut start = vec![0; 70_000];
    let mut file = fs::File::open(path).ok()?;
    let mut read = 0;
    while let Ok(more @ 1..) = file.read(start.get_mut(read..)?) {
        read += more;
    }
    start.truncate(read);
    known_mark(&start)
}

fn known_mark(start: &[u8]) -> Option<&'static str> {
    let at = |offset: usize, mark: &[u8]| start.get(offset..offset + mark.len()) == Some(mark);
    let word = |offset: usize| {
        let bytes = start.get(offset..offset + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    if at(1080, &[0x53, 0xef]) {
        // a journal makes it ext3; extents or 64 bits make it ext4
        let (journal, newer) = (word(1116)? & 4 != 0, word(1120)? & 0x2c0 != 0);
        return Some(match (journal, newer) {
            (_, true) => "ext4",
            (true, false) => "ext3",
            (false, false) => "ext2",
        });
    }
    let marks: [(usize, &[u8], &str); 9] = [
        (0, b"XFSB", "xfs"),
        (65_600, b"_BHRfS_M", "btrfs"),
        (1024, &[0x10, 0x20, 0xf5, 0xf2], "f2fs"),
        (4086, b"SWAPSPACE2", "swap"),
        (0, b"LUKS\xba\xbe", "crypto_LUKS"),
        (536, b"LVM2 001", "LVM2_member"),
        (3, b"NTFS    ", "ntfs"),
        (82, b"FAT32   ", "vfat"),
        (54, b"FAT16   ", "vfat"),
    ];
    marks.iter().find(|(offset, mark, _)| at(*offset, mark)).map(|(_, _, kind)| *kind)
}

/// All uses of the leaves of a plan: those that `-f` overrides and those it does not.
pub fn uses_of_all(plan: &[VdevPlan], imported: &Imported) -> (Vec<String>, Vec<String>) {
    let (mut forcible, mut firm) = (Vec::new(), Vec::new());
    for leaf in plan.iter().flat_map(VdevPlan::leaves) {
        for found in uses(leaf, imported) {
            let list = if found.can_be_forced { &mut forcible } else { &mut firm };
            list.push(found.words);
        }
    }
    (forcible, firm)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from OpenZFS 2.1.11.
    #[test]
    fn pools_are_named() {
        let label = |state| Membership { state, pool: "ex".into(), pool_guid: 5, guid: 7 };
        let here = Imported { pools: vec![5], ..Imported::default() };
        let words = |state, imported: &Imported| {
            by_pool("/d/3", Some(&label(state)), VdevClass::Normal, imported)
                .map(|found| (found.words, found.can_be_forced))
        };
        let part = |what: &str, force| Some((format!("/d/3 is part of {what} pool 'ex'"), force));
        assert_eq!(words(PoolState::Exported, &here), part("exported", true));
        assert_eq!(words(PoolState::Active, &here), part("active", false));
        let none = Imported::default();
        assert_eq!(words(PoolState::Active, &none), part("potentially active", true));
        assert_eq!(words(PoolState::Destroyed, &here), None);
        assert_eq!(words(PoolState::Spare, &none), None);
    }

    #[test]
    fn marks_of_filesystems() {
        let mut start = vec![0; 70_000];
        assert_eq!(known_mark(&start), None);
        start[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(known_mark(&start), Some("ext2"));
        start[1120] = 0x40;
        assert_eq!(known_mark(&start), Some("ext4"));
        let mut start = vec![0; 70_000];
        start[65_600..65_608].copy_from_slice(b"_BHRfS_M");
        assert_eq!(known_mark(&start), Some("btrfs"));
        assert_eq!(known_mark(&[]), None);
    }
}
