//! The entries of deadlists that were read lately, for orders that ask for the same ones again and again.
//!
//! A deadlist has a key for each snapshot before it, those that were destroyed included. Each of many snapshots that go
//! needs its own, those of the next two, and the head's: read anew every time that would be most of the work.
//! Invariant: what is kept is what the tables hold; nothing is kept from one order to the next, whose changes may be taken
//! back.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_format::deadlist::Entries;
use cenote_format::{ObjectId, Txg};
use parking_lot::Mutex;

use super::MosChange;
use crate::Result;

/// Most deadlists kept: those of one snapshot that goes, and of another dataset's beside it.
const MOST: usize = 8;

/// See the module.
#[derive(Default)]
pub(super) struct KnownDeadlists(Mutex<Known>);

#[derive(Default)]
struct Known {
    keeps: bool,
    /// What was asked for last comes last.
    lists: VecDeque<(ObjectId, Arc<Entries>)>,
}

impl Known {
    fn position(&self, deadlist: ObjectId) -> Option<usize> {
        self.lists.iter().position(|(id, _)| *id == deadlist)
    }
}

impl KnownDeadlists {
    pub(super) fn get(&self, deadlist: ObjectId) -> Option<Arc<Entries>> {
        let mut known = self.0.lock();
        let at = known.position(deadlist)?;
        let found = known.lists.remove(at)?;
        let entries = found.1.clone();
        known.lists.push_back(found);
        Some(entries)
    }

    pub(super) fn put(&self, deadlist: ObjectId, entries: &Arc<Entries>) {
        let mut known = self.0.lock();
        if !known.keeps {
            return;
        }
        if known.lists.len() >= MOST {
            known.lists.pop_front();
        }
        known.lists.push_back((deadlist, entries.clone()));
    }

    /// The table has `list` under `key`, or nothing.
    pub(super) fn changed(&self, deadlist: ObjectId, key: Txg, list: Option<ObjectId>) {
        let mut known = self.0.lock();
        let found = known.lists.iter_mut().find(|(id, _)| *id == deadlist);
        if let Some((_, entries)) = found {
            let entries = &mut Arc::make_mut(entries).0;
            match list {
                Some(list) => drop(entries.insert(key, list)),
                None => drop(entries.remove(&key)),
            }
        }
    }

    /// The object is no deadlist any more.
    pub(super) fn forget(&self, object: ObjectId) {
        let mut known = self.0.lock();
        if let Some(at) = known.position(object) {
            known.lists.remove(at);
        }
    }

    fn keep(&self, keeps: bool) {
        *self.0.lock() = Known { keeps, ..Known::default() };
    }
}

impl MosChange<'_> {
    /// Does `act`, which reads the same deadlists many times.
    pub fn keeping_deadlists<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        self.deadlists.keep(true);
        let done = act();
        self.deadlists.keep(false);
        done
    }
}
