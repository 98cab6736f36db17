//! The tables of cloned blocks of a pool being written.
//!
//! Chapter 06, section 21. Files refer to blocks that others have, and give them up one reference at a
//! time; intent logs refer to what they clone until they are freed.
//! Invariant: only entries that the present group met are in memory; when [`LiveClones::sync`] has
//! ended, tables and counters say what the group did.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cenote_format::brt::{self, BrtHeader};
use cenote_format::zap::Value;
use cenote_format::{BlockPointer, ObjectId};
use parking_lot::Mutex;

use super::objects::{METADATA_NUMBERS, METADATA_ZAP};
use super::{Meter, MosChange, OBJECT_DIRECTORY, object_directory};
use crate::object::ObjectSet;
use crate::zap::{self, Zap};
use crate::{Error, Result};

/// Short name of the feature that counts the tables.
const CLONING: &str = "block_cloning";
/// Of the one that counts those whose entries are words, in which no byte order is left open.
const IN_WORDS: &str = "block_cloning_endian";
/// Bytes of a counter.
const COUNTER: u64 = 2;
/// Bytes of a block of counters.
const COUNTERS_BLOCK: u64 = 32 << 10;
/// log2 of the block sizes of the ZAP of entries.
const ENTRIES_SHIFT: u8 = 13;

/// The tables of cloned blocks of a pool being written, with what the present group changed in them.
pub struct LiveClones {
    mos: ObjectSet,
    deflated: bool,
    /// By vdev.
    tables: Mutex<BTreeMap<u32, CloneTable>>,
    /// The counts of features were compared with the tables that were there.
    is_counted: AtomicBool,
}

/// The table of one vdev.
struct CloneTable {
    /// Holds the counters and the header; 0 once the table is gone.
    object: ObjectId,
    header: BrtHeader,
    /// Entries by range.
    counters: Vec<u16>,
    /// The entries as the last group left them; opened at the first lookup.
    entries: Option<Zap>,
    /// What the group met, by offset.
    met: BTreeMap<u64, Entry>,
}

/// References to a block beyond the first.
struct Entry {
    /// How the table has it.
    stored: Option<Value>,
    before: u64,
    now: u64,
}

/// Bytes of a vdev, whose space ends with its last metaslab.
fn space(mos: &ObjectSet, vdev: u32) -> u64 {
    let vdevs = mos.io().pipe.vdevs();
    let config = vdevs.topology().top(vdev).and_then(|config| config.top.as_ref());
    let shift = config.map_or(0, |top| top.metaslab_shift);
    let metaslabs = 1_u64.checked_shl(u32::try_from(shift).unwrap_or(0)).unwrap_or(1);
    let size = vdevs.top_asize(vdev).unwrap_or(0);
    size - size % metaslabs
}

impl LiveClones {
    /// The tables that the pool of `mos`, of version `version`, has.
    pub fn open(mos: ObjectSet, version: u64) -> Result<Self> {
        let mut tables = BTreeMap::new();
        let entries = object_directory(&mos)?.map(|directory| directory.entries()).transpose()?;
        for (name, value) in entries.unwrap_or_default() {
            let Some(vdev) = name.strip_prefix(brt::VDEV_KEY_PREFIX) else { continue };
            let wrong = || Error::corrupt("a clone table of no vdev, or that is no object");
            let vdev = vdev.parse().map_err(|_| wrong())?;
            let object = ObjectId(value.as_u64().ok_or_else(wrong)?);
            tables.insert(vdev, CloneTable::open(&mos, object, vdev)?);
        }
        let deflated = Meter::of(&mos, version)?.deflated;
        let (tables, is_counted) = (Mutex::new(tables), AtomicBool::new(false));
        Ok(Self { mos, deflated, tables, is_counted })
    }

    /// The objects that have the entries.
    pub fn objects(&self) -> Vec<ObjectId> {
        let all = self.tables.lock();
        all.values().map(|own| own.header.entries).filter(|id| *id != ObjectId(0)).collect()
    }

    /// Bytes that datasets are charged for and that are stored once only.
    pub fn saved(&self) -> u64 {
        let tables = self.tables.lock();
        tables.values().fold(0, |sum, table| sum.saturating_add(table.header.saved_space))
    }

    /// A pointer to a block is gone. If the block was cloned it has one reference less, and the
    /// others need it: `true`. Otherwise it is to be freed.
    pub fn release(&self, pointer: &BlockPointer) -> Result<bool> {
        let metadata = pointer.level().0 > 0 || pointer.object_type().is_metadata();
        let Some(dva) = pointer.first_dva().filter(|_| !metadata) else { return Ok(false) };
        let mut tables = self.tables.lock();
        let Some(table) = tables.get_mut(&dva.vdev) else { return Ok(false) };
        table.release(&self.mos, dva.offset, || self.size(pointer))
    }

