//! Requests that wait for their turn, so that some threads stay free for others.
//!
//! Invariant: what was put aside is taken up: changes are put aside only while others run, and the
//! thread that finishes one asks for the next; for other requests see [`Queue`].

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::{Condvar, Mutex};

use super::abi::{InHeader, opcode};
use super::request::Request;

/// Bytes of requests put aside, above which threads do take changes up.
const MAX_BYTES: usize = 64 << 20;
/// No more than this for each change that may run at once: where memory is short, few may.
const BYTES_EACH: usize = 2 << 20;
/// Bytes of requests that no thread was free for.
const MAX_QUEUED: usize = 16 << 20;

/// A request that was put aside until its turn comes.
#[derive(Debug)]
pub(super) struct DeferredRequest {
    /// The descriptor it came by.
    pub device: Arc<OwnedFd>,
    /// The whole request.
    pub request: Vec<u8>,
}

impl DeferredRequest {
    fn header(&self) -> Option<InHeader> {
        Request::header(&self.request)
    }
}

fn position(waiting: &VecDeque<DeferredRequest>, unique: u64) -> Option<usize> {
    waiting.iter().position(|one| one.header().is_some_and(|header| header.unique == unique))
}

/// Requests that were put aside, in their order.
#[derive(Debug, Default)]
struct DeferredRequests {
    /// Changes that run now, of a [`Backlog`].
    running: usize,
    waiting: VecDeque<DeferredRequest>,
    /// Bytes in `waiting`.
    bytes: usize,
}

impl DeferredRequests {
    fn put(&mut self, device: &Arc<OwnedFd>, request: &[u8]) {
        self.bytes += request.len();
        // One copy: the thread needs its buffer.
        self.waiting
            .push_back(DeferredRequest { device: device.clone(), request: request.to_vec() });
    }

    fn header_of(&self, unique: u64) -> Option<InHeader> {
        self.waiting.get(position(&self.waiting, unique)?)?.header()
    }

    fn take(&mut self, unique: u64) -> Option<DeferredRequest> {
        let taken = self.waiting.remove(position(&self.waiting, unique)?)?;
        self.bytes -= taken.request.len();
        Some(taken)
    }

    fn pop(&mut self) -> Option<DeferredRequest> {
        let next = self.waiting.pop_front()?;
        self.bytes -= next.request.len();
        Some(next)
    }
}

/// Changes running and waiting.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Changes that may run at once.
    limit: usize,
    deferred: Mutex<DeferredRequests>,
}

impl Backlog {
    /// Lets `limit` changes run at once.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, deferred: Mutex::default() }
    }

    /// Whether the caller shall run this change now (and call [`Backlog::next`] after it);
    /// otherwise it has been put aside.
    pub(super) fn begin(&self, device: &Arc<OwnedFd>, request: &[u8]) -> bool {
        let mut deferred = self.deferred.lock();
        let most = self.limit.saturating_mul(BYTES_EACH).min(MAX_BYTES);
        if deferred.running >= self.limit && deferred.bytes.saturating_add(request.len()) <= most {
            deferred.put(device, request);
            return false;
        }
        deferred.running += 1;
        true
    }

    /// A change is finished. The one to run next, if any waits.
    pub(super) fn next(&self) -> Option<DeferredRequest> {
        let mut deferred = self.deferred.lock();
        let next = deferred.pop();
        if next.is_none() {
            deferred.running -= 1;
        }
        next
    }

    /// The header of a change that waits.
    pub(super) fn header_of(&self, unique: u64) -> Option<InHeader> {
        self.deferred.lock().header_of(unique)
    }

    /// Takes out a change that waits: nobody wants it any more.
    pub(super) fn take(&self, unique: u64) -> Option<DeferredRequest> {
        self.deferred.lock().take(unique)
    }
}

/// Keeps one thread of a session free to read requests, whatever the others wait for: that the
/// kernel takes a request back is read like any other.
#[derive(Debug)]
pub(super) struct Queue {
    /// Threads that may carry out requests at once.
    limit: usize,
    running: AtomicUsize,
    /// Requests in `deferred`, as far as others need to know.
    queued: AtomicUsize,
    deferred: Mutex<DeferredRequests>,
    space_freed: Condvar,
}

impl Queue {
    /// For a session of so many threads.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            limit: threads.saturating_sub(1).max(1),
            running: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            deferred: Mutex::default(),
            space_freed: Condvar::new(),
        }
    }

    /// Whether the caller shall carry out this request (and call [`Queue::next`] after it);
    /// otherwise it was put aside, and the caller asks [`Queue::take_up`] whether it has become
    /// free to.
    pub(super) fn begin(&self, device: &Arc<OwnedFd>, request: &[u8]) -> bool {
        if self.enter() {
            return true;
        }
        let mut deferred = self.deferred.lock();
        // Then nobody reads; what holds the threads up does not last, or there are very many.
        while deferred.bytes >= MAX_QUEUED {
            self.space_freed.wait(&mut deferred);
        }
        deferred.put(device, request);
        self.queued.fetch_add(1, SeqCst);
        false
    }

    fn enter(&self) -> bool {
        self.running
            .fetch_update(SeqCst, SeqCst, |now| (now < self.limit).then_some(now + 1))
            .is_ok()
    }

    /// What was put aside and can be carried out now; the caller calls [`Queue::next`] after it.
    pub(super) fn take_up(&self) -> Option<DeferredRequest> {
        while self.queued.load(SeqCst) > 0 && self.enter() {
            if let Some(next) = self.pop() {
                return Some(next);
            }
            self.running.fetch_sub(1, SeqCst);
        }
        None
    }

    fn pop(&self) -> Option<DeferredRequest> {
        let next = self.deferred.lock().pop()?;
        self.queued.fetch_sub(1, SeqCst);
        self.space_freed.notify_all();
        Some(next)
    }

    /// A request is finished. Another to carry out, if any waits.
    pub(super) fn next(&self) -> Option<DeferredRequest> {
        self.running.fetch_sub(1, SeqCst);
        self.take_up()
    }

    /// The header of a request that waits.
    pub(super) fn header_of(&self, unique: u64) -> Option<InHeader> {
        self.deferred.lock().header_of(unique)
    }

    /// Takes out a request that waits: nobody wants it any more.
    pub(super) fn take(&self, unique: u64) -> Option<DeferredRequest> {
        let taken = self.deferred.lock().take(unique)?;
        self.queued.fetch_sub(1, SeqCst);
        self.space_freed.notify_all();
        Some(taken)
    }
}

