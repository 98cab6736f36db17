//! How much one portion of a job may do.
//!
//! Invariant: a portion gets on, however slow the devices are: some blocks are done before the time is
//! looked at. After that it ends when somebody waits for what comes behind it, and else at the
//! latest when its time is over.

use std::fmt;
use std::time::Duration;

use crate::environment;

/// Blocks a portion may do however long they take.
const BLOCKS_AT_LEAST: u64 = 500;
/// How long a portion may take although somebody waits.
const TIME_AT_LEAST: Duration = Duration::from_millis(250);
/// How long a portion may take if nobody does.
const TIME_AT_MOST: Duration = Duration::from_secs(1);

/// What is left to a portion.
#[derive(Clone, Copy)]
pub struct Budget<'a> {
    blocks: u64,
    done: u64,
    clock: Option<Clock<'a>>,
}

#[derive(Clone, Copy)]
struct Clock<'a> {
    begun: Duration,
    is_waited_for: &'a dyn Fn() -> bool,
}

impl<'a> Budget<'a> {
    /// So many blocks, whatever they take.
    pub fn blocks(blocks: u64) -> Self {
        Self { blocks, done: 0, clock: None }
    }

    /// Not more than a second either, and less if `is_waited_for`: somebody waits until the portion
    /// ends.
    #[must_use]
    pub fn sharing(self, is_waited_for: &'a dyn Fn() -> bool) -> Self {
        let begun = environment::now();
        Self { clock: Some(Clock { begun, is_waited_for }), ..self }
    }

    /// Blocks that may still be done; none when the time is over.
    pub fn left(&self) -> u64 {
        let is_over = self.done >= BLOCKS_AT_LEAST && self.clock.is_some_and(|it| it.is_over());
        if is_over { 0 } else { self.blocks }
    }

    /// Nothing more is to be done.
    pub fn is_spent(&self) -> bool {
        self.left() == 0
    }

    /// So many blocks were done.
    pub fn spend(&mut self, blocks: u64) {
        self.blocks = self.blocks.saturating_sub(blocks);
        self.done = self.done.saturating_add(blocks);
    }
}

impl Clock<'_> {
    fn is_over(&self) -> bool {
        let taken = environment::now().saturating_sub(self.begun);
        taken >= TIME_AT_MOST || taken >= TIME_AT_LEAST && (self.is_waited_for)()
    }
}

impl fmt::Debug for Budget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks after {}", self.blocks, self.done)
    }
}
