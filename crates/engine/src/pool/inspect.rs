//! How far a pool can be opened: the stages of a load, none of which writes.
//!
//! Invariant: the first stage that fails decides what is said of the pool; what later stages would have
//! told is left out, never guessed. Chapter 01, section 11.4.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cenote_format::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_format::{Txg, feature};

use super::activity::{self, Clock, Need, Settings};
use super::assemble::{PoolCandidate, correct_paths};
use super::choose::{Choice, ChooseError, choose};
use super::features::{Access, FeatureRecord, UnknownFeature, unknown_in_label};
use super::host::HostIdentity;
use super::leaves::CandidateLeaves;
use crate::vdev::{
    AllocationClass, Aux, Condition, LeafOpener, Missed, VdevState, VdevStats, VdevStatus, VdevTree,
};

/// What the pool's own metadata tells of it.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    /// The config object.
    pub config: PoolConfig,
    /// The list of spares.
    pub spares: Vec<VdevConfig>,
    /// The list of cache devices.
    pub caches: Vec<VdevConfig>,
    /// Classes of top-level vdevs by id; those of ordinary data vdevs are left out.
    pub classes: BTreeMap<u64, AllocationClass>,
    /// The features.
    pub features: FeatureRecord,
    /// A resilver was going on.
    pub resilvering: bool,
    /// What leaves missed.
    pub missed: Vec<Missed>,
    /// Why what comes after `config` could not be read.
    pub failure: Option<String>,
}

/// Reads the pool's own metadata from the devices of a candidate. An error is the reason why not.
pub type Loader<'a> = dyn Fn(&PoolCandidate, &Choice) -> crate::Result<Trusted> + 'a;

/// How to inspect.
pub struct Inspector<'a> {
    /// This host.
    pub host: &'a HostIdentity,
    /// Reads metadata; without it only labels and uberblocks are looked at.
    pub loader: Option<&'a Loader<'a>>,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Multihost settings.
    pub settings: Settings,
    /// How long one device may take.
    pub deadline: Duration,
    /// Uberblocks after this group are passed over.
    pub max_txg: Option<Txg>,
    /// The pool may do without a log device that cannot be opened.
    pub missing_log: bool,
}

/// What was found out about a pool.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The tree: the pool's own if the load came so far, else the labels'.
    pub tree: VdevConfig,
    /// Its condition; the root's says whether the pool can be opened.
    pub status: VdevStatus,
    /// Uberblock and label, if there are.
    pub choice: Option<Choice>,
    /// What the pool's metadata tells, if the load came so far.
    pub trusted: Option<Trusted>,
    /// Features that are in the way.
    pub unknown_features: Vec<UnknownFeature>,
    /// They only forbid writing.
    pub read_only_possible: bool,
    /// Multihost is on, but this host has no identity.
    pub hostid_required: bool,
    /// Why the load stopped, in more words.
    pub reason: Option<String>,
}

impl Inspection {
    fn stop(&mut self, aux: Aux, reason: impl Into<String>) {
        self.status.condition = Condition::new(VdevState::Unavailable, aux);
        self.reason = Some(reason.into());
    }

    /// The pool can be opened, at least for reading.
    pub fn is_readable(&self) -> bool {
        self.status.condition.state.is_readable() || self.read_only_possible
    }
}

/// The condition of the tree the labels make. A top-level vdev no label describes does not count
/// against the pool yet: the metadata, if it can be read without, tells what it is.
fn assess_labels(candidate: &PoolCandidate) -> VdevStatus {
    let mut status = assess(&candidate.tree, CandidateLeaves::new(candidate), &[]);
    let unreadable = |child: &&VdevStatus| !child.condition.state.is_readable();
    let (known, missing): (Vec<_>, Vec<_>) =
        status.children.iter().partition(|child| child.config.kind != VdevKind::Missing);
    let is_log = |child: &VdevStatus| child.config.top.is_some_and(|keys| keys.is_log);
    if !missing.is_empty() && known.iter().copied().filter(unreadable).all(is_log) {
        let worn = known.iter().any(|child| child.condition.state <= VdevState::Degraded);
        let state = if worn { VdevState::Degraded } else { VdevState::Online };
        status.condition = Condition::new(state, Aux::None);
    }
    status
}

/// The condition of every node of `tree`, whose leaves are opened by `leaves` and `missed` writes.
fn assess(tree: &VdevConfig, leaves: Arc<dyn LeafOpener>, missed: &[Missed]) -> VdevStatus {
    let status = VdevTree::build(tree, leaves).map(|vdevs| {
        missed.iter().for_each(|(leaf, txgs)| vdevs.set_missing_txgs(*leaf, txgs.clone()));
        vdevs.status()
    });
    match status {
        Ok(Some(status)) => status,
        Ok(None) => corrupt(tree),
        Err(error) => {
            tracing::warn!(%error, "a vdev tree that cannot be");
            corrupt(tree)
        }
    }
}

/// A tree that makes no sense, for display.
fn corrupt(tree: &VdevConfig) -> VdevStatus {
    VdevStatus {
        config: VdevConfig { children: None, ..tree.clone() },
        condition: Condition::new(VdevState::Unavailable, Aux::CorruptData),
        stats: VdevStats::default(),
        class: AllocationClass::Normal,
        asize: 0,
        expandable: 0,
        missed: 0,
        children: tree.children().iter().map(corrupt).collect(),
    }
}

/// The pool's own tree with the paths its devices have now.
pub fn trusted_tree(candidate: &PoolCandidate, config: &PoolConfig) -> Option<VdevConfig> {
    let mut tree = config.vdev_tree.clone()?;
    correct_paths(&mut tree, &candidate.devices);
    correct_paths(&mut tree, &candidate.auxiliary);
    Some(tree)
}

