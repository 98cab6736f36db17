//! What only the pool's checkpoint still holds: blocks freed since it was taken.
//!
//! Chapter 03, section 14. Such a range stays allocated in its metaslab's map and is listed in a map
//! of its vdev, from which it is freed when the checkpoint is discarded. Invariant: while there is
//! a checkpoint nothing that was born in its group or before becomes free; no range of the map lies in
//! two metaslabs.

use std::collections::BTreeMap;

use cenote_format::space_map::{Action, Record, Segment, records};
use cenote_format::{Dva, ObjectId, Txg};

use super::allocator::Allocator;
use super::map::{BLOCK, Delta, Frame, Moment, SpaceMap, encode};
use super::metaslab::{SLOTS, slot};
use super::ranges::RangeSet;
use super::state::{AllocatorState, at};
use super::store::{CHECKPOINT_MAP, SpaceStore};
use crate::{Error, Result};

/// Blocks of a vdev's map that are worked off in one group.
const BLOCKS_AT_ONCE: u64 = 8;

/// What a part of a discarding did.
#[derive(Clone, Debug, Default)]
pub struct Discarded {
    /// Bytes that were freed.
    pub bytes: u64,
    /// Ranges and maps that were worked off; none if no map could be read.
    pub ranges: u64,
    /// Nothing is left of the checkpoint, nor of the maps.
    pub finished: bool,
    /// Why the part of some vdev was not done: its map cannot be read.
    pub trouble: Option<Error>,
}

/// What only the checkpoint holds of one vdev.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) map: Option<SpaceMap>,
    /// Not recorded yet, by group.
    pending: [RangeSet; SLOTS],
}

impl Kept {
    /// Something is to be recorded in `txg`.
    pub(super) fn is_dirty(&self, txg: Txg) -> bool {
        self.pending.get(slot(txg)).is_some_and(|set| !set.is_empty())
    }

    /// Bytes recorded: the map has frees only.
    fn bytes(&self) -> u64 {
        self.map.as_ref().map_or(0, |map| map.header.allocated.unsigned_abs())
    }
}

impl AllocatorState {
    /// A block born in `birth` and freed in `txg` is part of the checkpoint.
    pub(super) fn keeps(&self, birth: Txg, txg: Txg) -> bool {
        self.checkpoint.is_some_and(|checkpoint| birth <= checkpoint && txg > checkpoint)
    }

    /// Keeps a range of a vdev for the checkpoint.
    pub(super) fn keep(&mut self, dva: &Dva, txg: Txg) -> Result<()> {
        let Dva { vdev, offset, asize, .. } = *dva;
        let pending = self.top_mut(vdev).and_then(|top| top.kept.pending.get_mut(slot(txg)));
        if pending.is_some_and(|pending| pending.insert(offset, asize).is_ok()) {
            return Ok(());
        }
        let reason = format!("{asize:#x} bytes of the checkpoint are freed twice");
        Err(at(Error::corrupt(reason), vdev, offset))
    }

    /// Vdevs of which something is to be recorded in `txg`.
    pub(super) fn keeping(&self, txg: Txg) -> impl Iterator<Item = u32> + '_ {
        let tops = self.tops.iter().flatten();
        tops.filter(move |top| top.kept.is_dirty(txg)).map(|top| top.facts.id)
    }
}

impl Allocator {
    /// From group `checkpoint + 1` on, blocks born in `checkpoint` or before are kept when they
    /// are freed. `None`: no longer. Not while a group frees.
    pub fn set_checkpoint(&self, checkpoint: Option<Txg>) {
        self.state.lock().checkpoint = checkpoint;
    }

    /// Bytes that only the checkpoint holds, as recorded.
    pub fn held_by_checkpoint(&self) -> u64 {
        let state = self.state.lock();
        state.tops.iter().flatten().fold(0, |sum: u64, top| sum.saturating_add(top.kept.bytes()))
    }

    /// The same of one top-level vdev.
    pub fn held_by_checkpoint_on(&self, vdev: u32) -> u64 {
        let state = self.state.lock();
        let top = state.tops.iter().flatten().find(|top| top.facts.id == vdev);
        top.map_or(0, |top| top.kept.bytes())
    }

    /// Records what is kept of the group.
    pub(super) fn record_kept(&self, store: &mut dyn SpaceStore, moment: Moment) -> Result<bool> {
        let dirty: Vec<u32> = self.state.lock().keeping(moment.txg).collect();
        for id in &dirty {
            let (freed, map, zap, shift, metaslab_shift) = {
                let mut state = self.state.lock();
                let Some(top) = state.top_mut(*id) else { continue };
                let pending = top.kept.pending.get_mut(slot(moment.txg));
                let freed = pending.map(std::mem::take).unwrap_or_default();
                let facts = &top.facts;
                (freed, top.kept.map.clone(), facts.zap, facts.ashift, facts.metaslab_shift)
            };
            let mut map = match map {
                Some(map) => map,
                None if zap == ObjectId(0) => {
                    let reason = format!("top-level vdev {id} has no ZAP for the checkpoint's map");
                    return Err(Error::corrupt(reason));
                }
                None => {
                    let map = SpaceMap::create_with(store, BLOCK)?;
                    store.zap_set(zap, CHECKPOINT_MAP, map.object.0)?;
                    map
                }
            };
            let frame = Frame { start: 0, shift: u8::try_from(shift).unwrap_or(9), vdev: None };
            let mut encoder = map.encoder(store);
            let mut net = 0_i64;
            for freed in by_metaslab(&freed, metaslab_shift)? {
                let delta = Delta { allocated: RangeSet::default(), freed };
                net = net.saturating_add(delta.net());
                encode(&mut encoder, &delta, frame, moment)?;
            }
            map.append(store, &encoder.finish(), net)?;
            map.write_header(store)?;
            if let Some(top) = self.state.lock().top_mut(*id) {
                top.kept.map = Some(map);
            }
        }
        Ok(!dirty.is_empty())
    }

