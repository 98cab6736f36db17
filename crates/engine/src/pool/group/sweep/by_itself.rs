//! Free space that is given up without anybody asking: the property `autotrim`.
//!
//! Chapter 08, section 13. Invariant: what a crash forgets of it stays as it was: a trim covers it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cenote_format::Guid;
use parking_lot::Mutex;

use super::{LivePool, SweepKind};
use crate::ErrorKind;
use crate::alloc::Allocator;
use crate::pool::group::MosSource;

/// The property.
pub(in crate::pool) const PROPERTY: &str = "autotrim";
/// Groups of which what they freed is given up together.
const GROUPS: u64 = 32;

/// Whether free space is given up by itself.
#[derive(Debug, Default)]
pub(in crate::pool) struct ByItself {
    on: AtomicBool,
    /// The newest group when that was last begun.
    last: AtomicU64,
    /// What is to be given up yet.
    left: Mutex<Vec<Part>>,
}

/// The free space of a metaslab on one leaf, as far as it is not given up.
#[derive(Clone, Copy, Debug)]
struct Part {
    leaf: Guid,
    top: u32,
    index: usize,
    /// Byte of the leaf's allocatable area before which it is.
    after: u64,
}

impl ByItself {
    pub(in crate::pool) fn set(&self, on: bool, allocator: &Allocator) {
        self.on.store(on, Relaxed);
        if !on {
            self.left.lock().clear();
        }
        allocator.note_released(on);
    }

    /// Nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.left.lock().is_empty()
    }
}

impl LivePool {
    /// Follows what the pool says.
    pub(super) fn load_autotrim(&self) {
        let stored = MosSource::new(self.mos.clone()).pool_property(PROPERTY);
        self.sweeps.by_itself.set(stored.is_some_and(|value| value != 0), &self.allocator);
    }

    /// Gives up a portion of what became free, now and then, if the pool wants that. True if it did.
    pub(super) fn trim_by_itself(&self) -> bool {
        let by_itself = &self.sweeps.by_itself;
        if !by_itself.on.load(Relaxed) || self.gate.suspension().is_some() {
            return false;
        }
        let mut left = by_itself.left.lock();
        let synced = self.gate.figures().synced.0;
        if left.is_empty() && synced >= by_itself.last.load(Relaxed).saturating_add(GROUPS) {
            by_itself.last.store(synced, Relaxed);
            let released = self.allocator.take_released();
            left.extend(released.into_iter().flat_map(|(top, index)| self.parts(top, index)));
        }
        let part = left.pop();
        drop(left);
        part.is_some_and(|part| self.trim_part(part))
    }

    /// A metaslab on each leaf that can give something up.
    fn parts(&self, top: u32, index: usize) -> Vec<Part> {
        let vdevs = self.vdevs();
        let leaves = vdevs.topology().top(top).into_iter().flat_map(|top| top.devices());
        let able = leaves.map(|leaf| leaf.guid).filter(|leaf| {
            vdevs.is_written_to(*leaf) && vdevs.device_of(*leaf).is_some_and(|one| one.can_trim())
        });
        able.map(|leaf| Part { leaf, top, index, after: 0 }).collect()
    }

    /// Gives up a portion. False if it has to wait.
    fn trim_part(&self, part: Part) -> bool {
        let Part { leaf, top, index, after } = part;
        let goes_on = |after| self.sweeps.by_itself.left.lock().push(Part { after, ..part });
        let lent = match self.allocator.sweep(top, index) {
            Ok(lent) => lent,
            Err(error) if error.kind() == ErrorKind::Busy => {
                goes_on(after);
                return false;
            }
            Err(error) => {
                tracing::warn!(vdev = top, %error, "free space is not given up");
                return true;
            }
        };
        let swept = self.sweep_lent(&self.vdevs(), (leaf, SweepKind::Trim), &lent, after);
        drop(lent);
        // A device that refuses it is not asked for the rest.
        if let Some(next) = swept.filter(|swept| !swept.failed).and_then(|swept| swept.next) {
            goes_on(next);
        }
        true
    }
}
