//! Whether the devices of a pool were written apart: each side going on without the other.
//!
//! Halves of a mirror that were imported one after the other hold two histories. Each side's dirty
//! time logs say that the other missed a group which that one has in a form of its own. One history
//! cannot say so of both: whatever it wrote, some device has. So a device that missed groups and yet
//! holds uberblocks of them is asked for the state it has of its own, if that still opens; what
//! merely was away, fell out while a group was written, or was cut off in the midst of it, has no
//! state in which the others are the ones who missed something, or, if they got that since, one that they
//! have too, or in which its last groups are theirs.
//!
//! Invariant: devices are only read; what cannot be read proves nothing.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cenote_format::config::{PoolConfig, VdevConfig};
use cenote_format::{Guid, ObjectId, Uberblock};

use super::assemble::PoolCandidate;
use super::choose::{Choice, Leaf, read_uberblocks};
use super::group::MosSource;
use super::leaves::CandidateLeaves;
use super::{packed, parallel};
use crate::alloc::read_missed;
use crate::object::ObjectSet;
use crate::pipe::{Pipe, PoolIo, Prefetcher};
use crate::vdev::VdevTree;
use crate::zap::Zap;
use crate::{Error, Result};

/// Bytes of blocks kept in memory while looking.
const CACHE: u64 = 16 << 20;
/// Largest packed configuration that is believed, in bytes.
const MAX_CONFIG: u64 = 64 << 20;

/// Sorted ranges of transaction groups by device.
type Missed = BTreeMap<Guid, Vec<Range<u64>>>;

/// A device that went on by itself.
pub(super) struct Stray {
    pub(super) leaf: Leaf,
    /// The newest state it has of its own.
    own: Uberblock,
}

/// The devices that were written apart from the state to be opened, `choice`. `tree` is its configuration, and
/// `vdevs` knows what devices missed according to it.
pub(super) fn strays(
    candidate: &PoolCandidate,
    choice: &Choice,
    tree: &VdevConfig,
    vdevs: &VdevTree,
    deadline: Duration,
) -> Vec<Stray> {
    let missed: Missed = vdevs.missed().into_iter().collect();
    let behind: Vec<Leaf> =
        candidate.leaves(tree).into_iter().filter(|leaf| missed.contains_key(&leaf.guid)).collect();
    let mut strays = Vec::new();
    for (leaf, ring) in behind.iter().zip(rings(&behind, deadline)) {
        let newest = ring.into_iter().max_by(|a, b| a.compare_recency(b));
        let Some(own) = newest.filter(|own| is_suspicious(own, &choice.best, &missed, leaf.guid))
        else {
            continue;
        };
        match missed_at(candidate, &own) {
            Ok(others)
                if is_apart(&missed, &others, leaf.guid, own.txg.0)
                    && !is_shared(candidate, tree, &missed, &own, deadline) =>
            {
                strays.push(Stray { leaf: leaf.clone(), own });
            }
            Ok(_) => {}
            Err(error) => {
                tracing::info!(leaf = leaf.guid.0, %error, "no state of its own");
            }
        }
    }
    strays
}

/// A device that holds an uberblock of a time when it missed something, but not the one chosen.
fn is_suspicious(own: &Uberblock, best: &Uberblock, missed: &Missed, leaf: Guid) -> bool {
    let first = missed.get(&leaf).and_then(|ranges| ranges.first());
    let same = own.txg == best.txg && own.root == best.root;
    !same && first.is_some_and(|first| first.start <= own.txg.0)
}

/// Whether device `leaf` has the last groups of its own state `others` (that of group `own`), which it missed
/// according to `missed`, and another device missed them, that has them according to `missed`.
///
/// One group proves nothing: if the device vanished right after it, it is said to have missed it, for it
/// may have; damage of older ones may have been found since; and what the others lacked then may have been
/// resilvered. Who went on alone has written more than one before it promised anything.
fn is_apart(missed: &Missed, others: &Missed, leaf: Guid, own: u64) -> bool {
    let holds = |map: &Missed, leaf: &Guid, group: u64| {
        map.get(leaf).into_iter().flatten().any(|range| range.contains(&group))
    };
    others.keys().filter(|other| **other != leaf).any(|other| {
        (own.saturating_sub(1)..=own).all(|group| {
            holds(missed, &leaf, group)
                && !holds(others, &leaf, group)
                && holds(others, other, group)
                && !holds(missed, other, group)
        })
    })
}

