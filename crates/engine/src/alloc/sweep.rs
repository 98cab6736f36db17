//! Free space as it is lent to who overwrites it or gives it up to the device: initialize and trim.
//!
//! Chapter 08, sections 12 and 13. Invariant: while a metaslab is lent nothing is allocated in it, so that what was
//! free when it was lent stays free; what was freed lately and an older group may still need is not lent.

use super::allocator::Allocator;
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
}

impl Drop for Swept<'_> {
    fn drop(&mut self) {
        self.allocator.state.lock().swept = None;
        self.allocator.changed.notify_all();
    }
}

impl Allocator {
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
    /// [`ErrorKind::Busy`] if another one is lent.
    pub fn sweep(&self, vdev: u32, index: usize) -> Result<Swept<'_>> {
        let mut state = self.state.lock();
        if state.swept.is_some() {
            return Err(Error::new(ErrorKind::Busy, "another metaslab is swept"));
        }
        let free = match self.load(&mut state, vdev, index)? {
            true => state.slab(vdev, index)?.loaded().map(|loaded| loaded.tree.iter().collect()),
            false => None,
        };
        state.swept = Some((vdev, index));
        Ok(Swept { allocator: self, free: free.unwrap_or_default() })
    }
}
