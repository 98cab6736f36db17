//! The pools that could be imported, as `zpool import` lists them.
//!
//! Invariant: devices are only read.

use std::time::Duration;

use cenote_control::begin::Search;
use cenote_control::compatibility::{Fit, fit};
use cenote_control::feature::{self, FEATURE_VERSION};
use cenote_control::report::{ImportReport, ImportVdev};
use cenote_control::terminal;
use cenote_engine::pool::activity::{Settings, SystemClock};
use cenote_engine::pool::assemble::{PoolCandidate, candidates_and_silent};
use cenote_engine::pool::host::HostIdentity;
use cenote_engine::pool::importable::{ImportablePool, ImportableVdev, importable};
use cenote_engine::pool::inspect::{self, Inspector};
use cenote_engine::pool::metadata::read_metadata;

/// How long a device that has told of itself may take to tell the rest: as long as when the pool is opened, so that
/// no pool is refused for what a busy disk did not say in time.
const DEVICE_DEADLINE: Duration = Duration::from_secs(10);

/// The pools found, those that were destroyed included.
pub fn find(search: &Search) -> Vec<ImportReport> {
    let (found, silent) = candidates_and_silent(&search.places);
    for path in silent {
        let path = path.display();
        terminal::complain(&format!("{path} does not answer: what it is part of is not seen"));
    }
    let host = HostIdentity::of_this_machine();
    found.iter().map(|candidate| inspect(candidate, &host, search.missing_log)).collect()
}

fn inspect(candidate: &PoolCandidate, host: &HostIdentity, missing_log: bool) -> ImportReport {
    let inspector = Inspector {
        host,
        loader: Some(&read_metadata),
        clock: &SystemClock,
        settings: Settings::default(),
        deadline: DEVICE_DEADLINE,
        max_txg: None,
        missing_log,
    };
    report(importable(candidate, &inspect::inspect(candidate, &inspector), host))
}

fn report(pool: ImportablePool) -> ImportReport {
    let remark = remark(&pool);
    let all = |list: Vec<ImportableVdev>| list.into_iter().map(device).collect();
    let host = pool.hostname.unwrap_or_else(|| "<unknown>".to_owned());
    let reason = if pool.active_elsewhere {
        Some(format!(
            "pool is imported on {host} (hostid: 0x{:x})\nExport the pool on the other system, \
             then run 'zpool import'.",
            pool.hostid
        ))
    } else if pool.hostid_required {
        Some(
            "pool has the multihost property on and the\nsystem's hostid is not set. Set a \
             unique system hostid with the zgenhostid(8) command."
                .to_owned(),
        )
    } else {
        pool.reason
    };
    let in_use_elsewhere = pool.active_elsewhere || pool.hostid_required;
    let may_be_forced = pool.needs_force && !in_use_elsewhere;
    let last_host = may_be_forced.then(|| {
        let time = i64::try_from(pool.last_access).unwrap_or(0);
        (host, pool.hostid, time)
    });
    let (mut status, action) = remark.unwrap_or((pool.status, pool.action));
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
        action,
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
        reason,
        in_use_elsewhere,
        newest: pool.newest,
        last_host,
    }
}

/// What is said of a pool with which nothing is wrong, and what to do: of features that its `compatibility` asks for or
/// does not, by the files that this names here.
fn remark(pool: &ImportablePool) -> Option<(Option<String>, String)> {
    let features = pool.features.as_ref().filter(|_| pool.is_fine)?;
    if pool.version < FEATURE_VERSION {
        return None;
    }
    let enabled = |name: &str| {
        let known = feature::by_name(name);
        known.is_some_and(|known| features.iter().any(|guid| guid == known.guid))
    };
    let (status, action) = match fit(pool.compatibility.as_deref().unwrap_or("off"), enabled) {
        Fit::Fits => return None,
        Fit::Lacks => (
            "Some supported features are not enabled on the pool.\n(Note that they may be \
             intentionally disabled if the\n'compatibility' property is set.)",
            "The pool can be imported using its name or numeric identifier, though\nsome features \
             will not be available without an explicit 'zpool upgrade'.",
        ),
        Fit::Exceeds => (
            "One or more features are enabled on the pool despite not being\nrequested by the \
             'compatibility' property.",
            "The pool can be imported using its name or numeric identifier.",
        ),
        Fit::Unknown => (
            "Error reading or parsing the file(s) indicated by the 'compatibility'\nproperty.",
            "The pool can be imported using its name or numeric\nidentifier, though the file(s) \
             indicated by its 'compatibility'\nproperty cannot be parsed at this time.",
        ),
    };
    // What is worse than that is said of how it can be imported.
    let action = if pool.state == "ONLINE" { action } else { pool.action.as_str() };
    Some((Some(status.to_owned()), action.to_owned()))
}

fn device(vdev: ImportableVdev) -> ImportVdev {
    ImportVdev {
        name: vdev.name,
        state: vdev.state,
        reason: vdev.reason,
        children: vdev.children.into_iter().map(device).collect(),
    }
}

#[cfg(test)]
mod tests {
    use cenote_control::device_names;
    use cenote_engine::pool::discover::DEFAULT_PLACES;

    #[test]
    fn pools_are_looked_for_where_short_names_are() {
        // And in `/dev/disk` itself, of which no short name comes.
        let named = DEFAULT_PLACES.into_iter().filter(|place| *place != "/dev/disk");
        assert!(named.eq(device_names::PLACES));
    }
}
