//! `zfs create`.
//!
//! Invariant: as in [`super`]; parents that are missing are made only if that was asked for.

use cenote_control::changes::NewDataset;
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::DatasetKind;
use cenote_engine::{Error, ErrorKind};

use super::{Doing, Order, Warnings};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::{Need, above};

pub(super) struct Create<'a>(pub(super) &'a NewDataset);

impl Order for Create<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot create '{}'", self.0.name)
    }

    fn needs(&self, all: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(needs_of_new(all, self.0))
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
        let create =
            |missing: &[String]| doing.service.changes.create_dataset(new, missing, doing.given());
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
        service.publish_quietly(pool);
        let mut warnings = Vec::new();
        let _mounting = service.turns.mounting();
        let fresh = self.shown()?;
        let own = (new.mount && is_filesystem).then_some(&new.name);
        for name in missing.iter().chain(own) {
            if let Err(failure) = self.mount_if_due(&fresh, name) {
                if self.may_not_mount(&failure) {
                    tracing::info!(%failure, "not mounted for a user");
                    warnings.push(ONLY_BY_ROOT.to_owned());
                    continue;
                }
                warnings.push(failure.message);
                warnings.push("filesystem successfully created, but not mounted".to_owned());
            }
        }
        Ok(warnings)
    }
}

/// What a user hears who may not mount what he has made.
const ONLY_BY_ROOT: &str = "filesystem successfully created, but it may only be mounted by root";
/// What is set when something is made, and is no permission of its own.
const MADE_WITH: [&str; 9] = [
    "version",
    "casesensitivity",
    "normalization",
    "utf8only",
    "volblocksize",
    "encryption",
    "keyformat",
    "keylocation",
    "pbkdf2iters",
];

/// What making a dataset with these properties needs.
pub(super) fn needs_of_new(all: &Shown, new: &NewDataset) -> Vec<Need> {
    let mut needs = needs_of_name(all, &new.name);
    let set = new.properties.iter().map(|one| one.name.as_str());
    let set = set.filter(|name| !MADE_WITH.contains(name));
    needs.extend(set.map(|name| Need::of_property(name, &new.name).on_new()));
    needs
}

/// What a dataset that is to have this name needs of those above it, which may not be there yet.
pub(super) fn needs_of_name(all: &Shown, name: &str) -> Vec<Need> {
    let missing = missing_parents(all, name).unwrap_or_default();
    let nearest = above(missing.first().map_or(name, String::as_str)).to_owned();
    let parents = std::iter::once(nearest).chain(missing);
    let both = |name: String| [Need::new("create", &name), Need::new("mount", &name)];
    parents.flat_map(both).map(Need::on_new).collect()
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
