//! POSIX access control lists: the value of `system.posix_acl_access` and `..._default`.
//!
//! Chapter 05, section 11 (little-endian, version 2), and the access check of POSIX.1e.

use crate::bytes::{le16, le32};
use crate::{Error, Result};

/// Name of the extended attribute with the access list.
pub const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// Name of the extended attribute with the default list of a directory.
pub const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY: usize = 8;
/// The id of entries that need none.
const NO_ID: u32 = u32::MAX;

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    Owner,
    /// A user by id.
    User(u32),
    /// The owning group.
    OwningGroup,
    /// A group by id.
    Group(u32),
    /// Upper bound of all but owner and others.
    Mask,
    /// Everyone else.
    Other,
}

/// One entry: who, and the bits r 4, w 2, x 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whom it is about.
    pub tag: Tag,
    /// Permission bits.
    pub permissions: u8,
}

/// A list in stored order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PosixAcl {
    /// The entries.
    pub entries: Vec<Entry>,
}

impl PosixAcl {
    /// Decodes the value of the extended attribute.
    pub fn decode(value: &[u8]) -> Result<Self> {
        let bad = |reason: String| Error::new("POSIX ACL", reason);
        let version = le32(value, 0).ok_or_else(|| Error::truncated("POSIX ACL"))?;
        if version != VERSION {
            return Err(bad(format!("version {version}")));
        }
        let body = value.get(4..).unwrap_or(&[]);
        if body.len() % ENTRY != 0 {
            return Err(Error::truncated("POSIX ACL"));
        }
        let mut entries = Vec::with_capacity(body.len() / ENTRY);
        for raw in body.chunks_exact(ENTRY) {
            let (tag, permissions) = (le16(raw, 0).unwrap_or(0), le16(raw, 2).unwrap_or(0));
            let id = le32(raw, 4).unwrap_or(NO_ID);
            let tag = match tag {
                0x01 => Tag::Owner,
                0x02 => Tag::User(id),
                0x04 => Tag::OwningGroup,
                0x08 => Tag::Group(id),
                0x10 => Tag::Mask,
                0x20 => Tag::Other,
                _ => return Err(bad(format!("entry of kind {tag:#x}"))),
            };
            if permissions > 7 {
                return Err(bad(format!("permissions {permissions:#o}")));
            }
            entries.push(Entry { tag, permissions: permissions as u8 });
        }
        Ok(Self { entries })
    }

    /// The value of the extended attribute.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            let (tag, id) = match entry.tag {
                Tag::Owner => (0x01_u16, NO_ID),
                Tag::User(id) => (0x02, id),
                Tag::OwningGroup => (0x04, NO_ID),
                Tag::Group(id) => (0x08, id),
                Tag::Mask => (0x10, NO_ID),
                Tag::Other => (0x20, NO_ID),
            };
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&u16::from(entry.permissions).to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    /// Whether a process with `uid` has all bits of `wanted` on a file of `owner` and `group`.
    ///
    /// `in_group` tells whether the process is in a group. Capabilities are the caller's business.
    pub fn permits(
        &self,
        owner: u32,
        group: u32,
        uid: u32,
        in_group: impl Fn(u32) -> bool,
        wanted: u8,
    ) -> bool {
        let of = |tag: Tag| {
            self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions)
        };
        let mask = of(Tag::Mask).unwrap_or(7);
        let grants = |permissions: u8| permissions & wanted == wanted;
        if uid == owner {
            return of(Tag::Owner).is_some_and(grants);
        }
        if let Some(permissions) = of(Tag::User(uid)) {
            return grants(permissions & mask);
        }
        let mut is_member = false;
        for entry in &self.entries {
            let member = match entry.tag {
                Tag::OwningGroup => in_group(group),
                Tag::Group(id) => in_group(id),
                _ => continue,
            };
            is_member |= member;
            if member && grants(entry.permissions & mask) {
                return true;
            }
        }
        !is_member && of(Tag::Other).is_some_and(grants)
    }

    /// The nine mode bits this list stands for (the mask takes the group's place).
    pub fn mode(&self) -> u32 {
        let of = |tag: Tag| {
            let found = self.entries.iter().find(|entry| entry.tag == tag);
            found.map(|entry| u32::from(entry.permissions))
        };
        let group = of(Tag::Mask).or(of(Tag::OwningGroup)).unwrap_or(0);
        of(Tag::Owner).unwrap_or(0) << 6 | group << 3 | of(Tag::Other).unwrap_or(0)
    }

    /// Whether the list says no more than a mode can.
    pub fn is_equivalent_to_mode(&self) -> bool {
        let plain = |tag| matches!(tag, Tag::Owner | Tag::OwningGroup | Tag::Other);
        self.entries.iter().all(|entry| plain(entry.tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // What `setfacl -m u:1000:r,g:1001:rw` makes of a 0644 file.
    const VALUE: &str = "02000000\
        01000600ffffffff02000400e803000004000400ffffffff08000600e903000010000600ffffffff\
        20000400ffffffff";

    #[test]
    fn value_round_trips() {
        let raw = hex::decode(VALUE).unwrap();
        let acl = PosixAcl::decode(&raw).unwrap();
        assert_eq!(acl.entries.len(), 6);
        assert_eq!(acl.entries[1], Entry { tag: Tag::User(1000), permissions: 4 });
        assert_eq!(acl.encode(), raw);
        assert_eq!(acl.mode(), 0o664);
        assert!(!acl.is_equivalent_to_mode());
    }

    #[test]
    fn access_follows_posix() {
        let acl = PosixAcl::decode(&hex::decode(VALUE).unwrap()).unwrap();
        let may = |uid, groups: &[u32], wanted| {
            acl.permits(0, 0, uid, |group| groups.contains(&group), wanted)
        };
        assert!(may(0, &[0], 6) && !may(0, &[0], 1));
        assert!(may(1000, &[], 4) && !may(1000, &[1001], 2), "a named user is decided by itself");
        assert!(may(5, &[1001], 6) && !may(5, &[0], 2), "groups");
        assert!(may(5, &[0, 1001], 6), "any group that grants everything wins");
        assert!(may(7, &[], 4) && !may(7, &[], 2), "others");
    }

    #[test]
    fn mask_bounds_groups_and_named_users() {
        let entry = |tag, permissions| Entry { tag, permissions };
        let acl = PosixAcl {
            entries: vec![
                entry(Tag::Owner, 7),
                entry(Tag::User(9), 7),
                entry(Tag::OwningGroup, 7),
                entry(Tag::Mask, 4),
                entry(Tag::Other, 7),
            ],
        };
        assert!(!acl.permits(0, 0, 9, |_| false, 2) && acl.permits(0, 0, 9, |_| false, 4));
        assert!(!acl.permits(0, 3, 8, |group| group == 3, 2));
        assert!(acl.permits(0, 3, 8, |_| false, 7));
    }

    #[test]
    fn hostile_values_are_errors() {
        for raw in ["", "02", "01000000", "0200000001", "0200000003000600ffffffff"] {
            assert!(PosixAcl::decode(&hex::decode(raw).unwrap()).is_err(), "{raw}");
        }
        assert!(PosixAcl::decode(&hex::decode("0200000001000800ffffffff").unwrap()).is_err());
    }
}
