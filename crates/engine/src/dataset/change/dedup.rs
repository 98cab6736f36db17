//! The tables of deduplicated blocks of a pool being written.
//!
//! Chapter 06, section 20.1: tables of the classic form, as OpenZFS 2.1 keeps them. Invariant: only
//! entries that the present group met are in memory; when [`LiveDedup::sync`] has ended, tables and
//! histograms say what the group did, and copies without references are free.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cenote_codec::checksum::Algorithm as Checksum;
use cenote_codec::compress::{self, Method};
use cenote_format::ddt::{self, CHECKSUMS, Class, Key, Physical, Statistics};
use cenote_format::zap::hash::{FLAG_HASH64, FLAG_PRE_HASHED, FLAG_UINT64_KEY};
use cenote_format::zap::{KeySettings, Normalization, Value};
use cenote_format::{BlockPointer, ObjectId, ObjectType};
use parking_lot::Mutex;

use super::{MosChange, OBJECT_DIRECTORY};
use crate::dataset::Table;
use crate::object::{NewObject, ObjectSet};
use crate::pipe::DedupTables;
use crate::zap::{self, NewFat, Zap};
use crate::{Error, ErrorKind, Result};

/// log2 of the block size of a table.
const TABLE_SHIFT: u32 = 12;
/// log2 of the size of its indirect blocks.
const INDIRECT_SHIFT: u8 = 12;
/// First byte of a value that is compressed with ZLE, written on a little-endian machine.
const STORED_ZLE: u8 = 0x80 | 14;
/// Slots of an entry; copies that OpenZFS no longer makes are in the first.
const SLOTS: usize = 4;
/// The slot of such copies.
const DITTO: usize = 0;

/// The dedup tables of a pool being written, with what the present group changed in them.
pub struct LiveDedup {
    mos: ObjectSet,
    /// By the id of the checksum.
    tables: Mutex<BTreeMap<u8, Tables>>,
    saved: AtomicU64,
}

/// The tables of one checksum.
#[derive(Default)]
struct Tables {
    /// By the number of the class.
    classes: [OneTable; 3],
    /// Likewise.
    histograms: [Vec<Statistics>; 3],
    /// What the group met.
    entries: BTreeMap<Key, Entry>,
}

/// One table.
#[derive(Clone, Default)]
struct OneTable {
    object: Option<ObjectId>,
    /// As the last group left it; opened at the first lookup.
    open: Option<Zap>,
}

/// An entry that the group met.
#[derive(Clone)]
struct Entry {
    /// What the table holds.
    old: Option<(Class, [Physical; SLOTS])>,
    /// What it is to hold.
    slots: [Physical; SLOTS],
}

fn lost(key: &Key) -> Error {
    Error::corrupt(format!("the dedup entry of {:x?} was not looked up", key.checksum))
}

impl LiveDedup {
    /// The tables that the pool of `mos` has.
    pub fn open(mos: ObjectSet) -> Result<Self> {
        let mut all: BTreeMap<u8, Tables> =
            CHECKSUMS.iter().map(|(_, id)| (*id, Tables::default())).collect();
        let directory = match Table::open(&mos, OBJECT_DIRECTORY) {
            // A pool being made.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            directory => directory?,
        };
        if let Some(directory) = directory {
            let statistics = directory.number(ddt::STATISTICS)?.unwrap_or(0);
            let statistics = Table::open(&mos, ObjectId(statistics))?;
            for ((name, _), tables) in CHECKSUMS.iter().zip(all.values_mut()) {
                let places = tables.classes.iter_mut().zip(&mut tables.histograms);
                for (class, (table, histogram)) in Class::ALL.into_iter().zip(places) {
                    let name = ddt::table_name(name, class);
                    table.object = directory.number(&name)?.map(ObjectId);
                    if let Some(statistics) = &statistics
                        && let Some(words) = statistics.numbers_of(&name)?
                    {
                        *histogram = ddt::histogram(&words)?;
                    }
                }
            }
        }
        let live = Self { mos, tables: Mutex::new(all), saved: AtomicU64::new(0) };
        live.count_saved();
        Ok(live)
    }

