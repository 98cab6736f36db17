//! What is said of a pool that could be imported: its condition, and what to do about it.
//!
//! Invariant: conditions are looked for in a fixed order and the first one is reported, so the same
//! devices always give the same words, those of `zpool import`.

use cenote_format::config::{PoolState, VdevConfig, VdevKind};
use cenote_format::feature;

use super::assemble::PoolCandidate;
use super::features::UnknownFeature;
use super::host::HostIdentity;
use super::inspect::Inspection;
use crate::vdev::{Aux, Condition, VdevState, VdevStatus};

/// The damage of pools whose encryption is older than `bookmark_v2`.
pub const EARLY_ENCRYPTION: u64 = 4;

/// The condition of a pool, in the order they are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImportStatus {
    /// A resilver was going on.
    Resilvering,
    /// In use by another host.
    HostActive,
    /// Multihost is on and this host has no identity.
    HostIdRequired,
    /// Last used by another host and not exported.
    HostMismatch,
    /// Pool version not supported.
    VersionNewer,
    /// Features not known, needed to read.
    FeaturesForRead,
    /// Features not known, needed to write.
    FeaturesForWrite,
    /// Vdevs are missing that no label describes, or a log device.
    BadGuidSum,
    /// The intent log cannot be read.
    BadLog,
    /// Too many faulted devices.
    FaultedBeyondRedundancy,
    /// Too many missing devices.
    MissingBeyondRedundancy,
    /// Too many devices with bad labels.
    LabelsBeyondRedundancy,
    /// The pool's metadata cannot be read.
    CorruptPool,
    /// Some devices are faulted.
    Faulted,
    /// Some devices are missing.
    Missing,
    /// Some devices have bad labels.
    Labels,
    /// Some devices missed writes.
    MissedWrites,
    /// Some devices are offline.
    Offline,
    /// Some devices are written in smaller blocks than their own.
    NonNativeAshift,
    /// Damage by an old release, by its number.
    Errata(u64),
    /// Old pool version.
    VersionOlder,
    /// Nothing to say.
    Fine,
}

/// Finds the condition of a pool.
pub fn import_status(
    candidate: &PoolCandidate,
    found: &Inspection,
    host: &HostIdentity,
) -> ImportStatus {
    use ImportStatus as Status;
    let Condition { state, aux } = found.status.condition;
    let failed = state == VdevState::Unavailable;
    let active = candidate.state == PoolState::Active;
    let foreign = candidate.hostid != 0 && candidate.hostid != host.id;
    let any = |problem: fn(Condition) -> bool| has(&found.status, problem);
    let is_faulted = |leaf: Condition| leaf.state == VdevState::Faulted;
    let is_missing =
        |leaf: Condition| leaf.state == VdevState::Unavailable && leaf.aux == Aux::OpenFailed;
    let is_broken = |leaf: Condition| leaf.state == VdevState::Unavailable;
    let is_offline = |leaf: Condition| leaf.state == VdevState::Offline;
    let caches = found.trusted.iter().flat_map(|trusted| &trusted.caches);
    let cache_missing = caches.clone().any(|cache| candidate.device(cache).is_none());
    let missed = || found.trusted.as_ref().is_some_and(|trusted| !trusted.missed.is_empty());
    let is_worn = |leaf: Condition| leaf.state == VdevState::Degraded;
    let errata = errata(found);
    let conditions: [(Status, &dyn Fn() -> bool); 21] = [
        (Status::Resilvering, &|| found.trusted.as_ref().is_some_and(|t| t.resilvering)),
        (Status::HostActive, &|| failed && aux == Aux::Active && !found.hostid_required),
        (Status::HostIdRequired, &|| found.hostid_required),
        (Status::HostMismatch, &|| active && foreign),
        (Status::VersionNewer, &|| failed && aux == Aux::VersionNewer),
        (Status::FeaturesForWrite, &|| found.read_only_possible),
        (Status::FeaturesForRead, &|| failed && aux == Aux::UnsupportedFeature),
        (Status::BadGuidSum, &|| failed && aux == Aux::BadGuidSum),
        (Status::BadLog, &|| failed && aux == Aux::BadLog),
        (Status::FaultedBeyondRedundancy, &|| failed && any(is_faulted)),
        (Status::MissingBeyondRedundancy, &|| failed && any(is_missing)),
        (Status::LabelsBeyondRedundancy, &|| failed && any(is_broken)),
        (Status::CorruptPool, &|| failed && aux == Aux::CorruptData),
        (Status::Faulted, &|| any(is_faulted)),
        (Status::Missing, &|| any(is_missing) || cache_missing),
        (Status::Labels, &|| any(is_broken)),
        (Status::MissedWrites, &|| missed() && any(is_worn)),
        (Status::Offline, &|| any(is_offline)),
        (Status::NonNativeAshift, &|| is_misfit(candidate, &found.tree, 0)),
        (Status::Errata(errata), &|| errata != 0),
        // Who asks for the old format knows.
        (Status::VersionOlder, &|| {
            candidate.compatibility.as_deref() != Some("legacy") && {
                let version = found.choice.as_ref().map_or(candidate.version, |c| c.best.version);
                feature::version_is_supported(version) && version < feature::FEATURE_VERSION
            }
        }),
    ];
    let first = conditions.iter().find(|(_, holds)| holds());
    first.map_or(Status::Fine, |(status, _)| *status)
}

