//! Threads where there may be none to be had.
//!
//! Invariant: work that no thread can be had for is not lost: who wanted it done has it again.

use std::sync::{Arc, Mutex, PoisonError};

/// Has `work` done by a thread of its own, or gives it back if none can be had.
pub(crate) fn spawn<W: FnOnce() + Send + 'static>(work: W) -> Result<(), W> {
    let work = Arc::new(Mutex::new(Some(work)));
    let own = work.clone();
    let take = |work: &Mutex<Option<W>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let run = move || take(&own).into_iter().for_each(|work| work());
    match std::thread::Builder::new().spawn(run) {
        Ok(_) => Ok(()),
        Err(_) => take(&work).map_or(Ok(()), Err),
    }
}
