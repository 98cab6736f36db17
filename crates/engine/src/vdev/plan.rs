//! From a block's address to reads of devices, and from their answers to the block.
//!
//! Invariant: a plan names each read it needs by its index in one [`Batch`]; it is made from what
//! is known of the devices' health, and reads parity only where a data column cannot be read.

use super::batch::Batch;
use super::extent::Extent;
use super::layout::Map;
use super::leaf::Fitness;
use super::parity;
use super::raidz::Reflow;
use super::tree::{LeafId, Node, NodeId, Shape, VdevTree};
use bytes::{Bytes, BytesMut};
use cenote_device::DeviceError;
use cenote_format::Txg;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Bytes of address space that one side of a mirror serves before the next one's turn.
const MIRROR_REGION: u32 = 21;
/// How much more work (bytes under way) a mirror side may have and still be taken for its region.
const MIRROR_SLACK: u64 = 4 << 20;
/// Recursion limit besides chains of removed vdevs: nesting of the tree and spares of spares.
const BASE_DEPTH: usize = 32;
/// Longest chain of removed vdevs followed.
const MAX_CHAIN: usize = 256;

/// How to get a range's bytes from the answers of a batch.
#[derive(Debug)]
pub(super) enum Plan {
    /// Part of one answer.
    Read { op: usize, skip: usize, len: usize },
    /// One after the other, each cut to the given length.
    Join(Vec<(Plan, usize)>),
    /// Columns; those without a plan are rebuilt (data) or not needed (parity).
    Rows { map: Map, cells: Vec<Option<Plan>> },
}

/// Why there is no plan.
pub(super) type NoPlan = String;

/// What planning needs to know besides the tree.
pub(super) struct Planner<'a> {
    pub(super) tree: &'a VdevTree,
    pub(super) now: Duration,
    /// Nothing is moved away from where this says while it is kept.
    pub(super) reflow: Arc<Reflow>,
    /// Use devices that were given up as well.
    pub(super) desperate: bool,
}

impl<'a> Planner<'a> {
    pub(super) fn new(tree: &'a VdevTree, desperate: bool) -> Self {
        Self { tree, now: tree.now(), reflow: tree.expansion.place(), desperate }
    }

