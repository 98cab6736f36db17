//! Datasets that are open for writing.
//!
//! Invariant: a head has at most one live set. How its blocks are written follows its properties
//! from the next group on.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_format::{ObjectId, Txg};
use parking_lot::RwLock;

use super::LivePool;
use super::live_log::LiveLog;
use crate::dataset::{Catalog, Dataset, Listed, PropertyReader};
use crate::intent::{IntentLog, PoolLogReader, SharedPolicy};
use crate::keys::DatasetKeys;
use crate::object::ObjectSet;
use crate::pipe::{Decryptor, Encryptor, ObjsetPolicy, ReadContext, RedundantMetadata};
use crate::txg::{Account, DirtyMark};
use crate::{Error, ErrorKind, Result};

/// Value of property `logbias`.
const THROUGHPUT: u64 = 1;

/// How a dataset is written: what its properties say.
pub type DatasetPolicy = ObjsetPolicy;

/// A head open for writing.
pub struct LiveDataset {
    id: ObjectId,
    set: ObjectSet,
    policy: SharedPolicy,
    log: Option<LiveLog>,
    /// Where its changes promise what they can cost.
    account: Arc<Account>,
}

impl LiveDataset {
    pub(in crate::pool) fn new(id: ObjectId, set: ObjectSet, policy: ObjsetPolicy) -> Arc<Self> {
        Self::with_log(id, set, Arc::new(RwLock::new(policy)), None)
    }

    pub(in crate::pool) fn with_log(
        id: ObjectId,
        set: ObjectSet,
        policy: SharedPolicy,
        log: Option<LiveLog>,
    ) -> Arc<Self> {
        Arc::new(Self { id, set, policy, log, account: Arc::default() })
    }

    /// Its intent log; a dataset being made has none.
    pub fn log(&self) -> Option<&Arc<IntentLog>> {
        self.log.as_ref().map(|log| &log.log)
    }

    /// Reads what an earlier life of the pool left in its log.
    pub fn log_reader(&self) -> PoolLogReader {
        match &self.log {
            Some(log) => log.reader(&self.set),
            None => PoolLogReader {
                io: self.set.io().clone(),
                context: self.set.context().clone(),
                accepts_losses: false,
            },
        }
    }

    pub(in crate::pool) fn live_log(&self) -> Option<&LiveLog> {
        self.log.as_ref()
    }

    /// Its object in the MOS.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Its objects.
    pub fn set(&self) -> &ObjectSet {
        &self.set
    }

    /// How its blocks are written.
    pub fn policy(&self) -> ObjsetPolicy {
        self.policy.read().clone()
    }

    /// Changes how its blocks are written from now on.
    pub fn set_policy(&self, policy: ObjsetPolicy) {
        *self.policy.write() = policy;
    }

    pub(in crate::pool) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    pub(in crate::pool) fn needs_sync(&self, txg: Txg) -> bool {
        self.set.needs_sync(txg) || self.log.as_ref().is_some_and(|log| log.pool.needs_sync(txg))
    }
}

/// Properties that decide how blocks are written, as they are in effect.
pub(in crate::pool) fn policy_of(
    dataset: &Dataset,
    reader: &PropertyReader<'_>,
    encryptor: Option<Arc<dyn Encryptor>>,
) -> Result<ObjsetPolicy> {
    let listed = Listed::Dataset(dataset.clone());
    let number = |name: &str, otherwise: u64| -> Result<u64> {
        Ok(reader.number(&listed, name)?.unwrap_or(otherwise))
    };
    let redundant = number("redundant_metadata", 0)?;
    Ok(ObjsetPolicy {
        compression: number("compression", 1)?,
        checksum: number("checksum", 1)?,
        copies: u8::try_from(number("copies", 1)?).unwrap_or(1).clamp(1, 3),
        redundant_metadata: RedundantMetadata::from_raw(redundant).unwrap_or_default(),
        dedup: number("dedup", crate::pipe::DEDUP_OFF)?,
        special_small_blocks: number("special_small_blocks", 0)?,
        encryptor,
    })
}

/// Heads that get other content, or go, in the group being written.
#[derive(Debug, Default)]
pub(in crate::pool) struct ChangedClosed {
    heads: BTreeSet<ObjectId>,
    /// How often there was one so far.
    count: u64,
}