    /// Bytes that datasets are charged for and that are stored once only.
    pub fn saved(&self) -> u64 {
        self.saved.load(Relaxed)
    }

    fn count_saved(&self) {
        let mut total = Statistics::default();
        for tables in self.tables.lock().values() {
            tables.histograms.iter().flatten().for_each(|bucket| total.add(bucket));
        }
        self.saved.store(total.referenced_dsize.saturating_sub(total.dsize), Relaxed);
    }

    /// The entry of `key`; the first time it is read from the tables.
    fn entry(&self, checksum: u8, key: &Key) -> Result<Option<Entry>> {
        let unknown = || Error::corrupt(format!("a dedup table of checksum {checksum}"));
        let mut classes = {
            let all = self.tables.lock();
            let tables = all.get(&checksum).ok_or_else(unknown)?;
            if let Some(entry) = tables.entries.get(key) {
                return Ok(Some(entry.clone()));
            }
            tables.classes.clone()
        };
        let mut opened = false;
        let mut found = None;
        // A block that is written again is more likely to be listed as a duplicate.
        for class in [Class::Duplicate, Class::Unique, Class::Ditto] {
            let Some(table) = classes.get_mut(class as usize) else { continue };
            let Some(object) = table.object else { continue };
            let open = match &table.open {
                Some(open) => open,
                None => {
                    opened = true;
                    table.open.insert(Zap::open(self.mos.object(object)?)?)
                }
            };
            if let Some(value) = open.lookup_words(&key.to_words())? {
                let ddt::Value::Legacy(slots) = ddt::Value::decode(value.raw(), false)? else {
                    return Err(Error::corrupt("a dedup entry of another form"));
                };
                found = Some(Entry { old: Some((class, *slots)), slots: *slots });
                break;
            }
        }
        let mut all = self.tables.lock();
        let tables = all.get_mut(&checksum).ok_or_else(unknown)?;
        if opened {
            tables.classes = classes;
        }
        if let Some(entry) = &found {
            tables.entries.insert(*key, entry.clone());
        }
        Ok(found)
    }

    /// Changes an entry that the group met, or a new one.
    fn change(
        &self,
        checksum: u8,
        key: &Key,
        change: impl FnOnce(&mut [Physical; SLOTS]) -> Option<()>,
    ) -> Result<()> {
        let mut all = self.tables.lock();
        let tables = all.get_mut(&checksum).ok_or_else(|| lost(key))?;
        let new = || Entry { old: None, slots: [Physical::default(); SLOTS] };
        let entry = tables.entries.entry(*key).or_insert_with(new);
        change(&mut entry.slots).ok_or_else(|| lost(key))
    }

    /// A pointer to a block of the tables is gone: one reference less.
    pub fn release(&self, pointer: &BlockPointer) -> Result<()> {
        let (checksum, key) = (pointer.checksum_id(), Key::of(pointer));
        let [first, second, ..] = pointer.words;
        let birth = pointer.physical_birth();
        let is_meant = |slot: &Physical| {
            let [address, ..] = slot.addresses;
            address == [first, second] && slot.birth == birth && slot.references > 0
        };
        match self.entry(checksum, &key)? {
            Some(entry) if entry.slots.iter().any(is_meant) => {
                self.change(checksum, &key, |slots| {
                    slots.iter_mut().find(|slot| is_meant(slot))?.references -= 1;
                    Some(())
                })
            }
            _ => {
                // Whatever else refers to the block stays readable; OpenZFS leaves it, too.
                tracing::warn!(?pointer, "a block that is in no dedup table is not freed");
                Ok(())
            }
        }
    }

