//! What groups wrote of the meta object set.
//!
//! Invariant: what was written is named, or everything counts as written.

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::ObjectId;

/// Most objects that are told apart; beyond that, everything counts as changed.
const OBJECTS_MAX: usize = 1 << 20;

/// Objects of the meta object set that groups wrote.
#[derive(Clone, Debug)]
pub enum Changed {
    /// Any.
    All,
    /// These.
    Objects(Written),
}

/// What groups wrote of the meta object set.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// The objects.
    pub objects: BTreeSet<ObjectId>,
    /// Which names came or went in lists of children and of snapshots; more may be named here.
    pub names: BTreeMap<ObjectId, BTreeSet<String>>,
}

impl Default for Changed {
    fn default() -> Self {
        Self::Objects(Written::default())
    }
}

impl Changed {
    /// This was written, too.
    pub fn add(&mut self, written: Written) {
        let Self::Objects(known) = self else { return };
        known.objects.extend(written.objects);
        for (table, names) in written.names {
            known.names.entry(table).or_default().extend(names);
        }
        let names = known.names.values().map(BTreeSet::len).sum::<usize>();
        if known.objects.len() + names > OBJECTS_MAX {
            *self = Self::All;
        }
    }

    /// Whether this object may have been written.
    pub fn has(&self, object: ObjectId) -> bool {
        match self {
            Self::All => true,
            Self::Objects(written) => written.objects.contains(&object),
        }
    }
}
