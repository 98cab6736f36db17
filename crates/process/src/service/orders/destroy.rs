//! `zfs destroy`.
//!
//! Invariant: all names of an order are destroyed, or none, and then what was mounted is mounted again.

use cenote_control::changes::DestroyRequest;
use cenote_control::peer::Peer;
use cenote_control::protocol::Failure;
use cenote_control::report::DatasetReport;
use cenote_engine::{Error, ErrorKind};

use super::{Doing, Order, Warnings, in_lines, no_dataset, places};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;

pub(super) struct Destroy<'a>(pub(super) &'a DestroyRequest);

impl Order for Destroy<'_> {
    fn cannot(&self, _: &str) -> String {
        match self.0.names.as_slice() {
            [only] if only.contains('@') => format!("cannot destroy snapshot {only}"),
            [only] => format!("cannot destroy '{only}'"),
            [.., last] if !last.contains('@') => format!("cannot destroy '{last}'"),
            _ => "cannot destroy snapshots".to_owned(),
        }
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(self.0.names.iter().flat_map(|name| needs_to_destroy(name)).collect())
    }

    fn cannot_for_want(&self, pool: &str) -> String {
        match self.0.names.iter().all(|name| name.contains('@')) {
            true => "cannot destroy snapshots".to_owned(),
            false => self.cannot(pool),
        }
    }

    fn words(&self, error: &Error) -> Option<String> {
        (error.kind() == ErrorKind::Busy).then(|| "dataset is busy".to_owned())
    }

    fn moves_mounts(&self) -> bool {
        self.0.names.iter().any(|name| !name.contains(['@', '#']))
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let (service, pool, destroy) = (doing.service, doing.pool, self.0);
        let all = doing.shown()?;
        if let Some(name) = destroy.names.iter().find(|name| !doing.is_there(&all, name)) {
            return Err(no_dataset(name));
        }
        let before = service.mounts.places();
        service.take_down(pool, &destroy.names, destroy.force)?;
        let made = places::made(&all, &destroy.names);
        if let Err(error) =
            doing.given_orders().and_then(|orders| orders.destroy(&destroy.names, destroy.defer))
        {
            service.publish_quietly(pool);
            let fresh = doing.shown()?;
            for line in service.restore(pool, &fresh, &before, doing.on_behalf()) {
                tracing::warn!(line, "not mounted again");
            }
            return Err(name_the_held(doing.refused(&error), &fresh, destroy, error.kind()));
        }
        if self.moves_mounts() {
            service.mounts.uncover_bare(&before);
        }
        places::remove(made);
        service.tell_snapshots(&destroy.names);
        Ok(Vec::new())
    }
}

/// What it needs that a dataset, snapshot or bookmark goes.
pub(super) fn needs_to_destroy(name: &str) -> Vec<Need> {
    let destroy = Need::new("destroy", name);
    match name.contains('#') {
        true => vec![destroy],
        false => vec![Need::new("mount", name), destroy],
    }
}

/// Snapshots that are held are named, one in a line.
fn name_the_held(
    failure: Failure,
    all: &dyn Datasets,
    destroy: &DestroyRequest,
    kind: ErrorKind,
) -> Failure {
    let is_held = |dataset: &DatasetReport| {
        dataset.properties.number("userrefs").is_some_and(|holds| holds > 0)
    };
    if kind != ErrorKind::Busy {
        return failure;
    }
    let words =
        |one: DatasetReport| format!("cannot destroy snapshot {}: dataset is busy", one.name);
    let named = destroy.names.iter().filter_map(|name| all.find(name));
    let lines: Vec<String> = named.filter(is_held).map(words).collect();
    in_lines(failure, &lines)
}
