//! The vdev being removed: what of it is still to be copied, and where the rest went.
//!
//! Chapter 08, section 18. The vdev takes nothing new; what is freed meanwhile is freed there, and where
//! it was copied to. All of this happens in the thread that writes groups. Invariant: what lies before
//! the end of the mapping was copied, or was free when that was reached.

use cenote_format::indirect_mapping::{Mapping, MappingEntry};
use cenote_format::{Dva, ObjectId, Txg};
use parking_lot::MutexGuard;

use super::allocator::Allocator;
use super::indirect::{Indirect, Removing};
use super::metaslab::Metaslab;
use super::ranges::{Conflict, RangeSet};
use super::state::{AllocatorState, at};
use super::store::{OBSOLETE_COUNTS, OBSOLETE_MAP, PRECISE, SpaceStore, UNFLUSHED};
use crate::{Error, Result};

impl Metaslab {
    /// What is in use of `start..`, as of the group being written. Needs it loaded.
    fn in_use(&self, start: u64) -> Result<Vec<(u64, u64)>> {
        let wrong = |_: Conflict| Error::bug("the free space of a metaslab contradicts itself");
        let loaded = self.loaded().ok_or_else(|| Error::bug("the metaslab is not loaded"))?;
        let mut free = RangeSet::default();
        for (from, to) in loaded.tree.iter() {
            free.insert(from, to - from).map_err(wrong)?;
        }
        for set in self.unrecorded().map(|delta| &delta.freed).chain(self.waiting()) {
            free.insert_all(set).map_err(wrong)?;
        }
        let end = self.start.saturating_add(self.size);
        let start = start.max(self.start);
        Ok(free.gaps(start, end.saturating_sub(start)))
    }
}

impl AllocatorState {
    fn moving(&self) -> Result<&Removing> {
        self.removing.as_ref().ok_or_else(|| Error::bug("no vdev is being removed"))
    }
}

impl Allocator {
    /// From now on vdev `id` is being removed: it takes nothing, and what is freed of it is freed where it
    /// was copied to, too.
    pub fn begin_removing(&self, vdev: u32) {
        let mut state = self.state.lock();
        let zap = state.top(vdev).map_or(ObjectId(0), |top| top.facts.zap);
        state.removing = Some(Removing { vdev, moved: Indirect::nothing(zap) });
        state.set_passive(vdev, true);
    }

    /// The first stretch in use of the vdev being removed that was not copied: with it the vdev may not go.
    pub fn left_behind(&self) -> Result<Option<(u64, u64)>> {
        let mut from = 0;
        while let Some(used) = self.in_use_from(from, u64::MAX)? {
            let state = self.state.lock();
            let mapping = &state.moving()?.moved.mapping;
            for (start, end) in used {
                if mapping.lookup(start, end.saturating_sub(start)).is_err() {
                    return Ok(Some((start, end)));
                }
                from = end;
            }
        }
        Ok(None)
    }

    /// Bytes in use on a vdev, as of the newest group written.
    pub fn in_use_on(&self, vdev: u32) -> u64 {
        let state = self.state.lock();
        state.top(vdev).map_or(0, |top| top.recorded.max(0).cast_unsigned())
    }

    /// Up to where the vdev being removed was copied.
    pub fn moved_until(&self) -> u64 {
        self.state.lock().removing.as_ref().map_or(0, |it| it.moved.mapping.max_offset())
    }

    /// What is in use of the vdev being removed from `from` on: in the first metaslab that has something,
    /// about `most` bytes at least: start and end of each range, ascending. `None`: nothing.
    pub fn in_use_from(&self, from: u64, most: u64) -> Result<Option<Vec<(u64, u64)>>> {
        let vdev = self.state.lock().moving()?.vdev;
        self.in_use_after(vdev, from, most)
    }

    /// The same of any vdev.
    pub fn in_use_after(&self, vdev: u32, from: u64, most: u64) -> Result<Option<Vec<(u64, u64)>>> {
        let mut state = self.state.lock();
        let top = state.top(vdev).ok_or_else(|| Error::bug("the vdev is gone"))?;
        let first = usize::try_from(from >> top.facts.metaslab_shift).unwrap_or(usize::MAX);
        for index in first..top.metaslabs.len() {
            // Nothing was ever put there, or all of it is free.
            if state.slab(vdev, index)?.recorded == 0 {
                continue;
            }
            let mut ranges = self.in_use_of(&mut state, vdev, index, from)?;
            let mut bytes = 0_u64;
            let count = ranges.iter().take_while(|(start, end)| {
                let is_wanted = bytes < most;
                bytes = bytes.saturating_add(end - start);
                is_wanted
            });
            let count = count.count();
            ranges.truncate(count);
            if !ranges.is_empty() {
                return Ok(Some(ranges));
            }
        }
        Ok(None)
    }

    /// What is in use of a metaslab from `from` on.
    fn in_use_of(
        &self,
        state: &mut MutexGuard<'_, AllocatorState>,
        vdev: u32,
        index: usize,
        from: u64,
    ) -> Result<Vec<(u64, u64)>> {
        if !self.load(state, vdev, index)? {
            let reason = format!("the space map of metaslab {index} of vdev {vdev} is damaged");
            return Err(Error::corrupt(reason));
        }
        state.slab(vdev, index)?.in_use(from)
    }

