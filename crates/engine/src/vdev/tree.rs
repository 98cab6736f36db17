//! The open devices of one pool's [`Topology`].
//!
//! Invariant: a tree never changes shape: another topology makes another tree
//! ([`VdevTree::succeeded_by`]), which shares with this one whatever becomes of the nodes both have:
//! devices, counters, what was missed, and the states of those that keep all below them. States are recomputed from the leaves up whenever a leaf's condition changes,
//! so what [`VdevTree::condition`] gives is never older than the last read that returned.

use super::build::Parts;
use super::draid::Draid;
use super::error::VdevError;
use super::expansion::Expansion;
use super::health::SITS_OUT;
use super::leaf::{Leaf, LeafOpener};
use super::raidz::Raidz;
use super::state::{Aux, Condition, Redundancy, VdevState, roll_up};
use super::stats::Stats;
use super::topology::{AllocationClass, Topology};
use crate::events::Events;
use cenote_device::Device;
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::indirect_mapping::Mapping;
use cenote_format::{Guid, Txg};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Index of a node in its tree.
pub(super) type NodeId = usize;
/// Index of a leaf in its tree.
pub(super) type LeafId = usize;

/// What a node does with its children.
#[derive(Debug)]
pub(super) enum Shape {
    Root,
    Leaf(LeafId),
    /// Mirror, replacing, spare.
    Copies,
    Raidz(Raidz),
    Draid(Draid),
    /// A distributed spare of the dRAID at this node.
    DistributedSpare {
        draid: Option<NodeId>,
        spare: u64,
        /// What it is known to lack; it has no device of its own.
        leaf: LeafId,
    },
    Indirect(Arc<RwLock<Option<Arc<Mapping>>>>),
    /// Holds no data; why.
    Nothing(&'static str),
}

#[derive(Debug)]
pub(super) struct Node {
    /// Its own part of the topology, without its children's.
    pub(super) config: VdevConfig,
    pub(super) shape: Shape,
    pub(super) children: Vec<NodeId>,
    pub(super) stats: Arc<Stats>,
    state: Arc<AtomicU8>,
    aux: Arc<AtomicU8>,
}

impl Node {
    pub(super) fn new(config: VdevConfig, shape: Shape) -> Self {
        let state = Arc::new(AtomicU8::new(VdevState::Closed as u8));
        let (children, stats, aux) = (Vec::new(), Arc::default(), Arc::default());
        Self { config, shape, children, stats, state, aux }
    }

    /// It goes on where `before` is, in another tree; `kept`: with the same below it, so that both
    /// have the same state.
    pub(super) fn goes_on(&mut self, before: &Self, kept: bool) {
        self.stats = before.stats.clone();
        if let (Shape::Indirect(own), Shape::Indirect(known)) = (&mut self.shape, &before.shape) {
            *own = known.clone();
        }
        if kept {
            self.state = before.state.clone();
            self.aux = before.aux.clone();
        }
    }

    pub(super) fn condition(&self) -> Condition {
        let state = VdevState::from_number(self.state.load(Relaxed));
        Condition::new(state, Aux::from_number(self.aux.load(Relaxed)))
    }
}

/// A top-level vdev.
#[derive(Debug)]
pub(super) struct Top {
    pub(super) node: NodeId,
    pub(super) ashift: u32,
    asize: AtomicU64,
}

impl Top {
    pub(super) fn new(node: NodeId, ashift: u32) -> Self {
        Self { node, ashift, asize: AtomicU64::new(0) }
    }

