//! `zfs rename`.
//!
//! Invariant: as in [`super`]; all snapshots of a recursive rename get their names, or none.

use cenote_control::changes::RenameRequest;
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::DatasetKind;
use cenote_engine::dataset::check_new_name;
use cenote_engine::{Error, ErrorKind};

use super::create::{missing_parents, needs_of_name};
use super::{Doing, Order, Warnings, is_at_or_below, no_dataset, places};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;
use crate::service::mounts::Place;

pub(super) struct Rename<'a>(pub(super) &'a RenameRequest);

impl Order for Rename<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot rename '{}'", self.0.from)
    }

    fn needs(&self, all: &Shown, _: &Peer) -> Option<Vec<Need>> {
        let pairs = if self.0.recursive { snapshots_of_all(all, self.0) } else { Vec::new() };
        let pairs = match pairs.is_empty() {
            true => vec![(self.0.from.clone(), self.0.to.clone())],
            false => pairs,
        };
        let of = |(from, to): (String, String)| {
            let own = [Need::new("rename", &from), Need::new("mount", &from)];
            own.into_iter().chain(needs_of_name(all, &to))
        };
        Some(pairs.into_iter().flat_map(of).collect())
    }

    fn words(&self, error: &Error) -> Option<String> {
        let words = match error.kind() {
            ErrorKind::Busy => "dataset is busy",
            ErrorKind::Permission => "cannot move encrypted child outside of its encryption root",
            _ => return None,
        };
        Some(words.to_owned())
    }

    fn moves_mounts(&self) -> bool {
        !self.0.from.contains('@')
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let (service, rename) = (doing.service, self.0);
        let all = doing.shown()?;
        let exists = |name: &str| all.has(name);
        let pairs = if rename.recursive { snapshots_of_all(&all, rename) } else { Vec::new() };
        let pairs = match pairs.is_empty() {
            true => vec![(rename.from.clone(), rename.to.clone())],
            false => pairs,
        };
        if !exists(&rename.from) {
            return Err(no_dataset(&rename.from));
        }
        if rename.from == rename.to {
            return Ok(Vec::new());
        }
        if let Some((_, taken)) = pairs.iter().find(|(_, to)| exists(to)) {
            let words = format!("cannot rename to '{taken}': dataset already exists");
            return Err(match rename.recursive {
                true => Failure::new(FailureKind::Already, words),
                false => doing.refuse(FailureKind::Already, "dataset already exists"),
            });
        }
        if pairs.len() == 1 {
            for (name, _) in all.below(&rename.from) {
                let rest = name.strip_prefix(&rename.from).unwrap_or_default();
                check_new_name(&format!("{}{rest}", rename.to))
                    .map_err(|error| doing.refused(&error))?;
            }
        }
        if rename.from.contains('@') {
            let renaming = service.mounts.renaming(pairs.clone());
            doing
                .given_orders()
                .and_then(|orders| orders.and_then(renaming).rename(&pairs))
                .map_err(|error| doing.refused(&error))?;
            let names: Vec<String> = pairs.into_iter().flat_map(|(from, to)| [from, to]).collect();
            service.tell_snapshots(&names);
            return Ok(Vec::new());
        }
        let missing = parents_to_make(&all, rename)?;
        self.move_dataset(doing, &all, &pairs, &missing)
    }
}

impl Rename<'_> {
    /// Renames a filesystem or volume with all below it; what is mounted there moves with it.
    fn move_dataset(
        &self,
        doing: &Doing<'_>,
        all: &dyn Datasets,
        pairs: &[(String, String)],
        missing: &[String],
    ) -> Result<Warnings, Failure> {
        let (service, pool, rename) = (doing.service, doing.pool, self.0);
        let below = |name: &str| is_at_or_below(name, &rename.from);
        let moved: Vec<String> = match rename.keep_mounts {
            true => Vec::new(),
            false => service.mounts.names().into_iter().filter(|name| below(name)).collect(),
        };
        let others = service.mounts.places();
        service.take_down(pool, &moved, rename.force)?;
        let orders = doing
            .given_orders()
            .and_then(|orders| service.changes.above(orders, missing, doing.by()));
        // With the change itself: that may be made long after this has been answered.
        let renaming = service.mounts.renaming(pairs.to_vec());
        let renamed = orders.and_then(|orders| orders.and_then(renaming).rename(pairs));
        if renamed.is_ok() {
            places::remove(places::made(all, &moved));
        }
        service.publish_quietly(pool);
        let fresh = doing.shown()?;
        let now = |mut place: Place| {
            if let Some(rest) = place.dataset.strip_prefix(&rename.from)
                && below(&place.dataset)
                && renamed.is_ok()
            {
                place.dataset = format!("{}{rest}", rename.to);
            }
            place
        };
        let mut warnings = Vec::new();
        if !rename.keep_mounts {
            let again: Vec<Place> = others.into_iter().map(now).collect();
            warnings = service.restore(pool, &fresh, &again, doing.on_behalf());
        }
        renamed.map_err(|error| doing.refused(&error))?;
        for name in missing {
            if let Err(failure) = doing.mount_if_due(&fresh, name) {
                warnings.push(failure.message);
            }
        }
        Ok(warnings)
    }
}

/// The parents the new name lacks, if they are to be made.
fn parents_to_make(all: &dyn Datasets, rename: &RenameRequest) -> Result<Vec<String>, Failure> {
    let cannot =
        |kind, reason: &str| Failure::new(kind, format!("cannot create '{}': {reason}", rename.to));
    let missing = missing_parents(all, &rename.to);
    let missing = missing.map_err(|reason| cannot(FailureKind::Other, reason))?;
    if !missing.is_empty() && !rename.parents {
        return Err(cannot(FailureKind::NotFound, "parent does not exist"));
    }
    if rename.to.starts_with(&format!("{}/", rename.from)) {
        let words = "New dataset name cannot be a descendant of current dataset name";
        let words = format!("cannot rename to '{}': {words}", rename.to);
        return Err(Failure::new(FailureKind::Other, words));
    }
    Ok(missing)
}

/// The snapshots a recursive rename is about, with their new names.
pub(super) fn snapshots_of_all(
    all: &dyn Datasets,
    rename: &RenameRequest,
) -> Vec<(String, String)> {
    let (Some((top, old)), Some((_, new))) =
        (rename.from.split_once('@'), rename.to.split_once('@'))
    else {
        return Vec::new();
    };
    let below = all.below(top);
    let snapshots = below.iter().filter(|(_, kind)| *kind == DatasetKind::Snapshot);
    let ours = snapshots.filter_map(|(name, _)| name.split_once('@'));
    let ours = ours.filter(|(_, name)| *name == old);
    ours.map(|(of, _)| (format!("{of}@{old}"), format!("{of}@{new}"))).collect()
}
