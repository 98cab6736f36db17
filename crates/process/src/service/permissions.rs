//! Delegated permissions as `zfs allow` shows them.
//!
//! Invariant: the dataset asked for comes first, then those above it; those on which nothing
//! stands are left out.

use cenote_control::changes::Grant;

use super::datasets::Shown;

/// What stands on a dataset and on those above it.
pub fn permissions(shown: &Shown, dataset: &str) -> Vec<(String, Vec<Grant>)> {
    let path = dataset.split(['@', '#']).next().unwrap_or(dataset);
    let levels = shown.inventory().upwards(path).filter(|entry| !entry.permissions.is_empty());
    let of_level = levels.map(|entry| {
        let grants = entry.permissions.iter();
        let grants = grants
            .map(|(key, permissions)| Grant { key: key.name(), permissions: permissions.clone() });
        (entry.directory.path.clone(), grants.collect())
    });
    of_level.collect()
}
