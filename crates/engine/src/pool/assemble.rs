//! Putting the labels of many devices together into pools.
//!
//! Invariant: the outcome depends on the labels and the order of the search alone, not on the names
//! devices had when they were last used; every top-level id of a pool has exactly one node.
//! Chapter 01, section 11.2.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cenote_device::Mode;
use cenote_format::config::{PoolConfig, PoolState, VdevConfig, VdevKind};
use cenote_format::{Guid, Txg};

use super::choose::Leaf;
use super::discover::{FileOpener, FoundDevice, Opener, Scan, ScanOptions, scan};

/// Most top-level vdevs a pool may claim to have.
const MAX_TOP_LEVEL: u64 = 65_536;

/// Devices by their guid.
pub type Devices = BTreeMap<Guid, Arc<FoundDevice>>;

/// A pool as its labels tell it: not to be trusted before its own metadata agrees.
#[derive(Clone, Debug)]
pub struct PoolCandidate {
    /// Identity.
    pub guid: Guid,
    /// Name.
    pub name: String,
    /// Pool version.
    pub version: u64,
    /// State of its labels.
    pub state: PoolState,
    /// The pool's comment.
    pub comment: Option<String>,
    /// Names of its compatibility files.
    pub compatibility: Option<String>,
    /// Host that used it last; 0 if not recorded.
    pub hostid: u64,
    /// Name of that host.
    pub hostname: Option<String>,
    /// Newest transaction group of any of its labels.
    pub txg: Txg,
    /// Root of the tree the labels make, with the devices' present paths.
    pub tree: VdevConfig,
    /// The devices that say they are of this pool.
    pub devices: Devices,
    /// Spares and cache devices of any pool, for the lists in the pool's metadata.
    pub auxiliary: Arc<Devices>,
}

impl PoolCandidate {
    /// The device behind the leaf `node`.
    pub fn device(&self, node: &VdevConfig) -> Option<&Arc<FoundDevice>> {
        self.device_of(node.guid)
    }

    /// The device of this guid.
    pub fn device_of(&self, guid: Guid) -> Option<&Arc<FoundDevice>> {
        self.devices.get(&guid).or_else(|| self.auxiliary.get(&guid))
    }

    /// The same as the pool's own configuration calls it: where giving it a new guid was cut off, labels tell that
    /// one already.
    #[must_use]
    pub fn known_as(&self, config: &PoolConfig) -> Self {
        Self { guid: config.pool_guid.unwrap_or(self.guid), ..self.clone() }
    }

    /// The leaves of `tree` that have a device, ready to have their rings read. Leaves taken offline
    /// or forced to fail are left out.
    pub fn leaves(&self, tree: &VdevConfig) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        for top in tree.children() {
            let ashift = top.top.map(|top| top.ashift);
            for node in top.devices().filter(|node| !node.is_withheld()) {
                if let Some(found) = self.device(node) {
                    let device = found.device.clone();
                    leaves.push(Leaf { guid: node.guid, ashift, device });
                }
            }
        }
        leaves
    }
}

#[derive(Default)]
struct Group<'a> {
    /// Top-level guid to transaction group to the first config seen of it.
    tops: Vec<(Guid, BTreeMap<Txg, &'a PoolConfig>)>,
    devices: Vec<Arc<FoundDevice>>,
}

/// The pools found on the devices in `places` (files, directories; none: the system's disks).
pub fn candidates(places: &[PathBuf]) -> Vec<PoolCandidate> {
    candidates_and_silent(places).0
}

/// The same, and the names of places and devices there that did not answer.
pub fn candidates_and_silent(places: &[PathBuf]) -> (Vec<PoolCandidate>, Vec<PathBuf>) {
    let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: Mode::ReadOnly });
    let found = scan(&opener, &ScanOptions::new(places.to_vec()));
    let silent = found.problems.iter().filter(|problem| problem.silent);
    (assemble(&found), silent.map(|problem| problem.path.clone()).collect())
}