/// Whether a device of the state that was chosen, one that missed nothing, holds this uberblock too.
fn is_shared(
    candidate: &PoolCandidate,
    tree: &VdevConfig,
    missed: &Missed,
    own: &Uberblock,
    deadline: Duration,
) -> bool {
    let whole: Vec<Leaf> = candidate
        .leaves(tree)
        .into_iter()
        .filter(|leaf| !missed.contains_key(&leaf.guid))
        .collect();
    rings(&whole, deadline)
        .into_iter()
        .flatten()
        .any(|other| other.txg == own.txg && other.root == own.root)
}

/// The uberblocks of devices, as far as they can be read.
fn rings(leaves: &[Leaf], deadline: Duration) -> Vec<Vec<Uberblock>> {
    let jobs = leaves.iter().map(|leaf| {
        let leaf = leaf.clone();
        move || read_uberblocks(&*leaf.device, leaf.ashift).unwrap_or_default()
    });
    let found = parallel::run(jobs.collect(), 32, deadline);
    found.into_iter().map(Option::unwrap_or_default).collect()
}

/// What devices missed according to the state of `uberblock`.
fn missed_at(candidate: &PoolCandidate, uberblock: &Uberblock) -> Result<Missed> {
    let vdevs = VdevTree::build(&candidate.tree, CandidateLeaves::new(candidate))?;
    vdevs.set_reflow_word(uberblock.reflow.0);
    let pipe = Pipe::new(Arc::new(vdevs), CACHE);
    let io = Arc::new(PoolIo { pipe, prefetcher: Prefetcher::new(0) });
    let mos = ObjectSet::open(&io, uberblock.root, 0, None)?;
    let directory = Zap::open(mos.object(ObjectId(1))?)?;
    let number = directory.require_u64("config")?;
    let config = PoolConfig::from_nvlist(packed::read(&mos, ObjectId(number), MAX_CONFIG)?)?;
    let source = MosSource::new(mos);
    let mut missed = Missed::new();
    for leaf in config.vdev_tree.iter().flat_map(VdevConfig::walk) {
        if let Some(log) = leaf.dirty_time_log.filter(|object| object.0 != 0) {
            missed.insert(leaf.guid, read_missed(&source, log)?);
        }
    }
    Ok(missed)
}

impl Stray {
    /// Why a pool is not opened with it.
    pub(super) fn refusal(&self, choice: &Choice) -> Error {
        let path = self.leaf.device.path().display().to_string();
        let reason = format!(
            "its devices were written apart from each other: {path} went on by itself up to \
             transaction group {}, the others up to group {}",
            self.own.txg, choice.best.txg
        );
        let advice = format!(
            "keep one side and leave the other out: 'zpool import -d DEVICE' with the devices to keep, \
             then 'zpool labelclear -f {path}' (or of the others) and attach what was left out again; \
             files only that one holds are to be copied first, from an import of it alone"
        );
        Error::corrupt(reason).with_advice(advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(u64, Range<u64>)]) -> Missed {
        entries.iter().map(|(leaf, range)| (Guid(*leaf), vec![range.clone()])).collect()
    }

    #[test]
    fn only_two_that_each_missed_what_the_other_has_were_written_apart() {
        let chosen = map(&[(2, 11..31)]);
        assert!(is_apart(&chosen, &map(&[(1, 11..21)]), Guid(2), 20));
        // The imports did not begin at the same group.
        assert!(is_apart(&chosen, &map(&[(1, 9..15)]), Guid(2), 14));
        // It fell out while group 11 was written, and says so itself, or says nothing.
        assert!(!is_apart(&chosen, &map(&[(2, 11..12)]), Guid(2), 12));
        assert!(!is_apart(&chosen, &Missed::new(), Guid(2), 12));
        // At its time the other was being resilvered.
        assert!(!is_apart(&chosen, &map(&[(1, 3..9)]), Guid(2), 8));
        // It vanished right after group 11, and what the other lacked of that was resilvered since.
        assert!(!is_apart(&chosen, &map(&[(1, 10..12)]), Guid(2), 11));
        // The same, and what it had of group 9 was found damaged.
        let damaged: Missed = [(Guid(2), vec![9..10, 12..31])].into();
        assert!(!is_apart(&damaged, &map(&[(1, 6..12)]), Guid(2), 11));
        // Both missed it, and a third had it.
        assert!(!is_apart(&map(&[(1, 3..9), (2, 3..31)]), &map(&[(1, 3..9)]), Guid(2), 8));
    }
}
