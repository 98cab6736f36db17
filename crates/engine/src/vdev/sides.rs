//! Reading a vdev side by side, so that it can be copied as it is.
//!
//! Chapter 08, section 18.3. No checksum is known of what is copied: if one side of a mirror is damaged,
//! the copy has to be damaged on one side, and not on all. Invariant: a side that can be read is read
//! from its own device, and from another only if that lacks something or fails; one that lacks something
//! never stands in for another.

use super::batch::Batch;
use super::error::VdevError;
use super::extent::Extent;
use super::plan::{Plan, Planner};
use super::read::BlockRead;
use super::tree::{NodeId, Shape, VdevTree};
use bytes::Bytes;
use cenote_format::Txg;

/// A stretch of a top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Top-level vdev id.
    pub vdev: u32,
    /// Byte offset in its address space.
    pub offset: u64,
    /// Bytes, whole sectors.
    pub size: u64,
}

/// One side of a stretch that is being read.
struct Attempt {
    stretch: usize,
    vdev: u32,
    side: usize,
    extent: Extent,
    /// Where it may be read, the last first.
    from: Vec<NodeId>,
    failure: Option<VdevError>,
}

impl VdevTree {
    /// How many reads of each side of a top-level vdev failed or gave wrong bytes: of those of a mirror, or
    /// of the vdev itself.
    pub fn errors_of_sides(&self, vdev: u32) -> Vec<u64> {
        let nodes = self.side_nodes(vdev).unwrap_or_default();
        nodes.into_iter().map(|node| self.read_errors_beneath(node)).collect()
    }

    fn read_errors_beneath(&self, id: NodeId) -> u64 {
        let Some(node) = self.nodes.get(id) else { return 0 };
        let own = match node.shape {
            Shape::Leaf(leaf) => self.leaves.get(leaf).map(|leaf| leaf.stats.snapshot()),
            _ => None,
        };
        let own = own.map_or(0, |own| own.read_errors.saturating_add(own.checksum_errors));
        let below = node.children.iter().map(|child| self.read_errors_beneath(*child));
        below.fold(own, u64::saturating_add)
    }

    fn side_nodes(&self, vdev: u32) -> Option<Vec<NodeId>> {
        let id = self.tops.get(vdev as usize)?.node;
        let node = self.nodes.get(id)?;
        Some(match &node.shape {
            Shape::Copies => node.children.clone(),
            _ => vec![id],
        })
    }

    /// Reads all sides of each stretch, all of them together.
    ///
    /// # Errors
    /// As [`VdevError`] says, for each stretch by itself: no side of it can be read.
    pub fn read_sides(&self, stretches: &[Stretch]) -> Vec<Result<Vec<Bytes>, VdevError>> {
        let mut results: Vec<Result<Vec<Bytes>, VdevError>> = Vec::with_capacity(stretches.len());
        let mut attempts = Vec::new();
        for (index, stretch) in stretches.iter().enumerate() {
            match self.attempts(index, stretch) {
                Ok(own) => {
                    results.push(Ok(vec![Bytes::new(); own.len()]));
                    attempts.extend(own);
                }
                Err(error) => results.push(Err(error)),
            }
        }
        while !attempts.is_empty() {
            attempts = self.try_sides(attempts, &mut results);
        }
        results
    }

    fn attempts(&self, index: usize, stretch: &Stretch) -> Result<Vec<Attempt>, VdevError> {
        let Stretch { vdev, offset, size } = *stretch;
        let (_, extent) = self.locate(&BlockRead { vdev, offset, size, birth: Txg(0) })?;
        let nodes = self.side_nodes(vdev).unwrap_or_default();
        let whole: Vec<NodeId> =
            nodes.iter().copied().filter(|node| self.has_everything(*node)).collect();
        let attempt = |(side, own): (usize, &NodeId)| {
            // What lacks something may lack this.
            let mut from = if whole.is_empty() { vec![*own] } else { whole.clone() };
            from.sort_by_key(|node| node == own);
            Attempt { stretch: index, vdev, side, extent, from, failure: None }
        };
        Ok(nodes.iter().enumerate().map(attempt).collect())
    }

    /// Whether a side of a top-level vdev can be read and lacks nothing.
    pub fn has_whole_side(&self, vdev: u32) -> bool {
        let nodes = self.side_nodes(vdev).unwrap_or_default();
        nodes.into_iter().any(|node| self.has_everything(node))
    }

    fn has_everything(&self, node: NodeId) -> bool {
        self.lacks(node, None).is_empty()
    }

    /// Tries each side at the next place; those that are to be tried once more.
    fn try_sides(
        &self,
        attempts: Vec<Attempt>,
        results: &mut [Result<Vec<Bytes>, VdevError>],
    ) -> Vec<Attempt> {
        let planner = Planner::new(self, true);
        let mut batch = Batch::new(self);
        let (mut planned, mut again): (Vec<(Attempt, Plan)>, _) = (Vec::new(), Vec::new());
        for mut attempt in attempts {
            loop {
                let Some(node) = attempt.from.pop() else {
                    let none = || VdevError::config("no side of a stretch can be read");
                    if let Some(slot) = results.get_mut(attempt.stretch) {
                        *slot = Err(attempt.failure.unwrap_or_else(none));
                    }
                    break;
                };
                match planner.plan(node, attempt.extent, Txg(0), &[], &mut batch, 0) {
                    Ok(plan) => {
                        planned.push((attempt, plan));
                        break;
                    }
                    Err(reason) => {
                        let vdev = attempt.vdev;
                        attempt.failure.get_or_insert(VdevError::Unavailable { vdev, reason });
                    }
                }
            }
        }
        let answers = batch.run(true);
        for (mut attempt, plan) in planned {
            match plan.finish(&answers) {
                Ok(bytes) => {
                    let sides = results.get_mut(attempt.stretch).and_then(|it| it.as_mut().ok());
                    if let Some(slot) = sides.and_then(|sides| sides.get_mut(attempt.side)) {
                        *slot = bytes;
                    }
                }
                Err(op) => {
                    let read = BlockRead {
                        vdev: attempt.vdev,
                        offset: attempt.extent.offset,
                        size: attempt.extent.len,
                        birth: Txg(0),
                    };
                    attempt.failure = Some(self.failure(&read, &batch, op, &answers));
                    again.push(attempt);
                }
            }
        }
        again
    }
}
