//! `zfs rollback`.
//!
//! Invariant: as in [`super`]; what is newer is destroyed before, if that was asked for.

use cenote_control::changes::DestroyRequest;
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::{Error, ErrorKind};

use super::destroy::Destroy;
use super::destroy::needs_to_destroy;
use super::{Doing, Order, Warnings};
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
        if let Some(last) = self.newer.last() {
            let request =
                DestroyRequest { names: self.newer.to_vec(), force: self.force, defer: false };
            let destroy = Destroy(&request);
            let start = format!("cannot destroy '{last}'");
            destroy.carry_out(&Doing { start, order: &destroy, command: None, ..*doing })?;
            service.publish(pool)?;
        }
        let mounted = service.mounts.places();
        service.mounts.take_down_named(&[self.dataset().to_owned()], self.force)?;
        let done = doing.given_orders().and_then(|orders| orders.rollback(self.snapshot));
        service.publish(pool)?;
        let warnings = service.restore(pool, &doing.shown()?, &mounted, doing.on_behalf());
        done.map_err(|error| match error.kind() {
            ErrorKind::Exists => Failure { kind: FailureKind::Already, ..doing.refused(&error) },
            _ => doing.refused(&error),
        })?;
        Ok(warnings)
    }
}
