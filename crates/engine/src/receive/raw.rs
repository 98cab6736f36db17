//! Raw streams: what they say of keys, and their records, which are stored as they come.
//!
//! Chapter 07, section 8. Invariant: nothing of a raw stream is opened here; what is stored is what the MACs of
//! the sender cover, so that whoever has the key finds out whether all of it is right.

use cenote_codec::cipher::{Suite, WrappedKeys};
use cenote_codec::compress::Algorithm;
use cenote_format::crypto_key::{self as names, KeyFormat};
use cenote_format::dnode::{FLAG_SPILL, FLAG_USED_BYTES, SLOT, SLOTS_PER_BLOCK};
use cenote_format::send_stream::{
    FLAG_RAW_BYTE_SWAP, Object, ObjectRange, Record, Sealed, Spill, Write,
};
use cenote_format::{BlockPointer, Dnode, NvList, ObjectId, blkptr};
use smallvec::SmallVec;

use super::{Landing, ObjectFacts, RawFacts};
use crate::dataset::change::NewKeys;
use crate::object::Object as Changed;
use crate::pipe::{GivenBlock, Sealing, zeros};
use crate::txg::Purpose;
use crate::{Error, Result};

/// Bytes of a dnode before its pointers.
const CORE: usize = 64;
/// Pointers at most.
const POINTERS: u8 = 3;
/// Guid of the feature of blocks compressed with zstd.
const ZSTD: &str = "org.freebsd:zstd_compress";

impl RawFacts {
    /// What the list says that a raw stream begins with.
    ///
    /// # Errors
    /// `InvalidArgument` if it lacks something.
    pub(super) fn of(list: &NvList) -> Result<Self> {
        let lacks =
            |name: &str| Error::invalid(format!("the raw stream does not say its '{name}'"));
        let list = list.nvlist("crypt_keydata").ok_or_else(|| lacks("crypt_keydata"))?;
        let number = |name: &str| list.u64(name).ok_or_else(|| lacks(name));
        let suite = number(names::SUITE)?;
        let unknown = || Error::unsupported(format!("encryption suite {suite}"));
        let wrapped = WrappedKeys {
            suite: Suite::from_id(suite).ok_or_else(unknown)?,
            guid: number(names::GUID)?,
            version: match list.u64(names::VERSION).unwrap_or(0) {
                1 => 1,
                // What its MACs cover depends on how blocks are stored, which is decided here.
                version => {
                    let reason = format!("keys of version {version} cannot be received raw");
                    return Err(Error::unsupported(reason));
                }
            },
            iv: fixed(list, names::IV).ok_or_else(|| lacks(names::IV))?,
            mac: fixed(list, names::MAC).ok_or_else(|| lacks(names::MAC))?,
            master: fixed(list, names::MASTER_KEY).ok_or_else(|| lacks(names::MASTER_KEY))?,
            hmac: fixed(list, names::HMAC_KEY).ok_or_else(|| lacks(names::HMAC_KEY))?,
        };
        let id =
            |name: &str| Ok::<_, Error>(u8::try_from(list.u64(name).unwrap_or(0)).unwrap_or(0));
        Ok(Self {
            keys: NewKeys {
                wrapped,
                root: None,
                format: KeyFormat::from_raw(number(names::KEY_FORMAT)?)?,
                salt: list.u64(names::PBKDF2_SALT).unwrap_or(0),
                iterations: list.u64(names::PBKDF2_ITERATIONS).unwrap_or(0),
            },
            portable: fixed(list, "portable_mac").ok_or_else(|| lacks("portable_mac"))?,
            last_dnode_block: number("mdn_maxblkid")?,
            checksum: id("mdn_checksum")?,
            compression: id("mdn_compress")?,
            ivset: list.u64("to_ivset_guid").unwrap_or(0),
            from_ivset: list.u64("from_ivset_guid").unwrap_or(0),
        })
    }
}

