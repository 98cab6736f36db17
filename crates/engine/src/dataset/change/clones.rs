//! The tables of cloned blocks of a pool being written.
//!
//! Chapter 06, section 21. Files refer to blocks that others have, and give them up one reference at a
//! time; intent logs refer to what they clone until they are freed.
//! Invariant: only entries that the present group met are in memory; when [`LiveClones::sync`] has
//! ended, tables and counters say what the group did. What a damaged table does not tell the references
//! of stays allocated.

use std::collections::{BTreeMap, BTreeSet};
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
    /// Blocks with a reference that no entry counts, for the table was damaged: none of them is freed.
    uncounted: BTreeSet<u64>,
    /// Ranges that were given an entry more for those: their counters are to be written.
    raised: BTreeSet<usize>,
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
    /// others need it: `true`. Otherwise it is to be freed. Where the table is damaged nobody knows, and
    /// the block stays.
    pub fn release(&self, pointer: &BlockPointer) -> Result<bool> {
        let metadata = pointer.level().0 > 0 || pointer.object_type().is_metadata();
        let Some(dva) = pointer.first_dva().filter(|_| !metadata) else { return Ok(false) };
        let mut tables = self.tables.lock();
        let Some(table) = tables.get_mut(&dva.vdev) else { return Ok(false) };
        table.release(&self.mos, dva.offset, || self.size(pointer))
    }

    /// There is one pointer more to a block that is in use, and not in the dedup tables. Where the table is
    /// damaged the block stays for good. The pool has the feature `block_cloning`; `space_of` gives the bytes of a vdev that
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

    /// How many of `pointers`, from the first on, have an entry that can be read, or none, in the tables of
    /// `mos`, which is what the disks hold. For who wants to clone them.
    pub fn countable(&self, mos: &ObjectSet, pointers: &[BlockPointer]) -> usize {
        let mut open = BTreeMap::new();
        let is_countable = |pointer: &&BlockPointer| {
            let Some(dva) = pointer.first_dva() else { return true };
            let entries = open.entry(dva.vdev).or_insert_with(|| {
                let tables = self.tables.lock();
                let entries = tables.get(&dva.vdev).map_or(ObjectId(0), |own| own.header.entries);
                drop(tables);
                // A table that is being made is not on the disks yet, and not damaged.
                let has_any = entries != ObjectId(0);
                has_any.then(|| mos.object(entries).and_then(Zap::open))
            });
            let found = match entries {
                Some(Ok(entries)) => entries.lookup_words(&[dva.offset]).map(drop),
                Some(Err(error)) => Err(error.clone()),
                None => Ok(()),
            };
            !found.is_err_and(|error| error.is_lasting())
        };
        pointers.iter().take_while(is_countable).count()
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
        Ok(Self { object: id, ..Self::of(header, counters) })
    }

    /// A table of a vdev without one, not made yet.
    fn new(ranges: u64) -> Self {
        let range_size = brt::RANGE;
        let header = BrtHeader { ranges, range_size, ..BrtHeader::default() };
        let counters = vec![0; usize::try_from(ranges).unwrap_or(0)];
        Self::of(header, counters)
    }

    fn of(header: BrtHeader, counters: Vec<u16>) -> Self {
        Self {
            object: ObjectId(0),
            header,
            counters,
            entries: None,
            met: BTreeMap::new(),
            raised: BTreeSet::new(),
            uncounted: BTreeSet::new(),
        }
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

    /// One reference more could not be counted: nobody frees the block now, and later lives have to ask
    /// the damaged table, for its range has one entry more.
    fn keep(&mut self, offset: u64) {
        let is_new = self.uncounted.insert(offset);
        if is_new && self.count(offset, |counter| counter.checked_add(1)).is_some() {
            self.header.total = self.header.total.saturating_add(1);
            self.raised.extend(self.range(offset));
        }
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
        match self.meet(mos, offset).map(|entry| entry.is_some()) {
            Ok(true) => {}
            Ok(false) => {
                self.met.insert(offset, Entry { stored: None, before: 0, now: 0 });
            }
            Err(error) if error.is_lasting() => {
                tracing::error!(%error, offset, "a reference to a cloned block is not counted");
                self.keep(offset);
                return Ok(());
            }
            Err(error) => return Err(error),
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
        if self.uncounted.contains(&offset) {
            return Ok(true);
        }
        let counter = self.range(offset).and_then(|range| self.counters.get(range));
        if counter.is_none_or(|counter| *counter == 0) {
            return Ok(false);
        }
        let met = match self.meet(mos, offset) {
            Err(error) if error.is_lasting() => {
                tracing::error!(%error, offset, "a block of a damaged clone table is not freed");
                return Ok(true);
            }
            met => met?,
        };
        let Some(entry) = met else { return Ok(false) };
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
        self.entries = None;
        let (met, mut ranges) = (std::mem::take(&mut self.met), std::mem::take(&mut self.raised));
        let changed = met.iter().filter(|(_, entry)| entry.now != entry.before);
        let changed: Vec<(&u64, &Entry)> = changed.collect();
        if changed.is_empty() && ranges.is_empty() {
            return Ok(());
        }
        if self.object == ObjectId(0) {
            self.make(change, vdev)?;
        }
        self.put_entries(change, &changed)?;
        ranges.extend(changed.iter().filter_map(|(offset, _)| self.range(**offset)));
        let object = change.object(self.object)?;
        for range in ranges {
            if let Some(counter) = self.counters.get(range) {
                object.write(change.tx, range as u64 * COUNTER, &counter.to_le_bytes())?;
            }
        }
        object.set_bonus(change.tx, object.dnode().bonus_type, &self.header.encode())?;
        let is_empty =
            || Ok::<_, Error>(Zap::open(change.object(self.header.entries)?)?.count()? == 0);
        if self.header.total > 0 || !is_empty()? {
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

    /// Writes entries that the group changed.
    fn put_entries(&self, change: &MosChange<'_>, changed: &[(&u64, &Entry)]) -> Result<()> {
        if changed.is_empty() {
            return Ok(());
        }
        let entries = change.object(self.header.entries)?;
        let usual = match change.is_active(IN_WORDS)? {
            true => Value::of_u64(0),
            false => Value::of_bytes(&[0; 8])?,
        };
        for (offset, entry) in changed {
            let key = &[**offset][..];
            if entry.now > 0 {
                let like = entry.stored.as_ref().unwrap_or(&usual);
                let value = brt::reference_value(entry.now, like)?;
                zap::update(&entries, change.tx, key, &value)?;
            } else {
                zap::remove(&entries, change.tx, key)?;
            }
        }
        Ok(())
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
