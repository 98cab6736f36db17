//! Space promised to changes that are not on the disks yet.
//!
//! A change that makes a block dirty promises what writing it can cost at worst, in the bytes
//! datasets are charged. Invariant: what a group was promised counts until that group is on the disks
//! and what it really took is known; a reservation counts until its change has promised for itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cenote_format::Txg;
use parking_lot::RwLock;

use super::gate::slot;

/// What a change wants space for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Something comes to be that was not there.
    Grow,
    /// Blocks replace others of the same file: the pool's reserve may be used, quotas are heeded.
    Replace,
    /// What is there is kept up or goes: the pool's reserve may be used, quotas do not matter.
    Spare,
    /// What was acknowledged before is done again: nothing is refused.
    Replay,
}

/// Bytes promised in one place: a head, a directory, the pool.
#[derive(Debug, Default)]
pub struct Promised {
    /// By group, modulo 4.
    groups: [AtomicU64; 4],
    /// Of changes that are being made.
    running: AtomicU64,
}

impl Promised {
    /// Promises `bytes` of group `txg`.
    pub fn add(&self, txg: Txg, bytes: u64) {
        if let Some(group) = self.groups.get(slot(txg.0)) {
            group.fetch_add(bytes, Relaxed);
        }
    }

    /// Group `txg` is on the disks, and what it took is known.
    pub fn settle(&self, txg: Txg) {
        if let Some(group) = self.groups.get(slot(txg.0)) {
            group.store(0, Relaxed);
        }
    }

    /// Bytes promised to group `txg`.
    pub fn of(&self, txg: Txg) -> u64 {
        self.groups.get(slot(txg.0)).map_or(0, |group| group.load(Relaxed))
    }

    /// Everything promised.
    pub fn total(&self) -> u64 {
        let groups = self.groups.iter().map(|group| group.load(Relaxed));
        groups.fold(self.running.load(Relaxed), u64::saturating_add)
    }
}

/// Bytes datasets are charged for one copy of a block of so many bytes, at most.
pub type StoredSize = Arc<dyn Fn(u64) -> u64 + Send + Sync>;

/// What blocks of a head can cost.
#[derive(Clone)]
pub struct Costs {
    /// Copies of data.
    pub copies: u64,
    /// Copies of metadata.
    pub metadata_copies: u64,
    /// What one copy costs.
    pub stored: StoredSize,
}

impl Default for Costs {
    fn default() -> Self {
        Self { copies: 1, metadata_copies: 2, stored: Arc::new(|bytes| bytes) }
    }
}

impl Costs {
    /// What a block of `bytes` can cost.
    pub fn block(&self, bytes: u64, is_metadata: bool) -> u64 {
        let copies = if is_metadata { self.metadata_copies } else { self.copies };
        (self.stored)(bytes).saturating_mul(copies)
    }
}

/// Everywhere the changes of one head count: in the head, in its directory and those above.
#[derive(Default)]
pub struct Account {
    costs: RwLock<Costs>,
    places: RwLock<Arc<[Arc<Promised>]>>,
}

impl Account {
    /// What blocks can cost now.
    pub fn costs(&self) -> Costs {
        self.costs.read().clone()
    }

    /// Properties or devices have changed.
    pub fn set_costs(&self, costs: Costs) {
        *self.costs.write() = costs;
    }

    /// Where changes count from now on.
    pub fn set_places(&self, places: Arc<[Arc<Promised>]>) {
        *self.places.write() = places;
    }

    /// Promises what dirty blocks of group `txg` can cost.
    pub fn promise(&self, txg: Txg, cost: impl FnOnce(&Costs) -> u64) {
        let bytes = cost(&self.costs.read());
        if bytes > 0 {
            self.places.read().iter().for_each(|place| place.add(txg, bytes));
        }
    }

    /// Reserves `bytes` for a change about to be made.
    pub fn reserve(&self, bytes: u64) -> Reservation {
        let places = self.places.read().clone();
        places.iter().for_each(|place| {
            place.running.fetch_add(bytes, Relaxed);
        });
        Reservation { places: Some(places), bytes }
    }
}

/// Space held for a change until it is made.
#[must_use = "what is dropped is not reserved"]
#[derive(Debug)]
pub struct Reservation {
    places: Option<Arc<[Arc<Promised>]>>,
    bytes: u64,
}

impl Reservation {
    /// Of nothing.
    pub fn none() -> Self {
        Self { places: None, bytes: 0 }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        for place in self.places.iter().flat_map(|places| places.iter()) {
            place.running.fetch_sub(self.bytes, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_count_until_their_group_is_settled() {
        let (head, pool) = (Arc::new(Promised::default()), Arc::new(Promised::default()));
        let account = Account::default();
        account.set_places([head.clone(), pool.clone()].into());
        account.set_costs(Costs { copies: 3, ..Costs::default() });
        account.promise(Txg(5), |costs| costs.block(100, false));
        account.promise(Txg(6), |costs| costs.block(10, true));
        let held = account.reserve(7);
        assert_eq!((head.total(), pool.total(), pool.of(Txg(5))), (327, 327, 300));
        pool.settle(Txg(5));
        drop(held);
        assert_eq!((head.total(), pool.total()), (320, 20));
    }
}
