//! The bonus of a DSL dataset: a live head or a snapshot, its block pointer and its counters.
//!
//! Chapter 06, section 5. Sizes are allocated ("deflated") bytes unless said otherwise.
//! Invariant: a decoded dataset encodes to the bytes it came from, padding aside.

use crate::bytes::{le_words, slice, words_to_le};
use crate::{BlockPointer, Error, Guid, ObjectId, Result, Txg, blkptr};

/// Size of the structure in bytes.
pub const SIZE: usize = 320;
/// Offset of the block pointer in bytes.
const POINTER: usize = 128;

/// The content is not usable (a receive or a destroy is under way).
pub const FLAG_INCONSISTENT: u64 = 1;
/// Cannot be promoted (obsolete).
pub const FLAG_NOPROMOTE: u64 = 1 << 1;
/// `unique_bytes` is exact.
pub const FLAG_UNIQUE_ACCURATE: u64 = 1 << 2;
/// Destroy when the last hold and clone are gone.
pub const FLAG_DEFER_DESTROY: u64 = 1 << 3;
/// Names are matched without regard to case.
pub const FLAG_CASE_INSENSITIVE: u64 = 1 << 16;

/// Extension key: ZAP of bookmarks (heads; one u64).
pub const KEY_BOOKMARKS: &str = "com.delphix:bookmarks";
/// Extension key: deadlist of remapped blocks (one u64).
pub const KEY_REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";
/// Extension key: identity of the IV set (encrypted snapshots; one u64).
pub const KEY_IVSET_GUID: &str = "com.datto:ivset_guid";
/// Extension key: snapshot guids a dataset was redacted with (u64 array).
pub const KEY_REDACTED_DATASETS: &str = "com.delphix:redacted_datasets";
/// Extension keys of a receive that can be resumed; values as the name says.
pub mod resume {
    /// Guid of the incremental source (u64).
    pub const FROM_GUID: &str = "com.delphix:resume_fromguid";
    /// Guid of the snapshot being received (u64).
    pub const TO_GUID: &str = "com.delphix:resume_toguid";
    /// Name of the snapshot being received (string).
    pub const TO_NAME: &str = "com.delphix:resume_toname";
    /// Object to go on with (u64).
    pub const OBJECT: &str = "com.delphix:resume_object";
    /// Byte offset to go on with (u64).
    pub const OFFSET: &str = "com.delphix:resume_offset";
    /// Bytes received so far (u64).
    pub const BYTES: &str = "com.delphix:resume_bytes";
    /// The stream has large blocks (u64 1).
    pub const LARGE_BLOCK: &str = "com.delphix:resume_largeblockok";
    /// The stream has embedded blocks (u64 1).
    pub const EMBED: &str = "com.delphix:resume_embedok";
    /// The stream has compressed blocks (u64 1).
    pub const COMPRESS: &str = "com.delphix:resume_compressok";
    /// The stream is raw (u64 1).
    pub const RAW: &str = "com.datto:resume_rawok";
    /// Guids of the redaction snapshots (u64 array).
    pub const REDACT_SNAPSHOTS: &str = "com.delphix:resume_redact_book_snaps";
}

/// A decoded DSL dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DslDataset {
    /// The directory that owns it.
    pub directory: ObjectId,
    /// The previous snapshot; for the first of a clone, the origin.
    pub previous_snapshot: ObjectId,
    /// The previous snapshot's `creation_txg`.
    pub previous_snapshot_txg: Txg,
    /// Snapshots: the next newer snapshot or the head. Heads: 0.
    pub next_snapshot: ObjectId,
    /// Heads: ZAP of snapshot names. Snapshots: 0.
    pub snapshot_names: ObjectId,
    /// Snapshots: 1 and the number of clones. Heads: 0.
    pub children: u64,
    /// Seconds since 1970.
    pub creation_time: u64,
    /// Txg of creation.
    pub creation_txg: Txg,
    /// Deadlist (or, on old pools, bpobj) of blocks that died since the previous snapshot.
    pub deadlist: ObjectId,
    /// Bytes of the whole tree reachable from `pointer`.
    pub referenced_bytes: u64,
    /// Sum of physical sizes of that tree.
    pub compressed_bytes: u64,
    /// Sum of logical sizes of that tree.
    pub uncompressed_bytes: u64,
    /// Bytes that only this dataset references.
    pub unique_bytes: u64,
    /// 56-bit file system identity.
    pub fsid_guid: Guid,
    /// Identity of the content.
    pub guid: Guid,
    /// `FLAG_*` bits.
    pub flags: u64,
    /// Pointer to the object-set block.
    pub pointer: BlockPointer,
    /// Snapshots: ZAP of the first datasets of its clones, or 0.
    pub next_clones: ObjectId,
    /// Snapshots: ZAP of properties, or 0.
    pub properties: ObjectId,
    /// ZAP of holds, or 0.
    pub holds: ObjectId,
}

