//! Taking a top-level vdev out of the allocator.
//!
//! Chapter 03, sections 8 to 11. Invariant: a vdev goes only when nothing on it is allocated, in no
//! group that could still be opened, and nothing waits to be recorded of it.

use std::sync::Arc;

use super::allocator::Allocator;
use super::map::SpaceMap;
use super::metaslab::Metaslab;
use super::store::{SpaceStore, UNFLUSHED};
use super::top::Top;
use crate::{Error, ErrorKind, Result};
use cenote_format::ObjectId;

/// Most bytes of an array of maps that are read.
const LONGEST_ARRAY: usize = 16 << 20;

impl Top {
    /// Nothing is allocated, and nothing waits to be recorded or released.
    fn is_empty(&self) -> bool {
        self.recorded == 0 && self.metaslabs.iter().all(Metaslab::is_quiet)
    }
}

/// Frees what the metadata has of the space of a vdev that is in another pool: the maps that its array has, so
/// many at most, and what its table `zap` leads to.
pub fn destroy_listed_maps(
    store: &mut dyn SpaceStore,
    (array, count): (ObjectId, u64),
    zap: ObjectId,
) -> Result<()> {
    if array != ObjectId(0) {
        let length = usize::try_from(count.saturating_mul(8)).unwrap_or(usize::MAX);
        let maps = store.read(array, 0, length.min(LONGEST_ARRAY))?;
        for word in maps.chunks_exact(8) {
            let id = word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            if id != 0 {
                SpaceMap::open(store, ObjectId(id))?.destroy(store)?;
            }
        }
        store.destroy(array)?;
    }
    if zap != ObjectId(0)
        && let Some(unflushed) = store.zap_number(zap, UNFLUSHED)?.filter(|id| *id != 0)
    {
        store.destroy(ObjectId(unflushed))?;
    }
    Ok(())
}

impl Allocator {
    /// Whether nothing on a vdev is allocated, and nothing that was freed waits to be released.
    /// `None` if it holds no data.
    pub fn is_empty(&self, vdev: u32) -> Option<bool> {
        self.state.lock().top(vdev).map(Top::is_empty)
    }

    /// Frees what the metadata has of the space of a vdev on which nothing is allocated, in the group
    /// being written. [`Self::forget_vdev`] is to follow, once nothing of this is taken back.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], before anything is changed, if something is allocated there.
    pub fn remove_vdev(&self, store: &mut dyn SpaceStore, vdev: u32) -> Result<()> {
        {
            let state = self.state.lock();
            let busy = || Error::new(ErrorKind::Busy, format!("vdev {vdev} is in use"));
            let top = state.top(vdev).ok_or_else(|| Error::not_found("the vdev holds no data"))?;
            if !top.is_empty() {
                return Err(busy());
            }
        }
        self.destroy_maps(store, vdev)
    }

    /// Forgets a vdev of which the metadata has nothing.
    pub fn forget_vdev(&self, vdev: u32) {
        let mut state = self.state.lock();
        if state.tops.get_mut(vdev as usize).and_then(Option::take).is_none() {
            return;
        }
        for dirty in &mut state.dirty {
            dirty.retain(|(of, _)| *of != vdev);
        }
        state.held.retain(|(of, _)| *of != vdev);
        state.form_rings();
        let figures = state.figures();
        self.published.store(Arc::new(figures));
    }
}
