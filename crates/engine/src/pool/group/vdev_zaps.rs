//! What the metadata has of vdevs: their ZAPs, the list of those, and their dirty time logs.
//!
//! Chapter 01, section 17. Invariant: a ZAP is in the list exactly as long as its vdev is in the pool.

use cenote_format::ObjectId;
use cenote_format::config::VdevConfig;

use super::MosStore;
use crate::alloc::destroy_missed;
use crate::dataset::Table;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::{Error, Result, zap};

/// The list of ZAPs of vdevs, if the pool has one.
pub(in crate::pool) fn zap_map(change: &MosChange<'_>) -> Result<Option<ObjectId>> {
    let directory = Table::open(change.mos, OBJECT_DIRECTORY)?
        .ok_or_else(|| Error::corrupt("the pool has no object directory"))?;
    Ok(directory.number("com.delphix:vdev_zap_map")?.map(ObjectId))
}

/// Frees what the metadata has of vdevs that leave: their dirty time logs and ZAPs.
pub(in crate::pool) fn free_objects_of<'a>(
    change: &MosChange<'_>,
    store: &mut MosStore<'_, '_>,
    gone: impl IntoIterator<Item = &'a VdevConfig>,
) -> Result<()> {
    let map = zap_map(change)?;
    for node in gone {
        if let Some(log) = node.dirty_time_log.filter(|object| object.0 != 0) {
            destroy_missed(store, log)?;
        }
        let zaps = [node.leaf_zap, node.top_zap].into_iter().flatten();
        for own in zaps.filter(|object| object.0 != 0) {
            change.mos.free_object(change.tx, own)?;
            if let Some(map) = map {
                let name = zap::int_name(own.0);
                zap::remove(&change.mos.object(map)?, change.tx, name.as_bytes())?;
            }
        }
    }
    Ok(())
}
