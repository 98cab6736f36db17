//! The snapshots of a directory in memory, by age and by name.
//!
//! Invariant: each snapshot is in both maps; a copy shares almost all with the one it was made of.

use std::sync::Arc;

use cenote_format::{ObjectId, Txg};

use super::Suffix;
use super::facts::DatasetFacts;
use super::shared_map::SharedMap;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshots {
    by_age: SharedMap<(Txg, Arc<str>), Arc<DatasetFacts>>,
    groups: SharedMap<Arc<str>, Txg>,
}

impl Snapshots {
    /// Adds one, or puts it in the place of the one that had its name.
    pub fn insert(&mut self, facts: Arc<DatasetFacts>) {
        let Suffix::Snapshot(name) = facts.dataset.name.suffix() else { return };
        self.remove(name);
        let (name, txg): (Arc<str>, Txg) = (name.as_str().into(), facts.dataset.phys.creation_txg);
        self.groups.insert(name.clone(), txg);
        self.by_age.insert((txg, name), facts);
    }

    /// Takes the one of this name out.
    pub fn remove(&mut self, name: &str) -> Option<Arc<DatasetFacts>> {
        let txg = self.groups.remove(name)?;
        self.by_age.remove(&(txg, name.into()))
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<DatasetFacts>> {
        self.by_age.get(&(*self.groups.get(name)?, name.into()))
    }

    /// The one in object `id`, which was taken in group `txg`.
    pub fn taken_in(&self, txg: Txg, id: ObjectId) -> Option<&Arc<DatasetFacts>> {
        let of_group = self.by_age.from(&(txg, "".into())).take_while(|((of, _), _)| *of == txg);
        of_group.map(|(_, one)| one).find(|one| one.dataset.id == id)
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<DatasetFacts>> + Clone {
        self.by_age.values()
    }
}
