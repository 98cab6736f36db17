//! Records of data: writes in their several forms, holes, and what was left out.
//!
//! Chapter 07, sections 3 and 7 to 9. Invariant: fields are as the stream has them; what they may be is the
//! receiver's to say.

use super::fields::{Fields, Out};
use super::object::object_type;
use crate::{Guid, ObjectType, Result};

/// How a block of a raw stream is encrypted; all zero in others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    /// Salt of its key.
    pub salt: [u8; 8],
    /// Initialisation vector.
    pub iv: [u8; 12],
    /// Authentication code.
    pub mac: [u8; 16],
}

impl Sealed {
    /// Salt, vector and code stand one after another.
    fn decode(fields: Fields<'_>, at: usize) -> Self {
        Self { salt: fields.bytes(at), iv: fields.bytes(at + 8), mac: fields.bytes(at + 20) }
    }

    fn encode(&self, out: &mut Out, at: usize) {
        out.bytes(at, &self.salt);
        out.bytes(at + 8, &self.iv);
        out.bytes(at + 20, &self.mac);
    }
}

/// What a dedup table would know the block by; zero where the record is not one stored block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DedupKey {
    /// Checksum of the stored block.
    pub checksum: [u64; 4],
    /// Its sizes and compression, as in a key of a dedup table (chapter 06, section 20).
    pub properties: u64,
}

impl DedupKey {
    fn decode(fields: Fields<'_>, at: usize) -> Self {
        Self { checksum: fields.words(at), properties: fields.u64(at + 32) }
    }

    fn encode(&self, out: &mut Out, at: usize) {
        out.words(at, self.checksum);
        out.u64(at + 32, self.properties);
    }
}

/// Data of an object; the payload is what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Number of the object.
    pub object: u64,
    /// What its blocks hold.
    pub object_type: ObjectType,
    /// Where it is written, in bytes.
    pub offset: u64,
    /// How much, in bytes, once it is decompressed.
    pub logical_size: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// Checksum of `key`; 2 where there is none.
    pub checksum_type: u8,
    /// [`Write::CHECKSUM_DEDUP`], [`super::FLAG_RAW_BYTE_SWAP`].
    pub flags: u8,
    /// How the payload is compressed; 0 is not at all, and so is 2, in raw streams.
    pub compression: u8,
    /// What a dedup table would know it by.
    pub key: DedupKey,
    /// Bytes of the payload where `compression` is not 0.
    pub compressed_size: u64,
    /// Raw streams: how it is encrypted.
    pub sealed: Sealed,
}

impl Write {
    /// Flag: the checksum is good enough for dedup without comparing.
    pub const CHECKSUM_DEDUP: u8 = 1;

    pub(super) fn payload_len(&self) -> u64 {
        if self.compression == 0 { self.logical_size } else { self.compressed_size }
    }

    pub(super) fn decode(fields: Fields<'_>) -> Result<Self> {
        Ok(Self {
            object: fields.u64(8),
            object_type: object_type(fields.u32(16))?,
            offset: fields.u64(24),
            logical_size: fields.u64(32),
            to_guid: Guid(fields.u64(40)),
            checksum_type: fields.u8(48),
            flags: fields.u8(49),
            compression: fields.u8(50),
            key: DedupKey::decode(fields, 56),
            compressed_size: fields.u64(96),
            sealed: Sealed::decode(fields, 104),
        })
    }

    pub(super) fn encode(&self) -> Out {
        let mut out = Out::new(3);
        out.u64(8, self.object);
        out.u32(16, self.object_type.0.into());
        out.u64(24, self.offset);
        out.u64(32, self.logical_size);
        out.u64(40, self.to_guid.0);
        out.bytes(48, &[self.checksum_type, self.flags, self.compression]);
        self.key.encode(&mut out, 56);
        out.u64(96, self.compressed_size);
        self.sealed.encode(&mut out, 104);
        out
    }
}

/// A hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Number of the object.
    pub object: u64,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is; [`super::TO_END`] to the end.
    pub length: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
}

impl Free {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            object: fields.u64(8),
            offset: fields.u64(16),
            length: fields.u64(24),
            to_guid: Guid(fields.u64(32)),
        }
    }

    pub(super) fn encode_as(&self, kind: u32) -> Out {
        let mut out = Out::new(kind);
        out.u64(8, self.object);
        out.u64(16, self.offset);
        out.u64(24, self.length);
        out.u64(32, self.to_guid.0);
        out
    }
}