/// Damage by an old release, by its number; 0 for none.
fn errata(found: &Inspection) -> u64 {
    let Some(trusted) = &found.trusted else { return 0 };
    let is_enabled = |name| {
        let known = feature::by_name(name);
        known.is_some_and(|known| trusted.features.is_enabled(known.guid))
    };
    let is_early = is_enabled("encryption") && !is_enabled("bookmark_v2");
    let recorded = trusted.config.errata.filter(|number| *number != 0);
    recorded.or(is_early.then_some(EARLY_ENCRYPTION)).unwrap_or(0)
}

/// Whether a device is written in smaller blocks than its own, those of `ashift`.
fn is_misfit(candidate: &PoolCandidate, node: &VdevConfig, ashift: u64) -> bool {
    let ashift = node.top.map_or(ashift, |top| top.ashift);
    if node.kind == VdevKind::Replacing {
        return false;
    }
    let device = candidate.device(node).filter(|_| node.children().is_empty() && ashift != 0);
    let own = device.and_then(|found| found.device.physical_sector_size().checked_ilog2());
    own.is_some_and(|own| u64::from(own) > ashift)
        || node.children().iter().any(|child| is_misfit(candidate, child, ashift))
}

/// Whether a leaf has the problem. What is below a replacement in progress does not count, nor what
/// only stands for a vdev that no label describes.
fn has(node: &VdevStatus, problem: fn(Condition) -> bool) -> bool {
    if matches!(node.config.kind, VdevKind::Replacing | VdevKind::Missing) {
        return false;
    }
    if node.children.is_empty() {
        return problem(node.condition);
    }
    node.children.iter().any(|child| has(child, problem))
}

/// The word for a condition in a listing.
pub fn state_word(condition: Condition) -> &'static str {
    match (condition.state, condition.aux) {
        (VdevState::Closed, _) => "OFFLINE",
        (VdevState::Unavailable, Aux::CorruptData | Aux::BadLog) => "FAULTED",
        (VdevState::Unavailable, Aux::SplitPool) => "SPLIT",
        (state, _) => state.name(),
    }
}

/// The words for the reason of a condition in a listing of importable pools.
pub fn reason_words(aux: Aux) -> Option<&'static str> {
    Some(match aux {
        Aux::None => return None,
        Aux::OpenFailed => "cannot open",
        Aux::BadGuidSum => "missing device",
        Aux::NoReplicas => "insufficient replicas",
        Aux::VersionNewer => "newer version",
        Aux::UnsupportedFeature => "unsupported feature(s)",
        Aux::ErrorsExceeded => "too many errors",
        Aux::Active => "currently in use",
        Aux::ChildrenOffline => "all children offline",
        Aux::BadLabel => "invalid label",
        _ => "corrupted data",
    })
}