    pub(super) fn node(&self, id: NodeId) -> Result<&'a Node, NoPlan> {
        self.tree.nodes.get(id).ok_or_else(|| "no such vdev".into())
    }

    /// Most levels of recursion for this tree.
    pub(super) fn max_depth(&self) -> usize {
        BASE_DEPTH + self.tree.tops.len().min(MAX_CHAIN)
    }

    /// The layout of `extent` on a raidz or dRAID node.
    pub(super) fn map(&self, node: &Node, extent: Extent, birth: Txg) -> Result<Map, NoPlan> {
        match &node.shape {
            Shape::Raidz(raidz) => raidz.map(extent.offset, extent.len, birth, *self.reflow),
            Shape::Draid(draid) => draid.map(extent.offset, extent.len),
            _ => Err("it has no columns"),
        }
        .map_err(Into::into)
    }

    /// The child that stands behind distributed spare `spare` at `offset`.
    pub(super) fn spare_target(
        &self,
        draid: Option<NodeId>,
        spare: u64,
        offset: u64,
    ) -> Result<NodeId, NoPlan> {
        let node = self.node(draid.ok_or("its dRAID is not in this pool")?)?;
        let Shape::Draid(geometry) = &node.shape else { return Err("not a dRAID".into()) };
        let child = geometry.spare_child(spare, offset).ok_or("no such distributed spare")?;
        node.children.get(child as usize).copied().ok_or_else(|| "no such child".into())
    }

    /// The pieces of a removed vdev's range: nodes and extents.
    pub(super) fn pieces(
        &self,
        node: &Node,
        extent: Extent,
    ) -> Result<Vec<(NodeId, Extent)>, NoPlan> {
        let Shape::Indirect(slot) = &node.shape else { return Err("not removed".into()) };
        let mapping = slot.read().clone().ok_or("its mapping is not loaded")?;
        let pieces = mapping.lookup(extent.offset, extent.len).map_err(|e| e.to_string())?;
        let place = |piece: cenote_format::indirect_mapping::Piece| {
            let top = self.tree.tops.get(piece.vdev as usize);
            let top = top.ok_or_else(|| format!("moved to vdev {}, not there", piece.vdev))?;
            Ok((top.node, Extent::new(piece.offset, piece.length)))
        };
        pieces.into_iter().map(place).collect()
    }

    /// How well a node can serve an extent; `None` if it cannot.
    pub(super) fn fitness(
        &self,
        id: NodeId,
        extent: Extent,
        birth: Txg,
        avoid: &[LeafId],
        depth: usize,
    ) -> Option<Fitness> {
        let node = self.tree.nodes.get(id).filter(|_| depth < self.max_depth())?;
        let child = |&child: &NodeId| self.fitness(child, extent, birth, avoid, depth + 1);
        match &node.shape {
            Shape::Leaf(leaf) if avoid.contains(leaf) => None,
            Shape::Leaf(leaf) => {
                self.tree.leaves.get(*leaf)?.fitness(birth, self.now, self.desperate)
            }
            Shape::Copies => node.children.iter().filter_map(child).min(),
            Shape::DistributedSpare { leaf, .. } if avoid.contains(leaf) => None,
            Shape::DistributedSpare { draid, spare, leaf } => {
                let target = self.spare_target(*draid, *spare, extent.offset).ok()?;
                let fitness = self.fitness(target, extent, birth, avoid, depth + 1)?;
                let is_stale = self.tree.leaves.get(*leaf)?.misses(birth);
                Some(if is_stale { Fitness::Stale } else { fitness })
            }
            Shape::Raidz(_) | Shape::Draid(_) => {
                let parity = match &node.shape {
                    Shape::Raidz(raidz) => raidz.parity(),
                    Shape::Draid(draid) => draid.parity(),
                    _ => 0,
                };
                let fit =
                    |fitness: &Option<Fitness>| matches!(fitness, Some(f) if *f < Fitness::Slow);
                let all: Vec<Option<Fitness>> = node.children.iter().map(child).collect();
                let lost = all.iter().filter(|fitness| !fit(fitness)).count();
                match lost {
                    0 => all.into_iter().max().flatten(),
                    _ if lost <= parity => Some(Fitness::Worn),
                    _ if all.iter().filter(|f| f.is_none()).count() <= parity => {
                        Some(Fitness::Stale)
                    }
                    _ => None,
                }
            }
            Shape::Indirect(_) => Some(Fitness::Good),
            Shape::Root | Shape::Nothing(_) => None,
        }
    }

    /// A plan for `extent` of node `id`, without the leaves in `avoid`.
    pub(super) fn plan(
        &self,
        id: NodeId,
        extent: Extent,
        birth: Txg,
        avoid: &[LeafId],
        batch: &mut Batch<'_>,
        depth: usize,
    ) -> Result<Plan, NoPlan> {
        if depth >= self.max_depth() {
            return Err("removed vdevs or spares point at each other".into());
        }
        let node = self.node(id)?;
        let start = batch.len();
        let plan = match &node.shape {
            Shape::Leaf(leaf) => self.leaf(*leaf, extent, birth, avoid, batch),
            Shape::Copies => self.copies(node, extent, birth, avoid, batch, depth),
            Shape::Raidz(_) | Shape::Draid(_) => {
                self.rows(node, extent, birth, avoid, batch, depth)
            }
            Shape::DistributedSpare { leaf, .. } if avoid.contains(leaf) => {
                Err("the distributed spare is left out".into())
            }
            Shape::DistributedSpare { draid, spare, .. } => {
                let target = self.spare_target(*draid, *spare, extent.offset)?;
                self.plan(target, extent, birth, avoid, batch, depth + 1)
            }
            Shape::Indirect(_) => {
                let mut parts = Vec::new();
                for (target, part) in self.pieces(node, extent)? {
                    let plan = self.plan(target, part, birth, avoid, batch, depth + 1)?;
                    parts.push((plan, part.len as usize));
                }
                match parts.pop() {
                    Some((plan, _)) if parts.is_empty() => Ok(plan),
                    last => Ok(Plan::Join(parts.into_iter().chain(last).collect())),
                }
            }
            Shape::Root => Err("the root holds no data".into()),
            Shape::Nothing(why) => Err((*why).into()),
        };
        if plan.is_err() {
            batch.truncate(start);
        }
        plan
    }

    fn leaf(
        &self,
        id: LeafId,
        extent: Extent,
        birth: Txg,
        avoid: &[LeafId],
        batch: &mut Batch<'_>,
    ) -> Result<Plan, NoPlan> {
        let leaf = self.tree.leaves.get(id).ok_or("no such leaf")?;
        let name = || leaf.config.path.clone().unwrap_or_else(|| leaf.config.guid.to_string());
        if avoid.contains(&id) || leaf.fitness(birth, self.now, self.desperate).is_none() {
            return Err(format!("{} is unavailable", name()));
        }
        let (op, skip) = batch
            .add(id, leaf, extent)
            .ok_or_else(|| format!("{} does not reach that far", name()))?;
        Ok(Plan::Read { op, skip, len: extent.len as usize })
    }

    fn copies(
        &self,
        node: &Node,
        extent: Extent,
        birth: Txg,
        avoid: &[LeafId],
        batch: &mut Batch<'_>,
        depth: usize,
    ) -> Result<Plan, NoPlan> {
        let mut failure = "all copies are unavailable".into();
        for child in self.ranked(node, extent, birth, avoid, depth) {
            match self.plan(child, extent, birth, avoid, batch, depth + 1) {
                Ok(plan) => return Ok(plan),
                Err(why) => failure = why,
            }
        }
        Err(failure)
    }

    /// The usable children of a mirror, best first.
    pub(super) fn ranked(
        &self,
        node: &Node,
        extent: Extent,
        birth: Txg,
        avoid: &[LeafId],
        depth: usize,
    ) -> Vec<NodeId> {
        let mut usable: Vec<(Fitness, u64, NodeId)> = node
            .children
            .iter()
            .filter_map(|&child| {
                let fitness = self.fitness(child, extent, birth, avoid, depth + 1)?;
                Some((fitness, self.load(child), child))
            })
            .collect();
        usable.sort_by_key(|&(fitness, _, _)| fitness);
        let Some(&(best, _, _)) = usable.first() else { return Vec::new() };
        let equal = usable.iter().take_while(|(fitness, _, _)| *fitness == best).count();
        let least = usable.iter().take(equal).map(|&(_, load, _)| load).min().unwrap_or(0);
        let turn = ((extent.offset >> MIRROR_REGION) % equal.max(1) as u64) as usize;
        let fair = usable.get(turn).is_some_and(|&(_, load, _)| load <= least + MIRROR_SLACK);
        let first = if fair {
            turn
        } else {
            usable.iter().take(equal).position(|&(_, load, _)| load == least).unwrap_or(0)
        };
        usable.swap(0, first);
        usable.into_iter().map(|(_, _, child)| child).collect()
    }

    /// Bytes under way on a leaf; other nodes count as idle.
    fn load(&self, id: NodeId) -> u64 {
        match self.tree.nodes.get(id).map(|node| &node.shape) {
            Some(Shape::Leaf(leaf)) => {
                self.tree.leaves.get(*leaf).map_or(0, |leaf| leaf.pending.load(Relaxed))
            }
            _ => 0,
        }
    }

    fn rows(
        &self,
        node: &Node,
        extent: Extent,
        birth: Txg,
        avoid: &[LeafId],
        batch: &mut Batch<'_>,
        depth: usize,
    ) -> Result<Plan, NoPlan> {
        let map = self.map(node, extent, birth)?;
        let mut cells: Vec<Option<Plan>> = Vec::with_capacity(map.columns().len());
        cells.resize_with(map.columns().len(), || None);
        batch.join_small(map.row_count() > 2);
        for (start, row) in map.rows() {
            let cell = |index: usize| {
                let column = row.get(index)?;
                let extent =
                    Extent { offset: column.offset, len: column.size, scratch: column.scratch };
                Some((*node.children.get(column.child as usize)?, extent))
            };
            let plan_cell = |index: usize, stale_too: bool, batch: &mut Batch<'_>| {
                let (child, extent) = cell(index)?;
                let fitness = self.fitness(child, extent, birth, avoid, depth + 1)?;
                if fitness >= Fitness::Slow && !stale_too {
                    return None;
                }
                self.plan(child, extent, birth, avoid, batch, depth + 1).ok()
            };
            let mut lost = Vec::new();
            for (index, column) in row.iter().enumerate().skip(map.parity) {
                if column.size == 0 {
                    continue;
                }
                match plan_cell(index, false, batch) {
                    Some(plan) => cells[start + index] = Some(plan),
                    None => lost.push(index),
                }
            }
            let mut spare_parity = 0..map.parity.min(row.len());
            lost.retain(|&index| {
                for parity in spare_parity.by_ref() {
                    if let Some(plan) = plan_cell(parity, false, batch) {
                        cells[start + parity] = Some(plan);
                        return false;
                    }
                }
                // Out of parity: stale data is better than none, its checksum will tell.
                match plan_cell(index, true, batch) {
                    Some(plan) => {
                        cells[start + index] = Some(plan);
                        false
                    }
                    None => true,
                }
            });
            if !lost.is_empty() {
                return Err(format!("{} columns more than parity are lost", lost.len()));
            }
        }
        batch.join_small(false);
        Ok(Plan::Rows { map, cells })
    }
}