/// A range whose data was left out of a redacted stream.
pub type Redact = Free;

/// The spill block of an object's attributes; the payload is its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spill {
    /// Number of the object.
    pub object: u64,
    /// Bytes of the block, once it is decompressed.
    pub length: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// [`Spill::UNMODIFIED`], [`super::FLAG_RAW_BYTE_SWAP`].
    pub flags: u8,
    /// How the payload is compressed; only in raw streams.
    pub compression: u8,
    /// Bytes of the payload; 0: it is not compressed.
    pub compressed_size: u64,
    /// Raw streams: how it is encrypted.
    pub sealed: Sealed,
    /// Type of the block; senders leave it 0.
    pub object_type: u32,
}

impl Spill {
    /// Flag: the receiver has it already, where it keeps spill blocks.
    pub const UNMODIFIED: u8 = 4;

    pub(super) fn payload_len(&self) -> u64 {
        if self.compressed_size == 0 { self.length } else { self.compressed_size }
    }

    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            object: fields.u64(8),
            length: fields.u64(16),
            to_guid: Guid(fields.u64(24)),
            flags: fields.u8(32),
            compression: fields.u8(33),
            compressed_size: fields.u64(40),
            sealed: Sealed::decode(fields, 48),
            object_type: fields.u32(84),
        }
    }

    pub(super) fn encode(&self) -> Out {
        let mut out = Out::new(7);
        out.u64(8, self.object);
        out.u64(16, self.length);
        out.u64(24, self.to_guid.0);
        out.bytes(32, &[self.flags, self.compression]);
        out.u64(40, self.compressed_size);
        self.sealed.encode(&mut out, 48);
        out.u32(84, self.object_type);
        out
    }
}

/// Data that stands elsewhere in what was received; only old streams have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteByReference {
    /// Number of the object.
    pub object: u64,
    /// Where it is written, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub length: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// The snapshot that has the data.
    pub ref_guid: Guid,
    /// The object there.
    pub ref_object: u64,
    /// Where in it, in bytes.
    pub ref_offset: u64,
    /// Checksum of `key`.
    pub checksum_type: u8,
    /// As of a [`Write`].
    pub flags: u8,
    /// What a dedup table would know it by.
    pub key: DedupKey,
}

impl WriteByReference {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            object: fields.u64(8),
            offset: fields.u64(16),
            length: fields.u64(24),
            to_guid: Guid(fields.u64(32)),
            ref_guid: Guid(fields.u64(40)),
            ref_object: fields.u64(48),
            ref_offset: fields.u64(56),
            checksum_type: fields.u8(64),
            flags: fields.u8(65),
            key: DedupKey::decode(fields, 72),
        }
    }

    pub(super) fn encode(&self) -> Out {
        let mut out = Out::new(6);
        let words = [self.object, self.offset, self.length, self.to_guid.0];
        out.words(8, words);
        out.words(40, [self.ref_guid.0, self.ref_object, self.ref_offset, 0]);
        out.bytes(64, &[self.checksum_type, self.flags]);
        self.key.encode(&mut out, 72);
        out
    }
}

/// A small block that lies in its pointer; the payload is what lies there, compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteEmbedded {
    /// Number of the object.
    pub object: u64,
    /// Where it is written, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub length: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// How the payload is compressed.
    pub compression: u8,
    /// Kind of the pointer; 0 is data.
    pub kind: u8,
    /// Bytes of the block.
    pub logical_size: u32,
    /// Bytes of the payload that count; it is padded to a multiple of 8.
    pub physical_size: u32,
}

impl WriteEmbedded {
    pub(super) fn payload_len(&self) -> u64 {
        u64::from(self.physical_size).next_multiple_of(8)
    }

    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            object: fields.u64(8),
            offset: fields.u64(16),
            length: fields.u64(24),
            to_guid: Guid(fields.u64(32)),
            compression: fields.u8(40),
            kind: fields.u8(41),
            logical_size: fields.u32(48),
            physical_size: fields.u32(52),
        }
    }

    pub(super) fn encode(&self) -> Out {
        let mut out = Out::new(8);
        out.words(8, [self.object, self.offset, self.length, self.to_guid.0]);
        out.bytes(40, &[self.compression, self.kind]);
        out.u32(48, self.logical_size);
        out.u32(52, self.physical_size);
        out
    }
}
