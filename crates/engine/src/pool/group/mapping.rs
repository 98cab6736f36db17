//! Mappings of removed vdevs in the metadata: making, extending and freeing them.
//!
//! Chapter 03, section 6. Invariant: what counts in a mapping has a number for each of its entries.

use cenote_format::bytes::le64;
use cenote_format::indirect_mapping::{
    BIRTH_ENTRY, Birth, ENTRY, MappingEntry, MappingHeader, RemovalState,
};
use cenote_format::zap::Value;
use cenote_format::{ObjectId, ObjectType};

use super::MosStore;
use crate::alloc::{OBSOLETE_COUNTS, SpaceStore};
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::object::NewObject;
use crate::pool::removed::REMOVING;
use crate::{Error, Result, zap};

/// Short name of the feature: removed vdevs.
pub(in crate::pool) const FEATURE: &str = "device_removal";
/// Types of the objects of a mapping.
const NUMBERS: ObjectType = ObjectType(0xc3);
const SHORT_NUMBERS: ObjectType = ObjectType(0xc2);
/// Bytes of a block of those.
const BLOCK: u64 = 128 << 10;

/// An empty mapping; `counted`: with an object that counts what of each entry is obsolete.
pub(in crate::pool) fn new_mapping(change: &MosChange<'_>, counted: bool) -> Result<ObjectId> {
    let mut header = MappingHeader::default();
    if counted {
        let counts = NewObject::new(SHORT_NUMBERS, BLOCK);
        header.counts = Some(change.mos.create_object(change.tx, &counts)?.id());
        MosStore::new(change).feature_add(OBSOLETE_COUNTS, 1)?;
    }
    let mapping = NewObject::new(NUMBERS, BLOCK).with_bonus(NUMBERS, header.encode());
    Ok(change.mos.create_object(change.tx, &mapping)?.id())
}

/// Frees a mapping, and what counts in it.
pub(in crate::pool) fn free_mapping(change: &MosChange<'_>, mapping: ObjectId) -> Result<()> {
    let header = MappingHeader::decode(change.mos.object(mapping)?.dnode().bonus())?;
    if let Some(counts) = header.counts {
        change.mos.free_object(change.tx, counts)?;
        MosStore::new(change).feature_add(OBSOLETE_COUNTS, -1)?;
    }
    change.mos.free_object(change.tx, mapping)
}

/// Records how far the removal is.
pub(in crate::pool) fn put_removal_state(
    change: &MosChange<'_>,
    state: &RemovalState,
) -> Result<()> {
    let value = Value::of_u64s(&state.to_words())?;
    zap::update(&change.mos.object(OBJECT_DIRECTORY)?, change.tx, REMOVING, &value)
}

/// An object for when what was copied.
pub(in crate::pool) fn new_births(change: &MosChange<'_>) -> Result<ObjectId> {
    let births = NewObject::new(NUMBERS, BLOCK).with_bonus(NUMBERS, vec![0; 8]);
    Ok(change.mos.create_object(change.tx, &births)?.id())
}

/// Adds entries to a mapping, and how many bytes of each are obsolete.
pub(in crate::pool) fn extend_mapping(
    change: &MosChange<'_>,
    mapping: ObjectId,
    entries: &[(MappingEntry, u32)],
) -> Result<()> {
    let object = change.mos.object(mapping)?;
    let mut header = MappingHeader::decode(object.dnode().bonus())?;
    let bytes: Vec<u8> = entries.iter().flat_map(|(entry, _)| entry.encode()).collect();
    object.write(change.tx, header.entries.saturating_mul(ENTRY as u64), &bytes)?;
    if let Some(counts) = header.counts {
        let bytes: Vec<u8> = entries.iter().flat_map(|(_, free)| free.to_le_bytes()).collect();
        let object = change.mos.object(counts)?;
        object.write(change.tx, header.entries.saturating_mul(4), &bytes)?;
    }
    for (entry, _) in entries {
        header.entries = header.entries.saturating_add(1);
        header.bytes_mapped = header.bytes_mapped.saturating_add(entry.destination.asize);
        header.max_offset = entry.source_end();
    }
    object.set_bonus(change.tx, object.dnode().bonus_type, &header.encode())
}

/// Adds when another stretch was copied.
pub(in crate::pool) fn add_birth(
    change: &MosChange<'_>,
    births: ObjectId,
    birth: Birth,
) -> Result<()> {
    let object = change.mos.object(births)?;
    let count = le64(object.dnode().bonus(), 0)
        .ok_or_else(|| Error::corrupt("the births of a mapping have no count"))?;
    object.write(change.tx, count.saturating_mul(BIRTH_ENTRY as u64), &birth.encode())?;
    let count = count.saturating_add(1);
    object.set_bonus(change.tx, object.dnode().bonus_type, &count.to_le_bytes())
}
