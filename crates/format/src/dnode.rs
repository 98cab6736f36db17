//! Dnodes: the fixed part of every object.
//!
//! Chapter 04, section 2. A dnode occupies one or more 512-byte slots of a dnode block.

use smallvec::SmallVec;

use crate::blkptr::{self, BlockPointer};
use crate::bytes::{le16, le64, put, put_le64, slice};
use crate::{Error, ObjectType, Result};

/// Bytes of one slot.
pub const SLOT: usize = 512;
/// Bytes of a dnode block; also the logical size of every block of a meta dnode.
pub const BLOCK: usize = 16384;
/// Slots in a dnode block.
pub const SLOTS_PER_BLOCK: u64 = 32;
/// Bytes before the block pointers.
pub const CORE: usize = 64;
/// Most levels a block tree may have.
pub const MAX_LEVELS: u8 = 12;

/// `used` counts bytes (else 512-byte sectors).
pub const FLAG_USED_BYTES: u8 = 1;
/// The object is in the space accounting of its owner.
pub const FLAG_USERUSED_ACCOUNTED: u8 = 2;
/// A spill pointer stands at the end of the dnode.
pub const FLAG_SPILL: u8 = 4;
/// The object is in the object accounting of its owner.
pub const FLAG_USEROBJUSED_ACCOUNTED: u8 = 8;

/// One object's dnode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dnode {
    /// What the blocks hold; `NONE` is a free slot.
    pub object_type: ObjectType,
    /// log2 of the indirect block size in bytes.
    pub indirect_shift: u8,
    /// Levels of the block tree; 1 means the pointers below point at data.
    pub levels: u8,
    /// Type of the bonus data.
    pub bonus_type: ObjectType,
    /// Checksum override, 0 inherits.
    pub checksum: u8,
    /// Compression override, 0 inherits.
    pub compression: u8,
    /// `FLAG_*` bits.
    pub flags: u8,
    /// Data block size in 512-byte sectors.
    pub data_block_sectors: u16,
    /// Valid bytes of the bonus.
    pub bonus_len: u16,
    /// Slots beyond the first.
    pub extra_slots: u8,
    /// Highest level-0 block id.
    pub max_block_id: u64,
    /// Space charged, in bytes or sectors (see [`FLAG_USED_BYTES`]).
    pub used: u64,
    /// Top of the block tree: one to three pointers.
    pub pointers: SmallVec<[BlockPointer; 3]>,
    /// The whole bonus area (its capacity, not only `bonus_len`).
    pub bonus_area: Vec<u8>,
    /// Pointer to the spill block of system attributes.
    pub spill: Option<BlockPointer>,
}

impl Dnode {
    /// Slots taken by the dnode that starts at the beginning of `data`; 1 for a free slot.
    pub fn slots_at(data: &[u8]) -> u64 {
        match (data.first(), data.get(12)) {
            (Some(0) | None, _) | (_, None) => 1,
            (_, Some(extra)) => u64::from(*extra) + 1,
        }
    }