    /// There is one pointer more to a block that is in use, and not in the dedup tables. The pool has
    /// the feature `block_cloning`; `space_of` gives the bytes of a vdev that
    /// is not removed.
    pub fn refer(
        &self,
        pointer: &BlockPointer,
        space_of: impl Fn(u32) -> Option<u64>,
    ) -> Result<()> {
        let Some(dva) = pointer.first_dva() else { return Ok(()) };
        let space = space_of(dva.vdev).unwrap_or_else(|| space(&self.mos, dva.vdev));
        let ranges = space.div_ceil(brt::RANGE);
        let mut tables = self.tables.lock();
        let table = tables.entry(dva.vdev).or_insert_with(|| CloneTable::new(ranges));
        let referred = table.refer(&self.mos, dva.offset, self.size(pointer), ranges);
        referred.map_err(|error| error.at_pointer(pointer))
    }

    fn size(&self, pointer: &BlockPointer) -> u64 {
        let meter = Meter { vdevs: self.mos.io().pipe.vdevs(), deflated: self.deflated };
        meter.space(pointer).used
    }

    /// Writes what the group changed into the tables. To be called when no block of any dataset is
    /// freed any more in the group.
    pub fn sync(&self, change: &MosChange<'_>) -> Result<()> {
        let mut tables = self.tables.lock();
        if !self.is_counted.load(Relaxed) {
            let stored = tables.values().filter(|table| table.object != ObjectId(0));
            count_in_words(change, stored.count() as u64)?;
            self.is_counted.store(true, Relaxed);
        }
        for (vdev, table) in tables.iter_mut() {
            table.sync(change, *vdev)?;
        }
        tables.retain(|_, table| table.object != ObjectId(0));
        Ok(())
    }
}

/// Where entries are words, all `tables` are of that form: puts a count right that says otherwise, as
/// earlier versions of this program left it. With a count that is too low, the end of one table would
/// make OpenZFS read the others wrong.
fn count_in_words(change: &MosChange<'_>, tables: u64) -> Result<()> {
    match change.feature_count(IN_WORDS)? {
        Some(count) if count != 0 && count != tables => change.set_references(IN_WORDS, tables),
        _ => Ok(()),
    }
}

impl CloneTable {
    fn open(mos: &ObjectSet, id: ObjectId, vdev: u32) -> Result<Self> {
        let object = mos.object(id)?;
        let wrong = |reason: &str| Error::corrupt(reason).at_object(0, id.0);
        let header = BrtHeader::decode(object.dnode().bonus())
            .map_err(|error| Error::from(error).at_object(0, id.0))?;
        if header.byte_order != 0 {
            // Nothing tells the order of the counts in the ZAP.
            let reason = "cloned blocks of a big-endian machine";
            return Err(Error::only_read(reason));
        }
        let most = space(mos, vdev).div_ceil(header.range_size.max(brt::RANGE));
        if header.range_size < brt::RANGE || header.ranges > most {
            return Err(wrong("a clone table of more ranges than the device has"));
        }
        let length = usize::try_from(header.ranges * COUNTER).unwrap_or(usize::MAX);
        let counters = header.counters(&object.read_vec(0, length)?)?;
        let sum = counters.iter().fold(0, |sum, counter| sum + u64::from(*counter));
        if sum != header.total {
            return Err(wrong("a clone table has other entries than its ranges"));
        }
        Ok(Self { object: id, header, counters, entries: None, met: BTreeMap::new() })
    }

    /// A table of a vdev without one, not made yet.
    fn new(ranges: u64) -> Self {
        let range_size = brt::RANGE;
        let header = BrtHeader { ranges, range_size, ..BrtHeader::default() };
        let counters = vec![0; usize::try_from(ranges).unwrap_or(0)];
        Self { object: ObjectId(0), header, counters, entries: None, met: BTreeMap::new() }
    }

    fn range(&self, offset: u64) -> Option<usize> {
        usize::try_from(offset.checked_div(self.header.range_size)?).ok()
    }

    fn count(&mut self, offset: u64, change: impl FnOnce(u16) -> Option<u16>) -> Option<()> {
        let range = self.range(offset)?;
        let counter = self.counters.get_mut(range)?;
        *counter = change(*counter)?;
        Some(())
    }

    /// The entry at `offset`, if the group met it or the table has it.
    fn meet(&mut self, mos: &ObjectSet, offset: u64) -> Result<Option<&mut Entry>> {
        if !self.met.contains_key(&offset) && self.header.entries != ObjectId(0) {
            let entries = match &self.entries {
                Some(entries) => entries,
                None => self.entries.insert(Zap::open(mos.object(self.header.entries)?)?),
            };
            if let Some(stored) = entries.lookup_words(&[offset])? {
                let before = brt::reference_count(&stored)?;
                self.met.insert(offset, Entry { stored: Some(stored), before, now: before });
            }
        }
        Ok(self.met.get_mut(&offset))
    }

