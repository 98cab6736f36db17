//! `zfs create`.
//!
//! Invariant: as in [`super`]; parents that are missing are made only if that was asked for.

use cenote_control::changes::NewDataset;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::DatasetKind;
use cenote_engine::{Error, ErrorKind};

use super::{Doing, Order, Warnings};
use crate::service::datasets::Datasets;

pub(super) struct Create<'a>(pub(super) &'a NewDataset);

impl Order for Create<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot create '{}'", self.0.name)
    }

    fn words(&self, error: &Error) -> Option<String> {
        match error.kind() {
            ErrorKind::Unsupported => Some(error.reason().to_owned()),
            ErrorKind::NotFound => Some("parent does not exist".to_owned()),
            _ => None,
        }
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let new = self.0;
        let create = |missing: &[String]| {
            doing.service.changes.create_dataset(new, missing, doing.command())
        };
        doing.create(new, new.volume_size.is_none(), &create)
    }
}

impl Doing<'_> {
    /// Has a dataset made with, if that is asked for, the parents it lacks, and mounts what is to be
    /// mounted.
    pub(super) fn create(
        &self,
        new: &NewDataset,
        is_filesystem: bool,
        make: &dyn Fn(&[String]) -> cenote_engine::Result<()>,
    ) -> Result<Warnings, Failure> {
        // Missing parents may be made by another order at the same time.
        let top = |name: &str| name.split('/').take(2).collect::<Vec<_>>().join("/");
        let claimed = if new.parents { top(&new.name) } else { new.name.clone() };
        let _making = self.service.turns.making(&claimed);
        let all = &self.shown()?;
        if all.has(&new.name) {
            return match new.parents {
                true => Ok(Vec::new()),
                false => Err(self.refuse(FailureKind::Already, "dataset already exists")),
            };
        }
        let missing = missing_parents(all, &new.name);
        let missing = missing.map_err(|reason| self.refuse(FailureKind::Other, reason))?;
        if !missing.is_empty() && !new.parents {
            return Err(self.refuse(FailureKind::NotFound, "parent does not exist"));
        }
        let (service, pool) = (self.service, self.pool);
        make(&missing).map_err(|error| self.refused(&error))?;
        service.publish(pool)?;
        let mut warnings = Vec::new();
        let _mounting = service.turns.mounting();
        let fresh = self.shown()?;
        let own = (new.mount && is_filesystem).then_some(&new.name);
        for name in missing.iter().chain(own) {
            if let Err(failure) = service.mount_if_due(pool, &fresh, name) {
                warnings.push(failure.message);
                warnings.push("filesystem successfully created, but not mounted".to_owned());
            }
        }
        Ok(warnings)
    }
}

/// Parents of `name` that are not there, outermost first.
pub(super) fn missing_parents(all: &dyn Datasets, name: &str) -> Result<Vec<String>, &'static str> {
    let mut missing = Vec::new();
    let mut path = name;
    while let Some((parent, _)) = path.rsplit_once('/') {
        match all.kind(parent) {
            Some(DatasetKind::Filesystem) => {
                missing.reverse();
                return Ok(missing);
            }
            Some(_) => return Err("parent is not a filesystem"),
            None => missing.push(parent.to_owned()),
        }
        path = parent;
    }
    Err("missing dataset name")
}
