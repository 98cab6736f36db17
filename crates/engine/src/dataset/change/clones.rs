//! The tables of cloned blocks of a pool being written.
//!
//! Chapter 06, section 21. Nothing is cloned here yet, but blocks that were are given up one reference
//! at a time. Invariant: only entries that the present group met are in memory; when
//! [`LiveClones::sync`] has ended, tables and counters say what the group did.

use std::collections::BTreeMap;

use cenote_format::brt::{self, BrtHeader};
use cenote_format::zap::Value;
use cenote_format::{BlockPointer, ObjectId};
use parking_lot::Mutex;

use super::{Meter, MosChange, OBJECT_DIRECTORY};
use crate::dataset::Table;
use crate::object::ObjectSet;
use crate::zap::{self, Zap};
use crate::{Error, ErrorKind, Result};

/// Bytes of a counter.
const COUNTER: u64 = 2;

/// The tables of cloned blocks of a pool being written, with what the present group changed in them.
pub struct LiveClones {
    mos: ObjectSet,
    deflated: bool,
    /// By vdev.
    tables: Mutex<BTreeMap<u32, CloneTable>>,
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
    stored: Value,
    before: u64,
    now: u64,
}

impl LiveClones {
    /// The tables that the pool of `mos`, of version `version`, has.
    pub fn open(mos: ObjectSet, version: u64) -> Result<Self> {
        let mut tables = BTreeMap::new();
        let directory = match Table::open(&mos, OBJECT_DIRECTORY) {
            // A pool being made.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            directory => directory?,
        };
        let entries = directory.map(|directory| directory.entries()).transpose()?;
        for (name, value) in entries.unwrap_or_default() {
            let Some(vdev) = name.strip_prefix(brt::VDEV_KEY_PREFIX) else { continue };
            let wrong = || Error::corrupt("a clone table of no vdev, or that is no object");
            let vdev = vdev.parse().map_err(|_| wrong())?;
            let object = ObjectId(value.as_u64().ok_or_else(wrong)?);
            tables.insert(vdev, CloneTable::open(&mos, object, vdev)?);
        }
        let deflated = Meter::of(&mos, version)?.deflated;
        Ok(Self { mos, deflated, tables: Mutex::new(tables) })
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
        let meter = || Meter { vdevs: self.mos.io().pipe.vdevs(), deflated: self.deflated };
        table.release(&self.mos, dva.offset, || meter().space(pointer).used)
    }

    /// Writes what the group changed into the tables. To be called when no block of any dataset is
    /// freed any more in the group.
    pub fn sync(&self, change: &MosChange<'_>) -> Result<()> {
        let mut tables = self.tables.lock();
        for (vdev, table) in tables.iter_mut() {
            table.sync(change, *vdev)?;
        }
        tables.retain(|_, table| table.object != ObjectId(0));
        Ok(())
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
            return Err(
                Error::new(ErrorKind::ReadOnly, reason).with_advice("open the pool read-only")
            );
        }
        let size = mos.io().pipe.vdevs().top_asize(vdev).unwrap_or(0);
        let ranges = size.div_ceil(header.range_size.max(brt::RANGE));
        if header.range_size < brt::RANGE || header.ranges > ranges {
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

    fn range(&self, offset: u64) -> Option<usize> {
        usize::try_from(offset.checked_div(self.header.range_size)?).ok()
    }

    fn release(
        &mut self,
        mos: &ObjectSet,
        offset: u64,
        size: impl FnOnce() -> u64,
    ) -> Result<bool> {
        let range = self.range(offset);
        let Some(counter) = range.and_then(|range| self.counters.get_mut(range)) else {
            return Ok(false);
        };
        if *counter == 0 {
            return Ok(false);
        }
        let entry = match self.met.get_mut(&offset) {
            Some(entry) => entry,
            None => {
                let entries = match &self.entries {
                    Some(entries) => entries,
                    None => self.entries.insert(Zap::open(mos.object(self.header.entries)?)?),
                };
                let Some(stored) = entries.lookup_words(&[offset])? else { return Ok(false) };
                let before = brt::reference_count(&stored)?;
                self.met.entry(offset).or_insert(Entry { stored, before, now: before })
            }
        };
        if entry.now == 0 {
            return Ok(false);
        }
        entry.now -= 1;
        let (size, header) = (size(), &mut self.header);
        header.saved_space = header.saved_space.saturating_sub(size);
        if entry.now == 0 {
            *counter -= 1;
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
        let (entries, object) = (change.object(self.header.entries)?, change.object(self.object)?);
        for (offset, entry) in met.iter().filter(|(_, entry)| entry.now != entry.before) {
            let key = &[*offset][..];
            if entry.now > 0 {
                let value = brt::reference_value(entry.now, &entry.stored)?;
                zap::update(&entries, change.tx, key, &value)?;
                continue;
            }
            zap::remove(&entries, change.tx, key)?;
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
        change.remove_reference("block_cloning")
    }
}
