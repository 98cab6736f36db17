//! `zfs redact`.
//!
//! Invariant: as in [`super`].

use cenote_control::changes::RedactRequest;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::ErrorKind;

use super::{Doing, Order, Warnings};
use crate::service::datasets::Datasets;

pub(super) struct Redact<'a>(pub(super) &'a RedactRequest);

impl Order for Redact<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot redact '{}'", self.0.snapshot)
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let all = doing.shown()?;
        let line = |kind, line: String| Err(Failure::new(kind, line));
        if !all.has(&self.0.snapshot) {
            let words = format!("provided snapshot {} does not exist", self.0.snapshot);
            return line(FailureKind::NotFound, words);
        }
        if let Some(absent) = self.0.kept.iter().find(|name| !all.has(name)) {
            return line(
                FailureKind::NotFound,
                format!("provided snapshot {absent} does not exist"),
            );
        }
        let name = self.0.bookmark.split_once('#').map_or("", |(_, name)| name);
        let done = doing.orders(|orders| {
            cenote_engine::send::redact(
                doing.pool,
                &orders,
                &self.0.snapshot,
                &self.0.bookmark,
                &self.0.kept,
            )
        });
        done.map(|()| Vec::new()).map_err(|error| {
            let failure = doing.refused(&error);
            let words = match error.kind() {
                ErrorKind::Exists => {
                    format!("specified redaction bookmark ({name}) provided already exists")
                }
                ErrorKind::InvalidArgument | ErrorKind::Unsupported => error.reason().to_owned(),
                _ => return failure,
            };
            Failure { message: words, ..failure }
        })
    }
}
