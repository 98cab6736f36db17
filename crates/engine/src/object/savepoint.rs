//! Savepoints: taking back what was changed in a live set.
//!
//! Invariant: while a savepoint is held one thread changes the set, in one transaction group; taken
//! back, the set shows exactly what it showed when the savepoint was made. Only objects changed since
//! are remembered, each as it was before its first change.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cenote_format::Txg;
use parking_lot::Mutex;

use super::ObjectSet;
use super::live::{LiveObject, ObjectState};
use super::numbers::Numbers;
use crate::{Error, ErrorKind, Result};

/// What a live set keeps for its savepoint.
#[derive(Default)]
pub(super) struct Savepoint {
    /// There is one: asked before each change, without a lock.
    held: AtomicBool,
    journal: Mutex<Option<Journal>>,
    /// For tests: which step from now on is to fail; 0: none.
    fails: AtomicU64,
}

/// What was changed since a savepoint.
struct Journal {
    txg: Txg,
    /// Objects as they were before their first change, in the order of these.
    before: Vec<(Arc<LiveObject>, ObjectState)>,
    known: HashSet<u64>,
    /// Objects the group had changed by then.
    dirty: usize,
    numbers: Numbers,
}

impl Savepoint {
    /// `object`, now in `state`, is about to be changed.
    pub(super) fn remember(&self, object: &Arc<LiveObject>, state: &ObjectState) -> Result<()> {
        if !self.held.load(Relaxed) {
            return Ok(());
        }
        if let Some(journal) = self.journal.lock().as_mut()
            && journal.known.insert(object.id.0)
        {
            journal.before.push((object.clone(), state.clone()));
        }
        self.step()
    }

    fn step(&self) -> Result<()> {
        let due = self.fails.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        match due {
            Ok(1) => Err(Error::new(ErrorKind::Io, "made to fail here by a test")),
            _ => Ok(()),
        }
    }
}

impl ObjectSet {
    /// Makes a savepoint: what group `txg` changes from now on can be taken back, until it is kept.
    pub fn make_savepoint(&self, txg: Txg) -> Result<()> {
        let live = self.live()?;
        let numbers = live.numbers.lock().clone();
        let journal = Journal {
            txg,
            before: Vec::new(),
            known: HashSet::new(),
            dirty: live.dirty_count(txg),
            numbers,
        };
        *live.savepoint.journal.lock() = Some(journal);
        live.savepoint.held.store(true, Relaxed);
        Ok(())
    }

    /// Keeps what was changed since the savepoint, which is gone then.
    pub fn keep_changes(&self) {
        drop(self.take_journal());
    }

    /// Takes back what was changed since the savepoint, which is gone then.
    pub fn undo_changes(&self) {
        let Ok(live) = self.live() else { return };
        let Some(journal) = self.take_journal() else { return };
        for (object, before) in journal.before {
            let is_new = before.is_absent();
            *object.state.write() = before;
            if is_new {
                live.forget(object.id.0);
            }
        }
        live.shorten_dirty(journal.txg, journal.dirty);
        *live.numbers.lock() = journal.numbers;
    }

    fn take_journal(&self) -> Option<Journal> {
        let savepoint = &self.live().ok()?.savepoint;
        savepoint.held.store(false, Relaxed);
        savepoint.journal.lock().take()
    }

    /// Counts a step beside the set that is taken back with it: it fails where a test says so.
    pub fn savepoint_step(&self) -> Result<()> {
        match self.live() {
            Ok(live) if live.savepoint.held.load(Relaxed) => live.savepoint.step(),
            _ => Ok(()),
        }
    }

    /// For tests: the `step`th change made under a savepoint from now on fails; 0: none does. What was
    /// left of the step asked for before.
    pub fn fail_at_step(&self, step: u64) -> u64 {
        self.live().map_or(0, |live| live.savepoint.fails.swap(step, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cenote_format::objset::ObjsetKind;
    use cenote_format::{ObjectId, ObjectType};

    use super::super::NewObject;
    use super::super::tests::empty_set;
    use super::*;
    use crate::txg::Tx;

    fn content(set: &ObjectSet, id: ObjectId) -> Vec<u8> {
        set.object(id).unwrap().read_vec(0, 2048).unwrap()
    }

    #[test]
    fn what_was_changed_since_a_savepoint_is_taken_back() {
        let set = empty_set(ObjsetKind::Meta);
        let tx = Tx::detached(Txg(5));
        let new = NewObject::new(ObjectType::PLAIN_FILE, 1024);
        let old = set.create_object(&tx, &new).unwrap();
        old.write(&tx, 0, &[1; 2048]).unwrap();
        let gone = set.create_object(&tx, &new).unwrap();
        gone.write(&tx, 100, &[2; 10]).unwrap();
        let before = (content(&set, old.id()), content(&set, gone.id()));

        for _ in 0..2 {
            set.make_savepoint(Txg(5)).unwrap();
            old.write(&tx, 1000, &[3; 100]).unwrap();
            old.free_range(&tx, 0, 1024).unwrap();
            old.set_spill(&tx, Some(Bytes::from(vec![4; 512]))).unwrap();
            set.free_object(&tx, gone.id()).unwrap();
            let made = set.create_object(&tx, &new).unwrap();
            made.write(&tx, 0, &[5; 1024]).unwrap();
            set.undo_changes();
            assert_eq!(set.object(made.id()).err().unwrap().kind(), ErrorKind::NotFound);
            assert_eq!((content(&set, old.id()), content(&set, gone.id())), before);
            assert!(set.object(old.id()).unwrap().spill().unwrap().is_none());
            // Its number is free again.
            set.make_savepoint(Txg(5)).unwrap();
            assert_eq!(set.create_object(&tx, &new).unwrap().id(), made.id());
            set.undo_changes();
        }
        set.make_savepoint(Txg(5)).unwrap();
        old.write(&tx, 0, &[6; 10]).unwrap();
        set.keep_changes();
        assert_eq!(content(&set, old.id())[..10], [6; 10]);
    }

    #[test]
    fn a_step_fails_where_a_test_says_so() {
        let set = empty_set(ObjsetKind::Meta);
        let tx = Tx::detached(Txg(5));
        let new = NewObject::new(ObjectType::PLAIN_FILE, 1024);
        set.fail_at_step(2);
        let object = set.create_object(&tx, &new).unwrap();
        set.make_savepoint(Txg(5)).unwrap();
        object.write(&tx, 0, &[1; 1024]).unwrap();
        object.write(&tx, 0, &[2; 1024]).unwrap_err();
        object.write(&tx, 0, &[3; 1024]).unwrap();
        set.undo_changes();
        assert_eq!(set.fail_at_step(0), 0);
        assert_eq!(content(&set, object.id()), [0; 2048]);
    }
}
