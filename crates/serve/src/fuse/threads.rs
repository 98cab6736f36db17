//! The threads that all mounts of a process share.
//!
//! A mount nobody uses has no thread: one thread of the process, the watcher, waits for requests of all such mounts
//! at once and lends a thread to the mount that gets one. Lent threads serve their mount until it is quiet
//! ([`super::session`]). While threads are lent, the watcher looks every tick whether a mount needs a further one.
//!
//! Invariant: each session is armed (the next request wakes the watcher) or among those the watcher looks at every
//! tick. So every request meets a thread that waits for it, or the watcher lends one.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::request_buffer::RequestBuffer;

/// How often the need for a further thread is looked at, while threads are lent.
const TICK: Duration = Duration::from_millis(1);
/// Threads that stay while nothing is to be done.
const KEPT: usize = 1;
/// How long a lent thread waits for a request before it leaves a session that is quiet.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Sessions served, above which no thread waits so: where many mounts are looked at in turn, each has one for a moment.
const MANY: usize = 32;
/// Threads that wait to be lent; others end at once.
const MOST_WAITING: usize = 8;
/// How long a thread beyond [`KEPT`] waits to be lent.
const PATIENCE: Duration = Duration::from_secs(2);
/// Events taken at once.
const EVENTS: usize = 64;

/// Most threads to be lent.
static MOST: AtomicUsize = AtomicUsize::new(1024);

/// Lets at most so many threads serve the mounts of this process. Where more mounts are used at once, they take turns.
pub fn limit_threads(most: usize) {
    MOST.store(most.max(1), Ordering::Relaxed);
}

static SHARED: Mutex<Option<Arc<Threads>>> = Mutex::new(None);

/// Who hears of the next request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    /// The watcher.
    Armed,
    /// A thread that was lent, as long as one waits.
    Served,
    /// There will be none.
    Gone,
}

/// What threads are lent to.
pub(super) trait Served: std::fmt::Debug + Send + Sync {
    /// Where its requests come from.
    fn device(&self) -> BorrowedFd<'_>;

    /// What [`Threads::number`] gave.
    fn number(&self) -> u64;

    /// A request came while it was armed, which it is not any more: whether it gets a thread. If so, it counts it.
    fn is_woken(&self) -> bool;

    /// Whether all its threads are busy and a further one may help. If so, it counts it.
    fn needs_thread(&self) -> bool;

    /// Who hears of the next request.
    fn watched(&self) -> Watched;

    /// Serves with the calling thread, which was counted, until it is not needed here.
    fn serve(self: Arc<Self>, buffer: &mut RequestBuffer);
}

/// The watcher and the threads it lends.
#[derive(Debug)]
pub(super) struct Threads {
    epoll: OwnedFd,
    next: AtomicU64,
    sessions: Mutex<HashMap<u64, Arc<dyn Served>>>,
    lending: Mutex<Lending>,
    asked: Condvar,
    /// Sessions the watcher looks at every tick.
    served: AtomicUsize,
    /// Sessions wait for threads and none could be started, or there are as many as may be: threads leave a session after
    /// a request, and starting one is tried again at every tick.
    too_few: AtomicBool,
}

#[derive(Debug, Default)]
struct Lending {
    /// All threads to be lent.
    threads: usize,
    /// Those that wait to be.
    waiting: usize,
    /// Sessions that wait for a thread, in their order.
    sessions: VecDeque<Arc<dyn Served>>,
    /// Sessions that are gone and may be held by nobody else. To let them go may take long.
    gone: Vec<Arc<dyn Served>>,
}

