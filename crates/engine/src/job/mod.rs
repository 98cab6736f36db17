//! Long work: done in portions beneath everything else, with progress that can be looked at.
//!
//! What a job has done and where it goes on is on the disks, written in the group that did it and
//! where OpenZFS keeps it; a [`Job`] is the part of it that lives in memory: whether there is
//! something to do, whether it is to pause or to be given up, how far it has come and how fast. Who
//! does the work asks [`Job::begin`] and tells with [`Job::end`]; a [`Budget`] says when to stop.
//! Work that frees does its portions while a group is written; work that reads may do them in a
//! thread of its own, and only write down in a group how far it has come.
//!
//! Invariant: whoever looks waits for no disk: locks are held to copy figures. What is asked of a
//! job while it works is heard when the portion ends, and is not lost.

mod budget;
mod speed;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::{Error, environment};

pub use budget::Budget;
pub use speed::{Pace, Speed};

/// What a job is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobState {
    /// There is nothing to do.
    #[default]
    Idle,
    /// It works, or will at the next occasion.
    Working,
    /// Somebody asked it to pause.
    Paused,
    /// What is left cannot be done for now. It is tried again when the job is woken.
    Stuck,
}

/// What a job tells.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its name.
    pub name: &'static str,
    /// What it is doing.
    pub state: JobState,
    /// Bytes done since it was begun, or since the pool was opened.
    pub done: u64,
    /// Bytes left to do.
    pub left: u64,
    /// How fast it goes.
    pub pace: Pace,
    /// Why something could not be done.
    pub trouble: Option<Error>,
}

/// Long work.
#[derive(Debug)]
pub struct Job {
    name: &'static str,
    woken: AtomicBool,
    paused: AtomicBool,
    canceled: AtomicBool,
    figures: Mutex<Figures>,
}

#[derive(Debug, Default)]
struct Figures {
    state: JobState,
    done: u64,
    left: u64,
    speed: Speed,
    pace: Pace,
    trouble: Option<Error>,
}

/// What a portion is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Portion {
    /// The job was woken: what could not be done before is to be tried again.
    pub anew: bool,
    /// The job is to be given up.
    pub canceled: bool,
}

/// What a portion did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Bytes it did.
    pub done: u64,
    /// Bytes left to do, also such as cannot be done for now.
    pub left: u64,
    /// There is something to do in another portion.
    pub more: bool,
    /// Why something could not be done.
    pub trouble: Option<Error>,
}