    /// Writes what the group changed into the tables, and frees what has no references any more.
    /// To be called when no block of any dataset is written or freed any more in the group.
    pub fn sync(&self, change: &MosChange<'_>) -> Result<()> {
        let mut changed = false;
        for (name, checksum) in CHECKSUMS {
            let mut tables = match self.tables.lock().get_mut(&checksum) {
                Some(tables) if !tables.entries.is_empty() => std::mem::take(tables),
                _ => continue,
            };
            let entries = std::mem::take(&mut tables.entries);
            let prehashed = Checksum::from_id(checksum).is_some_and(Checksum::dedup_without_verify);
            let mut sync = TableSync { change, tables: &mut tables, name, checksum, prehashed };
            for (key, entry) in entries {
                sync.entry(&key, entry)?;
            }
            sync.finish()?;
            self.tables.lock().insert(checksum, tables);
            changed = true;
        }
        if changed {
            self.count_saved();
        }
        Ok(())
    }
}

impl DedupTables for LiveDedup {
    fn find(&self, checksum: Checksum, key: &Key) -> Result<Option<[Physical; 4]>> {
        Ok(self.entry(checksum.id(), key)?.map(|entry| entry.slots))
    }

    fn refer(&self, checksum: Checksum, key: &Key, copies: u8) -> Result<()> {
        self.change(checksum.id(), key, |slots| {
            let references = &mut slots.get_mut(usize::from(copies))?.references;
            *references = references.checked_add(1)?;
            Some(())
        })
    }

    fn enter(&self, checksum: Checksum, key: &Key, copies: u8, stored: Physical) -> Result<()> {
        self.change(checksum.id(), key, |slots| {
            *slots.get_mut(usize::from(copies))? = stored;
            Some(())
        })
    }
}

/// The tables of one checksum being written.
struct TableSync<'c, 'a> {
    change: &'c MosChange<'a>,
    tables: &'c mut Tables,
    name: &'static str,
    checksum: u8,
    prehashed: bool,
}

impl TableSync<'_, '_> {
    fn entry(&mut self, key: &Key, mut entry: Entry) -> Result<()> {
        if entry.old.is_some_and(|(_, slots)| slots == entry.slots) {
            return Ok(());
        }
        if let Some((class, slots)) = &entry.old {
            self.count(*class, key, slots, Statistics::subtract);
        }
        for (index, slot) in entry.slots.iter_mut().enumerate() {
            if slot.is_used() && (index == DITTO || slot.references == 0) {
                self.change.hooks.free(&key.pointer(slot, self.checksum))?;
                *slot = Physical::default();
            }
        }
        let value = ddt::Value::Legacy(Box::new(entry.slots));
        let class = match value.references() {
            0 => None,
            1 => Some(Class::Unique),
            _ => Some(Class::Duplicate),
        };
        if let Some((old, _)) = entry.old
            && class != Some(old)
        {
            let object = self.change.object(self.object(old)?)?;
            zap::remove(&object, self.change.tx, &key.to_words()[..])?;
        }
        let Some(class) = class else { return Ok(()) };
        self.count(class, key, &entry.slots, Statistics::add);
        let object = self.change.object(self.object(class)?)?;
        let stored = Value::of_bytes(&stored_form(&value))?;
        zap::update(&object, self.change.tx, &key.to_words()[..], &stored)
    }

    fn table(&mut self, class: Class) -> Result<&mut OneTable> {
        let missing = || Error::corrupt("a dedup table of no class");
        self.tables.classes.get_mut(class as usize).ok_or_else(missing)
    }

    fn count(
        &mut self,
        class: Class,
        key: &Key,
        slots: &[Physical],
        how: impl FnOnce(&mut Statistics, &Statistics),
    ) {
        let vdevs = self.change.mos.io().pipe.vdevs();
        let sum = Statistics::of(key, slots, |vdev| vdevs.deflate_ratio(vdev));
        if let (Some((bucket, sum)), Some(histogram)) =
            (sum, self.tables.histograms.get_mut(class as usize))
        {
            histogram.resize(ddt::BUCKETS, Statistics::default());
            if let Some(bucket) = histogram.get_mut(bucket) {
                how(bucket, &sum);
            }
        }
    }

