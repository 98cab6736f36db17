//! Taking back what waits: a door says that nobody waits for the answer of a request any more.
//!
//! Invariant: a request that was taken back changes nothing: its first change begins, or it is taken
//! back, never both. Once it has begun its waits can be cut short only.
//!
//! The token belongs to the thread that carries the request out; waits below look at it every
//! [`GLANCE`], so that whoever takes back needs to know nothing of what is waited for.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, MutexGuard};

use crate::{Error, ErrorKind, Result};

/// How often waits look whether they are still wanted.
const GLANCE: Duration = Duration::from_millis(100);

/// Nothing was changed yet.
const RUNS: u8 = 0;
/// A change was begun.
const CHANGES: u8 = 1;
/// Nothing was changed, nor will be.
const TAKEN_BACK: u8 = 2;
/// A change was begun, but nobody waits for what comes after it.
const HURRIED: u8 = 3;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Interrupt>>> = const { RefCell::new(None) };
}

/// Whether a request is still wanted.
#[derive(Debug, Default)]
pub struct Interrupt(AtomicU8);

impl Interrupt {
    /// For the next request.
    pub fn reset(&self) {
        self.0.store(RUNS, SeqCst);
    }

    /// Takes the request back, unless it has begun to change something. True if it is taken back.
    pub fn take_back(&self) -> bool {
        let taken = self.0.compare_exchange(RUNS, TAKEN_BACK, SeqCst, SeqCst);
        matches!(taken, Ok(_) | Err(TAKEN_BACK))
    }

    /// Takes the request back, or cuts its waits short where it has changed something. True if it is
    /// taken back.
    pub fn hurry(&self) -> bool {
        let taken = self.take_back();
        if !taken {
            self.0.store(HURRIED, SeqCst);
        }
        taken
    }

    /// Carries a request out on the calling thread.
    pub fn carry_out<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let _ended = Ended(CURRENT.replace(Some(self.clone())));
        work()
    }

    fn begin(&self) -> Result<()> {
        match self.0.compare_exchange(RUNS, CHANGES, SeqCst, SeqCst) {
            Err(TAKEN_BACK) => Err(interrupted()),
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<()> {
        match self.0.load(SeqCst) {
            RUNS | CHANGES => Ok(()),
            _ => Err(interrupted()),
        }
    }
}

/// Puts back what the thread carried out before, also where the work panics.
struct Ended(Option<Arc<Interrupt>>);

impl Drop for Ended {
    fn drop(&mut self) {
        CURRENT.replace(self.0.take());
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "nobody waits for it any more")
}

/// For the gate: the thread's request begins to change something.
pub(super) fn begin() -> Result<()> {
    CURRENT.with_borrow(|current| current.as_ref().map_or(Ok(()), |current| current.begin()))
}

/// Waits on `changed`, at most until `until`; true if that has passed. An error if the thread's
/// request is not wanted any more.
pub(crate) fn wait<T>(
    changed: &Condvar,
    guard: &mut MutexGuard<'_, T>,
    until: Option<Instant>,
) -> Result<bool> {
    let current = CURRENT.with_borrow(Clone::clone);
    let Some(current) = current else {
        return Ok(match until {
            Some(until) => changed.wait_until(guard, until).timed_out(),
            None => {
                changed.wait(guard);
                false
            }
        });
    };
    current.check()?;
    let glance = Instant::now() + GLANCE;
    changed.wait_until(guard, until.map_or(glance, |until| until.min(glance)));
    current.check()?;
    Ok(until.is_some_and(|until| Instant::now() >= until))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_begins_or_is_taken_back() {
        let request = Arc::new(Interrupt::default());
        assert!(request.carry_out(begin).is_ok());
        assert!(!request.take_back() && request.check().is_ok());
        assert!(!request.hurry() && request.check().is_err());
        // The rest of a change that has begun is made.
        assert!(request.carry_out(begin).is_ok());
        request.reset();
        assert!(request.take_back() && request.hurry());
        let refused = request.carry_out(begin).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Interrupted);
        assert!(begin().is_ok(), "of another request");
    }
}
