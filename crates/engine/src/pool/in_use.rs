//! Whether a device may be taken for a pool: who uses it, and what is on it.
//!
//! Invariant: looking changes nothing; what cannot be found out is reported as unknown, never as
//! free. A device that is held by somebody is told apart from one that merely carries old data.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use cenote_device::{Device, DeviceError, FileDevice, Mode};
use cenote_format::config::{PoolConfig, PoolState};
use cenote_format::{Guid, Txg};

use super::found_labels::read_labels;
use crate::{Error, ErrorKind, Result};

/// Bytes from the start that signatures are looked for in.
const HEAD: u64 = 128 << 10;

/// The pool whose label a device carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Name of the pool; empty for spares and cache devices.
    pub name: String,
    /// Identity of the pool, if recorded.
    pub guid: Option<Guid>,
    /// State of the label.
    pub state: PoolState,
    /// Host that used it last; 0 if not recorded.
    pub hostid: u64,
}

/// Who holds a device right now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Mounted here.
    Mounted(PathBuf),
    /// Swap space.
    Swap,
    /// Another block device is made of it (device mapper, MD), or of one of its partitions.
    Device(String),
    /// A process holds it exclusively: an imported pool, or anything else.
    Process,
}

/// What is known of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Its ZFS label.
    pub pool: Option<PoolUse>,
    /// The filesystem or container it carries, as `blkid` names it.
    pub filesystem: Option<&'static str>,
    /// The partition table it carries: `gpt` or `dos`.
    pub partitions: Option<&'static str>,
    /// Who holds it.
    pub holder: Option<Holder>,
}

impl InUse {
    /// Nobody holds it and nothing is on it.
    pub fn is_free(&self) -> bool {
        *self == Self::default()
    }

    /// A process has it open, and nothing else is known of it: no pool by its labels, no mount.
    pub fn is_only_open(&self) -> bool {
        self.pool.is_none() && self.holder == Some(Holder::Process)
    }

    /// Why the device at `path` is not to be taken, in OpenZFS's words; `None` if it may be.
    ///
    /// `force` is `-f`: it overrides everything but what holds the device now. `spare` allows a hot
    /// spare, which pools may share.
    pub fn problem(&self, path: &Path, force: bool, spare: bool) -> Option<String> {
        let path = path.display();
        if let Some(pool) = &self.pool {
            let held = self.holder.is_some();
            let state = match pool.state {
                PoolState::Active if held => "active",
                PoolState::Active => "potentially active",
                PoolState::Exported => "exported",
                PoolState::Spare if spare => return None,
                PoolState::Spare if held || !force => {
                    let name = &pool.name;
                    return Some(format!("{path} is reserved as a hot spare for pool {name}"));
                }
                PoolState::Destroyed | PoolState::Spare | PoolState::Cache => "unknown",
            };
            if state != "unknown" && (held || !force) {
                return Some(format!("{path} is part of {state} pool '{}'", pool.name));
            }
        }
        let kind = self.filesystem.unwrap_or("unknown");
        match &self.holder {
            Some(Holder::Mounted(_) | Holder::Swap | Holder::Device(_) | Holder::Process) => {
                return Some(format!("{path} is in use and contains a {kind} filesystem."));
            }
            None if force => return None,
            None => {}
        }
        if let Some(kind) = self.filesystem {
            return Some(format!("{path} contains a filesystem of type '{kind}'"));
        }
        match self.partitions? {
            "gpt" => Some(format!("{path} contains a partition table of type 'gpt'")),
            _ => Some(format!(
                "{path} does not contain an EFI label but it may contain partition\n\
                 information in the MBR."
            )),
        }
    }
}

