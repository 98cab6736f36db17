//! `zfs allow` and `zfs unallow`.
//!
//! Invariant: all datasets of one order lose their permissions together.

use std::collections::BTreeSet;

use cenote_control::changes::Grant;
use cenote_control::peer::Peer;
use cenote_control::protocol::Failure;
use cenote_engine::Error;
use cenote_format::delegation::Who;

use super::{Doing, Order, Warnings};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;
use crate::service::settings::key_of;

pub(super) struct Allow<'a> {
    pub(super) dataset: &'a str,
    pub(super) grants: &'a [Grant],
}

impl Order for Allow<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot set permissions on '{}'", self.dataset)
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        let mut needs = vec![Need::new("allow", self.dataset)];
        for grant in self.grants {
            // Nobody hands on the right to hand on rights, or what a set may come to hold.
            if key_of(grant).map_or(true, |key| key.sets)
                || grant.permissions.iter().any(|one| one == "allow")
            {
                return None;
            }
            let own = grant.permissions.iter();
            needs.extend(own.map(|one| Need::new(one.clone(), self.dataset)));
        }
        Some(needs)
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

    fn needs(&self, all: &Shown, who: &Peer) -> Option<Vec<Need>> {
        // What others have is not his to take.
        let is_his = |grant: &Grant| {
            key_of(grant).is_ok_and(|key| matches!(key.who, Who::User(id) if Some(id) == who.user))
        };
        let names = self.names(all);
        self.grants
            .iter()
            .all(is_his)
            .then(|| names.iter().map(|name| Need::new("allow", name)).collect())
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let names = self.names(&doing.shown()?);
        let keyed = |grant: &Grant| {
            let permissions = grant.permissions.clone();
            Ok((key_of(grant)?, (!permissions.is_empty()).then_some(permissions)))
        };
        let taken = self.grants.iter().map(keyed).collect::<Result<Vec<_>, Error>>();
        doing.simply(taken.and_then(|taken| doing.orders(|orders| orders.disallow(&names, taken))))
    }
}

impl Unallow<'_> {
    /// The datasets it is about.
    fn names(&self, all: &Shown) -> Vec<String> {
        let mut names = BTreeSet::from([self.dataset.to_owned()]);
        if self.recursive {
            let below = all.below(self.dataset).into_iter().map(|(name, _)| name);
            names.extend(below.filter(|name| !name.contains(['@', '#'])));
        }
        names.into_iter().collect()
    }
}