/// Answers of a batch, by operation.
pub(super) type Answers = [Result<Bytes, DeviceError>];

impl Plan {
    /// The bytes, or the index of the operation that failed.
    pub(super) fn finish(&self, answers: &Answers) -> Result<Bytes, usize> {
        match self {
            Self::Read { op, skip, len } => match answers.get(*op) {
                Some(Ok(bytes)) if bytes.len() >= skip + len => Ok(bytes.slice(*skip..skip + len)),
                _ => Err(*op),
            },
            Self::Join(parts) => {
                let mut joined = BytesMut::new();
                for (plan, len) in parts {
                    let bytes = plan.finish(answers)?;
                    joined.extend_from_slice(bytes.get(..*len).unwrap_or(&bytes));
                }
                Ok(joined.freeze())
            }
            Self::Rows { map, cells } => {
                let mut columns = Vec::with_capacity(cells.len());
                for cell in cells {
                    columns.push(cell.as_ref().map(|plan| plan.finish(answers)).transpose()?);
                }
                let failed = || self.any_op().unwrap_or(usize::MAX);
                complete(map, columns).ok_or_else(failed)
            }
        }
    }

    fn any_op(&self) -> Option<usize> {
        match self {
            Self::Read { op, .. } => Some(*op),
            Self::Join(parts) => parts.iter().find_map(|(plan, _)| plan.any_op()),
            Self::Rows { cells, .. } => cells.iter().flatten().find_map(Self::any_op),
        }
    }

