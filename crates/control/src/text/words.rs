//! The words of states and reasons.
//!
//! Invariant: these are the words of OpenZFS; monitoring tools compare them.

use crate::report::{PoolReport, VdevReason, VdevReport, VdevState};

/// State of a device, with the reason it depends on.
pub fn state(state: VdevState, reason: VdevReason) -> &'static str {
    match state {
        VdevState::Closed | VdevState::Offline => "OFFLINE",
        VdevState::Removed => "REMOVED",
        VdevState::CannotOpen => match reason {
            VdevReason::CorruptData | VdevReason::BadLog => "FAULTED",
            VdevReason::SplitPool => "SPLIT",
            _ => "UNAVAIL",
        },
        VdevState::Faulted => "FAULTED",
        VdevState::Degraded => "DEGRADED",
        VdevState::Online => "ONLINE",
    }
}

/// State of a pool: that of its root, unless it is suspended.
pub fn pool_state(pool: &PoolReport) -> &'static str {
    if pool.suspended { "SUSPENDED" } else { state(pool.state, pool.root.reason) }
}

/// State of a hot spare.
pub fn spare_state(spare: &VdevReport) -> &'static str {
    match spare.state {
        VdevState::Online if spare.spare_used_by.is_some() => "INUSE",
        VdevState::CannotOpen if spare.reason == VdevReason::Spared => "INUSE",
        VdevState::Online => "AVAIL",
        other => state(other, spare.reason),
    }
}

/// Why a device is in its state.
pub fn reason(vdev: &VdevReport) -> &'static str {
    let errors = [vdev.read_errors, vdev.write_errors, vdev.checksum_errors];
    let is_only_slow = vdev.is_leaf() && errors == [0; 3] && vdev.slow_operations > 0;
    match vdev.reason {
        VdevReason::ErrorsExceeded if is_only_slow => "too many slow I/Os",
        VdevReason::None => "",
        VdevReason::OpenFailed => "cannot open",
        VdevReason::BadGuidSum => "missing device",
        VdevReason::NoReplicas => "insufficient replicas",
        VdevReason::VersionNewer => "newer version",
        VdevReason::UnsupportedFeature => "unsupported feature(s)",
        VdevReason::AshiftTooBig => "unsupported minimum blocksize",
        VdevReason::Spared => "currently in use",
        VdevReason::ErrorsExceeded => "too many errors",
        VdevReason::IoFailure => "experienced I/O failures",
        VdevReason::BadLog => "bad intent log",
        VdevReason::External | VdevReason::ExternalPersistent => "external device fault",
        VdevReason::SplitPool => "split into new pool",
        VdevReason::Active => "currently in use",
        VdevReason::ChildrenOffline => "all children offline",
        VdevReason::BadLabel => "invalid label",
        VdevReason::CorruptData
        | VdevReason::TooSmall
        | VdevReason::VersionOlder
        | VdevReason::BadAshift => "corrupted data",
    }
}
