//! From a topology to nodes and leaves.
//!
//! Invariant: every number is checked before anything uses it; what comes out has geometries that were
//! accepted by their own constructors, and parents before their children.

use super::draid::{Draid, DraidConfig};
use super::error::VdevError;
use super::leaf::{Leaf, LeafOpener};
use super::raidz::Raidz;
use super::topology::{AllocationClass, Topology, holds_children};
use super::tree::{Node, NodeId, Shape, Top};
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::{Guid, Txg};
use parking_lot::RwLock;
use std::collections::HashMap;

/// Sector shift taken for vdevs that have no sectors of their own (removed ones may lack it).
pub(super) const SMALLEST_ASHIFT: u32 = 9;

/// The parts of a tree.
pub(super) struct Parts {
    pub(super) nodes: Vec<Node>,
    pub(super) leaves: Vec<Leaf>,
    pub(super) tops: Vec<Top>,
}

struct Builder<'a> {
    parts: Parts,
    /// Nodes and leaves of the tree that these parts come on top of.
    base: (NodeId, usize),
    draids: HashMap<Guid, NodeId>,
    opener: &'a dyn LeafOpener,
}

/// What a node inherits from the top-level vdev above it.
#[derive(Clone, Copy)]
struct Inherited {
    top: u32,
    ashift: u64,
    /// Allocatable bytes it needs at least.
    minimum: u64,
}

impl Parts {
    pub(super) fn of(topology: &Topology, opener: &dyn LeafOpener) -> Result<Self, VdevError> {
        let parts = Self { nodes: Vec::new(), leaves: Vec::new(), tops: Vec::new() };
        let mut builder = Builder { parts, base: (0, 0), draids: HashMap::new(), opener };
        builder.root(topology)?;
        builder.link_spares();
        Ok(builder.parts)
    }

    /// What `topology` has more than a tree of so many nodes and leaves: its top-level vdevs from
    /// `from` on.
    pub(super) fn more(
        topology: &Topology,
        from: usize,
        base: (NodeId, usize),
        opener: &dyn LeafOpener,
    ) -> Result<Self, VdevError> {
        let parts = Self { nodes: Vec::new(), leaves: Vec::new(), tops: Vec::new() };
        let mut builder = Builder { parts, base, draids: HashMap::new(), opener };
        for (position, top) in topology.tops().iter().enumerate().skip(from) {
            builder.top(position, top)?;
        }
        builder.link_spares();
        Ok(builder.parts)
    }
}

