//! The bonus of a DSL directory: a node of the dataset tree, its space counters and its limits.
//!
//! Chapter 06, section 4. All sizes are allocated ("deflated") bytes unless said otherwise.
//! Invariant: a decoded directory encodes to the bytes it came from, padding aside.

use crate::bytes::{le_words, words_to_le};
use crate::{Error, ObjectId, Result};

/// Size of the structure in bytes.
pub const SIZE: usize = 256;
/// `used_breakdown` is valid.
pub const FLAG_USED_BREAKDOWN: u64 = 1;

/// Extension key: number of descendant filesystems (one u64).
pub const KEY_FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
/// Extension key: number of snapshots of this directory and below (one u64).
pub const KEY_SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";
/// Extension key: the object that holds the wrapped encryption keys (one u64).
pub const KEY_CRYPTO_KEY_OBJECT: &str = "com.datto:crypto_key_obj";
/// Extension key: the livelist of a clone (one u64).
pub const KEY_LIVELIST: &str = "com.delphix:livelist";
/// Extension key: when a snapshot last came or went (two u64: seconds, nanoseconds).
pub const KEY_SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";

/// How the used bytes of a directory divide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedBreakdown {
    /// By the live head.
    pub head: u64,
    /// Only by snapshots.
    pub snapshots: u64,
    /// By child directories.
    pub children: u64,
    /// Reserved by child directories and not used by them.
    pub child_reservations: u64,
    /// Held back for the head's refreservation.
    pub refreservation: u64,
}

/// A decoded DSL directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DslDirectory {
    /// Seconds since 1970.
    pub creation_time: u64,
    /// The live head's dataset object; 0 for `$MOS`, `$FREE` and `$LEAK`.
    pub head_dataset: ObjectId,
    /// The parent directory; 0 for the root.
    pub parent: ObjectId,
    /// The snapshot this was cloned from; ordinary datasets name the `$ORIGIN` snapshot.
    pub origin: ObjectId,
    /// ZAP of child names to directory objects.
    pub child_map: ObjectId,
    /// Bytes used by this directory with its children and reservations.
    pub used_bytes: u64,
    /// Sum of physical sizes.
    pub compressed_bytes: u64,
    /// Sum of logical sizes.
    pub uncompressed_bytes: u64,
    /// Upper bound of `used_bytes`; 0 for none.
    pub quota: u64,
    /// Guaranteed bytes.
    pub reserved: u64,
    /// ZAP of properties.
    pub properties: ObjectId,
    /// ZAP of delegated permissions, or 0.
    pub delegation: ObjectId,
    /// `FLAG_*` bits.
    pub flags: u64,
    /// Division of `used_bytes`.
    pub used_breakdown: UsedBreakdown,
    /// ZAP of head datasets cloned from snapshots of this directory, or 0.
    pub clones: ObjectId,
}

impl DslDirectory {
    /// Decodes the bonus `data` (at least [`SIZE`] bytes).
    pub fn decode(data: &[u8]) -> Result<Self> {
        let short = || Error::truncated("DSL directory");
        if data.len() < SIZE {
            return Err(short());
        }
        let words: [u64; 19] = le_words(data).ok_or_else(short)?;
        let [
            creation_time,
            head,
            parent,
            origin,
            child_map,
            used_bytes,
            compressed_bytes,
            uncompressed_bytes,
            quota,
            reserved,
            properties,
            delegation,
            flags,
            used_head,
            used_snapshots,
            used_children,
            used_child_reservations,
            used_refreservation,
            clones,
        ] = words;
        Ok(Self {
            creation_time,
            head_dataset: ObjectId(head),
            parent: ObjectId(parent),
            origin: ObjectId(origin),
            child_map: ObjectId(child_map),
            used_bytes,
            compressed_bytes,
            uncompressed_bytes,
            quota,
            reserved,
            properties: ObjectId(properties),
            delegation: ObjectId(delegation),
            flags,
            used_breakdown: UsedBreakdown {
                head: used_head,
                snapshots: used_snapshots,
                children: used_children,
                child_reservations: used_child_reservations,
                refreservation: used_refreservation,
            },
            clones: ObjectId(clones),
        })
    }

    /// The [`SIZE`] bytes of this directory.
    pub fn encode(&self) -> Vec<u8> {
        let used = &self.used_breakdown;
        let mut out = words_to_le(&[
            self.creation_time,
            self.head_dataset.0,
            self.parent.0,
            self.origin.0,
            self.child_map.0,
            self.used_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.quota,
            self.reserved,
            self.properties.0,
            self.delegation.0,
            self.flags,
            used.head,
            used.snapshots,
            used.children,
            used.child_reservations,
            used.refreservation,
            self.clones.0,
        ]);
        out.resize(SIZE, 0);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T1: &str = "6989006b00000000 4d00000000000000 2000000000000000 3000000000000000
        4c00000000000000 00ae480000000000 0076080000000000 007c120000000000
        0000200300000000 0000800000000000 4b00000000000000 6400000000000000
        0100000000000000 0064080000000000 004a000000000000 0000000000000000
        0000000000000000 0000400000000000 0000000000000000 0000000000000000";

    #[test]
    fn vector_t1_round_trips() {
        let mut raw = hex::decode(T1.split_whitespace().collect::<String>()).unwrap();
        raw.resize(SIZE, 0);
        let dir = DslDirectory::decode(&raw).unwrap();
        assert_eq!((dir.head_dataset.0, dir.parent.0, dir.origin.0), (77, 32, 48));
        assert_eq!((dir.child_map.0, dir.properties.0, dir.delegation.0), (76, 75, 100));
        assert_eq!((dir.quota, dir.reserved, dir.flags), (50 << 20, 8 << 20, 1));
        let used = dir.used_breakdown;
        assert_eq!((used.head, used.snapshots, used.refreservation), (0x86400, 0x4a00, 0x400000));
        assert_eq!(dir.used_bytes, used.head + used.snapshots + used.refreservation);
        assert_eq!((dir.compressed_bytes, dir.uncompressed_bytes), (0x87600, 0x127c00));
        assert_eq!(dir.encode(), raw);
        assert!(DslDirectory::decode(&raw[..255]).is_err());
    }
}