impl DslDataset {
    /// Decodes the bonus `data` (at least [`SIZE`] bytes).
    pub fn decode(data: &[u8]) -> Result<Self> {
        let short = || Error::truncated("DSL dataset");
        if data.len() < SIZE {
            return Err(short());
        }
        let words: [u64; 16] = le_words(data).ok_or_else(short)?;
        let [
            directory,
            previous,
            previous_txg,
            next,
            names,
            children,
            creation_time,
            creation_txg,
            deadlist,
            referenced_bytes,
            compressed_bytes,
            uncompressed_bytes,
            unique_bytes,
            fsid_guid,
            guid,
            flags,
        ] = words;
        let pointer = slice(data, POINTER, blkptr::SIZE).ok_or_else(short)?;
        let tail = data.get(POINTER + blkptr::SIZE..).ok_or_else(short)?;
        let [next_clones, properties, holds] = le_words(tail).ok_or_else(short)?;
        Ok(Self {
            directory: ObjectId(directory),
            previous_snapshot: ObjectId(previous),
            previous_snapshot_txg: Txg(previous_txg),
            next_snapshot: ObjectId(next),
            snapshot_names: ObjectId(names),
            children,
            creation_time,
            creation_txg: Txg(creation_txg),
            deadlist: ObjectId(deadlist),
            referenced_bytes,
            compressed_bytes,
            uncompressed_bytes,
            unique_bytes,
            fsid_guid: Guid(fsid_guid),
            guid: Guid(guid),
            flags,
            pointer: BlockPointer::decode(pointer)?,
            next_clones: ObjectId(next_clones),
            properties: ObjectId(properties),
            holds: ObjectId(holds),
        })
    }

    /// The [`SIZE`] bytes of this dataset.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = words_to_le(&[
            self.directory.0,
            self.previous_snapshot.0,
            self.previous_snapshot_txg.0,
            self.next_snapshot.0,
            self.snapshot_names.0,
            self.children,
            self.creation_time,
            self.creation_txg.0,
            self.deadlist.0,
            self.referenced_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.unique_bytes,
            self.fsid_guid.0,
            self.guid.0,
            self.flags,
        ]);
        out.extend_from_slice(&self.pointer.encode());
        out.extend(words_to_le(&[self.next_clones.0, self.properties.0, self.holds.0]));
        out.resize(SIZE, 0);
        out
    }

    /// A snapshot: it has no names of snapshots of its own.
    pub fn is_snapshot(&self) -> bool {
        self.snapshot_names.0 == 0
    }

    /// The content is not usable.
    pub fn is_inconsistent(&self) -> bool {
        self.flags & FLAG_INCONSISTENT != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T2: [(usize, &str); 9] = [
        (0x00, "4a00000000000000 3000000000000000 0100000000000000 5d00000000000000"),
        (0x20, "0000000000000000 0100000000000000 6989006b00000000 1600000000000000"),
        (0x40, "4f00000000000000 0066080000000000 004a080000000000 0050120000000000"),
        (0x60, "004a000000000000 7af196917532ff00 b2c261f6a6943231 0400000000000000"),
        (0x80, "0100000000000000 dc04000000000000 0100000000000000 cd80000000000000"),
        (0xa0, "0000000000000000 0000000000000000 070000000f070b80 0000000000000000"),
        (0xc0, "0000000000000000 0000000000000000 1000000000000000 0500000000000000"),
        (0xe0, "39b3e1fc08000000 e4d1d7dcbe030000 b8e971e3ecca0000 8578ac61f5141d00"),
        (0x100, "0000000000000000 0000000000000000 6200000000000000 0000000000000000"),
    ];

    #[test]
    fn vector_t2_round_trips() {
        let mut raw = vec![0; SIZE];
        for (at, row) in T2 {
            let row = hex::decode(row.split_whitespace().collect::<String>()).unwrap();
            raw[at..at + 32].copy_from_slice(&row);
        }
        let ds = DslDataset::decode(&raw).unwrap();
        assert_eq!(
            (ds.directory.0, ds.previous_snapshot.0, ds.previous_snapshot_txg.0),
            (74, 48, 1)
        );
        assert_eq!((ds.next_snapshot.0, ds.children, ds.creation_txg.0), (93, 1, 22));
        assert_eq!(
            (ds.deadlist.0, ds.referenced_bytes, ds.compressed_bytes),
            (79, 0x86600, 0x84a00)
        );
        assert_eq!((ds.uncompressed_bytes, ds.unique_bytes), (0x125000, 0x4a00));
        assert_eq!((ds.guid.0, ds.flags, ds.holds.0), (0x3132_94a6_f661_c2b2, 4, 98));
        assert_eq!((ds.pointer.logical_birth().0, ds.pointer.lsize()), (0x10, 4096));
        assert!(ds.is_snapshot() && !ds.is_inconsistent());
        assert_eq!(ds.encode(), raw);
        assert!(DslDataset::decode(&raw[..319]).is_err());
    }
}