    /// The object of a table; it is made if there is none.
    fn object(&mut self, class: Class) -> Result<ObjectId> {
        if let Some(object) = self.table(class)?.object {
            return Ok(object);
        }
        let change = self.change;
        let new = NewObject {
            indirect_shift: INDIRECT_SHIFT,
            ..NewObject::new(ObjectType::DDT_ZAP, 1 << TABLE_SHIFT)
        };
        let object = change.mos.create_object(change.tx, &new)?;
        let flags = FLAG_HASH64 | FLAG_UINT64_KEY;
        let flags = if self.prehashed { flags | FLAG_PRE_HASHED } else { flags };
        let salt = change.hooks.random();
        let settings = KeySettings { salt, normalization: Normalization::NONE, flags };
        zap::create_fat(&object, change.tx, &NewFat { settings, block_shift: TABLE_SHIFT })?;
        let name = ddt::table_name(self.name, class);
        change.add_number(OBJECT_DIRECTORY, &name, object.id().0)?;
        self.table(class)?.object = Some(object.id());
        Ok(object.id())
    }

    /// Writes the histograms; tables without a single entry go.
    fn finish(self) -> Result<()> {
        let change = self.change;
        let statistics = match change.pool_entry(ddt::STATISTICS)? {
            Some(statistics) => statistics,
            None => {
                let made = change.new_table(ObjectType::DDT_STATISTICS)?;
                change.add_number(OBJECT_DIRECTORY, ddt::STATISTICS, made.0)?;
                made
            }
        };
        let mut entries = 0;
        for table in &mut self.tables.classes {
            table.open = None;
            if let Some(object) = table.object {
                entries += Zap::open(change.object(object)?)?.count()?;
            }
        }
        let tables = self.tables.classes.iter_mut().zip(&mut self.tables.histograms);
        for (class, (table, histogram)) in Class::ALL.into_iter().zip(tables) {
            let Some(object) = table.object else { continue };
            let name = ddt::table_name(self.name, class);
            if entries > 0 {
                histogram.resize(ddt::BUCKETS, Statistics::default());
                let words = ddt::histogram_words(histogram);
                change.put(statistics, &name, &Value::of_u64s(&words)?)?;
                continue;
            }
            change.remove(OBJECT_DIRECTORY, &name)?;
            change.remove(statistics, &name)?;
            change.free_object(object)?;
            *table = OneTable::default();
            histogram.clear();
        }
        Ok(())
    }
}

/// The bytes of a value as they are stored: compressed, if that makes them fewer.
fn stored_form(value: &ddt::Value) -> Vec<u8> {
    let plain = value.encode();
    let Some((_, body)) = plain.split_first() else { return plain };
    let mut out = vec![0; body.len()];
    match out.split_first_mut() {
        Some((first, rest)) => {
            *first = STORED_ZLE;
            match compress::compress(Method::Zle, body, rest) {
                Some(length) => {
                    out.truncate(1 + length);
                    out
                }
                None => plain,
            }
        }
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::Txg;

    use super::*;

    #[test]
    fn values_are_stored_as_openzfs_stores_them() {
        let mut slots = [Physical::default(); SLOTS];
        let addresses = [[8, 0x48036], [0, 0], [0, 0]];
        slots[1] = Physical { addresses, references: 1, birth: Txg(0x6a) };
        let value = ddt::Value::Legacy(Box::new(slots));
        // Vector T6 of chapter 06.
        assert_eq!(hex::encode(stored_form(&value)), "8e7f0008460236800464000146006ac6");
        slots = [Physical {
            addresses: [[u64::MAX; 2]; 3],
            references: u64::MAX,
            birth: Txg(u64::MAX),
        }; SLOTS];
        let value = ddt::Value::Legacy(Box::new(slots));
        let stored = stored_form(&value);
        assert_eq!(ddt::Value::decode(&stored, false).unwrap(), value);
    }
}
