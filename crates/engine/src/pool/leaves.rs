//! The devices a scan found, as the vdev tree asks for them.
//!
//! Invariant: a leaf is matched by guid, never by path; a device whose verified labels do not say that
//! it is this leaf is not opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::Device;
use cenote_format::config::VdevConfig;
use cenote_format::{Guid, Txg};

use super::assemble::PoolCandidate;
use super::validate::{Strictness, check_label};
use crate::vdev::{Aux, Condition, LeafOpener, LeafUnavailable, VdevState};

/// Opens leaves from the devices of a [`PoolCandidate`].
pub struct CandidateLeaves {
    candidate: PoolCandidate,
    strictness: Strictness,
    /// Guid of each leaf to that of its top-level vdev.
    tops: BTreeMap<Guid, Guid>,
}

impl CandidateLeaves {
    /// Leaves of the tree the labels of `candidate` make.
    pub fn new(candidate: &PoolCandidate) -> Arc<Self> {
        Self::with(candidate, &candidate.tree, false, None)
    }

    /// Leaves of `tree`, the pool's own. Labels after `limit` do not count.
    pub fn trusted(candidate: &PoolCandidate, tree: &VdevConfig, limit: Option<Txg>) -> Arc<Self> {
        Self::with(candidate, tree, true, limit)
    }

    fn with(
        candidate: &PoolCandidate,
        tree: &VdevConfig,
        trusted: bool,
        limit: Option<Txg>,
    ) -> Arc<Self> {
        let strictness = Strictness { pool: candidate.guid, trusted, limit };
        let below = |top: &VdevConfig| {
            let guid = top.guid;
            top.devices().map(move |leaf| (leaf.guid, guid)).collect::<Vec<_>>()
        };
        let tops = tree.children().iter().flat_map(below).collect();
        Arc::new(Self { candidate: candidate.clone(), strictness, tops })
    }
}

impl LeafOpener for CandidateLeaves {
    fn open(&self, leaf: &VdevConfig) -> Result<Arc<dyn Device>, LeafUnavailable> {
        let path = leaf.path.as_deref().unwrap_or("no path recorded");
        let Some(found) = self.candidate.device(leaf) else {
            let reason = format!("no device with this guid was found ({path})");
            return Err(LeafUnavailable::open_failed(reason));
        };
        let top = self.tops.get(&leaf.guid).copied().unwrap_or_default();
        match check_label(leaf, top, found, &self.strictness) {
            Ok(()) => Ok(found.device.clone()),
            Err(aux) => Err(LeafUnavailable {
                condition: Condition::new(VdevState::Unavailable, aux),
                reason: match aux {
                    Aux::BadLabel => format!("no valid label on {path}"),
                    Aux::SplitPool => format!("{path} belongs to a pool split off this one"),
                    _ => format!("the labels of {path} do not fit the pool"),
                },
            }),
        }
    }
}
