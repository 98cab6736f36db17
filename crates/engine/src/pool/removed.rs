//! Where the data of removed devices lies now.
//!
//! Chapter 03, section 6. A mapping may lie on devices that were removed later, so that the newest is read
//! first. Invariant: a mapping is bounded by the address space it maps.

use std::collections::BTreeSet;

use cenote_format::ObjectId;
use cenote_format::config::VdevKind;
use cenote_format::indirect_mapping::{
    ENTRY, Mapping, MappingHeader, REMOVAL_ACTIVE, RemovalState,
};

use crate::dataset::Table;
use crate::object::ObjectSet;
use crate::vdev::VdevTree;
use crate::{Error, Result};

/// Entry of the object directory: the removal under way, or the last one.
pub(in crate::pool) const REMOVING: &str = "com.delphix:removing";

/// The removal under way, or the last one.
pub(crate) fn removal_state(mos: &ObjectSet) -> Result<Option<RemovalState>> {
    let Some(directory) = Table::open(mos, ObjectId(1))? else { return Ok(None) };
    let words = directory.numbers_of(REMOVING)?;
    words.map(|words| RemovalState::from_words(&words).map_err(Error::from)).transpose()
}

/// The removal under way.
pub(crate) fn active_removal(mos: &ObjectSet) -> Result<Option<RemovalState>> {
    Ok(removal_state(mos)?.filter(|state| state.state == REMOVAL_ACTIVE))
}

/// Most entries of one mapping that are believed: 16 million, 384 MiB.
const MAX_ENTRIES: u64 = 1 << 24;

/// Gives `vdevs` the mapping of every removed top-level vdev.
pub(super) fn load_mappings(vdevs: &VdevTree, mos: &ObjectSet) -> Result<()> {
    let tops = vdevs.topology().tops();
    let mut left: BTreeSet<u32> = (0..vdevs.top_count()).collect();
    left.retain(|id| tops.get(*id as usize).is_some_and(|top| top.kind == VdevKind::Indirect));
    if left.is_empty() {
        return Ok(());
    }
    let mut newest = removal_state(mos)?.and_then(|state| state.previous);
    while !left.is_empty() {
        // Each leads to the one that was removed before it.
        let next = newest.take().and_then(|id| u32::try_from(id).ok());
        let next = next.filter(|id| left.contains(id)).or_else(|| left.last().copied());
        let Some(id) = next else { break };
        left.remove(&id);
        if let Some(objects) = tops.get(id as usize).and_then(|top| top.indirect) {
            vdevs.set_mapping(id, read_mapping(mos, objects.mapping)?)?;
            newest = objects.previous;
        }
    }
    Ok(())
}

/// Reads the mapping of a removed top-level vdev.
pub(crate) fn read_mapping(mos: &ObjectSet, id: ObjectId) -> Result<Mapping> {
    let object = mos.object(id)?;
    let named = |error: cenote_format::Error| Error::from(error).at_object(0, id.0);
    let header = MappingHeader::decode(object.dnode().bonus()).map_err(named)?;
    if header.entries > MAX_ENTRIES {
        let reason = format!("device mapping of {} entries", header.entries);
        return Err(Error::corrupt(reason).at_object(0, id.0));
    }
    let bytes = usize::try_from(header.entries).unwrap_or(usize::MAX).saturating_mul(ENTRY);
    Mapping::decode(&object.read_vec(0, bytes)?, header.entries).map_err(named)
}
