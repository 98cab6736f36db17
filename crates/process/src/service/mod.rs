//! The pool process's answers: [`PoolService`] over an open pool.
//!
//! Invariant: what only looks is answered from memory; orders (mount, load a key, export) take a
//! lock of their own and never one that a look needs.

mod activities;
pub mod changes;
mod datasets;
mod history;
mod mounts;
mod orders;
mod permissions;
mod places;
mod pool_report;
pub mod settings;
mod spares;
mod troubles;
pub mod vdevs;

use std::sync::Arc;
use std::time::Duration;

use cenote_control::changes::{ChangeRequest, Grant};
use cenote_control::protocol::{
    DatasetQuery, Failure, FailureKind, LoadKeyRequest, MountRequest, Request, UnmountRequest,
};
use cenote_control::report::{
    DatasetKind, DatasetReport, GoneBack, HistoryRecord, PoolReport, Source, UsageRecord,
};
use cenote_control::server::PoolService;
use cenote_engine::dataset::{Principal, PrincipalUsage};
use cenote_engine::pool::Pool;
use cenote_engine::pool::properties::Runtime;
use cenote_engine::{Error, ErrorKind};
use parking_lot::{Mutex, MutexGuard, RwLock};

use changes::PoolChanges;
use datasets::Catalogue;
use mounts::{Mounts, Place};
use pool_report::Published;

/// How often devices that were given up are tried again.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// How often it is looked whether there is something new to publish.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// How long a mount that somebody unmounted may take to end.
const UNMOUNT_TIME: Duration = Duration::from_millis(300);

/// How the pool was imported.
#[derive(Debug, Clone, Default)]
pub struct ImportFacts {
    /// What goes before all mountpoints (`-R`).
    pub altroot: Option<String>,
    /// Opened for reading only.
    pub read_only: bool,
    /// Property `cachefile` is `none`.
    pub no_cache_file: bool,
}

/// An imported pool.
pub struct Service {
    pool: RwLock<Option<Arc<Pool>>>,
    published: RwLock<Published>,
    changes: Arc<PoolChanges>,
    runtime: Runtime,
    catalogue: Arc<Catalogue>,
    mounts: Mounts,
    orders: Mutex<()>,
    altroot: String,
}

