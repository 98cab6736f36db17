//! What lookers are shown: one immutable picture of the pool, exchanged for the next one.
//!
//! Invariant: who looks takes the picture and nothing else, no device and no lock that anybody holds
//! across I/O or a system call. The next one shares with the one before all that was not written
//! since. It is made when a group is on the disks, and by every order before it answers.

use std::sync::Arc;

use arc_swap::ArcSwap;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::UnreplayedLog;
use cenote_engine::Result;
use cenote_engine::dataset::{Inventory, InventoryReader};
use cenote_engine::keys::LoadedRoots;
use cenote_engine::pool::Pool;
use cenote_engine::pool::properties::Runtime;
use cenote_engine::pool::space::PoolSpace;
use parking_lot::Mutex;

use super::changes::PoolChanges;
use super::history::{HistoryReader, Tail};
use super::pool_report::PoolFacts;
use super::troubles::Troubles;

/// A pool at one moment.
#[derive(Clone)]
pub struct Published {
    /// The pool itself.
    pub facts: Arc<PoolFacts>,
    /// What data is lost.
    pub troubles: Arc<Troubles>,
    /// Its space.
    pub space: Arc<PoolSpace>,
    /// Its datasets, or why they are not known.
    pub inventory: Result<Arc<Inventory>, String>,
    /// The encryption roots whose keys are loaded.
    pub keys: Arc<LoadedRoots>,
    /// The end of its history.
    pub history: Tail,
    /// Datasets whose intent log could not be replayed and is kept.
    pub unreplayed: Arc<Vec<UnreplayedLog>>,
    /// Something could not be read: it is as it was before.
    pub is_stale: bool,
}

impl Published {
    /// The datasets.
    ///
    /// # Errors
    /// If they were never read.
    pub fn inventory(&self) -> Result<&Arc<Inventory>, Failure> {
        self.inventory.as_ref().map_err(|reason| Failure::new(FailureKind::Other, reason.clone()))
    }
}

/// What the next picture is made from.
#[derive(Default)]
struct Readers {
    inventory: InventoryReader,
    history: HistoryReader,
}

/// Makes the pictures.
pub struct Publisher {
    now: ArcSwap<Published>,
    /// Never taken by those who only look.
    readers: Mutex<Readers>,
    runtime: Runtime,
}

impl Publisher {
    /// Publishes a pool that was just opened.
    ///
    /// # Errors
    /// If the pool itself cannot be read. Datasets and history that cannot be are told to who asks.
    pub fn start(pool: &Pool, changes: &PoolChanges, runtime: Runtime) -> Result<Self> {
        let mut readers = Readers::default();
        let space = pool.space()?;
        let mut first = Published {
            facts: Arc::new(PoolFacts::read(pool, &runtime, &space)?),
            troubles: Arc::new(Troubles::read(pool)?),
            space,
            inventory: Err(String::new()),
            keys: Arc::new(pool.keys().loaded_roots()),
            history: Tail::default(),
            unreplayed: Arc::default(),
            is_stale: false,
        };
        if let Err(error) = readers.read(pool, changes, &mut first) {
            tracing::warn!(%error, "not all of the pool can be shown");
        }
        Ok(Self { now: ArcSwap::from_pointee(first), readers: Mutex::new(readers), runtime })
    }

    /// The pool as it was published last.
    pub fn now(&self) -> Arc<Published> {
        self.now.load_full()
    }

    /// Publishes the pool as it is.
    ///
    /// # Errors
    /// What the disks say; then what could not be read stays as it was.
    pub fn publish(&self, pool: &Pool, changes: &PoolChanges) -> Result<()> {
        let mut readers = self.readers.lock();
        let mut next = Published::clone(&self.now.load());
        let read = || -> Result<_> {
            let space = pool.space()?;
            let facts = PoolFacts::read(pool, &self.runtime, &space)?.since(&next.facts);
            Ok((Arc::new(facts), space, Arc::new(Troubles::read(pool)?)))
        };
        let of_pool = read().map(|(facts, space, troubles)| {
            (next.facts, next.space, next.troubles) = (facts, space, troubles);
        });
        let done = of_pool.and(readers.read(pool, changes, &mut next));
        next.is_stale = done.is_err();
        self.now.store(Arc::new(next));
        done
    }

    /// Names what could not be read, if it has no name yet.
    pub fn name_troubles(&self, pool: &Pool) {
        if !self.now.load().troubles.is_old(pool) {
            return;
        }
        let _readers = self.readers.lock();
        let mut next = Published::clone(&self.now.load());
        Arc::make_mut(&mut next.troubles).name(pool);
        self.now.store(Arc::new(next));
    }
}

impl Readers {
    /// Reads datasets and history into the next picture.
    fn read(&mut self, pool: &Pool, changes: &PoolChanges, next: &mut Published) -> Result<()> {
        let keys = pool.keys();
        let loaded = keys.loaded_roots();
        let rekeyed = loaded != *next.keys;
        next.unreplayed = Arc::new(changes.unreplayed());
        let (catalog, changed) = pool.take_changed();
        let inventory = self.inventory.next(&catalog, &**keys, &changed, rekeyed);
        let datasets = match inventory {
            Ok(inventory) => {
                (next.inventory, next.keys) = (Ok(inventory), Arc::new(loaded));
                Ok(())
            }
            Err(error) => {
                pool.give_back_changed();
                if next.inventory.is_err() {
                    next.inventory = Err(error.to_string());
                }
                Err(error)
            }
        };
        next.history = self.history.next(&catalog);
        datasets
    }
}