/// Looks at the file or block device at `path`.
///
/// Fails if it cannot be opened for reading: [`ErrorKind::NotFound`] if it is not there, else
/// [`ErrorKind::Io`].
pub fn device_in_use(path: &Path) -> Result<InUse> {
    let failed = |error: DeviceError| {
        let kind = match &error {
            DeviceError::Io(io) if io.kind() == std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("{}: {error}", path.display()))
    };
    let device = FileDevice::open(path, Mode::ReadOnly).map_err(failed)?;
    let head = device.read(0, device.size().min(HEAD) as usize).map_err(failed)?;
    let pool = read_labels(&device).map_err(failed)?;
    let pool = pool.iter().find(|label| label.counts()).and_then(|label| pool_use(&label.config));
    let raid = raid_at_end(&device).map_err(failed)?;
    let found = signature(&head).or(raid);
    Ok(InUse {
        // What a pool was made on may show in places the pool does not use.
        filesystem: if pool.is_some() { None } else { found },
        partitions: if pool.is_some() || found.is_some() { None } else { partitions(&head) },
        holder: holder(path)?,
        pool,
    })
}

/// The pool of a label, unless the label says the device has left it.
fn pool_use(config: &PoolConfig) -> Option<PoolUse> {
    let state = config.state?;
    let member = config.txg.is_some_and(|txg| txg != Txg(0)) || state.is_auxiliary();
    (member && state != PoolState::Destroyed).then(|| PoolUse {
        name: config.name.clone().unwrap_or_default(),
        guid: config.pool_guid,
        state,
        hostid: config.hostid.unwrap_or(0),
    })
}

fn has(head: &[u8], offset: usize, magic: &[u8]) -> bool {
    head.get(offset..).is_some_and(|rest| rest.starts_with(magic))
}

fn number(head: &[u8], offset: usize) -> u32 {
    let bytes = head.get(offset..).and_then(|rest| rest.first_chunk::<4>());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The filesystem or container whose magic number stands where it should.
fn signature(head: &[u8]) -> Option<&'static str> {
    if has(head, 1024 + 56, &[0x53, 0xef]) {
        let (compatible, incompatible) = (number(head, 1024 + 92), number(head, 1024 + 96));
        let read_only = number(head, 1024 + 100);
        return Some(match (compatible & 4 != 0, incompatible & !0x7 | read_only & !0x7) {
            (_, 1..) => "ext4",
            (true, 0) => "ext3",
            (false, 0) => "ext2",
        });
    }
    const MAGICS: [(usize, &[u8], &str); 22] = [
        (0, b"XFSB", "xfs"),
        (0x1_0040, b"_BHRfS_M", "btrfs"),
        (4086, b"SWAPSPACE2", "swap"),
        (4086, b"SWAP-SPACE", "swap"),
        (8192 - 10, b"SWAPSPACE2", "swap"),
        (16_384 - 10, b"SWAPSPACE2", "swap"),
        (65_536 - 10, b"SWAPSPACE2", "swap"),
        (512 + 24, b"LVM2 001", "LVM2_member"),
        (24, b"LVM2 001", "LVM2_member"),
        (0, b"LUKS\xba\xbe", "crypto_LUKS"),
        (0, &[0xfc, 0x4e, 0x2b, 0xa9], "linux_raid_member"),
        (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "linux_raid_member"),
        (1024, &[0x10, 0x20, 0xf5, 0xf2], "f2fs"),
        (65_536 + 52, b"ReIsEr", "reiserfs"),
        (32_768, b"JFS1", "jfs"),
        (0, b"hsqs", "squashfs"),
        (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "erofs"),
        (32_769, b"CD001", "iso9660"),
        (3, b"NTFS    ", "ntfs"),
        (3, b"EXFAT   ", "exfat"),
        (82, b"FAT32   ", "vfat"),
        (54, b"FAT1", "vfat"),
    ];
    let found = MAGICS.iter().find(|(offset, magic, _)| has(head, *offset, magic));
    let bcachefs: [u8; 16] = [
        0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7,
        0xef,
    ];
    found
        .map(|(_, _, name)| *name)
        .or_else(|| has(head, 4096 + 24, &bcachefs).then_some("bcachefs"))
}

