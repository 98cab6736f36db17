//! How long a batch waits for devices that do not answer, and how long each answer took.
//!
//! Invariant: whoever would do without the missing answers is asked a few times a second at most, and the batch ends
//! at its deadline whatever he says.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Deadline of single reads, writes and flushes.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// Time between two questions whether what was done will do: the answer may cost as much as the batch is long.
const ASKING: Duration = Duration::from_millis(100);

/// How much longer the batch waits: none if all operations are needed. It is asked with a function that says of each
/// operation of the batch, by its index, whether it was done well.
pub type Enough<'a> = &'a dyn Fn(&dyn Fn(usize) -> bool) -> Option<Duration>;

/// How long each operation of a batch took from when it was sent to its answer; what has none, until it was given up.
pub type Took = RefCell<Vec<Duration>>;

/// How long a batch waits.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// Longest time until all operations have an answer.
    pub deadline: Duration,
    /// Ends the batch before that.
    pub early: Option<Enough<'a>>,
    /// Where to tell how long each operation took.
    pub took: Option<&'a Took>,
}

impl From<Duration> for Patience<'_> {
    fn from(deadline: Duration) -> Self {
        Self { deadline, early: None, took: None }
    }
}

impl std::fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let may_end_early = self.early.is_some();
        f.debug_struct("Patience")
            .field("deadline", &self.deadline)
            .field("may_end_early", &may_end_early)
            .finish_non_exhaustive()
    }
}

/// A batch's patience since it began.
pub(crate) struct Wait<'a> {
    begin: Instant,
    /// When it ends.
    pub(crate) until: Instant,
    patience: Patience<'a>,
    /// When to ask next whether what was done will do.
    ask: Cell<Instant>,
}

impl<'a> Wait<'a> {
    pub(crate) fn begin(patience: Patience<'a>) -> Self {
        let begin = Instant::now();
        let until = begin.checked_add(patience.deadline).unwrap_or(begin + DEFAULT_DEADLINE);
        Self { begin, until, patience, ask: Cell::new(begin + ASKING) }
    }

    /// How long to wait for the next answer at most; zero if the time is over.
    pub(crate) fn left(&self) -> Duration {
        let now = Instant::now();
        let whole = self.until.saturating_duration_since(now);
        match self.patience.early {
            // A wait of no time at all would not be one.
            Some(_) => {
                let next = self.ask.get().saturating_duration_since(now);
                next.max(Duration::from_millis(1)).min(whole)
            }
            None => whole,
        }
    }

    /// Its time is over.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Nobody waits any longer for what is missing, for what was `done` will do.
    pub(crate) fn will_do(&self, done: &dyn Fn(usize) -> bool) -> bool {
        let Some(enough) = self.patience.early else { return false };
        let now = Instant::now();
        if now < self.ask.get() {
            return false;
        }
        let left = enough(done);
        self.ask.set(Instant::now() + left.unwrap_or(ASKING).min(ASKING));
        left.is_some_and(|left| left.is_zero())
    }

    /// How long the caller waited for what has no answer: less than the deadline if that has not passed.
    pub(crate) fn waited(&self) -> Duration {
        match self.is_over() {
            true => self.patience.deadline,
            false => {
                let less = self.patience.deadline.saturating_sub(Duration::from_nanos(1));
                self.begin.elapsed().min(less)
            }
        }
    }

    /// Tells the caller how long each operation took.
    pub(crate) fn tell(&self, took: Vec<Duration>) {
        if let Some(told) = self.patience.took {
            *told.borrow_mut() = took;
        }
    }
}
