//! The seam between the command line and the engine: finding pools and opening them.
//!
//! Invariant: nothing else of `zpool import` knows the engine; devices are only read.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::{ImportReport, ImportVdev};
use cenote_control::server::PoolService;
use cenote_engine::dataset::Table;
use cenote_engine::pool::activity::{Settings, SystemClock};
use cenote_engine::pool::assemble::PoolCandidate;
use cenote_engine::pool::choose::Choice;
use cenote_engine::pool::features::FeatureRecord;
use cenote_engine::pool::host::HostIdentity;
use cenote_engine::pool::importable::{ImportablePool, ImportableVdev, importable};
use cenote_engine::pool::inspect::{self, Inspector, Trusted};
use cenote_engine::pool::{OpenOptions, Pool, Rewind, packed};
use cenote_engine::{Error, ErrorKind, vdev};
use cenote_format::config::VdevConfig;
use cenote_format::{ObjectId, Txg};
use serde::{Deserialize, Serialize};

use crate::offline;
use crate::service::{ImportFacts, Service};

/// How long one device may take to answer.
const DEVICE_DEADLINE: Duration = Duration::from_secs(10);
/// Most bytes of a list of spares or cache devices.
const LIST_MAX: u64 = 1 << 20;

/// Where to look for pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    /// Files, devices and directories (`-d`); empty: the system's disks.
    pub places: Vec<PathBuf>,
    /// A missing log device is no obstacle (`-m`).
    pub missing_log: bool,
}

/// How far back to go when the newest state does not open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Back {
    /// Not at all.
    #[default]
    No,
    /// The last few transaction groups (`-F`).
    Few,
    /// As far as possible (`-FX`).
    Far,
    /// To this transaction group (`-T`).
    To(u64),
}

/// How to open a pool. Sent to its new process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// Guid of the pool.
    pub guid: u64,
    /// Name it has while it is imported.
    pub name: String,
    /// Where its devices are.
    pub search: Search,
    /// What goes before all mountpoints (`-R`).
    pub altroot: Option<String>,
    /// Only for reading (`-o readonly=on`).
    pub read_only: bool,
    /// Go back.
    pub back: Back,
    /// Other pool properties for this import (`-o property=value`).
    pub properties: Vec<(String, String)>,
}

/// The pools found, those that were destroyed included.
pub fn find(search: &Search) -> Vec<ImportReport> {
    let candidates = offline::pool::candidates(&search.places);
    let host = HostIdentity::of_this_machine();
    candidates.iter().map(|candidate| inspect(candidate, &host, search.missing_log)).collect()
}

fn inspect(candidate: &PoolCandidate, host: &HostIdentity, missing_log: bool) -> ImportReport {
    let inspector = Inspector {
        host,
        loader: Some(&load),
        clock: &SystemClock,
        settings: Settings::default(),
        deadline: DEVICE_DEADLINE,
        max_txg: None,
        missing_log,
    };
    report(importable(candidate, &inspect::inspect(candidate, &inspector), host))
}

/// Reads what the pool says of itself.
fn load(candidate: &PoolCandidate, choice: &Choice) -> Result<Trusted, Error> {
    let options = OpenOptions {
        max_txg: Some(choice.best.txg),
        missing_log: true,
        missing_vdevs: true,
        prefetch_threads: 1,
        cache_limit: 32 << 20,
        ..OpenOptions::default()
    };
    let pool = Pool::open(candidate, &options)?;
    let directory = pool.catalog().object_directory()?;
    let list = |key: &str| -> Result<Vec<VdevConfig>, Error> {
        let Some(id) = directory.number(key)?.filter(|id| *id != 0) else {
            return Ok(Vec::new());
        };
        let list = packed::read(pool.mos(), ObjectId(id), LIST_MAX)?;
        let nodes = list.nvlist_array(key).unwrap_or(&[]);
        nodes.iter().map(|node| Ok(VdevConfig::from_nvlist(node)?)).collect()
    };
    let table = |key: &str| -> Result<Vec<(String, u64)>, Error> {
        let id = directory.number(key)?.unwrap_or(0);
        match Table::open(pool.mos(), ObjectId(id))? {
            Some(table) => table.numbers(),
            None => Ok(Vec::new()),
        }
    };
    let classes = pool.vdevs().status().map(|status| {
        let tops = status.children.iter();
        tops.filter_map(|top| Some((top.config.id?, class(top.class)?))).collect()
    });
    Ok(Trusted {
        config: pool.config().clone(),
        spares: list("spares")?,
        caches: list("l2cache")?,
        classes: classes.unwrap_or_default(),
        features: FeatureRecord {
            for_read: table("features_for_read")?,
            for_write: table("features_for_write")?,
            descriptions: Vec::new(),
        },
        resilvering: false,
    })
}