    /// Decodes the dnode at the beginning of `data`; `None` when the slot is free.
    pub fn decode(data: &[u8]) -> Result<Option<Self>> {
        let bad = |reason: String| Error::new("dnode", reason);
        let short = || Error::truncated("dnode");
        let core: [u8; 13] = crate::bytes::array(data, 0).ok_or_else(short)?;
        let [
            kind,
            indirect_shift,
            levels,
            pointer_count,
            bonus_type,
            checksum,
            compression,
            flags,
            _,
            _,
            _,
            _,
            extra_slots,
        ] = core;
        if kind == 0 {
            return Ok(None);
        }
        let object_type = ObjectType(kind);
        if !object_type.is_valid() {
            return Err(bad(format!("object type {kind} does not exist")));
        }
        if levels == 0 || levels > MAX_LEVELS {
            return Err(bad(format!("{levels} levels")));
        }
        if !(1..=3).contains(&pointer_count) {
            return Err(bad(format!("{pointer_count} block pointers")));
        }
        if !(9..=17).contains(&indirect_shift) && (levels > 1 || indirect_shift > 24) {
            return Err(bad(format!("indirect block shift {indirect_shift}")));
        }
        if extra_slots > 31 {
            return Err(bad(format!("{extra_slots} extra slots")));
        }
        let size = (usize::from(extra_slots) + 1) * SLOT;
        let data = slice(data, 0, size).ok_or_else(short)?;
        let data_block_sectors = le16(data, 8).ok_or_else(short)?;
        if data_block_sectors == 0 || data_block_sectors > 32768 {
            return Err(bad(format!("data block of {data_block_sectors} sectors")));
        }
        let bonus_start = CORE + usize::from(pointer_count) * blkptr::SIZE;
        let has_spill = flags & FLAG_SPILL != 0;
        let bonus_end = if has_spill { size - blkptr::SIZE } else { size };
        let bonus_area = data
            .get(bonus_start..bonus_end)
            .ok_or_else(|| bad("pointers and spill pointer overlap".into()))?
            .to_vec();
        let bonus_len = le16(data, 10).ok_or_else(short)?;
        if usize::from(bonus_len) > bonus_area.len() {
            return Err(bad(format!("bonus of {bonus_len} bytes in {}", bonus_area.len())));
        }
        let pointers = BlockPointer::decode_all(data.get(CORE..bonus_start).ok_or_else(short)?);
        let spill = match data.get(bonus_end..) {
            Some(raw) if has_spill => Some(BlockPointer::decode(raw)?),
            _ => None,
        };
        Ok(Some(Self {
            object_type,
            indirect_shift,
            levels,
            bonus_type: ObjectType(bonus_type),
            checksum,
            compression,
            flags,
            data_block_sectors,
            bonus_len,
            extra_slots,
            max_block_id: le64(data, 16).ok_or_else(short)?,
            used: le64(data, 24).ok_or_else(short)?,
            pointers: pointers.collect(),
            bonus_area,
            spill,
        }))
    }

    /// The bytes of this dnode: a whole number of slots. Fails if the parts do not fit together.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let short = || Error::new("dnode", "its parts do not fit its slots");
        let size = (usize::from(self.extra_slots) + 1) * SLOT;
        let pointer_count = u8::try_from(self.pointers.len()).map_err(|_| short())?;
        if usize::from(self.bonus_len) > self.bonus_area.len() {
            return Err(short());
        }
        let mut out = vec![0; size];
        let head = [
            self.object_type.0,
            self.indirect_shift,
            self.levels,
            pointer_count,
            self.bonus_type.0,
            self.checksum,
            self.compression,
            self.flags,
        ];
        put(&mut out, 0, &head).ok_or_else(short)?;
        put(&mut out, 8, &self.data_block_sectors.to_le_bytes()).ok_or_else(short)?;
        put(&mut out, 10, &self.bonus_len.to_le_bytes()).ok_or_else(short)?;
        put(&mut out, 12, &[self.extra_slots]).ok_or_else(short)?;
        put_le64(&mut out, 16, self.max_block_id).ok_or_else(short)?;
        put_le64(&mut out, 24, self.used).ok_or_else(short)?;
        let mut at = CORE;
        for pointer in &self.pointers {
            put(&mut out, at, &pointer.encode()).ok_or_else(short)?;
            at += blkptr::SIZE;
        }
        put(&mut out, at, &self.bonus_area).ok_or_else(short)?;
        if let Some(spill) = &self.spill {
            let at = size.checked_sub(blkptr::SIZE).ok_or_else(short)?;
            put(&mut out, at, &spill.encode()).ok_or_else(short)?;
        }
        Ok(out)
    }

    /// The valid bytes of the bonus.
    pub fn bonus(&self) -> &[u8] {
        self.bonus_area.get(..usize::from(self.bonus_len)).unwrap_or(&[])
    }

    /// Data block size in bytes.
    pub fn block_size(&self) -> u64 {
        u64::from(self.data_block_sectors) * blkptr::SECTOR
    }

    /// log2 of the number of pointers in an indirect block.
    pub fn pointers_shift(&self) -> u32 {
        u32::from(self.indirect_shift.saturating_sub(7))
    }

    /// Space charged to the object, in bytes.
    pub fn used_bytes(&self) -> u64 {
        if self.flags & FLAG_USED_BYTES != 0 { self.used } else { self.used.saturating_mul(512) }
    }

    /// Bytes the block tree can reach from `max_block_id`: the object's length as blocks.
    pub fn max_offset(&self) -> u64 {
        self.max_block_id.saturating_add(1).saturating_mul(self.block_size())
    }
}

