//! POSIX ACLs as extended attributes, as far as modes and inheritance need them.
//!
//! Invariant: the group bits of a mode with an ACL are the ACL's mask.

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const USER_OBJ: u16 = 1;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// (tag, permissions, id).
type Entry = (u16, u16, u32);

fn decode(value: &[u8]) -> Vec<Entry> {
    let short = |bytes: &[u8]| u16::from_le_bytes(bytes.try_into().unwrap());
    let entry = |chunk: &[u8]| {
        let id = u32::from_le_bytes(chunk[4..8].try_into().unwrap());
        (short(&chunk[..2]), short(&chunk[2..4]), id)
    };
    value.get(4..).unwrap_or_default().chunks_exact(8).map(entry).collect()
}

fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Which bits of a mode an entry stands for; the mask takes the group's place.
fn shift(entries: &[Entry], tag: u16) -> Option<u32> {
    let has_mask = entries.iter().any(|entry| entry.0 == MASK);
    match tag {
        USER_OBJ => Some(6),
        MASK => Some(3),
        GROUP_OBJ if !has_mask => Some(3),
        OTHER => Some(0),
        _ => None,
    }
}

/// The permission bits of `mode` after this access ACL is set.
pub fn mode_of(value: &[u8], mode: u32) -> u32 {
    let entries = decode(value);
    let mut bits = 0;
    for &(tag, permissions, _) in &entries {
        bits |= shift(&entries, tag).map_or(0, |shift| u32::from(permissions & 7) << shift);
    }
    mode & !0o777 | bits
}

/// The access ACL after a `chmod`.
pub fn after_chmod(value: &[u8], mode: u32) -> Vec<u8> {
    let mut entries = decode(value);
    for index in 0..entries.len() {
        if let Some(shift) = shift(&entries, entries[index].0) {
            entries[index].1 = (mode >> shift & 7) as u16;
        }
    }
    encode(&entries)
}

/// Access ACL (none if it says no more than the mode) and mode of a new file in a directory with
/// this default ACL.
pub fn inherit(value: &[u8], mode: u32) -> (Option<Vec<u8>>, u32) {
    let mut entries = decode(value);
    for index in 0..entries.len() {
        if let Some(shift) = shift(&entries, entries[index].0) {
            entries[index].1 &= (mode >> shift & 7) as u16;
        }
    }
    let value = encode(&entries);
    let mode = mode_of(&value, mode);
    ((entries.len() > 3).then_some(value), mode)
}
