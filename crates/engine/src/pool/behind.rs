//! Devices that are behind: what is on them is older than what the pool has, and no dirty time log
//! tells. A disk that lost what it had acknowledged, a restored image.
//!
//! Chapter 01, section 10. Invariant: uberblocks go to all devices of a top-level vdev together, after
//! the data they tell of is durable on all of them; so a device that lacks two of those its siblings
//! have was not there for them, and one that lacks the last may only have been cut off, if it has the
//! data. What such a device may lack is noted as missed before anything is read from it in good faith.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cenote_format::{Guid, Txg, Uberblock};

use super::choose::read_uberblocks;
use super::parallel;
use crate::pipe::Pipe;
use crate::vdev::LeafDevice;

/// Devices looked at together.
const WIDTH: usize = 32;

/// Looks at the rings of all open devices of a pool that is opened at `best`, and notes what those that
/// are behind miss of that state. True if that was not known of one. If `best` is not the newest, a device that has a
/// newer one was there for it: its own slot may have been written over since.
pub(super) fn note(pipe: &Pipe, best: &Uberblock, deadline: Duration) -> bool {
    let vdevs = pipe.vdevs();
    let known: BTreeMap<Guid, _> = vdevs.missed().into_iter().collect();
    let misses = |leaf: Guid, txg: u64| {
        known.get(&leaf).is_some_and(|ranges| ranges.iter().any(|range| range.contains(&txg)))
    };
    let leaves = vdevs.devices();
    let jobs = leaves.iter().map(|leaf| {
        let (device, ashift) = (leaf.device.clone(), vdevs.ashift(leaf.top).map(u64::from));
        move || read_uberblocks(&*device, ashift).ok()
    });
    let rings = parallel::run(jobs.collect(), WIDTH, deadline);
    let mut tops: BTreeMap<u32, Vec<(&LeafDevice, BTreeSet<u64>)>> = BTreeMap::new();
    for (leaf, ring) in leaves.iter().zip(rings) {
        // A ring that cannot be read says nothing.
        let Some(ring) = ring.flatten() else { continue };
        let groups = ring.iter().map(|uberblock| uberblock.txg.0).collect();
        tops.entry(leaf.top).or_default().push((leaf, groups));
    }
    let mut without_root: Option<Vec<Guid>> = None;
    let mut news = false;
    for leaves in tops.values().filter(|leaves| leaves.len() > 1) {
        let all: BTreeSet<u64> = leaves.iter().flat_map(|(_, ring)| ring).copied().collect();
        for (leaf, ring) in leaves {
            let newest = ring.last().copied().unwrap_or(0);
            if newest >= best.txg.0 {
                continue;
            }
            let later = all.range(newest.saturating_add(1)..);
            let behind = later.filter(|txg| !misses(leaf.guid, **txg)).count();
            let is_stale = match behind {
                0 => false,
                1 => without_root
                    .get_or_insert_with(|| pipe.leaves_without(&best.root))
                    .contains(&leaf.guid),
                _ => true,
            };
            let missed = newest.saturating_add(1)..best.txg.0.saturating_add(1);
            if is_stale && vdevs.add_missing_txgs(leaf.guid, missed) {
                let (newest, best) = (Txg(newest), best.txg);
                let path = leaf.device.path().display().to_string();
                tracing::warn!(path, %newest, %best, "a device holds older content than the pool");
                news = true;
            }
        }
    }
    news
}