    /// Calls `visit` with every operation of the plan.
    pub(super) fn for_each_op(&self, visit: &mut dyn FnMut(usize)) {
        match self {
            Self::Read { op, .. } => visit(*op),
            Self::Join(parts) => parts.iter().for_each(|(plan, _)| plan.for_each_op(visit)),
            Self::Rows { cells, .. } => {
                cells.iter().flatten().for_each(|plan| plan.for_each_op(visit));
            }
        }
    }
}

/// The padded block of `map` from its columns, rebuilding the data columns that are `None`.
pub(super) fn complete(map: &Map, mut columns: Vec<Option<Bytes>>) -> Option<Bytes> {
    for (start, row) in map.rows() {
        let lost = |(index, column): (usize, &super::layout::Column)| {
            column.size > 0 && columns.get(start + index).is_some_and(Option::is_none)
        };
        if !row.iter().enumerate().skip(map.parity).any(lost) {
            continue;
        }
        let known = columns.get(start..start + row.len())?;
        let known: Vec<Option<&[u8]>> = known.iter().map(|column| column.as_deref()).collect();
        let (parity, data) = known.split_at_checked(map.parity)?;
        let lengths: Vec<usize> =
            row.iter().skip(map.parity).map(|column| column.size as usize).collect();
        for (index, bytes) in parity::rebuild(parity, data, &lengths)? {
            *columns.get_mut(start + map.parity + index)? = Some(bytes);
        }
    }
    let mut data = map.data_columns();
    if let (Some((only, column)), None) = (data.next(), data.next())
        && column.size == map.size
    {
        return columns.get(only).cloned().flatten();
    }
    map.assemble(|index| columns.get(index)?.as_deref()).map(BytesMut::freeze)
}
