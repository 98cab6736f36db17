//! One metaslab: what of it is recorded, pending, held back and free.
//!
//! Chapter 03, sections 8 to 11. At any moment the addresses of a metaslab are divided without
//! overlap into: free to allocate; allocated as recorded; allocated but not recorded yet
//! (`pending`, `writing`); freed as recorded but not to be used yet (`freed`, `deferred`).
//! Invariant: a change that does not fit into this division is an error and changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::Txg;

use super::free::FreeTree;
use super::histogram::{self, Histogram};
use super::map::{Delta, SpaceMap};
use super::ranges::{Conflict, RangeSet};
use crate::{Error, Result};

/// Groups that can be open, closing and being written at once, rounded up to a power of two.
pub(super) const SLOTS: usize = 4;
/// Groups that freed space waits after its own.
pub(super) const DEFER: u64 = 2;
/// Groups whose freed space waits by itself; what older ones freed waits as if one of these had.
const APART: usize = 32;
/// Share of free space, in percent, below which only the best fit is used.
const LOW_PERCENT: u64 = 4;
/// Below this largest segment only the best fit is used.
const LOW_SEGMENT: u64 = 128 << 10;
/// Cursors by log2 of what a size is a multiple of.
const CURSORS: usize = 32;

/// The slot of a group.
pub(super) fn slot(txg: Txg) -> usize {
    (txg.0 % SLOTS as u64) as usize
}

/// Which space can be allocated, and where the search goes on.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) tree: FreeTree,
    cursors: [u64; CURSORS],
}

/// How far loading is.
#[derive(Debug)]
pub(super) enum Presence {
    /// Its map has not been read.
    Absent,
    /// Somebody reads it.
    Loading,
    /// It is in memory.
    Loaded(Box<Loaded>),
    /// Its map makes no sense, or no copy of it is right: nothing is allocated here.
    Broken,
}

/// One metaslab.
#[derive(Debug)]
pub(super) struct Metaslab {
    /// First byte on the vdev.
    pub(super) start: u64,
    /// Bytes that can be allocated.
    pub(super) size: u64,
    /// Its own map.
    pub(super) map: Option<SpaceMap>,
    /// Changes in logs of this group and later are not in its own map; 0 if it never was in a log.
    pub(super) unflushed_since: Txg,
    /// What the logs say beyond its own map.
    pub(super) unflushed: Delta,
    /// Allocated bytes according to map and logs.
    pub(super) recorded: i64,
    /// Not recorded yet, by group.
    pub(super) pending: [Delta; SLOTS],
    /// Being recorded.
    pub(super) writing: Option<Arc<Delta>>,
    /// Freed in the group being written, and recorded.
    pub(super) freed: RangeSet,
    /// Freed in earlier groups and not to be used yet, by the newest group that freed any of it.
    pub(super) deferred: BTreeMap<Txg, RangeSet>,
    pub(super) presence: Presence,
    /// Changes whenever the map is rewritten or recorded changes move into it.
    pub(super) generation: u64,
    /// Length of the largest free segment, as well as known.
    pub(super) weight: u64,
    /// The weight is exact, or larger segments cannot have come up since it was.
    pub(super) weighed: bool,
    /// The newest group that allocated here.
    pub(super) last_used: Txg,
}

impl Metaslab {
    /// A metaslab nothing is known of: all of it is free.
    pub(super) fn new(start: u64, size: u64) -> Self {
        Self {
            start,
            size,
            map: None,
            unflushed_since: Txg(0),
            unflushed: Delta::default(),
            recorded: 0,
            pending: Default::default(),
            writing: None,
            freed: RangeSet::default(),
            deferred: Default::default(),
            presence: Presence::Absent,
            generation: 0,
            weight: size,
            weighed: true,
            last_used: Txg(0),
        }
    }

    /// Takes its map as found on the disks.
    pub(super) fn set_map(&mut self, map: SpaceMap, shift: u32) {
        self.recorded = map.header.allocated;
        let free = self.free_bytes();
        self.weight = match &map.header.histogram {
            Some(buckets) => histogram::largest(buckets, shift).min(free),
            None => free,
        };
        self.weighed = false;
        self.map = Some(map);
    }

    pub(super) fn loaded(&self) -> Option<&Loaded> {
        match &self.presence {
            Presence::Loaded(loaded) => Some(loaded),
            _ => None,
        }
    }

    fn loaded_mut(&mut self) -> Option<&mut Loaded> {
        match &mut self.presence {
            Presence::Loaded(loaded) => Some(loaded),
            _ => None,
        }
    }

    /// Bytes that can be allocated now.
    pub(super) fn free_bytes(&self) -> u64 {
        if let Some(loaded) = self.loaded() {
            return loaded.tree.bytes();
        }
        if matches!(self.presence, Presence::Broken) {
            return 0;
        }
        self.not_taken()
    }

