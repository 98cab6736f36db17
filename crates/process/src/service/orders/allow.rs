//! `zfs allow` and `zfs unallow`.
//!
//! Invariant: all datasets of one order lose their permissions together.

use std::collections::BTreeSet;

use cenote_control::changes::Grant;
use cenote_control::protocol::Failure;
use cenote_engine::Error;

use super::{Doing, Order, Warnings};
use crate::service::datasets::Datasets;
use crate::service::settings::key_of;

pub(super) struct Allow<'a> {
    pub(super) dataset: &'a str,
    pub(super) grants: &'a [Grant],
}

impl Order for Allow<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot set permissions on '{}'", self.dataset)
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let keyed = |grant: &Grant| Ok((key_of(grant)?, grant.permissions.clone()));
        let given = self.grants.iter().map(keyed).collect::<Result<Vec<_>, Error>>();
        doing.simply(
            given.and_then(|given| doing.orders(|orders| orders.allow(self.dataset, given))),
        )
    }
}

pub(super) struct Unallow<'a> {
    pub(super) dataset: &'a str,
    pub(super) grants: &'a [Grant],
    pub(super) recursive: bool,
}

impl Order for Unallow<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot set permissions on '{}'", self.dataset)
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let mut names = BTreeSet::from([self.dataset.to_owned()]);
        if self.recursive {
            let below = doing.shown()?.below(self.dataset).into_iter().map(|(name, _)| name);
            names.extend(below.filter(|name| !name.contains(['@', '#'])));
        }
        let names: Vec<String> = names.into_iter().collect();
        let keyed = |grant: &Grant| {
            let permissions = grant.permissions.clone();
            Ok((key_of(grant)?, (!permissions.is_empty()).then_some(permissions)))
        };
        let taken = self.grants.iter().map(keyed).collect::<Result<Vec<_>, Error>>();
        doing.simply(taken.and_then(|taken| doing.orders(|orders| orders.disallow(&names, taken))))
    }
}
