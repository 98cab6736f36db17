//! The tables of deduplicated blocks of a pool being written.
//!
//! Chapter 06, section 20. Invariant: only entries that the present group met are in memory, and those
//! that logs held; when [`LiveDedup::sync`] has ended, tables and histograms say what the group did,
//! and copies without references are free. What a damaged table does not tell the references of stays
//! allocated.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cenote_codec::checksum::Algorithm as Checksum;
use cenote_format::ddt::{self, CHECKSUMS, Key, LogEntry, Physical, Statistics};
use cenote_format::{BlockPointer, ObjectId};
use parking_lot::Mutex;

use super::dedup_tables::{Entry, FAST_DEDUP, FLAT, SLOTS, TableSync, Tables, find, flat_slots};
use super::{MosChange, object_directory};
use crate::dataset::Table;
use crate::object::ObjectSet;
use crate::pipe::{DedupTables, Known};
use crate::{Error, Result};

/// The dedup tables of a pool being written, with what the present group changed in them.
pub struct LiveDedup {
    mos: ObjectSet,
    /// By the id of the checksum.
    tables: Mutex<BTreeMap<u8, Tables>>,
    saved: AtomicU64,
    /// The pool has the feature fast_dedup, as of the group being written.
    fast: AtomicBool,
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
            for (name, id) in CHECKSUMS {
                let (tables, entries) = Tables::read(&mos, &directory, statistics.as_ref(), name)?;
                all.insert(id, tables);
                logged.push((id, entries));
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

    /// The objects of the tables.
    pub fn objects(&self) -> Vec<ObjectId> {
        let all = self.tables.lock();
        all.values().flat_map(|own| &own.classes).filter_map(|table| table.object).collect()
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
        let (found, opened) = find(&self.mos, &mut classes, flat, key)?;
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
        let mut old = match self.entry(checksum, &logged.key) {
            Err(error) if error.is_lasting() => {
                // Its place in the table cannot be read: who asks for it is told so.
                tracing::error!(%error, "an entry of a dedup log is lost");
                return Ok(());
            }
            entry => entry?.and_then(|entry| entry.old),
        };
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
    /// was taken out of the table (`zpool ddtprune`), so that the pointer is like any other. Where the
    /// table is damaged nobody knows what else refers to the block, and it stays.
    pub fn release(&self, pointer: &BlockPointer) -> Result<bool> {
        let (checksum, key) = (pointer.checksum_id(), Key::of(pointer));
        let [first, second, ..] = pointer.words;
        let birth = pointer.physical_birth();
        let is_meant = |slot: &Physical| {
            let [address, ..] = slot.addresses;
            address == [first, second] && slot.birth == birth
        };
        if self.is_uncounted(checksum, &key) {
            return Ok(true);
        }
        let entry = match self.entry(checksum, &key) {
            Err(error) if error.is_lasting() => {
                tracing::error!(%error, ?pointer, "a block of a damaged dedup table is not freed");
                return Ok(true);
            }
            entry => entry?,
        };
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

    /// A reference to the block could not be counted.
    fn is_uncounted(&self, checksum: u8, key: &Key) -> bool {
        self.tables.lock().get(&checksum).is_some_and(|own| own.uncounted.contains(key))
    }

    /// A second pointer to a block of the tables is made: one reference more. `false` if no table
    /// has it (any more). Where the table is damaged nothing is counted, and the block stays.
    pub fn refer_again(&self, pointer: &BlockPointer) -> Result<bool> {
        let (checksum, key) = (pointer.checksum_id(), Key::of(pointer));
        let [first, second, ..] = pointer.words;
        let is_meant = |slot: &Physical| {
            let [address, ..] = slot.addresses;
            address == [first, second] && slot.references > 0
        };
        let known = match self.entry(checksum, &key) {
            Err(error) if error.is_lasting() => {
                tracing::error!(%error, ?pointer, "a reference to a block is not counted");
                if let Some(tables) = self.tables.lock().get_mut(&checksum) {
                    tables.uncounted.insert(key);
                }
                return Ok(true);
            }
            known => known?,
        };
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
            let mut sync = TableSync::new(change, &mut tables, name, checksum);
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
