//! Where the bytes of one block can come from, and what of that is asked.
//!
//! Invariant: whoever lacks the block has a place in its source, read or not; a leaf that could be asked for a
//! part and cannot is noted.

use super::batch::Batch;
use super::error::VdevError;
use super::extent::Extent;
use super::layout::{Column, Map};
use super::leaf::Fitness;
use super::plan::{NoPlan, Planner};
use super::read::BlockRead;
use super::source::{Piece, Source};
use super::tree::{LeafId, Node, NodeId, Shape};
use cenote_format::Txg;
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// What of a block is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Whatever any leaf may have.
    Everything,
    /// What leaves should have: not what those have instead that lack the block.
    Held,
    /// As much of that as is needed to make the block.
    Enough,
}

/// How a block is examined.
#[derive(Debug, Clone, Copy)]
pub(super) struct Examination {
    /// Devices that were given up are read too.
    pub(super) desperate: bool,
    /// Read what is not needed to make the block as well: dRAID's zero sectors, second places.
    pub(super) all: bool,
    pub(super) reading: Reading,
    /// If nothing is right, errors are counted.
    pub(super) blames: bool,
}

/// What is asked for a block.
pub(super) struct Gathered {
    /// How the answers make the block.
    pub(super) source: Source,
    /// What of the batch is asked for it alone.
    pub(super) ops: Range<usize>,
    /// Leaves that have a part of the block, or should, and could not be asked.
    pub(super) away: Vec<LeafId>,
}

impl Gathered {
    pub(super) fn of<'a>(
        planner: &Planner<'a>,
        read: &BlockRead,
        how: Examination,
        batch: &mut Batch<'a>,
    ) -> Result<Self, VdevError> {
        let (node, extent) = planner.tree.locate(read)?;
        let gatherer = Gatherer {
            planner,
            birth: read.birth,
            how,
            only_lacking: Cell::default(),
            spare_lacks: Cell::default(),
            away: RefCell::default(),
        };
        let start = batch.len();
        let source =
            gatherer.gather(node, extent, batch, 0).map_err(|why| read.unavailable(why))?;
        Ok(Self { source, ops: start..batch.len(), away: gatherer.away.into_inner() })
    }
}

/// Collects every source of a block.
struct Gatherer<'a, 'tree> {
    planner: &'a Planner<'tree>,
    birth: Txg,
    how: Examination,
    /// Of the leaves only those matter that lack the block.
    only_lacking: Cell<bool>,
    /// It is gathered for a distributed spare that lacks the block.
    spare_lacks: Cell<bool>,
    /// Leaves that have a part of the block, or should, and cannot be asked.
    away: RefCell<Vec<LeafId>>,
}

impl Gatherer<'_, '_> {
    fn gather(
        &self,
        id: NodeId,
        extent: Extent,
        batch: &mut Batch<'_>,
        depth: usize,
    ) -> Result<Source, NoPlan> {
        let planner = self.planner;
        if depth >= planner.max_depth() {
            return Err("removed vdevs or spares point at each other".into());
        }
        let node = planner.node(id)?;
        Ok(match &node.shape {
            Shape::Leaf(leaf) => self.leaf(*leaf, extent, batch)?,
            Shape::Copies => {
                let ranked = planner.ranked(node, extent, self.birth, &[], depth);
                for &child in node.children.iter().filter(|child| !ranked.contains(child)) {
                    self.note_away(child);
                }
                let mut is_enough = false;
                let copies = ranked.into_iter().map(|child| {
                    let copy =
                        self.copy(is_enough, || self.gather(child, extent, batch, depth + 1));
                    is_enough |= self.has_block(child, extent, depth);
                    copy
                });
                Source::Any(copies.filter_map(Result::ok).collect())
            }
            Shape::DistributedSpare { .. } => self.spare(&node.shape, extent, batch, depth)?,
            Shape::Indirect(_) => {
                let mut parts = Vec::new();
                for (target, part) in planner.pieces(node, extent)? {
                    let source = self.gather(target, part, batch, depth + 1)?;
                    parts.push((source, part.len as usize));
                }
                Source::Join(parts)
            }
            Shape::Raidz(_) | Shape::Draid(_) => self.rows(node, extent, batch, depth)?,
            Shape::Root | Shape::Nothing(_) => Source::Nothing,
        })
    }

