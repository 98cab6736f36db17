//! The pool process's answers: [`PoolService`] over an open pool.
//!
//! Invariant: what only looks is answered from what is published; orders (mount, load a key, export)
//! take a lock of their own and never one that a look needs.

mod activities;
mod asked;
mod by_files;
pub mod changes;
mod datasets;
mod deaths;
mod delegation;
mod events;
mod faults;
mod history;
mod jobs;
mod leaving;
mod mounts;
mod orders;
mod permissions;
mod places;
mod pool_report;
mod published;
mod rebuilds;
mod scan_speed;
pub mod settings;
mod spares;
mod troubles;
mod turns;
pub mod vdevs;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use cenote_control::changes::{ChangeRequest, Grant};
use cenote_control::events::EventsAsked;
use cenote_control::faults::FaultReport;
use cenote_control::mounted_places::MountedPlaces;
use cenote_control::peer::Peer;
use cenote_control::protocol::{DatasetQuery, Failure, FailureKind, Part, Request};
use cenote_control::replies::Replies;
use cenote_control::report::{GoneBack, PoolReport, UsageRecord};
use cenote_control::run_directory;
use cenote_control::server::{Call, Carried, PoolService};
use cenote_engine::dataset::{Known, Principal, PrincipalUsage, Usage};
use cenote_engine::pool::Pool;
use cenote_engine::pool::properties::Runtime;
use cenote_engine::{Error, ErrorKind};
use cenote_format::Txg;

use changes::PoolChanges;
use datasets::{Shown, is_usage_known};
use deaths::Deaths;
use delegation::Need;
use events::Told;
use leaving::Leaving;
use mounts::Mounts;
use published::Publisher;
use scan_speed::ScanSpeed;
use turns::{Turn, Turns};

/// How often devices that were given up are tried again.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// How soon losses of data are named and mounts that somebody unmounted are noticed, while no group is
/// written.
const NOTICE_TIME: Duration = Duration::from_secs(1);
/// What could not be read is tried again after so many times [`NOTICE_TIME`].
const LOOKS: u32 = 10;
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
    pool: ArcSwapOption<Pool>,
    publisher: Publisher,
    changes: Arc<PoolChanges>,
    mounts: Mounts,
    turns: Turns,
    told: Told,
    altroot: String,
    leaving: Leaving,
    scan_speed: ScanSpeed,
    deaths: Deaths,
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
        let life = load_guid();
        let runtime = Runtime {
            health: "ONLINE".to_owned(),
            altroot: facts.altroot.clone(),
            cachefile: (facts.no_cache_file || facts.altroot.is_some()).then(|| "none".to_owned()),
            read_only: facts.read_only || changes.refusal().is_some(),
            load_guid: Some(life),
            expandable: None,
        };
        let publisher = Publisher::start(&pool, &changes, runtime)?;
        if !pool.is_written() {
            pool.begin_events();
            pool.events().system("pool_import", Vec::new());
        }
        watch_devices(&pool);
        let told = Told::new(pool.events(), life);
        let mounts = Mounts::new(changes.clone(), noted_places(&pool));
        let service = Arc::new(Self {
            pool: ArcSwapOption::new(Some(pool)),
            publisher,
            mounts,
            changes,
            told,
            turns: Turns::default(),
            altroot: facts.altroot.clone().unwrap_or_default(),
            leaving: Leaving::default(),
            scan_speed: ScanSpeed::default(),
            deaths: Deaths::default(),
        });
        service.mounts.administer(Arc::new(by_files::ByFiles::of(&service)));
        service.keep_published();
        Ok(service)
    }

    /// Publishes every transaction group that is on the disks, on a thread of its own, as long as the
    /// pool is open.
    fn keep_published(self: &Arc<Self>) {
        let (service, changes) = (Arc::downgrade(self), self.changes.clone());
        let run = move || {
            let (mut seen, mut looks) = (Txg(0), 0_u32);
            loop {
                let now = changes.wait_past(seen, NOTICE_TIME);
                let Some(service) = service.upgrade() else { break };
                let Ok(pool) = service.pool() else { break };
                service.publisher.name_troubles(&pool);
                service.scan_speed.measure(changes.scan_progress().as_ref());
                service.notice_unmounted();
                changes.store_old_access_times();
                looks = looks.wrapping_add(1);
                let is_due = looks.is_multiple_of(LOOKS) && service.publisher.now().is_stale;
                if now != seen || is_due {
                    seen = now;
                    if let Err(error) = service.publisher.publish(&pool, &service.changes) {
                        tracing::warn!(%error, "what is shown is not up to date");
                    }
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("publish".into()).spawn(run) {
            tracing::warn!(%error, "what is shown is only brought up to date by commands");
        }
    }

    /// Waits for the orders under way and for what users did to the mounts meanwhile.
    fn begin_order(&self) -> Turn<'_> {
        let order = self.turns.alone();
        self.mounts.forget_gone(UNMOUNT_TIME);
        order
    }

    /// Notices mounts that somebody unmounted, unless an order is under way.
    fn notice_unmounted(&self) {
        if self.mounts.has_gone()
            && self.changes.suspended().is_none()
            && let Some(_order) = self.turns.try_alone()
        {
            self.mounts.forget_gone(Duration::ZERO);
        }
    }

    /// Publishes the pool as it is after a change.
    fn publish(&self, pool: &Pool) -> Result<(), Failure> {
        self.publisher.publish(pool, &self.changes).map_err(|error| failure(&error))
    }

    /// The same after an order that has been carried out in any case.
    fn publish_quietly(&self, pool: &Pool) {
        if let Err(failure) = self.publish(pool) {
            tracing::warn!(%failure, "what is shown is not up to date");
        }
    }

    fn pool(&self) -> Result<Arc<Pool>, Failure> {
        let gone = || Failure::new(FailureKind::NotFound, "the pool is exported");
        self.pool.load_full().ok_or_else(gone)
    }

    /// All datasets as they were published last, and what is mounted of them now.
    fn shown(&self) -> Result<Shown, Failure> {
        self.pool()?;
        Shown::new(self.publisher.now(), self.mounts.now(), &self.altroot)
    }
}

/// What tells the mounts of this process from those of another pool of its name.
fn noted_places(pool: &Pool) -> Option<MountedPlaces> {
    let file = run_directory::files(&run_directory::path(), pool.name()).mounts;
    let mounted = cenote_serve::fuse::mounted_places();
    // What cannot be looked up may be mounted.
    let is_mounted = |place: &Path| mounted.as_ref().is_none_or(|all| all.contains(place));
    MountedPlaces::open(file, is_mounted)
        .inspect_err(|error| tracing::warn!(%error, "mounts are not noted"))
        .ok()
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

/// The refusal of a question or an order about a dataset that is not there.
fn no_dataset(name: &str) -> Failure {
    Failure::new(FailureKind::NotFound, format!("cannot open '{name}': dataset does not exist"))
}

/// A dataset that is looked for.
fn known<'a>(shown: &'a Shown, name: &str) -> Result<Known<'a>, Failure> {
    shown.known(name).ok_or_else(|| no_dataset(name))
}

