//! Free space as it is lent to who overwrites it or gives it up to the device (initialize and trim), and what is not
//! free to who moves it (expansion).
//!
//! Chapter 08, sections 12, 13 and 21. Invariant: while a metaslab is lent nothing is allocated in it, so that what was
//! free when it was lent stays free; what was freed lately and an older group may still need is not lent. Whoever finds
//! no space elsewhere asks for it, and has it before it is lent again.

use parking_lot::MutexGuard;

use super::allocator::Allocator;
use super::metaslab::Metaslab;
use super::ranges::RangeSet;
use super::state::AllocatorState;
use crate::{Error, ErrorKind, Result};

/// The free space of a metaslab, as long as nothing is allocated there.
pub struct Swept<'a> {
    allocator: &'a Allocator,
    free: Vec<(u64, u64)>,
}

impl Swept<'_> {
    /// Free segments: where they start and end on the vdev, ascending.
    pub fn free(&self) -> &[(u64, u64)] {
        &self.free
    }

    /// Somebody waits for it: it is to be given back as soon as can be.
    pub fn is_wanted(&self) -> bool {
        self.allocator.state.lock().waiting > 0
    }
}

impl Drop for Swept<'_> {
    fn drop(&mut self) {
        self.allocator.end_loan();
    }
}

impl Allocator {
    fn end_loan(&self) {
        self.state.lock().end_loan();
        self.changed.notify_all();
    }

    /// First byte and end of each metaslab of a vdev; none of one that takes no blocks.
    pub fn metaslabs(&self, vdev: u32) -> Vec<(u64, u64)> {
        let state = self.state.lock();
        let slabs = state.top(vdev).map(|top| top.metaslabs.as_slice()).unwrap_or_default();
        slabs.iter().map(|slab| (slab.start, slab.start.saturating_add(slab.size))).collect()
    }

    /// From now on it is noted in which metaslabs something becomes free, or no more.
    pub fn note_released(&self, on: bool) {
        self.state.lock().released = on.then(Default::default);
    }

    /// Metaslabs in which something became free since this was last asked: their vdevs and places there.
    pub fn take_released(&self) -> Vec<(u32, usize)> {
        let mut state = self.state.lock();
        let all = state.released.as_mut().map(std::mem::take);
        all.into_iter().flatten().collect()
    }

    /// Lends the free space of a metaslab. One at a time.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another one is lent, or somebody waits for what was.
    pub fn sweep(&self, vdev: u32, index: usize) -> Result<Swept<'_>> {
        let mut state = self.state.lock();
        let is_busy = |state: &AllocatorState| state.swept.is_some() || state.waiting > 0;
        let busy = || Err(Error::new(ErrorKind::Busy, "another metaslab is swept"));
        if is_busy(&state) {
            return busy();
        }
        let free = match self.load(&mut state, vdev, index)? {
            true => state.slab(vdev, index)?.loaded().map(|loaded| loaded.tree.iter().collect()),
            false => None,
        };
        // Others had the lock while the map was read.
        if is_busy(&state) {
            return busy();
        }
        state.swept = Some((vdev, index..index.saturating_add(1)));
        Ok(Swept { allocator: self, free: free.unwrap_or_default() })
    }
}

/// What is in use of a part of a vdev, as long as nothing is allocated there.
pub struct Occupied<'a> {
    allocator: &'a Allocator,
    ranges: Vec<(u64, u64)>,
    end: u64,
}

impl Occupied<'_> {
    /// What is not free, or was freed a short while ago: start and end of each range, ascending.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Where the part ends.
    pub fn end(&self) -> u64 {
        self.end
    }
}

impl Drop for Occupied<'_> {
    fn drop(&mut self) {
        self.allocator.end_loan();
    }
}

impl Allocator {
    /// What is in use of vdev `vdev` from `from` on, up to `limit` or in so many metaslabs that about `most`
    /// bytes are. Nothing is allocated in those while what this gives is kept.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] if a space map cannot be believed, [`crate::ErrorKind::TimedOut`] if
    /// what is lent is not given back.
    pub fn occupy(&self, vdev: u32, part: (u64, u64), most: u64) -> Result<Occupied<'_>> {
        let mut state = self.state.lock();
        while state.swept.is_some() {
            if !self.ask_back(&mut state)? {
                return Err(Error::new(ErrorKind::TimedOut, "waited too long for a metaslab"));
            }
        }
        match self.not_free(&mut state, vdev, part, most) {
            Ok((ranges, end)) => Ok(Occupied { allocator: self, ranges, end }),
            Err(error) => {
                state.end_loan();
                self.changed.notify_all();
                Err(error)
            }
        }
    }

    /// Ranges that cannot be allocated, and where the part they are in ends.
    fn not_free(
        &self,
        state: &mut MutexGuard<'_, AllocatorState>,
        vdev: u32,
        (from, limit): (u64, u64),
        most: u64,
    ) -> Result<(Vec<(u64, u64)>, u64)> {
        let top = state.top(vdev).ok_or_else(|| Error::not_found("the vdev holds no data"))?;
        let (count, shift) = (top.metaslabs.len(), top.facts.metaslab_shift);
        let first = usize::try_from(from >> shift).unwrap_or(usize::MAX);
        let (mut ranges, mut end, mut bytes) = (Vec::new(), from, 0_u64);
        for index in first..count {
            if bytes >= most || end >= limit {
                break;
            }
            // Nothing comes while the map is read, either.
            state.swept = Some((vdev, first..index.saturating_add(1)));
            if !self.load_if_used(state, vdev, index)? {
                let reason = format!("the space map of metaslab {index} of vdev {vdev} is damaged");
                return Err(Error::corrupt(reason));
            }
            let slab = state.slab(vdev, index)?;
            for (start, stop) in slab.not_free()? {
                let range = (start.max(from), stop.min(limit));
                if range.0 < range.1 {
                    bytes = bytes.saturating_add(range.1 - range.0);
                    ranges.push(range);
                }
            }
            end = slab.start.saturating_add(slab.size).min(limit);
        }
        Ok((ranges, end))
    }

    /// Loads a metaslab unless all of it is free. False if its map cannot be believed.
    fn load_if_used(
        &self,
        state: &mut MutexGuard<'_, AllocatorState>,
        vdev: u32,
        index: usize,
    ) -> Result<bool> {
        let slab = state.slab(vdev, index)?;
        if slab.loaded().is_none() && slab.free_bytes() == slab.size {
            return Ok(true);
        }
        self.load(state, vdev, index)
    }
}

impl Metaslab {
    /// What cannot be allocated now. Needs it loaded, unless all of it is free.
    fn not_free(&self) -> Result<Vec<(u64, u64)>> {
        let wrong = |_| Error::bug("the free space of a metaslab contradicts itself");
        let Some(loaded) = self.loaded() else { return Ok(Vec::new()) };
        let mut free = RangeSet::default();
        for (from, to) in loaded.tree.iter() {
            free.insert(from, to - from).map_err(wrong)?;
        }
        Ok(free.gaps(self.start, self.size))
    }
}
