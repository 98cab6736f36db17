//! The devices a scan found, as the vdev tree asks for them.
//!
//! Invariant: a leaf is matched by guid, never by path; what its label says of another pool is not
//! its device.

use std::sync::Arc;

use cenote_device::Device;
use cenote_format::config::VdevConfig;

use super::assemble::PoolCandidate;
use crate::vdev::{LeafOpener, LeafUnavailable};

/// Opens leaves from the devices of a [`PoolCandidate`].
pub struct CandidateLeaves(PoolCandidate);

impl CandidateLeaves {
    /// Leaves of `candidate`.
    pub fn new(candidate: &PoolCandidate) -> Arc<Self> {
        Arc::new(Self(candidate.clone()))
    }
}

impl LeafOpener for CandidateLeaves {
    fn open(&self, leaf: &VdevConfig) -> Result<Arc<dyn Device>, LeafUnavailable> {
        let found = self.0.device(leaf);
        found.map(|found| found.device.clone()).ok_or_else(|| {
            let path = leaf.path.as_deref().unwrap_or("no path recorded");
            LeafUnavailable::open_failed(format!("no device with this guid was found ({path})"))
        })
    }
}
