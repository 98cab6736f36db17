//! The transport over `/dev/fuse`: reading requests and writing replies.
//!
//! Invariant: every request that was read is answered, whatever the handler or the kernel makes of
//! it (a panic or a refused reply becomes EIO), so no caller waits for ever.
//!
//! The threads are lent by the process ([`super::threads`]): a session that is quiet has none. Each
//! thread has a descriptor of its own, cloned from the mount's, and a reply leaves through the
//! descriptor its request came by. After a request a thread looks for the next one for a few
//! microseconds before it sleeps, which saves the wake-up while requests keep coming; only one
//! thread does so at a time. When all threads are busy for more than a tick (waiting for disks), a
//! further one is lent; it leaves when enough others are idle.
//!
//! Changes may wait long (for memory, for a transaction group), and threads cannot choose what they
//! read. So only so many changes of data and of names run at once; a thread that reads one more puts
//! it aside (`backlog`), and the thread that finishes such a change takes it up. That leaves threads
//! for reading. One thread always stays free to read requests, so that the session hears when the
//! kernel takes a request back (`interrupts`).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use zerocopy::IntoBytes;

use super::abi;
use super::backlog::{DeferredRequest, Waiting};
use super::handler::{Handler, Outcome, without_tree};
use super::interrupts::{Interrupts, Worker};
use super::mount::open_device;
use super::refused::Refused;
use super::reply::{Body, Reply};
use super::request::Request;
use super::request_buffer::RequestBuffer;
use super::send::send;
use super::threads::{Served, Threads, Watched};

/// Descriptors that no thread takes for itself.
const SPARE_DESCRIPTORS: u64 = 16;
/// How long to wait after a request could not be read.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// How a session works.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionOptions {
    pub threads: usize,
    pub max_threads: usize,
    pub spin: Duration,
}

/// Where a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Starting,
    Ready,
    Ended,
}

/// The threads that serve a session.
#[derive(Debug)]
struct Crew {
    threads: usize,
    /// Those of them that were lent and are not here yet.
    coming: usize,
    /// The next request wakes the watcher.
    armed: bool,
    /// The mount is gone.
    gone: bool,
}

/// A running session.
#[derive(Debug)]
pub(super) struct Session {
    device: Arc<OwnedFd>,
    handler: Arc<Handler>,
    options: SessionOptions,
    waiting: Arc<Waiting>,
    interrupts: Arc<Interrupts>,
    refused: Arc<Refused>,
    stage: Mutex<Stage>,
    changed: Condvar,
    /// Who lends threads, and this session's number there.
    lender: Arc<Threads>,
    number: u64,
    crew: Mutex<Crew>,
    /// Threads waiting for a request.
    idle: AtomicUsize,
    spinning: AtomicBool,
    /// Requests handled, to notice activity.
    handled: AtomicUsize,
}

impl Session {
    /// Starts serving `device`.
    pub(super) fn start(
        device: OwnedFd,
        handler: Handler,
        options: SessionOptions,
    ) -> io::Result<Arc<Self>> {
        // Threads wait with a deadline, and read what is there.
        rustix::io::ioctl_fionbio(&device, true)?;
        let handler = Arc::new(handler);
        let waiting = Arc::new(Waiting::new(options.max_threads));
        let lender = Threads::shared()?;
        let session = Arc::new(Self {
            device: Arc::new(device),
            handler: handler.clone(),
            options,
            waiting: waiting.clone(),
            interrupts: Arc::new(Interrupts::new(handler, waiting)),
            refused: Arc::default(),
            stage: Mutex::new(Stage::Starting),
            changed: Condvar::new(),
            number: lender.number(),
            lender,
            crew: Mutex::new(Crew { threads: 0, coming: 0, armed: true, gone: false }),
            idle: AtomicUsize::new(0),
            spinning: AtomicBool::new(false),
            handled: AtomicUsize::new(0),
        });
        session.lender.add(session.clone())?;
        Ok(session)
    }

    /// Waits until the kernel has begun; false if it has not after `patience`.
    pub(super) fn wait_ready(&self, patience: Duration) -> bool {
        let mut stage = self.stage.lock();
        self.changed.wait_while_for(&mut stage, |stage| *stage == Stage::Starting, patience);
        *stage == Stage::Ready
    }

