//! One top-level vdev: its metaslabs, and which of them is tried next.
//!
//! Invariant: `order` holds every metaslab once, under the rank that `ranks` says; a rank may be
//! too high for a metaslab that was allocated from since, never too low for one that is loaded.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use cenote_format::{ObjectId, Txg};
use smallvec::SmallVec;

use super::checkpoint::Kept;
use super::geometry::Geometry;
use super::metaslab::{Metaslab, Presence};
use crate::vdev::AllocationClass;

/// Metaslabs in use at once for the same copy of blocks.
const ACTIVE: usize = 3;
/// Most copies of a block.
pub(super) const COPIES: usize = 3;

/// A top-level vdev.
#[derive(Debug)]
pub(super) struct Top {
    /// What does not follow from its metaslabs.
    pub(super) facts: TopFacts,
    /// What only the checkpoint holds.
    pub(super) kept: Kept,
    /// Object that lists since when metaslabs are not flushed.
    pub(super) unflushed: Option<ObjectId>,
    pub(super) metaslabs: Vec<Metaslab>,
    /// The metaslab set aside for the intent log.
    pub(super) embedded: Option<usize>,
    /// Bytes in metaslabs.
    pub(super) size: u64,
    /// Allocated bytes as recorded.
    pub(super) recorded: i64,
    /// How many need it to take no new blocks for now.
    pub(super) closers: u32,
    order: BTreeSet<(u8, Reverse<usize>)>,
    ranks: Vec<u8>,
    active: [SmallVec<[usize; ACTIVE]>; COPIES],
}

/// What a [`Top`] is by its configuration; only `passive` changes.
#[derive(Debug)]
pub(super) struct TopFacts {
    pub(super) id: u32,
    pub(super) ashift: u32,
    pub(super) class: AllocationClass,
    pub(super) geometry: Geometry,
    /// Nothing new goes there.
    pub(super) passive: bool,
    /// Children, 1 for a single device.
    pub(super) width: u64,
    /// log2 of the distance of metaslabs.
    pub(super) metaslab_shift: u32,
    /// Object that lists the space maps.
    pub(super) array: ObjectId,
    /// The vdev's ZAP; 0 if it has none.
    pub(super) zap: ObjectId,
    /// First group whose blocks may go there.
    pub(super) from: Txg,
}

fn rank(weight: u64) -> u8 {
    weight.checked_ilog2().map_or(0, |log| u8::try_from(log).unwrap_or(63) + 1)
}

impl Top {
    /// Whether new blocks may go there.
    pub(super) fn takes_blocks(&self) -> bool {
        !self.facts.passive && self.closers == 0
    }

    /// A vdev of `count` metaslabs that are all free.
    pub(super) fn new(facts: TopFacts, count: u64) -> Self {
        let metaslab = |index| {
            let (start, size) = facts.geometry.metaslab(index, facts.metaslab_shift);
            Metaslab::new(start, size)
        };
        let metaslabs: Vec<Metaslab> = (0..count).map(metaslab).collect();
        let mut top = Self {
            kept: Kept::default(),
            closers: 0,
            unflushed: None,
            embedded: None,
            size: metaslabs.iter().fold(0, |sum: u64, slab| sum.saturating_add(slab.size)),
            recorded: 0,
            order: BTreeSet::new(),
            ranks: vec![0; metaslabs.len()],
            active: Default::default(),
            metaslabs,
            facts,
        };
        top.sum_up();
        top
    }

    /// Has `count` metaslabs from now on, if those are more; the new ones are free.
    pub(super) fn grow(&mut self, count: u64) {
        for index in self.metaslabs.len() as u64..count {
            let (start, size) = self.facts.geometry.metaslab(index, self.facts.metaslab_shift);
            let slab = Metaslab::new(start, size);
            let rank = rank(slab.largest());
            self.order.insert((rank, Reverse(self.metaslabs.len())));
            self.ranks.push(rank);
            self.size = self.size.saturating_add(size);
            self.metaslabs.push(slab);
        }
    }

    /// Counts and ranks all metaslabs anew, and sets one aside for the intent log if due.
    pub(super) fn sum_up(&mut self) {
        let all = || self.metaslabs.iter().enumerate();
        self.recorded = all().fold(0, |sum: i64, (_, slab)| sum.saturating_add(slab.recorded));
        self.ranks = all().map(|(_, slab)| rank(slab.largest())).collect();
        self.order = self.ranks.iter().enumerate().map(|(i, rank)| (*rank, Reverse(i))).collect();
        let many = self.metaslabs.len() as u64 > super::geometry::EMBEDDED_LOG_ABOVE;
        self.embedded = (self.facts.class == AllocationClass::Normal && many)
            .then(|| all().min_by_key(|(index, slab)| (slab.recorded, Reverse(*index))))
            .flatten()
            .map(|(index, _)| index);
    }