    /// These ranges of the vdev being removed were copied; they are recorded.
    pub fn note_moved(&self, entries: &[MappingEntry]) -> Result<()> {
        let mut state = self.state.lock();
        let moving = state.removing.as_mut();
        let moving = moving.ok_or_else(|| Error::bug("no vdev is being removed"))?;
        moving.moved.mapping.append(entries)?;
        let lengths = entries.iter().map(|entry| entry.destination.asize);
        moving.moved.mapped = lengths.fold(moving.moved.mapped, u64::saturating_add);
        Ok(())
    }

    /// Where the blocks of the vdev being removed are.
    pub fn moved(&self) -> Result<Mapping> {
        Ok(self.state.lock().moving()?.moved.mapping.clone())
    }

    /// What is still in use of what was copied from the vdev being removed: start and end of each range. What
    /// damaged space maps do not tell is left out.
    pub fn copied_in_use(&self) -> Result<Vec<(u64, u64)>> {
        let until = self.moved_until();
        let mut state = self.state.lock();
        let vdev = state.moving()?.vdev;
        let count = state.top(vdev).map_or(0, |top| top.metaslabs.len());
        let mut copied = Vec::new();
        for index in 0..count {
            let slab = state.slab(vdev, index)?;
            if slab.recorded == 0 || slab.start >= until {
                continue;
            }
            match self.in_use_of(&mut state, vdev, index, 0) {
                Ok(ranges) => {
                    let ranges = ranges.into_iter().map(|(start, end)| (start, end.min(until)));
                    copied.extend(ranges.filter(|(start, end)| start < end));
                }
                Err(error) if error.is_lasting() => {
                    let metaslab = index;
                    tracing::error!(vdev, metaslab, %error, "the space of copies is lost");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(copied)
    }

    /// Frees the copies of `ranges` of the vdev being removed in the group being written, and not the ranges
    /// themselves: the removal is given up. [`Self::keep_vdev`] is to follow.
    pub fn free_copies(&self, ranges: &[(u64, u64)], txg: Txg) -> Result<()> {
        let vdev = self.state.lock().moving()?.vdev;
        for (start, end) in ranges {
            if let Err(error) = self.free_copy(vdev, *start, end.saturating_sub(*start), txg) {
                tracing::error!(vdev, start, end, %error, "the space of a copy is lost");
            }
        }
        Ok(())
    }

    /// Frees what is recorded of what is obsolete on the vdev being removed.
    pub fn destroy_obsolete_of_moved(&self, store: &mut dyn SpaceStore) -> Result<()> {
        let (zap, map) = {
            let state = self.state.lock();
            let moved = &state.moving()?.moved;
            (moved.zap, moved.map.clone())
        };
        if let Some(map) = map {
            map.destroy(store)?;
            store.zap_remove(zap, OBSOLETE_MAP)?;
            store.feature_add(OBSOLETE_COUNTS, -1)?;
        }
        if zap.0 != 0 && store.zap_number(zap, PRECISE)?.is_some() {
            store.zap_remove(zap, PRECISE)?;
            store.feature_add(OBSOLETE_COUNTS, -1)?;
        }
        Ok(())
    }

    /// Frees where a range was copied to, and not the range itself.
    fn free_copy(&self, vdev: u32, offset: u64, asize: u64, txg: Txg) -> Result<()> {
        let mut state = self.state.lock();
        let pieces = state.moving()?.moved.mapping.lookup(offset, asize);
        for piece in pieces.map_err(|error| at(Error::from(error), vdev, offset))? {
            let (vdev, offset, asize) = (piece.vdev, piece.offset, piece.length);
            let places = state.resolve(&Dva { vdev, offset, asize, gang: false })?;
            for dva in &places.concrete {
                state.give_up(dva, txg)?;
            }
            state.note_obsolete(&places, txg)?;
        }
        Ok(())
    }

    /// The removal was given up: the vdev is one like others, and takes new blocks if it may.
    pub fn keep_vdev(&self, vdev: u32, passive: bool) {
        self.state.lock().removing = None;
        self.set_passive(vdev, passive);
    }

    /// Frees what the metadata has of the space of the vdev that was removed, in the group being written:
    /// its maps and lists. [`Self::forget_moved`] is to follow.
    pub fn destroy_maps(&self, store: &mut dyn SpaceStore, vdev: u32) -> Result<()> {
        let (maps, array, unflushed, zap) = {
            let state = self.state.lock();
            let top = state.top(vdev).ok_or_else(|| Error::not_found("the vdev holds no data"))?;
            let maps: Vec<_> = top.metaslabs.iter().filter_map(|slab| slab.map.clone()).collect();
            (maps, top.facts.array, top.unflushed, top.facts.zap)
        };
        for map in maps {
            map.destroy(store)?;
        }
        if array != ObjectId(0) {
            store.destroy(array)?;
        }
        if let Some(unflushed) = unflushed {
            store.zap_remove(zap, UNFLUSHED)?;
            store.destroy(unflushed)?;
        }
        Ok(())
    }

    /// Nothing is on the vdev being removed any more: what is freed of it is freed only where it is now.
    pub fn forget_moved(&self, vdev: u32) {
        {
            let mut state = self.state.lock();
            if let Some(moving) = state.removing.take_if(|it| it.vdev == vdev) {
                state.indirect.insert(vdev, moving.moved);
            }
        }
        self.forget_vdev(vdev);
    }
}
