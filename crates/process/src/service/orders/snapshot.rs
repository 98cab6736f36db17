//! `zfs snapshot`.
//!
//! Invariant: all snapshots of an order are taken, in one transaction group, or none.

use cenote_control::peer::Peer;
use cenote_control::plan::PropertySetting;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::dataset::check_new_name;

use super::{Doing, Order, Warnings};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::{Need, above};
use crate::service::settings::input;

pub(super) struct Snapshot<'a> {
    pub(super) names: &'a [String],
    pub(super) properties: &'a [PropertySetting],
}

impl Order for Snapshot<'_> {
    fn cannot(&self, _: &str) -> String {
        match self.names {
            [only] => format!("cannot create snapshot '{only}'"),
            _ => "cannot create snapshots ".to_owned(),
        }
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(self.names.iter().map(|name| Need::new("snapshot", above(name))).collect())
    }

    fn cannot_for_want(&self, _: &str) -> String {
        "cannot create snapshots ".to_owned()
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let all = doing.shown()?;
        let (mut lines, mut whole) = (Vec::new(), Vec::with_capacity(self.names.len()));
        for name in self.names {
            let (of, _) = name.split_once('@').unwrap_or((name, ""));
            // What was received in part only, so far, is left out of many.
            let is_inconsistent = all.is_inconsistent(of);
            if is_inconsistent && self.names.len() > 1 {
                continue;
            }
            whole.push(name.clone());
            if is_inconsistent {
                lines.push(format!("cannot create snapshot '{name}': dataset is busy"));
            } else if !all.has(of) {
                lines.push(format!("cannot create snapshot '{name}': dataset does not exist"));
            } else if all.has(name) {
                lines.push(format!("cannot create snapshot '{name}': dataset already exists"));
            } else if let Err(error) = check_new_name(name) {
                lines.push(format!("cannot create snapshot '{name}': {}", error.reason()));
            }
        }
        if !lines.is_empty() {
            if whole.len() > 1 {
                lines.push("no snapshots were created".to_owned());
            }
            return Err(Failure::new(FailureKind::Already, lines.join("\n")));
        }
        if whole.is_empty() {
            return Ok(Vec::new());
        }
        let only = Snapshot { names: &whole, properties: self.properties };
        let doing = Doing { start: only.cannot(doing.pool.name()), order: &only, ..*doing };
        doing
            .given_orders()
            .and_then(|orders| orders.snapshot(&whole, self.properties.iter().map(input).collect()))
            .map_err(|error| {
                let mut failure = doing.refused(&error);
                if whole.len() > 1 {
                    failure.message.push_str("\nno snapshots were created");
                }
                failure
            })?;
        doing.service.tell_snapshots(self.names);
        Ok(Vec::new())
    }
}
