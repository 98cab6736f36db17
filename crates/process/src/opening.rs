//! Opening and creating the pool of a pool process.
//!
//! Invariant: this process alone has the pool open on this host, by its guid and by its devices, before
//! anything of it is believed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_control::begin::{Back, OpenRequest};
use cenote_control::budget::Budget;
use cenote_control::plan::CreatePool;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::server::PoolService;
use cenote_device::{HostLock, HostLockError, Mode};
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::keys::suite_of_property;
use cenote_engine::object::ObjectSet;
use cenote_engine::pool::assemble::PoolCandidate;
use cenote_engine::pool::change::{Additions, NewPoolPlan, create as create_pool};
use cenote_engine::pool::discover::{FileOpener, Opener, ScanOptions};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::pool::host::HostIdentity;
use cenote_engine::pool::leaves::HeldDevices;
use cenote_engine::pool::search::search;
use cenote_engine::pool::{OpenOptions, Pool, Rewind};
use cenote_engine::txg::Tx;
use cenote_engine::{Error, ErrorKind};
use cenote_format::{Guid, Txg};
use cenote_posix::write::put_first_quotas;

use crate::lock_holder;
use crate::memory;
use crate::planned;
use crate::service::changes::PoolChanges;
use crate::service::settings;
use crate::service::{ImportFacts, Service};
use crate::whole_disks;

/// How often an import looks again before it gives up: at what changed, or is held.
const TRIES: u32 = 8;
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for disks that may have to spin up first.
const SPINS_UP: Duration = Duration::from_secs(30);
/// The same where somebody wants to hear within five seconds for what, each look taking two.
const GLANCE: Duration = Duration::from_secs(1);

/// Opens a pool. What this does for a pool process, nobody else does.
///
/// # Errors
/// With the words of `zpool import`.
pub fn open(request: &OpenRequest) -> Result<Arc<dyn PoolService>, Failure> {
    let name = &request.name;
    // Before devices are looked at: what is found then, no other process here goes on changing.
    let lock = host_lock(request.guid).map_err(|reason| {
        Failure::new(FailureKind::Already, format!("cannot import '{name}': {reason}"))
    })?;
    let mut lock = Some(lock);
    let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: Mode::ReadOnly });
    let options = ScanOptions::new(request.search.places.clone());
    let patience = if request.search.is_patient { SPINS_UP } else { GLANCE };
    let mut tries = TRIES;
    loop {
        let found = search(&opener, &options, Guid(request.guid), patience);
        let Some(candidate) = &found.candidate else {
            let mut message = format!("cannot import '{name}': no such pool available");
            if !found.silent.is_empty() {
                message = format!("cannot import '{name}': {}", no_answer(&found.silent));
            }
            return Err(Failure::new(FailureKind::NotFound, message));
        };
        if found.may_be_stale() && !request.read_only && !request.force {
            let message = format!(
                "cannot import '{name}': {}: newer data of the pool may be there\n\t\
                 wait until it answers, or use '-f' to import the pool without",
                no_answer(&found.silent)
            );
            return Err(Failure::new(FailureKind::Other, message));
        }
        match open_found(candidate, request, &mut lock) {
            Err(error) if tries > 0 && is_passing(&error) => {
                tracing::info!(%error, "looking at the devices again");
                tries -= 1;
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(cannot_import(request, &error)),
            Ok(service) => return Ok(service),
        }
    }
}

/// Which devices do not answer.
fn no_answer(silent: &[PathBuf]) -> String {
    let all: Vec<String> = silent.iter().map(|path| path.display().to_string()).collect();
    format!("no answer from {}", all.join(", "))
}

/// Another process wrote on meanwhile, or has died and the kernel is not done with its last writes.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Outdated | ErrorKind::Busy)
}

