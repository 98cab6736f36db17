//! Which orders wait for each other.
//!
//! Invariant: an order that moves mounts is alone; the others are under way together, so that their changes meet in
//! one transaction group. Of those that make datasets, the ones whose names lie in each other wait for each other:
//! what is above is mounted first.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::orders::is_at_or_below;

/// See the module.
#[derive(Default)]
pub(super) struct Turns {
    orders: RwLock<()>,
    mounting: Mutex<()>,
    made: Mutex<BTreeSet<String>>,
    done: Condvar,
}

/// An order is under way; until this is dropped.
#[must_use]
pub(super) enum Turn<'a> {
    /// Alone.
    Alone { _held: RwLockWriteGuard<'a, ()> },
    /// Beside others that move no mounts either.
    Beside { _held: RwLockReadGuard<'a, ()> },
}

impl Turns {
    /// Waits until no order is under way.
    pub fn alone(&self) -> Turn<'_> {
        Turn::Alone { _held: self.orders.write() }
    }

    /// The same, if that is so now.
    pub fn try_alone(&self) -> Option<Turn<'_>> {
        self.orders.try_write().map(|held| Turn::Alone { _held: held })
    }

    /// The same, if that is so within `time`.
    pub fn alone_within(&self, time: Duration) -> Option<Turn<'_>> {
        self.orders.try_write_for(time).map(|held| Turn::Alone { _held: held })
    }

    /// Waits until no order is under way that moves mounts.
    pub fn beside(&self) -> Turn<'_> {
        Turn::Beside { _held: self.orders.read() }
    }

    /// The same, if that is so within `time`.
    pub fn beside_within(&self, time: Duration) -> Option<Turn<'_>> {
        self.orders.try_read_for(time).map(|held| Turn::Beside { _held: held })
    }

    /// For who mounts what it made, beside other orders.
    pub fn mounting(&self) -> MutexGuard<'_, ()> {
        self.mounting.lock()
    }

    /// Waits until nobody makes a dataset above or below `name`, or it.
    pub fn making(&self, name: &str) -> Making<'_> {
        let mut made = self.made.lock();
        let meets = |other: &String| is_at_or_below(other, name) || is_at_or_below(name, other);
        while made.iter().any(meets) {
            self.done.wait(&mut made);
        }
        made.insert(name.to_owned());
        Making { turns: self, name: name.to_owned() }
    }
}

/// A dataset is being made; until this is dropped.
pub(super) struct Making<'a> {
    turns: &'a Turns,
    name: String,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.turns.made.lock().remove(&self.name);
        self.turns.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    #[test]
    fn who_moves_mounts_is_alone() {
        let turns = Turns::default();
        let (one, other) = (turns.beside(), turns.beside());
        assert!(turns.try_alone().is_none());
        drop((one, other));
        let alone = turns.try_alone();
        assert!(alone.is_some() && turns.try_alone().is_none());
        assert!(turns.orders.try_read().is_none());
    }

    #[test]
    fn what_lies_in_each_other_is_made_one_after_another() {
        let turns = Turns::default();
        let above = turns.making("tank/a");
        drop((turns.making("tank/ab"), turns.making("tank/b/a")));
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let below = scope.spawn(|| {
                let _below = turns.making("tank/a/b/c");
                assert!(is_done.load(SeqCst));
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!below.is_finished());
            is_done.store(true, SeqCst);
            drop(above);
        });
        assert!(turns.made.lock().is_empty());
    }
}