    /// Bytes of its address space; 0 if unknown.
    pub(super) fn asize(&self) -> u64 {
        self.asize.load(Relaxed)
    }
}

/// A leaf's device, for labels and uberblocks.
#[derive(Debug, Clone)]
pub struct LeafDevice {
    /// Guid of the leaf.
    pub guid: Guid,
    /// Top-level vdev it belongs to.
    pub top: u32,
    /// The open device.
    pub device: Arc<dyn Device>,
}

/// The vdevs of one pool and their devices.
pub struct VdevTree {
    topology: Topology,
    pub(super) nodes: Vec<Node>,
    pub(super) leaves: Vec<Leaf>,
    pub(super) tops: Vec<Top>,
    pub(super) opener: Arc<dyn LeafOpener>,
    /// How far a running expansion has come.
    pub(super) expansion: Arc<Expansion>,
    deadline: RwLock<Duration>,
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    refreshing: Arc<Mutex<()>>,
    /// Where what happens to devices is told.
    pub(super) events: Arc<Events>,
    /// How many faults were asked for.
    pub(super) faults: Arc<AtomicU64>,
    /// How often a leaf noted a txg it misses.
    pub(super) missed_changes: Arc<AtomicU64>,
    /// How often a device that could not be read could be read again.
    pub(super) comebacks: Arc<AtomicU64>,
    /// Held during a flush: one that found nothing to do must not answer before the one that does
    /// it. Keeps the failure after which nothing can be relied on.
    pub(super) flushing: Arc<Mutex<Option<VdevError>>>,
    /// Flushes that failed beyond the redundancy.
    pub(super) failed_flushes: Arc<AtomicU64>,
    /// Leaves of which a flush failed.
    pub(super) unflushed: Arc<Mutex<BTreeSet<Guid>>>,
}

impl std::fmt::Debug for VdevTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VdevTree").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl VdevTree {
    /// Builds the tree of `root` (of kind root), opening every leaf through `opener`.
    ///
    /// # Errors
    /// As [`VdevTree::open`].
    pub fn build(root: &VdevConfig, opener: Arc<dyn LeafOpener>) -> Result<Self, VdevError> {
        Self::open(Topology::of(root.clone())?, opener)
    }

    /// Opens every leaf of `topology` through `opener`.
    ///
    /// # Errors
    /// [`VdevError::Config`] if a vdev cannot be laid out as its configuration says; a leaf that
    /// cannot be opened is none.
    pub fn open(topology: Topology, opener: Arc<dyn LeafOpener>) -> Result<Self, VdevError> {
        let start = Instant::now();
        let parts = Parts::of(&topology, None, opener.as_ref())?;
        let tree = Self {
            expansion: Expansion::of(&topology),
            topology: topology.settled(),
            nodes: parts.nodes,
            leaves: parts.leaves,
            tops: parts.tops,
            opener,
            deadline: RwLock::new(cenote_device::DEFAULT_DEADLINE),
            clock: Arc::new(move || start.elapsed()),
            refreshing: Arc::default(),
            events: Arc::default(),
            faults: Arc::default(),
            missed_changes: Arc::default(),
            comebacks: Arc::default(),
            flushing: Arc::default(),
            failed_flushes: Arc::default(),
            unflushed: Arc::default(),
        };
        tree.refresh();
        Ok(tree)
    }

    /// The tree of `topology`, made from this one's. The devices of leaves that this one does not
    /// have are opened through `opener`, as are those that come back.
    ///
    /// # Errors
    /// As [`VdevTree::open`].
    pub fn succeeded_by(
        &self,
        topology: Topology,
        opener: Arc<dyn LeafOpener>,
    ) -> Result<Self, VdevError> {
        let parts = Parts::of(&topology, Some(self), opener.as_ref())?;
        let tree = Self {
            expansion: self.expansion.next(&topology),
            topology: topology.settled(),
            nodes: parts.nodes,
            leaves: parts.leaves,
            tops: parts.tops,
            opener,
            deadline: RwLock::new(self.deadline()),
            clock: self.clock.clone(),
            refreshing: self.refreshing.clone(),
            events: self.events.clone(),
            faults: self.faults.clone(),
            missed_changes: self.missed_changes.clone(),
            comebacks: self.comebacks.clone(),
            flushing: self.flushing.clone(),
            failed_flushes: self.failed_flushes.clone(),
            unflushed: self.unflushed.clone(),
        };
        tree.refresh();
        Ok(tree)
    }