/// This machine's lock of a pool; else why the pool is not to be opened. Waits a little for a
/// process that is about to end.
fn host_lock(pool: u64) -> Result<Option<HostLock>, String> {
    for _ in 0..TRIES {
        match HostLock::take(pool) {
            Ok(lock) => return Ok(Some(lock)),
            Err(HostLockError::Held(_)) => {
                if let Some(user) = lock_holder::other_user(pool) {
                    // The devices are claimed all the same.
                    tracing::warn!(user, "another user has the lock of the pool: done without");
                    return Ok(None);
                }
                std::thread::sleep(PAUSE);
            }
            Err(error @ HostLockError::Failed(_)) => {
                // The devices are claimed all the same.
                tracing::warn!(%error, "the pool is not locked on this host");
                return Ok(None);
            }
        }
    }
    match HostLock::take(pool) {
        Err(error @ HostLockError::Held(_)) => Err(error.to_string()),
        lock => Ok(lock.ok()),
    }
}

/// The words of `zpool import` for `error`.
fn cannot_import(request: &OpenRequest, error: &Error) -> Failure {
    let name = &request.name;
    let kind = match error.kind() {
        ErrorKind::NotFound => FailureKind::NotFound,
        ErrorKind::Busy => FailureKind::Busy,
        ErrorKind::Unsupported => FailureKind::NotSupported,
        _ => FailureKind::Other,
    };
    if error.reason() == "checkpoint does not exist" {
        let advice = "Destroy and re-create the pool from\n\ta backup source.";
        let words = format!("cannot import '{name}': {}\n\t{advice}", error.reason());
        return Failure::new(kind, words);
    }
    let text = error.to_string();
    let text = text.strip_prefix(&format!("pool '{name}': ")).unwrap_or(&text);
    let mut words = format!("cannot import '{name}': {text}");
    if error.kind() == ErrorKind::Checksum && request.back == Back::No {
        words.push_str("\n\tIt may open as it was some seconds earlier: 'zpool import -F'.");
    }
    Failure::new(kind, words)
}

/// Opens the pool behind `candidate`; `lock` goes with it.
fn open_found(
    candidate: &PoolCandidate,
    request: &OpenRequest,
    lock: &mut Option<Option<HostLock>>,
) -> Result<Arc<dyn PoolService>, Error> {
    let (rewind, max_txg) = match request.back {
        Back::No => (Rewind::None, None),
        Back::Few => (Rewind::Safe, None),
        Back::Far => (Rewind::Extreme, None),
        Back::To(txg) => (Rewind::None, Some(Txg(txg))),
        Back::Checkpoint => (Rewind::None, None),
    };
    let options = OpenOptions {
        name: Some(request.name.clone()),
        temporary: request.temporary,
        cache_limit: Budget::now().cache,
        rewind,
        checkpoint: request.back == Back::Checkpoint,
        max_txg,
        missing_log: request.search.missing_log,
        watched: request.watched,
        ..OpenOptions::default()
    };
    let facts = ImportFacts {
        altroot: request.altroot.clone(),
        read_only: request.read_only,
        no_cache_file: request.temporary || request.no_cache_file,
    };
    let (pool, changes): (Arc<Pool>, Arc<PoolChanges>) =
        match open_live(candidate, request, &options) {
            Ok(live) => {
                let lock = lock.take().flatten();
                forget_interrupted(&live);
                memory::watch(live.pool(), Some(live.gate().clone()));
                (live.pool().clone(), PoolChanges::of(live, lock))
            }
            Err(Some(error)) if error.kind() != ErrorKind::ReadOnly => return Err(error),
            Err(because) => {
                let because = because.map(|error| error.reason().to_owned());
                if let Some(because) = &because {
                    tracing::warn!(%because, "opened read-only");
                }
                let pool = Pool::open(candidate, &options)?;
                (pool, PoolChanges::none(because, lock.take().flatten()))
            }
        };
    changes.keys_loaded();
    let service: Arc<dyn PoolService> = Service::new(pool, changes, &facts)?;
    Ok(service)
}

/// Ends the holds of orders that an earlier process did not end, and destroys what receives have left that were
/// cut off and cannot go on.
fn forget_interrupted(live: &LivePool) {
    if let Err(error) = live.release_temporary_holds() {
        tracing::warn!(%error, "holds that were to end with the process are still there");
    }
    match cenote_engine::receive::destroy_interrupted(live) {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "what receives had left was destroyed"),
        Err(error) => tracing::warn!(%error, "what receives have left is still there"),
    }
}

