//! The allocator's state behind its lock.
//!
//! Invariant: a metaslab with pending changes is in `dirty` of their group, one that holds space
//! back is in `held`; transaction groups outside `synced + 1 ..= synced + 3` have no changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

use cenote_format::indirect_mapping::ENTRY;
use cenote_format::{Dva, ObjectId, Txg};

use super::histogram::{fragmentation_percent, taken_by_gangs};
use super::indirect::{Indirect, Removing};
use super::map::SpaceMap;
use super::metaslab::{DEFER, Metaslab, SLOTS, slot};
use super::ranges::Conflict;
use super::reuse::Freed;
use super::top::Top;
use super::{Figures, TopFigures};
use crate::vdev::AllocationClass;
use crate::{Error, Result};

/// Bytes a child of a vdev takes before the next vdev's turn.
const TURN: u64 = 512 << 10;
/// How much longer or shorter than the average a turn gets by free space.
const BIAS: u64 = 4;

/// log2 of free segments that count as such to who estimates a mapping.
const COPIED_ALONG: u32 = 14;
/// log2 of the bytes that one entry of a mapping tells of at most.
const LONGEST_ENTRY: u32 = 24;

/// The vdevs of one class, and whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Ring {
    pub(super) tops: Vec<u32>,
    /// Index in `tops`.
    pub(super) at: usize,
    /// Bytes each may take before its turn ends; below 0 it took more.
    credit: Vec<i64>,
}

/// A log space map.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) map: SpaceMap,
}

/// Everything that changes.
#[derive(Debug, Default)]
pub(super) struct AllocatorState {
    /// By id; `None` for what holds no data.
    pub(super) tops: Vec<Option<Top>>,
    /// Removed vdevs.
    pub(super) indirect: BTreeMap<u32, Indirect>,
    /// The one being removed.
    pub(super) removing: Option<Removing>,
    /// By class.
    pub(super) rings: [Ring; 4],
    /// The newest group on the disks.
    pub(super) synced: Txg,
    /// Group of the pool's checkpoint.
    pub(super) checkpoint: Option<Txg>,
    /// Metaslabs with changes, by slot of the group: vdev and index.
    pub(super) dirty: [BTreeSet<(u32, usize)>; SLOTS],
    /// Metaslabs that hold space back.
    pub(super) held: BTreeSet<(u32, usize)>,
    /// Where something was freed since the pool was opened.
    pub(super) recycled: Freed,
    /// How many hold what is freed from a group on: see [`super::Held`].
    pub(super) holders: BTreeMap<Txg, u64>,
    /// ZAP of the logs.
    pub(super) log_zap: Option<ObjectId>,
    /// The logs.
    pub(super) logs: BTreeMap<Txg, Log>,
    /// Metaslabs of a vdev in which nothing is allocated now: what is free of them is written or given up, or
    /// the rest moved.
    pub(super) swept: Option<(u32, Range<usize>)>,
    /// Since when somebody wants those.
    pub(super) asked: Option<Instant>,
    /// How many wait for them.
    pub(super) waiting: u64,
    /// Metaslabs in which something became free since this was last asked; none: nobody wants to know.
    pub(super) released: Option<BTreeSet<(u32, usize)>>,
    /// All metaslabs are flushed in the next groups.
    pub(super) flush_all: bool,
    /// Recording failed: nothing can be trusted any more.
    pub(super) failure: Option<Error>,
}

/// An address as a place of an error.
pub(super) fn at(error: Error, vdev: u32, offset: u64) -> Error {
    error.at(|place| place.dva = Some((vdev, offset)))
}

impl AllocatorState {
    /// What was lent is given back.
    pub(super) fn end_loan(&mut self) {
        (self.swept, self.asked) = (None, None);
    }

    /// Nothing is allocated in this metaslab now.
    pub(super) fn is_swept(&self, vdev: u32, index: usize) -> bool {
        self.swept.as_ref().is_some_and(|(of, all)| *of == vdev && all.contains(&index))
    }

    pub(super) fn top(&self, id: u32) -> Option<&Top> {
        self.tops.get(id as usize)?.as_ref()
    }

