//! Threads that compress, encrypt and hash.
//!
//! Invariant: every job given to a desk is answered, in whatever order they end; a job
//! that panics is answered with an error and costs no thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::{Error, ErrorKind, Result};

type Job = Box<dyn FnOnce() + Send>;

/// A small pool of threads for work on the processor. Jobs must not wait for anything.
pub struct Workers {
    queue: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// As many threads as there are cores.
    pub fn new() -> Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads(cores)
    }

    /// `count` threads, at least one.
    pub fn with_threads(count: usize) -> Result<Arc<Self>> {
        let (queue, jobs) = unbounded::<Job>();
        let mut threads = Vec::new();
        for number in 0..count.max(1) {
            let jobs = jobs.clone();
            let run = move || jobs.iter().for_each(run_one);
            let thread = std::thread::Builder::new().name(format!("cenote-cpu-{number}"));
            threads.push(thread.spawn(run).map_err(Error::no_thread)?);
        }
        Ok(Arc::new(Self { queue: Some(queue), threads }))
    }

    /// No threads: whoever gives a job does it.
    pub fn inline() -> Arc<Self> {
        Arc::new(Self { queue: None, threads: Vec::new() })
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// A place to give jobs to, whose results come back with the tokens they were given with.
    pub(super) fn desk<T: Send + 'static>(&self) -> Desk<'_, T> {
        let (sender, results) = unbounded();
        Desk { workers: self, sender, results }
    }
}

fn run_one(job: Job) {
    // The job's reply tells of the panic when it is dropped.
    let _ = catch_unwind(AssertUnwindSafe(job));
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Where one caller's jobs and results pass.
pub(super) struct Desk<'a, T> {
    workers: &'a Workers,
    sender: Sender<(usize, Result<T>)>,
    results: Receiver<(usize, Result<T>)>,
}

impl<T: Send + 'static> Desk<'_, T> {
    /// Gives a job; its result comes with `token`.
    pub(super) fn give(&self, token: usize, job: impl FnOnce() -> Result<T> + Send + 'static) {
        let reply = Reply { sender: self.sender.clone(), token, result: None };
        let job = Box::new(move || {
            let mut reply = reply;
            reply.result = Some(job());
        });
        match &self.workers.queue {
            Some(queue) => {
                // A job that is refused is dropped, and with it its reply, which then says so.
                let _ = queue.send(job);
            }
            None => run_one(job),
        }
    }

    /// Waits for the next result of a job that was given.
    pub(super) fn next(&self) -> Option<(usize, Result<T>)> {
        self.results.recv().ok()
    }
}

/// Answers when dropped, whatever became of the job.
struct Reply<T> {
    sender: Sender<(usize, Result<T>)>,
    token: usize,
    result: Option<Result<T>>,
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let lost = || Err(Error::new(ErrorKind::Io, "a thread failed while preparing a block"));
        let result = self.result.take().unwrap_or_else(lost);
        // Nobody waits any more if this fails.
        let _ = self.sender.send((self.token, result));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_answered_even_when_it_panics() {
        let workers = Workers::with_threads(2).unwrap();
        let desk = workers.desk();
        for token in 0..20_usize {
            desk.give(token, move || {
                assert!(token != 7, "on purpose");
                Ok(token * 2)
            });
        }
        let mut answers: Vec<_> = (0..20).map(|_| desk.next().unwrap()).collect();
        answers.sort_by_key(|(token, _)| *token);
        for (token, result) in answers {
            match result {
                Ok(double) => assert_eq!(double, token * 2),
                Err(_) => assert_eq!(token, 7),
            }
        }
        let again = workers.desk();
        again.give(1, || Ok("still here"));
        assert_eq!(again.next().unwrap().1.unwrap(), "still here");
    }
}
