//! What `zpool import` lists: pools that were found, what state they are in, what can be done.
//!
//! Invariant: plain values only, ready to be sent to the command line and rendered there; nothing here
//! opens or changes anything. The order of vdevs is that of their ids.

use cenote_format::config::{PoolState, VdevConfig, VdevKind};

use super::assemble::PoolCandidate;
use super::host::HostIdentity;
use super::import_status::{ImportStatus, import_note, import_status, reason_words, state_word};
use super::inspect::Inspection;
use super::naming::{NameStyle, vdev_name};
use crate::vdev::{AllocationClass, Condition, VdevStatus};

/// A vdev of a pool in the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportableVdev {
    /// Name as listed.
    pub name: String,
    /// Kind as in the config, e.g. `raidz`.
    pub kind: String,
    /// Identity.
    pub guid: u64,
    /// Path of its device.
    pub path: Option<String>,
    /// State word, e.g. `ONLINE`.
    pub state: String,
    /// Words for the reason, e.g. `cannot open`.
    pub reason: Option<String>,
    /// What it consists of.
    pub children: Vec<ImportableVdev>,
}

/// A pool in the listing. Texts may have several lines, separated by newlines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportablePool {
    /// Name.
    pub name: String,
    /// Numeric identifier.
    pub guid: u64,
    /// Pool version; 5000 with feature flags.
    pub version: u64,
    /// State word of the pool, e.g. `DEGRADED`.
    pub state: String,
    /// The pool was destroyed.
    pub destroyed: bool,
    /// The pool was exported in order.
    pub exported: bool,
    /// There is nothing to be said of it.
    pub is_fine: bool,
    /// Guids of its features, as far as its metadata could be read; none before version 5000.
    pub features: Option<Vec<String>>,
    /// Names of its compatibility files.
    pub compatibility: Option<String>,
    /// What follows `status:`, if anything is to be said.
    pub status: Option<String>,
    /// What follows `action:`.
    pub action: String,
    /// The pool's comment.
    pub comment: Option<String>,
    /// An extra sentence after the comment.
    pub note: Option<String>,
    /// Code of the article about the condition, e.g. `ZFS-8000-2Q`.
    pub message_code: Option<String>,
    /// Features that are in the way: guid and description.
    pub unknown_features: Vec<(String, String)>,
    /// Root vdev, named like the pool, with the data vdevs (and those whose class is not known).
    pub root: ImportableVdev,
    /// Names of cache devices.
    pub caches: Vec<String>,
    /// Names of spares.
    pub spares: Vec<String>,
    /// Vdevs for dedup tables.
    pub dedup: Vec<ImportableVdev>,
    /// Vdevs for metadata and small blocks.
    pub special: Vec<ImportableVdev>,
    /// Vdevs for the intent log.
    pub logs: Vec<ImportableVdev>,
    /// More devices are known to belong to the pool, but not which.
    pub incomplete: bool,
    /// The pool can be opened, at least for reading.
    pub importable: bool,
    /// It can only be opened for reading.
    pub read_only: bool,
    /// Another host had the pool last and did not export it: importing needs to be forced.
    pub needs_force: bool,
    /// Another host uses it right now (multihost): it must not be imported, not even by force.
    pub active_elsewhere: bool,
    /// Multihost is on and this host has no host id: it must not be imported.
    pub hostid_required: bool,
    /// Host that had it last; 0 if not recorded.
    pub hostid: u64,
    /// Name of that host.
    pub hostname: Option<String>,
    /// When it was last written, in seconds since 1970; 0 if unknown.
    pub last_access: u64,
    /// Transaction group it would be opened at; 0 if none.
    pub txg: u64,
    /// The state that was looked at, as [`cenote_format::Uberblock::recency`] tells it.
    pub newest: Option<(u64, u64, u64)>,
    /// Why it cannot be opened, in more words than `zpool` has.
    pub reason: Option<String>,
}

