//! The dedup tables on the disks: finding entries, and writing what a group did to them.
//!
//! Chapter 06, section 20: tables of the classic form, as OpenZFS 2.1 keeps them, and of fast dedup,
//! as are all new ones in pools with that feature. What is in the logs of fast dedup moves into the
//! tables with the first group that is written; nothing is added to the logs. Invariant: an entry is
//! in one table, that of its class, and in that table's histogram; a table without entries is gone.
//! Where a table is damaged an entry may be in the one of another class, which everybody reads as well.

use std::collections::{BTreeMap, BTreeSet};

use cenote_codec::checksum::Algorithm as Checksum;
use cenote_codec::compress::{self, Method};
use cenote_format::ddt::{self, Class, Key, LogEntry, LogHeader, Physical, Statistics};
use cenote_format::zap::Value;
use cenote_format::zap::hash::FLAG_PRE_HASHED;
use cenote_format::{ObjectId, ObjectType};

use super::objects::{METADATA_NUMBERS, METADATA_ZAP};
use super::{MosChange, OBJECT_DIRECTORY};
use crate::dataset::{Table, dedup_log};
use crate::object::ObjectSet;
use crate::zap::{self, Zap};
use crate::{Error, Result};

/// log2 of the block sizes of a classic table.
const TABLE_SHIFT: u8 = 12;
/// log2 of the block sizes of a table of fast dedup.
const FAST_TABLE_SHIFT: u8 = 15;
/// Short name of the feature that new tables depend on.
pub(super) const FAST_DEDUP: &str = "fast_dedup";
/// First byte of a value that is compressed with ZLE, written on a little-endian machine.
const STORED_ZLE: u8 = 0x80 | 14;
/// Slots of an entry; copies that OpenZFS no longer makes are in the first.
pub(super) const SLOTS: usize = 4;
/// The slot of such copies.
const DITTO: usize = 0;
/// The slot of an entry of fast dedup, which has but one for any number of copies.
pub(super) const FLAT: usize = 1;

/// The tables of one checksum.
#[derive(Default)]
pub(super) struct Tables {
    /// The entries are those of fast dedup.
    pub flat: bool,
    /// Directory of a table of fast dedup; none if there is no table yet.
    pub own: Option<ObjectId>,
    /// Its logs hold entries, all of which are in `entries`.
    pub logged: bool,
    /// By the number of the class.
    pub classes: [OneTable; 3],
    /// Likewise.
    pub histograms: [Vec<Statistics>; 3],
    /// What the group met.
    pub entries: BTreeMap<Key, Entry>,
    /// Blocks with a reference that no entry counts, for the table was damaged: none of them is freed.
    pub uncounted: BTreeSet<Key>,
}

/// One table.
#[derive(Clone, Default)]
pub(super) struct OneTable {
    pub object: Option<ObjectId>,
    /// As the last group left it; opened at the first lookup.
    pub open: Option<Zap>,
}

/// An entry that the group met.
#[derive(Clone)]
pub(super) struct Entry {
    /// What the table holds.
    pub old: Option<Old>,
    /// What it is to hold.
    pub slots: [Physical; SLOTS],
    /// Seconds since 1970 when it was entered, if that was before this group; only fast dedup
    /// remembers.
    pub since: Option<u64>,
}

/// An entry of a table.
#[derive(Clone, Copy)]
pub(super) struct Old {
    pub class: Class,
    pub slots: [Physical; SLOTS],
    /// It is in the histograms: no log has a later word.
    pub counted: bool,
}

impl Tables {
    /// The tables of the checksum called `name`, and the entries in their logs, which are not taken over
    /// yet.
    pub(super) fn read(
        mos: &ObjectSet,
        directory: &Table,
        statistics: Option<&Table>,
        name: &str,
    ) -> Result<(Self, BTreeMap<Key, LogEntry>)> {
        let mut tables = Self::default();
        let own = match directory.number(&ddt::directory_name(name))? {
            Some(own) => {
                tables.own = Some(ObjectId(own));
                tables.flat = true;
                Some(fast_directory(mos, ObjectId(own))?)
            }
            None => None,
        };
        let place = own.as_ref().unwrap_or(directory);
        let places = tables.classes.iter_mut().zip(&mut tables.histograms);
        for (class, (table, histogram)) in Class::ALL.into_iter().zip(places) {
            let name = ddt::table_name(name, class);
            table.object = place.number(&name)?.map(ObjectId);
            if let Some(words) = statistics.map(|own| own.numbers_of(&name)).transpose()?.flatten()
            {
                *histogram = ddt::histogram(&words)?;
            }
        }
        let logged = own.as_ref().map(|own| dedup_log::read(mos, own, name)).transpose()?;
        Ok((tables, logged.unwrap_or_default()))
    }

    /// There are none yet.
    pub(super) fn are_new(&self) -> bool {
        let has_objects = self.classes.iter().any(|table| table.object.is_some());
        self.own.is_none() && !has_objects && self.entries.is_empty()
    }
}

