//! Mappings of removed vdevs lose what is obsolete, a portion in each group: the job "condensing".
//!
//! Chapter 08, section 20. Entries of which something is in use are written to a new mapping, in order;
//! when all are, it takes the place of the old one. Invariant: until then the old one is whole, and what
//! the record in the metadata names is enough to go on after a crash, here or in OpenZFS. Where something
//! of it is damaged all of it stays as it is, and keeps nothing else.

use std::sync::Arc;

use cenote_format::ObjectId;
use cenote_format::bytes::le32;
use cenote_format::indirect_mapping::{Condensing, ENTRY, Mapping, MappingEntry, MappingHeader};
use cenote_format::zap::Value;

use super::hooks::GroupHooks;
use super::store::MosStore;
use super::{LivePool, mapping};
use crate::alloc::{Obsolete, count_obsolete, destroy_obsolete};
use crate::dataset::Table;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::job::Outcome;
use crate::object::ObjectSet;
use crate::{Error, Result, zap};

/// Entry of the object directory: a mapping is being condensed.
const CONDENSING: &str = "com.delphix:condensing_indirect";
/// A mapping of more bytes is condensed when a quarter of what it maps is obsolete.
const WORTHWHILE: u64 = 128 << 10;
/// Share of what is mapped, as a divisor.
const QUARTER: u64 = 4;
/// A map of what is obsolete of so many bytes is reason enough.
const LONGEST_MAP: u64 = 1 << 30;
/// Entries written in one group.
const ENTRIES_AT_ONCE: usize = 200_000;

/// A mapping that is being condensed, in memory.
struct Work {
    record: Condensing,
    vdev: u32,
    old: ObjectId,
    mapping: Mapping,
    /// Bytes of each entry that are obsolete.
    counts: Vec<u32>,
}

impl LivePool {
    /// Goes on condensing a mapping, or begins to.
    pub(super) fn go_on_condensing(&self, change: &MosChange<'_>, hooks: &GroupHooks<'_>) {
        if self.jobs.condensing.begin().is_none() {
            return;
        }
        let portion = || {
            let record = match record(change.mos)? {
                Some(record) => Some(record),
                None => self.begin_condensing(change)?,
            };
            let Some(record) = record else { return Ok(false) };
            self.condense_portion(change, self.load_condensing(change, record)?)
        };
        let outcome = match self.all_or_nothing(change.tx.txg(), hooks, portion) {
            Ok(more) => Outcome { more, ..Outcome::default() },
            Err(error) => Outcome { trouble: Some(error), ..Outcome::default() },
        };
        self.jobs.end(&self.jobs.condensing, outcome);
    }

    /// Something became obsolete: enough, perhaps. A job that is stuck is tried again when others are.
    pub(super) fn wake_condensing(&self) {
        if self.jobs.condensing.trouble().is_none()
            && self.allocator.obsolete().iter().any(|removed| self.is_worthwhile(removed))
        {
            self.jobs.condensing.wake();
        }
    }

    fn is_worthwhile(&self, removed: &Obsolete) -> bool {
        let above = self.options.condensed_above.unwrap_or(WORTHWHILE);
        let much = removed.bytes.saturating_mul(QUARTER) >= removed.mapped && removed.bytes > 0;
        much && removed.mapping > above || removed.map >= LONGEST_MAP
    }

    fn begin_condensing(&self, change: &MosChange<'_>) -> Result<Option<Condensing>> {
        let all = self.allocator.obsolete();
        let Some(removed) = all.into_iter().find(|removed| self.is_worthwhile(removed)) else {
            return Ok(None);
        };
        let mut store = MosStore::new(change);
        let aside = self.allocator.set_obsolete_aside(&mut store, removed.vdev)?;
        let Some(obsolete_map) = aside else { return Ok(None) };
        self.when_done(move |live| live.allocator.forget_obsolete_map(removed.vdev));
        let mapping = mapping::new_mapping(change, change.is_enabled("obsolete_counts")?)?;
        let record = Condensing { vdev: removed.vdev.into(), obsolete_map, mapping };
        let directory = change.mos.object(OBJECT_DIRECTORY)?;
        let value = Value::of_u64s(&record.to_words())?;
        zap::update(&directory, change.tx, CONDENSING, &value)?;
        Ok(Some(record))
    }