impl Service {
    /// Takes over an open pool and publishes what it shows.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn new(
        pool: Arc<Pool>,
        changes: Arc<PoolChanges>,
        facts: &ImportFacts,
    ) -> Result<Arc<Self>, Error> {
        let runtime = Runtime {
            health: "ONLINE".to_owned(),
            altroot: facts.altroot.clone(),
            cachefile: (facts.no_cache_file || facts.altroot.is_some()).then(|| "none".to_owned()),
            read_only: facts.read_only || changes.refusal().is_some(),
            load_guid: Some(load_guid()),
            expandable: None,
        };
        let published = Published::read(&pool, &runtime)?;
        let altroot = facts.altroot.clone().unwrap_or_default();
        let catalogue = Catalogue::start(&pool, &altroot, changes.synced_txg());
        watch_devices(&pool);
        let service = Arc::new(Self {
            pool: RwLock::new(Some(pool)),
            published: RwLock::new(published),
            mounts: Mounts::new(changes.clone()),
            changes,
            runtime,
            catalogue,
            orders: Mutex::new(()),
            altroot,
        });
        service.keep_published();
        Ok(service)
    }

    /// Reads what the pool shows anew when transaction groups have been written, on a thread of its
    /// own, as long as the pool is open.
    fn keep_published(self: &Arc<Self>) {
        let mut seen = self.changes.synced_txg();
        let service = Arc::downgrade(self);
        let run = move || {
            loop {
                std::thread::sleep(PUBLISH_INTERVAL);
                let Some(service) = service.upgrade() else { break };
                let Ok(pool) = service.pool() else { break };
                if service.published.read().is_troubled(&pool) {
                    service.name_troubles(&pool);
                }
                service.notice_unmounted();
                let now = service.changes.synced_txg();
                if now.is_some() && now != seen {
                    seen = now;
                    match Published::read(&pool, &service.runtime) {
                        Ok(published) => service.publish_now(published),
                        Err(error) => tracing::warn!(%error, "what is shown is not up to date"),
                    }
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("publish".into()).spawn(run) {
            tracing::warn!(%error, "what is shown is only brought up to date by commands");
        }
    }

    /// Names what could not be read, for `zpool status -v`.
    fn name_troubles(&self, pool: &Pool) {
        let mut troubles = self.published.read().troubles();
        troubles.name(pool);
        self.published.write().set_troubles(troubles);
    }

    /// Waits for the order under way and for what users did to the mounts meanwhile.
    fn begin_order(&self) -> MutexGuard<'_, ()> {
        let order = self.orders.lock();
        self.mounts.forget_gone(UNMOUNT_TIME);
        order
    }

    /// Notices mounts that somebody unmounted, unless an order is under way.
    fn notice_unmounted(&self) {
        if self.mounts.has_gone()
            && self.changes.suspended().is_none()
            && let Some(_order) = self.orders.try_lock()
        {
            self.mounts.forget_gone(Duration::ZERO);
        }
    }

    fn publish_now(&self, published: Published) {
        let mut now = self.published.write();
        *now = published.since(&now);
    }

    /// Publishes the pool as it is after a change.
    fn publish(&self, pool: &Arc<Pool>) -> Result<(), Failure> {
        let published = Published::read(pool, &self.runtime).map_err(|error| failure(&error))?;
        self.publish_now(published);
        self.catalogue.read_again(pool, &self.altroot, self.changes.synced_txg())
    }

    fn pool(&self) -> Result<Arc<Pool>, Failure> {
        let gone = || Failure::new(FailureKind::NotFound, "the pool is exported");
        self.pool.read().clone().ok_or_else(gone)
    }

    /// Brings what changes while a pool is open up to date.
    fn freshen(&self, pool: &Pool, dataset: &mut DatasetReport) {
        if dataset.kind == DatasetKind::Filesystem {
            let at = self.mounts.of(&dataset.name);
            datasets::set(dataset, "mounted", if at.is_some() { "yes" } else { "no" });
            for (name, value) in self.mounts.temporary(&dataset.name) {
                if dataset.properties.value(name) != Some(value) {
                    dataset.properties.set(name, value, Source::Temporary);
                }
            }
            dataset.mounted_at = at.map(|path| path.display().to_string());
        }
        let root = dataset.properties.value("encryptionroot").map(str::to_owned);
        if let Some(root) = root
            && dataset.properties.get("keystatus").is_some()
            && let Ok(directory) = pool.catalog().directory(&root)
        {
            use cenote_engine::dataset::Keys;
            let loaded = pool.keys().is_loaded(directory.id);
            let status = if loaded { "available" } else { "unavailable" };
            datasets::set(dataset, "keystatus", status);
        }
    }

    fn fresh(&self, pool: &Arc<Pool>) -> Result<Vec<DatasetReport>, Failure> {
        let all = self.catalogue.all(pool, &self.altroot, self.changes.synced_txg())?;
        let mut all: Vec<DatasetReport> = all.to_vec();
        for dataset in &mut all {
            self.freshen(pool, dataset);
        }
        Ok(all)
    }

    fn take_key(&self, request: &LoadKeyRequest) -> Result<(), Failure> {
        let pool = self.pool()?;
        let directory = pool.catalog().directory(&request.dataset).map_err(|e| failure(&e))?;
        let (keys, catalog) = (pool.keys(), pool.catalog());
        let done = if request.check_only {
            keys.check(&catalog, &directory, &request.secret.0)
        } else {
            keys.load(&catalog, &directory, &request.secret.0)
        };
        done.map_err(|error| {
            let (kind, words) = match error.kind() {
                ErrorKind::WrongKey => (
                    FailureKind::WrongKey,
                    format!("Incorrect key provided for '{}'.", request.dataset),
                ),
                ErrorKind::Exists => {
                    (FailureKind::Already, format!("Key already loaded for '{}'.", request.dataset))
                }
                // Theirs first, for those who look for it.
                _ => (FailureKind::Other, format!("encryption failure ({error})")),
            };
            Failure::new(kind, words)
        })
    }
}

/// Tries devices that were given up again every few seconds, as long as the pool is open.
fn watch_devices(pool: &Arc<Pool>) {
    let pool = Arc::downgrade(pool);
    let run = move || {
        loop {
            std::thread::sleep(PROBE_INTERVAL);
            let Some(pool) = pool.upgrade() else { break };
            let vdevs = pool.vdevs();
            if vdevs.probe() | (vdevs.has_gone() && vdevs.reopen()) {
                tracing::info!("a device changed its state");
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("devices".into()).spawn(run) {
        tracing::warn!(%error, "devices that fail are not tried again");
    }
}

/// A number nobody else has.
fn load_guid() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // A fresh random state is as random as the operating system makes it.
    RandomState::new().hash_one(std::process::id())
}

fn failure(error: &Error) -> Failure {
    let kind = match error.kind() {
        ErrorKind::NotFound => FailureKind::NotFound,
        ErrorKind::Busy => FailureKind::Busy,
        ErrorKind::Exists => FailureKind::Already,
        ErrorKind::WrongKey => FailureKind::WrongKey,
        ErrorKind::Permission => FailureKind::Permission,
        ErrorKind::ReadOnly => FailureKind::ReadOnly,
        ErrorKind::NoSpace | ErrorKind::Quota => FailureKind::NoSpace,
        ErrorKind::Unsupported => FailureKind::NotSupported,
        _ => FailureKind::Other,
    };
    Failure::new(kind, error.to_string())
}

impl Service {
    /// Forgets the key of an encryption root.
    fn drop_key(&self, pool: &Arc<Pool>, dataset: &str) -> Result<(), Failure> {
        let directory = pool.catalog().directory(dataset).map_err(|error| failure(&error))?;
        let in_use = self.fresh(pool)?.iter().any(|other| {
            other.properties.value("encryptionroot") == Some(dataset)
                && self.mounts.of(&other.name).is_some()
        });
        let in_use =
            in_use || self.changes.is_key_in_use(directory.id).map_err(|error| failure(&error))?;
        if in_use {
            let words = format!("'{dataset}' is busy.");
            return Err(Failure::new(FailureKind::Busy, words));
        }
        pool.keys().unload(&directory).map_err(|error| {
            let words = match error.kind() {
                ErrorKind::KeyNotLoaded => format!("Key already unloaded for '{dataset}'."),
                _ => error.to_string(),
            };
            Failure::new(FailureKind::Other, words)
        })?;
        // What was decrypted with the key is forgotten with it.
        pool.io().pipe.cache().purge_encrypted();
        Ok(())
    }

    /// Unloads the keys of the encryption roots that were mounted and are not any more. None of them
    /// if one is in use elsewhere.
    fn unload_unmounted(
        &self,
        pool: &Arc<Pool>,
        all: &[DatasetReport],
        before: &[Place],
    ) -> Result<(), Failure> {
        let went = |name: &str| {
            before.iter().any(|place| place.dataset == name) && self.mounts.of(name).is_none()
        };
        let is_loaded_root = |dataset: &&DatasetReport| {
            dataset.properties.value("encryptionroot") == Some(dataset.name.as_str())
                && dataset.properties.value("keystatus") == Some("available")
                && went(&dataset.name)
        };
        let roots: Vec<&str> = all.iter().filter(is_loaded_root).map(|d| d.name.as_str()).collect();
        let in_use = |root: &&&str| {
            let uses = |other: &DatasetReport| {
                other.properties.value("encryptionroot") == Some(**root)
                    && self.mounts.of(&other.name).is_some()
            };
            all.iter().any(uses)
        };
        if let Some(root) = roots.iter().find(in_use) {
            let words = format!("Key unload error: '{root}' is busy.");
            return Err(Failure::new(FailureKind::Busy, words));
        }
        roots.iter().rev().try_for_each(|root| {
            self.drop_key(pool, root).map_err(|failure| Failure {
                message: format!("Key unload error: {}", failure.message),
                ..failure
            })
        })
    }
}

impl PoolService for Service {
    fn report(&self) -> PoolReport {
        match self.pool() {
            Ok(pool) => {
                let mut report = self.published.read().now(&pool, |name| self.mounts.of(name));
                if let Some(refuses) = self.changes.suspended() {
                    pool_report::suspend(&mut report, refuses);
                }
                report.read_only_because = self.changes.read_only_because();
                report.unreplayed = self.changes.unreplayed();
                report.stuck_freeing = self.changes.stuck_freeing();
                report.gone_back = pool
                    .gone_back()
                    .map(|back| GoneBack { as_of: back.as_of.cast_signed(), lost: back.lost });
                report
            }
            Err(_) => PoolReport::default(),
        }
    }

    fn datasets(&self, query: &DatasetQuery) -> Result<Vec<DatasetReport>, Failure> {
        let pool = self.pool()?;
        let all = self.catalogue.all(&pool, &self.altroot, self.changes.synced_txg())?;
        let freshen = |dataset: &mut DatasetReport| self.freshen(&pool, dataset);
        datasets::answer(&pool, &all, query, &self.altroot, &freshen)
    }

    fn history(&self) -> Result<Vec<HistoryRecord>, Failure> {
        history::records(&*self.pool()?)
            .map_err(|error| Failure::new(FailureKind::Other, history::failure(&error)))
    }

    fn usage(&self, dataset: &str) -> Result<Vec<UsageRecord>, Failure> {
        let pool = self.pool()?;
        let found = pool.catalog().dataset_named(dataset).map_err(|error| failure(&error))?;
        let refuse = |reason: &str, failure: Failure| {
            let message = format!("cannot get used/quota for {dataset}: {reason}");
            Failure { message, ..failure }
        };
        if found.phys.is_inconsistent() {
            let busy = Failure::new(FailureKind::Busy, "");
            return Err(refuse("dataset is busy", busy));
        }
        let usage = pool.catalog().usage(&found, &**pool.keys());
        let usage = usage.map_err(|error| match error.kind() {
            cenote_engine::ErrorKind::KeyNotLoaded => refuse("permission denied", failure(&error)),
            _ => refuse(&error.to_string(), failure(&error)),
        })?;
        let record = |(whose, usage): (Principal, PrincipalUsage)| {
            let (kind, id) = match whose {
                Principal::User(id) => ("user", id),
                Principal::Group(id) => ("group", id),
                Principal::Project(id) => ("project", id),
            };
            UsageRecord {
                kind: kind.to_owned(),
                id,
                used: usage.used,
                quota: usage.quota,
                objects: usage.objects,
                object_quota: usage.object_quota,
            }
        };
        Ok(usage.into_iter().map(record).collect())
    }

    fn holds(&self, snapshot: &str) -> Result<Vec<(String, u64)>, Failure> {
        let pool = self.pool()?;
        let catalog = pool.catalog();
        let found = catalog.dataset_named(snapshot).map_err(|error| failure(&error))?;
        catalog.holds(&found).map_err(|error| failure(&error))
    }

    fn permissions(&self, dataset: &str) -> Result<Vec<(String, Vec<Grant>)>, Failure> {
        let pool = self.pool()?;
        permissions::permissions(&pool.catalog(), dataset).map_err(|error| failure(&error))
    }

    fn delete_queue(&self, dataset: &str) -> Result<u64, Failure> {
        let pool = self.pool()?;
        let found = pool.catalog().dataset_named(dataset).map_err(|error| failure(&error))?;
        self.changes.delete_queue(found.id).map_err(|error| failure(&error))
    }

    fn denied(&self, request: &Request) -> String {
        let of = |name: &Option<String>| name.clone().unwrap_or_default();
        let pool = self.pool().map(|pool| pool.name().to_owned()).unwrap_or_default();
        let start = match request {
            Request::Change(change) => orders::start(&change.change, &pool),
            Request::Mount(request) => format!("cannot mount '{}'", of(&request.dataset)),
            Request::Unmount(request) => format!("cannot unmount '{}'", of(&request.dataset)),
            Request::Export { .. } => format!("cannot export '{pool}'"),
            Request::Usage(name) => format!("cannot get used/quota for {name}"),
            _ => return "permission denied".to_owned(),
        };
        format!("{start}: permission denied")
    }

    fn mount(&self, request: &MountRequest) -> Result<Vec<String>, Failure> {
        let _order = self.begin_order();
        let pool = self.pool()?;
        self.mounts.mount(&pool, &self.fresh(&pool)?, request)
    }

    fn unmount(&self, request: &UnmountRequest) -> Result<Vec<String>, Failure> {
        let _order = self.begin_order();
        let pool = self.pool()?;
        if request.dataset.is_some() && !request.unload_keys {
            return self.mounts.unmount(&[], request);
        }
        let all = self.fresh(&pool)?;
        let places = self.mounts.places();
        let warnings = self.mounts.unmount(&all, request)?;
        if request.unload_keys
            && let Err(failure) = self.unload_unmounted(&pool, &all, &places)
        {
            self.mounts.restore(&pool, &self.fresh(&pool)?, places);
            return Err(failure);
        }
        Ok(warnings)
    }

    fn load_key(&self, request: &LoadKeyRequest) -> Result<(), Failure> {
        let _order = self.begin_order();
        self.take_key(request)?;
        self.changes.keys_loaded();
        Ok(())
    }

    fn unload_key(&self, dataset: &str) -> Result<(), Failure> {
        let _order = self.begin_order();
        let pool = self.pool()?;
        self.drop_key(&pool, dataset)
    }

    fn change(&self, request: &ChangeRequest) -> Result<Vec<String>, Failure> {
        self.carry_out(request)
    }

    fn export(&self, force: bool, command: Option<&str>) -> Result<Vec<String>, Failure> {
        let mut lost = None;
        if self.changes.suspended().is_some() {
            let name = self.pool()?.name().to_owned();
            if !force {
                let words = format!("cannot export '{name}': {}", orders::SUSPENDED);
                return Err(Failure::new(FailureKind::Busy, words));
            }
            // Before anything waits for the pool: who waits is told.
            let last = self.changes.abandon();
            lost = Some(format!(
                "'{name}' was suspended: what was changed after transaction group {last} and not \
                 synced is not on the disks"
            ));
        }
        let _order = self.begin_order();
        let pool = self.pool()?;
        let places = self.mounts.places();
        let mounted = self.mounts.names();
        let made = match lost {
            Some(_) => Vec::new(),
            None => {
                let all = self.fresh(&pool).unwrap_or_default();
                places::made(&all, |name| mounted.iter().any(|one| one == name))
            }
        };
        let mut warnings = self.mounts.unmount_all(force).inspect_err(|_| {
            // A pool that stays stays whole.
            if let Ok(datasets) = self.fresh(&pool) {
                self.mounts.restore(&pool, &datasets, places);
            }
        })?;
        drop(pool);
        if let Some(lost) = lost {
            *self.pool.write() = None;
            warnings.push(lost);
            return Ok(warnings);
        }
        self.note_command(command);
        if let Err(error) = self.changes.export() {
            let name = self.pool()?.name().to_owned();
            let words = format!("cannot export '{name}': {error}");
            return Err(Failure { message: words, ..failure(&error) });
        }
        *self.pool.write() = None;
        places::remove(made);
        Ok(warnings)
    }
}
