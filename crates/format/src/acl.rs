//! Access control lists in their on-disk forms, and what they say in terms of a mode.
//!
//! Chapter 05, section 12. Two entry forms exist: version 0 (ZPL 1 and 2) with a fixed 12 bytes and
//! version 1 whose length depends on the entry. Bytes reach these decoders little-endian.

use smallvec::SmallVec;

use crate::bytes::{array, le16, le32, le64, put, slice};
use crate::{Error, Result};

/// Read data, list a directory.
pub const READ_DATA: u32 = 0x1;
/// Write data, add a file.
pub const WRITE_DATA: u32 = 0x2;
/// Append data, add a subdirectory.
pub const APPEND_DATA: u32 = 0x4;
/// Write extended attributes.
pub const WRITE_NAMED_ATTRIBUTES: u32 = 0x10;
/// Execute, search a directory.
pub const EXECUTE: u32 = 0x20;
/// Delete a child.
pub const DELETE_CHILD: u32 = 0x40;
/// Read basic attributes.
pub const READ_ATTRIBUTES: u32 = 0x80;
/// Write basic attributes.
pub const WRITE_ATTRIBUTES: u32 = 0x100;
/// Delete.
pub const DELETE: u32 = 0x1_0000;
/// Read the list itself.
pub const READ_ACL: u32 = 0x2_0000;
/// Change the list itself.
pub const WRITE_ACL: u32 = 0x4_0000;
/// Change owner and group.
pub const WRITE_OWNER: u32 = 0x8_0000;

/// New files inherit the entry.
pub const FILE_INHERIT: u16 = 0x1;
/// New directories inherit the entry.
pub const DIRECTORY_INHERIT: u16 = 0x2;
/// Inheritance stops after one level.
pub const NO_PROPAGATE: u16 = 0x4;
/// The entry does not apply to the directory itself.
pub const INHERIT_ONLY: u16 = 0x8;
/// The id is a group.
pub const IDENTIFIER_GROUP: u16 = 0x40;
/// owner@.
pub const OWNER: u16 = 0x1000;
/// The group bit of group@ (with [`IDENTIFIER_GROUP`]).
pub const GROUP: u16 = 0x2000;
/// everyone@.
pub const EVERYONE: u16 = 0x4000;

/// Entry type: allow.
pub const ALLOW: u16 = 0;
/// Entry type: deny.
pub const DENY: u16 = 1;

const WHO_MASK: u16 = 0x7040;
const OWNING_GROUP: u16 = GROUP | IDENTIFIER_GROUP;
const V0_ENTRY: usize = 12;
/// Bytes of the ACL field of a legacy znode.
pub const LEGACY_SIZE: usize = 88;
const LEGACY_EMBEDDED: usize = 72;

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// owner@.
    Owner,
    /// group@.
    OwningGroup,
    /// everyone@.
    Everyone,
    /// A user by FUID.
    User(u64),
    /// A group by FUID.
    Group(u64),
}

/// One access control entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ace {
    /// [`ALLOW`], [`DENY`], 2 audit, 3 alarm, 5 to 8 their object variants.
    pub kind: u16,
    /// All flags, the kind of who included.
    pub flags: u16,
    /// Permission bits.
    pub mask: u32,
    /// FUID of a named user or group; meaningless for the abstract ones.
    pub id: u64,
    /// Object type and inherited object type of the object variants.
    pub objects: Option<([u8; 16], [u8; 16])>,
}

impl Ace {
    /// An entry for one of the abstract kinds (`flags` is [`OWNER`], ...).
    fn simple(kind: u16, flags: u16, mask: u32) -> Self {
        Self { kind, flags, mask, id: 0, objects: None }
    }

    /// Whom the entry is about.
    pub fn who(&self) -> Who {
        match self.flags & WHO_MASK {
            OWNER => Who::Owner,
            OWNING_GROUP => Who::OwningGroup,
            EVERYONE => Who::Everyone,
            IDENTIFIER_GROUP => Who::Group(self.id),
            _ => Who::User(self.id),
        }
    }

    fn is_abstract(&self) -> bool {
        matches!(self.who(), Who::Owner | Who::OwningGroup | Who::Everyone)
    }

    /// Length in bytes in version 1.
    pub fn size(&self) -> usize {
        match self.kind {
            5..=8 => 48,
            ALLOW | DENY if self.is_abstract() => 8,
            _ => 16,
        }
    }
}

/// A decoded list; six entries are the longest trivial one.
pub type Aces = SmallVec<[Ace; 6]>;