    /// Waits until the mount is gone and the last thread has left; false if that takes longer.
    pub(super) fn wait_end(&self, patience: Option<Duration>) -> bool {
        let mut stage = self.stage.lock();
        let going = |stage: &mut Stage| *stage != Stage::Ended;
        match patience {
            Some(patience) => {
                self.changed.wait_while_for(&mut stage, going, patience);
            }
            None => self.changed.wait_while(&mut stage, going),
        }
        *stage == Stage::Ended
    }

    /// The kernel has let go of it everywhere, though not everything may be forgotten yet.
    pub(super) fn is_let_go(&self) -> bool {
        self.crew.lock().gone || !self.is_alive()
    }

    /// Whether requests are still being served.
    pub(super) fn is_alive(&self) -> bool {
        *self.stage.lock() != Stage::Ended
    }

    fn set_stage(&self, to: Stage) {
        let mut stage = self.stage.lock();
        if *stage != Stage::Ended {
            *stage = to;
        }
        drop(stage);
        self.changed.notify_all();
    }

    /// The handler.
    pub(super) fn handler(&self) -> &Handler {
        &self.handler
    }

    /// Tells the kernel something it did not ask for. True unless it knows nothing of what is
    /// meant.
    pub(super) fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<bool> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>() + size_of::<abi::OutHeader>();
        let len = u32::try_from(len).map_err(|_| Errno::INVAL)?;
        let header = abi::OutHeader { len, error: code, unique: 0 };
        let mut vectors = vec![IoSlice::new(header.as_bytes())];
        vectors.extend(parts.iter().map(|part| IoSlice::new(part)));
        match rustix::io::retry_on_intr(|| rustix::io::writev(&*self.device, &vectors)) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Has the kernel forget attributes, data and listing of `node`, one of its numbers. Waits for users of the data.
    pub(super) fn forget_node(&self, node: u64) -> io::Result<bool> {
        let out = abi::InvalInodeOut { node, offset: 0, len: 0 };
        self.notify(abi::notify::INVAL_INODE, &[out.as_bytes()])
    }

    /// Has the kernel forget what `name` in `parent`, one of its numbers, means. Waits for those who are changing the
    /// directory.
    pub(super) fn forget_name(&self, parent: u64, name: &[u8]) -> io::Result<bool> {
        let name_len = u32::try_from(name.len()).unwrap_or(u32::MAX);
        let out = abi::InvalEntryOut { parent, name_len, flags: 0 };
        self.notify(abi::notify::INVAL_ENTRY, &[out.as_bytes(), name, &[0]])
    }

    /// Has the kernel forget what it keeps of the data of `node`, soon: not before what is being
    /// answered is.
    fn forget_data(self: &Arc<Self>, node: u64) {
        let session = self.clone();
        self.refused.add(node, move |node| {
            if let Err(error) = session.forget_node(node) {
                tracing::warn!(node, %error, "refused data stays in the kernel's memory");
            }
        });
    }

    /// Nothing will be asked any more.
    fn end(&self) {
        self.lender.remove(self);
        let forget = AssertUnwindSafe(|| self.handler.end());
        if std::panic::catch_unwind(forget).is_err() {
            tracing::error!("forgetting what was held panicked");
        }
        self.set_stage(Stage::Ended);
    }

