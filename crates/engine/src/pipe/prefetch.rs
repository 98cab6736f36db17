//! Reading ahead: a few threads that load blocks into the cache before they are asked for.
//!
//! Invariant: the queue is bounded; when it is full the newest request is dropped, for it is only
//! a hint. The threads end with the [`Prefetcher`].

use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};

type Job = Box<dyn FnOnce() + Send>;

/// Threads that load blocks in the background.
pub struct Prefetcher {
    queue: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

/// Jobs that may wait; each loads about a mebibyte.
const QUEUE: usize = 64;

impl Prefetcher {
    /// Starts `threads` threads. A thread that cannot be started is done without.
    pub fn new(threads: usize) -> Self {
        let (queue, jobs) = bounded::<Job>(QUEUE);
        let threads = (0..threads)
            .filter_map(|_| {
                let jobs = jobs.clone();
                let run = move || jobs.into_iter().for_each(|job| job());
                std::thread::Builder::new().name("prefetch".into()).spawn(run).ok()
            })
            .collect();
        Self { queue: Some(queue), threads }
    }

    /// Asks for `job` to be run soon. Returns false if the queue is full.
    pub fn ask(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.try_send(Box::new(job)).is_ok())
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            // The last owner may be one of the threads' own jobs: it must not wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                // A panicked prefetch thread has nothing left to lose.
                let _ = thread.join();
            }
        }
    }
}
