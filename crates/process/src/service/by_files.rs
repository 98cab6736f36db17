//! Orders that come as changes of files: directories made, removed and moved in `.zfs/snapshot`.
//!
//! Invariant: who asks needs the permissions that the order needs; an order that moves mounts may wait for the
//! request of the kernel that is served here, so its end is waited for a while only.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_control::changes::{Change, DestroyRequest, RenameRequest};
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_posix::SnapshotAdmin;
use cenote_posix::error::{EBUSY, EEXIST, EIO, ENOENT, ENOSPC, EPERM, EROFS};
use cenote_posix::tree::{Caller, Errno, Result};

use super::{Service, asked};

/// Longest time an order that moves mounts is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct ByFiles(Weak<Service>);

impl ByFiles {
    pub(super) fn of(service: &Arc<Service>) -> Self {
        Self(Arc::downgrade(service))
    }

    fn give(&self, caller: Caller, change: &Change) -> Result<()> {
        let gone = || Errno::new(EIO, "the pool is exported");
        let service = self.0.upgrade().ok_or_else(gone)?;
        let who = Peer::of_caller(caller.uid, caller.gid, caller.pid);
        asked::by_kernel(|| service.give_for_files(change, &who, PATIENCE)).map_err(errno)
    }
}

impl SnapshotAdmin for ByFiles {
    fn make(&self, caller: Caller, snapshot: String) -> Result<()> {
        self.give(caller, &Change::Snapshot { names: vec![snapshot], properties: Vec::new() })
    }

    fn remove(&self, caller: Caller, snapshot: String) -> Result<()> {
        let request = DestroyRequest { names: vec![snapshot], force: false, defer: false };
        self.give(caller, &Change::Destroy(request))
    }

    fn rename(&self, caller: Caller, from: String, to: String) -> Result<()> {
        self.give(caller, &Change::Rename(RenameRequest { from, to, ..RenameRequest::default() }))
    }
}

fn errno(failure: Failure) -> Errno {
    let code = match failure.kind {
        FailureKind::NotFound => ENOENT,
        FailureKind::Busy => EBUSY,
        FailureKind::Already => EEXIST,
        FailureKind::Permission => EPERM,
        FailureKind::NoSpace => ENOSPC,
        FailureKind::ReadOnly => EROFS,
        _ => EIO,
    };
    Errno::new(code, failure.message)
}