    fn refer(&mut self, mos: &ObjectSet, offset: u64, size: u64, ranges: u64) -> Result<()> {
        let lost = || Error::corrupt("a cloned block lies where its device has no space");
        if self.header.range_size == brt::RANGE && ranges > self.header.ranges {
            // The device has grown.
            self.header.ranges = ranges;
            self.counters.resize(usize::try_from(ranges).map_err(|_| lost())?, 0);
        }
        if self.range(offset).is_none_or(|range| range >= self.counters.len()) {
            return Err(lost());
        }
        if self.meet(mos, offset)?.is_none() {
            self.met.insert(offset, Entry { stored: None, before: 0, now: 0 });
        }
        let Some(entry) = self.met.get_mut(&offset) else { return Err(lost()) };
        entry.now = entry.now.checked_add(1).ok_or_else(lost)?;
        let is_first = entry.now == 1;
        if is_first {
            self.count(offset, |counter| counter.checked_add(1)).ok_or_else(lost)?;
        }
        let header = &mut self.header;
        header.saved_space = header.saved_space.saturating_add(size);
        if is_first {
            header.total = header.total.saturating_add(1);
            header.used_space = header.used_space.saturating_add(size);
        }
        Ok(())
    }

    fn release(
        &mut self,
        mos: &ObjectSet,
        offset: u64,
        size: impl FnOnce() -> u64,
    ) -> Result<bool> {
        let counter = self.range(offset).and_then(|range| self.counters.get(range));
        if counter.is_none_or(|counter| *counter == 0) {
            return Ok(false);
        }
        let Some(entry) = self.meet(mos, offset)? else { return Ok(false) };
        if entry.now == 0 {
            return Ok(false);
        }
        entry.now -= 1;
        let (size, is_last) = (size(), entry.now == 0);
        let header = &mut self.header;
        header.saved_space = header.saved_space.saturating_sub(size);
        if is_last {
            self.count(offset, |counter| counter.checked_sub(1));
            let header = &mut self.header;
            header.total = header.total.saturating_sub(1);
            header.used_space = header.used_space.saturating_sub(size);
        }
        Ok(true)
    }

    fn sync(&mut self, change: &MosChange<'_>, vdev: u32) -> Result<()> {
        if self.met.is_empty() {
            return Ok(());
        }
        self.entries = None;
        let met = std::mem::take(&mut self.met);
        let mut changed = met.iter().filter(|(_, entry)| entry.now != entry.before).peekable();
        if changed.peek().is_none() {
            return Ok(());
        }
        if self.object == ObjectId(0) {
            self.make(change, vdev)?;
        }
        let (entries, object) = (change.object(self.header.entries)?, change.object(self.object)?);
        let usual = match change.is_active(IN_WORDS)? {
            true => Value::of_u64(0),
            false => Value::of_bytes(&[0; 8])?,
        };
        for (offset, entry) in changed {
            let key = &[*offset][..];
            if entry.now > 0 {
                let like = entry.stored.as_ref().unwrap_or(&usual);
                let value = brt::reference_value(entry.now, like)?;
                zap::update(&entries, change.tx, key, &value)?;
            } else {
                zap::remove(&entries, change.tx, key)?;
            }
            if let Some(range) = self.range(*offset)
                && let Some(counter) = self.counters.get(range)
            {
                object.write(change.tx, range as u64 * COUNTER, &counter.to_le_bytes())?;
            }
        }
        object.set_bonus(change.tx, object.dnode().bonus_type, &self.header.encode())?;
        if self.header.total > 0 || Zap::open(entries)?.count()? > 0 {
            return Ok(());
        }
        change.free_object(self.header.entries)?;
        change.free_object(self.object)?;
        change.remove(OBJECT_DIRECTORY, &brt::vdev_key(vdev.into()))?;
        self.object = ObjectId(0);
        if change.is_active(IN_WORDS)? {
            change.remove_reference(IN_WORDS)?;
        }
        change.remove_reference(CLONING)
    }

    /// Makes the objects of the table.
    fn make(&mut self, change: &MosChange<'_>, vdev: u32) -> Result<()> {
        self.header.entries = change.new_word_table(METADATA_ZAP, ENTRIES_SHIFT, 0)?;
        let header = self.header.encode();
        let object =
            change.new_object(METADATA_NUMBERS, COUNTERS_BLOCK, METADATA_NUMBERS, header)?;
        self.object = object;
        change.add_number(OBJECT_DIRECTORY, &brt::vdev_key(vdev.into()), object.0)?;
        // All tables have entries of one form: the first decides.
        let is_first = !change.is_active(CLONING)?;
        if change.is_active(IN_WORDS)? || is_first && change.is_enabled(IN_WORDS)? {
            change.add_reference(IN_WORDS)?;
        }
        change.add_reference(CLONING)
    }
}
