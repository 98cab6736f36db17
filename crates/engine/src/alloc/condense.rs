//! What of the mappings of removed vdevs is obsolete.
//!
//! Chapter 08, section 20. Invariant: what becomes obsolete while a mapping is condensed is noted in a map
//! that was begun then, and counts the next time.

use cenote_format::ObjectId;
use cenote_format::indirect_mapping::{ENTRY, Mapping};
use cenote_format::space_map::Action;

use super::allocator::Allocator;
use super::map::{SpaceMap, each_segment};
use super::store::{OBSOLETE_COUNTS, OBSOLETE_MAP, SpaceSource, SpaceStore};
use crate::{Error, Result};

/// What is obsolete of a removed vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Obsolete {
    /// Its id.
    pub vdev: u32,
    /// Bytes of its mapping in memory.
    pub mapping: u64,
    /// Bytes that it maps.
    pub mapped: u64,
    /// Of these, noted as obsolete since the mapping was written.
    pub bytes: u64,
    /// Bytes of the map that notes that.
    pub map: u64,
}

impl Allocator {
    /// What is obsolete of each removed vdev of which something is.
    pub fn obsolete(&self) -> Vec<Obsolete> {
        let state = self.state.lock();
        let of = |(vdev, removed): (&u32, &super::indirect::Indirect)| {
            let header = &removed.map.as_ref()?.header;
            Some(Obsolete {
                vdev: *vdev,
                mapping: (removed.mapping.entries().len() as u64).saturating_mul(ENTRY as u64),
                mapped: removed.mapped,
                bytes: header.allocated.max(0).cast_unsigned(),
                map: header.length,
            })
        };
        state.indirect.iter().filter_map(of).collect()
    }

    /// Takes the map of what is obsolete on a removed vdev from it; its object. Where that is kept
    /// [`Self::forget_obsolete_map`] is to follow.
    pub fn set_obsolete_aside(
        &self,
        store: &mut dyn SpaceStore,
        vdev: u32,
    ) -> Result<Option<ObjectId>> {
        let (zap, map) = {
            let state = self.state.lock();
            let removed = state.indirect.get(&vdev);
            let removed = removed.ok_or_else(|| Error::bug("the vdev was not removed"))?;
            (removed.zap, removed.map.as_ref().map(|map| map.object))
        };
        let Some(map) = map else { return Ok(None) };
        store.zap_remove(zap, OBSOLETE_MAP)?;
        Ok(Some(map))
    }

    /// What becomes obsolete on a removed vdev from now on is noted in a new map.
    pub fn forget_obsolete_map(&self, vdev: u32) {
        if let Some(removed) = self.state.lock().indirect.get_mut(&vdev) {
            removed.map = None;
        }
    }

    /// The mapping of a removed vdev has lost what is obsolete.
    pub fn set_mapping(&self, vdev: u32, mapping: Mapping) {
        if let Some(removed) = self.state.lock().indirect.get_mut(&vdev) {
            let lengths = mapping.entries().iter().map(|entry| entry.destination.asize);
            removed.mapped = lengths.fold(0, u64::saturating_add);
            removed.mapping = mapping;
        }
    }

    /// The mapping of a removed vdev.
    pub fn mapping_of(&self, vdev: u32) -> Option<Mapping> {
        self.state.lock().indirect.get(&vdev).map(|removed| removed.mapping.clone())
    }
}

/// Adds to `counts`, by entry of `mapping`, what the map in `object` notes as obsolete.
pub fn count_obsolete(
    source: &dyn SpaceSource,
    object: ObjectId,
    mapping: &Mapping,
    counts: &mut [u32],
) -> Result<()> {
    let entries = mapping.entries();
    each_segment(source, SpaceMap::open(source, object)?.extent(), |segment| {
        if segment.action != Action::Allocate {
            return Err(Error::corrupt("a map of what is obsolete frees something"));
        }
        let (start, length) = segment.bytes(0, 0)?;
        let end = start.saturating_add(length);
        let first = entries.partition_point(|entry| entry.source_end() <= start);
        let own = entries.iter().zip(counts.iter_mut()).skip(first);
        for (entry, count) in own.take_while(|(entry, _)| entry.source < end) {
            let part = entry.source_end().min(end).saturating_sub(entry.source.max(start));
            *count = count.saturating_add(u32::try_from(part).unwrap_or(u32::MAX));
        }
        Ok(())
    })
}

/// Frees a map of what was obsolete, which counts no more.
pub fn destroy_obsolete(store: &mut dyn SpaceStore, object: ObjectId) -> Result<()> {
    SpaceMap::open(store, object)?.destroy(store)?;
    store.feature_add(OBSOLETE_COUNTS, -1)
}