    /// The columns of a block, and what makes them up.
    fn rows(
        &self,
        node: &Node,
        extent: Extent,
        batch: &mut Batch<'_>,
        depth: usize,
    ) -> Result<Source, NoPlan> {
        let map = self.planner.map(node, extent, self.birth)?;
        let mut cells = Vec::with_capacity(map.columns().len());
        let (mut pads, mut twins) = (Vec::new(), Vec::new());
        batch.join_small(map.row_count() > 2);
        let unneeded = self.unneeded_parity(node, &map, depth);
        let mut cell = |child: u32, offset: u64, len: u64, scratch: bool| {
            let extent = Extent { offset, len, scratch };
            let source = match node.children.get(child as usize) {
                Some(&child) if len > 0 => self.gather(child, extent, batch, depth + 1).ok(),
                _ => None,
            };
            source.unwrap_or(Source::Nothing)
        };
        for (index, column) in map.columns().iter().enumerate() {
            let Column { child, offset, size, pad, scratch, .. } = *column;
            let is_enough = unneeded.contains(&index);
            cells.push(self.copy(is_enough, || cell(child, offset, size, scratch)));
            if self.how.all && pad > 0 {
                pads.push((cell(child, offset + size, pad, scratch), pad as usize));
            }
        }
        for twin in map.twins().iter().filter(|_| self.how.all) {
            let size = map.columns().get(twin.column).map_or(0, |column| column.size);
            let source = cell(twin.child, twin.offset, size, twin.scratch);
            twins.push((twin.column, source));
        }
        batch.join_small(false);
        let widths = match &node.shape {
            Shape::Raidz(raidz) => raidz.widths_since(self.birth).collect(),
            _ => Vec::new(),
        };
        Ok(Source::Rows { map, cells, pads, twins, widths })
    }

    /// What `gather` gives; if that `is_enough` already, no more than where leaves lack it.
    fn copy<T>(&self, is_enough: bool, gather: impl FnOnce() -> T) -> T {
        let is_enough = is_enough && self.how.reading == Reading::Enough;
        let before = self.only_lacking.replace(self.only_lacking.get() || is_enough);
        let gathered = gather();
        self.only_lacking.set(before);
        gathered
    }

    /// A node is expected to give all of it.
    fn has_block(&self, id: NodeId, extent: Extent, depth: usize) -> bool {
        let fitness = self.planner.fitness(id, extent, self.birth, &[], depth + 1);
        fitness.is_some_and(|fitness| fitness != Fitness::Stale)
    }

    /// The parity columns without which all data can be made.
    fn unneeded_parity(&self, node: &Node, map: &Map, depth: usize) -> Vec<usize> {
        if map.row_count() > 1 {
            return Vec::new();
        }
        let has = |column: &Column| {
            let Column { child, offset, size, scratch, .. } = *column;
            let child = node.children.get(child as usize);
            let extent = Extent { offset, len: size, scratch };
            size == 0 || child.is_some_and(|child| self.has_block(*child, extent, depth))
        };
        let (parity, data) = map.columns().split_at(map.parity.min(map.columns().len()));
        let lacking = data.iter().filter(|column| !has(column)).count();
        let held = parity.iter().enumerate().filter(|(_, column)| has(column));
        held.skip(lacking).map(|(index, _)| index).collect()
    }

    /// What a distributed spare holds lies on another child; it may lack it all the same.
    fn spare(
        &self,
        shape: &Shape,
        extent: Extent,
        batch: &mut Batch<'_>,
        depth: usize,
    ) -> Result<Source, NoPlan> {
        let Shape::DistributedSpare { draid, spare, leaf } = shape else {
            return Ok(Source::Nothing);
        };
        let target = self.planner.spare_target(*draid, *spare, extent.offset)?;
        let away = self.away.borrow().len();
        let leaf_of = |leaf: &LeafId| self.planner.tree.leaves.get(*leaf);
        let lacks = leaf_of(leaf).is_some_and(|leaf| leaf.misses(self.birth));
        // The child that holds it knows nothing of what the spare lacks.
        let before = self.spare_lacks.replace(self.spare_lacks.get() || lacks);
        let source = self.gather(target, extent, batch, depth + 1);
        self.spare_lacks.set(before);
        let fits = || self.planner.fitness(target, extent, self.birth, &[], depth + 1).is_some();
        if self.away.borrow().len() > away && !fits() {
            // Who cannot be asked for the spare's is the child; the spare is who lacks it. Of a child that another
            // spare stands in for it is enough that one of the two has it.
            self.away.borrow_mut().push(*leaf);
        }
        source
    }

    /// Nothing at or below this node can be asked, or not enough.
    fn note_away(&self, id: NodeId) {
        let Some(node) = self.planner.tree.nodes.get(id) else { return };
        match &node.shape {
            Shape::Leaf(leaf) => self.away.borrow_mut().push(*leaf),
            _ => node.children.iter().for_each(|&child| self.note_away(child)),
        }
    }

    fn leaf(&self, id: LeafId, extent: Extent, batch: &mut Batch<'_>) -> Result<Source, NoPlan> {
        let planner = self.planner;
        let leaf = planner.tree.leaves.get(id).ok_or("no such leaf")?;
        let Some(fitness) = leaf.fitness(self.birth, planner.now, planner.desperate) else {
            self.away.borrow_mut().push(id);
            return Ok(Source::Nothing);
        };
        let stale = fitness == Fitness::Stale || self.spare_lacks.get();
        let added = match stale {
            true if self.how.reading != Reading::Everything => batch.add_unread(id, leaf, extent),
            false if self.only_lacking.get() => return Ok(Source::Nothing),
            _ => batch.add(id, leaf, extent),
        };
        let Some((op, skip)) = added else { return Ok(Source::Nothing) };
        let piece = Piece { op, skip, len: extent.len as usize, stale };
        Ok(Source::Leaf(piece))
    }
}
