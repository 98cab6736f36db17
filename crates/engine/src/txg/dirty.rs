//! Which datasets a group has something to write of.
//!
//! Invariant: whoever changes a dataset marks it before the [`Tx`](super::Tx) of the change is gone, so
//! that all datasets of a closed group are known without looking at any other.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_format::{ObjectId, Txg};
use parking_lot::Mutex;

use super::gate::slot;

/// Datasets that groups have changed.
#[derive(Debug, Default)]
pub struct DirtyDatasets {
    /// By group, modulo 4.
    groups: [Mutex<BTreeSet<ObjectId>>; 4],
}

impl DirtyDatasets {
    /// Those that were marked in group `txg`.
    pub fn of(&self, txg: Txg) -> Vec<ObjectId> {
        let group = self.groups.get(slot(txg.0));
        group.map_or_else(Vec::new, |group| group.lock().iter().copied().collect())
    }

    /// Group `txg` is on the disks.
    pub fn written(&self, txg: Txg) {
        if let Some(group) = self.groups.get(slot(txg.0)) {
            group.lock().clear();
        }
    }
}

/// One of the datasets, which is marked when something of it changes.
#[derive(Clone, Debug)]
pub struct DirtyMark {
    all: Arc<DirtyDatasets>,
    dataset: ObjectId,
}

impl DirtyMark {
    /// For the head with this number.
    pub fn new(all: Arc<DirtyDatasets>, dataset: ObjectId) -> Self {
        Self { all, dataset }
    }

    /// The dataset has something to be written in group `txg`.
    pub fn mark(&self, txg: Txg) {
        if let Some(group) = self.all.groups.get(slot(txg.0)) {
            group.lock().insert(self.dataset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_knows_its_datasets_until_it_is_written() {
        let all = Arc::new(DirtyDatasets::default());
        let [first, second] = [7, 9].map(|id| DirtyMark::new(all.clone(), ObjectId(id)));
        second.mark(Txg(10));
        first.mark(Txg(10));
        first.mark(Txg(10));
        second.mark(Txg(11));
        assert_eq!(all.of(Txg(10)), [ObjectId(7), ObjectId(9)]);
        all.written(Txg(10));
        assert_eq!(all.of(Txg(10)), []);
        assert_eq!(all.of(Txg(11)), [ObjectId(9)]);
    }
}
