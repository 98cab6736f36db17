//! `zfs bookmark`.
//!
//! Invariant: as in [`super`].

use cenote_control::peer::Peer;
use cenote_control::protocol::Failure;
use cenote_engine::{Error, ErrorKind};

use super::{Doing, Order, Warnings};
use crate::service::datasets::Shown;
use crate::service::delegation::Need;

pub(super) struct Bookmark<'a> {
    pub(super) from: &'a str,
    pub(super) to: &'a str,
}

impl Order for Bookmark<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot create bookmark '{}'", self.to)
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(vec![Need::new("bookmark", self.to)])
    }

    fn words(&self, error: &Error) -> Option<String> {
        match error.kind() {
            ErrorKind::Exists => Some("bookmark exists".to_owned()),
            ErrorKind::InvalidArgument => Some(error.reason().to_owned()),
            _ => None,
        }
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.simply(doing.orders(|orders| orders.bookmark(self.from, self.to)))
    }
}
