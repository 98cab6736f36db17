//! `zpool initialize` and `zpool trim`.
//!
//! Invariant: nothing begins if one of the devices named is not there; each of the others is refused on its own.

use cenote_control::changes::{SweepAction, SweepRequest};
use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::pool::group::{SweepKind, SweepOrder};
use cenote_engine::{Error, ErrorKind};
use cenote_format::Guid;

use super::{Doing, Order, Warnings};

pub(super) struct Sweep<'a>(pub(super) &'a SweepRequest);

impl Sweep<'_> {
    fn asked(&self) -> SweepOrder {
        match self.0.action {
            SweepAction::Begin { rate } => SweepOrder::Begin { rate },
            SweepAction::Suspend => SweepOrder::Suspend,
            SweepAction::Cancel => SweepOrder::Cancel,
            SweepAction::Forget => SweepOrder::Forget,
        }
    }

    fn verb(&self) -> &'static str {
        if self.0.trim { "trim" } else { "initialize" }
    }

    /// The devices it is about: what they are called, and their guids.
    fn devices(&self, doing: &Doing<'_>) -> Result<Vec<(String, Guid)>, Failure> {
        if self.0.devices.is_empty() {
            let vdevs = doing.pool.vdevs();
            let leaves = vdevs.topology().root().devices();
            let named = leaves.map(|leaf| {
                let path = leaf.path.clone().unwrap_or_else(|| leaf.guid.to_string());
                let short = path.strip_prefix("/dev/").map(str::to_owned);
                (short.unwrap_or(path), leaf.guid)
            });
            return Ok(named.collect());
        }
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in &self.0.devices {
            match doing.member(name) {
                Ok(guid) => found.push((name.clone(), guid)),
                Err(failure) => missing.push(self.of(name, doing.reason(&failure))),
            }
        }
        match missing.is_empty() {
            true => Ok(found),
            false => Err(Failure::new(FailureKind::NotFound, missing.join("\n"))),
        }
    }

    fn of(&self, device: &str, words: &str) -> String {
        format!("cannot {} '{device}': {words}", self.verb())
    }
}

impl Order for Sweep<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot {}", self.verb())
    }

    fn words(&self, error: &Error) -> Option<String> {
        match error.kind() {
            ErrorKind::Busy
            | ErrorKind::NotFound
            | ErrorKind::Unsupported
            | ErrorKind::InvalidArgument => Some(error.reason().to_owned()),
            ErrorKind::ReadOnly => Some("pool is read-only".to_owned()),
            _ => None,
        }
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let kind = if self.0.trim { SweepKind::Trim } else { SweepKind::Initialize };
        let (order, whole) = (self.asked(), self.0.devices.is_empty());
        let (mut lines, mut refused, mut unfit, mut done) = (Vec::new(), None, 0, 0);
        for (name, guid) in self.devices(doing)? {
            match doing.engine(|live| live.sweep(guid, kind, order)) {
                Ok(()) => done += 1,
                // Of a whole pool those are trimmed that can be.
                Err(error) if whole && self.0.trim && error.kind() == ErrorKind::Unsupported => {
                    unfit += 1;
                }
                Err(error) => {
                    let failure = doing.refused(&error);
                    lines.push(self.of(&name, doing.reason(&failure)));
                    refused = refused.or(Some(failure.kind));
                }
            }
        }
        if unfit > 0 && done == 0 && lines.is_empty() {
            let words = "no devices in pool support trim operations";
            return Err(doing.refuse(FailureKind::NotSupported, words));
        }
        match refused {
            Some(kind) => Err(Failure::new(kind, lines.join("\n"))),
            None => Ok(Vec::new()),
        }
    }
}
