//! The transport over `/dev/fuse`: threads that read requests and write replies.
//!
//! Invariant: every request that was read is answered, whatever the handler or the kernel makes of
//! it (a panic or a refused reply becomes EIO), so no caller waits for ever.
//!
//! Each thread has descriptors of its own, cloned from the mount's, and a reply leaves through the
//! descriptor its request came by. After a request a thread looks for the next one for a few
//! microseconds before it sleeps, which saves the wake-up while requests keep coming; only one
//! thread does so at a time. When all threads are busy for more than a tick (waiting for disks), a
//! further one is started; it ends when enough others are idle.
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

use memmap2::MmapMut;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use zerocopy::IntoBytes;

use super::abi::{self, InHeader};
use super::backlog::{DeferredRequest, Waiting};
use super::handler::{Handler, MAX_IO, Outcome};
use super::interrupts::{Interrupts, Worker};
use super::mount::open_device;
use super::reply::{Body, Reply};
use super::request::Request;
use super::send::send;

/// Descriptors that no thread takes for itself.
const SPARE_DESCRIPTORS: u64 = 16;
/// How often the need for a further thread is looked at, while requests are coming.
const TICK: Duration = Duration::from_millis(1);
/// Ticks without a request after which looking stops.
const QUIET_TICKS: u32 = 100;
/// Page size of the machine, for aligning the data of writes.
const PAGE: usize = 4096;

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

/// A running session.
#[derive(Debug)]
pub(super) struct Session {
    device: Arc<OwnedFd>,
    handler: Arc<Handler>,
    options: SessionOptions,
    waiting: Arc<Waiting>,
    interrupts: Arc<Interrupts>,
    stage: Mutex<Stage>,
    changed: Condvar,
    threads: AtomicUsize,
    /// Threads waiting for a request.
    idle: AtomicUsize,
    spinning: AtomicBool,
    /// Requests handled, to notice activity.
    handled: AtomicUsize,
    /// The supervisor sleeps until somebody clears this and wakes it.
    quiet: AtomicBool,
    supervisor: Mutex<Option<std::thread::Thread>>,
}

impl Session {
    /// Starts serving `device`.
    pub(super) fn start(
        device: OwnedFd,
        handler: Handler,
        options: SessionOptions,
    ) -> io::Result<Arc<Self>> {
        let handler = Arc::new(handler);
        let waiting = Arc::new(Waiting::new(options.max_threads));
        let session = Arc::new(Self {
            device: Arc::new(device),
            handler: handler.clone(),
            options,
            waiting: waiting.clone(),
            interrupts: Arc::new(Interrupts::new(handler, waiting)),
            stage: Mutex::new(Stage::Starting),
            changed: Condvar::new(),
            threads: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            spinning: AtomicBool::new(false),
            handled: AtomicUsize::new(0),
            quiet: AtomicBool::new(true),
            supervisor: Mutex::new(None),
        });
        for number in 0..options.threads {
            match session.clone().spawn() {
                Err(error) if number == 0 => return Err(error),
                _ => {}
            }
        }
        if options.max_threads > options.threads {
            let supervised = Arc::downgrade(&session);
            let mut supervisor = session.supervisor.lock();
            let thread = std::thread::Builder::new()
                .name("fuse-threads".into())
                .spawn(move || supervise(&supervised))?;
            *supervisor = Some(thread.thread().clone());
        }
        Ok(session)
    }

    /// Waits until the kernel has begun; false if it has not after `patience`.
    pub(super) fn wait_ready(&self, patience: Duration) -> bool {
        let mut stage = self.stage.lock();
        self.changed.wait_while_for(&mut stage, |stage| *stage == Stage::Starting, patience);
        *stage == Stage::Ready
    }

