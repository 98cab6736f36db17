//! Choosing the uberblock and the label a pool is loaded from.
//!
//! Invariant: nothing is chosen whose checksum does not say it was written at exactly that place of the
//! device. Chapter 01, section 10.

use std::sync::Arc;
use std::time::Duration;

use cenote_device::{Device, DeviceError};
use cenote_format::config::PoolConfig;
use cenote_format::label::{self, LABELS};
use cenote_format::{Guid, Txg, Uberblock};

use super::found_labels::{FoundLabel, best_label, is_verified, read_labels};
use super::parallel;

/// A leaf of the tree with the device behind it.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Its guid.
    pub guid: Guid,
    /// `ashift` of its top-level vdev; `None` if unknown, then every slot size is tried.
    pub ashift: Option<u64>,
    /// The device.
    pub device: Arc<dyn Device>,
}

/// What was chosen.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The newest uberblock within the limit.
    pub best: Uberblock,
    /// The newest of all.
    pub latest: Uberblock,
    /// The leaf the best one was found on.
    pub leaf: Guid,
    /// The label of that leaf that goes with it.
    pub label: Option<PoolConfig>,
}

/// Why nothing was chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    /// No device holds an uberblock with a good checksum (within the limit).
    #[error("no device holds a valid uberblock{}", limit(*.0))]
    NoUberblock(Option<Txg>),
    /// So many devices did not answer in time, and no other holds one.
    #[error("{0} of the devices that may hold an uberblock did not answer within {seconds} s", seconds = .1.as_secs())]
    NoAnswer(usize, Duration),
    /// The chosen group and the newest one differ in the progress of a RAID-Z expansion.
    #[error("a RAID-Z expansion has gone on since that transaction group")]
    ReflowChanged,
}

fn limit(txg: Option<Txg>) -> String {
    txg.map_or_else(String::new, |txg| format!(" of transaction group {txg} or before"))
}

/// Every valid uberblock in the four rings of `device`.
pub fn read_uberblocks(
    device: &dyn Device,
    ashift: Option<u64>,
) -> Result<Vec<Uberblock>, DeviceError> {
    let mut found = Vec::new();
    for index in 0..LABELS {
        let Some(start) = label::label_offset(device.size(), index) else { break };
        let start = start + label::RING_OFFSET;
        match device.read(start, label::RING_SIZE as usize) {
            Ok(ring) => collect(&ring, start, ashift, &mut found),
            Err(error @ (DeviceError::TimedOut(_) | DeviceError::Stuck(_) | DeviceError::Gone)) => {
                return Err(error);
            }
            // One unreadable ring leaves three.
            Err(error) => {
                tracing::debug!(path = %device.path().display(), index, %error, "ring not read");
            }
        }
    }
    Ok(found)
}

fn collect(ring: &[u8], start: u64, ashift: Option<u64>, found: &mut Vec<Uberblock>) {
    let shifts = ashift.map_or(label::SLOT_SHIFTS, |ashift| {
        let shift = label::slot_shift(ashift);
        shift..=shift
    });
    for shift in shifts {
        let slots = ring.chunks_exact(1 << shift);
        for (offset, slot) in (start..).step_by(1 << shift).zip(slots) {
            // The magic number is the cheaper test.
            if let Ok(uberblock) = Uberblock::decode(slot)
                && uberblock.txg != Txg(0)
                && is_verified(slot, offset)
            {
                found.push(uberblock);
            }
        }
    }
}

/// Reads rings and labels of every leaf and chooses the newest uberblock of `max_txg` or before; of leaves that hold
/// it alike, one with a label that goes with it.
///
/// `deadline` bounds each leaf; one that does not answer is left out.
pub fn choose(
    leaves: &[Leaf],
    max_txg: Option<Txg>,
    deadline: Duration,
) -> Result<Choice, ChooseError> {
    let jobs = leaves.iter().map(|leaf| {
        let leaf = leaf.clone();
        move || Held::read(&leaf, max_txg)
    });
    let all = parallel::run(jobs.collect(), 32, deadline);
    let silent = all.iter().filter(|held| held.is_none()).count();
    let mut chosen: Option<(Uberblock, Option<PoolConfig>, Guid)> = None;
    let mut latest: Option<Uberblock> = None;
    for (leaf, held) in leaves.iter().zip(all) {
        let Some(held) = held else { continue };
        if let Some(best) = held.best {
            let label = best_label(&held.labels, Some(best.txg)).map(|label| label.config.clone());
            let is_better = chosen.as_ref().is_none_or(|(known, with, _)| {
                let better = best.compare_recency(known);
                better.then(label.is_some().cmp(&with.is_some())).is_gt()
            });
            if is_better {
                chosen = Some((best, label, leaf.guid));
            }
        }
        if let Some(newest) = held.latest
            && latest.as_ref().is_none_or(|latest| newest.compare_recency(latest).is_gt())
        {
            latest = Some(newest);
        }
    }
    let (Some((best, label, leaf)), Some(latest)) = (chosen, latest) else {
        return Err(match silent {
            0 => ChooseError::NoUberblock(max_txg),
            _ => ChooseError::NoAnswer(silent, deadline),
        });
    };
    if best.reflow != latest.reflow {
        return Err(ChooseError::ReflowChanged);
    }
    Ok(Choice { best, latest, leaf, label })
}

/// What one leaf holds.
struct Held {
    /// The newest uberblock within the limit.
    best: Option<Uberblock>,
    /// The newest of all.
    latest: Option<Uberblock>,
    labels: Vec<FoundLabel>,
}

impl Held {
    fn read(leaf: &Leaf, max_txg: Option<Txg>) -> Self {
        let all = read_uberblocks(&*leaf.device, leaf.ashift).unwrap_or_else(|error| {
            tracing::warn!(guid = leaf.guid.0, %error, "no uberblocks read");
            Vec::new()
        });
        let labels = read_labels(&*leaf.device).unwrap_or_else(|error| {
            tracing::warn!(guid = leaf.guid.0, %error, "no labels read");
            Vec::new()
        });
        let newest = |limit: Option<Txg>| {
            all.iter()
                .filter(|uberblock| limit.is_none_or(|limit| uberblock.txg <= limit))
                .max_by(|a, b| a.compare_recency(b))
                .cloned()
        };
        Self { best: newest(max_txg), latest: newest(None), labels }
    }
}

#[cfg(test)]
mod tests;
