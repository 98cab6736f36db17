//! Threads where there may be none to be had.
//!
//! Invariant: work that no thread can be had for is not lost: who wanted it done has it again.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads of a crew that wait for more work; others end.
const WAITING_MAX: usize = 2;
/// How long they do.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has `work` done by a thread of its own, or gives it back if none can be had.
pub(crate) fn spawn<W: FnOnce() + Send + 'static>(work: W) -> Result<(), W> {
    spawn_with(work, |work| work())
}

/// Has `work` done as `run` says, as [`spawn`] does.
fn spawn_with<W: Send + 'static>(work: W, run: impl FnOnce(W) + Send + 'static) -> Result<(), W> {
    let work = Arc::new(Mutex::new(Some(work)));
    let own = work.clone();
    let take = |work: &Mutex<Option<W>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let started = std::thread::Builder::new().spawn(move || {
        if let Some(work) = take(&own) {
            run(work);
        }
    });
    match started {
        Ok(_) => Ok(()),
        Err(_) => take(&work).map_or(Ok(()), Err),
    }
}

/// Threads that do work of one kind, and some of which wait for more of it: starting one takes longer than a short
/// piece of work.
pub(crate) struct Crew<W> {
    run: fn(W),
    state: Mutex<State<W>>,
    changed: Condvar,
}

struct State<W> {
    /// What threads that wait are to do.
    work: VecDeque<W>,
    /// Threads that wait, those included that have been told of work and are not awake yet.
    waiting: usize,
}

impl<W: Send + 'static> Crew<W> {
    /// One that does its work by `run`.
    pub(crate) fn new(run: fn(W)) -> Arc<Self> {
        let state = Mutex::new(State { work: VecDeque::new(), waiting: 0 });
        Arc::new(Self { run, state, changed: Condvar::new() })
    }

    /// Has `work` done by a thread that does nothing else meanwhile, or gives it back if none can be had.
    pub(crate) fn start(self: &Arc<Self>, work: W) -> Result<(), W> {
        let mut state = self.state();
        if state.waiting > state.work.len() {
            state.work.push_back(work);
            drop(state);
            self.changed.notify_one();
            return Ok(());
        }
        drop(state);
        let crew = self.clone();
        spawn_with(work, move |work| {
            (crew.run)(work);
            while let Some(work) = crew.next() {
                (crew.run)(work);
            }
        })
    }

    /// What the calling thread is to do next; none if it is to end.
    fn next(&self) -> Option<W> {
        let mut state = self.state();
        if state.waiting >= WAITING_MAX {
            return None;
        }
        state.waiting += 1;
        let waited =
            self.changed.wait_timeout_while(state, PATIENCE, |state| state.work.is_empty());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state.work.pop_front()
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread::ThreadId;

    type Piece = (mpsc::Sender<ThreadId>, mpsc::Receiver<()>);

    fn piece() -> (Piece, mpsc::Receiver<ThreadId>, mpsc::Sender<()>) {
        let ((told, tells), (go, goes)) = (mpsc::channel(), mpsc::channel());
        ((told, goes), tells, go)
    }

    /// However many threads wait, each piece has one for itself; one that comes later gets one that waits.
    #[test]
    fn each_piece_of_work_has_a_thread_for_itself() {
        let crew = Crew::new(|(told, goes): Piece| {
            told.send(std::thread::current().id()).unwrap();
            goes.recv().unwrap();
        });
        let mut known = Vec::new();
        for round in 0..3 {
            let pieces: Vec<_> = (0..8)
                .map(|_| {
                    let (work, tells, go) = piece();
                    assert!(crew.start(work).is_ok());
                    (tells, go)
                })
                .collect();
            let threads: Vec<_> = pieces.iter().map(|(tells, _)| tells.recv().unwrap()).collect();
            let own: std::collections::HashSet<_> = threads.iter().collect();
            assert_eq!(own.len(), 8);
            let again = threads.iter().filter(|one| known.contains(*one)).count();
            // Those of the round before that end late may wait, too.
            assert!(if round == 0 { again == 0 } else { again >= WAITING_MAX }, "{again}");
            known.extend(threads);
            pieces.iter().for_each(|(_, go)| go.send(()).unwrap());
            let begun = std::time::Instant::now();
            while crew.state().waiting < WAITING_MAX {
                assert!(begun.elapsed() < Duration::from_secs(60), "they do not come to wait");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
