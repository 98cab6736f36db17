//! Which requests are being carried out, and what becomes of those that are interrupted.
//!
//! Invariant: a request is answered once: by the thread that carries it out, or here before that, and
//! then what that thread comes to is dropped. Here only what has changed nothing and will not
//! ([`Interrupt`]) is answered, or what only looks or waits.
//!
//! The kernel says that a process got a signal, once and whatever the signal, and then waits for the
//! answer however deadly the next signal is. Programs expect of a disk that it does not fail with
//! EINTR because a child ended. So an interrupted request is watched until it is answered, and let go
//! when its process is about to die; while the pool is suspended also when it is asked to end.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_posix::tree::Interrupt;
use parking_lot::Mutex;

use super::abi::{InHeader, opcode};
use super::reply::Reply;
use super::session::{Session, send};
use super::signals::{Fate, fate_of};

/// How often requests that were interrupted are looked at.
const GLANCE: Duration = Duration::from_millis(100);
/// Looks after which a request nobody knows is taken for answered.
const PATIENCE: u32 = 10;

/// What one thread carries out.
#[derive(Debug, Default)]
pub(super) struct Worker {
    interrupt: Arc<Interrupt>,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
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
#[derive(Debug, Default)]
pub(super) struct Interrupts {
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
        *self.now.lock() = Now { request, device: Some(device.clone()), answered: false };
        let outcome = self.interrupt.carry_out(work);
        let answered = std::mem::take(&mut *self.now.lock()).answered;
        (outcome, answered)
    }

    /// Lets go of request `unique` if `fate` permits. `None` if this thread does not carry it out;
    /// whether it was let go, and what is still to be answered.
    fn let_go(&self, unique: u64, fate: impl FnOnce(u32) -> Fate) -> Option<(bool, Option<Known>)> {
        let mut now = self.now.lock();
        let header = now.request.filter(|header| header.unique == unique)?;
        if now.answered {
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
        now.answered = true;
        let device = now.device.clone();
        Some((true, device.map(|device| Known { header, device })))
    }
}

impl Session {
    /// The kernel says that request `unique` was interrupted.
    pub(super) fn interrupted(self: &Arc<Self>, unique: u64) {
        if self.let_go(unique) == Some(true) {
            return;
        }
        let mut watched = self.interrupts().watched.lock();
        watched.requests.push((unique, 0));
        if std::mem::replace(&mut watched.looked_after, true) {
            return;
        }
        drop(watched);
        let session = Arc::downgrade(self);
        let run = move || watch(&session);
        if let Err(error) = std::thread::Builder::new().name("fuse-signals".into()).spawn(run) {
            tracing::warn!(%error, "who is killed waits until its request is answered");
            self.interrupts().watched.lock().looked_after = false;
        }
    }

    /// Answers an interrupted request if that may be. `None` if nobody knows it; whether it is
    /// answered.
    fn let_go(&self, unique: u64) -> Option<bool> {
        let suspended = self.handler().is_suspended();
        let fate = |thread| match fate_of(thread) {
            Fate::IsAsked if !suspended => Fate::GoesOn,
            fate => fate,
        };
        let workers = self.interrupts().workers.lock().clone();
        let carried = workers.iter().find_map(|worker| worker.let_go(unique, fate));
        let (gone, known) = match carried {
            Some(found) => found,
            None => {
                let header = self.waiting_header(unique)?;
                match fate(header.pid) {
                    Fate::GoesOn => return Some(false),
                    _ => {
                        let taken = self.take_waiting(unique);
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
        let mut requests = std::mem::take(&mut self.interrupts().watched.lock().requests);
        requests.retain_mut(|(unique, unknown)| match self.let_go(*unique) {
            Some(gone) => !gone,
            // Between being read and being begun, or answered.
            None => {
                *unknown += 1;
                *unknown < PATIENCE
            }
        });
        let mut watched = self.interrupts().watched.lock();
        watched.requests.append(&mut requests);
        watched.looked_after = !watched.requests.is_empty();
        watched.looked_after
    }
}

/// Looks after interrupted requests as long as there are any.
fn watch(session: &Weak<Session>) {
    loop {
        std::thread::sleep(GLANCE);
        let Some(session) = session.upgrade() else { return };
        if !session.look_again() {
            return;
        }
    }
}
