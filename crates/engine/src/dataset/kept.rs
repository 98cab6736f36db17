//! Snapshots that somebody reads for long, which are not to be destroyed meanwhile.
//!
//! Invariant: a snapshot counts as kept until the last [`Kept`] of it is dropped. Nothing of that is on the disks.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::ObjectId;
use parking_lot::Mutex;

/// What a snapshot is kept for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// It is read from beginning to end.
    Read,
    /// It is mounted.
    Mounted,
}

/// See the module. Cheap to clone.
#[derive(Clone, Default)]
pub struct KeptSnapshots(Arc<Mutex<BTreeMap<(ObjectId, Use), usize>>>);

impl KeptSnapshots {
    /// Keeps the snapshot in object `id` while it is read.
    pub fn keep(&self, id: ObjectId) -> Kept {
        self.keep_for((id, Use::Read))
    }

    /// Keeps it while it is mounted.
    pub fn keep_mounted(&self, id: ObjectId) -> Kept {
        self.keep_for((id, Use::Mounted))
    }

    fn keep_for(&self, what: (ObjectId, Use)) -> Kept {
        *self.0.lock().entry(what).or_default() += 1;
        Kept { of: self.clone(), what }
    }

    /// Whether it is kept.
    pub fn contains(&self, id: ObjectId) -> bool {
        self.0.lock().range((id, Use::Read)..=(id, Use::Mounted)).next().is_some()
    }

    /// Whether one is read.
    pub fn are_read(&self) -> bool {
        self.0.lock().keys().any(|(_, kept_for)| *kept_for == Use::Read)
    }
}

/// Keeps a snapshot as long as it lives.
pub struct Kept {
    of: KeptSnapshots,
    what: (ObjectId, Use),
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut kept = self.of.0.lock();
        let count = kept.entry(self.what).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            kept.remove(&self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_lets_go() {
        let (kept, id) = (KeptSnapshots::default(), ObjectId(7));
        let (one, other, mounted) = (kept.keep(id), kept.keep(id), kept.keep_mounted(id));
        drop(one);
        assert!(kept.contains(id) && !kept.contains(ObjectId(8)) && kept.are_read());
        drop(other);
        assert!(kept.contains(id) && !kept.are_read());
        drop(mounted);
        assert!(!kept.contains(id));
    }
}
