//! Whether the devices of a plan are free to be taken.
//!
//! Invariant: devices are only read; what cannot be looked at is refused, not called free.

use std::fs;
use std::path::Path;

use cenote_control::client::Client;
use cenote_control::look::Uses;
use cenote_control::plan::{VdevPlan, VdevPlanKind};
use cenote_control::report::VdevClass;
use cenote_device::{PartitionTable, partition_path, partition_table};
use cenote_engine::pool::in_use::{InUse, device_in_use};
use cenote_format::config::PoolState;

/// What stands against taking the leaves of a plan.
pub fn uses_of_all(plan: &[VdevPlan]) -> Uses {
    let mut uses = Uses::default();
    for leaf in plan.iter().flat_map(VdevPlan::leaves) {
        let Some(path) = leaf.path.as_deref().map(Path::new) else { continue };
        if leaf.whole_disk {
            disk(path, leaf.class, &mut uses);
            continue;
        }
        match device_in_use(path) {
            Ok(mut found) => {
                if leaf.kind == VdevPlanKind::File {
                    // OpenZFS looks at files for pools only
                    (found.filesystem, found.partitions) = (None, None);
                }
                sort(&found, path, leaf.class, &mut uses);
            }
            Err(error) => uses.firm.push(format!("cannot open {error}")),
        }
    }
    uses
}

/// What stands against taking a whole disk: what holds it, or what its partitions are.
fn disk(path: &Path, class: VdevClass, uses: &mut Uses) {
    let own = device_in_use(path).map_err(|error| error.to_string());
    let table = partition_table(path).map_err(|error| format!("{}: {error}", path.display()));
    let (own, table) = match (own, table) {
        (Ok(own), Ok(table)) => (own, table),
        (Err(error), _) | (_, Err(error)) => {
            return uses.firm.push(format!("cannot open {error}"));
        }
    };
    let (shown, before) = (path.display(), uses.count());
    let partitions = match table {
        _ if own.holder.is_some() => {
            // A disk is held with its partitions; labels on the disk itself are older than those.
            return sort(&InUse { pool: None, ..own }, path, class, uses);
        }
        PartitionTable::Nothing => return sort(&own, path, class, uses),
        PartitionTable::Damaged => {
            return uses.forcible.push(format!("{shown} contains a corrupt primary EFI label."));
        }
        PartitionTable::Partitions(numbers) => numbers,
    };
    for part in partitions.into_iter().map(|number| partition_path(path, number)) {
        match device_in_use(&part) {
            Ok(found) => sort(&found, &part, class, uses),
            // The kernel does not know it: nobody can say what it is.
            Err(_) => {
                let words = format!("{shown} contains a partition table of type 'gpt'");
                uses.forcible.push(words);
            }
        }
        if uses.count() > before {
            return;
        }
    }
}

/// The imported pool that lists a device among its spares or cache devices. Labels of those do not
/// say whose they are, and stay as they are when their pool is destroyed: they mean nothing else.
pub(crate) fn listed_by(path: &Path) -> Option<String> {
    let client = Client::default();
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let own = real(path);
    client.pools().into_iter().find(|pool| match client.pool_report(pool) {
        Ok(report) => {
            let mut aside = report.spares.iter().chain(&report.caches);
            aside.any(|vdev| vdev.path.as_deref().is_some_and(|at| real(Path::new(at)) == own))
        }
        // A pool that does not answer may well have it.
        Err(_) => true,
    })
}

fn sort(found: &InUse, path: &Path, class: VdevClass, uses: &mut Uses) {
    let spare = class == VdevClass::Spare;
    let state = found.pool.as_ref().map(|pool| pool.state);
    let aside = match state {
        Some(PoolState::Spare) if !spare => Some("reserved as a hot spare for pool"),
        Some(PoolState::Cache) => Some("a cache device of pool"),
        _ => None,
    };
    if let Some(words) = aside {
        return match listed_by(path) {
            Some(pool) => uses.firm.push(format!("{} is {words} {pool}", path.display())),
            None => sort(&InUse { pool: None, ..found.clone() }, path, class, uses),
        };
    }
    if let Some(words) = found.problem(path, true, spare) {
        match found.is_only_open() {
            true => uses.open.push(words),
            false => uses.firm.push(words),
        }
    } else if let Some(words) = found.problem(path, false, spare) {
        uses.forcible.push(words);
    }
}

#[cfg(test)]
mod tests {
    use cenote_engine::pool::in_use::PoolUse;

    use super::*;

    /// Recorded from OpenZFS 2.1.11.
    #[test]
    fn old_pools_can_be_overridden() {
        let found = |state| InUse {
            pool: Some(PoolUse { name: "ex".into(), guid: None, state, hostid: 0 }),
            ..InUse::default()
        };
        let sorted = |state| {
            let mut uses = Uses::default();
            sort(&found(state), Path::new("/d/3"), VdevClass::Normal, &mut uses);
            (uses.forcible, uses.firm)
        };
        let exported = "/d/3 is part of exported pool 'ex'".to_owned();
        assert_eq!(sorted(PoolState::Exported), (vec![exported], vec![]));
        let active = "/d/3 is part of potentially active pool 'ex'".to_owned();
        assert_eq!(sorted(PoolState::Active), (vec![active], vec![]));
        assert_eq!(sorted(PoolState::Destroyed), (vec![], vec![]));
        // of a pool that was destroyed, or is not imported
        assert_eq!(sorted(PoolState::Spare), (vec![], vec![]));
    }
}
