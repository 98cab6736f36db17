//! The labels of one device, and which of them to believe.
//!
//! Invariant: a label is believed only if its checksum says that it was written at exactly that place of
//! the device.

use cenote_codec::checksum::{Algorithm, Width, verify_embedded};
use cenote_device::{Device, DeviceError};
use cenote_format::Txg;
use cenote_format::config::PoolConfig;
use cenote_format::label::{self, LABELS};

/// One label of a device, as far as it can be unpacked.
#[derive(Clone, Debug)]
pub struct FoundLabel {
    /// Position, 0 to 3.
    pub index: usize,
    /// What it says.
    pub config: PoolConfig,
    /// Its checksum is right.
    pub verified: bool,
}

impl FoundLabel {
    /// A label the scan counts: of a device that is in a pool, or is a spare or cache device.
    pub fn counts(&self) -> bool {
        let config = &self.config;
        let identified = config.guid.is_some_and(|guid| guid.0 != 0);
        let in_pool = config.txg.is_some_and(|txg| txg != Txg(0));
        identified && config.state.is_some_and(|state| state.is_auxiliary() || in_pool)
    }
}

/// Whether `block`, read at device byte `offset`, carries the checksum a label structure must have.
pub fn is_verified(block: &[u8], offset: u64) -> bool {
    verify_embedded(block, Algorithm::Label, &[offset, 0, 0, 0], Width::Full).is_ok()
}

/// Every label of `device` that can be unpacked, by position. Fails only if none could be read.
pub fn read_labels(device: &dyn Device) -> Result<Vec<FoundLabel>, DeviceError> {
    let mut labels = Vec::new();
    let mut failure = None;
    let mut read = false;
    for index in 0..LABELS {
        let Some(offset) = label::label_offset(device.size(), index) else {
            return Ok(labels);
        };
        let offset = offset + label::CONFIG_OFFSET;
        match device.read(offset, label::CONFIG_SIZE) {
            Ok(block) => {
                read = true;
                let config = label::decode_config(&block).and_then(PoolConfig::from_nvlist);
                if let Ok(config) = config {
                    let verified = is_verified(&block, offset);
                    labels.push(FoundLabel { index, config, verified });
                }
            }
            Err(error @ (DeviceError::TimedOut(_) | DeviceError::Stuck(_) | DeviceError::Gone)) => {
                return Err(error);
            }
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if !read => Err(error),
        _ => Ok(labels),
    }
}

/// The label to believe among the `labels` of one device: verified, and the newest of `limit` or
/// before. One without a transaction group counts if there is no other.
pub fn best_label(labels: &[FoundLabel], limit: Option<Txg>) -> Option<&FoundLabel> {
    let mut best: Option<(&FoundLabel, Txg)> = None;
    for label in labels.iter().filter(|label| label.verified) {
        let txg = label.config.txg.unwrap_or_default();
        let within = limit.is_none_or(|limit| txg <= limit);
        if within && best.is_none_or(|(_, newest)| txg > newest) {
            best = Some((label, txg));
        }
    }
    best.map(|(label, _)| label)
}