impl ImportStatus {
    /// The code of the article about this condition.
    pub fn message_code(self) -> Option<&'static str> {
        Some(match self {
            Self::HostActive | Self::HostIdRequired | Self::HostMismatch => "ZFS-8000-EY",
            Self::VersionNewer => "ZFS-8000-A5",
            Self::BadGuidSum => "ZFS-8000-6X",
            Self::BadLog => "ZFS-8000-K4",
            Self::MissingBeyondRedundancy => "ZFS-8000-3C",
            Self::LabelsBeyondRedundancy => "ZFS-8000-5E",
            Self::CorruptPool => "ZFS-8000-72",
            Self::Missing => "ZFS-8000-2Q",
            Self::Errata(_) => "ZFS-8000-ER",
            Self::Labels => "ZFS-8000-4J",
            _ => return None,
        })
    }

    /// What follows `status:`; lines are separated by newlines. `unknown` are the features in the
    /// way.
    pub fn text(self, unknown: &[UnknownFeature]) -> Option<String> {
        let text = match self {
            Self::Resilvering => "One or more devices were being resilvered.",
            Self::HostActive => "The pool is currently imported by another system.",
            Self::HostIdRequired => {
                "The pool has the multihost property on.  It cannot\n\
                 be safely imported when the system hostid is not set."
            }
            Self::HostMismatch => "The pool was last accessed by another system.",
            Self::VersionNewer => "The pool is formatted using an incompatible version.",
            Self::FeaturesForRead => {
                "The pool uses the following feature(s) not supported on this system:"
            }
            Self::FeaturesForWrite => {
                "The pool can only be accessed in read-only mode on this system. It\n\
                 cannot be accessed in read-write mode because it uses the following\n\
                 feature(s) not supported on this system:"
            }
            Self::BadLog => "An intent log record cannot be read.",
            Self::FaultedBeyondRedundancy | Self::Faulted => "One or more devices are faulted.",
            Self::BadGuidSum | Self::MissingBeyondRedundancy | Self::Missing => {
                "One or more devices are missing from the system."
            }
            Self::LabelsBeyondRedundancy | Self::Labels => {
                "One or more devices contains corrupted data."
            }
            Self::CorruptPool => "The pool metadata is corrupted.",
            Self::MissedWrites => "One or more devices missed writes and were not resilvered.",
            Self::Offline => "One or more devices are offlined.",
            Self::NonNativeAshift => {
                "One or more devices were configured to use a non-native block size.\n\
                 Expect reduced performance."
            }
            Self::Errata(number) => return Some(format!("Errata #{number} detected.")),
            Self::VersionOlder => "The pool is formatted using a legacy on-disk version.",
            Self::Fine => return None,
        };
        let mut text = text.to_string();
        if matches!(self, Self::FeaturesForRead | Self::FeaturesForWrite) {
            for feature in unknown {
                text.push('\n');
                text.push_str(&feature.guid);
                if !feature.description.is_empty() {
                    text.push_str(&format!(" ({})", feature.description));
                }
            }
        }
        Some(text)
    }

    /// What follows `action:` for a pool whose root is in `condition`; lines are separated by newlines.
    pub fn action(self, condition: Condition, hostname: &str, hostid: u64) -> String {
        let text = match (condition.state, self) {
            (VdevState::Online, Self::VersionOlder) => {
                "The pool can be imported using its name or numeric identifier, though\n\
                 some features will not be available without an explicit 'zpool upgrade'."
            }
            (VdevState::Online, Self::HostMismatch) => {
                "The pool can be imported using its name or numeric identifier and\n\
                 the '-f' flag."
            }
            (VdevState::Online, Self::Errata(1)) => {
                "The pool can be imported using its name or numeric identifier,\n\
                 however there is a compatibility issue which should be corrected\n\
                 by running 'zpool scrub'"
            }
            (VdevState::Online, Self::Errata(2)) => {
                "The pool cannot be imported with this version of ZFS due to\n\
                 an active asynchronous destroy. Revert to an earlier version\n\
                 and allow the destroy to complete before updating."
            }
            (VdevState::Online, Self::Errata(3)) => {
                "Existing encrypted datasets contain an on-disk incompatibility, which\n\
                 needs to be corrected. Backup these datasets to new encrypted datasets\n\
                 and destroy the old ones."
            }
            (VdevState::Online, Self::Errata(EARLY_ENCRYPTION)) => {
                "Existing encrypted snapshots and bookmarks contain an on-disk\n\
                 incompatibility. This may cause on-disk corruption if they are used\n\
                 with 'zfs recv'. To correct the issue, enable the bookmark_v2 feature.\n\
                 No additional action is needed if there are no encrypted snapshots or\n\
                 bookmarks. If preserving the encrypted snapshots and bookmarks is\n\
                 required, use a non-raw send to backup and restore them. Alternately,\n\
                 they may be removed to resolve the incompatibility."
            }
            (VdevState::Online, _) => {
                "The pool can be imported using its name or numeric identifier."
            }
            (VdevState::Degraded, _) => {
                "The pool can be imported despite missing or damaged devices.  The\n\
                 fault tolerance of the pool may be compromised if imported."
            }
            (_, Self::VersionNewer) => {
                "The pool cannot be imported.  Access the pool on a system running newer\n\
                 software, or recreate the pool from backup."
            }
            (_, Self::FeaturesForRead) => {
                "The pool cannot be imported. Access the pool on a system that supports\n\
                 the required feature(s), or recreate the pool from backup."
            }
            (_, Self::FeaturesForWrite) => {
                "The pool cannot be imported in read-write mode. Import the pool with\n\
                 '-o readonly=on', access the pool on a system that supports the\n\
                 required feature(s), or recreate the pool from backup."
            }
            (_, Self::Missing | Self::MissingBeyondRedundancy | Self::BadGuidSum) => {
                "The pool cannot be imported. Attach the missing\ndevices and try again."
            }
            (_, Self::HostActive) => {
                return format!(
                    "The pool must be exported from {hostname} (hostid={hostid:x})\n\
                     before it can be safely imported."
                );
            }
            (_, Self::HostIdRequired) => {
                "Set a unique system hostid with the zgenhostid(8) command."
            }
            _ => "The pool cannot be imported due to damaged devices or data.",
        };
        text.to_string()
    }
}

/// What is said besides, for a pool whose metadata makes no sense.
pub fn import_note(state: PoolState, condition: Condition) -> Option<&'static str> {
    if condition.state != VdevState::Unavailable || condition.aux != Aux::CorruptData {
        return None;
    }
    match state {
        PoolState::Destroyed => {
            Some("The pool was destroyed, but can be imported using the '-Df' flags.")
        }
        PoolState::Exported => None,
        _ => Some(
            "The pool may be active on another system, but can be imported using\nthe '-f' flag.",
        ),
    }
}