/// Decodes `count` version-1 entries, which must fill `data` no further than its end.
pub fn decode(data: &[u8], count: usize) -> Result<Aces> {
    let short = || Error::truncated("ACL");
    if count > data.len() / 8 {
        return Err(Error::new("ACL", format!("{count} entries in {} bytes", data.len())));
    }
    let mut entries = Aces::with_capacity(count);
    let mut at = 0;
    for _ in 0..count {
        let raw = data.get(at..).ok_or_else(short)?;
        let mut ace = Ace::simple(
            le16(raw, 0).ok_or_else(short)?,
            le16(raw, 2).ok_or_else(short)?,
            le32(raw, 4).ok_or_else(short)?,
        );
        let size = ace.size();
        if size >= 16 {
            ace.id = le64(raw, 8).ok_or_else(short)?;
        }
        if size >= 48 {
            let first = array(raw, 16).ok_or_else(short)?;
            ace.objects = Some((first, array(raw, 32).ok_or_else(short)?));
        }
        entries.push(ace);
        at += size;
    }
    Ok(entries)
}

/// The bytes of version-1 entries.
pub fn encode(entries: &[Ace]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.len() * 8);
    for ace in entries {
        out.extend_from_slice(&ace.kind.to_le_bytes());
        out.extend_from_slice(&ace.flags.to_le_bytes());
        out.extend_from_slice(&ace.mask.to_le_bytes());
        if ace.size() >= 16 {
            out.extend_from_slice(&ace.id.to_le_bytes());
        }
        if ace.size() >= 48 {
            let (object, inherited) = ace.objects.unwrap_or_default();
            out.extend_from_slice(&object);
            out.extend_from_slice(&inherited);
        }
    }
    out
}

/// Decodes `count` version-0 entries.
pub fn decode_v0(data: &[u8], count: usize) -> Result<Aces> {
    if count > data.len() / V0_ENTRY {
        return Err(Error::new("ACL", format!("{count} old entries in {} bytes", data.len())));
    }
    let short = || Error::truncated("ACL");
    let mut entries = Aces::with_capacity(count);
    for raw in data.chunks_exact(V0_ENTRY).take(count) {
        let flags = le16(raw, 8).ok_or_else(short)?;
        let kind = le16(raw, 10).ok_or_else(short)?;
        let mut ace = Ace::simple(kind, flags, le32(raw, 4).ok_or_else(short)?);
        if !ace.is_abstract() {
            ace.id = u64::from(le32(raw, 0).ok_or_else(short)?);
        }
        entries.push(ace);
    }
    Ok(entries)
}

/// The bytes of version-0 entries; ids are cut to 32 bits.
pub fn encode_v0(entries: &[Ace]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.len() * V0_ENTRY);
    for ace in entries {
        let who = if ace.is_abstract() { u32::MAX } else { ace.id as u32 };
        out.extend_from_slice(&who.to_le_bytes());
        out.extend_from_slice(&ace.mask.to_le_bytes());
        out.extend_from_slice(&ace.flags.to_le_bytes());
        out.extend_from_slice(&ace.kind.to_le_bytes());
    }
    out
}

/// The 88-byte ACL field of a legacy znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyAcl {
    /// Object with the entries; 0 means they are embedded.
    pub external: u64,
    /// 0 or 1.
    pub version: u16,
    /// Number of entries.
    pub count: u32,
    /// Bytes of all entries, embedded or external.
    pub bytes: u32,
    /// The embedded entries' space.
    pub embedded: [u8; LEGACY_EMBEDDED],
}

impl Default for LegacyAcl {
    fn default() -> Self {
        Self { external: 0, version: 1, count: 0, bytes: 0, embedded: [0; _] }
    }
}

impl LegacyAcl {
    /// Decodes the field.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let short = || Error::truncated("znode ACL");
        let external = le64(data, 0).ok_or_else(short)?;
        let size = le32(data, 8).ok_or_else(short)?;
        let version = le16(data, 12).ok_or_else(short)?;
        let (count, bytes) = match version {
            0 => (size, size.saturating_mul(V0_ENTRY as u32)),
            1 => (u32::from(le16(data, 14).ok_or_else(short)?), size),
            _ => return Err(Error::new("znode ACL", format!("version {version}"))),
        };
        let embedded = array(data, 16).ok_or_else(short)?;
        Ok(Self { external, version, count, bytes, embedded })
    }

    /// The field.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let short = || Error::truncated("znode ACL");
        let mut out = vec![0; LEGACY_SIZE];
        let (size, count) = match self.version {
            0 => (self.count, 0),
            _ => (self.bytes, u16::try_from(self.count).unwrap_or(u16::MAX)),
        };
        put(&mut out, 0, &self.external.to_le_bytes()).ok_or_else(short)?;
        put(&mut out, 8, &size.to_le_bytes()).ok_or_else(short)?;
        put(&mut out, 12, &self.version.to_le_bytes()).ok_or_else(short)?;
        put(&mut out, 14, &count.to_le_bytes()).ok_or_else(short)?;
        put(&mut out, 16, &self.embedded).ok_or_else(short)?;
        Ok(out)
    }

    /// Decodes the entries from `data`, which is the external object's data or the embedded space.
    pub fn entries(&self, data: &[u8]) -> Result<Aces> {
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        let data = slice(data, 0, bytes).ok_or_else(|| Error::truncated("znode ACL"))?;
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        if self.version == 0 { decode_v0(data, count) } else { decode(data, count) }
    }
}

