//! `zfs clone`.
//!
//! Invariant: as in [`super`].

use cenote_control::changes::{DatasetSettings, NewDataset};
use cenote_control::peer::Peer;
use cenote_control::protocol::Failure;
use cenote_control::report::DatasetKind;
use cenote_engine::{Error, ErrorKind};

use super::create::needs_of_new;
use super::{Doing, Order, Warnings, no_dataset};
use crate::service::changes::is_inside;
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;
use crate::service::settings::{NewSettings, split_settings};

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
        let (inside, stored): (Vec<_>, Vec<_>) =
            self.new.properties.iter().cloned().partition(is_inside);
        let make = |missing: &[String]| {
            let NewSettings { stored: properties, .. } = split_settings(&stored)?;
            let (name, creator) = (&self.new.name, doing.who.uid());
            let changes = &doing.service.changes;
            let orders = changes.above(doing.given_orders()?, missing, doing.by())?;
            orders.clone_snapshot(self.origin, name, properties, creator)?;
            if inside.is_empty() {
                return Ok(());
            }
            let inside = DatasetSettings { dataset: name.clone(), properties: inside.clone() };
            changes.set_properties(&[inside], doing.by()).inspect_err(|_| {
                // All that is asked for, or nothing.
                let orders = changes.orders(doing.by());
                let undone =
                    orders.and_then(|orders| orders.destroy(std::slice::from_ref(name), false));
                if let Err(error) = undone {
                    tracing::warn!(%error, name, "a clone stays that lacks properties");
                }
            })
        };
        doing.create(self.new, is_filesystem, &make)
    }
}
