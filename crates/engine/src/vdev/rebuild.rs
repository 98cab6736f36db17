//! Giving devices what they lack without knowing any block: stretches of a top-level vdev are read from
//! the devices that lack nothing, and written to those that do.
//!
//! Chapter 08, section 11. Only where a stretch can be laid out whatever blocks are in it: on mirrors, and on
//! dRAIDs, whose rows are of one parity each. No checksum is looked at. Invariant: a stretch is read only
//! from devices that lack nothing at all, and parity counts as one of them; nothing is written to others
//! than those that lack something.

use super::error::VdevError;
use super::extent::Extent;
use super::leaf::Leaf;
use super::plan::Planner;
use super::read::BlockRead;
use super::rewrite::Rewrite;
use super::sides::Stretch;
use super::tree::{LeafId, NodeId, Shape, VdevTree};
use super::write::BlockWrite;
use cenote_format::{Guid, Txg};
use std::ops::Range;

impl VdevTree {
    /// What is on this top-level vdev can be rebuilt without knowing its blocks.
    pub fn is_rebuildable(&self, vdev: u32) -> bool {
        let node = self.top_node(vdev);
        node.is_some_and(|node| matches!(node.shape, Shape::Copies | Shape::Draid(_)))
    }

    /// Leaves of a top-level vdev that are being rebuilt: they came for that, and lack something.
    pub fn rebuilt_below(&self, vdev: u32) -> Vec<Guid> {
        let own = (0..self.leaves.len()).filter(|id| self.is_rebuilt(*id));
        let own = own.filter_map(|id| self.leaves.get(id)).filter(|leaf| leaf.top == vdev);
        own.map(|leaf| leaf.config.guid).collect()
    }

    /// Some of them can be written.
    pub fn can_rebuild(&self, vdev: u32) -> bool {
        let leaves = self.rebuilt_below(vdev);
        let mut own = self.leaves.iter().filter(|leaf| leaves.contains(&leaf.config.guid));
        own.any(|leaf| self.may_write(leaf))
    }

    pub(super) fn is_rebuilt(&self, id: LeafId) -> bool {
        let is_one = |leaf: &Leaf| leaf.config.rebuild_txg.is_some() && !leaf.is_complete();
        self.leaves.get(id).is_some_and(is_one)
    }

    /// Bytes that a stretch of a top-level vdev has at most, and that its ends are multiples of.
    pub fn stretch_of(&self, vdev: u32, longest: u64) -> Option<u64> {
        let top = self.tops.get(vdev as usize)?;
        let unit = match &self.nodes.get(top.node)?.shape {
            Shape::Draid(draid) => draid.alignment(),
            _ => 1 << top.ashift,
        };
        Some((longest / unit).max(1).saturating_mul(unit))
    }

    /// Writes `stretches` to the devices that lack something, all of them together; those lack the blocks of
    /// `births` if that turns out not to be durable. Answers in order: whether the devices have it now.
    ///
    /// # Errors
    /// As [`VdevError`] says, for each stretch by itself: not enough devices have it, or one that is to get
    /// it fails.
    pub fn rebuild(
        &self,
        stretches: &[Stretch],
        births: &Range<u64>,
    ) -> Vec<Result<(), VdevError>> {
        let is_lacking = |id: &LeafId| self.leaves.get(*id).is_some_and(|leaf| !leaf.is_complete());
        let lacking: Vec<LeafId> = (0..self.leaves.len()).filter(is_lacking).collect();
        let mut results: Vec<Result<(), VdevError>> = Vec::with_capacity(stretches.len());
        let (mut reads, mut places) = (Vec::new(), Vec::new());
        for (index, stretch) in stretches.iter().enumerate() {
            let read = match self.block_of(stretch) {
                Ok(read) => read,
                Err(error) => {
                    results.push(Err(error));
                    continue;
                }
            };
            results.push(Ok(()));
            if self.concerns(&read, &lacking) {
                places.push(index);
                reads.push(read);
            }
        }
        let mut writes = Vec::with_capacity(reads.len());
        let mut written = Vec::with_capacity(reads.len());
        for ((index, read), data) in places.iter().zip(&reads).zip(self.read_but(&reads, &lacking))
        {
            match data {
                Ok(data) => {
                    let BlockRead { vdev, offset, birth, .. } = *read;
                    writes.push(BlockWrite { vdev, offset, data, sides: None, birth });
                    written.push(*index);
                }
                Err(error) => {
                    if let Some(slot) = results.get_mut(*index) {
                        *slot = Err(error);
                    }
                }
            }
        }
        let rewrite = Rewrite { only: &lacking, births };
        for (index, answer) in written.into_iter().zip(self.rewrite(&writes, &rewrite)) {
            if let Some(slot) = results.get_mut(index) {
                *slot = answer;
            }
        }
        results
    }

    /// A stretch as if it were one block.
    fn block_of(&self, stretch: &Stretch) -> Result<BlockRead, VdevError> {
        let Stretch { vdev, offset, size } = *stretch;
        let read = BlockRead { vdev, offset, size, birth: Txg(0) };
        match self.top_node(vdev).map(|node| &node.shape) {
            Some(Shape::Copies) => Ok(read),
            Some(Shape::Draid(draid)) => Ok(BlockRead { size: draid.psize(size), ..read }),
            _ => Err(read.bad("this vdev cannot be rebuilt without its blocks")),
        }
    }

    /// Some of these leaves has a part of a block.
    fn concerns(&self, read: &BlockRead, leaves: &[LeafId]) -> bool {
        let Ok((top, extent)) = self.locate(read) else { return true };
        let Some(node) = self.nodes.get(top) else { return true };
        let planner = Planner::new(self, false);
        match (&node.shape, planner.map(node, extent, read.birth)) {
            (Shape::Draid(_), Ok(map)) => map.columns().iter().any(|column| {
                let child = node.children.get(column.child as usize);
                child.is_some_and(|&child| {
                    let extent = Extent::new(column.offset, column.size);
                    self.has_below(&planner, child, extent, leaves, 0)
                })
            }),
            _ => true,
        }
    }

    /// One of `leaves` is at or below a node, where `extent` is.
    fn has_below(
        &self,
        planner: &Planner<'_>,
        id: NodeId,
        extent: Extent,
        leaves: &[LeafId],
        depth: usize,
    ) -> bool {
        let Some(node) = self.nodes.get(id).filter(|_| depth < planner.max_depth()) else {
            return false;
        };
        let below = |child| self.has_below(planner, child, extent, leaves, depth + 1);
        match &node.shape {
            Shape::Leaf(leaf) => leaves.contains(leaf),
            Shape::DistributedSpare { draid, spare, leaf } => {
                let target = || planner.spare_target(*draid, *spare, extent.offset);
                leaves.contains(leaf) || target().is_ok_and(below)
            }
            _ => node.children.iter().copied().any(below),
        }
    }
}