/// Exactly so many bytes, from an array of numbers or of bytes.
fn fixed<const N: usize>(list: &NvList, name: &str) -> Option<[u8; N]> {
    use cenote_format::nvlist::Value;
    match list.get(name)? {
        Value::ByteArray(bytes) | Value::Uint8Array(bytes) => bytes.as_slice().try_into().ok(),
        _ => None,
    }
}

fn sealing(sealed: &Sealed) -> Sealing {
    Sealing { salt: sealed.salt, iv: sealed.iv, mac: sealed.mac }
}

impl Landing {
    /// Bytes of the sealed blocks in memory that are not known to be on the disks yet.
    pub fn sealed_bytes(&self) -> u64 {
        self.raw.as_ref().map_or(0, |(_, seals)| seals.waiting())
    }

    /// Applies a record of a raw stream.
    pub(super) fn apply_raw(&mut self, record: &Record, payload: Vec<u8>) -> Result<()> {
        match record {
            Record::ObjectRange(range) => self.raw_range(range),
            Record::Object(object) => self.raw_object(object, &payload),
            Record::Write(write) => self.raw_write(write, payload),
            Record::Spill(spill) => self.raw_spill(spill, payload),
            Record::FreeObjects(range) => self.free_objects(range.first, range.count),
            Record::Free(free) => {
                self.free(free.object, free.offset, free.length)?;
                self.raw_reach(free.object)
            }
            _ => {
                let reason = format!("a record {} does not belong in a raw stream", record.name());
                Err(Error::invalid(reason))
            }
        }
    }

    fn raw_range(&mut self, range: &ObjectRange) -> Result<()> {
        if range.slots != SLOTS_PER_BLOCK || !range.first.is_multiple_of(SLOTS_PER_BLOCK) {
            return Err(Error::invalid("a range of objects that is no block of dnodes"));
        }
        refuse_swapped(range.flags)?;
        let sealing = Sealing { salt: range.salt, iv: range.iv, mac: range.mac };
        if let Some((_, seals)) = &self.raw {
            seals.dnode_block(range.first / SLOTS_PER_BLOCK, sealing);
        }
        Ok(())
    }

    /// The last block of the object that was told of last, as it was told.
    fn raw_reach(&mut self, object: u64) -> Result<()> {
        let (Some((id, last)), Some(found)) = (self.reaches, self.current.clone()) else {
            return Ok(());
        };
        if id != object || found.id().0 != object {
            return Ok(());
        }
        self.changing((1, SLOT as u64), Purpose::Spare, |tx| found.reach(tx, last))
    }

    fn raw_object(&mut self, object: &Object, payload: &[u8]) -> Result<()> {
        refuse_swapped(object.flags)?;
        let at = |error: Error| error.at_object(0, object.object);
        let short = || at(Error::invalid("a bonus is cut off"));
        let bonus = payload.get(..usize::try_from(object.bonus_len).unwrap_or(usize::MAX));
        let facts = ObjectFacts {
            id: object.object,
            object_type: object.object_type,
            bonus_type: object.bonus_type,
            block_size: object.block_size.into(),
            bonus: bonus.ok_or_else(short)?,
            slots: object.slots.max(1),
            checksum: object.checksum,
            compression: object.compression,
            has_spill: object.flags & Object::HAS_SPILL != 0,
        };
        self.check(&facts).map_err(at)?;
        let dnode = sealed_dnode(object, payload).map_err(at)?;
        self.current = None;
        self.reaches = Some((object.object, dnode.max_block_id));
        match self.find(object.object)? {
            Some(found) if fits(found.dnode(), &dnode) => {
                found.need_to_free_all()?;
                self.changing((2, facts.block_size), Purpose::Replace, |tx| {
                    found.reshape_sealed(tx, &dnode)?;
                    self.note(tx, facts.id, 0);
                    Ok(())
                })
            }
            Some(found) => {
                self.free_object(found.id())?;
                self.raw_make(&facts, dnode)
            }
            None => self.raw_make(&facts, dnode),
        }
        .map_err(at)
    }