/// MD keeps its oldest superblocks at the end.
fn raid_at_end(device: &dyn Device) -> Result<Option<&'static str>, DeviceError> {
    let size = device.size();
    let old = (size & !0xffff).checked_sub(0x1_0000);
    let newer = (size & !0xfff).checked_sub(0x2000);
    for offset in old.into_iter().chain(newer) {
        if device.read(offset, 4)?.as_ref() == [0xfc, 0x4e, 0x2b, 0xa9] {
            return Ok(Some("linux_raid_member"));
        }
    }
    Ok(None)
}

/// The partition table.
fn partitions(head: &[u8]) -> Option<&'static str> {
    if has(head, 512, b"EFI PART") || has(head, 4096, b"EFI PART") {
        return Some("gpt");
    }
    // A boot sector without partitions is none.
    let entries = head.get(446..510)?;
    let marked = has(head, 510, &[0x55, 0xaa]) && entries.iter().any(|byte| *byte != 0);
    let sane = entries.chunks_exact(16).all(|entry| matches!(entry.first(), Some(0 | 0x80)));
    (marked && sane).then_some("dos")
}

/// Who holds the device at `path`.
fn holder(path: &Path) -> Result<Option<Holder>> {
    let failed =
        |error: std::io::Error| Error::new(ErrorKind::Io, format!("{}: {error}", path.display()));
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let real = std::fs::canonicalize(path).map_err(failed)?;
    if metadata.file_type().is_block_device() {
        let number = metadata.rdev();
        let id = format!("{}:{}", major(number), minor(number));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(2);
            (fields.next() == Some(&id)).then(|| fields.nth(1).map(unescape)).flatten()
        });
        if let Some(place) = mount {
            return Ok(Some(Holder::Mounted(place)));
        }
        let sysfs = PathBuf::from(format!("/sys/dev/block/{id}"));
        if let Some(name) = above(&sysfs) {
            return Ok(Some(Holder::Device(name)));
        }
    }
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let names = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    if names.map(unescape).any(|name| name == real) {
        return Ok(Some(Holder::Swap));
    }
    // Whoever else holds it keeps it from being held here.
    match FileDevice::open(path, Mode::Exclusive) {
        Err(DeviceError::Busy(_)) => Ok(Some(Holder::Process)),
        _ => Ok(None),
    }
}

/// A device made of this one, or of one of its partitions.
fn above(sysfs: &Path) -> Option<String> {
    let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let first = |dir: &Path| std::fs::read_dir(dir).ok()?.flatten().map(name).next();
    if let Some(holder) = first(&sysfs.join("holders")) {
        return Some(holder);
    }
    let parts = std::fs::read_dir(sysfs).ok()?.flatten();
    parts
        .map(|entry| entry.path())
        .filter(|part| part.join("partition").exists())
        .find_map(|part| first(&part.join("holders")))
}

fn major(number: u64) -> u64 {
    (number >> 8 & 0xfff) | (number >> 32 & !0xfff)
}

fn minor(number: u64) -> u64 {
    (number & 0xff) | (number >> 12 & 0xffff_ff00)
}

