//! `zfs clone`.
//!
//! Invariant: as in [`super`].

use cenote_control::changes::NewDataset;
use cenote_control::peer::Peer;
use cenote_control::protocol::Failure;
use cenote_control::report::DatasetKind;
use cenote_engine::{Error, ErrorKind};

use super::create::needs_of_new;
use super::{Doing, Order, Warnings, no_dataset};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;
use crate::service::settings::{NewSettings, split_settings, unsupported};

pub(super) struct Clone<'a> {
    pub(super) origin: &'a str,
    pub(super) new: &'a NewDataset,
}

impl Order for Clone<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot create '{}'", self.new.name)
    }

    fn needs(&self, all: &Shown, _: &Peer) -> Option<Vec<Need>> {
        let mut needs = needs_of_new(all, self.new);
        needs.push(Need::new("clone", self.origin));
        Some(needs)
    }

    fn words(&self, error: &Error) -> Option<String> {
        (error.kind() == ErrorKind::Unsupported).then(|| error.reason().to_owned())
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let all = doing.shown()?;
        if !all.has(self.origin) {
            return Err(no_dataset(self.origin));
        }
        let of = self.origin.split('@').next().and_then(|of| all.kind(of));
        let is_filesystem = of.is_none_or(|kind| kind == DatasetKind::Filesystem);
        let make = |missing: &[String]| {
            let NewSettings { stored: properties, quotas, .. } =
                split_settings(&self.new.properties)?;
            if !quotas.is_empty() {
                return unsupported("setting quotas of somebody on a clone that is being made");
            }
            let (name, creator) = (&self.new.name, doing.who.uid());
            let orders = doing.service.changes.above(doing.given_orders()?, missing, doing.by())?;
            orders.clone_snapshot(self.origin, name, properties, creator)
        };
        doing.create(self.new, is_filesystem, &make)
    }
}