/// Where the requests of a session wait for their turn.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Changes of data, and what makes them survive a crash.
    data: Backlog,
    /// Changes of names and attributes.
    names: Backlog,
    /// Every request that no thread is free for.
    pub queue: Queue,
}

impl Waiting {
    /// For a session of at most so many threads: half of them change data, a quarter names.
    pub(super) fn new(max_threads: usize) -> Self {
        Self {
            data: Backlog::new((max_threads / 2).max(1)),
            names: Backlog::new((max_threads / 4).max(1)),
            queue: Queue::new(max_threads),
        }
    }

    /// Where a request has to wait its turn, if it is one that may take long.
    pub(super) fn backlog(&self, request: &[u8]) -> Option<&Backlog> {
        match Request::header(request)?.opcode {
            opcode::WRITE
            | opcode::FALLOCATE
            | opcode::COPY_FILE_RANGE
            | opcode::COPY_FILE_RANGE_64
            | opcode::FSYNC
            | opcode::FSYNCDIR
            | opcode::SYNCFS => Some(&self.data),
            opcode::SETATTR
            | opcode::MKNOD
            | opcode::CREATE
            | opcode::TMPFILE
            | opcode::MKDIR
            | opcode::SYMLINK
            | opcode::LINK
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
            | opcode::FORGET
            | opcode::BATCH_FORGET => Some(&self.names),
            _ => None,
        }
    }

    /// The header of a request that nobody has begun yet.
    pub(super) fn header_of(&self, unique: u64) -> Option<InHeader> {
        let waiting = self.data.header_of(unique).or_else(|| self.names.header_of(unique));
        waiting.or_else(|| self.queue.header_of(unique))
    }

    /// Takes out a request that nobody has begun yet. Where its answer goes.
    pub(super) fn take(&self, unique: u64) -> Option<Arc<OwnedFd>> {
        let taken = self.data.take(unique).or_else(|| self.names.take(unique));
        taken.or_else(|| self.queue.take(unique)).map(|taken| taken.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn device() -> Arc<OwnedFd> {
        Arc::new(
            super::super::mount::open_device()
                .unwrap_or_else(|_| OwnedFd::from(std::fs::File::open("/dev/null").unwrap())),
        )
    }

    fn request(unique: u64) -> Vec<u8> {
        InHeader { len: 40, unique, ..InHeader::default() }.as_bytes().to_vec()
    }

    #[test]
    fn changes_beyond_the_limit_wait_in_order() {
        let device = device();
        let backlog = Backlog::new(2);
        assert!(backlog.begin(&device, b"1") && backlog.begin(&device, b"2"));
        assert!(!backlog.begin(&device, b"3") && !backlog.begin(&device, b"4"));
        assert_eq!(backlog.next().unwrap().request, b"3");
        assert_eq!(backlog.next().unwrap().request, b"4");
        assert!(backlog.next().is_none());
        assert!(backlog.begin(&device, b"5"));
        // What would fill the memory is not put aside.
        assert!(backlog.begin(&device, &vec![0; MAX_BYTES + 1]));
        let small = Backlog::new(1);
        assert!(small.begin(&device, b"1") && !small.begin(&device, &vec![0; BYTES_EACH - 100]));
        assert!(small.begin(&device, &[0; 200]));
    }

    #[test]
    fn what_waits_can_be_taken_out() {
        let device = device();
        let backlog = Backlog::new(1);
        assert!(backlog.begin(&device, &request(1)));
        assert!(!backlog.begin(&device, &request(2)) && !backlog.begin(&device, &request(3)));
        assert_eq!(backlog.header_of(2).unwrap().unique, 2);
        assert!(backlog.header_of(1).is_none());
        assert_eq!(backlog.take(2).unwrap().request, request(2));
        assert!(backlog.take(2).is_none());
        assert_eq!(backlog.next().unwrap().request, request(3));
        assert!(backlog.next().is_none());
    }

    #[test]
    fn one_thread_stays_free() {
        let device = device();
        let queue = Queue::new(3);
        assert!(queue.begin(&device, &request(1)) && queue.begin(&device, &request(2)));
        assert!(!queue.begin(&device, &request(3)) && queue.take_up().is_none());
        assert!(!queue.begin(&device, &request(4)));
        assert!(queue.take(3).is_some());
        assert_eq!(queue.next().unwrap().request, request(4));
        assert!(queue.next().is_none() && queue.next().is_none());
        assert!(queue.begin(&device, &request(5)) && queue.begin(&device, &request(6)));
        assert!(!queue.begin(&device, &request(7)));
    }
}
