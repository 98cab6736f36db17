//! Snapshots that somebody reads for long, which are not to be destroyed meanwhile.
//!
//! Invariant: a snapshot counts as kept until the last [`Kept`] of it is dropped. Nothing of that is on the disks.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::ObjectId;
use parking_lot::Mutex;

/// See the module. Cheap to clone.
#[derive(Clone, Default)]
pub struct KeptSnapshots(Arc<Mutex<BTreeMap<ObjectId, usize>>>);

impl KeptSnapshots {
    /// Keeps the snapshot in object `id`.
    pub fn keep(&self, id: ObjectId) -> Kept {
        *self.0.lock().entry(id).or_default() += 1;
        Kept { of: self.clone(), id }
    }

    /// Whether it is kept.
    pub fn contains(&self, id: ObjectId) -> bool {
        self.0.lock().contains_key(&id)
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Keeps a snapshot as long as it lives.
pub struct Kept {
    of: KeptSnapshots,
    id: ObjectId,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut kept = self.of.0.lock();
        let count = kept.entry(self.id).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            kept.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_lets_go() {
        let (kept, id) = (KeptSnapshots::default(), ObjectId(7));
        let two = [kept.keep(id), kept.keep(id)];
        let [one, other] = two;
        drop(one);
        assert!(kept.contains(id) && !kept.contains(ObjectId(8)));
        drop(other);
        assert!(kept.is_empty());
    }
}
