//! Looking for one pool, some of whose devices may take a while to answer.
//!
//! Invariant: who opens what was found knows whether a device that did not answer may hold a newer state of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_format::Guid;
use cenote_format::config::{VdevConfig, VdevKind};

use super::assemble::{PoolCandidate, assemble};
use super::discover::{Opener, ScanOptions, answering, scan};

/// Longest wait for silent devices before what there is then is looked at.
const ROUND: Duration = Duration::from_secs(5);

/// What was found of a pool.
#[derive(Debug)]
pub struct Search {
    /// The pool, if any device is of it.
    pub candidate: Option<PoolCandidate>,
    /// Devices and places that do not answer.
    pub silent: Vec<PathBuf>,
}

/// Looks for the pool `guid`. If devices of it are missing, and others do not answer, these are waited for, at most
/// `patience`: a disk that has to spin up first may have what the others lack.
pub fn search(
    opener: &Arc<dyn Opener>,
    options: &ScanOptions,
    guid: Guid,
    patience: Duration,
) -> Search {
    let end = Instant::now() + patience;
    let mut found = Search::now(opener, options, guid);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || found.silent.is_empty() || !found.lacks_devices() {
            return found;
        }
        tracing::info!(silent = ?found.silent, "waiting for devices that do not answer");
        if answering(opener, &found.silent, ROUND.min(left)) > 0 {
            found = Search::now(opener, options, guid);
        }
    }
}

impl Search {
    fn now(opener: &Arc<dyn Opener>, options: &ScanOptions, guid: Guid) -> Self {
        let found = scan(opener, options);
        let candidate = assemble(&found).into_iter().find(|candidate| candidate.guid == guid);
        let silent = found.problems.into_iter().filter(|problem| problem.silent);
        Self { candidate, silent: silent.map(|problem| problem.path).collect() }
    }

    fn lacks_devices(&self) -> bool {
        let Some(candidate) = &self.candidate else { return true };
        candidate.tree.children().iter().any(|top| {
            let (present, wanted) = present_and_wanted(candidate, top);
            top.kind == VdevKind::Missing || present < wanted
        })
    }

    /// Whether devices that did not answer may hold a newer state of the pool than those that were found: it can have
    /// been written without any of these.
    pub fn may_be_stale(&self) -> bool {
        let Some(candidate) = &self.candidate else { return false };
        let mut data = candidate.tree.children().iter().filter(|top| holds_data(top));
        // Uberblocks go to all vdevs: one that could not be written without what is there tells the newest state.
        !self.silent.is_empty() && data.all(|top| is_dispensable(candidate, top))
    }
}

fn holds_data(top: &VdevConfig) -> bool {
    top.kind.is_concrete() && !top.top.is_some_and(|top| top.is_log)
}

/// How many devices of `top` were found, and how many there should be.
fn present_and_wanted(candidate: &PoolCandidate, top: &VdevConfig) -> (usize, usize) {
    let own = || top.devices().filter(|leaf| !leaf.is_withheld());
    (own().filter(|leaf| candidate.device(leaf).is_some()).count(), own().count())
}

/// The vdev could be written without the devices of it that were found.
fn is_dispensable(candidate: &PoolCandidate, top: &VdevConfig) -> bool {
    let (present, wanted) = present_and_wanted(candidate, top);
    match top.kind {
        VdevKind::Raidz | VdevKind::Draid => present as u64 <= top.nparity.unwrap_or(1),
        _ => present < wanted,
    }
}
