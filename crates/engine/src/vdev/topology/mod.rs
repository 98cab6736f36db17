//! What a pool is made of: its top-level vdevs, what is below them, and which blocks each takes.
//!
//! Chapter 01, section 7; chapter 08, sections 14, 15, 21 and 22. A [`Topology`] is a value: the
//! operations ([`Topology::add`], [`Topology::attach`] and the others) make another one and leave it
//! as it is. Invariant: every topology starts with a root and has ids equal to positions, no guid
//! twice, a bounded depth and number of nodes, and nowhere a kind of vdev that does not belong there.

mod members;
mod split;
#[cfg(test)]
mod tests;
mod tops;

pub use members::Detached;
pub use split::{Leg, Split};

use super::error::VdevError;
use cenote_format::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_format::{Guid, ObjectId, Txg};
use std::collections::{BTreeMap, HashSet};

/// Deepest nesting: root, mirror, raidz, spare, replacing, leaf, and some room.
const MAX_DEPTH: usize = 10;
/// Most nodes of a pool.
const MAX_NODES: usize = 1 << 16;

/// What kind of blocks a top-level vdev takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AllocationClass {
    /// Anything.
    #[default]
    Normal = 0,
    /// The intent log.
    Log = 1,
    /// Metadata and small blocks.
    Special = 2,
    /// Dedup tables.
    Dedup = 3,
}

/// The vdevs of one pool as of one transaction group.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    root: VdevConfig,
    /// By id of the top-level vdev.
    classes: Vec<AllocationClass>,
    changed: Txg,
    /// Nodes that go by another guid than in the topology the pool had before: their guids now, and
    /// before.
    adopted: BTreeMap<Guid, Guid>,
}

impl Topology {
    /// The vdevs at and below `root`, of kind root. What serves the intent log is known from the
    /// configuration, the other classes are to be given ([`Topology::with_classes`]).
    ///
    /// # Errors
    /// [`VdevError::Config`] if no pool can be made like this.
    pub fn of(root: VdevConfig) -> Result<Self, VdevError> {
        let is_log = |top: &VdevConfig| top.top.is_some_and(|top| top.is_log);
        let class = |top| if is_log(top) { AllocationClass::Log } else { AllocationClass::Normal };
        let classes = root.children().iter().map(class).collect();
        Self { root, classes, changed: Txg(0), adopted: BTreeMap::new() }.checked()
    }

    /// The root and all below it, as it is recorded.
    pub fn root(&self) -> &VdevConfig {
        &self.root
    }

    /// The top-level vdevs in the order of their ids, holes and removed ones included.
    pub fn tops(&self) -> &[VdevConfig] {
        self.root.children()
    }

    /// The top-level vdev of this id.
    pub fn top(&self, id: u32) -> Option<&VdevConfig> {
        self.tops().get(id as usize)
    }

    /// The id of the top-level vdev that is or holds the node of this guid.
    pub fn top_of(&self, guid: Guid) -> Option<u32> {
        let top = *self.path(guid)?.first()?;
        u32::try_from(top).ok()
    }

    /// The node of this guid; holes have none.
    pub fn find(&self, guid: Guid) -> Option<&VdevConfig> {
        at(&self.root, &self.path(guid)?)
    }

    /// The class of a top-level vdev.
    pub fn class(&self, id: u32) -> AllocationClass {
        self.classes.get(id as usize).copied().unwrap_or_default()
    }

    /// The group that changed it last; 0 if none did since the pool was opened.
    pub fn changed(&self) -> Txg {
        self.changed
    }

    /// The guid by which the topology before knew the node that is `guid` now.
    pub fn guid_before(&self, guid: Guid) -> Guid {
        self.adopted.get(&guid).copied().unwrap_or(guid)
    }

    /// What uberblocks record of it: the sum of all guids, modulo 2^64.
    pub fn guid_sum(&self) -> u64 {
        self.root.guid_sum()
    }

    /// The configuration of a pool of these vdevs; `facts` tells what is not about vdevs.
    pub fn config(&self, facts: &PoolConfig) -> PoolConfig {
        PoolConfig {
            vdev_children: Some(self.tops().len() as u64),
            vdev_tree: Some(self.root.clone()),
            ..facts.clone()
        }
    }

    /// What the label of `leaf` holds; `None` if the pool has no such device. `facts` as for
    /// [`Topology::config`]. Chapter 01, sections 7.1 to 7.3.
    pub fn label(&self, facts: &PoolConfig, leaf: Guid) -> Option<PoolConfig> {
        let below = |top: &&VdevConfig| top.devices().any(|node| node.guid == leaf);
        let top = self.tops().iter().find(below)?;
        let node = top.devices().find(|node| node.guid == leaf)?;
        let holes = self.tops().iter().filter(|top| top.kind == VdevKind::Hole);
        Some(PoolConfig {
            top_guid: Some(top.guid),
            guid: Some(leaf),
            is_spare: node.is_spare,
            is_log: node.guid == top.guid && node.top.is_some_and(|top| top.is_log),
            split: None,
            has_per_vdev_zaps: false,
            holes: holes.filter_map(|hole| hole.id).collect(),
            vdev_children: Some(self.tops().len() as u64),
            vdev_tree: Some(label_node(top)),
            create_txg: None,
            raw: Default::default(),
            ..facts.clone()
        })
    }

    /// The same vdevs, of these classes.
    #[must_use]
    pub fn with_classes(&self, classes: &[AllocationClass]) -> Self {
        let class = |id| classes.get(id).copied().unwrap_or_default();
        Self { classes: (0..self.tops().len()).map(class).collect(), ..self.clone() }
    }