    pub(super) fn top_mut(&mut self, id: u32) -> Option<&mut Top> {
        self.tops.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn slab(&self, id: u32, index: usize) -> Result<&Metaslab> {
        let slab = self.top(id).and_then(|top| top.metaslabs.get(index));
        slab.ok_or_else(|| Error::corrupt(format!("vdev {id} has no metaslab {index}")))
    }

    pub(super) fn slab_mut(&mut self, id: u32, index: usize) -> Result<&mut Metaslab> {
        let slab = self.top_mut(id).and_then(|top| top.metaslabs.get_mut(index));
        slab.ok_or_else(|| Error::corrupt(format!("vdev {id} has no metaslab {index}")))
    }

    /// Adds a vdev, or replaces the one of the same id.
    pub(super) fn put(&mut self, top: Top) {
        let index = top.facts.id as usize;
        if self.tops.len() <= index {
            self.tops.resize_with(index + 1, || None);
        }
        if let Some(slot) = self.tops.get_mut(index) {
            *slot = Some(top);
        }
        self.form_rings();
    }

    /// Lets a vdev take new blocks, or no more; the one being removed takes none.
    pub(super) fn set_passive(&mut self, vdev: u32, passive: bool) {
        let is_leaving = self.removing.as_ref().is_some_and(|it| it.vdev == vdev);
        if let Some(top) = self.top_mut(vdev) {
            top.facts.passive = passive || is_leaving;
        }
        self.form_rings();
    }

    /// Somebody needs a vdev to take no new blocks for now, or does not any more.
    pub(super) fn keep_closed(&mut self, vdev: u32, closed: bool) {
        if let Some(top) = self.top_mut(vdev) {
            top.closers = match closed {
                true => top.closers.saturating_add(1),
                false => top.closers.saturating_sub(1),
            };
        }
        self.form_rings();
    }

    /// Sorts the vdevs that take blocks into their classes.
    pub(super) fn form_rings(&mut self) {
        let mut rings: [Ring; 4] = Default::default();
        for top in self.tops.iter().flatten().filter(|top| top.takes_blocks() && top.size > 0) {
            if let Some(ring) = rings.get_mut(top.facts.class as usize) {
                let turn = TURN.saturating_mul(top.facts.width.max(1)).cast_signed();
                ring.credit.push(if ring.tops.is_empty() { turn } else { 0 });
                ring.tops.push(top.facts.id);
            }
        }
        self.rings = rings;
    }

    pub(super) fn ring(&self, class: AllocationClass) -> &[u32] {
        self.rings.get(class as usize).map_or(&[], |ring| &ring.tops)
    }

    /// Where the turn stands in a class.
    pub(super) fn turn(&self, class: AllocationClass) -> usize {
        self.rings.get(class as usize).map_or(0, |ring| ring.at)
    }

    /// Counts the first copy of a block to the turn of the vdev that took it.
    pub(super) fn count_turn(&mut self, class: AllocationClass, place: usize, asize: u64) {
        let charge = |ring: &mut Ring, place: usize, bytes: i64| -> i64 {
            let Some(credit) = ring.credit.get_mut(place) else { return 1 };
            *credit = credit.saturating_add(bytes);
            *credit
        };
        let Some(ring) = self.rings.get_mut(class as usize) else { return };
        let taken = i64::try_from(asize).unwrap_or(i64::MAX);
        let (mut at, mut left) = (place, charge(ring, place, taken.saturating_neg()));
        // Each step gives credit, so this ends.
        while left <= 0 {
            at = (at + 1) % self.ring(class).len().max(1);
            let turn = self.turn_length(class, at).cast_signed();
            let Some(ring) = self.rings.get_mut(class as usize) else { return };
            left = charge(ring, at, turn);
        }
        if let Some(ring) = self.rings.get_mut(class as usize) {
            ring.at = at;
        }
    }

    /// Bytes of a vdev's turn: more for one with more free space than the others.
    fn turn_length(&self, class: AllocationClass, place: usize) -> u64 {
        let ring = self.ring(class);
        let figures = |id: &u32| {
            let top = self.top(*id);
            let free = |top: &Top| top.size.saturating_sub(top.recorded.max(0).cast_unsigned());
            top.map_or((0, 0), |top| (u128::from(free(top)), u128::from(top.size)))
        };
        let (free, size) = ring.iter().map(figures).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let (own_free, own_size) = ring.get(place).map_or((0, 0), figures);
        let top = ring.get(place).and_then(|id| self.top(*id));
        let usual = TURN.saturating_mul(top.map_or(1, |top| top.facts.width.max(1)));
        // Its share of free space over everybody's share.
        let biased = (u128::from(usual) * own_free * size).checked_div(own_size * free);
        let biased = biased.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(usual);
        biased.clamp(usual / BIAS, usual.saturating_mul(BIAS))
    }

    /// Whether blocks can be allocated and freed in `txg` now.
    pub(super) fn check_open(&self, txg: Txg) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let window = self.synced.0 + 1..self.synced.0 + SLOTS as u64;
        if window.contains(&txg.0) {
            return Ok(());
        }
        let synced = self.synced;
        Err(Error::invalid(format!("group {} is not open: {} is on the disks", txg.0, synced.0)))
    }

