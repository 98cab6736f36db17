//! What lost devices missed, from and to the dirty time logs in the pool's metadata.
//!
//! Chapter 03, section 7. Invariant: a group's metadata tells of every write that a device missed
//! before the group's uberblocks are written, so that a resilver finds all of it.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_format::config::VdevConfig;
use cenote_format::{Guid, Txg};

use super::LivePool;
use super::store::{MosSource, MosStore};
use crate::Result;
use crate::alloc::{read_missed, write_missed};
use crate::dataset::change::MosChange;
use crate::object::ObjectSet;
use crate::vdev::VdevTree;

/// What the dirty time logs on the disks say.
#[derive(Debug, Default)]
pub(in crate::pool) struct Written {
    logs: BTreeMap<Guid, Vec<Range<u64>>>,
    /// [`VdevTree::missed_changes`] at that time.
    changes: u64,
}

impl Written {
    /// What was loaded when the pool was opened: nothing that can be relied on if more was found out
    /// since.
    pub(in crate::pool) fn of(vdevs: &VdevTree) -> Self {
        let logs = match vdevs.missed_changes() {
            0 => vdevs.missed().into_iter().collect(),
            _ => BTreeMap::new(),
        };
        Self { changes: 0, logs }
    }
}

/// Tells `vdevs` what its leaves missed until group `last`. A log that cannot be read counts as if
/// everything was missed. True if anything was.
pub(crate) fn load_missed(vdevs: &VdevTree, mos: &ObjectSet, last: Txg) -> bool {
    let source = MosSource::new(mos.clone());
    let mut any = false;
    for leaf in vdevs.topology().root().walk() {
        let Some(object) = leaf.dirty_time_log.filter(|object| object.0 != 0) else { continue };
        let ranges = read_missed(&source, object).unwrap_or_else(|error| {
            tracing::warn!(leaf = leaf.guid.0, %error, "the dirty time log cannot be read");
            std::iter::once(0..last.0.saturating_add(1)).collect()
        });
        if !ranges.is_empty() {
            any = true;
            vdevs.set_missing_txgs(leaf.guid, ranges);
        }
    }
    any
}

impl LivePool {
    /// Something was missed that no dirty time log on the disks tells.
    pub(in crate::pool) fn has_missed(&self, vdevs: &VdevTree) -> bool {
        self.missed.lock().changes != vdevs.missed_changes()
    }

    /// Forgets the dirty time logs of a vdev that leaves the pool.
    pub(in crate::pool) fn forget_missed(&self, vdev: &VdevConfig) {
        let logs = &mut self.missed.lock().logs;
        vdev.devices().for_each(|leaf| drop(logs.remove(&leaf.guid)));
    }

    /// Writes the dirty time logs that changed.
    pub(in crate::pool) fn write_missed(&self, change: &MosChange<'_>) -> Result<()> {
        let vdevs = self.vdevs();
        self.note_missed_copies(&vdevs, change.tx.txg());
        let mut written = self.missed.lock();
        let changes = vdevs.missed_changes();
        if changes == written.changes {
            return Ok(());
        }
        let (mut store, txg) = (MosStore::new(change), change.tx.txg());
        let mut new = Vec::new();
        let mut missed = vdevs.missed();
        let is_left = |leaf: Guid| vdevs.topology().find(leaf).is_some();
        let emptied = written.logs.iter().filter(|(leaf, ranges)| {
            !ranges.is_empty() && is_left(**leaf) && missed.iter().all(|(other, _)| other != *leaf)
        });
        let emptied: Vec<Guid> = emptied.map(|(leaf, _)| *leaf).collect();
        missed.extend(emptied.into_iter().map(|leaf| (leaf, Vec::new())));
        for (leaf, ranges) in missed {
            if written.logs.get(&leaf) == Some(&ranges) {
                continue;
            }
            let before = vdevs.topology().find(leaf).and_then(|node| node.dirty_time_log);
            let object = write_missed(&mut store, before, &ranges, txg)?;
            if before != Some(object) {
                new.push((leaf, object));
            }
            written.logs.insert(leaf, ranges);
        }
        written.changes = changes;
        if new.is_empty() {
            return Ok(());
        }
        self.change_topology(|topology| Ok(topology.with_dirty_time_logs(&new, txg)))
    }
}
