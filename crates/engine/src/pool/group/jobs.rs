//! The jobs of a pool, and when their portions are done.
//!
//! Invariant: a job that gets on has the next group written at once; one that is stuck, pauses or has
//! nothing to do has none written. Jobs rest while the pool is closed.

use super::LivePool;
use crate::job::{Job, Outcome, Report};

/// Long work of a pool.
#[derive(Debug)]
pub(in crate::pool) struct Jobs {
    /// What destroyed datasets and snapshots left is freed.
    pub(in crate::pool) freeing: Job,
    /// What a checkpoint held is freed.
    pub(in crate::pool) discarding: Job,
    /// A vdev is emptied.
    pub(in crate::pool) evacuating: Job,
    /// A RAID-Z vdev is spread over one device more.
    pub(in crate::pool) expanding: Job,
    /// A mapping of a removed vdev loses what is obsolete.
    pub(in crate::pool) condensing: Job,
    /// Groups are written only when somebody asks for one.
    waits: bool,
}

impl Jobs {
    pub(super) fn new(waits: bool) -> Self {
        Self {
            freeing: Job::new("freeing"),
            discarding: Job::new("discarding checkpoint"),
            evacuating: Job::new("removing"),
            expanding: Job::new("expanding"),
            condensing: Job::new("condensing"),
            waits,
        }
    }

    fn all(&self) -> [&Job; 5] {
        [&self.freeing, &self.discarding, &self.evacuating, &self.expanding, &self.condensing]
    }

    /// Some job has something to do in the next group.
    pub(super) fn are_due(&self) -> bool {
        self.all().iter().any(|job| job.is_due())
    }

    /// Some job has something to do as soon as can be.
    pub(super) fn get_on(&self) -> bool {
        let moving = [&self.evacuating, &self.expanding, &self.condensing];
        let waits = |job: &Job| self.waits && moving.iter().any(|one| std::ptr::eq(*one, job));
        self.all().iter().any(|job| job.gets_on() && !waits(job))
    }

    /// What could not be done is tried again.
    pub(super) fn wake_troubled(&self) {
        self.all().iter().filter(|job| job.trouble().is_some()).for_each(|job| job.wake());
    }

    /// Whether nothing is done for the time being.
    pub(super) fn pause(&self, paused: bool) {
        self.all().iter().for_each(|job| job.pause(paused));
    }

    /// Ends a portion of `job`, and tells the log of trouble that is new.
    pub(super) fn end(&self, job: &Job, outcome: Outcome) {
        let trouble = outcome.trouble.clone();
        if job.end(outcome)
            && let Some(error) = trouble
        {
            tracing::warn!(job = job.name(), %error, "something cannot be done for now");
        }
    }
}

impl LivePool {
    /// What the jobs of the pool tell.
    pub fn jobs(&self) -> Vec<Report> {
        self.jobs.all().iter().map(|job| job.report()).collect()
    }
}