    /// What groups before this one freed can be allocated: no group that could still be opened refers
    /// to it, nor does what anybody reads who holds it.
    fn released_before(&self) -> Txg {
        let due = Txg(self.synced.0.saturating_sub(DEFER - 1));
        let held = self.holders.keys().next().copied();
        held.map_or(due, |held| held.min(due))
    }

    /// Somebody keeps what is freed from now on, and was in the newest groups: the first of these groups.
    pub(super) fn begin_hold(&mut self) -> Txg {
        // A group is shown a moment after it is on the disks: what the newest one freed may be found yet.
        let since = Txg(self.synced.0.saturating_sub(DEFER - 1));
        *self.holders.entry(since).or_default() += 1;
        since
    }

    /// Who keeps what group `since` and later ones freed does so no more.
    pub(super) fn end_hold(&mut self, since: Txg) -> Result<()> {
        let before = self.released_before();
        if let Some(count) = self.holders.get_mut(&since) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.holders.remove(&since);
            }
        }
        // The writer may wait for this space within a group.
        if self.released_before() > before { self.release() } else { Ok(()) }
    }

    /// Lets everything be allocated again that nothing keeps any more.
    pub(super) fn release(&mut self) -> Result<()> {
        let end = self.released_before();
        for (vdev, index) in std::mem::take(&mut self.held) {
            let slab = self.slab_mut(vdev, index)?;
            let start = slab.start;
            let contradicts =
                |Conflict| at(Error::corrupt("what was freed lately is free already"), vdev, start);
            let any = slab.release_before(end).map_err(contradicts)?;
            if slab.held_back() > 0 {
                self.held.insert((vdev, index));
            }
            if !any {
                continue;
            }
            if let Some(all) = self.released.as_mut() {
                all.insert((vdev, index));
            }
            if let Some(top) = self.top_mut(vdev) {
                top.rerank(index);
            }
        }
        Ok(())
    }

    /// The newest group that can be open.
    pub(super) fn newest(&self) -> Txg {
        Txg(self.synced.0 + SLOTS as u64 - 1)
    }

    /// The metaslab an address lies in.
    pub(super) fn locate(&self, dva: &Dva) -> Result<usize> {
        let Dva { vdev, offset, asize, .. } = *dva;
        let Some(top) = self.top(vdev) else {
            let reason = "the vdev holds no space that can be allocated or freed";
            return Err(at(Error::unsupported(reason), vdev, offset));
        };
        top.metaslab_of(offset, asize).ok_or_else(|| {
            let reason = format!("{asize:#x} bytes do not lie inside one metaslab, or not aligned");
            at(Error::corrupt(reason), vdev, offset)
        })
    }

    /// Frees a range that lies inside one metaslab.
    pub(super) fn give_up(&mut self, dva: &Dva, txg: Txg) -> Result<()> {
        let newest = self.newest();
        let index = self.locate(dva)?;
        let slab = self.slab_mut(dva.vdev, index)?;
        slab.give_up(dva.offset, dva.asize, txg, newest).map_err(|_| {
            let reason = format!("{:#x} bytes are freed that are free", dva.asize);
            at(Error::corrupt(reason), dva.vdev, dva.offset)
        })?;
        self.mark_dirty(dva.vdev, index, txg);
        self.recycled.note(dva.vdev, dva.offset, dva.asize, txg);
        Ok(())
    }

    /// Remembers that a metaslab has changes in `txg`.
    pub(super) fn mark_dirty(&mut self, vdev: u32, index: usize, txg: Txg) {
        if let Some(dirty) = self.dirty.get_mut(slot(txg)) {
            dirty.insert((vdev, index));
        }
    }

    /// The figures as of now.
    pub(super) fn figures(&self) -> Figures {
        let tops = self.tops.iter().flatten().map(|top| {
            let held = self.held.range((top.facts.id, 0)..=(top.facts.id, usize::MAX));
            let deferred = held.filter_map(|(_, index)| top.metaslabs.get(*index));
            let shares = top.metaslabs.iter().map(|slab| match &slab.map {
                Some(map) => map
                    .header
                    .histogram
                    .map(|buckets| fragmentation_percent(&buckets, top.facts.ashift)),
                None => Some(0),
            });
            let known: Vec<u64> = shares.flatten().collect();
            // Without a histogram for more than half of the metaslabs the average means nothing.
            let enough = known.len() > top.metaslabs.len() / 2;
            let mean = || known.iter().sum::<u64>().checked_div(known.len() as u64);
            TopFigures {
                id: top.facts.id,
                class: top.facts.class,
                size: top.size,
                allocated: u64::try_from(top.recorded).unwrap_or(0),
                deferred: deferred.map(Metaslab::held_back).sum(),
                lost: top.metaslabs.iter().map(Metaslab::lost_bytes).sum(),
                headers: if enough { headers(top) } else { 0 },
                fragmentation: enough.then(mean).flatten(),
                deflate_ratio: top.facts.geometry.deflate_ratio,
                embedded_log: top
                    .embedded
                    .and_then(|index| top.metaslabs.get(index))
                    .map_or(0, |_| 1 << top.facts.metaslab_shift),
                passive: !top.takes_blocks(),
                mapping_estimate: enough.then(|| mapping_estimate(top)),
            }
        });
        Figures { txg: self.synced, tops: tops.collect() }
    }
}