/// The entry of `key` in the tables `classes`, and whether a table was opened to look for it.
pub(super) fn find(
    mos: &ObjectSet,
    classes: &mut [OneTable; 3],
    flat: bool,
    key: &Key,
) -> Result<(Option<Entry>, bool)> {
    let mut opened = false;
    // A block that is written again is more likely to be listed as a duplicate.
    for class in [Class::Duplicate, Class::Unique, Class::Ditto] {
        let Some(table) = classes.get_mut(class as usize) else { continue };
        let Some(object) = table.object else { continue };
        let open = match &table.open {
            Some(open) => open,
            None => {
                opened = true;
                table.open.insert(Zap::open(mos.object(object)?)?)
            }
        };
        if let Some(value) = open.lookup_words(&key.to_words())? {
            let (slots, since) = match ddt::Value::decode(value.raw(), flat)? {
                ddt::Value::Legacy(slots) => (*slots, None),
                ddt::Value::Flat(slot, since) => (flat_slots(slot), Some(since)),
            };
            let old = Old { class, slots, counted: true };
            return Ok((Some(Entry { old: Some(old), slots, since }), opened));
        }
    }
    Ok((None, opened))
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
pub(super) fn flat_slots(slot: Physical) -> [Physical; SLOTS] {
    let mut slots = [Physical::default(); SLOTS];
    if let Some(place) = slots.get_mut(FLAT) {
        *place = slot;
    }
    slots
}

/// The tables of one checksum being written.
pub(super) struct TableSync<'c, 'a> {
    change: &'c MosChange<'a>,
    tables: &'c mut Tables,
    name: &'static str,
    checksum: u8,
    prehashed: bool,
}

impl<'c, 'a> TableSync<'c, 'a> {
    /// For the tables of the checksum with this name and number.
    pub(super) fn new(
        change: &'c MosChange<'a>,
        tables: &'c mut Tables,
        name: &'static str,
        checksum: u8,
    ) -> Self {
        let prehashed = Checksum::from_id(checksum).is_some_and(Checksum::dedup_without_verify);
        Self { change, tables, name, checksum, prehashed }
    }

    /// Writes what became of an entry into the tables, and frees its copies that have no references any
    /// more.
    pub(super) fn entry(&mut self, key: &Key, mut entry: Entry) -> Result<()> {
        if entry.old.is_some_and(|old| old.counted && old.slots == entry.slots) {
            return Ok(());
        }
        let mut freed = Vec::new();
        for (index, slot) in entry.slots.iter_mut().enumerate() {
            if slot.is_used() && (index == DITTO || slot.references == 0) {
                freed.push(key.pointer(slot, self.checksum));
                *slot = Physical::default();
            }
        }
        let class = match self.put(key, &entry) {
            // The table says what it said, and whoever asks it is told that it is damaged.
            Err(error) if error.is_lasting() && entry.old.is_some() => {
                tracing::error!(%error, "an entry of a damaged dedup table stays as it was");
                return Ok(());
            }
            class => class?,
        };
        if let Some(old) = entry.old.filter(|old| old.counted) {
            self.count(old.class, key, &old.slots, Statistics::subtract);
        }
        if let Some(class) = class {
            self.count(class, key, &entry.slots, Statistics::add);
        }
        freed.iter().try_for_each(|pointer| self.change.hooks.free(pointer))
    }

    /// Puts an entry into the table of its class and takes it out of the one it was in; the class, if it
    /// has references. Nothing is changed by what fails.
    fn put(&mut self, key: &Key, entry: &Entry) -> Result<Option<Class>> {
        let references =
            entry.slots.iter().fold(0, |sum: u64, slot| sum.saturating_add(slot.references));
        let (class, other) = match references {
            0 => (None, None),
            1 => (Some(Class::Unique), Some(Class::Duplicate)),
            _ => (Some(Class::Duplicate), Some(Class::Unique)),
        };
        let old = entry.old.map(|old| old.class);
        if let Some(old) = old.filter(|old| Some(*old) != class) {
            let object = self.change.object(self.object(old)?)?;
            zap::remove(&object, self.change.tx, &key.to_words()[..])?;
        }
        let Some(class) = class else { return Ok(None) };
        match self.store(class, key, entry) {
            // What is in no table has no references, and would be freed.
            Err(error) if error.is_lasting() && old != Some(class) => {
                tracing::error!(%error, "an entry goes into the dedup table of another class");
                let other = other.unwrap_or(class);
                self.store(other, key, entry)?;
                Ok(Some(other))
            }
            stored => stored.map(|()| Some(class)),
        }
    }

    /// Puts an entry into the table of a class.
    fn store(&mut self, class: Class, key: &Key, entry: &Entry) -> Result<()> {
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
    pub(super) fn finish(mut self) -> Result<()> {
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
                entries +=
                    match change.object(object).and_then(Zap::open).and_then(|zap| zap.count()) {
                        // Nobody knows how many: it stays.
                        Err(error) if error.is_lasting() => 1,
                        count => count?,
                    };
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
