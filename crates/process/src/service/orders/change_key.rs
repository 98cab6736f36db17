//! `zfs change-key`.
//!
//! Invariant: as in [`super`].

use cenote_control::peer::Peer;
use cenote_control::plan::NewKey;
use cenote_control::protocol::Failure;
use cenote_engine::{Error, ErrorKind};

use super::{Doing, Order, Warnings};
use crate::service::datasets::Shown;
use crate::service::delegation::Need;
use crate::service::settings::wrapping_of;

pub(super) struct ChangeKey<'a> {
    pub(super) dataset: &'a str,
    pub(super) key: &'a Option<NewKey>,
}

impl Order for ChangeKey<'_> {
    fn cannot(&self, _: &str) -> String {
        "Key change error".to_owned()
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(vec![Need::new("change-key", self.dataset)])
    }

    fn words(&self, error: &Error) -> Option<String> {
        (error.kind() == ErrorKind::KeyNotLoaded).then(|| "Key must be loaded.".to_owned())
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let wrap = |key: &NewKey| Ok((wrapping_of(key)?, key.location.clone()));
        let key = self.key.as_ref().map(wrap).transpose();
        doing
            .simply(key.and_then(|key| doing.orders(|orders| orders.change_key(self.dataset, key))))
    }
}