    /// Bytes that are free although nobody knows where: its map is lost.
    pub(super) fn lost_bytes(&self) -> u64 {
        match self.presence {
            Presence::Broken => self.not_taken(),
            _ => 0,
        }
    }

    /// Bytes that are neither allocated nor held back, as far as that is counted.
    fn not_taken(&self) -> u64 {
        let unrecorded: u64 = self.unrecorded().map(|delta| delta.allocated.bytes()).sum();
        let held = unrecorded + self.held_back();
        let recorded = u64::try_from(self.recorded).unwrap_or(0);
        self.size.saturating_sub(recorded).saturating_sub(held)
    }

    /// Bytes that are free on the disks but wait.
    pub(super) fn held_back(&self) -> u64 {
        self.waiting().map(RangeSet::bytes).sum()
    }

    /// What groups did that is not recorded yet.
    pub(super) fn unrecorded(&self) -> impl Iterator<Item = &Delta> {
        self.pending.iter().chain(self.writing.as_deref())
    }

    /// What is recorded as free and is not to be used yet.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &RangeSet> {
        std::iter::once(&self.freed).chain(self.deferred.values())
    }

    /// Length of the largest free segment, as well as known.
    pub(super) fn largest(&self) -> u64 {
        match &self.presence {
            Presence::Loaded(loaded) => loaded.tree.largest(),
            Presence::Broken => 0,
            _ => self.weight,
        }
    }

    /// A segment of `length` bytes may be here although the weight says no.
    pub(super) fn may_hold(&self, length: u64) -> bool {
        match &self.presence {
            Presence::Loaded(loaded) => loaded.tree.largest() >= length,
            Presence::Broken => false,
            _ => self.weight >= length || !self.weighed && self.free_bytes() >= length,
        }
    }

    /// Becomes loaded: `free` is what its own map leaves free.
    pub(super) fn finish_load(
        &mut self,
        mut free: RangeSet,
        boundary: Option<u64>,
    ) -> Result<(), &'static str> {
        let step = |done: Result<(), Conflict>, what| done.map_err(|_| what);
        step(free.remove_all(&self.unflushed.allocated), "a log allocates what is not free")?;
        step(free.insert_all(&self.unflushed.freed), "a log frees what is free")?;
        let allocated = self.size.saturating_sub(free.bytes());
        if i64::try_from(allocated) != Ok(self.recorded) {
            return Err("the header of the space map counts other bytes than its entries");
        }
        for set in self.unrecorded().map(|delta| &delta.allocated).chain(self.waiting()) {
            step(free.remove_all(set), "what waits to be free, or to be recorded, is not free")?;
        }
        let is_free =
            |delta: &Delta| delta.freed.iter().any(|(from, to)| free.overlaps(from, to - from));
        if self.unrecorded().any(is_free) {
            return Err("what was freed was free before");
        }
        let tree = FreeTree::new(&free, boundary);
        self.presence = Presence::Loaded(Box::new(Loaded { tree, cursors: [self.start; CURSORS] }));
        self.weigh();
        Ok(())
    }

    /// Forgets what can be allocated; it is read again when needed.
    pub(super) fn unload(&mut self) {
        self.weigh();
        self.presence = Presence::Absent;
        self.generation += 1;
    }

    /// Group `txg` is on the disks: what it freed waits from now on.
    pub(super) fn defer(&mut self, txg: Txg) -> Result<(), Conflict> {
        if self.freed.is_empty() {
            return Ok(());
        }
        let freed = std::mem::take(&mut self.freed);
        self.deferred.entry(txg).or_default().insert_all(&freed)?;
        if self.deferred.len() > APART
            && let Some((_, oldest)) = self.deferred.pop_first()
            && let Some(mut next) = self.deferred.first_entry()
        {
            next.get_mut().insert_all(&oldest)?;
        }
        Ok(())
    }

    /// What groups before `end` freed can be allocated again; says whether that is anything.
    pub(super) fn release_before(&mut self, end: Txg) -> Result<bool, Conflict> {
        let kept = self.deferred.split_off(&end);
        let due = std::mem::replace(&mut self.deferred, kept);
        due.values().try_for_each(|ranges| self.release(ranges))?;
        Ok(!due.is_empty())
    }

    /// Space that was held back can be allocated again.
    fn release(&mut self, ranges: &RangeSet) -> Result<(), Conflict> {
        match &mut self.presence {
            Presence::Loaded(loaded) => {
                ranges.iter().try_for_each(|(from, to)| loaded.tree.insert(from, to - from))
            }
            _ => {
                self.weighed &= ranges.is_empty();
                Ok(())
            }
        }
    }

    /// Brings the weight up to date; says whether it is another than before.
    pub(super) fn weigh(&mut self) -> bool {
        let before = self.weight;
        match &self.presence {
            Presence::Loaded(loaded) => {
                self.weight = loaded.tree.largest();
                self.weighed = true;
            }
            Presence::Broken => self.weight = 0,
            _ => {}
        }
        self.weight != before
    }

    /// Where a block of `length` bytes would go without going to the best fit; needs it loaded.
    pub(super) fn first_fit(&self, length: u64) -> Option<u64> {
        let loaded = self.loaded()?;
        let low = loaded.tree.bytes() < self.size / 100 * LOW_PERCENT
            || loaded.tree.largest() < LOW_SEGMENT;
        let cursor = loaded.cursors.get(cursor(length)).copied().unwrap_or(self.start);
        (!low).then(|| loaded.tree.first_fit(cursor, length)).flatten()
    }

    /// Where a block of `length` bytes fits most snugly; needs it loaded.
    pub(super) fn best_fit(&self, length: u64) -> Option<u64> {
        self.loaded()?.tree.best_fit(length)
    }

    /// Allocates a range in `txg`. `next`: the search for blocks like this goes on behind it.
    pub(super) fn take(
        &mut self,
        start: u64,
        length: u64,
        txg: Txg,
        next: bool,
    ) -> Result<(), Conflict> {
        let loaded = self.loaded_mut().ok_or(Conflict)?;
        loaded.tree.remove(start, length)?;
        if next && let Some(cursor) = loaded.cursors.get_mut(cursor(length)) {
            *cursor = start + length;
        }
        let pending = self.pending.get_mut(slot(txg)).ok_or(Conflict)?;
        pending.allocated.insert(start, length)?;
        self.last_used = self.last_used.max(txg);
        Ok(())
    }

    /// Gives back what was allocated in `txg` and is not recorded.
    pub(super) fn give_back(&mut self, start: u64, length: u64, txg: Txg) -> Result<(), Conflict> {
        let pending = self.pending.get_mut(slot(txg)).ok_or(Conflict)?;
        if pending.freed.overlaps(start, length) {
            return Err(Conflict);
        }
        pending.allocated.remove(start, length)?;
        match &mut self.presence {
            Presence::Loaded(loaded) => loaded.tree.insert(start, length),
            _ => {
                self.weighed = false;
                Ok(())
            }
        }
    }

    /// Frees a range in `txg`; `newest` is the newest group that can be open.
    pub(super) fn give_up(
        &mut self,
        start: u64,
        length: u64,
        txg: Txg,
        newest: Txg,
    ) -> Result<(), Conflict> {
        let free = self.loaded().is_some_and(|loaded| loaded.tree.overlaps(start, length));
        let later = (txg.0 + 1..=newest.0).map(|txg| slot(Txg(txg)));
        let mut later = later.filter_map(|slot| self.pending.get(slot));
        let again = |set: &RangeSet| set.overlaps(start, length);
        if free
            || later.any(|delta| again(&delta.allocated))
            || self.unrecorded().any(|delta| again(&delta.freed))
            || self.waiting().any(again)
            || self.unflushed_free(start, length)
        {
            return Err(Conflict);
        }
        let pending = self.pending.get_mut(slot(txg)).ok_or(Conflict)?;
        pending.freed.insert(start, length)
    }

    /// The logs say that part of the range is free, and it was not allocated again since.
    fn unflushed_free(&self, start: u64, length: u64) -> bool {
        if self.loaded().is_some() || !self.unflushed.freed.overlaps(start, length) {
            return false;
        }
        !self.unrecorded().any(|delta| delta.allocated.overlaps(start, length))
    }

    /// What can be allocated as of the recorded state: what is allocated but not recorded counts
    /// as free. Needs it loaded.
    pub(super) fn recorded_free(&self) -> Result<RangeSet> {
        let wrong = |_| Error::bug("the free space of a metaslab contradicts itself");
        let loaded = self.loaded().ok_or_else(|| Error::bug("the metaslab is not loaded"))?;
        let mut free = RangeSet::default();
        for (from, to) in loaded.tree.iter() {
            free.insert(from, to - from).map_err(wrong)?;
        }
        for set in self.unrecorded().map(|delta| &delta.allocated).chain(self.waiting()) {
            free.insert_all(set).map_err(wrong)?;
        }
        Ok(free)
    }

    /// The histogram of free segments; what waits counts by itself.
    pub(super) fn histogram(&self, shift: u32) -> Option<Histogram> {
        let loaded = self.loaded()?;
        let mut histogram = [0; _];
        loaded.tree.count(&mut histogram, shift);
        let held = self.waiting().chain(self.writing.iter().map(|delta| &delta.freed));
        for (from, to) in held.flat_map(RangeSet::iter) {
            histogram::count(&mut histogram, to - from, shift);
        }
        Some(histogram)
    }

    /// Nothing waits to be recorded or to be released.
    pub(super) fn is_quiet(&self) -> bool {
        self.writing.is_none()
            && self.freed.is_empty()
            && self.pending.iter().all(Delta::is_empty)
            && self.deferred.is_empty()
    }
}

/// The cursor for blocks of `length` bytes.
fn cursor(length: u64) -> usize {
    (length.trailing_zeros() as usize).min(CURSORS - 1)
}