/// Bytes that gang headers take of a vdev if large blocks fill what is free of it.
fn headers(top: &Top) -> u64 {
    let (ashift, least) = (top.facts.ashift, top.facts.geometry.least);
    let shares = top.metaslabs.iter().filter_map(|slab| {
        let free = Some(slab.free_bytes()).filter(|free| *free > 0)?;
        let (bytes, taken) = taken_by_gangs(&slab.map.as_ref()?.header.histogram?, ashift, least);
        // What the histogram counts waits in part, or is taken since.
        let taken = u128::from(free).saturating_mul(taken).checked_div(bytes)?;
        Some(u64::try_from(taken).unwrap_or(u64::MAX))
    });
    shares.fold(0, u64::saturating_add)
}

/// Bytes of memory the mapping of a vdev takes if that is removed, about: an entry for each free segment
/// that is too large to be copied along, and for each 16 MiB.
fn mapping_estimate(top: &Top) -> u64 {
    let (mut entries, mut bytes) = (0_u64, top.recorded.max(0).cast_unsigned());
    let maps = top.metaslabs.iter().filter_map(|slab| slab.map.as_ref());
    for buckets in maps.filter_map(|map| map.header.histogram) {
        for (log, count) in (top.facts.ashift..).zip(buckets) {
            if log < COPIED_ALONG {
                bytes = bytes.saturating_add(count.saturating_mul(2 << log));
            } else {
                entries = entries.saturating_add(count);
            }
        }
    }
    entries.saturating_add(bytes >> LONGEST_ENTRY).saturating_mul(ENTRY as u64)
}