    /// The metaslab that holds all of a range.
    pub(super) fn metaslab_of(&self, offset: u64, length: u64) -> Option<usize> {
        let index = usize::try_from(offset >> self.facts.metaslab_shift).ok()?;
        let slab = self.metaslabs.get(index)?;
        let end = offset.checked_add(length)?;
        let mask = (1u64 << self.facts.ashift) - 1;
        let aligned = offset & mask == 0 && length & mask == 0;
        let inside = offset >= slab.start && end <= slab.start + slab.size;
        (aligned && inside && length > 0).then_some(index)
    }

    /// Puts a metaslab where its weight belongs.
    pub(super) fn rerank(&mut self, index: usize) {
        let Some(slab) = self.metaslabs.get_mut(index) else { return };
        slab.weigh();
        let new = rank(slab.largest());
        let Some(old) = self.ranks.get_mut(index) else { return };
        if *old != new {
            self.order.remove(&(*old, Reverse(index)));
            self.order.insert((new, Reverse(index)));
            *old = new;
        }
    }

    /// Every metaslab stands in the order once, under the rank that is noted of it.
    pub(super) fn is_ranked(&self) -> bool {
        let mut ranks = self.ranks.iter().enumerate();
        self.order.len() == self.metaslabs.len()
            && self.ranks.len() == self.metaslabs.len()
            && ranks.all(|(index, rank)| self.order.contains(&(*rank, Reverse(index))))
    }

    /// Metaslabs in use for copy `copy`.
    pub(super) fn active(&self, copy: usize) -> SmallVec<[usize; ACTIVE]> {
        self.active.get(copy).cloned().unwrap_or_default()
    }

    /// Uses a metaslab for copy `copy` from now on, before others.
    pub(super) fn activate(&mut self, copy: usize, index: usize) {
        let Some(active) = self.active.get_mut(copy) else { return };
        if active.first() == Some(&index) {
            return;
        }
        active.retain(|other| *other != index);
        active.insert(0, index);
        let dropped = if active.len() > ACTIVE { active.pop() } else { None };
        if let Some(dropped) = dropped {
            self.rerank(dropped);
        }
    }

    /// The metaslab is in use.
    pub(super) fn is_active(&self, index: usize) -> bool {
        self.active.iter().any(|active| active.contains(&index))
    }

    /// The most promising metaslab for a block of `length` bytes of those that `fits` lets through.
    pub(super) fn pick(&self, length: u64, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let by_rank = || self.order.iter().rev();
        let least = rank(length);
        let slab = |index: &usize| self.metaslabs.get(*index);
        let sure = by_rank()
            .take_while(|(rank, _)| *rank >= least)
            .map(|(_, Reverse(index))| *index)
            .find(|index| slab(index).is_some_and(|slab| slab.largest() >= length) && fits(*index));
        sure.or_else(|| {
            let mut all = by_rank().map(|(_, Reverse(index))| *index);
            all.find(|index| slab(index).is_some_and(|s| s.may_hold(length)) && fits(*index))
        })
    }

    /// There is a metaslab whose free segments are far larger than `largest`.
    pub(super) fn has_better(&self, largest: u64, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let least = rank(largest).saturating_add(2);
        let by_rank = self.order.iter().rev().take_while(|(rank, _)| *rank >= least);
        by_rank.map(|(_, Reverse(index))| *index).find(|index| {
            let slab = self.metaslabs.get(*index);
            slab.is_some_and(|slab| rank(slab.largest()) >= least) && fits(*index)
        })
    }

    /// Forgets the free space of metaslabs nobody used for long, except `keep` of them.
    pub(super) fn unload_idle(&mut self, before: Txg, keep: usize) {
        let loaded = |slab: &Metaslab| matches!(slab.presence, Presence::Loaded(_));
        let count = self.metaslabs.iter().filter(|slab| loaded(slab)).count();
        let mut excess = count.saturating_sub(keep);
        for index in 0..self.metaslabs.len() {
            if excess == 0 {
                break;
            }
            let idle = self
                .metaslabs
                .get(index)
                .is_some_and(|slab| loaded(slab) && slab.last_used < before && slab.is_quiet());
            if idle && !self.is_active(index) {
                self.rerank(index);
                if let Some(slab) = self.metaslabs.get_mut(index) {
                    slab.unload();
                    excess -= 1;
                }
            }
        }
    }
}