    /// The same with this one's opener.
    ///
    /// # Errors
    /// As [`VdevTree::open`].
    pub fn with_topology(&self, topology: Topology) -> Result<Self, VdevError> {
        self.succeeded_by(topology, self.opener.clone())
    }

    /// What there is.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Replaces the clock (time since the tree was built), for tests and simulations.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Fn() -> Duration + Send + Sync>) -> Self {
        self.clock = clock;
        self
    }

    /// What opens its leaves.
    pub fn opener(&self) -> &Arc<dyn LeafOpener> {
        &self.opener
    }

    /// Time since the tree was built.
    pub(super) fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Longest wait for a batch of reads or writes.
    pub fn deadline(&self) -> Duration {
        *self.deadline.read()
    }

    /// Sets the longest wait for a batch of reads or writes.
    pub fn set_deadline(&self, deadline: Duration) {
        *self.deadline.write() = deadline;
    }

    /// Gives the mapping of a removed top-level vdev.
    pub fn set_mapping(&self, vdev: u32, mapping: Mapping) -> Result<(), VdevError> {
        match self.top_node(vdev).map(|node| &node.shape) {
            Some(Shape::Indirect(slot)) => {
                *slot.write() = Some(Arc::new(mapping));
                Ok(())
            }
            _ => Err(VdevError::NoSuchVdev { vdev, reason: "it is not a removed vdev" }),
        }
    }

    /// Top-level vdevs that are removed and whose mapping [`VdevTree::set_mapping`] must give.
    pub fn removed_vdevs(&self) -> impl Iterator<Item = (u32, &VdevConfig)> {
        (0u32..).zip(&self.tops).filter_map(|(id, top)| {
            let node = self.nodes.get(top.node)?;
            matches!(node.shape, Shape::Indirect(_)).then_some((id, &node.config))
        })
    }

    /// The class of a top-level vdev.
    pub fn class(&self, vdev: u32) -> AllocationClass {
        self.topology.class(vdev)
    }

    /// Number of top-level ids, holes included.
    pub fn top_count(&self) -> u32 {
        self.tops.len() as u32
    }

    pub(super) fn top_node(&self, vdev: u32) -> Option<&Node> {
        self.nodes.get(self.tops.get(vdev as usize)?.node)
    }

    /// Condition of the whole pool.
    pub fn condition(&self) -> Condition {
        self.nodes.first().map_or(Condition::ONLINE, |node| node.condition())
    }

    /// Condition of a top-level vdev.
    pub fn top_condition(&self, vdev: u32) -> Option<Condition> {
        self.top_node(vdev).map(Node::condition)
    }

    /// Blocks on this top-level vdev can be expected to be readable.
    pub fn is_readable(&self, vdev: u32) -> bool {
        self.top_node(vdev).is_some_and(|node| {
            node.condition().state.is_readable() && !matches!(node.shape, Shape::Nothing(_))
        })
    }

    /// Smallest data allocation on a top-level vdev, in bytes; `None` if it holds no data.
    pub fn min_allocation(&self, vdev: u32) -> Option<u64> {
        let top = self.tops.get(vdev as usize)?;
        let node = self.nodes.get(top.node)?;
        let recorded = node.config.top.as_ref().and_then(|top| top.min_alloc);
        match &node.shape {
            Shape::Nothing(_) => None,
            Shape::Draid(draid) => Some(draid.psize(draid.alignment())),
            _ => Some(recorded.filter(|&size| size > 0).unwrap_or(1 << top.ashift)),
        }
    }

    /// [`VdevTree::min_allocation`] of each top-level vdev that is not the intent log's.
    pub fn data_units(&self) -> impl Iterator<Item = u64> {
        let data = (0..self.top_count()).filter(|vdev| self.class(*vdev) != AllocationClass::Log);
        data.filter_map(|vdev| self.min_allocation(vdev))
    }

    /// Sector shift of a top-level vdev.
    pub fn ashift(&self, vdev: u32) -> Option<u32> {
        self.tops.get(vdev as usize).map(|top| top.ashift)
    }

    /// Bytes a block of `psize` bytes written in `txg` allocates (chapter 03, section 1).
    pub fn asize(&self, vdev: u32, psize: u64, txg: Txg) -> Option<u64> {
        let top = self.tops.get(vdev as usize)?;
        self.asize_of(top.node, top.ashift, psize, txg)
    }

    fn asize_of(&self, node: NodeId, ashift: u32, psize: u64, txg: Txg) -> Option<u64> {
        let node = self.nodes.get(node)?;
        match &node.shape {
            Shape::Raidz(raidz) => raidz.asize(psize, txg),
            Shape::Draid(draid) => draid.asize(psize),
            Shape::Copies => {
                let sizes = node.children.iter();
                sizes.map(|&child| self.asize_of(child, ashift, psize, txg)).max().flatten()
            }
            Shape::Nothing(_) | Shape::Root => None,
            _ => psize.checked_next_multiple_of(1 << ashift),
        }
    }

    /// 512ths of allocated bytes that are charged to datasets (chapter 03, section 1).
    pub fn deflate_ratio(&self, vdev: u32) -> u64 {
        match self.top_node(vdev).map(|node| &node.shape) {
            Some(Shape::Raidz(raidz)) => raidz.deflate_ratio(),
            Some(Shape::Draid(draid)) => draid.deflate_ratio(),
            Some(Shape::Copies) => {
                super::raidz::deflate_ratio(self.asize(vdev, 1 << 17, Txg(0)).unwrap_or(1 << 17))
            }
            _ => 512,
        }
    }

    /// Allocatable bytes of a top-level vdev: what its configuration records, or what its devices
    /// give if that is more. `None` if it holds no data.
    pub fn top_asize(&self, vdev: u32) -> Option<u64> {
        let top = self.tops.get(vdev as usize)?;
        let shape = &self.nodes.get(top.node)?.shape;
        (!matches!(shape, Shape::Nothing(_))).then(|| top.asize())
    }

    /// Allocatable bytes from the open devices, each having what `of` says; those without a device do not
    /// count.
    pub(super) fn node_asize(&self, node: NodeId, of: &dyn Fn(&Leaf) -> u64) -> u64 {
        let Some(node) = self.nodes.get(node) else { return 0 };
        let smallest = || {
            let sizes = node.children.iter().map(|&child| self.node_asize(child, of));
            sizes.filter(|&size| size > 0).min().unwrap_or(0)
        };
        match &node.shape {
            Shape::Leaf(leaf) => self.leaves.get(*leaf).map_or(0, of),
            Shape::Copies => smallest(),
            Shape::Raidz(raidz) => raidz.asize_of_children(smallest()).unwrap_or(0),
            Shape::Draid(draid) => draid.asize_of_children(smallest()),
            Shape::Indirect(_)
            | Shape::Root
            | Shape::Nothing(_)
            | Shape::DistributedSpare { .. } => 0,
        }
    }

    /// The open devices of all leaves.
    pub fn devices(&self) -> Vec<LeafDevice> {
        let open = |leaf: &Leaf| {
            Some(LeafDevice { guid: leaf.config.guid, top: leaf.top, device: leaf.device()? })
        };
        self.leaves.iter().filter_map(open).collect()
    }

    /// Sets error counters to 0 and forgives devices that were given up (`zpool clear`); of the
    /// vdev `guid` and all below it, or of all.
    pub fn clear(&self, guid: Option<Guid>) {
        let start = match guid {
            None => Some(0),
            Some(guid) => self.nodes.iter().position(|node| node.config.guid == guid),
        };
        let mut pending: Vec<NodeId> = start.into_iter().collect();
        while let Some(node) = pending.pop().and_then(|id| self.nodes.get(id)) {
            node.stats.clear_errors();
            if let Shape::Leaf(id) = node.shape
                && let Some(leaf) = self.leaves.get(id)
            {
                leaf.stats.clear_errors();
                leaf.health.lock().clear();
            }
            pending.extend(&node.children);
        }
        self.expansion.again.store(true, Relaxed);
        self.refresh();
    }

    /// Recomputes every node's condition from the leaves up.
    pub(super) fn refresh(&self) {
        let _one_at_a_time = self.refreshing.lock();
        // Children come after their parents in the list.
        for (id, node) in self.nodes.iter().enumerate().rev() {
            let condition = self.condition_from_children(node, None);
            let whole = node.condition();
            let before = whole.state;
            let was_away = before != VdevState::Closed && !before.is_readable();
            let is_back = was_away || whole == SITS_OUT && condition.aux != whole.aux;
            if is_back && condition.state.is_readable() && node.children.is_empty() {
                self.comebacks.fetch_add(1, Relaxed);
            }
            node.state.store(condition.state as u8, Relaxed);
            node.aux.store(condition.aux as u8, Relaxed);
            self.report_condition(id, whole, condition);
        }
        for top in &self.tops {
            let config = self.nodes.get(top.node).and_then(|node| node.config.top.as_ref());
            let recorded = config.map_or(0, |config| config.asize);
            top.asize.store(recorded.max(self.node_asize(top.node, &Leaf::counted)), Relaxed);
        }
    }

    /// The condition of `node` from its children's, as if `without` were lost.
    fn condition_from_children(&self, node: &Node, without: Option<LeafId>) -> Condition {
        let lost = Condition::new(VdevState::Faulted, Aux::ErrorsExceeded);
        let redundancy = match &node.shape {
            Shape::Leaf(leaf) | Shape::DistributedSpare { leaf, draid: Some(_), .. }
                if without == Some(*leaf) =>
            {
                return lost;
            }
            Shape::Leaf(leaf) | Shape::DistributedSpare { leaf, draid: Some(_), .. } => {
                return self.leaves.get(*leaf).map_or(lost, |leaf| leaf.condition());
            }
            Shape::Indirect(_) => return Condition::ONLINE,
            Shape::Nothing(_) if node.config.kind == VdevKind::Hole => return Condition::ONLINE,
            Shape::Nothing(_) | Shape::DistributedSpare { draid: None, .. } => {
                return Condition::new(VdevState::Unavailable, Aux::OpenFailed);
            }
            Shape::Root => Redundancy::Root,
            Shape::Copies => Redundancy::Mirror,
            Shape::Raidz(raidz) => Redundancy::Parity(raidz.parity()),
            Shape::Draid(draid) if draid.domains() > 1 => Redundancy::Domains {
                parity: draid.parity(),
                set: node.children.len() / draid.domains() as usize,
            },
            Shape::Draid(draid) => Redundancy::Parity(draid.parity()),
        };
        let children: Vec<Condition> = node
            .children
            .iter()
            .filter_map(|&child| self.nodes.get(child))
            .map(|child| match without {
                Some(_) => self.condition_from_children(child, without),
                None => child.condition(),
            })
            .collect();
        let is_log = |index: usize| self.class(index as u32) == AllocationClass::Log;
        roll_up(redundancy, &children, is_log)
    }

    /// Without this leaf its top-level vdev could not be read.
    pub(super) fn is_needed(&self, leaf: LeafId) -> bool {
        let top = self.leaves.get(leaf).and_then(|leaf| self.top_node(leaf.top));
        top.is_some_and(|node| !self.condition_from_children(node, Some(leaf)).state.is_readable())
    }
}
