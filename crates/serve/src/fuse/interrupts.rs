//! Which requests are being carried out, and what becomes of those that are interrupted.
//!
//! Invariant: a request is answered once: by the thread that carries it out, or here before that; then
//! the thread's own answer is dropped. A request is answered here only if it has changed nothing and
//! will not change anything ([`Interrupt`]), or if it only looks or waits.
//!
//! The kernel tells us once that a process got a signal, whichever signal it is, and then waits for our
//! answer, however deadly the next signal may be. Programs do not expect a disk to fail with EINTR
//! because a child ended. So an interrupted request is watched until it is answered, and let go when
//! its process is about to die; while the pool is suspended, also when the process is asked to end.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_posix::tree::Interrupt;
use parking_lot::Mutex;

use super::abi::{InHeader, opcode};
use super::backlog::Waiting;
use super::handler::Handler;
use super::reply::Reply;
use super::send::send;
use super::signals::{Fate, fate_of};

/// How often requests that were interrupted are looked at.
const GLANCE: Duration = Duration::from_millis(100);
/// Looks after which a request nobody knows is taken for answered.
const PATIENCE: u32 = 10;

/// What one thread carries out.
#[derive(Debug, Default)]
pub(super) struct Worker {
    interrupt: Arc<Interrupt>,
    in_progress: Mutex<InProgress>,
}

#[derive(Debug, Default)]
struct InProgress {
    /// The request; `None` between requests.
    request: Option<InHeader>,
    /// Where its answer goes.
    device: Option<Arc<OwnedFd>>,
    /// It was answered already.
    answered: bool,
}

/// A request as far as it can be let go.
struct Known {
    header: InHeader,
    device: Arc<OwnedFd>,
}

/// The interrupted requests of a session.
#[derive(Debug)]
pub(super) struct Interrupts {
    handler: Arc<Handler>,
    waiting: Arc<Waiting>,
    workers: Mutex<Vec<Arc<Worker>>>,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    /// Numbers of requests, and for how many looks nobody knew them.
    requests: Vec<(u64, u32)>,
    /// A thread looks after them.
    looked_after: bool,
}

/// Whether answering it early leaves everything as it was. Other requests are changes.
fn only_looks(code: u32) -> bool {
    matches!(
        code,
        opcode::LOOKUP
            | opcode::GETATTR
            | opcode::STATX
            | opcode::READLINK
            | opcode::READ
            | opcode::READDIR
            | opcode::READDIRPLUS
            | opcode::STATFS
            | opcode::GETXATTR
            | opcode::LISTXATTR
            | opcode::ACCESS
            | opcode::LSEEK
            | opcode::FSYNC
            | opcode::FSYNCDIR
            | opcode::SYNCFS
    )
}

impl Interrupts {
    /// For a session that answers with `handler`; requests that were not begun yet are in `waiting`.
    pub(super) fn new(handler: Arc<Handler>, waiting: Arc<Waiting>) -> Self {
        let (workers, watched) = (Mutex::default(), Mutex::default());
        Self { handler, waiting, workers, watched }
    }

    /// A further thread that carries requests out.
    pub(super) fn add_worker(&self) -> Arc<Worker> {
        let worker = Arc::new(Worker::default());
        self.workers.lock().push(worker.clone());
        worker
    }

    /// It ends.
    pub(super) fn remove_worker(&self, worker: &Arc<Worker>) {
        self.workers.lock().retain(|other| !Arc::ptr_eq(other, worker));
    }

    /// The kernel says that request `unique` was interrupted.
    pub(super) fn interrupted(self: &Arc<Self>, unique: u64) {
        if self.let_go(unique) == Some(true) {
            return;
        }
        let mut watched = self.watched.lock();
        watched.requests.push((unique, 0));
        if std::mem::replace(&mut watched.looked_after, true) {
            return;
        }
        drop(watched);
        let interrupts = Arc::downgrade(self);
        let run = move || watch(&interrupts);
        if let Err(error) = std::thread::Builder::new().name("fuse-signals".into()).spawn(run) {
            tracing::warn!(%error, "a killed process will wait until its request is answered");
            self.watched.lock().looked_after = false;
        }
    }

    /// Answers an interrupted request if it may be answered now. Gives whether it is answered; `None`
    /// if nobody knows the request.
    fn let_go(&self, unique: u64) -> Option<bool> {
        let suspended = self.handler.is_suspended();
        let fate = |thread| match fate_of(thread) {
            Fate::IsAsked if !suspended => Fate::GoesOn,
            fate => fate,
        };
        let workers = self.workers.lock().clone();
        let carried = workers.iter().find_map(|worker| worker.let_go(unique, fate));
        let (gone, known) = match carried {
            Some(found) => found,
            None => {
                let header = self.waiting.header_of(unique)?;
                match fate(header.pid) {
                    Fate::GoesOn => return Some(false),
                    _ => {
                        let taken = self.waiting.take(unique);
                        (taken.is_some(), taken.map(|device| Known { header, device }))
                    }
                }
            }
        };
        if let Some(Known { header, device }) = known {
            send(device.as_fd(), Reply::status(header.unique, libc::EINTR));
        }
        Some(gone)
    }

    /// Looks again at what is watched. False if there is nothing any more.
    fn look_again(&self) -> bool {
        let mut requests = std::mem::take(&mut self.watched.lock().requests);
        requests.retain_mut(|(unique, unknown)| match self.let_go(*unique) {
            Some(gone) => !gone,
            // Between being read and being begun, or answered.
            None => {
                *unknown += 1;
                *unknown < PATIENCE
            }
        });
        let mut watched = self.watched.lock();
        watched.requests.append(&mut requests);
        watched.looked_after = !watched.requests.is_empty();
        watched.looked_after
    }
}

impl Worker {
    /// Carries a request out: what came of it, and whether it was answered meanwhile.
    pub(super) fn carry_out<T>(
        &self,
        device: &Arc<OwnedFd>,
        request: Option<InHeader>,
        work: impl FnOnce() -> T,
    ) -> (T, bool) {
        self.interrupt.reset();
        *self.in_progress.lock() =
            InProgress { request, device: Some(device.clone()), answered: false };
        let outcome = self.interrupt.carry_out(work);
        let answered = std::mem::take(&mut *self.in_progress.lock()).answered;
        (outcome, answered)
    }

    /// Lets go of request `unique` if `fate` permits. Gives whether it was let go, and what is still to
    /// be answered; `None` if this thread does not carry it out.
    fn let_go(&self, unique: u64, fate: impl FnOnce(u32) -> Fate) -> Option<(bool, Option<Known>)> {
        let mut current = self.in_progress.lock();
        let header = current.request.filter(|header| header.unique == unique)?;
        if current.answered {
            return Some((true, None));
        }
        let looks = only_looks(header.opcode);
        let untouched = match fate(header.pid) {
            Fate::GoesOn => return Some((false, None)),
            Fate::IsAsked if !looks => self.interrupt.take_back(),
            _ => self.interrupt.hurry(),
        };
        if !untouched && !looks {
            return Some((false, None));
        }
        current.answered = true;
        let device = current.device.clone();
        Some((true, device.map(|device| Known { header, device })))
    }
}

/// Looks after interrupted requests as long as there are any.
fn watch(interrupts: &Weak<Interrupts>) {
    loop {
        std::thread::sleep(GLANCE);
        let Some(interrupts) = interrupts.upgrade() else { return };
        if !interrupts.look_again() {
            return;
        }
    }
}