    /// What is to be condensed, and how much of each entry is obsolete.
    fn load_condensing(&self, change: &MosChange<'_>, record: Condensing) -> Result<Work> {
        let wrong = || Error::corrupt("the vdev whose mapping is condensed was not removed");
        let vdev = u32::try_from(record.vdev).map_err(|_| wrong())?;
        let vdevs = self.vdevs();
        let objects = vdevs.topology().top(vdev).and_then(|top| top.indirect).ok_or_else(wrong)?;
        let mapping = self.allocator.mapping_of(vdev).ok_or_else(wrong)?;
        let old = change.mos.object(objects.mapping)?;
        let header = MappingHeader::decode(old.dnode().bonus())?;
        let entries = mapping.entries().len();
        let mut counts = vec![0; entries];
        if let Some(object) = header.counts {
            let bytes = change.mos.object(object)?.read_vec(0, entries.saturating_mul(4))?;
            for (index, count) in counts.iter_mut().enumerate() {
                *count = le32(&bytes, index * 4).unwrap_or(0);
            }
        }
        let store = MosStore::new(change);
        count_obsolete(&store, record.obsolete_map, &mapping, &mut counts)?;
        Ok(Work { record, vdev, old: objects.mapping, mapping, counts })
    }

    /// Writes a part of the new mapping; false: that was the last.
    fn condense_portion(&self, change: &MosChange<'_>, work: Work) -> Result<bool> {
        let header =
            MappingHeader::decode(change.mos.object(work.record.mapping)?.dnode().bonus())?;
        let all = work.mapping.entries();
        let first = all.partition_point(|entry| entry.source < header.max_offset);
        let left = all.iter().zip(&work.counts).skip(first);
        let mut kept = left.filter(|(entry, count)| u64::from(**count) < entry.destination.asize);
        let portion = kept.by_ref().take(ENTRIES_AT_ONCE).map(|(entry, count)| (*entry, *count));
        let portion: Vec<(MappingEntry, u32)> = portion.collect();
        if !portion.is_empty() {
            mapping::extend_mapping(change, work.record.mapping, &portion)?;
        }
        if kept.next().is_some() {
            return Ok(true);
        }
        self.end_condensing(change, &work)?;
        Ok(false)
    }

    /// The new mapping takes the place of the old one.
    fn end_condensing(&self, change: &MosChange<'_>, work: &Work) -> Result<()> {
        let (id, txg) = (work.vdev, change.tx.txg());
        let object = change.mos.object(work.record.mapping)?;
        let header = MappingHeader::decode(object.dnode().bonus())?;
        let bytes = usize::try_from(header.entries).unwrap_or(usize::MAX).saturating_mul(ENTRY);
        let mapping = Mapping::decode(&object.read_vec(0, bytes)?, header.entries)?;
        let vdevs = self.vdevs();
        let topology = vdevs.topology().mapped_by(id, work.record.mapping, txg)?;
        let tree = vdevs.with_topology(topology)?;
        mapping::free_mapping(change, work.old)?;
        destroy_obsolete(&mut MosStore::new(change), work.record.obsolete_map)?;
        zap::remove(&change.mos.object(OBJECT_DIRECTORY)?, change.tx, CONDENSING)?;
        tree.set_mapping(id, mapping.clone())?;
        self.allocator.set_mapping(id, mapping);
        self.take_vdevs(Arc::new(tree));
        Ok(())
    }
}

/// The condensing under way.
fn record(mos: &ObjectSet) -> Result<Option<Condensing>> {
    let Some(directory) = Table::open(mos, OBJECT_DIRECTORY)? else { return Ok(None) };
    let words = directory.numbers_of(CONDENSING)?;
    words.map(|words| Condensing::from_words(&words).map_err(Error::from)).transpose()
}