impl Job {
    /// A job that looks for something to do at its first occasion.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            woken: AtomicBool::new(true),
            paused: AtomicBool::default(),
            canceled: AtomicBool::default(),
            figures: Mutex::default(),
        }
    }

    /// There may be something to do, or what was stuck may be possible.
    pub fn wake(&self) {
        self.woken.store(true, SeqCst);
    }

    /// Whether it does nothing for the time being. What waits meanwhile is done afterwards.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, SeqCst);
    }

    /// What is left to do is given up: the next portion is told, also of a job that pauses.
    pub fn cancel(&self) {
        self.canceled.store(true, SeqCst);
    }

    /// A portion is to be done at the next occasion.
    pub fn is_due(&self) -> bool {
        let wants = || self.woken.load(SeqCst) || self.figures.lock().state == JobState::Working;
        self.canceled.load(SeqCst) || !self.paused.load(SeqCst) && wants()
    }

    /// It works, and there is something to do that does not have to wait for an occasion.
    pub fn gets_on(&self) -> bool {
        !self.paused.load(SeqCst) && self.figures.lock().state == JobState::Working
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Begins a portion; `None` if none is due. To be ended with [`Self::end`].
    pub fn begin(&self) -> Option<Portion> {
        if !self.is_due() {
            return None;
        }
        let canceled = self.canceled.swap(false, SeqCst);
        let anew = self.woken.swap(false, SeqCst);
        let mut figures = self.figures.lock();
        if figures.state == JobState::Idle {
            *figures = Figures::default();
            figures.speed.measure(environment::now(), 0, 0);
        }
        figures.state = JobState::Working;
        Some(Portion { anew, canceled })
    }

    /// Ends a portion. True if the trouble was not known before.
    pub fn end(&self, outcome: Outcome) -> bool {
        let Outcome { done, left, more, trouble } = outcome;
        let mut figures = self.figures.lock();
        figures.state = match (more, &trouble) {
            (true, _) => JobState::Working,
            (false, Some(_)) => JobState::Stuck,
            (false, None) => JobState::Idle,
        };
        figures.done = figures.done.saturating_add(done);
        figures.left = left;
        let done = figures.done;
        figures.pace = match more {
            true => figures.speed.measure(environment::now(), done, left),
            false => Pace::default(),
        };
        let is_new = trouble.is_some() && figures.trouble.is_none();
        // What troubled an earlier portion may be met again before the job has come to its end.
        if !more || trouble.is_some() {
            figures.trouble = trouble;
        }
        is_new
    }

    /// What it tells whoever looks.
    pub fn report(&self) -> Report {
        let is_paused = self.paused.load(SeqCst);
        let figures = self.figures.lock();
        let state = match figures.state {
            JobState::Working if is_paused => JobState::Paused,
            state => state,
        };
        Report {
            name: self.name,
            state,
            done: figures.done,
            left: figures.left,
            pace: if state == JobState::Working { figures.pace } else { Pace::default() },
            trouble: figures.trouble.clone(),
        }
    }

    /// Why something could not be done.
    pub fn trouble(&self) -> Option<Error> {
        self.figures.lock().trouble.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(done: u64, left: u64) -> Outcome {
        Outcome { done, left, more: true, trouble: None }
    }

    #[test]
    fn a_job_works_until_nothing_is_left_and_again_when_it_is_woken() {
        let job = Job::new("test");
        assert!(job.is_due() && !job.gets_on());
        assert_eq!(job.begin(), Some(Portion { anew: true, canceled: false }));
        assert!(!job.end(some(10, 90)) && job.gets_on());
        assert_eq!(job.begin(), Some(Portion::default()));
        // Woken while it works: that is not lost.
        job.wake();
        job.end(Outcome { done: 90, ..Outcome::default() });
        let report = job.report();
        assert_eq!((report.state, report.done, report.left), (JobState::Idle, 100, 0));
        assert_eq!(job.begin(), Some(Portion { anew: true, canceled: false }));
        job.end(Outcome::default());
        assert!(job.begin().is_none() && job.report().done == 0);
    }

    #[test]
    fn a_job_that_is_stuck_waits_until_it_is_woken_and_says_why() {
        let job = Job::new("test");
        let stuck = || Some(Error::corrupt("no copy verifies"));
        job.begin();
        assert!(job.end(Outcome { trouble: stuck(), ..some(1, 9) }));
        assert!(job.gets_on() && job.trouble().is_some());
        job.begin();
        // The same trouble is not told twice.
        assert!(!job.end(Outcome { trouble: stuck(), more: false, ..some(0, 9) }));
        assert!(job.report().state == JobState::Stuck && job.begin().is_none());
        job.wake();
        assert!(job.begin().is_some_and(|portion| portion.anew));
        job.end(some(4, 5));
        assert!(job.trouble().is_some(), "it may be met again");
        job.begin();
        job.end(Outcome { more: false, ..some(5, 0) });
        let report = job.report();
        assert!(report.trouble.is_none() && report.state == JobState::Idle && report.done == 10);
    }

    #[test]
    fn a_job_pauses_and_is_given_up() {
        let job = Job::new("test");
        job.begin();
        job.end(some(1, 9));
        job.pause(true);
        job.wake();
        assert!(!job.is_due() && !job.gets_on() && job.report().state == JobState::Paused);
        job.cancel();
        assert_eq!(job.begin(), Some(Portion { anew: true, canceled: true }));
        job.end(Outcome::default());
        job.pause(false);
        assert!(!job.is_due() && job.report().state == JobState::Idle);
    }

    #[test]
    fn a_portion_ends_when_its_blocks_or_its_time_are_spent_but_gets_on() {
        let mut budget = Budget::blocks(7);
        budget.spend(6);
        assert!(budget.left() == 1 && !budget.is_spent());
        budget.spend(6);
        assert!(budget.is_spent());

        let mut shared = Budget::blocks(100_000).sharing(&|| true);
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!shared.is_spent(), "no block was done");
        shared.spend(600);
        assert!(shared.is_spent(), "somebody waits");
        let mut alone = Budget::blocks(100_000).sharing(&|| false);
        alone.spend(600);
        assert!(!alone.is_spent());
    }
}
