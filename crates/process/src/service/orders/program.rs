//! `zfs program`.
//!
//! Invariant: what a program did before it failed stays, and whoever looks sees it; one that was not begun when
//! the order ends is not begun later.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cenote_control::changes::ProgramRequest;
use cenote_control::program::shown;
use cenote_control::protocol::{Failure, FailureKind, Part};
use cenote_engine::pool::change::ProgramStep;

use super::{Doing, Order, Warnings};
use crate::program::{self, Outcome};

/// Bytes that are told together.
const TOGETHER: usize = 1 << 20;
/// The start of what is said of failures.
const START: &str = "Channel program execution failed";

pub(super) struct Program<'a>(pub(super) &'a ProgramRequest);

impl Order for Program<'_> {
    fn cannot(&self, _: &str) -> String {
        START.to_owned()
    }

    fn denial(&self, _: &str) -> String {
        format!("{START}:\nPermission denied. Channel programs must be run as root.")
    }

    /// It may take away what is not mounted: nothing is mounted meanwhile.
    fn moves_mounts(&self) -> bool {
        !self.0.looks_only
    }

    fn changes_what_is_published(&self) -> bool {
        !self.0.looks_only
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let failed = |why: &str| Failure::new(FailureKind::Other, format!("{START}:\n{why}"));
        program::limits(self.0).map_err(failed)?;
        let outcome = self.run(doing).map_err(|error| doing.refused(&error))?;
        follow(doing, &outcome.made);
        let returned = outcome.ended.map_err(|why| {
            doing.service.publish_quietly(doing.pool);
            failed(&why)
        })?;
        let text = shown(returned, self.0.json);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let mut end = rest.len().min(TOGETHER);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            let (part, later) = rest.split_at(end);
            doing.replies.part(Part::Text(part.to_owned()))?;
            rest = later;
        }
        Ok(Vec::new())
    }
}

impl Program<'_> {
    fn run(&self, doing: &Doing<'_>) -> cenote_engine::Result<Outcome> {
        let live = doing.service.changes.live()?;
        if !self.0.looks_only {
            let mounted = doing.service.mounts.now();
            live.close_unused(&|name| mounted.contains_key(name))?;
        }
        let given = doing.given();
        let command = given.command.filter(|_| !self.0.looks_only).map(str::to_owned);
        let user = u64::from(given.user);
        let ends = Arc::new(AtomicBool::new(false));
        let (request, unwanted) = (self.0.clone(), ends.clone());
        let mut watched = || {
            if doing.replies.check().is_err() {
                ends.store(true, Relaxed);
            }
        };
        let done = live.program(&mut watched, move |group| {
            let outcome = program::run(group, &request, &unwanted)?;
            if let Some(line) = command
                && let Err(error) = group.log_command(&line, user)
            {
                tracing::warn!(%error, line, "not in the history");
            }
            Ok(outcome)
        });
        ends.store(true, Relaxed);
        done
    }
}

/// What is mounted follows what was changed.
fn follow(doing: &Doing<'_>, made: &[ProgramStep]) {
    let service = doing.service;
    let (mut snapshots, mut set, mut promoted) = (Vec::new(), BTreeSet::new(), false);
    for step in made {
        match step {
            ProgramStep::Snapshot(name) | ProgramStep::Destroy { name, .. } => {
                snapshots.push(name.clone());
            }
            ProgramStep::RenameSnapshot { dataset, from, to } => {
                snapshots.extend([from, to].map(|name| format!("{dataset}@{name}")));
            }
            ProgramStep::Inherit { dataset, .. } => drop(set.insert(dataset.clone())),
            ProgramStep::Promote(_) => promoted = true,
            ProgramStep::Rollback(_)
            | ProgramStep::Bookmark { .. }
            | ProgramStep::SetProperty { .. } => {}
        }
    }
    if promoted && let Ok(before) = doing.shown() {
        // Which snapshots moved from where depends on what was done around it: all are looked at again.
        service.publish_quietly(doing.pool);
        let now = doing.shown().ok();
        for dataset in service.mounts.names() {
            let later = now.iter().flat_map(|now| now.snapshots(&dataset));
            let all = before.snapshots(&dataset).into_iter().chain(later);
            snapshots.extend(all.map(|(name, _)| format!("{dataset}@{name}")));
        }
    }
    service.tell_snapshots(&snapshots);
    let set: Vec<String> = set.into_iter().collect();
    if !set.is_empty() {
        service.changes.follow_properties(&set);
    }
}