impl PoolService for Service {
    fn report(&self) -> PoolReport {
        match self.pool() {
            Ok(pool) => {
                let now = self.publisher.now();
                let mounted = |name: &str| self.mounts.of(name);
                let mut report = now.facts.now(&pool, &now.space, &now.troubles, mounted);
                if let Some(progress) = self.changes.scan_progress() {
                    pool_report::add_scan(&mut report, &progress, self.scan_speed.rate());
                }
                if let Some(progress) = self.changes.expansion_progress() {
                    pool_report::add_expansion(&mut report, &progress);
                }
                let rebuilding = self.changes.rebuild_progress();
                rebuilds::add(&mut report, &rebuilding);
                if !rebuilding.is_empty() {
                    report.status = pool_report::status(&report);
                }
                if let Some(paused) = self.changes.error_scrub_pause() {
                    pool_report::add_error_scrub(&mut report, paused);
                }
                if let Some(how) = self.changes.suspended() {
                    pool_report::suspend(&mut report, how);
                }
                report.read_only_because = self.changes.read_only_because();
                report.unreplayed = now.unreplayed.to_vec();
                report.jobs = self.changes.jobs();
                report.gone_back = pool
                    .gone_back()
                    .map(|back| GoneBack { as_of: back.as_of.cast_signed(), lost: back.lost });
                report
            }
            Err(_) => PoolReport::default(),
        }
    }

    fn reads(&self, request: &Request) -> bool {
        match request {
            Request::Datasets(query) => self.shown().is_ok_and(|shown| shown.lacks(query)),
            Request::History => !self.publisher.now().history.is_whole(),
            Request::Usage(dataset) => self.shown().is_ok_and(|shown| {
                shown.known(dataset).is_some_and(|known| !is_usage_known(&known))
            }),
            _ => false,
        }
    }

    fn datasets(&self, query: &DatasetQuery, replies: &Replies<'_>) -> Result<(), Failure> {
        let shown = self.shown()?;
        let pool = self.pool()?;
        let answer = shown.answer(query, shown.lacks(query).then_some(&*pool))?;
        replies.list(answer, Part::Datasets)
    }