impl LivePool {
    /// Opens the head `dataset` for writing; the same set for everybody. One that gets other content, or goes, in
    /// the group being written is opened when that is shown.
    ///
    /// # Errors
    /// The suspension of the pool, if that group waits for its end; what the disks say.
    pub fn open_dataset(&self, dataset: &Dataset) -> Result<Arc<LiveDataset>> {
        if dataset.is_snapshot() {
            let reason = format!("'{}' is a snapshot", dataset.name);
            return Err(Error::new(ErrorKind::ReadOnly, reason));
        }
        loop {
            if let Some(known) = self.datasets.lock().get(&dataset.id) {
                return Ok(known.clone());
            }
            let changed = {
                let changed = self.changed_closed.lock();
                (!changed.heads.contains(&dataset.id)).then_some(changed.count)
            };
            let Some(changed) = changed else {
                let under_way = Txg(self.gate.figures().open.0.saturating_sub(1));
                self.gate.wait_synced_unless_suspended(under_way, super::PATIENCE)?;
                continue;
            };
            let live = self.open_shown(dataset.id)?;
            let mut open = self.datasets.lock();
            if self.changed_closed.lock().count != changed {
                // It may have been this one.
                continue;
            }
            let live = open.entry(dataset.id).or_insert(live).clone();
            self.promises.open(dataset.id, live.account.clone());
            return Ok(live);
        }
    }

    /// A live set of a head as the newest group on the disks has it.
    fn open_shown(&self, id: ObjectId) -> Result<Arc<LiveDataset>> {
        let catalog = self.pool.catalog();
        let dataset = &catalog.dataset_by_id(id)?;
        let keys = self.dataset_keys(&catalog, dataset)?;
        let decryptor = keys.clone().map(|keys| keys as Arc<dyn Decryptor>);
        let encryptor = keys.clone().map(|keys| keys as Arc<dyn Encryptor>);
        let context = ReadContext { decryptor, objset: dataset.id.0, ..ReadContext::default() };
        let set = ObjectSet::open_live(&self.io, dataset.phys.pointer, context)?;
        set.set_dirty_mark(DirtyMark::new(self.dirty.clone(), dataset.id));
        let policy = self.policy(&catalog, dataset, encryptor)?;
        let policy = Arc::new(RwLock::new(policy));
        let log = self.open_log(dataset.id, &set, policy.clone(), keys)?;
        log.pool.spare_log_devices(self.log_bias(&catalog, dataset)?);
        let live = LiveDataset::with_log(dataset.id, set, policy, Some(log));
        live.account.set_costs(self.costs(&live.policy()));
        self.open_account(dataset, &live.account)?;
        live.set.set_account(live.account.clone());
        Ok(live)
    }

    /// A head that must not be open gets other content, or goes, in the group being written. Nobody opens it
    /// before that is shown. For work given to [`LivePool::change`].
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is open.
    pub(crate) fn change_closed(&self, head: ObjectId) -> Result<()> {
        let open = self.datasets.lock();
        if open.contains_key(&head) {
            return Err(Error::new(ErrorKind::Busy, "dataset is busy"));
        }
        let mut changed = self.changed_closed.lock();
        changed.heads.insert(head);
        changed.count = changed.count.wrapping_add(1);
        Ok(())
    }

    /// The group that was written is shown.
    pub(in crate::pool) fn show_changed_closed(&self) {
        self.changed_closed.lock().heads.clear();
    }

    /// Opens the head `dataset` for writing without its key: what is written was sealed elsewhere, as `seals`
    /// says.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is open; what the disks say.
    pub fn open_sealed(
        &self,
        dataset: &Dataset,
        seals: Arc<dyn Encryptor>,
    ) -> Result<Arc<LiveDataset>> {
        let catalog = self.pool.catalog();
        let context = ReadContext { sealed: true, objset: dataset.id.0, ..ReadContext::default() };
        let set = ObjectSet::open_live(&self.io, dataset.phys.pointer, context)?;
        set.set_dirty_mark(DirtyMark::new(self.dirty.clone(), dataset.id));
        let policy = self.policy(&catalog, dataset, Some(seals))?;
        let policy = ObjsetPolicy { dedup: crate::pipe::DEDUP_OFF, ..policy };
        let live = LiveDataset::new(dataset.id, set, policy);
        live.account.set_costs(self.costs(&live.policy()));
        self.open_account(dataset, &live.account)?;
        live.set.set_account(live.account.clone());
        let mut open = self.datasets.lock();
        if open.contains_key(&dataset.id) {
            return Err(Error::new(ErrorKind::Busy, "dataset is busy"));
        }
        open.insert(dataset.id, live.clone());
        self.promises.open(dataset.id, live.account.clone());
        Ok(live)
    }

    /// Open datasets that group `txg` has something to write of, in the order of their numbers.
    pub(in crate::pool) fn dirty_datasets(&self, txg: Txg) -> Vec<Arc<LiveDataset>> {
        let marked: Vec<Arc<LiveDataset>> = {
            let open = self.datasets.lock();
            self.dirty.of(txg).iter().filter_map(|id| open.get(id).cloned()).collect()
        };
        marked.into_iter().filter(|dataset| dataset.needs_sync(txg)).collect()
    }

