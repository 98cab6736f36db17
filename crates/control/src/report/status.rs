//! What is wrong with a pool.
//!
//! Invariant: one thing is told, the most urgent.

use serde::{Deserialize, Serialize};

/// What is wrong with a pool, as `zpool status` explains it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the words are in `text::words`
pub enum PoolStatus {
    #[default]
    Healthy,
    CorruptCache,
    MissingDevice,
    MissingDeviceNoReplicas,
    CorruptLabel,
    CorruptLabelNoReplicas,
    BadGuidSum,
    CorruptPool,
    CorruptData,
    FailingDevice,
    VersionNewer,
    HostMismatch,
    HostActive,
    HostRequired,
    IoFailureWait,
    IoFailureContinue,
    IoFailureMultihost,
    BadLog,
    Errata(u32),
    /// Features that keep the pool from being opened at all.
    UnsupportedFeaturesRead(Vec<String>),
    /// Features that keep it from being written.
    UnsupportedFeaturesWrite(Vec<String>),
    FaultedDevice,
    FaultedDeviceNoReplicas,
    VersionOlder,
    FeaturesDisabled,
    Resilvering,
    OfflineDevice,
    RemovedDevice,
    Rebuilding,
    RebuildScrub,
    NonNativeAshift,
    CompatibilityError,
    IncompatibleFeature,
    /// Devices that are there missed writes of this many transaction groups.
    MissedWrites(u64),
    /// Data cannot be read for now, but may be when devices are back. What was written in this many
    /// transaction groups may be on no device that is there.
    OutOfReach(u64),
}

impl PoolStatus {
    /// Whether nothing is wrong, and only something could be better.
    pub fn is_remark(&self) -> bool {
        matches!(
            self,
            Self::VersionOlder
                | Self::FeaturesDisabled
                | Self::CompatibilityError
                | Self::IncompatibleFeature
                | Self::NonNativeAshift
        )
    }
}
