//! What the metadata has of vdevs: their ZAPs, the list of those, and their dirty time logs.
//!
//! Chapter 01, sections 7.8 and 17. Invariant: a ZAP is in the list exactly as long as its vdev is in the pool.

use cenote_format::ObjectId;
use cenote_format::config::VdevConfig;

use super::{LivePool, MosStore};
use crate::alloc::destroy_missed;
use crate::dataset::Table;
use crate::dataset::change::{METADATA_ZAP, MosChange, OBJECT_DIRECTORY};
use crate::{Error, Result, zap};

/// Where the directory has the list of ZAPs of vdevs.
const MAP: &str = "com.delphix:vdev_zap_map";

/// The list of ZAPs of vdevs, if the pool has one.
pub(in crate::pool) fn zap_map(change: &MosChange<'_>) -> Result<Option<ObjectId>> {
    let directory = Table::open(change.mos, OBJECT_DIRECTORY)?
        .ok_or_else(|| Error::corrupt("the pool has no object directory"))?;
    Ok(directory.number(MAP)?.map(ObjectId))
}

/// Makes the list of ZAPs of vdevs.
pub(in crate::pool) fn new_zap_map(change: &MosChange<'_>) -> Result<ObjectId> {
    let map = change.new_table(METADATA_ZAP)?;
    let directory = change.mos.object(OBJECT_DIRECTORY)?;
    zap::insert_u64(&directory, change.tx, MAP, map.0)?;
    Ok(map)
}

/// A ZAP for a vdev, listed in `map`.
pub(in crate::pool) fn vdev_zap(change: &MosChange<'_>, map: ObjectId) -> Result<ObjectId> {
    let zap = change.new_table(METADATA_ZAP)?;
    let map = change.mos.object(map)?;
    zap::insert_u64(&map, change.tx, zap::int_name(zap.0).as_bytes(), zap.0)?;
    Ok(zap)
}

/// Gives the leaves of `node` their ZAPs.
pub(in crate::pool) fn leaf_zaps(
    change: &MosChange<'_>,
    map: ObjectId,
    node: &mut VdevConfig,
) -> Result<()> {
    if node.kind.is_leaf() {
        node.leaf_zap = Some(vdev_zap(change, map)?);
    }
    for child in node.children.iter_mut().flatten() {
        leaf_zaps(change, map, child)?;
    }
    Ok(())
}

/// Frees the list of ZAPs of vdevs, and those ZAPs.
fn free_all(change: &MosChange<'_>, map: ObjectId) -> Result<()> {
    let listed = Table::open(change.mos, map)?.map(|table| table.entries()).transpose()?;
    for (_, value) in listed.unwrap_or_default() {
        if let Some(zap) = value.as_u64() {
            change.mos.free_object(change.tx, ObjectId(zap))?;
        }
    }
    change.mos.free_object(change.tx, map)?;
    zap::remove(&change.mos.object(OBJECT_DIRECTORY)?, change.tx, MAP.as_bytes())?;
    Ok(())
}

impl LivePool {
    /// Gives the vdevs of a pool their ZAPs that older software wrote last, which knew of none: whatever it left of
    /// them belongs to nothing.
    pub(in crate::pool) fn mend_vdev_zaps(&self) -> Result<()> {
        let directory = Table::open(&self.mos, OBJECT_DIRECTORY)?;
        let listed = directory.map(|table| table.number(MAP)).transpose()?.flatten();
        if self.config.lock().has_vdev_zaps() && listed.is_some() {
            return Ok(());
        }
        self.change(|live, change| {
            if change.is_active("vdev_zaps_v2")? {
                // Who has that keeps them.
                return Ok(());
            }
            if let Some(map) = zap_map(change)? {
                free_all(change, map)?;
            }
            let map = new_zap_map(change)?;
            let topology = live.vdevs().topology().clone();
            let (mut leaves, mut tops) = (Vec::new(), Vec::new());
            for (id, top) in (0_u32..).zip(topology.tops()) {
                let removing = top.top.is_some_and(|top| top.removing == Some(1));
                if top.kind.is_concrete() && !removing {
                    tops.push((id, top.guid, vdev_zap(change, map)?));
                }
                for leaf in top.walk().filter(|node| node.kind.has_device()) {
                    leaves.push((leaf.guid, vdev_zap(change, map)?));
                }
            }
            let txg = change.tx.txg();
            live.when_done(move |live| {
                let marked = live.change_topology(|topology| {
                    let mut next = topology.clone();
                    for (guid, zap) in &leaves {
                        next = next.marked(&[*guid], txg, |leaf| leaf.leaf_zap = Some(*zap));
                    }
                    for (_, guid, zap) in &tops {
                        next = next.marked(&[*guid], txg, |top| top.top_zap = Some(*zap));
                    }
                    Ok(next)
                });
                if let Err(error) = marked {
                    return tracing::error!(%error, "the ZAPs of vdevs are not in the configuration");
                }
                tops.iter().for_each(|(id, _, zap)| live.allocator.set_vdev_zap(*id, *zap));
                live.config.lock().gets_vdev_zaps();
            });
            Ok(())
        })
    }
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
