//! Records of objects: dnodes, runs of free ones, and the blocks of dnodes of raw streams.
//!
//! Chapter 07, sections 3, 5 and 8. Invariant: fields are as the stream has them; what they may be is the
//! receiver's to say.

use super::fields::{Fields, Out};
use crate::{Guid, ObjectType};

/// A dnode; its bonus is the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its number.
    pub object: u64,
    /// What its blocks hold.
    pub object_type: ObjectType,
    /// What its bonus is.
    pub bonus_type: ObjectType,
    /// Size of its blocks in bytes, at most 128 KiB where the stream has no large blocks.
    pub block_size: u32,
    /// Valid bytes of its bonus.
    pub bonus_len: u32,
    /// Checksum override; 0 inherits.
    pub checksum: u8,
    /// Compression override; 0 inherits.
    pub compression: u8,
    /// Slots of 512 bytes; 0 means one.
    pub slots: u8,
    /// [`super::FLAG_RAW_BYTE_SWAP`], [`Object::HAS_SPILL`].
    pub flags: u8,
    /// Raw streams: bytes of the payload, the whole bonus area.
    pub raw_bonus_len: u32,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// Raw streams: exponent of the size of its indirect blocks.
    pub indirect_shift: u8,
    /// Raw streams: levels of its block tree.
    pub levels: u8,
    /// Raw streams: pointers in the dnode.
    pub pointers: u8,
    /// Raw streams: number of its last block.
    pub max_block_id: u64,
}

impl Object {
    /// Flag: the object has a spill block.
    pub const HAS_SPILL: u8 = 4;

    /// Bytes of the payload.
    pub(super) fn payload_len(&self) -> u64 {
        match self.raw_bonus_len {
            0 => u64::from(self.bonus_len).next_multiple_of(8),
            raw => u64::from(raw),
        }
    }

    pub(super) fn decode(fields: Fields<'_>) -> crate::Result<Self> {
        Ok(Self {
            object: fields.u64(8),
            object_type: object_type(fields.u32(16))?,
            bonus_type: object_type(fields.u32(20))?,
            block_size: fields.u32(24),
            bonus_len: fields.u32(28),
            checksum: fields.u8(32),
            compression: fields.u8(33),
            slots: fields.u8(34),
            flags: fields.u8(35),
            raw_bonus_len: fields.u32(36),
            to_guid: Guid(fields.u64(40)),
            indirect_shift: fields.u8(48),
            levels: fields.u8(49),
            pointers: fields.u8(50),
            max_block_id: fields.u64(56),
        })
    }

    pub(super) fn encode(&self) -> Out {
        let mut out = Out::new(1);
        out.u64(8, self.object);
        out.u32(16, self.object_type.0.into());
        out.u32(20, self.bonus_type.0.into());
        out.u32(24, self.block_size);
        out.u32(28, self.bonus_len);
        out.bytes(32, &[self.checksum, self.compression, self.slots, self.flags]);
        out.u32(36, self.raw_bonus_len);
        out.u64(40, self.to_guid.0);
        out.bytes(48, &[self.indirect_shift, self.levels, self.pointers]);
        out.u64(56, self.max_block_id);
        out
    }
}

/// A type in 32 bits, of which it may use eight.
pub(super) fn object_type(raw: u32) -> crate::Result<ObjectType> {
    let raw = u8::try_from(raw);
    raw.map(ObjectType).map_err(|_| super::bad("an object type above 255 does not exist"))
}

/// Numbers that no object has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeObjects {
    /// The first of them.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
}

impl FreeObjects {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self { first: fields.u64(8), count: fields.u64(16), to_guid: Guid(fields.u64(24)) }
    }

    pub(super) fn encode(&self) -> Out {
        let mut out = Out::new(2);
        out.u64(8, self.first);
        out.u64(16, self.count);
        out.u64(24, self.to_guid.0);
        out
    }
}

/// How the block of dnodes is encrypted that the objects after it lie in (raw streams).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// Number of the first object.
    pub first: u64,
    /// Slots of the block.
    pub slots: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// Salt of the block.
    pub salt: [u8; 8],
    /// Initialisation vector of the block.
    pub iv: [u8; 12],
    /// Authentication code of the block.
    pub mac: [u8; 16],
    /// [`super::FLAG_RAW_BYTE_SWAP`].
    pub flags: u8,
}

impl ObjectRange {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            first: fields.u64(8),
            slots: fields.u64(16),
            to_guid: Guid(fields.u64(24)),
            salt: fields.bytes(32),
            iv: fields.bytes(40),
            mac: fields.bytes(52),
            flags: fields.u8(68),
        }
    }

    pub(super) fn encode(&self) -> Out {
        let mut out = Out::new(9);
        out.u64(8, self.first);
        out.u64(16, self.slots);
        out.u64(24, self.to_guid.0);
        out.bytes(32, &self.salt);
        out.bytes(40, &self.iv);
        out.bytes(52, &self.mac);
        out.u8(68, self.flags);
        out
    }
}
