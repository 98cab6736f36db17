//! What the system says is mounted where.
//!
//! Invariant: a table that cannot be read, or a line of it that is not understood, says nothing.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// `/proc/self/mountinfo` (proc(5)): the mounts of this process's namespace, those on top last.
pub(super) struct MountTable(Vec<u8>);

/// A line of it.
struct Line<'a> {
    id: &'a [u8],
    parent: &'a [u8],
    /// "MAJOR:MINOR".
    device: &'a [u8],
    /// What of its filesystem is mounted.
    root: Cow<'a, Path>,
    place: Cow<'a, Path>,
    /// `shared:N`, `master:N` and the like, and what comes behind them.
    groups: &'a [u8],
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(7, |&byte| byte == b' ');
        let (id, parent, device) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, place) = (path(fields.next()?), path(fields.next()?));
        Some(Self { id, parent, device, root, place, groups: fields.nth(1).unwrap_or_default() })
    }

    /// The number of a group it is in as `what`.
    fn group(&self, what: &[u8]) -> Option<&'a [u8]> {
        let mut groups = self.groups.split(|&byte| byte == b' ').take_while(|field| *field != b"-");
        groups.find_map(|group| group.strip_prefix(what))
    }
}

impl MountTable {
    /// The table of now.
    pub(super) fn read() -> Option<Self> {
        std::fs::read("/proc/self/mountinfo").ok().map(Self)
    }

    fn lines(&self) -> impl DoubleEndedIterator<Item = Line<'_>> {
        self.0.split(|&byte| byte == b'\n').filter_map(Line::parse)
    }

    fn top(&self, mountpoint: &Path) -> Option<Line<'_>> {
        self.lines().rfind(|line| line.place == mountpoint)
    }

    /// "MAJOR:MINOR" of the last mount at `mountpoint`.
    pub(super) fn device_number(&self, mountpoint: &Path) -> Option<String> {
        String::from_utf8(self.top(mountpoint)?.device.to_vec()).ok()
    }

    /// Whether the filesystem that is mounted last at `mountpoint` is mounted at another place as well, and stays
    /// there when it is unmounted here (`mount --bind`). It goes there, too, where what is around it is a copy of
    /// what is around it here, and follows it (mount_namespaces(7)).
    pub(super) fn stays_elsewhere(&self, mountpoint: &Path) -> bool {
        let Some(here) = self.top(mountpoint) else { return false };
        // The mount around it, and the directory of its filesystem that is covered.
        let covers = |line: &Line<'_>| {
            let around = self.lines().find(|other| other.id == line.parent)?;
            let inside = line.place.strip_prefix(&around.place).ok()?;
            Some((around.root.join(inside), around))
        };
        let covered = covers(&here);
        let follows = |other: &Line<'_>| {
            let (Some((here, around)), Some((there, copy))) = (&covered, covers(other)) else {
                return false;
            };
            let shared = around.group(b"shared:");
            shared.is_some()
                && [copy.group(b"shared:"), copy.group(b"master:")].contains(&shared)
                && *here == there
        };
        let is_other = |line: &Line<'_>| line.device == here.device && line.id != here.id;
        self.lines().filter(is_other).any(|other| !follows(&other))
    }

    fn places(&self) -> HashSet<PathBuf> {
        self.lines().map(|line| line.place.into_owned()).collect()
    }
}

/// Where anything is mounted now; none if the system does not say.
pub fn mounted_places() -> Option<HashSet<PathBuf>> {
    MountTable::read().map(|table| table.places())
}

fn path(field: &[u8]) -> Cow<'_, Path> {
    match field.contains(&b'\\') {
        true => Cow::Owned(PathBuf::from(OsString::from_vec(unescape(field)))),
        false => Cow::Borrowed(Path::new(OsStr::from_bytes(field))),
    }
}

/// Resolves the octal escapes of a field.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|digits| byte == b'\\' && is_octal(digits));
        match digits {
            Some(digits) => {
                let value = digits.iter().fold(0u32, |sum, d| sum * 8 + u32::from(d - b'0'));
                out.push(value as u8);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

fn is_octal(digits: &[u8]) -> bool {
    digits.iter().all(|digit| (b'0'..=b'7').contains(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_from_the_table() {
        let table = b"23 1 0:21 / /proc rw - proc proc rw\n\
            55 1 0:47 / /mnt/a\\040b ro,nosuid shared:3 - fuse.cenote tank/a ro\n\
            56 1 0:48 / /mnt/a\\040b ro - fuse.cenote tank/b ro\n";
        let table = MountTable(table.to_vec());
        assert_eq!(table.device_number(Path::new("/mnt/a b")).as_deref(), Some("0:48"));
        assert_eq!(table.device_number(Path::new("/mnt/a")), None);
        assert!(table.places().contains(Path::new("/mnt/a b")));
        assert_eq!(unescape(br"\0\999\134x\04"), br"\0\999\x\04");
    }

    #[test]
    fn what_is_bound_elsewhere_stays_there_unless_it_follows() {
        let root = "1 0 8:1 / / rw shared:1 - ext4 root rw\n";
        let of = |more: &str| MountTable(format!("{root}{more}").into_bytes());
        let pool = "9 1 0:50 / /tank/a rw shared:4 - fuse.cenote tank/a rw\n";
        let at = Path::new("/tank/a");
        assert!(!of(pool).stays_elsewhere(at));
        let bound = "10 1 0:50 / /srv/x rw shared:4 - fuse.cenote tank/a rw\n";
        assert!(of(&format!("{pool}{bound}")).stays_elsewhere(at));
        // All of the root, seen at another place: what is unmounted here goes there.
        let whole = "11 1 8:1 / /chroot rw shared:1 - ext4 root rw\n\
            12 11 0:50 / /chroot/tank/a rw shared:4 - fuse.cenote tank/a rw\n";
        assert!(!of(&format!("{pool}{whole}")).stays_elsewhere(at));
        let slave = whole.replace("shared:1", "master:1");
        assert!(!of(&format!("{pool}{slave}")).stays_elsewhere(at));
        // The same of a part of it.
        let part =
            whole.replace("8:1 / /chroot", "8:1 /tank /chroot").replace("chroot/tank", "chroot");
        assert!(!of(&format!("{pool}{part}")).stays_elsewhere(at));
        let private = whole.replace(" shared:1", "");
        assert!(of(&format!("{pool}{private}")).stays_elsewhere(at));
    }
}