    /// What a thread does while it is here. False when the mount is gone.
    fn work(self: &Arc<Self>, worker: &Worker, buffer: &mut RequestBuffer) -> bool {
        let device = self.clone_device().map_or_else(|| self.device.clone(), Arc::new);
        self.idle.fetch_add(1, Ordering::AcqRel);
        self.crew.lock().coming -= 1;
        loop {
            let got = self.await_request(device.as_fd(), buffer);
            self.idle.fetch_sub(1, Ordering::AcqRel);
            match got {
                Read::Request(len) => handle(self, worker, &device, buffer.filled(len)),
                Read::Nothing => return true,
                Read::End => return false,
            }
            // Threads that are idle stay while requests come, so at least that many do.
            let idle = self.idle.load(Ordering::Acquire);
            if idle >= self.options.threads || self.lender.are_too_few() {
                return true;
            }
            self.idle.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits for a request: nothing if the session is quiet. What fails (there may be no memory to read into) is tried
    /// again: the mount lasts.
    fn await_request(&self, device: BorrowedFd<'_>, buffer: &mut RequestBuffer) -> Read {
        let mut told = false;
        loop {
            match self.next_request(device, buffer) {
                Ok(found) => return found,
                Err(error) if !told => tracing::error!(%error, "a FUSE request is not read"),
                Err(_) => {}
            }
            told = true;
            std::thread::sleep(AFTER_ERROR);
        }
    }

    fn next_request(&self, device: BorrowedFd<'_>, buffer: &mut RequestBuffer) -> io::Result<Read> {
        if !self.options.spin.is_zero() && !self.spinning.swap(true, Ordering::AcqRel) {
            let since = Instant::now();
            let found = loop {
                match read(device, buffer) {
                    Ok(Read::Nothing) if since.elapsed() < self.options.spin => {
                        (0..32).for_each(|_| std::hint::spin_loop());
                    }
                    found => break found,
                }
            };
            // While this thread works, another may look.
            self.spinning.store(false, Ordering::Release);
            match found? {
                Read::Nothing => {}
                found => return Ok(found),
            }
        }
        loop {
            let handled = self.handled.load(Ordering::Relaxed);
            let mut wait = [PollFd::new(&device, PollFlags::IN)];
            match poll(&mut wait, Some(&self.lender.patience())) {
                Ok(0) if self.handled.load(Ordering::Relaxed) == handled => {
                    return Ok(Read::Nothing);
                }
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match read(device, buffer)? {
                Read::Nothing => {}
                found => return Ok(found),
            }
        }
    }

    /// A descriptor of one's own for this mount, or none where `/dev/fuse` may not be opened, or descriptors are few:
    /// who looks and who gives orders needs one as well.
    fn clone_device(&self) -> Option<OwnedFd> {
        let own = open_device().ok()?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // The lowest number that is free is given out.
        let number = u64::try_from(own.as_raw_fd()).unwrap_or(u64::MAX);
        if number.saturating_add(SPARE_DESCRIPTORS) >= limit {
            return None;
        }
        clone_into(&own, self.device.as_fd()).ok()?;
        rustix::io::ioctl_fionbio(&own, true).ok()?;
        Some(own)
    }
}

impl Served for Session {
    fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn is_woken(&self) -> bool {
        let mut crew = self.crew.lock();
        crew.armed = false;
        crew.borrow(self.options.max_threads)
    }

    fn needs_thread(&self) -> bool {
        let mut crew = self.crew.lock();
        let busy = self.idle.load(Ordering::Acquire) == 0 && !crew.armed;
        busy && crew.borrow(self.options.max_threads)
    }

    fn watched(&self) -> Watched {
        match &*self.crew.lock() {
            Crew { gone: true, .. } => Watched::Gone,
            Crew { armed: true, .. } => Watched::Armed,
            _ => Watched::Served,
        }
    }

    fn serve(self: Arc<Self>, buffer: &mut RequestBuffer) {
        let worker = self.interrupts.add_worker();
        let work = AssertUnwindSafe(|| self.work(&worker, buffer));
        let lasts = std::panic::catch_unwind(work).unwrap_or_else(|_| {
            tracing::error!("a thread that serves a mount panicked");
            true
        });
        self.interrupts.remove_worker(&worker);
        let mut crew = self.crew.lock();
        crew.threads -= 1;
        crew.gone |= !lasts;
        if crew.gone && crew.threads == 0 {
            drop(crew);
            self.end();
        } else if !crew.gone && !crew.armed && self.idle.load(Ordering::Acquire) == 0 {
            crew.armed = true;
            self.lender.arm(&*self);
        }
    }
}

impl Crew {
    /// Whether one more thread is to be lent, which is counted then. Those that come are waited for first.
    fn borrow(&mut self, most: usize) -> bool {
        let more = !self.gone && self.coming == 0 && self.threads < most;
        self.coming += usize::from(more);
        self.threads += usize::from(more);
        more
    }
}

/// Attaches the freshly opened `own` to the mount behind `device`.
fn clone_into(own: &OwnedFd, device: BorrowedFd<'_>) -> io::Result<()> {
    // _IOR(229, 0, u32)
    const CLONE: libc::Ioctl = 0x8004_E500_u32 as libc::Ioctl;
    let source: u32 = device.as_raw_fd().cast_unsigned();
    // SAFETY: the request reads one u32 behind the pointer, which outlives the call.
    let result = unsafe { libc::ioctl(own.as_raw_fd(), CLONE, &raw const source) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What reading the device gave.
enum Read {
    /// A request of so many bytes.
    Request(usize),
    /// Nothing there (or it was taken back); try again.
    Nothing,
    /// The mount is gone.
    End,
}

fn read(device: BorrowedFd<'_>, buffer: &mut RequestBuffer) -> io::Result<Read> {
    match rustix::io::read(device, buffer.space()?) {
        // Zero bytes: the connection is being torn down.
        Ok(0) => Ok(Read::End),
        Ok(len) => Ok(Read::Request(len)),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => Ok(Read::Nothing),
        Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Read::End),
        Err(error) => Err(error.into()),
    }
}

/// Answers one request, or puts it aside.
fn handle(session: &Arc<Session>, worker: &Worker, device: &Arc<OwnedFd>, request: &[u8]) {
    session.handled.fetch_add(1, Ordering::Relaxed);
    if let Some(unique) = Request::interrupted(request) {
        return session.interrupts.interrupted(unique);
    }
    let mut next = if session.waiting.queue.begin(device, request) {
        carry_out(session, worker, device, request);
        session.waiting.queue.next()
    } else {
        session.waiting.queue.take_up()
    };
    while let Some(DeferredRequest { device, request }) = next {
        carry_out(session, worker, &device, &request);
        next = session.waiting.queue.next();
    }
}

/// Answers one request, or puts it aside until others like it are answered.
fn carry_out(session: &Arc<Session>, worker: &Worker, device: &Arc<OwnedFd>, request: &[u8]) {
    let backlog =
        if session.handler.is_writable() { session.waiting.backlog(request) } else { None };
    let Some(backlog) = backlog else { return answer(session, worker, device, request) };
    if !backlog.begin(device, request) {
        return;
    }
    answer(session, worker, device, request);
    while let Some(DeferredRequest { device, request }) = backlog.next() {
        answer(session, worker, &device, &request);
    }
}

/// Answers one request. The tree is not exchanged before the answer has left.
fn answer(session: &Arc<Session>, worker: &Worker, device: &Arc<OwnedFd>, request: &[u8]) {
    let header = Request::header(request);
    let mut answering = None;
    let handle = AssertUnwindSafe(|| {
        answering = session.handler.begin();
        let handler = answering.as_ref();
        handler.map_or_else(|| without_tree(request), |handler| handler.handle(request))
    });
    let (outcome, answered) = worker.carry_out(device, header, || std::panic::catch_unwind(handle));
    let device = device.as_fd();
    match outcome {
        // The process that asked was told EINTR meanwhile.
        Ok(Outcome::Reply(reply)) if answered => {
            let code = header.map_or(0, |header| header.opcode);
            answering.iter().for_each(|handler| handler.not_sent(code, &reply));
        }
        Ok(Outcome::Refused(reply, node)) => {
            if !answered {
                send(device, reply);
            }
            session.forget_data(node);
        }
        _ if answered => {}
        Ok(Outcome::Reply(reply)) => send(device, reply),
        Ok(Outcome::Silent) => {}
        Ok(Outcome::Ready(reply)) => {
            let failed = matches!(reply.body, Body::Status(_));
            send(device, reply);
            if !failed {
                session.set_stage(Stage::Ready);
            }
        }
        Err(_) => {
            tracing::error!("a request made its handler panic");
            if let Some(header) = header {
                send(device, Reply::status(header.unique, libc::EIO));
            }
        }
    }
}
