//! Many jobs at once, none of which can hold up the others.
//!
//! Invariant: the call returns within the deadline of the last job to start, whatever a job does. A
//! job that misses its deadline is abandoned with its thread, and another thread takes its place.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

enum Event<T> {
    Started(usize),
    Done(usize, T),
}

/// Runs `jobs` on at most `width` live threads and gives their results in order; `None` for a job
/// that took longer than `deadline` (counted from its own start) or panicked.
pub fn run<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
    jobs: Vec<J>,
    width: usize,
    deadline: Duration,
) -> Vec<Option<T>> {
    let mut results: Vec<Option<T>> = Vec::with_capacity(jobs.len());
    results.resize_with(jobs.len(), || None);
    let (queue, work) = unbounded();
    let (events, reports) = unbounded();
    let mut open = jobs.len();
    for job in jobs.into_iter().enumerate() {
        // Both ends are alive, so this cannot fail.
        let _ = queue.send(job);
    }
    drop(queue);
    let started = (0..width.clamp(1, open.max(1)))
        .take_while(|_| spawn(work.clone(), events.clone()))
        .count();
    if started == 0 {
        // Without threads one after another, each as long as it takes.
        for (index, job) in work.try_iter() {
            if let Some(place) = results.get_mut(index) {
                *place = Some(job());
            }
        }
        return results;
    }
    let mut running: BTreeMap<usize, Instant> = BTreeMap::new();
    while open > 0 {
        let due = running.values().min().copied();
        let wait = due.map_or(deadline, |due| due.saturating_duration_since(Instant::now()));
        match reports.recv_timeout(wait) {
            Ok(Event::Started(index)) => {
                running.insert(index, Instant::now() + deadline);
            }
            Ok(Event::Done(index, result)) => {
                // A job already given up may still report; its place stays `None`.
                if running.remove(&index).is_some() {
                    if let Some(place) = results.get_mut(index) {
                        *place = Some(result);
                    }
                    open -= 1;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let now = Instant::now();
                let late: Vec<usize> =
                    running.iter().filter(|(_, due)| **due <= now).map(|(i, _)| *i).collect();
                if late.is_empty() && running.is_empty() {
                    // The last one was held up, and no other could be started.
                    break;
                }
                for index in late {
                    running.remove(&index);
                    open -= 1;
                    spawn(work.clone(), events.clone());
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    results
}

/// Starts a thread, which leaves its share to the others if it cannot be started; whether it was.
fn spawn<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
    work: Receiver<(usize, J)>,
    events: Sender<Event<T>>,
) -> bool {
    let begun = std::thread::Builder::new().name("pool-scan".into()).spawn(move || {
        while let Ok((index, job)) = work.recv() {
            if events.send(Event::Started(index)).is_err() {
                return;
            }
            let result = job();
            if events.send(Event::Done(index, result)).is_err() {
                return;
            }
        }
    });
    begun.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order() {
        let jobs = (0..50).map(|i| move || i * 2).collect();
        let results = run(jobs, 8, Duration::from_secs(10));
        assert_eq!(results, (0..50).map(|i| Some(i * 2)).collect::<Vec<_>>());
        assert!(run(Vec::<fn() -> u8>::new(), 4, Duration::from_secs(1)).is_empty());
    }

    #[test]
    fn a_job_that_hangs_holds_up_nobody() {
        let (_keep, never) = unbounded::<()>();
        let jobs = (0..20)
            .map(|i| {
                let never = never.clone();
                move || {
                    if i < 4 {
                        let _ = never.recv();
                    }
                    i
                }
            })
            .collect();
        let results = run(jobs, 2, Duration::from_millis(50));
        assert!(results[..4].iter().all(Option::is_none));
        assert_eq!(results[4..], (4..20).map(Some).collect::<Vec<_>>());
    }
}
