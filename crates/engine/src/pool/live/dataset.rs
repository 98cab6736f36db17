//! Datasets that are open for writing.
//!
//! Invariant: a head has at most one live set. How its blocks are written follows its properties
//! from the next group on.

use std::sync::Arc;

use cenote_format::objset::{
    FLAG_PROJECTQUOTA_COMPLETE, FLAG_USERACCOUNTING_COMPLETE, FLAG_USEROBJACCOUNTING_COMPLETE,
    ObjsetKind, ZIL_HEADER,
};
use cenote_format::{ObjectId, Txg};
use parking_lot::RwLock;

use super::LivePool;
use super::keys::Encryption;
use super::log::LiveLog;
use crate::dataset::change::{MadeDataset, MosChange, NewDataset};
use crate::dataset::{Catalog, Dataset, Listed, PropertyReader, Value};
use crate::intent::{IntentLog, PoolLogReader, SharedPolicy};
use crate::keys::DatasetKeys;
use crate::object::ObjectSet;
use crate::pipe::{Decryptor, Encryptor, ObjsetPolicy, ReadContext, RedundantMetadata};
use crate::txg::{Account, Tx};
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
    pub(super) fn new(id: ObjectId, set: ObjectSet, policy: ObjsetPolicy) -> Arc<Self> {
        Self::with_log(id, set, Arc::new(RwLock::new(policy)), None)
    }

    pub(super) fn with_log(
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

    pub(super) fn live_log(&self) -> Option<&LiveLog> {
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

    pub(super) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    pub(super) fn needs_sync(&self, txg: Txg) -> bool {
        self.set.needs_sync(txg) || self.log.as_ref().is_some_and(|log| log.pool.needs_sync(txg))
    }
}

/// Properties that decide how blocks are written, as they are in effect.
pub(super) fn policy_of(
    catalog: &Catalog,
    dataset: &Dataset,
    reader: &PropertyReader<'_>,
    encryptor: Option<Arc<dyn Encryptor>>,
) -> Result<ObjsetPolicy> {
    let listed = Listed::Dataset(dataset.clone());
    let number = |name: &str, otherwise: u64| -> Result<u64> {
        Ok(match reader.get(&listed, name)?.map(|property| property.value) {
            Some(Value::Number(number)) => number,
            _ => otherwise,
        })
    };
    let _ = catalog;
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

impl LivePool {
    /// Opens the head `dataset` for writing; the same set for everybody.
    pub fn open_dataset(&self, dataset: &Dataset) -> Result<Arc<LiveDataset>> {
        if let Some(known) = self.datasets.lock().get(&dataset.id) {
            return Ok(known.clone());
        }
        if dataset.is_snapshot() {
            let reason = format!("'{}' is a snapshot", dataset.name);
            return Err(Error::new(ErrorKind::ReadOnly, reason));
        }
        let catalog = self.pool.catalog();
        let keys = self.dataset_keys(&catalog, dataset)?;
        let decryptor = keys.clone().map(|keys| keys as Arc<dyn Decryptor>);
        let encryptor = keys.clone().map(|keys| keys as Arc<dyn Encryptor>);
        let context = ReadContext { decryptor, objset: dataset.id.0, ..ReadContext::default() };
        let set = ObjectSet::open_live(&self.io, dataset.phys.pointer, context)?;
        let policy = self.policy(&catalog, dataset, encryptor)?;
        let policy = Arc::new(RwLock::new(policy));
        let log = self.open_log(dataset.id, &set, policy.clone(), keys)?;
        log.pool.spare_log_devices(self.log_bias(&catalog, dataset)?);
        let live = LiveDataset::with_log(dataset.id, set, policy, Some(log));
        live.account.set_costs(self.costs(&live.policy()));
        self.open_account(dataset, &live.account)?;
        live.set.set_account(live.account.clone());
        let mut open = self.datasets.lock();
        let live = open.entry(dataset.id).or_insert(live).clone();
        self.promises.open(dataset.id, live.account.clone());
        Ok(live)
    }

    /// Property `logbias` of a dataset: whether its log leaves log devices to others.
    fn log_bias(&self, catalog: &Catalog, dataset: &Dataset) -> Result<bool> {
        let reader =
            PropertyReader::new(catalog, self.pool.capacity(), self.pool.keys().as_ref(), "");
        let bias = reader.get(&Listed::Dataset(dataset.clone()), "logbias")?;
        Ok(bias.is_some_and(|bias| bias.value == Value::Number(THROUGHPUT)))
    }

    fn policy(
        &self,
        catalog: &Catalog,
        dataset: &Dataset,
        encryptor: Option<Arc<dyn Encryptor>>,
    ) -> Result<ObjsetPolicy> {
        let capacity = self.pool.capacity();
        let reader = PropertyReader::new(catalog, capacity, self.pool.keys().as_ref(), "");
        policy_of(catalog, dataset, &reader, encryptor)
    }

    /// The keys of a dataset; `None` if it is not encrypted.
    fn dataset_keys(
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

    /// The datasets open for writing follow their properties anew.
    pub fn refresh_policies(&self) {
        let catalog = self.pool.catalog();
        let all: Vec<Arc<LiveDataset>> = self.datasets.lock().values().cloned().collect();
        for live in all {
            let refresh = || -> Result<()> {
                let dataset = catalog.dataset_by_id(live.id)?;
                let encryptor = live.policy().encryptor;
                live.set_policy(self.policy(&catalog, &dataset, encryptor)?);
                live.account.set_costs(self.costs(&live.policy()));
                if let Some(log) = live.live_log() {
                    log.pool.spare_log_devices(self.log_bias(&catalog, &dataset)?);
                }
                Ok(())
            };
            if let Err(error) = refresh() {
                tracing::warn!(dataset = live.id.0, %error, "properties not read");
            }
        }
    }

    /// Forgets a head's live set: it is unmounted, and what was written is on the disks.
    pub fn close_dataset(&self, id: ObjectId) -> Result<()> {
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
        open.remove(&id);
        self.promises.close(id);
        Ok(())
    }

    /// Makes a dataset whose object set `fill` fills, in the group being written. For work given to
    /// [`LivePool::change`]. Below an encrypted dataset it is encrypted too.
    pub fn make_dataset(
        &self,
        change: &MosChange<'_>,
        new: &NewDataset<'_>,
        kind: ObjsetKind,
        fill: impl FnOnce(&ObjectSet, &Tx) -> Result<()>,
    ) -> Result<MadeDataset> {
        self.make_encrypted_dataset(change, new, &Encryption::Inherited, kind, fill)
    }

    /// Makes a clone, in the group being written. For work given to [`LivePool::change`].
    pub fn clone_dataset(
        &self,
        change: &MosChange<'_>,
        new: &NewDataset<'_>,
    ) -> Result<MadeDataset> {
        let origin = new.origin.ok_or_else(|| Error::invalid("a clone needs an origin"))?;
        self.check_log_header(change, origin)?;
        let made = change.create_dataset(new)?;
        self.clear_log(change, made.dataset)?;
        Ok(made)
    }

    /// Takes a head that is not open back to its newest snapshot, in the group being written. For
    /// work given to [`LivePool::change`].
    pub fn rollback_dataset(&self, change: &MosChange<'_>, head: ObjectId) -> Result<()> {
        if self.datasets.lock().contains_key(&head) {
            return Err(Error::new(ErrorKind::Busy, "dataset is busy"));
        }
        let catalog = Catalog::open(change.mos.clone(), self.pool.name())?;
        self.check_log_header(change, catalog.dataset_by_id(head)?.phys.previous_snapshot)?;
        change.rollback(head)?;
        self.clear_log(change, head)?;
        self.when_done(move |live| live.set_unreplayed(head, None));
        self.wake_freeing();
        Ok(())
    }

    /// Refuses what [`Self::clear_log`] could not do for a head with the content of `snapshot`.
    fn check_log_header(&self, change: &MosChange<'_>, snapshot: ObjectId) -> Result<()> {
        let catalog = Catalog::open(change.mos.clone(), self.pool.name())?;
        let snapshot = catalog.dataset_by_id(snapshot)?;
        let header = catalog.sealed_object_set(&snapshot)?.header().zil_header;
        let is_empty = header.iter().all(|byte| *byte == 0);
        if !is_empty {
            self.dataset_keys(&catalog, &snapshot)?;
        }
        Ok(())
    }

    /// A head got the content of a snapshot: the intent log of back then is not its own.
    fn clear_log(&self, change: &MosChange<'_>, head: ObjectId) -> Result<()> {
        let catalog = Catalog::open(change.mos.clone(), self.pool.name())?;
        let dataset = catalog.dataset_by_id(head)?;
        if dataset.phys.pointer.is_hole() {
            return Ok(());
        }
        let header = catalog.sealed_object_set(&dataset)?.header().zil_header;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let keys = self.dataset_keys(&catalog, &dataset)?;
        let decryptor = keys.clone().map(|keys| keys as Arc<dyn Decryptor>);
        let encryptor = keys.map(|keys| keys as Arc<dyn Encryptor>);
        let context = ReadContext { objset: head.0, decryptor, ..ReadContext::default() };
        let set = ObjectSet::open_live(&self.io, dataset.phys.pointer, context)?;
        set.set_zil_header(&[0; ZIL_HEADER])?;
        let policy = ObjsetPolicy { copies: 1, encryptor, ..ObjsetPolicy::mos() };
        self.fresh.lock().push(LiveDataset::new(head, set, policy));
        Ok(())
    }

    pub(super) fn fill_dataset(
        &self,
        change: &MosChange<'_>,
        made: MadeDataset,
        kind: ObjsetKind,
        keys: Option<Arc<DatasetKeys>>,
        fill: impl FnOnce(&ObjectSet, &Tx) -> Result<()>,
    ) -> Result<()> {
        let decryptor = keys.clone().map(|keys| keys as Arc<dyn Decryptor>);
        let encryptor = keys.map(|keys| keys as Arc<dyn Encryptor>);
        let objset = made.dataset.0;
        let context = ReadContext { objset, decryptor, ..ReadContext::default() };
        let set = ObjectSet::new_live(&self.io, context, kind);
        if kind == ObjsetKind::Zfs {
            let mut flags = FLAG_USERACCOUNTING_COMPLETE;
            if change.is_enabled("userobj_accounting")? {
                flags |= FLAG_USEROBJACCOUNTING_COMPLETE;
                change.activate_feature(made.dataset, "userobj_accounting")?;
            }
            if change.is_enabled("project_quota")? {
                flags |= FLAG_PROJECTQUOTA_COMPLETE;
                change.activate_feature(made.dataset, "project_quota")?;
            }
            set.set_flags(flags)?;
        }
        fill(&set, change.tx)?;
        // Its properties are not known before it is on the disks; its first blocks are small.
        let policy = ObjsetPolicy { copies: 1, encryptor, ..ObjsetPolicy::mos() };
        self.fresh.lock().push(LiveDataset::new(made.dataset, set, policy));
        Ok(())
    }
}
