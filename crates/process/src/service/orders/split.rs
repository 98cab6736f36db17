//! `zpool split`.
//!
//! Invariant: as in [`super`]; the new pool is exported when this is answered.

use cenote_control::changes::SplitRequest;
use cenote_control::protocol::Failure;
use cenote_engine::Error;
use cenote_engine::pool::change::SplitPlan;

use super::members::own_words;
use super::{Doing, Order, Warnings};
use crate::service::settings::input;

pub(super) struct Split<'a>(pub(super) &'a SplitRequest);

impl Order for Split<'_> {
    fn function(&self) -> Option<&'static str> {
        Some("spa_vdev_split_mirror")
    }

    fn cannot(&self, pool: &str) -> String {
        format!("Unable to split {pool}")
    }

    fn words(&self, error: &Error) -> Option<String> {
        own_words(error)
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let devices = self.0.devices.iter().map(|name| doing.device(name));
        let plan = SplitPlan {
            name: self.0.name.clone(),
            devices: devices.collect::<Result<_, _>>()?,
            properties: self.0.properties.iter().map(input).collect(),
        };
        doing.simply(doing.service.changes.split(plan))
    }
}
