//! `zfs hold` and `zfs release`.
//!
//! Invariant: an order is what one operand stands for. All its snapshots are held, or none; those that have
//! the tag are released.

use cenote_control::peer::Peer;
use cenote_control::protocol::Failure;
use cenote_engine::{Error, ErrorKind};

use super::{Doing, Order, Warnings, in_lines};
use crate::service::datasets::Shown;
use crate::service::delegation::{Need, above};

fn words_of(error: &Error) -> Option<String> {
    let tells = matches!(error.kind(), ErrorKind::Exists | ErrorKind::NotFound);
    tells.then(|| error.reason().to_owned())
}

pub(super) struct Hold<'a> {
    pub(super) snapshots: &'a [String],
    pub(super) tag: &'a str,
}

impl Order for Hold<'_> {
    fn cannot(&self, _: &str) -> String {
        match self.snapshots {
            [only] => format!("cannot hold snapshot '{only}'"),
            _ => "cannot hold".to_owned(),
        }
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(self.snapshots.iter().map(|name| Need::new("hold", above(name))).collect())
    }

    fn cannot_for_want(&self, _: &str) -> String {
        "cannot hold".to_owned()
    }

    fn words(&self, error: &Error) -> Option<String> {
        words_of(error)
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let done = doing.orders(|orders| orders.hold(self.snapshots, self.tag));
        match done {
            Err(error) if error.kind() == ErrorKind::Exists => {
                Err(self.name_the_held(doing, &error))
            }
            done => doing.simply(done),
        }
    }
}

impl Hold<'_> {
    /// Snapshots that have the tag are named, one in a line.
    fn name_the_held(&self, doing: &Doing<'_>, error: &Error) -> Failure {
        let failure = doing.refused(error);
        let catalog = doing.pool.catalog();
        let has_tag = |name: &&String| {
            let holds = catalog.dataset_named(name).and_then(|snapshot| catalog.holds(&snapshot));
            holds.is_ok_and(|holds| holds.iter().any(|(tag, _)| tag == self.tag))
        };
        let reason = error.reason();
        let line = |name: &String| format!("cannot hold snapshot '{name}': {reason}");
        let lines: Vec<String> = self.snapshots.iter().filter(has_tag).map(line).collect();
        in_lines(failure, &lines)
    }
}

pub(super) struct Release<'a> {
    pub(super) snapshots: &'a [String],
    pub(super) tag: &'a str,
}

impl Order for Release<'_> {
    fn cannot(&self, _: &str) -> String {
        match self.snapshots {
            [first, ..] => format!("cannot release hold from snapshot '{first}'"),
            [] => "cannot release".to_owned(),
        }
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(self.snapshots.iter().map(|name| Need::new("release", above(name))).collect())
    }

    fn cannot_for_want(&self, _: &str) -> String {
        "cannot release".to_owned()
    }

    fn words(&self, error: &Error) -> Option<String> {
        words_of(error)
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let done = doing.simply(doing.orders(|orders| orders.release(self.snapshots, self.tag)))?;
        // One that was destroyed deferred may be gone now.
        doing.service.tell_snapshots(self.snapshots);
        Ok(done)
    }
}
