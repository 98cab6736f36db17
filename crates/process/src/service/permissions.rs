//! Delegated permissions as `zfs allow` shows them.
//!
//! Invariant: the dataset asked for comes first, then those above it; those on which nothing
//! stands are left out.

use std::sync::Arc;

use cenote_control::changes::Grant;
use cenote_engine::Result;
use cenote_engine::dataset::Catalog;
use cenote_format::ObjectId;

/// What stands on a dataset and on those above it.
pub fn permissions(catalog: &Catalog, dataset: &str) -> Result<Vec<(String, Vec<Grant>)>> {
    let mut found = Vec::new();
    let mut at = catalog.dataset_named(dataset)?.directory;
    // No more are above than the name says, whatever the pool claims.
    for _ in dataset.split('/') {
        let grants: Vec<Grant> = catalog
            .permissions(&at)?
            .into_iter()
            .map(|(key, permissions)| Grant { key: key.name(), permissions })
            .collect();
        if !grants.is_empty() {
            found.push((at.path.clone(), grants));
        }
        match at.phys.parent {
            ObjectId(0) => break,
            above => at = Arc::new(catalog.directory_by_id(above)?),
        }
    }
    Ok(found)
}