    /// The same vdevs in a pool of this guid, from group `txg` on.
    ///
    /// # Errors
    /// If a vdev has that guid.
    pub fn with_guid(&self, guid: Guid, txg: Txg) -> Result<Self, VdevError> {
        let mut next = self.next(txg);
        next.root.guid = guid;
        next.checked()
    }

    /// The same vdevs; these objects have the dirty time logs of these leaves, from group `txg` on.
    #[must_use]
    pub fn with_dirty_time_logs(&self, logs: &[(Guid, ObjectId)], txg: Txg) -> Self {
        let mut next = self.next(txg);
        for (leaf, object) in logs {
            let path = self.path(*leaf);
            if let Some(node) = path.and_then(|path| at_mut(&mut next.root, &path)) {
                node.dirty_time_log = Some(*object);
            }
        }
        next
    }

    /// It is what the pool has: its nodes are known by the guids they have now.
    #[must_use]
    pub fn settled(mut self) -> Self {
        self.adopted.clear();
        self
    }

    /// What group `txg` is about to change.
    fn next(&self, txg: Txg) -> Self {
        Self { changed: txg, ..self.clone() }
    }

    /// The positions on the way from the root to the node of this guid.
    fn path(&self, guid: Guid) -> Option<Vec<usize>> {
        if guid == Guid(0) {
            return None;
        }
        let mut path = way_up(&self.root, guid)?;
        path.reverse();
        Some(path)
    }

    fn path_of_vdev(&self, guid: Guid) -> Result<Vec<usize>, VdevError> {
        let path = self.path(guid).filter(|path| !path.is_empty());
        path.ok_or(VdevError::NoSuchDevice(guid))
    }

    /// It, if a pool can be made like this.
    fn checked(self) -> Result<Self, VdevError> {
        if self.root.kind != VdevKind::Root {
            return Err(VdevError::config("the tree does not start with a root"));
        }
        let mut guids = HashSet::new();
        let mut nodes = 0;
        check(&self.root, 0, &mut guids, &mut nodes)?;
        Ok(self)
    }
}

/// Checks what is at and below `node`, which lies `depth` below the root.
fn check(
    node: &VdevConfig,
    depth: usize,
    guids: &mut HashSet<Guid>,
    nodes: &mut usize,
) -> Result<(), VdevError> {
    if depth > MAX_DEPTH {
        return Err(VdevError::config("the tree is too deep"));
    }
    *nodes += 1;
    if *nodes > MAX_NODES {
        return Err(VdevError::config("too many vdevs"));
    }
    if node.guid != Guid(0) && !guids.insert(node.guid) {
        return Err(VdevError::Config(format!("guid {} occurs twice", node.guid)));
    }
    let copies = matches!(node.kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare);
    if copies && node.children().is_empty() {
        return Err(VdevError::Config(format!("vdev {} has no children", node.guid)));
    }
    if !holds_children(node.kind) {
        return Ok(());
    }
    for (position, child) in node.children().iter().enumerate() {
        if let Some(id) = child.id.filter(|id| *id != position as u64) {
            let reason = format!("vdev {} has id {id} at place {position}", child.guid);
            return Err(VdevError::Config(reason));
        }
        let fits = if depth == 0 { child.kind != VdevKind::Root } else { is_inner(child.kind) };
        if !fits {
            let name = child.kind.name();
            return Err(VdevError::Config(format!("a vdev of type {name} at depth {depth}")));
        }
        check(child, depth + 1, guids, nodes)?;
    }
    Ok(())
}

/// What is below a vdev of this kind counts.
pub(super) fn holds_children(kind: VdevKind) -> bool {
    use VdevKind::{Draid, Mirror, Raidz, Replacing, Root, Spare};
    matches!(kind, Root | Mirror | Replacing | Spare | Raidz | Draid)
}

/// It may be below a top-level vdev.
fn is_inner(kind: VdevKind) -> bool {
    use VdevKind::{Draid, Hole, Indirect, Missing, Root};
    !matches!(kind, Root | Draid | Hole | Indirect | Missing)
}

/// The positions on the way from the node of this guid up to `node`.
fn way_up(node: &VdevConfig, guid: Guid) -> Option<Vec<usize>> {
    if node.guid == guid {
        return Some(Vec::new());
    }
    node.children().iter().enumerate().find_map(|(position, child)| {
        let mut path = way_up(child, guid)?;
        path.push(position);
        Some(path)
    })
}

/// The node at the end of a path.
fn at<'a>(node: &'a VdevConfig, path: &[usize]) -> Option<&'a VdevConfig> {
    path.iter().try_fold(node, |node, &position| node.children().get(position))
}

/// The same, to be changed.
fn at_mut<'a>(node: &'a mut VdevConfig, path: &[usize]) -> Option<&'a mut VdevConfig> {
    path.iter().try_fold(node, |node, &position| node.children.as_mut()?.get_mut(position))
}

/// Gives children the ids of their places.
fn number(children: &mut [VdevConfig]) {
    for (id, child) in (0..).zip(children) {
        child.id = Some(id);
    }
}

/// A node as labels have it: without what only the pool's own copy keeps.
fn label_node(node: &VdevConfig) -> VdevConfig {
    let children = node.children.as_ref();
    VdevConfig {
        leaf_zap: None,
        top_zap: None,
        root_zap: None,
        resilver_defer: false,
        is_hole: false,
        children: children.map(|children| children.iter().map(label_node).collect()),
        ..node.clone()
    }
}