/// Puts together what is listed of `candidate`.
pub fn importable(
    candidate: &PoolCandidate,
    found: &Inspection,
    host: &HostIdentity,
) -> ImportablePool {
    let status = import_status(candidate, found, host);
    let condition = found.status.condition;
    let hostname = candidate.hostname.clone().unwrap_or_default();
    let classes = found.trusted.as_ref().map(|trusted| &trusted.classes);
    let mut root = ImportableVdev {
        name: candidate.name.clone(),
        children: Vec::new(),
        ..describe(&found.tree, condition)
    };
    let (mut dedup, mut special, mut logs) = (Vec::new(), Vec::new(), Vec::new());
    for (top, status) in found.tree.children().iter().zip(&found.status.children) {
        if matches!(top.kind, VdevKind::Hole | VdevKind::Missing) {
            continue;
        }
        let class = classes.and_then(|classes| classes.get(&top.id?).copied());
        let group = match class {
            _ if top.top.is_some_and(|keys| keys.is_log) => &mut logs,
            Some(AllocationClass::Log) => &mut logs,
            Some(AllocationClass::Special) => &mut special,
            Some(AllocationClass::Dedup) => &mut dedup,
            Some(AllocationClass::Normal) | None => &mut root.children,
        };
        group.push(below(top, status));
    }
    let names = |list: &[VdevConfig]| -> Vec<String> {
        list.iter().map(|node| auxiliary_name(candidate, node)).collect()
    };
    let trusted = found.trusted.as_ref();
    let best = found.choice.as_ref().map(|choice| &choice.best);
    ImportablePool {
        name: candidate.name.clone(),
        guid: candidate.guid.0,
        version: best.map_or(candidate.version, |best| best.version),
        state: state_word(condition).into(),
        destroyed: candidate.state == PoolState::Destroyed,
        exported: candidate.state == PoolState::Exported,
        is_fine: status == ImportStatus::Fine,
        features: features(found),
        compatibility: candidate.compatibility.clone(),
        status: status.text(&found.unknown_features),
        action: status.action(condition, &hostname, candidate.hostid),
        comment: candidate.comment.clone(),
        note: import_note(candidate.state, condition).map(str::to_string),
        message_code: status.message_code().map(str::to_string),
        unknown_features: described(found),
        root,
        caches: trusted.map(|trusted| names(&trusted.caches)).unwrap_or_default(),
        spares: trusted.map(|trusted| names(&trusted.spares)).unwrap_or_default(),
        dedup,
        special,
        logs,
        incomplete: status == ImportStatus::BadGuidSum,
        importable: found.is_readable(),
        read_only: found.read_only_possible,
        needs_force: needs_force(candidate, host),
        active_elsewhere: status == ImportStatus::HostActive,
        hostid_required: found.hostid_required,
        hostid: candidate.hostid,
        hostname: candidate.hostname.clone(),
        last_access: best.map_or(0, |best| best.timestamp),
        txg: best.map_or(0, |best| best.txg.0),
        newest: best.map(cenote_format::Uberblock::recency),
        reason: found.reason.clone(),
    }
}

/// Guids of the features that are enabled.
fn features(found: &Inspection) -> Option<Vec<String>> {
    let trusted = found.trusted.as_ref().filter(|trusted| trusted.failure.is_none())?;
    let all = trusted.features.for_read.iter().chain(&trusted.features.for_write);
    Some(all.map(|(guid, _)| guid.clone()).collect())
}

/// Guids and descriptions of the features that are not known here.
fn described(found: &Inspection) -> Vec<(String, String)> {
    let unknown = found.unknown_features.iter();
    unknown.map(|feature| (feature.guid.clone(), feature.description.clone())).collect()
}

/// Importing must be forced: not exported, and another host had it last (chapter 01, section 11.7).
pub fn needs_force(candidate: &PoolCandidate, host: &HostIdentity) -> bool {
    candidate.state != PoolState::Exported && candidate.hostid != host.id
}

fn describe(node: &VdevConfig, condition: Condition) -> ImportableVdev {
    ImportableVdev {
        name: vdev_name(node, NameStyle::default()),
        kind: node.kind.name().into(),
        guid: node.guid.0,
        path: node.path.clone(),
        state: state_word(condition).into(),
        reason: reason_words(condition.aux).map(str::to_string),
        children: Vec::new(),
    }
}

fn below(node: &VdevConfig, status: &VdevStatus) -> ImportableVdev {
    let children = node.children().iter().zip(&status.children);
    let children = children.map(|(node, status)| below(node, status)).collect();
    ImportableVdev { children, ..describe(node, status.condition) }
}

/// The name of a spare or cache device, by the path it has now.
fn auxiliary_name(candidate: &PoolCandidate, node: &VdevConfig) -> String {
    let mut node = node.clone();
    if let Some(found) = candidate.device(&node) {
        let path = found.path(node.path.as_deref());
        node.path = Some(path.to_string_lossy().into_owned());
    }
    vdev_name(&node, NameStyle::default())
}

#[cfg(test)]
mod tests;