    fn history(&self, replies: &Replies<'_>) -> Result<(), Failure> {
        let pool = self.pool()?;
        let now = self.publisher.now();
        if let Some(records) = now.history.whole() {
            return replies.list(records.map(Ok), Part::History);
        }
        let catalog = pool.catalog();
        let records = history::records(&catalog).map(|record| {
            record.map_err(|error| {
                Failure::new(FailureKind::Other, format!("cannot get history: {error}"))
            })
        });
        replies.list(records, Part::History)
    }

    fn usage(&self, dataset: &str, replies: &Replies<'_>) -> Result<(), Failure> {
        let shown = self.shown()?;
        let found = known(&shown, dataset)?;
        let refuse = |reason: &str, failure: Failure| {
            let message = format!("cannot get used/quota for {dataset}: {reason}");
            Failure { message, ..failure }
        };
        let Some(facts) = found.facts() else { return Err(no_dataset(dataset)) };
        if facts.dataset.phys.is_inconsistent() {
            let busy = Failure::new(FailureKind::Busy, "");
            return Err(refuse("dataset is busy", busy));
        }
        let usage = match &found.entry().usage {
            Usage::Known(usage) if is_usage_known(&found) => Ok(usage.clone()),
            Usage::Unknown(error) if is_usage_known(&found) => Err(error.clone()),
            _ => {
                let pool = self.pool()?;
                pool.catalog().usage(&facts.dataset, &**pool.keys()).map(Arc::new)
            }
        };
        let usage = usage.map_err(|error| match error.kind() {
            ErrorKind::KeyNotLoaded => refuse("permission denied", failure(&error)),
            _ => refuse(&error.to_string(), failure(&error)),
        })?;
        let record = |(whose, usage): (&Principal, &PrincipalUsage)| {
            let (kind, id) = match *whose {
                Principal::User(id) => ("user", id),
                Principal::Group(id) => ("group", id),
                Principal::Project(id) => ("project", id),
            };
            Ok(UsageRecord {
                kind: kind.to_owned(),
                id,
                used: usage.used,
                quota: usage.quota,
                objects: usage.objects,
                object_quota: usage.object_quota,
            })
        };
        replies.list(usage.iter().map(record), Part::Usage)
    }

    fn holds(&self, snapshot: &str) -> Result<Vec<(String, u64)>, Failure> {
        let shown = self.shown()?;
        let facts = known(&shown, snapshot)?.facts().map(|facts| facts.holds.clone());
        facts.ok_or_else(|| no_dataset(snapshot))
    }

    fn permissions(&self, dataset: &str) -> Result<Vec<(String, Vec<Grant>)>, Failure> {
        let shown = self.shown()?;
        known(&shown, dataset)?;
        Ok(permissions::permissions(&shown, dataset))
    }

    fn delete_queue(&self, dataset: &str) -> Result<u64, Failure> {
        let pool = self.pool()?;
        let found = pool.catalog().dataset_named(dataset).map_err(|error| failure(&error))?;
        self.changes.delete_queue(found.id).map_err(|error| failure(&error))
    }

    fn events(&self, asked: &EventsAsked, replies: &Replies<'_>) -> Result<(), Failure> {
        self.told.give(asked, replies)
    }

    fn faults(&self) -> Vec<FaultReport> {
        let mut all = self.pool().map(|pool| faults::reports(&pool)).unwrap_or_default();
        all.extend(self.deaths.reports());
        all
    }

    fn clear_events(&self) -> Result<u64, Failure> {
        Ok(self.told.clear())
    }

    fn denied(&self, request: &Request, who: &Peer) -> Option<Failure> {
        let words = match request {
            Request::Change(order) => orders::denied(&order.change, who, self)?,
            Request::Usage(name) => {
                let needs = ["userused", "groupused"].map(|one| Need::new(one, name));
                let is_open = self.shown().is_ok_and(|all| self.has(&all, who, &needs));
                (!is_open)
                    .then(|| format!("cannot get used/quota for {name}: permission denied"))?
            }
            // Nothing is told but how many there are, as with OpenZFS.
            Request::DeleteQueue(_) => return None,
            _ if request.only_looks() || who.is_owner() => return None,
            _ => "permission denied".to_owned(),
        };
        Some(Failure::new(FailureKind::Permission, words))
    }

    fn carry_out(&self, request: &ChangeRequest, call: Call<'_>) -> Result<Carried, Failure> {
        self.give(request, call)
    }

    fn leave(&self) -> Result<(), Failure> {
        self.cut_off_and_export()
    }
}