/// Makes pools of what a scan found, in the order their first devices were found.
pub fn assemble(scan: &Scan) -> Vec<PoolCandidate> {
    let mut groups: Vec<(Guid, Group<'_>)> = Vec::new();
    let mut auxiliary: Vec<Arc<FoundDevice>> = Vec::new();
    for found in &scan.devices {
        let Some(config) = found.config() else { continue };
        if config.state.is_some_and(PoolState::is_auxiliary) {
            auxiliary.push(found.clone());
            continue;
        }
        let (Some(pool), Some(top), Some(txg), Some(_)) =
            (config.pool_guid, config.top_guid, config.txg, &config.vdev_tree)
        else {
            continue;
        };
        let group = entry(&mut groups, pool);
        entry(&mut group.tops, top).entry(txg).or_insert(config);
        group.devices.push(found.clone());
    }
    let auxiliary = Arc::new(by_guid(auxiliary, &BTreeMap::new()));
    groups.into_iter().filter_map(|(guid, group)| pool(guid, group, &auxiliary)).collect()
}

/// The value of `key` in a list that keeps its order, made if need be.
fn entry<V: Default>(list: &mut Vec<(Guid, V)>, key: Guid) -> &mut V {
    let index = list.iter().position(|(guid, _)| *guid == key).unwrap_or_else(|| {
        list.push((key, V::default()));
        list.len() - 1
    });
    &mut list[index].1
}

fn pool(guid: Guid, group: Group<'_>, auxiliary: &Arc<Devices>) -> Option<PoolCandidate> {
    let newest: Vec<&PoolConfig> = group
        .tops
        .iter()
        .filter_map(|(_, configs)| configs.last_key_value().map(|(_, config)| *config))
        .collect();
    let first = *newest.first()?;
    let latest = *newest.iter().max_by_key(|config| (config.txg, Reverse(config.guid)))?;
    let children = children(&newest, latest)?;
    let mut tree = VdevConfig {
        kind: VdevKind::Root,
        id: Some(0),
        guid,
        children: Some(children),
        ..VdevConfig::default()
    };
    let paths = tree
        .devices()
        .filter_map(|node| Some((node.guid, node.path.clone()?)))
        .collect::<BTreeMap<_, _>>();
    let devices = by_guid(group.devices, &paths);
    correct_paths(&mut tree, &devices);
    Some(PoolCandidate {
        guid,
        name: first.name.clone().unwrap_or_default(),
        version: first.version.unwrap_or(0),
        state: first.state.unwrap_or(PoolState::Active),
        comment: first.comment.clone(),
        compatibility: first.compatibility.clone(),
        hostid: first.hostid.unwrap_or(0),
        hostname: first.hostname.clone(),
        txg: latest.txg.unwrap_or_default(),
        tree,
        devices,
        auxiliary: auxiliary.clone(),
    })
}

/// The top-level vdevs by id: known ones, holes, and placeholders for what is missing.
fn children(newest: &[&PoolConfig], latest: &PoolConfig) -> Option<Vec<VdevConfig>> {
    let mut known: BTreeMap<u64, (Txg, &VdevConfig)> = BTreeMap::new();
    for config in newest {
        let Some(top) = &config.vdev_tree else { continue };
        let (id, txg) = (top.id.unwrap_or(0), config.txg.unwrap_or_default());
        // Two guids may claim an id when a stale device turned up: the newer one has it.
        if known.get(&id).is_none_or(|(other, _)| txg > *other) {
            known.insert(id, (txg, top));
        }
    }
    let past_last = known.last_key_value().map_or(0, |(id, _)| id.saturating_add(1));
    let count = latest.vdev_children.unwrap_or(past_last);
    if count > MAX_TOP_LEVEL {
        tracing::warn!(count, "a label claims an impossible number of top-level vdevs");
        return None;
    }
    let child = |id: u64| match known.get(&id) {
        Some((_, top)) => (*top).clone(),
        None if latest.holes.contains(&id) => VdevConfig::placeholder(VdevKind::Hole, id),
        None => VdevConfig::placeholder(VdevKind::Missing, id),
    };
    Some((0..count).map(child).collect())
}

/// One device for each guid: the one at the stored path, else with most labels, else found first.
pub(super) fn by_guid(devices: Vec<Arc<FoundDevice>>, stored: &BTreeMap<Guid, String>) -> Devices {
    let score = |found: &FoundDevice| {
        let stored = stored.get(&found.guid());
        let at_home =
            stored.is_some_and(|path| found.paths.iter().any(|p| p.as_os_str() == &**path));
        (at_home, found.quality(), Reverse(found.rank))
    };
    let mut chosen = Devices::new();
    for found in devices {
        match chosen.get(&found.guid()) {
            Some(other) if score(other) >= score(&found) => {}
            _ => {
                chosen.insert(found.guid(), found);
            }
        }
    }
    chosen
}

/// Gives every leaf of `tree` the path its device has now.
pub fn correct_paths(tree: &mut VdevConfig, devices: &Devices) {
    if let Some(found) = devices.get(&tree.guid)
        && tree.kind.has_device()
    {
        let path = found.path(tree.path.as_deref());
        tree.path = Some(path.to_string_lossy().into_owned());
    }
    for child in tree.children.iter_mut().flatten() {
        correct_paths(child, devices);
    }
}

#[cfg(test)]
mod tests;