impl Builder<'_> {
    fn root(&mut self, topology: &Topology) -> Result<(), VdevError> {
        self.parts.nodes.push(Node::new(own(topology.root()), Shape::Root, Vec::new()));
        for (position, top) in topology.tops().iter().enumerate() {
            let node = self.top(position, top)?;
            if let Some(root) = self.parts.nodes.first_mut() {
                root.children.push(node);
            }
        }
        Ok(())
    }

    /// Adds a top-level vdev.
    fn top(&mut self, position: usize, top: &VdevConfig) -> Result<NodeId, VdevError> {
        let recorded = top.top.unwrap_or_default();
        let concrete = top.kind.is_concrete();
        let ashift =
            if concrete { recorded.ashift } else { recorded.ashift.max(SMALLEST_ASHIFT.into()) };
        if !(9..=16).contains(&ashift) {
            let reason = format!("top-level vdev {position} has sector shift {ashift}");
            return Err(VdevError::Config(reason));
        }
        // Whole metaslabs must fit; a shorter tail may be lost.
        let metaslab = 1u64.checked_shl(recorded.metaslab_shift.min(63) as u32).unwrap_or(1);
        let minimum = recorded.asize - recorded.asize % metaslab;
        let inherited = Inherited { top: position as u32, ashift, minimum };
        let class = if recorded.is_log { AllocationClass::Log } else { AllocationClass::Normal };
        let node = self.node(top, inherited)?;
        self.parts.tops.push(Top::new(node, ashift as u32, class));
        Ok(node)
    }

    /// The place of the next node.
    fn next_node(&self) -> NodeId {
        self.base.0 + self.parts.nodes.len()
    }

    /// The place of the next leaf.
    fn next_leaf(&self) -> usize {
        self.base.1 + self.parts.leaves.len()
    }

    /// Adds `config` and what is below it; parents get smaller indexes than their children.
    fn node(&mut self, config: &VdevConfig, inherited: Inherited) -> Result<NodeId, VdevError> {
        let id = self.next_node();
        let (shape, child_minimum) = self.shape(config, inherited, id)?;
        self.parts.nodes.push(Node::new(own(config), shape, Vec::new()));
        if let Shape::Leaf(leaf) = self.shape_of(id) {
            debug_assert_eq!(*leaf, self.next_leaf());
            let leaf = Leaf::new(own(config), inherited.top, inherited.minimum, self.opener);
            self.parts.leaves.push(leaf);
            return Ok(id);
        }
        if !holds_children(config.kind) {
            return Ok(id);
        }
        for child in config.children() {
            let child = self.node(child, Inherited { minimum: child_minimum, ..inherited })?;
            if let Some(node) = self.parts.nodes.get_mut(id - self.base.0) {
                node.children.push(child);
            }
        }
        Ok(id)
    }

    fn shape_of(&self, id: NodeId) -> &Shape {
        self.parts.nodes.get(id - self.base.0).map_or(&Shape::Root, |node| &node.shape)
    }

    /// The shape of a node, and the allocatable bytes each child needs.
    fn shape(
        &mut self,
        config: &VdevConfig,
        inherited: Inherited,
        id: NodeId,
    ) -> Result<(Shape, u64), VdevError> {
        let minimum = inherited.minimum;
        Ok(match config.kind {
            VdevKind::Root => return Err(VdevError::config("a root inside the tree")),
            VdevKind::Disk | VdevKind::File => (Shape::Leaf(self.next_leaf()), 0),
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => (Shape::Copies, minimum),
            VdevKind::Raidz => {
                let children = config.children().len();
                let expansions = config.raidz_expand_txgs.clone().unwrap_or_default();
                let raidz = Raidz::new(
                    inherited.ashift,
                    children,
                    config.nparity.unwrap_or(1),
                    expansions.into_iter().map(Txg).collect(),
                    config.raidz_expanding,
                )?;
                let sharing = u64::from(raidz.children()) - u64::from(raidz.expanding());
                (Shape::Raidz(raidz), minimum.div_ceil(sharing))
            }
            VdevKind::Draid => {
                let shape =
                    config.draid.ok_or_else(|| VdevError::config("a dRAID without its numbers"))?;
                let draid = Draid::new(DraidConfig {
                    ashift: inherited.ashift,
                    children: config.children().len(),
                    parity: config.nparity.unwrap_or(0),
                    data: shape.data,
                    spares: shape.spares,
                    groups: shape.groups,
                    set: shape.children,
                })?;
                self.draids.insert(config.guid, id);
                let child = draid.child_minimum(minimum);
                (Shape::Draid(draid), child)
            }
            VdevKind::DistributedSpare => {
                let spare = config
                    .spare_id
                    .ok_or_else(|| VdevError::config("a distributed spare without its number"))?;
                (Shape::DistributedSpare { draid: None, spare }, 0)
            }
            VdevKind::Hole => (Shape::Nothing("it is a hole"), 0),
            VdevKind::Missing => (Shape::Nothing("nothing is known of it"), 0),
            VdevKind::Indirect => (Shape::Indirect(RwLock::new(None)), 0),
        })
    }

    /// Finds the dRAID of every distributed spare.
    fn link_spares(&mut self) {
        for node in &mut self.parts.nodes {
            if let Shape::DistributedSpare { draid, .. } = &mut node.shape {
                *draid = node.config.top_guid.and_then(|guid| self.draids.get(&guid).copied());
            }
        }
    }
}

/// The node's own configuration, without its children's.
fn own(config: &VdevConfig) -> VdevConfig {
    VdevConfig { children: None, ..config.clone() }
}
