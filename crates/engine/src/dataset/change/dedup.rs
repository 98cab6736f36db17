//! The tables of deduplicated blocks of a pool being written.
//!
//! Chapter 06, section 20: tables of the classic form, as OpenZFS 2.1 keeps them, and of fast dedup,
//! as are all new ones in pools with that feature. What is in the logs of fast dedup moves into the
//! tables with the first group that is written; nothing is added to the logs. Invariant: only entries
//! that the present group met are in memory, and those that logs held; when [`LiveDedup::sync`] has
//! ended, tables and histograms say what the group did, and copies without references are free.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cenote_codec::checksum::Algorithm as Checksum;
use cenote_codec::compress::{self, Method};
use cenote_format::ddt::{self, CHECKSUMS, Class, Key, LogEntry, LogHeader, Physical, Statistics};
use cenote_format::zap::Value;
use cenote_format::zap::hash::FLAG_PRE_HASHED;
use cenote_format::{BlockPointer, ObjectId, ObjectType};
use parking_lot::Mutex;

use super::tables::{METADATA_NUMBERS, METADATA_ZAP};
use super::{MosChange, OBJECT_DIRECTORY, object_directory};
use crate::dataset::{Table, dedup_log};
use crate::object::ObjectSet;
use crate::pipe::{DedupTables, Known};
use crate::zap::{self, Zap};
use crate::{Error, Result};

/// log2 of the block sizes of a classic table.
const TABLE_SHIFT: u8 = 12;
/// log2 of the block sizes of a table of fast dedup.
const FAST_TABLE_SHIFT: u8 = 15;
/// Short name of the feature that new tables depend on.
const FAST_DEDUP: &str = "fast_dedup";
/// First byte of a value that is compressed with ZLE, written on a little-endian machine.
const STORED_ZLE: u8 = 0x80 | 14;
/// Slots of an entry; copies that OpenZFS no longer makes are in the first.
const SLOTS: usize = 4;
/// The slot of such copies.
const DITTO: usize = 0;
/// The slot of an entry of fast dedup, which has but one for any number of copies.
const FLAT: usize = 1;

/// The dedup tables of a pool being written, with what the present group changed in them.
pub struct LiveDedup {
    mos: ObjectSet,
    /// By the id of the checksum.
    tables: Mutex<BTreeMap<u8, Tables>>,
    saved: AtomicU64,
    /// The pool has the feature fast_dedup, as of the group being written.
    fast: AtomicBool,
}

/// The tables of one checksum.
#[derive(Default)]
struct Tables {
    /// The entries are those of fast dedup.
    flat: bool,
    /// Directory of a table of fast dedup; none if there is no table yet.
    own: Option<ObjectId>,
    /// Its logs hold entries, all of which are in `entries`.
    logged: bool,
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
    old: Option<Old>,
    /// What it is to hold.
    slots: [Physical; SLOTS],
    /// Seconds since 1970 when it was entered, if that was before this group; only fast dedup
    /// remembers.
    since: Option<u64>,
}

/// An entry of a table.
#[derive(Clone, Copy)]
struct Old {
    class: Class,
    slots: [Physical; SLOTS],
    /// It is in the histograms: no log has a later word.
    counted: bool,
}

fn lost(key: &Key) -> Error {
    Error::bug(format!("the dedup entry of {:x?} was not looked up", key.checksum))
}

impl LiveDedup {
    /// The tables that the pool of `mos` has.
    pub fn open(mos: ObjectSet) -> Result<Self> {
        let mut all: BTreeMap<u8, Tables> =
            CHECKSUMS.iter().map(|(_, id)| (*id, Tables::default())).collect();
        let mut logged = Vec::new();
        if let Some(directory) = object_directory(&mos)? {
            let statistics = directory.number(ddt::STATISTICS)?.unwrap_or(0);
            let statistics = Table::open(&mos, ObjectId(statistics))?;
            for ((name, id), tables) in CHECKSUMS.iter().zip(all.values_mut()) {
                let own = match directory.number(&ddt::directory_name(name))? {
                    Some(own) => {
                        tables.own = Some(ObjectId(own));
                        tables.flat = true;
                        Some(fast_directory(&mos, ObjectId(own))?)
                    }
                    None => None,
                };
                let place = own.as_ref().unwrap_or(&directory);
                let places = tables.classes.iter_mut().zip(&mut tables.histograms);
                for (class, (table, histogram)) in Class::ALL.into_iter().zip(places) {
                    let name = ddt::table_name(name, class);
                    table.object = place.number(&name)?.map(ObjectId);
                    if let Some(statistics) = &statistics
                        && let Some(words) = statistics.numbers_of(&name)?
                    {
                        *histogram = ddt::histogram(&words)?;
                    }
                }
                if let Some(own) = &own {
                    logged.push((*id, dedup_log::read(&mos, own, name)?));
                }
            }
        }
        let (saved, fast) = (AtomicU64::new(0), AtomicBool::new(false));
        let live = Self { mos, tables: Mutex::new(all), saved, fast };
        for (checksum, entries) in logged {
            entries.into_values().try_for_each(|entry| live.take_over(checksum, &entry))?;
        }
        live.count_saved();
        Ok(live)
    }