/// Opens the pool for writing, if that is asked for and can be done; else why not (`None`: nobody
/// wants to). Of kind `ReadOnly` if it can be read.
fn open_live(
    candidate: &PoolCandidate,
    request: &OpenRequest,
    options: &OpenOptions,
) -> Result<Arc<LivePool>, Option<Error>> {
    if request.read_only {
        return Err(None);
    }
    let writing =
        WriteOptions { accepts_log_losses: request.search.missing_log, ..memory::write_options() };
    if request.back != Back::Far {
        return LivePool::open(candidate, options, writing).map_err(Some);
    }
    // Far back, blocks may have been written over that nobody has looked at yet. Where the newest
    // state opens, nothing is to be gone back from.
    let newest = OpenOptions { rewind: Rewind::None, ..options.clone() };
    LivePool::open(candidate, &newest, writing).map_err(|error| {
        let reason = "how far back everything is intact is not looked up yet";
        Some(if error.kind() == ErrorKind::ReadOnly { error } else { Error::only_read(reason) })
    })
}

/// Creates a pool and opens it. What this does for a pool process, nobody else does.
///
/// # Errors
/// With the words of `zpool create`.
pub fn create(plan: &CreatePool) -> Result<Arc<dyn PoolService>, Failure> {
    let name = &plan.name;
    let cannot = |error: &Error| {
        let kind = match error.kind() {
            ErrorKind::Busy => FailureKind::Busy,
            ErrorKind::Unsupported => FailureKind::NotSupported,
            _ => FailureKind::Other,
        };
        Failure::new(kind, format!("cannot create '{name}': {error}"))
    };
    let mut vdevs = plan.vdevs.clone();
    let failed = |words| Failure::new(FailureKind::Other, words);
    let _partitions = whole_disks::partition(&mut vdevs).map_err(failed)?;
    let Additions { tops, spares, caches } = planned::sorted(&vdevs);
    let settings::NewSettings { files, encryption, mut stored, quotas, .. } =
        settings::split_settings(&plan.root_properties).map_err(|error| cannot(&error))?;
    let encryption = match &plan.root_key {
        Some(key) => {
            stored.push(PropertyInput::text("keylocation", &key.location));
            let suite = encryption.and_then(suite_of_property);
            let suite = suite.ok_or_else(|| cannot(&Error::invalid("no encryption suite")))?;
            Some((suite, settings::wrapping_of(key).map_err(|error| cannot(&error))?))
        }
        None => None,
    };
    let host = HostIdentity::of_this_machine();
    let new = NewPoolPlan {
        name: name.clone(),
        temporary_name: plan.temporary_name.clone(),
        version: 5000,
        tops,
        spares,
        caches,
        features: plan.features.clone(),
        pool_properties: plan.properties.iter().map(settings::input).collect(),
        properties: settings::root_properties(&stored),
        encryption,
        command: Some((plan.command.clone(), settings::user())),
        hostid: host.id,
        hostname: host.name,
    };
    let options =
        OpenOptions { cache_limit: Budget::now().cache, writable: true, ..OpenOptions::default() };
    let fill = move |set: &ObjectSet, tx: &Tx| {
        cenote_posix::create::initialise(set, tx, &files)
            .and_then(|()| put_first_quotas(set, tx, &quotas))
            .map_err(|error| Error::invalid(error.reason))
    };
    let live =
        create_pool(new, HeldDevices::new().new_leaves(), &options, memory::write_options(), fill)
            .map_err(|error| cannot(&error))?;
    let facts = ImportFacts {
        altroot: plan.altroot.clone(),
        read_only: false,
        no_cache_file: plan.temporary_name.is_some(),
    };
    let pool = live.pool().clone();
    memory::watch(&pool, Some(live.gate().clone()));
    // Nobody else knows this guid yet.
    let lock = host_lock(pool.guid().0).ok().flatten();
    let service = Service::new(pool, PoolChanges::of(live, lock), &facts);
    Ok(service.map_err(|error| cannot(&error))?)
}
