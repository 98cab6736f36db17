//! Many small readings of the metadata at once, each on a thread that waits for its disk.
//!
//! Invariant: however deep such readings lie in each other, there are at most [`READERS`] threads for all of
//! them beside the one that asked; that one takes part, so nobody waits for a thread.

use std::iter::Enumerate;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, scope};
use std::vec::IntoIter;

use parking_lot::Mutex;

use crate::{Error, Result};

/// As many requests as a disk puts in order by itself.
const READERS: usize = 32;

/// Threads that may be started.
#[derive(Clone)]
pub(crate) struct SideBySide(Arc<AtomicUsize>);

impl Default for SideBySide {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(READERS)))
    }
}

/// What is to be read, and what was.
struct Work<T, R> {
    rest: Enumerate<IntoIter<T>>,
    done: Vec<(usize, R)>,
    failed: Option<(usize, Error)>,
}

/// Leave to run a thread, until it is dropped.
struct Leave<'a>(&'a AtomicUsize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl SideBySide {
    /// What `read` makes of each, in the same order.
    ///
    /// # Errors
    /// That of the first it failed for; those not begun by then are left out.
    pub fn each<T: Send, R: Send>(
        &self,
        all: Vec<T>,
        read: impl Fn(T) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let rest = all.into_iter().enumerate();
        let work = Mutex::new(Work { rest, done: Vec::new(), failed: None });
        let (work_of, read_of) = (&work, &read);
        scope(|threads| {
            loop {
                // The last one is read here.
                while work.lock().rest.len() > 1
                    && let Some(leave) = self.leave()
                {
                    let help = move || {
                        let _leave = leave;
                        while read_one(work_of, read_of) {}
                    };
                    // Where no thread can be had, it goes on here.
                    if Builder::new().name("survey".into()).spawn_scoped(threads, help).is_err() {
                        break;
                    }
                }
                if !read_one(&work, &read) {
                    break;
                }
            }
        });
        let Work { mut done, failed, .. } = work.into_inner();
        if let Some((_, error)) = failed {
            return Err(error);
        }
        done.sort_unstable_by_key(|(index, _)| *index);
        Ok(done.into_iter().map(|(_, one)| one).collect())
    }

    fn leave(&self) -> Option<Leave<'_>> {
        let take = |free: usize| free.checked_sub(1);
        self.0.fetch_update(Relaxed, Relaxed, take).ok().map(|_| Leave(&self.0))
    }
}

/// Reads the next one; whether there was one.
fn read_one<T, R>(work: &Mutex<Work<T, R>>, read: &impl Fn(T) -> Result<R>) -> bool {
    let Some((index, item)) = work.lock().rest.next() else { return false };
    let one = read(item);
    let mut work = work.lock();
    match one {
        Ok(one) => work.done.push((index, one)),
        Err(error) => {
            if work.failed.as_ref().is_none_or(|(first, _)| index < *first) {
                work.failed = Some((index, error));
            }
            work.rest = Vec::new().into_iter().enumerate();
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::time::Duration;

    use super::*;

    /// Waits until so many are here; false if they do not come.
    fn meet(here: &(std::sync::Mutex<usize>, Condvar), wanted: usize) -> bool {
        let mut count = here.0.lock().unwrap();
        *count += 1;
        here.1.notify_all();
        let patience = Duration::from_secs(20);
        let waited = here.1.wait_timeout_while(count, patience, |count| *count < wanted).unwrap();
        !waited.1.timed_out()
    }

    #[test]
    fn readings_wait_together_and_come_in_order() {
        let (readers, here) = (SideBySide::default(), Default::default());
        let read = |number: usize| {
            assert!(number >= READERS || meet(&here, READERS));
            Ok(number * 2)
        };
        let all = readers.each((0..500).collect(), read).unwrap();
        assert_eq!(all, (0..500).map(|number| number * 2).collect::<Vec<_>>());
        assert_eq!(readers.0.load(Relaxed), READERS);
    }

    #[test]
    fn threads_are_bounded_where_readings_lie_in_each_other() {
        let (readers, now, most) =
            (SideBySide::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let inner = |number: usize| {
            most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
            std::thread::sleep(Duration::from_micros(300));
            now.fetch_sub(1, Relaxed);
            Ok(number)
        };
        let outer = |_: usize| readers.each((0..20).collect(), inner).map(|all| all.len());
        assert_eq!(readers.each((0..40).collect(), outer).unwrap(), vec![20; 40]);
        assert!(most.load(Relaxed) <= READERS + 1, "{most:?}");
    }

    #[test]
    fn the_first_failure_is_told_and_ends_it() {
        let (readers, begun) = (SideBySide::default(), AtomicUsize::new(0));
        let read = |number: usize| {
            begun.fetch_add(1, Relaxed);
            match number {
                5.. => Err(Error::invalid(number.to_string())),
                _ => Ok(()),
            }
        };
        let error = readers.each((0..100_000).collect(), read).unwrap_err();
        assert_eq!(error.reason(), "5");
        assert!(begun.load(Relaxed) < 1000, "{begun:?}");
    }
}
