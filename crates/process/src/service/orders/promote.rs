//! `zfs promote`.
//!
//! Invariant: as in [`super`].

use std::collections::BTreeSet;

use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::{Error, ErrorKind};

use super::{Doing, Order, Warnings, no_dataset};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;

pub(super) struct Promote<'a>(pub(super) &'a str);

impl Order for Promote<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot promote '{}'", self.0)
    }

    fn needs(&self, all: &Shown, _: &Peer) -> Option<Vec<Need>> {
        let mut needs = vec![Need::new("promote", self.0)];
        let found = all.find(self.0);
        if let Some(origin) = found.as_ref().and_then(|found| found.properties.value("origin")) {
            needs.extend([Need::new("mount", self.0), Need::new("promote", origin)]);
        }
        Some(needs)
    }

    fn words(&self, error: &Error) -> Option<String> {
        let has_reason = [ErrorKind::InvalidArgument, ErrorKind::Permission];
        has_reason.contains(&error.kind()).then(|| error.reason().to_owned())
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let all = doing.shown()?;
        let name = self.0;
        let Some(clone) = all.find(name) else {
            return Err(no_dataset(name));
        };
        let origin = clone.properties.value("origin").unwrap_or("").to_owned();
        let Some((parent, _)) = origin.split_once('@') else {
            return Err(doing.refuse(FailureKind::Other, "not a cloned filesystem"));
        };
        let last = all.known(&origin).map_or(0, |known| known.created_in());
        let moving = all.snapshots(parent).into_iter().filter(|(_, created)| *created <= last);
        let moving: Vec<String> = moving.map(|(name, _)| name).collect();
        let own: BTreeSet<String> = all.snapshots(name).into_iter().map(|(name, _)| name).collect();
        if let Some(twice) = moving.iter().find(|moving| own.contains(*moving)) {
            let reason = format!("conflicting snapshot '{twice}' from parent '{origin}'");
            return Err(doing.refuse(FailureKind::Already, &reason));
        }
        let renamed = |own: &String| (format!("{parent}@{own}"), format!("{name}@{own}"));
        let renaming = doing.service.mounts.renaming(moving.iter().map(renamed).collect());
        doing
            .given_orders()
            .and_then(|orders| orders.and_then(renaming).promote(name))
            .map_err(|error| doing.refused(&error))?;
        for dataset in [parent, name] {
            doing.service.mounts.snapshots_changed(dataset, moving.iter().map(String::as_str));
        }
        Ok(Vec::new())
    }
}
