//! Making ZAPs with all their entries at once.
//!
//! Chapter 04, sections 11-15. Invariant: the ZAP is of the kind it would be if its entries had been added one by one,
//! and they have the collision differentiators they would have.

use std::collections::HashMap;

use cenote_format::zap::leaf_build::StoredKey;
use cenote_format::zap::micro::{CHUNK, MAX_BLOCK, MAX_NAME};
use cenote_format::zap::{KeySettings, MicroBuilder, Normalization, Value};

use super::micro::{MOST_OF_ONE_HASH, STEP};
use super::{BlockSink, FAT_BLOCK_SHIFT, check_key, fat};
use crate::txg::Tx;
use crate::{Error, Result};

/// An entry to be stored.
struct New<'a> {
    name: &'a str,
    value: u64,
    hash: u64,
    /// Collision differentiator.
    cd: u32,
}

/// The size of the blocks of an object that becomes a ZAP of so many entries by [`create_filled`].
pub fn filled_block_size(entries: usize) -> u64 {
    let bytes = entries.saturating_add(1).saturating_mul(CHUNK).checked_next_multiple_of(STEP);
    match bytes.filter(|bytes| *bytes <= MAX_BLOCK) {
        Some(bytes) => bytes as u64,
        None => 1 << FAT_BLOCK_SHIFT,
    }
}

/// Makes the empty object in `sink` a ZAP with these numbers, whose names differ. The lowest bit of the salt is set, as
/// OpenZFS does.
///
/// # Errors
/// A name that none can be.
pub fn create_filled<S: BlockSink>(
    sink: &S,
    tx: &Tx,
    salt: u64,
    entries: &[(String, u64)],
) -> Result<()> {
    let settings = KeySettings { salt: salt | 1, normalization: Normalization::NONE, flags: 0 };
    let make = || {
        let new = differentiated(settings, entries)?;
        match fits_micro(sink, &new) {
            true => write_micro(sink, tx, settings, &new),
            false => write_fat(sink, tx, settings, new),
        }
    };
    make().map_err(|error| sink.named(error))
}

fn differentiated(settings: KeySettings, entries: &[(String, u64)]) -> Result<Vec<New<'_>>> {
    let mut alike: HashMap<u64, u32> = HashMap::with_capacity(entries.len());
    let each = entries.iter().map(|(name, value)| {
        check_key(&StoredKey::Name(name.as_bytes()))?;
        let hash = settings.hash_name(name.as_bytes());
        let next = alike.entry(hash).or_default();
        let cd = *next;
        *next = next.saturating_add(1);
        Ok(New { name: name.as_str(), value: *value, hash, cd })
    });
    each.collect()
}

fn fits_micro<S: BlockSink>(sink: &S, new: &[New<'_>]) -> bool {
    let size = usize::try_from(sink.block_size()).unwrap_or(usize::MAX);
    let has_room = size <= MAX_BLOCK && new.len() < size / CHUNK;
    let is_small = |one: &New<'_>| {
        one.name.len() <= MAX_NAME && usize::try_from(one.cd).is_ok_and(|cd| cd <= MOST_OF_ONE_HASH)
    };
    has_room && new.iter().all(is_small)
}

fn write_micro<S: BlockSink>(
    sink: &S,
    tx: &Tx,
    settings: KeySettings,
    new: &[New<'_>],
) -> Result<()> {
    let size = usize::try_from(sink.block_size()).unwrap_or(usize::MAX);
    let mut block = MicroBuilder::new(size, settings.salt, settings.normalization)
        .map_err(|error| Error::invalid(error.to_string()))?;
    for one in new {
        if block.insert(one.name.as_bytes(), one.value, one.cd)?.is_none() {
            return Err(Error::bug("a micro ZAP has less room than it should"));
        }
    }
    sink.write_block(tx, 0, block.into_bytes().into())
}

fn write_fat<S: BlockSink>(
    sink: &S,
    tx: &Tx,
    settings: KeySettings,
    mut new: Vec<New<'_>>,
) -> Result<()> {
    fat::create(sink, tx, FAT_BLOCK_SHIFT, settings)?;
    let mut fat = fat::FatWriter::open(sink, tx)?;
    // One leaf after another.
    new.sort_by_key(|one| (one.hash, one.cd));
    for one in new {
        let key = StoredKey::Name(one.name.as_bytes());
        fat.take_over(key, &Value::of_u64(one.value), one.hash, one.cd)?;
    }
    Ok(())
}
