//! What the jobs of a pool are doing, as it is published.
//!
//! Invariant: a job that has nothing to do is not listed.

use cenote_control::report::{JobReport, JobState};
use cenote_engine::job::{self, Report};
use cenote_engine::pool::group::LivePool;

/// The jobs of a pool that are not done.
pub fn reports(live: &LivePool) -> Vec<JobReport> {
    live.jobs().into_iter().filter_map(report).collect()
}

fn report(job: Report) -> Option<JobReport> {
    let state = match job.state {
        job::JobState::Idle => return None,
        job::JobState::Working => JobState::Working,
        job::JobState::Paused => JobState::Paused,
        job::JobState::Stuck => JobState::Stuck,
    };
    Some(JobReport {
        name: job.name.to_owned(),
        state,
        done: job.done,
        left: job.left,
        rate: job.pace.rate,
        remaining: job.pace.remaining.map(|time| time.as_secs()),
        trouble: job.trouble.map(|error| error.to_string()),
    })
}