/// The list that says exactly what the nine low bits of `mode` say.
pub fn trivial(mode: u32, is_directory: bool) -> Aces {
    let write = if is_directory { WRITE_DATA | APPEND_DATA | DELETE_CHILD } else { 0x6 };
    // The ACL permissions of three mode bits.
    let expand = |bits: u32| {
        let mut mask = 0;
        for (bit, permissions) in [(4, READ_DATA), (2, write), (1, EXECUTE)] {
            if bits & bit != 0 {
                mask |= permissions;
            }
        }
        mask
    };
    let (user, group, other) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
    let deny_owner = expand(!user & (group | other) & 7);
    let deny_group = expand(!group & other & 7);
    let allow_owner = expand(user & !group & other & 7);
    let mut entries = Aces::new();
    for (kind, flags, mask) in
        [(ALLOW, OWNER, allow_owner), (DENY, OWNER, deny_owner), (DENY, OWNING_GROUP, deny_group)]
    {
        if mask != 0 {
            entries.push(Ace::simple(kind, flags, mask));
        }
    }
    entries.push(Ace::simple(ALLOW, OWNER, 0x1e_0198 | expand(user)));
    entries.push(Ace::simple(ALLOW, OWNING_GROUP, 0x12_0088 | expand(group)));
    entries.push(Ace::simple(ALLOW, EVERYONE, 0x12_0088 | expand(other)));
    entries
}

/// What a list says in terms of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeOfAcl {
    /// The nine permission bits.
    pub bits: u32,
    /// Nobody is denied execution: the flag NO_EXECS_DENIED.
    pub no_execs_denied: bool,
}

/// The mode bits of a list on a file of `owner` and `group` (FUIDs): for each of owner, group and
/// everyone the first entry that decides a bit wins.
pub fn mode(entries: &[Ace], owner: u64, group: u64) -> ModeOfAcl {
    // Bits allowed and bits decided, for owner (shift 6), group (3), everyone (0).
    let (mut allowed, mut decided) = (0_u32, 0_u32);
    let mut named_deny = false;
    for ace in entries.iter().filter(|ace| ace.flags & INHERIT_ONLY == 0) {
        if ace.kind != ALLOW && ace.kind != DENY {
            continue;
        }
        let shifts: &[u32] = match ace.who() {
            Who::Owner => &[6],
            Who::User(id) if id == owner => &[6],
            Who::OwningGroup => &[3],
            Who::Group(id) if id == group => &[3],
            Who::Everyone => &[6, 3, 0],
            Who::User(_) | Who::Group(_) => {
                named_deny |= ace.kind == DENY && ace.mask & EXECUTE != 0;
                continue;
            }
        };
        let mut bits = 0;
        for (bit, permission) in [(4, READ_DATA), (2, WRITE_DATA), (1, EXECUTE)] {
            if ace.mask & permission != 0 {
                bits |= bit;
            }
        }
        for shift in shifts {
            let undecided = bits << shift & !decided;
            decided |= undecided;
            if ace.kind == ALLOW {
                allowed |= undecided;
            }
        }
    }
    ModeOfAcl { bits: allowed, no_execs_denied: !named_deny && allowed & 0o111 == 0o111 }
}