    /// Property `logbias` of a dataset: whether its log leaves log devices to others.
    fn log_bias(&self, catalog: &Catalog, dataset: &Dataset) -> Result<bool> {
        let reader = PropertyReader::new(catalog, self.capacity(), self.pool.keys().as_ref(), "");
        let bias = reader.number(&Listed::Dataset(dataset.clone()), "logbias")?;
        Ok(bias == Some(THROUGHPUT))
    }

    fn policy(
        &self,
        catalog: &Catalog,
        dataset: &Dataset,
        encryptor: Option<Arc<dyn Encryptor>>,
    ) -> Result<ObjsetPolicy> {
        let capacity = self.capacity();
        let reader = PropertyReader::new(catalog, capacity, self.pool.keys().as_ref(), "");
        policy_of(dataset, &reader, encryptor)
    }

    /// The keys of a dataset; `None` if it is not encrypted.
    pub(in crate::pool) fn dataset_keys(
        &self,
        catalog: &Catalog,
        dataset: &Dataset,
    ) -> Result<Option<Arc<DatasetKeys>>> {
        let keys = self.pool.keys().keys(catalog, &dataset.directory)?;
        if keys.is_none() && catalog.key_object(&dataset.directory)?.is_some() {
            let reason = format!("the key of '{}' is not loaded", dataset.name);
            return Err(Error::new(ErrorKind::KeyNotLoaded, reason));
        }
        Ok(keys)
    }

    /// The heads open for writing among the datasets `names` and all below them.
    ///
    /// # Errors
    /// What the disks say.
    pub fn open_below(&self, names: &[String]) -> Result<Vec<Dataset>> {
        let catalog = self.pool.catalog();
        let paths: BTreeSet<&str> =
            names.iter().filter_map(|name| name.split('@').next()).collect();
        let is_covered = |path: &str| {
            let mut above = path.rsplit_once('/').map(|(above, _)| above);
            std::iter::from_fn(|| {
                let at = above?;
                above = at.rsplit_once('/').map(|(above, _)| above);
                Some(at)
            })
            .any(|at| paths.contains(at))
        };
        let mut found = Vec::new();
        for path in paths.iter().filter(|path| !is_covered(path)) {
            for directory in catalog.walk(&catalog.directory(path)?)? {
                if self.datasets.lock().contains_key(&directory.phys.head_dataset) {
                    found.push(catalog.head(&directory)?);
                }
            }
        }
        Ok(found)
    }

    /// Of `datasets`, those open for writing follow their properties anew.
    pub fn refresh_policies(&self, datasets: &[Dataset]) {
        let catalog = self.pool.catalog();
        for dataset in datasets {
            let Some(live) = self.datasets.lock().get(&dataset.id).cloned() else { continue };
            let refresh = || -> Result<()> {
                let encryptor = live.policy().encryptor;
                live.set_policy(self.policy(&catalog, dataset, encryptor)?);
                live.account.set_costs(self.costs(&live.policy()));
                if let Some(log) = live.live_log() {
                    log.pool.spare_log_devices(self.log_bias(&catalog, dataset)?);
                }
                Ok(())
            };
            if let Err(error) = refresh() {
                tracing::warn!(dataset = live.id.0, %error, "properties not read");
            }
        }
    }

    /// Forgets a head's live set: it is unmounted, and what was written is on the disks.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is being received: nothing of that would reach the disks any more. What the disks
    /// say.
    pub fn close_dataset(&self, id: ObjectId) -> Result<()> {
        self.close_set(id, || self.refuse_received(id))
    }

    /// The same for who receives it.
    pub(crate) fn close_received(&self, id: ObjectId) -> Result<()> {
        self.close_set(id, || Ok(()))
    }

    /// Forgets a live set if it `may`, at the end too.
    fn close_set(&self, id: ObjectId, may: impl Fn() -> Result<()>) -> Result<()> {
        may()?;
        let Some(dataset) = self.datasets.lock().get(&id).cloned() else { return Ok(()) };
        if let Some(log) = dataset.log() {
            log.close()?;
        }
        let open = self.gate.figures().open;
        if dataset.needs_sync(open) {
            self.sync()?;
        } else {
            // The group before may be on its way.
            self.gate.wait_synced(Txg(open.0.saturating_sub(1)), super::PATIENCE)?;
        }
        let mut open = self.datasets.lock();
        // Who receives claims the head before he opens it.
        may()?;
        open.remove(&id);
        self.promises.close(id);
        Ok(())
    }
}
