//! Free space that is given up without anybody asking: the property `autotrim`.
//!
//! Chapter 08, section 13. Invariant: what a crash forgets of it stays as it was: a trim covers it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cenote_format::Guid;

use super::LivePool;
use super::visit::{TRIM_LEAST, give_up};
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
    /// The newest group when that was last done.
    last: AtomicU64,
}

impl ByItself {
    pub(in crate::pool) fn set(&self, on: bool, allocator: &Allocator) {
        self.on.store(on, Relaxed);
        allocator.note_released(on);
    }
}

impl LivePool {
    /// Follows what the pool says.
    pub(super) fn load_autotrim(&self) {
        let stored = MosSource::new(self.mos.clone()).pool_property(PROPERTY);
        self.sweeps.by_itself.set(stored.is_some_and(|value| value != 0), &self.allocator);
    }

    /// Gives up what became free, now and then, if the pool wants that. True if it did.
    pub(super) fn trim_by_itself(&self) -> bool {
        let by_itself = &self.sweeps.by_itself;
        let synced = self.gate.figures().synced.0;
        let last = by_itself.last.load(Relaxed);
        if !by_itself.on.load(Relaxed)
            || synced < last.saturating_add(GROUPS)
            || self.gate.suspension().is_some()
        {
            return false;
        }
        by_itself.last.store(synced, Relaxed);
        for (top, index) in self.allocator.take_released() {
            self.trim_metaslab(top, index);
        }
        true
    }

    fn trim_metaslab(&self, top: u32, index: usize) {
        let vdevs = self.vdevs();
        let leaves = vdevs.topology().top(top).into_iter().flat_map(|top| top.devices());
        let able = leaves.map(|leaf| leaf.guid).filter(|leaf| {
            vdevs.is_written_to(*leaf) && vdevs.device_of(*leaf).is_some_and(|one| one.can_trim())
        });
        let able: Vec<Guid> = able.collect();
        if able.is_empty() {
            return;
        }
        let swept = match self.allocator.sweep(top, index) {
            Ok(swept) => swept,
            Err(error) if error.kind() == ErrorKind::Busy => return,
            Err(error) => return tracing::warn!(vdev = top, %error, "free space is not given up"),
        };
        for leaf in able {
            for segment in swept.free() {
                let Some((start, end)) = vdevs.on_leaf(leaf, *segment) else { break };
                let length = end.saturating_sub(start);
                if length < TRIM_LEAST {
                    continue;
                }
                if let Err(error) = give_up(&vdevs, leaf, start, length) {
                    tracing::warn!(leaf = leaf.0, %error, "free space is not given up");
                    break;
                }
            }
        }
    }
}