    /// Frees in `txg` a part of what a checkpoint held that is being discarded.
    pub fn discard_kept(&self, store: &mut dyn SpaceStore, txg: Txg) -> Result<Discarded> {
        let mut done = Discarded::default();
        let all: Vec<(u32, SpaceMap, ObjectId, u32, u32)> = {
            let state = self.state.lock();
            if state.checkpoint.is_some() {
                return Ok(done);
            }
            let tops = state.tops.iter().flatten();
            tops.filter_map(|top| {
                let (facts, map) = (&top.facts, top.kept.map.clone()?);
                Some((facts.id, map, facts.zap, facts.ashift, facts.metaslab_shift))
            })
            .collect()
        };
        done.finished = true;
        for (id, mut map, zap, shift, metaslab_shift) in all {
            let segments = match last_segments(store, &map) {
                Ok((start, segments)) => {
                    map.header.length = start;
                    segments
                }
                Err(error) => {
                    done.finished = false;
                    done.trouble.get_or_insert(error.at_object(0, map.object.0));
                    continue;
                }
            };
            done.ranges = done.ranges.saturating_add(segments.len() as u64).saturating_add(1);
            for segment in segments {
                let shift = u8::try_from(shift).unwrap_or(9);
                let (offset, asize) = segment
                    .bytes(0, shift)
                    .map_err(|error| Error::from(error).at_object(0, map.object.0))?;
                let mut state = self.state.lock();
                state.check_open(txg)?;
                // Maps of before 26 November 2026 have ranges that lie in several.
                for (start, end) in cut(offset, offset.saturating_add(asize), metaslab_shift) {
                    let dva = Dva { vdev: id, offset: start, asize: end - start, gang: false };
                    state.give_up(&dva, txg)?;
                }
                map.header.allocated = map.header.allocated.saturating_add_unsigned(asize);
                done.bytes = done.bytes.saturating_add(asize);
            }
            let left = if map.header.length > 0 {
                done.finished = false;
                map.write_header(store)?;
                Some(map)
            } else {
                store.zap_remove(zap, CHECKPOINT_MAP)?;
                map.destroy(store)?;
                None
            };
            if let Some(top) = self.state.lock().top_mut(id) {
                top.kept.map = left;
            }
        }
        Ok(done)
    }
}

/// The parts of a range, each in one metaslab: where it starts and ends.
fn cut(start: u64, end: u64, metaslab_shift: u32) -> impl Iterator<Item = (u64, u64)> {
    let size = 1_u64.checked_shl(metaslab_shift).unwrap_or(u64::MAX);
    let next = move |start: u64| start.checked_next_multiple_of(size).unwrap_or(u64::MAX);
    let part =
        move |start: u64| (start < end).then(|| (start, next(start.saturating_add(1)).min(end)));
    std::iter::successors(part(start), move |(_, before)| part(*before))
}

/// Ranges, those of each metaslab apart.
fn by_metaslab(all: &RangeSet, metaslab_shift: u32) -> Result<Vec<RangeSet>> {
    let mut sets: BTreeMap<u64, RangeSet> = BTreeMap::new();
    for (start, end) in all.iter().flat_map(|(start, end)| cut(start, end, metaslab_shift)) {
        let set = sets.entry(start >> metaslab_shift).or_default();
        let inserted = set.insert(start, end - start);
        inserted.map_err(|_| Error::bug("a range that the checkpoint holds overlaps another"))?;
    }
    Ok(sets.into_values().collect())
}

/// The last part of a checkpoint's map: where it begins, and what it frees.
fn last_segments(store: &dyn SpaceStore, map: &SpaceMap) -> Result<(u64, Vec<Segment>)> {
    let end = map.header.length;
    let part = BLOCKS_AT_ONCE.saturating_mul(map.block_size.max(8));
    let start = end.saturating_sub(1) / part * part;
    let bytes = usize::try_from(end - start).unwrap_or(usize::MAX);
    let mut segments = Vec::new();
    for record in records(&store.read(map.object, start, bytes)?) {
        let Record::Segment(segment) = record? else { continue };
        if segment.action != Action::Free {
            return Err(Error::corrupt("the checkpoint's map allocates"));
        }
        segments.push(segment);
    }
    Ok((start, segments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_with_their_metaslab() {
        let mut all = RangeSet::default();
        for (start, length) in [(0x1000, 0x2000), (0x1f000, 0x22000), (0x60000, 0x20000)] {
            all.insert(start, length).unwrap();
        }
        let sets = by_metaslab(&all, 16).unwrap();
        let ranges: Vec<Vec<(u64, u64)>> = sets.iter().map(|set| set.iter().collect()).collect();
        let expected: [&[(u64, u64)]; 6] = [
            &[(0x1000, 0x3000)],
            &[(0x1f000, 0x20000)],
            &[(0x20000, 0x30000)],
            &[(0x30000, 0x40000)],
            &[(0x40000, 0x41000)],
            &[(0x60000, 0x70000)],
        ];
        assert_eq!(ranges[..6], expected);
        assert_eq!(ranges[6], [(0x70000, 0x80000)]);
        assert!(cut(5, 5, 16).next().is_none());
    }
}