    /// Waits until the mount is gone and the last thread has ended.
    pub(super) fn wait_end(&self, patience: Option<Duration>) {
        let mut stage = self.stage.lock();
        let going = |stage: &mut Stage| *stage != Stage::Ended;
        match patience {
            Some(patience) => {
                self.changed.wait_while_for(&mut stage, going, patience);
            }
            None => self.changed.wait_while(&mut stage, going),
        }
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

    /// Starts one more serving thread.
    fn spawn(self: Arc<Self>) -> io::Result<()> {
        self.threads.fetch_add(1, Ordering::AcqRel);
        let session = self.clone();
        let spawned = std::thread::Builder::new().name("fuse".into()).spawn(move || {
            let worker = session.interrupts.add_worker();
            let end = serve(&session, &worker);
            session.interrupts.remove_worker(&worker);
            if let Err(error) = end {
                tracing::error!(%error, "a FUSE thread ended");
            }
            if session.threads.fetch_sub(1, Ordering::AcqRel) == 1 {
                let forget = AssertUnwindSafe(|| session.handler.end());
                if std::panic::catch_unwind(forget).is_err() {
                    tracing::error!("forgetting what was held panicked");
                }
                session.set_stage(Stage::Ended);
                session.wake_supervisor();
            }
        });
        if let Err(error) = spawned {
            self.threads.fetch_sub(1, Ordering::AcqRel);
            return Err(error);
        }
        Ok(())
    }

    /// Lets the supervisor look again.
    fn wake_supervisor(&self) {
        if self.quiet.swap(false, Ordering::AcqRel)
            && let Some(thread) = &*self.supervisor.lock()
        {
            thread.unpark();
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
        Some(own)
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

/// The supervisor: starts a thread when all have been busy for a tick.
fn supervise(session: &std::sync::Weak<Session>) {
    let mut seen = 0;
    let mut still = 0;
    loop {
        {
            let Some(session) = session.upgrade() else { return };
            if !session.is_alive() {
                return;
            }
            let handled = session.handled.load(Ordering::Relaxed);
            let busy = session.idle.load(Ordering::Acquire) == 0;
            let threads = session.threads.load(Ordering::Acquire);
            if busy && threads > 0 && threads < session.options.max_threads {
                let _ = session.clone().spawn();
            }
            still = if handled == seen && !busy { still + 1 } else { 0 };
            seen = handled;
            if still >= QUIET_TICKS {
                still = 0;
                session.quiet.store(true, Ordering::Release);
            }
            if !session.quiet.load(Ordering::Acquire) {
                drop(session);
                std::thread::sleep(TICK);
                continue;
            }
        }
        std::thread::park();
    }
}

/// A buffer for requests in which the data of a WRITE begins on a page.
///
/// It is a mapping of its own, so that only what the kernel filled takes memory: most threads of most
/// mounts never read more than a page, and a thousand mounts have thousands of threads.
struct RequestBuffer {
    bytes: MmapMut,
    start: usize,
}

impl RequestBuffer {
    fn new() -> io::Result<Self> {
        // A WRITE's header and arguments are 80 bytes.
        let head = size_of::<InHeader>() + size_of::<abi::ReadIn>();
        let bytes = MmapMut::map_anon(2 * PAGE + (MAX_IO as usize).max(abi::MIN_READ_BUFFER))?;
        // A mapping begins on a page.
        Ok(Self { bytes, start: PAGE.saturating_sub(head) })
    }

    fn space(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }

    fn filled(&self, len: usize) -> &[u8] {
        self.bytes.get(self.start..self.start.saturating_add(len)).unwrap_or_default()
    }
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
    match rustix::io::read(device, buffer.space()) {
        // Zero bytes: the connection is being torn down.
        Ok(0) => Ok(Read::End),
        Ok(len) => Ok(Read::Request(len)),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => Ok(Read::Nothing),
        Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Read::End),
        Err(error) => Err(error.into()),
    }
}

/// One serving thread.
fn serve(session: &Arc<Session>, worker: &Worker) -> io::Result<()> {
    let device = session.clone_device().map_or_else(|| session.device.clone(), Arc::new);
    let watch = if session.options.spin.is_zero() { None } else { session.clone_device() };
    let watch = watch.map(Arc::new);
    if let Some(watch) = &watch {
        rustix::io::ioctl_fionbio(watch, true)?;
    }
    let mut buffer = RequestBuffer::new()?;
    loop {
        session.idle.fetch_add(1, Ordering::AcqRel);
        let got = read(device.as_fd(), &mut buffer);
        session.idle.fetch_sub(1, Ordering::AcqRel);
        match got? {
            Read::Request(len) => handle(session, worker, &device, buffer.filled(len)),
            Read::Nothing => continue,
            Read::End => return Ok(()),
        }
        if let Some(watch) = &watch
            && !spin(session, worker, watch, &mut buffer)?
        {
            return Ok(());
        }
        // Threads that are idle do not end, so at least that many stay.
        if session.threads.load(Ordering::Acquire) > session.options.threads
            && session.idle.load(Ordering::Acquire) >= session.options.threads
        {
            return Ok(());
        }
    }
}

/// Looks for further requests while they keep coming, if no other thread does. False when the
/// mount is gone.
fn spin(
    session: &Arc<Session>,
    worker: &Worker,
    watch: &Arc<OwnedFd>,
    buffer: &mut RequestBuffer,
) -> io::Result<bool> {
    if session.spinning.swap(true, Ordering::AcqRel) {
        return Ok(true);
    }
    session.idle.fetch_add(1, Ordering::AcqRel);
    let mut since = Instant::now();
    let alive = loop {
        match read(watch.as_fd(), buffer)? {
            Read::Request(len) => {
                // While this one works, another may watch.
                session.spinning.store(false, Ordering::Release);
                session.idle.fetch_sub(1, Ordering::AcqRel);
                handle(session, worker, watch, buffer.filled(len));
                if session.spinning.swap(true, Ordering::AcqRel) {
                    return Ok(true);
                }
                session.idle.fetch_add(1, Ordering::AcqRel);
                since = Instant::now();
            }
            Read::Nothing if since.elapsed() >= session.options.spin => break true,
            Read::Nothing => (0..32).for_each(|_| std::hint::spin_loop()),
            Read::End => break false,
        }
    };
    session.spinning.store(false, Ordering::Release);
    session.idle.fetch_sub(1, Ordering::AcqRel);
    Ok(alive)
}

/// Answers one request, or puts it aside.
fn handle(session: &Arc<Session>, worker: &Worker, device: &Arc<OwnedFd>, request: &[u8]) {
    session.handled.fetch_add(1, Ordering::Relaxed);
    if session.quiet.load(Ordering::Relaxed) {
        session.wake_supervisor();
    }
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
fn carry_out(session: &Session, worker: &Worker, device: &Arc<OwnedFd>, request: &[u8]) {
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

/// Answers one request.
fn answer(session: &Session, worker: &Worker, device: &Arc<OwnedFd>, request: &[u8]) {
    let header = Request::header(request);
    let handle = || std::panic::catch_unwind(AssertUnwindSafe(|| session.handler.handle(request)));
    let (outcome, answered) = worker.carry_out(device, header, handle);
    let device = device.as_fd();
    match outcome {
        // The process that asked was told EINTR meanwhile.
        Ok(Outcome::Reply(reply)) if answered => {
            session.handler.not_sent(header.map_or(0, |header| header.opcode), &reply);
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