fn class(class: vdev::AllocationClass) -> Option<inspect::AllocationClass> {
    match class {
        vdev::AllocationClass::Normal => None,
        vdev::AllocationClass::Log => Some(inspect::AllocationClass::Log),
        vdev::AllocationClass::Special => Some(inspect::AllocationClass::Special),
        vdev::AllocationClass::Dedup => Some(inspect::AllocationClass::Dedup),
    }
}

fn report(pool: ImportablePool) -> ImportReport {
    let all = |list: Vec<ImportableVdev>| list.into_iter().map(device).collect();
    let last_host = pool.needs_force.then(|| {
        let time = i64::try_from(pool.last_access).unwrap_or(0);
        (pool.hostname.unwrap_or_else(|| "<unknown>".to_owned()), pool.hostid, time)
    });
    let mut status = pool.status;
    for (guid, description) in &pool.unknown_features {
        let text = status.get_or_insert_default();
        text.push_str(&format!("\n{guid}"));
        if !description.is_empty() {
            text.push_str(&format!(" ({description})"));
        }
    }
    ImportReport {
        name: pool.name,
        guid: pool.guid,
        state: pool.state,
        destroyed: pool.destroyed,
        status,
        action: pool.action,
        comment: pool.comment,
        note: pool.note,
        article: pool.message_code,
        root: device(pool.root),
        caches: pool.caches,
        spares: pool.spares,
        dedup: all(pool.dedup),
        special: all(pool.special),
        logs: all(pool.logs),
        incomplete: pool.incomplete,
        importable: pool.importable,
        reason: pool.reason,
        last_host,
    }
}

fn device(vdev: ImportableVdev) -> ImportVdev {
    ImportVdev {
        name: vdev.name,
        state: vdev.state,
        reason: vdev.reason,
        children: vdev.children.into_iter().map(device).collect(),
    }
}

/// Opens a pool. What this does for a pool process, nobody else does.
///
/// # Errors
/// With the words of `zpool import`.
pub fn open(request: &OpenRequest) -> Result<Arc<dyn PoolService>, Failure> {
    let name = &request.name;
    let cannot = |error: &Error| {
        let kind = match error.kind() {
            ErrorKind::NotFound => FailureKind::NotFound,
            ErrorKind::Busy => FailureKind::Busy,
            ErrorKind::Unsupported => FailureKind::NotSupported,
            _ => FailureKind::Other,
        };
        Failure::new(kind, format!("cannot import '{name}': {error}"))
    };
    let candidates = offline::pool::candidates(&request.search.places);
    let candidate = candidates.iter().find(|candidate| candidate.guid.0 == request.guid);
    let Some(candidate) = candidate else {
        let message = format!("cannot import '{name}': no such pool available");
        return Err(Failure::new(FailureKind::NotFound, message));
    };
    let (rewind, max_txg) = match request.back {
        Back::No => (Rewind::None, None),
        Back::Few => (Rewind::Safe, None),
        Back::Far => (Rewind::Extreme, None),
        Back::To(txg) => (Rewind::None, Some(Txg(txg))),
    };
    let options = OpenOptions {
        name: Some(name.clone()),
        cache_limit: offline::pool::default_cache(),
        rewind,
        max_txg,
        missing_log: request.search.missing_log,
        ..OpenOptions::default()
    };
    let pool = Pool::open(candidate, &options).map_err(|error| cannot(&error))?;
    let facts = ImportFacts { altroot: request.altroot.clone(), read_only: request.read_only };
    let service = Service::new(pool, &facts).map_err(|error| cannot(&error))?;
    Ok(service)
}
