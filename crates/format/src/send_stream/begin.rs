//! The records a stream begins and ends with: what it holds, what it asks of the receiver.
//!
//! Chapter 07, sections 3, 4 and 11. Invariant: a name that is encoded fits its field and ends there.

use bitflags::bitflags;

use super::fields::{Fields, Out};
use super::{HEADER, bad};
use crate::bytes::ByteOrder;
use crate::{Guid, Result};

/// The number a stream is known by, and its byte order.
pub const MAGIC: u64 = 0x2_f5ba_cbac;
/// Bytes of the name's field, the NUL at its end included.
const NAME_LEN: usize = 256;

/// Whether a stream is one snapshot or a package of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderKind {
    /// One snapshot.
    Substream,
    /// A package: its payload says what the substreams are that follow.
    Compound,
}

bitflags! {
    /// What a receiver must know to understand a stream.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Blocks named by where they stood before (`zfs send -D`, no longer made).
        const DEDUP = 1;
        /// Keys of writes come from dedup tables (no longer made).
        const DEDUP_PROPERTIES = 1 << 1;
        /// Spill blocks may follow.
        const SA_SPILL = 1 << 2;
        /// Embedded blocks may follow.
        const EMBED_DATA = 1 << 16;
        /// Blocks compressed with lz4 may follow.
        const LZ4 = 1 << 17;
        /// Blocks above 128 KiB may follow.
        const LARGE_BLOCKS = 1 << 19;
        /// The stream goes on where an earlier one was cut off.
        const RESUMING = 1 << 20;
        /// Some blocks are left out.
        const REDACTED = 1 << 21;
        /// Blocks are sent as they are compressed.
        const COMPRESSED = 1 << 22;
        /// Dnodes of more than one slot may follow.
        const LARGE_DNODE = 1 << 23;
        /// Blocks are sent as they are encrypted.
        const RAW = 1 << 24;
        /// Blocks compressed with zstd may follow.
        const ZSTD = 1 << 25;
        /// Holds are in the package.
        const HOLDS = 1 << 26;
        /// The incremental adds large blocks to what was sent without; never set.
        const SWITCH_TO_LARGE_BLOCKS = 1 << 27;
        /// Names above 255 bytes may follow.
        const LONG_NAME = 1 << 28;
        /// Micro ZAPs above 128 KiB may follow.
        const LARGE_MICROZAP = 1 << 29;
        const _ = !0;
    }

    /// What the stream's sender says about it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct BeginFlags: u32 {
        /// What it goes on from is the origin of a clone.
        const CLONE = 1;
        /// The filesystem does not tell upper from lower case.
        const CASE_INSENSITIVE = 2;
        /// All objects and ranges that are free are told.
        const FREE_RECORDS = 4;
        /// Objects tell whether they have a spill block.
        const SPILL_BLOCK = 8;
        const _ = !0;
    }
}

impl Features {
    /// Those OpenZFS up to 2.4 knows and takes.
    pub const KNOWN: Self = Self::SA_SPILL
        .union(Self::EMBED_DATA)
        .union(Self::LZ4)
        .union(Self::LARGE_BLOCKS)
        .union(Self::RESUMING)
        .union(Self::REDACTED)
        .union(Self::COMPRESSED)
        .union(Self::LARGE_DNODE)
        .union(Self::RAW)
        .union(Self::ZSTD)
        .union(Self::HOLDS)
        .union(Self::SWITCH_TO_LARGE_BLOCKS)
        .union(Self::LONG_NAME)
        .union(Self::LARGE_MICROZAP);

    /// Those that no receiver knows any more, or that no sender ever had.
    pub fn unknown(self) -> Self {
        self.difference(Self::KNOWN)
    }
}

/// The first record of a stream, and of each substream of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// One snapshot, or a package.
    pub kind: HeaderKind,
    /// What follows may use; 56 bits.
    pub features: Features,
    /// When the snapshot was made, in seconds since 1970.
    pub creation_time: u64,
    /// Kind of the object set: 2 a filesystem, 3 a volume, 4 another.
    pub objset_kind: u32,
    /// More about it.
    pub flags: BeginFlags,
    /// The snapshot that is sent; 0 in a package.
    pub to_guid: Guid,
    /// The snapshot or bookmark it goes on from; 0 when everything is sent.
    pub from_guid: Guid,
    /// `pool/filesystem@snapshot`, at most 255 bytes.
    pub to_name: Box<[u8]>,
    /// Bytes of the packed list that follows; 0 without.
    pub payload_len: u32,
}

/// The last record of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Sum of all that was before this record; zero at the end of a package.
    pub checksum: [u64; 4],
    /// The snapshot that was sent; 0 in a package.
    pub to_guid: Guid,
}

/// The byte order of a stream that begins with `header`; `None` if that is no beginning of a stream.
pub fn order_of(header: &[u8; HEADER]) -> Option<ByteOrder> {
    [ByteOrder::Little, ByteOrder::Big]
        .into_iter()
        .find(|order| Fields { data: header, order: *order }.u64(8) == MAGIC)
}

impl Begin {
    pub(super) fn decode(fields: Fields<'_>) -> Result<Self> {
        if fields.u64(8) != MAGIC {
            return Err(bad("a beginning without the magic number of send streams"));
        }
        let version = fields.u64(16);
        let kind = match version & 3 {
            1 => HeaderKind::Substream,
            2 => HeaderKind::Compound,
            kind => return Err(bad(format!("a stream of kind {kind}, which does not exist"))),
        };
        let name = fields.bytes::<NAME_LEN>(56);
        if !name.contains(&0) {
            return Err(bad("the name of the snapshot does not end in its field"));
        }
        Ok(Self {
            kind,
            features: Features::from_bits_retain((version >> 2) & ((1 << 56) - 1)),
            creation_time: fields.u64(24),
            objset_kind: fields.u32(32),
            flags: BeginFlags::from_bits_retain(fields.u32(36)),
            to_guid: Guid(fields.u64(40)),
            from_guid: Guid(fields.u64(48)),
            to_name: name.split(|byte| *byte == 0).next().unwrap_or_default().into(),
            payload_len: fields.u32(4),
        })
    }

    pub(super) fn encode(&self) -> Result<Out> {
        if self.to_name.len() >= NAME_LEN || self.to_name.contains(&0) {
            return Err(bad("the name of the snapshot is longer than 255 bytes, or holds a NUL"));
        }
        let kind = match self.kind {
            HeaderKind::Substream => 1,
            HeaderKind::Compound => 2,
        };
        let mut out = Out::new(0);
        out.u32(4, self.payload_len);
        out.u64(8, MAGIC);
        out.u64(16, ((self.features.bits() << 2) & ((1 << 58) - 1)) | kind);
        out.u64(24, self.creation_time);
        out.u32(32, self.objset_kind);
        out.u32(36, self.flags.bits());
        out.u64(40, self.to_guid.0);
        out.u64(48, self.from_guid.0);
        out.bytes(56, &self.to_name);
        Ok(out)
    }
}

impl End {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self { checksum: fields.words(8), to_guid: Guid(fields.u64(40)) }
    }

    pub(super) fn encode(&self) -> Out {
        let mut out = Out::new(5);
        out.words(8, self.checksum);
        out.u64(40, self.to_guid.0);
        out
    }
}
