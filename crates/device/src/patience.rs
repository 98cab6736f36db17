//! How long a batch waits for devices that do not answer.
//!
//! Invariant: whoever would do without the missing answers is asked only after his first patience is over,
//! and the batch ends at its deadline whatever he says.

use std::time::{Duration, Instant};

/// Deadline of single reads, writes and flushes.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// Tells whether the operations that were done well will do; asked with a function that says of each operation of
/// the batch, by its index, whether it was.
pub type Enough<'a> = &'a dyn Fn(&dyn Fn(usize) -> bool) -> bool;

/// How long a batch waits.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// Longest time until all operations have an answer.
    pub deadline: Duration,
    /// After this time the batch ends as soon as what was answered will do.
    pub early: Option<(Duration, Enough<'a>)>,
}

impl From<Duration> for Patience<'_> {
    fn from(deadline: Duration) -> Self {
        Self { deadline, early: None }
    }
}

impl std::fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let early = self.early.map(|(first, _)| first);
        f.debug_struct("Patience").field("deadline", &self.deadline).field("early", &early).finish()
    }
}

/// A batch's patience since it began.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    begin: Instant,
    /// When it ends.
    pub(crate) until: Instant,
    patience: Patience<'a>,
}

impl<'a> Wait<'a> {
    pub(crate) fn begin(patience: Patience<'a>) -> Self {
        let begin = Instant::now();
        let until = begin.checked_add(patience.deadline).unwrap_or(begin + DEFAULT_DEADLINE);
        Self { begin, until, patience }
    }

    /// How long to wait for the next answer at most; zero if the time is over.
    pub(crate) fn left(&self) -> Duration {
        let now = Instant::now();
        let whole = self.until.saturating_duration_since(now);
        match self.patience.early {
            Some((first, _)) => {
                match first.checked_sub(now.saturating_duration_since(self.begin)) {
                    Some(left) if !left.is_zero() => left.min(whole),
                    _ => whole,
                }
            }
            None => whole,
        }
    }

    /// Its time is over.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// The first patience is over, and what was `done` will do.
    pub(crate) fn will_do(&self, done: &dyn Fn(usize) -> bool) -> bool {
        self.patience
            .early
            .is_some_and(|(first, enough)| self.begin.elapsed() >= first && enough(done))
    }

    /// How long the caller will have waited for what has no answer now.
    pub(crate) fn waited(&self) -> Duration {
        if self.is_over() {
            return self.patience.deadline;
        }
        self.patience.early.map_or(self.patience.deadline, |(first, _)| first)
    }
}
