//! Reading many blocks at once, the best copy of each, without verification.
//!
//! Invariant: every read gets one answer, in order: bytes of exactly the size asked for, or an
//! error. A device that fails is left out and the read planned again, a bounded number of times.

use super::batch::Batch;
use super::error::VdevError;
use super::extent::Extent;
use super::layout::{MAX_BLOCK, round_up};
use super::plan::{Answers, Plan, Planner};
use super::tree::{LeafId, NodeId, Shape, VdevTree};
use bytes::Bytes;
use cenote_device::DeviceError;
use cenote_format::Txg;

/// How often a read is planned anew because devices failed: parity can make up for three, and what was only
/// late is waited for in the end.
const MAX_ROUNDS: usize = 6;

/// A block to read: one address of a block pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRead {
    /// Top-level vdev id.
    pub vdev: u32,
    /// Byte offset in the vdev's address space.
    pub offset: u64,
    /// Bytes: the block's physical size.
    pub size: u64,
    /// Physical birth (decides the width on an expanded raidz).
    pub birth: Txg,
}

/// A read under way.
struct Attempt {
    index: usize,
    avoid: Vec<LeafId>,
    failure: Option<VdevError>,
    /// Nothing can be done without those that are late, or a device has been asked a second time.
    patient: bool,
}

impl BlockRead {
    pub(super) fn bad(&self, reason: &'static str) -> VdevError {
        VdevError::BadAddress { vdev: self.vdev, offset: self.offset, size: self.size, reason }
    }

    pub(super) fn unavailable(&self, reason: String) -> VdevError {
        VdevError::Unavailable { vdev: self.vdev, reason }
    }
}

impl VdevTree {
    /// The node and the whole-sector extent of a read.
    pub(super) fn locate(&self, read: &BlockRead) -> Result<(NodeId, Extent), VdevError> {
        let missing = |reason| VdevError::NoSuchVdev { vdev: read.vdev, reason };
        let top = self.tops.get(read.vdev as usize).ok_or_else(|| missing("there is none"))?;
        let node = self.nodes.get(top.node).ok_or_else(|| missing("there is none"))?;
        match &node.shape {
            Shape::Nothing(why) => return Err(missing(why)),
            Shape::Indirect(slot) if slot.read().is_none() => {
                return Err(VdevError::MappingNotLoaded(read.vdev));
            }
            _ => {}
        }
        let len = round_up(read.size, 1 << top.ashift).ok_or_else(|| read.bad("too large"))?;
        if read.size == 0 || len > MAX_BLOCK {
            return Err(read.bad("no block has this size"));
        }
        let end = read.offset.checked_add(len).ok_or_else(|| read.bad("beyond the vdev"))?;
        let asize = top.asize();
        if asize != 0 && end > asize {
            return Err(read.bad("beyond the vdev"));
        }
        Ok((top.node, Extent::new(read.offset, len)))
    }

    /// Reads the best copy of each block: one batch for all of them, no verification.
    ///
    /// Parity is read only where a data column's device is unavailable. If a device fails, what
    /// was to come from it is read again from elsewhere. Errors: as [`VdevError`] says, for each
    /// block by itself.
    pub fn read_batch(&self, reads: &[BlockRead]) -> Vec<Result<Bytes, VdevError>> {
        self.read_but(reads, &[])
    }

    /// As [`VdevTree::read_batch`], from other leaves than `never`.
    pub(super) fn read_but(
        &self,
        reads: &[BlockRead],
        never: &[LeafId],
    ) -> Vec<Result<Bytes, VdevError>> {
        let mut results: Vec<Option<Result<Bytes, VdevError>>> = Vec::with_capacity(reads.len());
        results.resize_with(reads.len(), || None);
        let mut attempts: Vec<Attempt> = (0..reads.len())
            .map(|index| Attempt { index, avoid: never.to_vec(), failure: None, patient: false })
            .collect();
        for _ in 0..MAX_ROUNDS {
            if attempts.is_empty() {
                break;
            }
            let planner = Planner::new(self, false);
            let mut batch = Batch::new(self);
            let mut planned = Vec::with_capacity(attempts.len());
            for attempt in attempts.drain(..) {
                let Some(read) = reads.get(attempt.index) else { continue };
                let mut attempt = attempt;
                let mut plan = self.plan(&planner, read, &attempt.avoid, &mut batch);
                if plan.is_err() && attempt.avoid.len() > never.len() && !attempt.patient {
                    attempt.patient = true;
                    attempt.avoid.truncate(never.len());
                    plan = self.plan(&planner, read, &attempt.avoid, &mut batch);
                }
                match (plan, results.get_mut(attempt.index)) {
                    (Ok(plan), _) => planned.push((attempt, plan)),
                    // The device's own words say more than that it is left out now.
                    (Err(error), Some(slot)) => {
                        *slot = Some(Err(attempt.failure.unwrap_or(error)));
                    }
                    (Err(_), None) => {}
                }
            }
            let patient = planned.iter().any(|(attempt, _): &(Attempt, Plan)| attempt.patient);
            let answers = batch.run(patient);
            for (mut attempt, plan) in planned {
                let Some(read) = reads.get(attempt.index) else { continue };
                match plan.finish(&answers) {
                    Ok(bytes) => {
                        let exact = bytes.get(..read.size as usize).is_some();
                        let answer = if exact {
                            Ok(bytes.slice(..read.size as usize))
                        } else {
                            Err(read.bad("the layout gave too few bytes"))
                        };
                        if let Some(slot) = results.get_mut(attempt.index) {
                            *slot = Some(answer);
                        }
                    }
                    Err(op) => {
                        attempt.failure = Some(self.failure(read, &batch, op, &answers));
                        self.leave_out(&mut attempt.avoid, &plan, &batch, &answers);
                        attempts.push(attempt);
                    }
                }
            }
        }
        for attempt in attempts {
            if let Some(slot) = results.get_mut(attempt.index) {
                *slot = attempt.failure.map(Err);
            }
        }
        let lost = || VdevError::config("a read was not answered");
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(lost()))).collect()
    }

    fn plan(
        &self,
        planner: &Planner<'_>,
        read: &BlockRead,
        avoid: &[LeafId],
        batch: &mut Batch<'_>,
    ) -> Result<Plan, VdevError> {
        let (node, extent) = self.locate(read)?;
        let plan = planner.plan(node, extent, read.birth, avoid, batch, 0);
        plan.map_err(|why| read.unavailable(why))
    }

    /// Adds the leaves whose operations in `plan` failed.
    fn leave_out(
        &self,
        avoid: &mut Vec<LeafId>,
        plan: &Plan,
        batch: &Batch<'_>,
        answers: &Answers,
    ) {
        plan.for_each_op(&mut |op| {
            if let (Some(op), Some(Err(_))) = (batch.ops.get(op), answers.get(op))
                && !avoid.contains(&op.leaf)
            {
                avoid.push(op.leaf);
            }
        });
    }

    /// What operation `op` failed with.
    pub(super) fn failure(
        &self,
        read: &BlockRead,
        batch: &Batch<'_>,
        op: usize,
        answers: &Answers,
    ) -> VdevError {
        let leaf = batch.ops.get(op).and_then(|op| self.leaves.get(op.leaf));
        let error = match answers.get(op) {
            Some(Err(error)) => error.clone(),
            _ => DeviceError::Gone,
        };
        let leaf = leaf.map_or(0, |leaf| leaf.config.guid.0);
        VdevError::Device { vdev: read.vdev, leaf, error }
    }
}