/// Every allocated dnode in a 16 KiB dnode block, with its slot index.
/// A dnode that cannot be decoded is yielded as its error and its slots are skipped.
pub fn dnodes_in_block(data: &[u8]) -> impl Iterator<Item = (u64, Result<Dnode>)> + '_ {
    let mut slot = 0;
    std::iter::from_fn(move || {
        loop {
            let start = usize::try_from(slot).ok()?.checked_mul(SLOT)?;
            let rest = data.get(start..).filter(|rest| rest.len() >= SLOT)?;
            let here = slot;
            slot += Dnode::slots_at(rest);
            match Dnode::decode(rest) {
                Ok(None) => {}
                Ok(Some(dnode)) => return Some((here, Ok(dnode))),
                Err(error) => return Some((here, Err(error))),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_zpl_file_of_chapter_04() {
        let mut raw = hex::decode("131101012c00000a0100b00000000000").unwrap();
        raw.resize(512, 0);
        let dnode = Dnode::decode(&raw).unwrap().unwrap();
        assert_eq!(dnode.object_type, ObjectType::PLAIN_FILE);
        assert_eq!(dnode.bonus_type, ObjectType::SYSTEM_ATTRIBUTES);
        assert_eq!((dnode.levels, dnode.pointers.len(), dnode.bonus().len()), (1, 1, 176));
        assert_eq!(dnode.encode().unwrap(), raw);
    }

    #[test]
    fn large_dnode_spans_slots() {
        let mut raw = hex::decode("19110103190000000800e80303000000").unwrap();
        raw.resize(2048, 0);
        let dnode = Dnode::decode(&raw).unwrap().unwrap();
        assert_eq!((dnode.bonus().len(), dnode.bonus_area.len()), (1000, 2048 - 448));
        assert_eq!(dnode.encode().unwrap(), raw);
        let mut block = raw.clone();
        block.resize(BLOCK, 0);
        block[4 * 512..4 * 512 + 16]
            .copy_from_slice(&hex::decode("131101012c00000a0100b00000000000").unwrap());
        let found: Vec<u64> =
            dnodes_in_block(&block).map(|(slot, d)| (slot, d.unwrap()).0).collect();
        assert_eq!(found, [0, 4]);
    }

    #[test]
    fn what_could_not_be_decoded_is_not_encoded() {
        let mut raw = hex::decode("131101012c00000a0100b00000000000").unwrap();
        raw.resize(512, 0);
        let dnode = Dnode::decode(&raw).unwrap().unwrap();
        assert!(Dnode { bonus_len: 16_000, ..dnode }.encode().is_err());
    }

    #[test]
    fn hostile_dnodes_are_errors() {
        let base = hex::decode("131101012c00000a0100b00000000000").unwrap();
        for (at, value) in [(0, 60), (2, 0), (2, 13), (3, 0), (3, 4), (12, 40), (11, 9), (8, 0)] {
            let mut raw = base.clone();
            raw.resize(512, 0);
            raw[at] = value;
            assert!(Dnode::decode(&raw).is_err(), "byte {at} = {value}");
        }
        assert!(Dnode::decode(&base).is_err());
    }
}