    fn raw_make(&self, facts: &ObjectFacts<'_>, dnode: Dnode) -> Result<()> {
        self.make_room(facts)?;
        let (set, id) = (self.filled.set(), ObjectId(facts.id));
        self.changing((1, SLOT as u64 * 32), Purpose::Grow, |tx| {
            set.claim_sealed(tx, id, dnode)?;
            self.note(tx, facts.id, 0);
            Ok(())
        })
    }

    fn raw_write(&mut self, write: &Write, payload: Vec<u8>) -> Result<()> {
        let at = |error: Error| error.at_object(0, write.object);
        refuse_swapped(write.flags)?;
        let found = self.current(write.object)?;
        let size = found.block_size();
        if write.logical_size != size || !write.offset.is_multiple_of(size) {
            let reason = "a sealed block that is no block of its object";
            return Err(at(Error::invalid(reason)));
        }
        self.check_compression(write.compression).map_err(at)?;
        let given = given(write.compression, size, payload, &write.sealed).map_err(at)?;
        self.raw_block(&found, write.offset / size, given, |tx, number| {
            found.write_block(tx, number, zeros(size))
        })
        .map_err(at)
    }

    fn raw_spill(&mut self, spill: &Spill, payload: Vec<u8>) -> Result<()> {
        let at = |error: Error| error.at_object(0, spill.object);
        refuse_swapped(spill.flags)?;
        let found = self.current(spill.object)?;
        let len = spill.length;
        if !len.is_multiple_of(512) || !(512..=self.largest_block()).contains(&len) {
            return Err(at(Error::invalid(format!("the stream has a spill block of {len} bytes"))));
        }
        // It is in the stream for receivers that lose what they have.
        let has_it = found.dnode().spill.is_some_and(|pointer| !pointer.is_hole());
        if spill.flags & Spill::UNMODIFIED != 0 && has_it {
            return Ok(());
        }
        self.check_compression(spill.compression).map_err(at)?;
        let given = given(spill.compression, len, payload, &spill.sealed).map_err(at)?;
        let done =
            self.raw_block(&found, u64::MAX, given, |tx, _| found.set_spill(tx, Some(zeros(len))));
        self.current = None;
        done.map_err(at)
    }

    /// Refuses blocks, which are stored as they come, that need a feature the pool does not have.
    fn check_compression(&self, compression: u8) -> Result<()> {
        let is_zstd = Algorithm::from_id(compression) == Some(Algorithm::Zstd);
        let is_known = || self.facts.features.contains(&"zstd_compress");
        if is_zstd && !is_known() && !self.live.feature_enabled(ZSTD) {
            return Err(Error::unsupported("the feature 'zstd_compress' is not enabled"));
        }
        Ok(())
    }

    /// Has a sealed block written in the group in which `change` makes its place dirty.
    fn raw_block(
        &self,
        object: &Changed,
        number: u64,
        given: GivenBlock,
        change: impl Fn(&crate::txg::Tx, u64) -> Result<()>,
    ) -> Result<()> {
        let Some((_, seals)) = &self.raw else { return Err(Error::bug("no seals")) };
        // Dirty blocks are in the gate's budget, those on the disks would be in none.
        seals.forget(self.live.gate().figures().synced);
        let (size, id) = (object.block_size(), object.id().0);
        // The spill block comes before the object's data: a stream that goes on there has all of it yet to send.
        let offset = if number == u64::MAX { 0 } else { number.saturating_mul(size) };
        let once = |given: GivenBlock| {
            self.changing((2, size), Purpose::Grow, |tx| {
                let is_first = seals.block(tx.txg(), id, number, given);
                if is_first {
                    change(tx, number)?;
                    self.note(tx, id, offset);
                }
                Ok(is_first)
            })
        };
        if once(given.clone())? {
            return Ok(());
        }
        // It was given before, and that is not on the disks.
        self.live.sync()?;
        seals.forget(self.live.gate().figures().synced);
        match once(given)? {
            true => Ok(()),
            false => Err(Error::invalid("a sealed block comes twice")),
        }
    }
}