/// A name as the kernel prints it in its tables: blanks as three octal digits.
fn unescape(name: &str) -> PathBuf {
    let mut parts = name.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                plain.push_str(part.get(3..).unwrap_or_default());
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::testing::{self, SIZE, leaf, top};
    use cenote_format::config::VdevKind;

    fn file(dir: &Path, name: &str, parts: &[(usize, &[u8])]) -> PathBuf {
        let mut bytes = vec![0; 1 << 20];
        for (offset, data) in parts {
            bytes[*offset..offset + data.len()].copy_from_slice(data);
        }
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn signatures_have_names() {
        let dir = tempfile::tempdir().unwrap();
        let of = |parts: &[(usize, &[u8])]| device_in_use(&file(dir.path(), "x", parts)).unwrap();
        assert!(of(&[]).is_free());
        assert_eq!(of(&[]).problem(Path::new("/x"), false, false), None);
        let ext: &[u8] = &[0x53, 0xef];
        assert_eq!(of(&[(1080, ext)]).filesystem, Some("ext2"));
        assert_eq!(of(&[(1080, ext), (1116, &[4])]).filesystem, Some("ext3"));
        let ext4 = of(&[(1080, ext), (1116, &[4]), (1120, &[0x40])]);
        assert_eq!(ext4.filesystem, Some("ext4"));
        assert_eq!(
            ext4.problem(Path::new("/x"), false, false).unwrap(),
            "/x contains a filesystem of type 'ext4'"
        );
        assert_eq!(ext4.problem(Path::new("/x"), true, false), None);
        assert_eq!(of(&[(0, b"XFSB")]).filesystem, Some("xfs"));
        assert_eq!(of(&[(0x10040, b"_BHRfS_M")]).filesystem, Some("btrfs"));
        assert_eq!(of(&[(4086, b"SWAPSPACE2")]).filesystem, Some("swap"));
        let raid: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
        assert_eq!(of(&[((1 << 20) - 0x10000, raid)]).filesystem, Some("linux_raid_member"));
        assert_eq!(of(&[(512, b"EFI PART")]).partitions, Some("gpt"));
        let mbr: &[(usize, &[u8])] = &[(446, &[0x80, 1]), (510, &[0x55, 0xaa])];
        assert_eq!(of(mbr).partitions, Some("dos"));
        assert_eq!(of(&[(510, &[0x55, 0xaa])]).partitions, None);
        let missing = device_in_use(&dir.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn pools_are_told_by_their_labels() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let name = path.to_string_lossy().into_owned();
        let tree = top(VdevKind::File, 0, 0, vec![leaf(0, 11, &name)]);
        let put = |state, txg| {
            let disk = cenote_device::SimDevice::new("sim", SIZE);
            let config = testing::config(&tree, 11, txg, 1);
            testing::write_labels(&disk, &PoolConfig { state: Some(state), ..config });
            std::fs::write(&path, disk.read(0, SIZE).unwrap()).unwrap();
        };
        let problem = |force, spare| device_in_use(&path).unwrap().problem(&path, force, spare);
        put(PoolState::Exported, 7);
        assert_eq!(problem(false, false), Some(format!("{name} is part of exported pool 'tank'")));
        assert_eq!(problem(true, false), None);
        put(PoolState::Active, 7);
        let expected = format!("{name} is part of potentially active pool 'tank'");
        assert_eq!(problem(false, false), Some(expected));
        assert_eq!(problem(true, false), None);
        let held = FileDevice::open(&path, Mode::Exclusive).unwrap();
        for force in [false, true] {
            let expected = format!("{name} is part of active pool 'tank'");
            assert_eq!(problem(force, false), Some(expected));
        }
        drop(held);
        put(PoolState::Destroyed, 7);
        assert_eq!(problem(false, false), None);
        put(PoolState::Spare, 0);
        assert!(problem(false, false).unwrap().contains("is reserved as a hot spare"));
        assert_eq!(problem(false, true), None);
    }

    #[test]
    fn names_are_unescaped() {
        assert_eq!(unescape("/a\\040b\\\\"), PathBuf::from("/a b\\\\"));
        assert_eq!(unescape("/plain"), PathBuf::from("/plain"));
    }

    #[test]
    fn the_root_disk_is_mounted_if_it_is_a_device() {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
        let Some(source) = root.split(' ').skip_while(|field| *field != "-").nth(2) else { return };
        let Ok(metadata) = std::fs::metadata(source) else { return };
        if metadata.file_type().is_block_device() {
            let holder = holder(Path::new(source)).unwrap();
            assert!(matches!(holder, Some(Holder::Mounted(_))), "{holder:?}");
        }
    }
}
