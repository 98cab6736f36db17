//! How the process ends when it is told to, in the middle of whatever it is doing.
//!
//! Invariant: what was changed is on the disks as far as they take it, and no mount stays behind that can be
//! taken away.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cenote_control::changes::{Change, ChangeRequest};
use cenote_control::peer::Peer;
use cenote_control::protocol::Failure;
use cenote_control::replies::Replies;
use cenote_control::server::Call;

use super::Service;

/// How long streams that are cut off may take to end.
const STREAMS_TIME: Duration = Duration::from_secs(10);
/// How long is waited for the last group of a pool that cannot be exported, and for the orders under way.
const LAST_TIME: Duration = Duration::from_secs(20);
/// Time between two looks.
const GLANCE: Duration = Duration::from_millis(20);

/// Whether the process was told to end.
#[derive(Default)]
pub(super) struct Leaving(AtomicBool);

impl Leaving {
    /// What who reads or writes a stream is told then.
    pub fn check(&self) -> std::io::Result<()> {
        match self.0.load(SeqCst) {
            true => Err(std::io::Error::other("the pool is being exported")),
            false => Ok(()),
        }
    }
}

impl Service {
    /// Serves [`cenote_control::server::PoolService::leave`].
    pub(super) fn cut_off_and_export(&self) -> Result<(), Failure> {
        self.leaving.0.store(true, SeqCst);
        let begun = Instant::now();
        while self.has_streams() && begun.elapsed() < STREAMS_TIME {
            std::thread::sleep(GLANCE);
        }
        // Not by the socket: whoever else asks there may be in the way.
        let replies = Replies::to_nobody();
        let who = Peer { user: Some(rustix::process::geteuid().as_raw()), groups: Vec::new() };
        let call = Call { replies: &replies, who, descriptors: Vec::new() };
        let order = ChangeRequest { command: None, change: Change::Export { force: true } };
        self.give(&order, call).map(|_| ()).inspect_err(|_| self.save_what_can_be())
    }

    /// Something is sent or received.
    pub(super) fn has_streams(&self) -> bool {
        self.changes.live().is_ok_and(|live| live.is_receiving())
            || self.pool().is_ok_and(|pool| pool.kept().are_read())
    }

    /// The process ends with its pool open: nothing is lost that can be written, and no mount dies with it.
    fn save_what_can_be(&self) {
        if let Ok(live) = self.changes.live().cloned()
            && self.changes.suspended().is_none()
        {
            let (done, result) = mpsc::channel();
            let write = move || drop(done.send(live.sync()));
            let begun = std::thread::Builder::new().name("last".into()).spawn(write);
            match begun.map(|_| result.recv_timeout(LAST_TIME)) {
                Ok(Ok(Ok(()))) => tracing::info!("what was changed is on the disks"),
                other => tracing::error!(?other, "what was changed last may not be on the disks"),
            }
        }
        // An order that does not end does not keep dead mounts here.
        let _turn = self.turns.alone_within(LAST_TIME);
        if let Err(failure) = self.mounts.unmount_all(true) {
            tracing::error!(%failure, "mounts stay behind");
        }
    }
}