fn refuse_swapped(flags: u8) -> Result<()> {
    if flags & FLAG_RAW_BYTE_SWAP == 0 {
        return Ok(());
    }
    let reason = "raw streams of the other byte order cannot be received: not supported yet";
    Err(Error::unsupported(reason))
}

fn given(compression: u8, size: u64, payload: Vec<u8>, sealed: &Sealed) -> Result<GivenBlock> {
    let stored = payload.len() as u64;
    let is_known = Algorithm::from_id(compression).is_some();
    let fits = stored.is_multiple_of(512) && (512..=size).contains(&stored);
    if !is_known || !fits || (compression == 2) != (stored == size) {
        let reason =
            format!("a sealed block of {stored} bytes for {size}, compressed {compression}");
        return Err(Error::invalid(reason));
    }
    let stored = cenote_device::aligned_copy(&payload, payload.len());
    Ok(GivenBlock { stored: Some(stored), compression, sealing: sealing(sealed) })
}

/// The dnode of a sealed object, its pointers holes.
fn sealed_dnode(object: &Object, payload: &[u8]) -> Result<Dnode> {
    let wrong = |what: String| Err(Error::invalid(format!("the raw stream has an object {what}")));
    let (slots, pointers) = (object.slots.max(1), object.pointers);
    if !(1..=POINTERS).contains(&pointers)
        || !(1..=cenote_format::dnode::MAX_LEVELS).contains(&object.levels)
        || !(12..=17).contains(&object.indirect_shift)
    {
        let (levels, shift) = (object.levels, object.indirect_shift);
        return wrong(format!("of {pointers} pointers, {levels} levels, shift {shift}"));
    }
    let has_spill = object.flags & Object::HAS_SPILL != 0;
    let taken =
        CORE + usize::from(pointers) * blkptr::SIZE + if has_spill { blkptr::SIZE } else { 0 };
    let area = (usize::from(slots) * SLOT).saturating_sub(taken);
    let mut bonus_area = payload.to_vec();
    // Without a bonus there is no area in the stream; with one there is all of it.
    if object.raw_bonus_len == 0 && object.bonus_len != 0 {
        return wrong(format!("with a bonus of {} bytes without its area", object.bonus_len));
    }
    if object.raw_bonus_len != 0 && bonus_area.len() != area {
        return wrong(format!("with a bonus area of {} bytes, not {area}", bonus_area.len()));
    }
    let bonus_len = usize::try_from(object.bonus_len).unwrap_or(usize::MAX);
    let Some(bonus_len) = u16::try_from(bonus_len).ok().filter(|_| bonus_len <= area) else {
        return wrong(format!("with a bonus of {bonus_len} bytes in {area}"));
    };
    bonus_area.resize(area, 0);
    let shift = u32::from(object.indirect_shift).saturating_sub(7);
    let reach = u128::from(pointers) << (shift * u32::from(object.levels - 1)).min(100);
    if u128::from(object.max_block_id) >= reach {
        return wrong(format!("whose block {} cannot be reached", object.max_block_id));
    }
    Ok(Dnode {
        object_type: object.object_type,
        indirect_shift: object.indirect_shift,
        levels: object.levels,
        bonus_type: object.bonus_type,
        checksum: object.checksum,
        compression: object.compression,
        flags: FLAG_USED_BYTES | if has_spill { FLAG_SPILL } else { 0 },
        data_block_sectors: u16::try_from(object.block_size / 512).unwrap_or(0),
        bonus_len,
        extra_slots: slots - 1,
        max_block_id: object.max_block_id,
        used: 0,
        pointers: SmallVec::from_elem(BlockPointer::HOLE, usize::from(pointers)),
        bonus_area,
        spill: has_spill.then_some(BlockPointer::HOLE),
    })
}

/// Whether an object can become this one with the blocks it has.
fn fits(old: &Dnode, new: &Dnode) -> bool {
    old.extra_slots == new.extra_slots
        && old.pointers.len() == new.pointers.len()
        && old.indirect_shift == new.indirect_shift
        && old.data_block_sectors == new.data_block_sectors
        && old.levels <= new.levels
}
