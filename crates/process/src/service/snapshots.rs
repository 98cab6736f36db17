//! Orders about snapshots that concern mounts: clones, promotion, going back.
//!
//! Invariant: as in [`super::orders`]: nothing is changed when an order is refused, and what was
//! mounted before is mounted after.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_control::changes::{Change, DestroyRequest, NewDataset};
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::DatasetKind;
use cenote_engine::pool::Pool;
use cenote_engine::{Error, ErrorKind};

use super::Service;
use super::orders::{Warnings, missing_parents, refused};

impl Service {
    /// Lets mounts show that the snapshots called `names` came or went.
    pub(super) fn tell_snapshots(&self, names: &[String]) {
        let mut by_dataset: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (dataset, snapshot) in names.iter().filter_map(|name| name.split_once('@')) {
            by_dataset.entry(dataset).or_default().push(snapshot);
        }
        for (dataset, snapshots) in by_dataset {
            self.mounts.snapshots_changed(dataset, snapshots.into_iter());
        }
    }

    /// Serves [`Change::Clone`].
    pub(super) fn clone_snapshot(
        &self,
        pool: &Arc<Pool>,
        origin: &str,
        new: &NewDataset,
        start: &str,
    ) -> Result<Warnings, Failure> {
        let all = self.fresh(pool)?;
        let refuse = |kind, reason: &str| Err(Failure::new(kind, format!("{start}: {reason}")));
        let find = |name: &str| all.iter().find(|dataset| dataset.name == name);
        let Some(snapshot) = find(origin) else {
            let words = format!("cannot open '{origin}': dataset does not exist");
            return Err(Failure::new(FailureKind::NotFound, words));
        };
        if find(&new.name).is_some() {
            if new.parents {
                return Ok(Vec::new());
            }
            return refuse(FailureKind::Already, "dataset already exists");
        }
        let missing = match missing_parents(&all, &new.name) {
            Ok(missing) => missing,
            Err(reason) => return refuse(FailureKind::Other, reason),
        };
        if !missing.is_empty() && !new.parents {
            return refuse(FailureKind::NotFound, "parent does not exist");
        }
        let of = origin.split('@').next().and_then(&find);
        let is_filesystem = of.is_none_or(|of| of.kind == DatasetKind::Filesystem);
        let change = Change::Clone { origin: snapshot.name.clone(), new: new.clone() };
        let cannot = |error: Error| refused(start, &change, &error);
        for name in &missing {
            let parent = NewDataset { name: name.clone(), ..NewDataset::default() };
            self.changes.create_dataset(&parent).map_err(cannot)?;
        }
        self.changes.clone_snapshot(origin, new).map_err(cannot)?;
        self.publish(pool)?;
        let fresh = self.fresh(pool)?;
        let mut warnings = Vec::new();
        let own = (new.mount && is_filesystem).then_some(&new.name);
        for name in missing.iter().chain(own) {
            if let Err(failure) = self.mount_if_due(pool, &fresh, name) {
                warnings.push(failure.message);
                warnings.push("filesystem successfully created, but not mounted".to_owned());
            }
        }
        Ok(warnings)
    }

    /// Serves [`Change::Promote`].
    pub(super) fn promote(&self, pool: &Arc<Pool>, name: &str, start: &str) -> Result<(), Failure> {
        let all = self.fresh(pool)?;
        let refuse = |kind, reason: String| Err(Failure::new(kind, format!("{start}: {reason}")));
        let Some(clone) = all.iter().find(|dataset| dataset.name == name) else {
            let words = format!("cannot open '{name}': dataset does not exist");
            return Err(Failure::new(FailureKind::NotFound, words));
        };
        let origin = clone.properties.value("origin").unwrap_or("").to_owned();
        let Some((parent, _)) = origin.split_once('@') else {
            return refuse(FailureKind::Other, "not a cloned filesystem".to_owned());
        };
        let created = |name: &str| {
            all.iter().find(|dataset| dataset.name == name).map_or(0, |found| found.createtxg)
        };
        let last = created(&origin);
        let of = |dataset: &str| -> Vec<String> {
            let own = all.iter().filter_map(|one| one.name.split_once('@'));
            own.filter(|(of, _)| *of == dataset).map(|(_, name)| name.to_owned()).collect()
        };
        let moving: Vec<String> =
            of(parent).into_iter().filter(|s| created(&format!("{parent}@{s}")) <= last).collect();
        let own = of(name);
        if let Some(twice) = moving.iter().find(|moving| own.contains(moving)) {
            let reason = format!("conflicting snapshot '{twice}' from parent '{origin}'");
            return refuse(FailureKind::Already, reason);
        }
        let change = Change::Promote(name.to_owned());
        self.changes.promote(name).map_err(|error| refused(start, &change, &error))?;
        for dataset in [parent, name] {
            self.mounts.snapshots_changed(dataset, moving.iter().map(String::as_str));
        }
        Ok(())
    }

    /// Serves [`Change::Rollback`].
    pub(super) fn rollback(
        &self,
        pool: &Arc<Pool>,
        snapshot: &str,
        newer: &[String],
        force: bool,
        start: &str,
    ) -> Result<Warnings, Failure> {
        let name = snapshot.split('@').next().unwrap_or("").to_owned();
        if !newer.is_empty() {
            let request = DestroyRequest { names: newer.to_vec(), force, defer: false };
            let last = newer.last().map_or("", String::as_str);
            self.destroy(pool, &request, &format!("cannot destroy '{last}'"))?;
            self.publish(pool)?;
        }
        let mounted = self.mounts.places();
        self.mounts.take_down_named(std::slice::from_ref(&name), force)?;
        let done = self.changes.rollback(snapshot);
        self.publish(pool)?;
        let warnings = self.restore(pool, &self.fresh(pool)?, &mounted);
        let change =
            Change::Rollback { snapshot: snapshot.to_owned(), newer: newer.to_vec(), force };
        done.map_err(|error| match error.kind() {
            ErrorKind::Exists => {
                let words = format!("{start}: more recent snapshots or bookmarks exist");
                Failure::new(FailureKind::Already, words)
            }
            _ => refused(start, &change, &error),
        })?;
        Ok(warnings)
    }
}