/// Whether a list says no more than a mode can.
pub fn is_trivial(entries: &[Ace]) -> bool {
    const INHERITANCE: u16 = FILE_INHERIT | DIRECTORY_INHERIT | NO_PROPAGATE | INHERIT_ONLY;
    const OWNERS_ONLY: u32 = WRITE_OWNER | WRITE_ACL | WRITE_ATTRIBUTES | WRITE_NAMED_ATTRIBUTES;
    entries.iter().all(|ace| {
        let denies_looking = ace.kind == DENY && ace.mask & (READ_ACL | READ_ATTRIBUTES) != 0;
        let deletes =
            ace.mask & DELETE != 0 || ace.mask & DELETE_CHILD != 0 && ace.mask & WRITE_DATA == 0;
        let owners_powers =
            ace.kind == ALLOW && ace.who() != Who::Owner && ace.mask & OWNERS_ONLY != 0;
        ace.is_abstract()
            && ace.flags & INHERITANCE == 0
            && !denies_looking
            && !deletes
            && !owners_powers
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trivial_lists_of_chapter_05() {
        for (mode_bits, directory, bytes) in [
            (0o644, false, "000000109f011e00 0000402089001200 0000004089001200"),
            (0o755, true, "00000010ff011e00 00004020a9001200 00000040a9001200"),
            (0o777, true, "00000010ff011e00 00004020ef001200 00000040ef001200"),
        ] {
            let list = trivial(mode_bits, directory);
            assert_eq!(hex::encode(encode(&list)), bytes.replace(' ', ""), "{mode_bits:o}");
            assert_eq!(decode(&encode(&list), 3).unwrap(), list);
        }
    }

    #[test]
    fn every_mode_survives_its_trivial_list() {
        for directory in [false, true] {
            for bits in 0..0o1000 {
                let list = trivial(bits, directory);
                assert!(is_trivial(&list), "{bits:o}");
                let found = mode(&list, 5, 6);
                assert_eq!(found.bits, bits);
                assert_eq!(found.no_execs_denied, bits & 0o111 == 0o111);
                assert_eq!(decode(&encode(&list), list.len()).unwrap(), list);
                assert_eq!(decode_v0(&encode_v0(&list), list.len()).unwrap(), list);
            }
        }
    }

    #[test]
    fn named_entries_are_longer_and_not_trivial() {
        let mut list = trivial(0o755, false);
        list.insert(0, Ace { kind: DENY, flags: 0, mask: EXECUTE, id: 1 << 32 | 7, objects: None });
        list.push(Ace { kind: 5, flags: OWNER, mask: 1, id: 9, objects: Some(([1; 16], [2; 16])) });
        list.push(Ace { kind: 2, flags: EVERYONE, mask: 1, id: 3, objects: None });
        let raw = encode(&list);
        assert_eq!(raw.len(), 16 + 24 + 48 + 16);
        assert_eq!(decode(&raw, 6).unwrap(), list);
        assert!(!is_trivial(&list));
        assert_eq!(mode(&list, 0, 0), ModeOfAcl { bits: 0o755, no_execs_denied: false });
        assert_eq!(mode(&list, 1 << 32 | 7, 0).bits, 0o655, "the owner by name");
    }

    #[test]
    fn legacy_headers_of_chapter_05() {
        // The vectors are big-endian; the block swap turns them before they get here.
        let field = |count: u32, version: u16, aces: u16| {
            let mut raw = vec![0; LEGACY_SIZE];
            raw[8..12].copy_from_slice(&count.to_le_bytes());
            raw[12..14].copy_from_slice(&version.to_le_bytes());
            raw[14..16].copy_from_slice(&aces.to_le_bytes());
            raw
        };
        let old = LegacyAcl::decode(&field(6, 0, 0)).unwrap();
        assert_eq!((old.count, old.bytes, old.entries(&old.embedded).unwrap().len()), (6, 72, 6));
        let new = LegacyAcl::decode(&field(48, 1, 6)).unwrap();
        assert_eq!((new.version, new.count, new.bytes), (1, 6, 48));
        assert_eq!(new.encode().unwrap(), field(48, 1, 6));
        assert!(LegacyAcl::decode(&field(6, 2, 0)).is_err());
        let hostile = LegacyAcl::decode(&field(u32::MAX, 0, 0)).unwrap();
        assert!(hostile.entries(&hostile.embedded).is_err());
    }

    #[test]
    fn hostile_counts_are_errors() {
        assert!(decode(&[0; 8], usize::MAX).is_err());
        assert!(decode(&[5, 0, 0, 0, 0, 0, 0, 0], 1).is_err());
        assert!(decode_v0(&[0; 13], 2).is_err());
    }

    proptest::proptest! {
        #[test]
        fn entries_that_decode_encode_to_the_same_bytes(
            data in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            count in 0_usize..30,
        ) {
            if let Ok(entries) = decode(&data, count) {
                let again = encode(&entries);
                proptest::prop_assert_eq!(&data[..again.len()], &again[..]);
                let _ = (is_trivial(&entries), mode(&entries, 1, 2));
            }
            if let Ok(entries) = decode_v0(&data, count) {
                proptest::prop_assert_eq!(encode_v0(&entries).len(), count * 12);
            }
        }
    }
}
