//! `zfs allow` and `zfs unallow`.
//!
//! Invariant: all datasets of one order lose their permissions together.

use std::collections::BTreeSet;

use cenote_control::changes::Grant;
use cenote_control::protocol::Failure;

use super::{Doing, Order, Warnings, is_at_or_below};

pub(super) struct Allow<'a> {
    pub(super) dataset: &'a str,
    pub(super) grants: &'a [Grant],
}

impl Order for Allow<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot set permissions on '{}'", self.dataset)
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.simply(doing.service.changes.allow(self.dataset, self.grants))
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

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let all = doing.all()?;
        let live =
            all.iter().map(|one| one.name.as_str()).filter(|name| !name.contains(['@', '#']));
        let below = live.filter(|name| self.recursive && is_at_or_below(name, self.dataset));
        let names: BTreeSet<String> = below.chain([self.dataset]).map(str::to_owned).collect();
        let names: Vec<String> = names.into_iter().collect();
        doing.simply(doing.service.changes.disallow(&names, self.grants))
    }
}