    /// A group begins to be written: tables that it makes are of fast dedup if the pool has the
    /// feature by now.
    pub fn begin(&self, change: &MosChange<'_>) -> Result<()> {
        // A pool that is being created has no features yet.
        let fast = object_directory(change.mos)?.is_some() && change.is_enabled(FAST_DEDUP)?;
        self.fast.store(fast, Relaxed);
        self.tables.lock().values_mut().filter(|tables| tables.are_new()).for_each(|tables| {
            tables.flat = fast;
        });
        Ok(())
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
        let (mut classes, flat) = {
            let all = self.tables.lock();
            let tables = all.get(&checksum).ok_or_else(unknown)?;
            if let Some(entry) = tables.entries.get(key) {
                return Ok(Some(entry.clone()));
            }
            (tables.classes.clone(), tables.flat)
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
                let (slots, since) = match ddt::Value::decode(value.raw(), flat)? {
                    ddt::Value::Legacy(slots) => (*slots, None),
                    ddt::Value::Flat(slot, since) => (flat_slots(slot), Some(since)),
                };
                let old = Old { class, slots, counted: true };
                found = Some(Entry { old: Some(old), slots, since });
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

    /// Takes an entry out of a log: the first group writes it into the table.
    fn take_over(&self, checksum: u8, logged: &LogEntry) -> Result<()> {
        let mut old = self.entry(checksum, &logged.key)?.and_then(|entry| entry.old);
        if let Some(old) = &mut old {
            old.counted = false;
        }
        if let Some(tables) = self.tables.lock().get_mut(&checksum) {
            tables.logged = true;
            let slots = match logged.value.references {
                0 => Default::default(),
                _ => flat_slots(logged.value),
            };
            tables.entries.insert(logged.key, Entry { old, slots, since: Some(logged.since) });
        }
        Ok(())
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
        let new = || Entry { old: None, slots: Default::default(), since: None };
        let entry = tables.entries.entry(*key).or_insert_with(new);
        change(&mut entry.slots).ok_or_else(|| lost(key))
    }

    fn is_flat(&self, checksum: Checksum) -> bool {
        self.tables.lock().get(&checksum.id()).is_some_and(|tables| tables.flat)
    }

    /// The slot of `copies` copies.
    fn index(&self, checksum: Checksum, copies: u8) -> usize {
        if self.is_flat(checksum) { FLAT } else { copies.into() }
    }

    /// A pointer that says its block is in a table is gone: one reference less. `false` if the entry
    /// was taken out of the table (`zpool ddtprune`), so that the pointer is like any other.
    pub fn release(&self, pointer: &BlockPointer) -> Result<bool> {
        let (checksum, key) = (pointer.checksum_id(), Key::of(pointer));
        let [first, second, ..] = pointer.words;
        let birth = pointer.physical_birth();
        let is_meant = |slot: &Physical| {
            let [address, ..] = slot.addresses;
            address == [first, second] && slot.birth == birth
        };
        let entry = self.entry(checksum, &key)?;
        match entry.iter().flat_map(|entry| &entry.slots).find(|slot| is_meant(slot)) {
            Some(slot) if slot.references > 0 => {
                self.change(checksum, &key, |slots| {
                    slots.iter_mut().find(|slot| is_meant(slot))?.references -= 1;
                    Some(())
                })?;
                Ok(true)
            }
            None if self.fast.load(Relaxed) => Ok(false),
            _ => {
                // Whatever else refers to the block stays readable; OpenZFS leaves it, too.
                tracing::warn!(?pointer, "a block that is in no dedup table is not freed");
                Ok(true)
            }
        }
    }

    /// A second pointer to a block of the tables is made: one reference more. `false` if no table
    /// has it (any more).
    pub fn refer_again(&self, pointer: &BlockPointer) -> Result<bool> {
        let (checksum, key) = (pointer.checksum_id(), Key::of(pointer));
        let [first, second, ..] = pointer.words;
        let is_meant = |slot: &Physical| {
            let [address, ..] = slot.addresses;
            address == [first, second] && slot.references > 0
        };
        let known = self.entry(checksum, &key)?;
        if !known.is_some_and(|entry| entry.slots.iter().any(is_meant)) {
            return Ok(false);
        }
        self.change(checksum, &key, |slots| {
            let slot = slots.iter_mut().find(|slot| is_meant(slot))?;
            slot.references = slot.references.checked_add(1)?;
            Some(())
        })?;
        Ok(true)
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

impl Tables {
    /// There are none yet.
    fn are_new(&self) -> bool {
        let has_objects = self.classes.iter().any(|table| table.object.is_some());
        self.own.is_none() && !has_objects && self.entries.is_empty()
    }
}

/// The directory of a table of fast dedup.
fn fast_directory(mos: &ObjectSet, id: ObjectId) -> Result<Table> {
    let lost = || Error::corrupt("the directory of a dedup table is lost").at_object(0, id.0);
    let own = Table::open(mos, id)?.ok_or_else(lost)?;
    let version = own.number(ddt::KEY_VERSION)?.unwrap_or(0);
    let flags = own.number(ddt::KEY_FLAGS)?.unwrap_or(0);
    let known = ddt::FLAG_FLAT | ddt::FLAG_LOG;
    if version != ddt::FAST_VERSION || flags & ddt::FLAG_FLAT == 0 || flags & !known != 0 {
        let reason = format!(
            "the pool holds a dedup table of version {version} with flags {flags:#x}: writing such a \
             pool is not supported yet"
        );
        return Err(Error::only_read(reason).at_object(0, id.0));
    }
    Ok(own)
}

/// The slots of an entry of fast dedup.
fn flat_slots(slot: Physical) -> [Physical; SLOTS] {
    let mut slots = [Physical::default(); SLOTS];
    if let Some(place) = slots.get_mut(FLAT) {
        *place = slot;
    }
    slots
}

impl DedupTables for LiveDedup {
    fn find(&self, checksum: Checksum, key: &Key, copies: u8) -> Result<Option<Known>> {
        let Some(entry) = self.entry(checksum.id(), key)? else { return Ok(None) };
        let used = |slot: &Physical| slot.is_used().then_some(*slot);
        let Some(any) = entry.slots.iter().find_map(used) else { return Ok(None) };
        if self.is_flat(checksum) {
            let fits = any.dvas(key).count() >= usize::from(copies);
            return Ok(Some(Known { any, slot: fits.then_some(any), grows: true }));
        }
        let slot = entry.slots.get(usize::from(copies)).and_then(used);
        Ok(Some(Known { any, slot, grows: false }))
    }

    fn refer(&self, checksum: Checksum, key: &Key, copies: u8) -> Result<()> {
        let index = self.index(checksum, copies);
        self.change(checksum.id(), key, |slots| {
            let references = &mut slots.get_mut(index)?.references;
            *references = references.checked_add(1)?;
            Some(())
        })
    }

    fn enter(&self, checksum: Checksum, key: &Key, copies: u8, stored: Physical) -> Result<()> {
        let index = self.index(checksum, copies);
        self.change(checksum.id(), key, |slots| {
            *slots.get_mut(index)? = stored;
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
        if entry.old.is_some_and(|old| old.counted && old.slots == entry.slots) {
            return Ok(());
        }
        if let Some(old) = entry.old.filter(|old| old.counted) {
            self.count(old.class, key, &old.slots, Statistics::subtract);
        }
        for (index, slot) in entry.slots.iter_mut().enumerate() {
            if slot.is_used() && (index == DITTO || slot.references == 0) {
                self.change.hooks.free(&key.pointer(slot, self.checksum))?;
                *slot = Physical::default();
            }
        }
        let references =
            entry.slots.iter().fold(0, |sum: u64, slot| sum.saturating_add(slot.references));
        let class = match references {
            0 => None,
            1 => Some(Class::Unique),
            _ => Some(Class::Duplicate),
        };
        if let Some(old) = entry.old.filter(|old| Some(old.class) != class) {
            let object = self.change.object(self.object(old.class)?)?;
            zap::remove(&object, self.change.tx, &key.to_words()[..])?;
        }
        let Some(class) = class else { return Ok(()) };
        self.count(class, key, &entry.slots, Statistics::add);
        let value = match entry.slots.get(FLAT).filter(|_| self.tables.flat) {
            Some(slot) => ddt::Value::Flat(*slot, entry.since.unwrap_or(self.change.now)),
            None => ddt::Value::Legacy(Box::new(entry.slots)),
        };
        let object = self.change.object(self.object(class)?)?;
        let stored = Value::of_bytes(&stored_form(&value))?;
        zap::update(&object, self.change.tx, &key.to_words()[..], &stored)
    }

    /// Where the tables are listed; a directory of fast dedup is made if there is none.
    fn place(&mut self) -> Result<ObjectId> {
        match self.tables.own {
            _ if !self.tables.flat => Ok(OBJECT_DIRECTORY),
            Some(own) => Ok(own),
            None => {
                let own = self.make_directory()?;
                self.tables.own = Some(own);
                Ok(own)
            }
        }
    }

    /// Makes a directory of fast dedup, with two empty logs.
    fn make_directory(&self) -> Result<ObjectId> {
        let change = self.change;
        let own = change.new_table(METADATA_ZAP)?;
        change.add_number(OBJECT_DIRECTORY, &ddt::directory_name(self.name), own.0)?;
        change.add_number(own, ddt::KEY_VERSION, ddt::FAST_VERSION)?;
        change.add_number(own, ddt::KEY_FLAGS, ddt::FLAG_FLAT | ddt::FLAG_LOG)?;
        for (index, flushing) in [(0, false), (1, true)] {
            let header = LogHeader { flushing, first_txg: change.tx.txg(), ..LogHeader::default() };
            let (kind, size) = (METADATA_NUMBERS, ddt::LOG_BLOCK as u64);
            let log = change.new_object(kind, size, METADATA_NUMBERS, header.encode())?;
            change.add_number(own, &ddt::log_name(self.name, index), log.0)?;
        }
        change.add_reference(FAST_DEDUP)?;
        Ok(own)
    }

    /// Frees the directory of fast dedup, in which no table is left, with its logs.
    fn free_directory(&mut self) -> Result<()> {
        let (change, Some(own)) = (self.change, self.tables.own.take()) else { return Ok(()) };
        for index in 0..2 {
            if let Some(log) = change.number(own, &ddt::log_name(self.name, index))? {
                change.free_if_any(ObjectId(log))?;
            }
        }
        change.remove(OBJECT_DIRECTORY, &ddt::directory_name(self.name))?;
        change.free_object(own)?;
        change.remove_reference(FAST_DEDUP)
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
        let flags = if self.prehashed { FLAG_PRE_HASHED } else { 0 };
        let shift = if self.tables.flat { FAST_TABLE_SHIFT } else { TABLE_SHIFT };
        let object = change.new_word_table(ObjectType::DDT_ZAP, shift, flags)?;
        let name = ddt::table_name(self.name, class);
        change.add_number(self.place()?, &name, object.0)?;
        self.table(class)?.object = Some(object);
        Ok(object)
    }

    /// Empties the logs: the tables have what was in them.
    fn empty_logs(&self, place: ObjectId) -> Result<()> {
        let change = self.change;
        let own = fast_directory(change.mos, place)?;
        for (object, header) in dedup_log::logs(change.mos, &own, self.name)? {
            object.free_range(change.tx, 0, u64::MAX)?;
            // Which of them is written into the table next stays as it is: OpenZFS wants one to be.
            let header = LogHeader { length: 0, checkpoint: None, ..header };
            object.set_bonus(change.tx, object.dnode().bonus_type, &header.encode())?;
        }
        Ok(())
    }

    /// Writes the histograms; tables without a single entry go.
    fn finish(mut self) -> Result<()> {
        let (change, place) = (self.change, self.tables.own.unwrap_or(OBJECT_DIRECTORY));
        if std::mem::take(&mut self.tables.logged) {
            self.empty_logs(place)?;
        }
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
            change.remove(place, &name)?;
            change.remove(statistics, &name)?;
            change.free_object(object)?;
            *table = OneTable::default();
            histogram.clear();
        }
        // The next table is of the form that the pool's features ask for then.
        if entries == 0 { self.free_directory() } else { Ok(()) }
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
