//! Where the data of removed devices lies now.
//!
//! Chapter 03, section 6. Invariant: a mapping is bounded by the address space it maps.

use cenote_format::ObjectId;
use cenote_format::config::VdevKind;
use cenote_format::indirect_mapping::{ENTRY, Mapping, MappingHeader};

use crate::object::ObjectSet;
use crate::vdev::VdevTree;
use crate::{Error, Result};

/// Most entries of one mapping that are believed: 16 million, 384 MiB.
const MAX_ENTRIES: u64 = 1 << 24;

/// Gives `vdevs` the mapping of every removed top-level vdev.
pub(super) fn load_mappings(vdevs: &VdevTree, mos: &ObjectSet) -> Result<()> {
    for (id, top) in vdevs.topology().tops().iter().enumerate() {
        if let (VdevKind::Indirect, Some(objects)) = (top.kind, top.indirect) {
            let mapping = read_mapping(mos, objects.mapping)?;
            vdevs.set_mapping(u32::try_from(id).unwrap_or(u32::MAX), mapping)?;
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
