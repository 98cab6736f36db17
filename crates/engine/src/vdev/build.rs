//! From a topology to nodes and leaves.
//!
//! Invariant: every number is checked before anything uses it; what comes out has geometries that were
//! accepted by their own constructors, and parents before their children.

use super::draid::{Draid, DraidConfig};
use super::error::VdevError;
use super::leaf::{Leaf, LeafOpener};
use super::raidz::Raidz;
use super::topology::{Topology, holds_children};
use super::tree::{Node, NodeId, Shape, Top, VdevTree};
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::{Guid, Txg};
use std::collections::HashMap;
use std::sync::Arc;

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
    topology: &'a Topology,
    /// What was known of the nodes before, and where each is there.
    before: Option<&'a VdevTree>,
    known: HashMap<Guid, NodeId>,
    /// Which of the nodes have below them just what they had before.
    kept: Vec<bool>,
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
    /// The parts of `topology`: those that `before` has are its own, as far as anything becomes of
    /// them; the devices of the others are opened.
    pub(super) fn of(
        topology: &Topology,
        before: Option<&VdevTree>,
        opener: &dyn LeafOpener,
    ) -> Result<Self, VdevError> {
        let parts = Self { nodes: Vec::new(), leaves: Vec::new(), tops: Vec::new() };
        let nodes = before.into_iter().flat_map(|tree| tree.nodes.iter().enumerate());
        let known = nodes.map(|(id, node)| (node.config.guid, id)).collect();
        let (kept, draids) = (Vec::new(), HashMap::new());
        let mut builder = Builder { parts, topology, before, known, kept, draids, opener };
        builder.root()?;
        builder.link_spares();
        Ok(builder.parts)
    }
}

impl<'a> Builder<'a> {
    fn root(&mut self) -> Result<(), VdevError> {
        self.push(Node::new(own(self.topology.root()), Shape::Root));
        for (position, top) in self.topology.tops().iter().enumerate() {
            let node = self.top(position, top)?;
            if let Some(root) = self.parts.nodes.first_mut() {
                root.children.push(node);
            }
        }
        // Its guid may be another one.
        self.goes_on(0, self.before.and_then(|tree| tree.nodes.first()));
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
        let node = self.node(top, inherited)?;
        self.parts.tops.push(Top::new(node, ashift as u32));
        Ok(node)
    }

    fn push(&mut self, node: Node) -> NodeId {
        self.parts.nodes.push(node);
        self.kept.push(false);
        self.parts.nodes.len() - 1
    }

    /// The node at `id`, with all below it, goes on where `before` is.
    fn goes_on(&mut self, id: NodeId, before: Option<&Node>) {
        let kept = self.parts.nodes.get(id).is_some_and(|node| match before {
            Some(before) => self.is_kept(node, before),
            None => matches!(node.shape, Shape::Nothing(_)),
        });
        if let (Some(node), Some(before)) = (self.parts.nodes.get_mut(id), before) {
            node.goes_on(before, kept);
        }
        if let Some(slot) = self.kept.get_mut(id) {
            *slot = kept;
        }
    }

    /// What is below `node` is just what was below `before`.
    fn is_kept(&self, node: &Node, before: &Node) -> bool {
        let known = self.before.map(|tree| tree.nodes.as_slice()).unwrap_or_default();
        let same = |(now, then): (&NodeId, &NodeId)| {
            let (Some(child), Some(old)) = (self.parts.nodes.get(*now), known.get(*then)) else {
                return false;
            };
            self.kept.get(*now) == Some(&true)
                && child.config.kind == old.config.kind
                && self.topology.guid_before(child.config.guid) == old.config.guid
        };
        node.children.len() == before.children.len()
            && node.children.iter().zip(&before.children).all(same)
    }

    /// The node before that `config` is now.
    fn before(&self, config: &VdevConfig) -> Option<&'a Node> {
        let guid = self.topology.guid_before(config.guid);
        let id = self.known.get(&guid).filter(|_| guid != Guid(0))?;
        let node = self.before?.nodes.get(*id)?;
        let is_same = node.config.kind == config.kind
            || node.config.kind.has_device() && config.kind.has_device();
        is_same.then_some(node)
    }

    /// The leaf before that `config` is now.
    fn leaf_before(&self, config: &VdevConfig) -> Option<&'a Leaf> {
        match self.before(config)?.shape {
            Shape::Leaf(leaf) | Shape::DistributedSpare { leaf, .. } => {
                self.before?.leaves.get(leaf)
            }
            _ => None,
        }
    }

    /// Adds `config` and what is below it; parents get smaller indexes than their children.
    fn node(&mut self, config: &VdevConfig, inherited: Inherited) -> Result<NodeId, VdevError> {
        let (shape, child_minimum) = self.shape(config, inherited, self.parts.nodes.len())?;
        let is_device = matches!(shape, Shape::Leaf(_) | Shape::DistributedSpare { .. });
        let id = self.push(Node::new(own(config), shape));
        if is_device {
            let Inherited { top, minimum, .. } = inherited;
            let top_guid = self.topology.top(top).map(|top| top.guid);
            let own = VdevConfig { top_guid, ..own(config) };
            let leaf = match self.leaf_before(config) {
                Some(leaf) => leaf.as_in(own, top, minimum),
                None => Leaf::new(own, top, minimum, self.opener),
            };
            self.parts.leaves.push(leaf);
            self.goes_on(id, self.before(config));
            return Ok(id);
        }
        let children = if holds_children(config.kind) { config.children() } else { &[] };
        for child in children {
            let child = self.node(child, Inherited { minimum: child_minimum, ..inherited })?;
            if let Some(node) = self.parts.nodes.get_mut(id) {
                node.children.push(child);
            }
        }
        self.goes_on(id, self.before(config));
        Ok(id)
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
            VdevKind::Disk | VdevKind::File => (Shape::Leaf(self.parts.leaves.len()), 0),
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
                let leaf = self.parts.leaves.len();
                (Shape::DistributedSpare { draid: None, spare, leaf }, 0)
            }
            VdevKind::Hole => (Shape::Nothing("it is a hole"), 0),
            VdevKind::Missing => (Shape::Nothing("nothing is known of it"), 0),
            VdevKind::Indirect => (Shape::Indirect(Arc::default()), 0),
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