impl Threads {
    /// Those of this process.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn shared() -> io::Result<Arc<Self>> {
        let mut shared = SHARED.lock();
        let threads = match &*shared {
            Some(threads) => threads.clone(),
            None => {
                let threads = Arc::new(Self {
                    epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
                    next: AtomicU64::new(0),
                    sessions: Mutex::default(),
                    lending: Mutex::default(),
                    asked: Condvar::new(),
                    served: AtomicUsize::new(0),
                    too_few: AtomicBool::new(false),
                });
                let watcher = threads.clone();
                let watch = move || watcher.watch();
                std::thread::Builder::new().name("fuse-watch".into()).spawn(watch)?;
                shared.insert(threads).clone()
            }
        };
        // One always stays.
        if threads.lending.lock().threads == 0 {
            threads.start()?;
        }
        Ok(threads)
    }

    /// A number for a session that is to be watched.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Watches `session` from now on; it counts as armed.
    pub(super) fn add(&self, session: Arc<dyn Served>) -> io::Result<()> {
        self.sessions.lock().insert(session.number(), session.clone());
        let data = EventData::new_u64(session.number());
        let added = epoll::add(&self.epoll, session.device(), data, armed());
        if added.is_err() {
            self.sessions.lock().remove(&session.number());
        }
        added.map_err(io::Error::from)
    }

    /// The next request for `session` wakes the watcher, also one that waits already.
    pub(super) fn arm(&self, session: &dyn Served) {
        let data = EventData::new_u64(session.number());
        if let Err(error) = epoll::modify(&self.epoll, session.device(), data, armed()) {
            tracing::error!(%error, "a mount is not watched any more");
        }
    }

    /// The mount of `session` is gone.
    pub(super) fn remove(&self, session: &dyn Served) {
        // What is closed with its last descriptor leaves by itself.
        let _ = epoll::delete(&self.epoll, session.device());
        self.sessions.lock().remove(&session.number());
    }

    /// Whether a session waits for a thread that could not be started: who can, leaves his own.
    pub(super) fn are_too_few(&self) -> bool {
        self.too_few.load(Ordering::Relaxed)
    }

    /// How long a thread is to wait for a request where it was lent to.
    pub(super) fn patience(&self) -> Timespec {
        let many = self.served.load(Ordering::Relaxed) > MANY || self.are_too_few();
        if many { Timespec { tv_sec: 0, tv_nsec: 0 } } else { QUIET }
    }

    fn watch(self: &Arc<Self>) {
        let mut served: Vec<Arc<dyn Served>> = Vec::new();
        let mut events = Vec::with_capacity(EVENTS);
        let mut looked = Instant::now();
        loop {
            let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
            let rests = served.is_empty() && !self.are_too_few();
            let patience = if rests { None } else { Some(&tick) };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), patience) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "waiting for requests of all mounts");
                    std::thread::sleep(PATIENCE);
                }
            }
            if rests {
                looked = Instant::now();
            }
            for event in events.drain(..) {
                let session = self.sessions.lock().get(&event.data.u64()).cloned();
                let Some(session) = session else { continue };
                if session.is_woken() {
                    self.lend(session.clone());
                }
                if !served.iter().any(|one| one.number() == session.number()) {
                    served.push(session);
                }
            }
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                if self.are_too_few() {
                    self.try_again();
                }
                served.retain(|session| {
                    if session.needs_thread() {
                        self.lend(session.clone());
                    }
                    match session.watched() {
                        Watched::Served => true,
                        Watched::Armed => false,
                        Watched::Gone => {
                            self.lending.lock().gone.push(session.clone());
                            self.asked.notify_one();
                            false
                        }
                    }
                });
            }
            self.served.store(served.len(), Ordering::Relaxed);
        }
    }

    /// A thread serves `session`, which counts it already, as soon as one can.
    fn lend(self: &Arc<Self>, session: Arc<dyn Served>) {
        let mut lending = self.lending.lock();
        lending.sessions.push_back(session);
        if lending.waiting >= lending.sessions.len() {
            self.asked.notify_one();
            return;
        }
        drop(lending);
        self.start_one();
    }

    /// Starts a thread for sessions that wait, if any still does.
    fn try_again(self: &Arc<Self>) {
        let lending = self.lending.lock();
        if lending.sessions.is_empty() {
            self.too_few.store(false, Ordering::Relaxed);
            return;
        }
        drop(lending);
        self.start_one();
    }

    fn start_one(self: &Arc<Self>) {
        let started = self.start();
        if !matches!(started, Ok(true)) && !self.too_few.swap(true, Ordering::Relaxed) {
            tracing::info!(?started, "mounts wait for threads");
        }
    }

    /// Starts a further thread; false if there are as many as may be.
    fn start(self: &Arc<Self>) -> io::Result<bool> {
        {
            let mut lending = self.lending.lock();
            if lending.threads >= MOST.load(Ordering::Relaxed) {
                return Ok(false);
            }
            lending.threads += 1;
        }
        let threads = self.clone();
        let started = std::thread::Builder::new().name("fuse".into()).spawn(move || {
            threads.serve();
            threads.lending.lock().threads -= 1;
        });
        if let Err(error) = started {
            self.lending.lock().threads -= 1;
            return Err(error);
        }
        Ok(true)
    }

    /// One thread that is lent again and again.
    fn serve(&self) {
        let mut buffer = RequestBuffer::default();
        while let Some(session) = self.next_session() {
            session.serve(&mut buffer);
        }
    }

    /// The session that gets the calling thread; none if there are enough threads.
    fn next_session(&self) -> Option<Arc<dyn Served>> {
        let mut lending = self.lending.lock();
        loop {
            let gone = std::mem::take(&mut lending.gone);
            if !gone.is_empty() {
                MutexGuard::unlocked(&mut lending, || drop(gone));
                continue;
            }
            if let Some(session) = lending.sessions.pop_front() {
                if lending.sessions.is_empty() {
                    self.too_few.store(false, Ordering::Relaxed);
                }
                return Some(session);
            }
            if lending.waiting >= MOST_WAITING {
                return None;
            }
            lending.waiting += 1;
            let waited_long = if lending.waiting <= KEPT {
                self.asked.wait(&mut lending);
                false
            } else {
                self.asked.wait_for(&mut lending, PATIENCE).timed_out()
            };
            lending.waiting -= 1;
            if waited_long && lending.sessions.is_empty() && lending.waiting >= KEPT {
                return None;
            }
        }
    }
}

fn armed() -> EventFlags {
    EventFlags::IN | EventFlags::ONESHOT
}
