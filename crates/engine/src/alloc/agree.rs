//! What must agree after every group, in builds with debug assertions: tests and torture.
//!
//! Invariant: nothing is changed here, and what lies on the disks, whatever it is, makes none of these
//! fail: maps that make no sense are refused when they are read.

use super::metaslab::Metaslab;
use super::state::AllocatorState;

impl AllocatorState {
    /// The sums of every vdev are those of its metaslabs, and the bytes of every metaslab are divided
    /// without overlap: a byte counted twice, or not at all, would be handed out twice, or never again.
    pub(super) fn assert_agrees(&self) {
        let synced = self.synced;
        for top in self.tops.iter().flatten() {
            let id = top.facts.id;
            let size = top.metaslabs.iter().fold(0_u64, |sum, slab| sum.saturating_add(slab.size));
            debug_assert_eq!(top.size, size, "size of vdev {id} after group {synced}");
            let recorded =
                top.metaslabs.iter().fold(0_i64, |sum, s| sum.saturating_add(s.recorded));
            debug_assert_eq!(top.recorded, recorded, "allocated of vdev {id} after group {synced}");
            for (index, slab) in top.metaslabs.iter().enumerate() {
                let place = || format!("metaslab {index} of vdev {id} after group {synced}");
                let held = slab.held_back() > 0;
                debug_assert_eq!(self.held.contains(&(id, index)), held, "held of {}", place());
                debug_assert!(slab.writing.is_none(), "{} is still being recorded", place());
                if let Some(divided) = slab.divided() {
                    debug_assert_eq!(divided, i128::from(slab.size), "bytes of {}", place());
                }
            }
            debug_assert!(top.is_ranked(), "ranks of vdev {id} after group {synced}");
        }
        let figures = self.figures();
        for (top, figures) in self.tops.iter().flatten().zip(&figures.tops) {
            let deferred: u64 = top.metaslabs.iter().map(Metaslab::held_back).sum();
            debug_assert_eq!(figures.deferred, deferred, "what is shown of vdev {}", figures.id);
            let free = top.metaslabs.iter().map(Metaslab::free_bytes).sum::<u64>();
            debug_assert!(free <= figures.free(), "vdev {} gives more than is shown", figures.id);
        }
    }
}

impl Metaslab {
    /// The bytes of all that it is divided into: its size. Not known if it is not loaded.
    fn divided(&self) -> Option<i128> {
        let free = self.loaded()?.tree.bytes();
        let unrecorded = self.pending.iter().map(|delta| delta.allocated.bytes());
        let taken = unrecorded.fold(self.held_back(), u64::saturating_add);
        Some(i128::from(free) + i128::from(taken) + i128::from(self.recorded))
    }
}