/// Goes through the stages of a load as far as they go.
pub fn inspect(candidate: &PoolCandidate, inspector: &Inspector<'_>) -> Inspection {
    let mut found = Inspection {
        tree: candidate.tree.clone(),
        status: assess_labels(candidate),
        choice: None,
        trusted: None,
        unknown_features: Vec::new(),
        read_only_possible: false,
        hostid_required: false,
        reason: None,
    };
    if !found.status.condition.state.is_readable() {
        found.reason = Some("one or more devices is currently unavailable".into());
        return found;
    }
    let leaves = candidate.leaves(&candidate.tree);
    let choice = match choose(&leaves, inspector.max_txg, inspector.deadline) {
        Ok(choice) => choice,
        Err(silence @ ChooseError::NoAnswer(..)) => {
            found.reason = Some(silence.to_string());
            return found;
        }
        Err(error) => {
            found.stop(Aux::CorruptData, error.to_string());
            return found;
        }
    };
    found.choice = Some(choice.clone());
    if !is_idle(candidate, &choice, inspector, &mut found) || !label_allows(&choice, &mut found) {
        return found;
    }
    let Some(loader) = inspector.loader else {
        check_sum(&choice, &mut found);
        return found;
    };
    match loader(candidate, &choice) {
        Ok(trusted) => check_trusted(candidate, inspector, &choice, trusted, &mut found),
        Err(error) => found.stop(Aux::CorruptData, error.to_string()),
    }
    found
}

/// The pool is not in use by another host.
fn is_idle(
    candidate: &PoolCandidate,
    choice: &Choice,
    inspector: &Inspector<'_>,
    found: &mut Inspection,
) -> bool {
    let own = inspector.host.id;
    match activity::need(&choice.best, candidate.state, candidate.hostid, own) {
        Need::Nothing => true,
        Need::HostIdRequired => {
            found.hostid_required = true;
            found.stop(Aux::Active, "multihost is on and this host has no host id");
            false
        }
        Need::Check => {
            let leaves = candidate.leaves(&candidate.tree);
            let mut reread =
                || choose(&leaves, inspector.max_txg, inspector.deadline).ok().map(|now| now.best);
            let time = activity::duration(&choice.best, &inspector.settings);
            // The random part keeps two hosts that start together from agreeing for ever.
            let random = f64::from(std::process::id() % 100) / 100.0;
            match activity::watch(&choice.best, time, random, inspector.clock, &mut reread) {
                Ok(()) => true,
                Err(error) => {
                    found.stop(Aux::Active, error.to_string());
                    false
                }
            }
        }
    }
}

/// Version and features of the label do not forbid reading the metadata.
fn label_allows(choice: &Choice, found: &mut Inspection) -> bool {
    let version = choice.best.version;
    if !feature::version_is_supported(version) {
        found.stop(Aux::VersionNewer, format!("pool version {version}"));
        return false;
    }
    if version < feature::FEATURE_VERSION {
        return true;
    }
    match choice.label.as_ref().map(unknown_in_label) {
        Some(Some(unknown)) if unknown.is_empty() => true,
        Some(Some(unknown)) => {
            found.unknown_features = unknown;
            found.stop(Aux::UnsupportedFeature, "unknown features in the label");
            false
        }
        _ => {
            found.stop(Aux::CorruptData, "every label is newer than the newest uberblock left; going back (-F) finds that state");
            false
        }
    }
}

/// Every vdev the uberblock counts is in the tree.
fn check_sum(choice: &Choice, found: &mut Inspection) -> bool {
    let complete = found.tree.walk().all(|node| node.kind != VdevKind::Missing);
    if complete && found.tree.guid_sum() == choice.best.guid_sum {
        return true;
    }
    found.stop(Aux::BadGuidSum, "vdevs of the pool are not known");
    false
}

fn check_trusted(
    candidate: &PoolCandidate,
    inspector: &Inspector<'_>,
    choice: &Choice,
    trusted: Trusted,
    found: &mut Inspection,
) {
    let Some(tree) = trusted_tree(candidate, &trusted.config) else {
        found.stop(Aux::CorruptData, "the pool's config has no vdev tree");
        return;
    };
    let limit = Some(choice.best.txg);
    let leaves = CandidateLeaves::trusted(&candidate.known_as(&trusted.config), limit);
    found.status = assess(&tree, leaves, &trusted.missed);
    found.tree = tree;
    if !found.status.condition.state.is_readable() {
        found.reason = Some("one or more devices is currently unavailable".into());
        return;
    }
    let tops = found.status.children.iter();
    let mut logs = tops.filter(|top| top.config.top.is_some_and(|keys| keys.is_log));
    if !inspector.missing_log && logs.any(|log| log.condition.state == VdevState::Unavailable) {
        found.stop(Aux::BadGuidSum, "a log device cannot be opened");
        return;
    }
    if !check_sum(choice, found) {
        return;
    }
    if let Some(failure) = &trusted.failure {
        found.stop(Aux::CorruptData, failure.clone());
        return;
    }
    match trusted.features.access() {
        Access::ReadWrite => {}
        Access::ReadOnly(unknown) => {
            found.unknown_features = unknown;
            found.stop(Aux::UnsupportedFeature, "unknown features forbid writing");
            found.read_only_possible = true;
        }
        Access::None(unknown) => {
            found.unknown_features = unknown;
            found.stop(Aux::UnsupportedFeature, "unknown features forbid reading");
            return;
        }
    }
    found.trusted = Some(trusted);
}
