//! Blocks with more than one reference: the dedup tables and the table of cloned blocks.
//!
//! Chapter 06, sections 20 and 21. Invariant: tables are streamed; only the entries of dedup logs
//! and nothing else is kept. Copies that an entry of fast dedup has beyond the first are in use even
//! when no pointer names them: those that do may be gone while others are left.

use std::collections::BTreeMap;

use cenote_format::ddt::{self, Class, Key, Physical, Value};
use cenote_format::{BlockPointer, ObjectId, brt};

use super::space::{Extent, Space};
use crate::dataset::{Table, dedup_log};
use crate::object::ObjectSet;
use crate::zap::Zap;
use crate::{Error, Result};

/// What the pool's tables say about shared blocks.
#[derive(Default)]
pub(super) struct SharedBlocks {
    /// Allocated bytes of references beyond the first.
    pub(super) dedup_saved: u64,
    /// Blocks with several references.
    pub(super) dedup_entries: u64,
    /// Their references beyond the first.
    pub(super) dedup_references: u64,
    /// Tables of cloned blocks, by top-level vdev.
    clones: BTreeMap<u32, Zap>,
}

impl SharedBlocks {
    /// Reads the tables, and marks in `space` what only they know of. What cannot be read goes to
    /// `failed`.
    pub(super) fn load(
        mos: &ObjectSet,
        directory: &Table,
        space: Option<&Space>,
        failed: &mut Vec<Error>,
    ) -> Self {
        let mut shared = Self::default();
        for (checksum, _) in ddt::CHECKSUMS {
            if let Err(error) = shared.dedup(mos, directory, checksum, space) {
                failed.push(error);
            }
        }
        match shared.clone_tables(mos, directory) {
            Ok(clones) => shared.clones = clones,
            Err(error) => failed.push(error),
        }
        shared
    }

    fn dedup(
        &mut self,
        mos: &ObjectSet,
        directory: &Table,
        checksum: &str,
        space: Option<&Space>,
    ) -> Result<()> {
        let own = directory.number(&ddt::directory_name(checksum))?.unwrap_or(0);
        let own = Table::open(mos, ObjectId(own))?;
        let flat = match &own {
            Some(own) => own.number(ddt::KEY_FLAGS)?.unwrap_or(0) & ddt::FLAG_FLAT != 0,
            None => false,
        };
        let place = own.as_ref().unwrap_or(directory);
        let logged = match &own {
            Some(own) => dedup_log::read(mos, own, checksum)?,
            None => BTreeMap::new(),
        };
        for class in [Class::Ditto, Class::Duplicate, Class::Unique] {
            // Classic entries with one reference say nothing that their pointer does not.
            if class == Class::Unique && !(flat && space.is_some()) {
                break;
            }
            let Some(id) = place.number(&ddt::table_name(checksum, class))? else { continue };
            for entry in Zap::open(mos.object(ObjectId(id))?)?.entries() {
                let entry = entry?;
                let words: [u64; Key::WORDS] = entry
                    .key
                    .words()
                    .try_into()
                    .map_err(|_| Error::corrupt("a dedup key is not five words long"))?;
                let key = Key::from_words(words);
                if logged.contains_key(&key) {
                    continue;
                }
                match Value::decode(entry.value.raw(), flat)? {
                    Value::Legacy(slots) => slots.iter().for_each(|slot| self.count(&key, slot)),
                    Value::Flat(slot, _) => {
                        self.count_shared(&key, &slot);
                        mark_copies(space, &key, &slot)?;
                    }
                }
            }
        }
        for (key, entry) in &logged {
            self.count_shared(key, &entry.value);
            mark_copies(space, key, &entry.value)?;
        }
        Ok(())
    }

    fn count_shared(&mut self, key: &Key, slot: &Physical) {
        if slot.references > 1 {
            self.count(key, slot);
        }
    }

    fn count(&mut self, key: &Key, slot: &Physical) {
        if slot.references == 0 {
            return;
        }
        let sizes = slot.dvas(key).map(|dva| dva.asize);
        let size = sizes.fold(0, |sum: u64, size| sum.saturating_add(size));
        let saved = size.saturating_mul(slot.references - 1);
        self.dedup_saved = self.dedup_saved.saturating_add(saved);
        self.dedup_entries += 1;
        self.dedup_references = self.dedup_references.saturating_add(slot.references - 1);
    }

    fn clone_tables(&self, mos: &ObjectSet, directory: &Table) -> Result<BTreeMap<u32, Zap>> {
        let mut tables = BTreeMap::new();
        for (name, value) in directory.entries()? {
            let Some(vdev) = name.strip_prefix(brt::VDEV_KEY_PREFIX) else { continue };
            let vdev = vdev.parse().map_err(|_| Error::corrupt("a clone table of no vdev"))?;
            let object = mos.object(ObjectId(value.as_u64().unwrap_or(0)))?;
            let header = brt::BrtHeader::decode(object.dnode().bonus())?;
            if header.entries.0 != 0 {
                tables.insert(vdev, Zap::open(mos.object(header.entries)?)?);
            }
        }
        Ok(tables)
    }

    /// The block is one that may have been met before because it was cloned.
    pub(super) fn is_cloned(&self, bp: &BlockPointer) -> Result<bool> {
        let Some(dva) = bp.first_dva() else { return Ok(false) };
        match self.clones.get(&dva.vdev) {
            Some(table) => Ok(table.lookup_words(&[dva.offset])?.is_some()),
            None => Ok(false),
        }
    }
}

/// Marks the copies of an entry of fast dedup beyond the first in use.
fn mark_copies(space: Option<&Space>, key: &Key, slot: &Physical) -> Result<()> {
    let Some(space) = space.filter(|_| slot.references > 0) else { return Ok(()) };
    // The headers of gangs are smaller than they say; their entries are not given more copies.
    for dva in slot.dvas(key).skip(1).filter(|dva| !dva.gang) {
        space.mark(Extent { vdev: dva.vdev, offset: dva.offset, length: dva.asize })?;
    }
    Ok(())
}
