//! `zfs rollback`.
//!
//! Invariant: as in [`super`]; what is newer is destroyed in the same group, if that was asked for. The dataset may be in
//! use: who uses it and what is mounted inside stays.

use cenote_control::changes::DestroyRequest;
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::{Error, ErrorKind};

use super::destroy::Destroy;
use super::destroy::needs_to_destroy;
use super::remount::Exchange;
use super::{Doing, Order, Warnings, no_dataset, places};
use crate::service::datasets::Shown;
use crate::service::delegation::Need;

pub(super) struct Rollback<'a> {
    pub(super) snapshot: &'a str,
    pub(super) newer: &'a [String],
    pub(super) force: bool,
}

impl Rollback<'_> {
    fn dataset(&self) -> &str {
        self.snapshot.split('@').next().unwrap_or("")
    }

    /// Refuses, as `zfs destroy` would, what is newer and cannot go.
    fn check_newer(&self, doing: &Doing<'_>, all: &Shown) -> Result<(), Failure> {
        let Some(last) = self.newer.last() else { return Ok(()) };
        if let Some(name) = self.newer.iter().find(|name| !doing.is_there(all, name)) {
            return Err(no_dataset(name));
        }
        let request =
            DestroyRequest { names: self.newer.to_vec(), force: self.force, defer: false };
        let (destroy, start) = (Destroy(&request), format!("cannot destroy '{last}'"));
        let orders = doing.service.changes.orders(doing.by());
        let checked = orders.and_then(|orders| orders.check_destroy(self.newer));
        checked.map_err(|error| Doing { start, order: &destroy, ..*doing }.refused(&error))
    }
}

impl Order for Rollback<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot rollback '{}'", self.dataset())
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        let mut needs = vec![Need::new("rollback", self.dataset())];
        needs.extend(self.newer.iter().flat_map(|name| needs_to_destroy(name)));
        Some(needs)
    }

    fn words(&self, error: &Error) -> Option<String> {
        match error.kind() {
            ErrorKind::Exists => Some("more recent snapshots or bookmarks exist".to_owned()),
            ErrorKind::NotFound => Some(error.reason().to_owned()),
            _ => None,
        }
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let (service, pool) = (doing.service, doing.pool);
        let all = doing.shown()?;
        self.check_newer(doing, &all)?;
        let mounted = service.mounts.places();
        service.take_down(pool, self.newer, self.force)?;
        let made = places::made(&all, self.newer);
        let exchange = Exchange {
            dataset: self.dataset(),
            mounted: &mounted,
            is_related: true,
            force: self.force,
        };
        let exchanged = exchange.make(doing, || {
            let orders = doing.given_orders();
            let done = orders.and_then(|orders| orders.rollback(self.snapshot, self.newer));
            let is_done = done.is_ok();
            (done, is_done)
        });
        let (done, warnings) =
            exchanged.inspect_err(|_| service.put_back(pool, mounted.clone()))?;
        if done.is_ok() && !self.newer.is_empty() {
            service.mounts.uncover_bare(&mounted);
            places::remove(made);
            service.tell_snapshots(self.newer);
        }
        done.map_err(|error| match error.kind() {
            ErrorKind::Exists => Failure { kind: FailureKind::Already, ..doing.refused(&error) },
            _ => doing.refused(&error),
        })?;
        Ok(warnings)
    }
}
