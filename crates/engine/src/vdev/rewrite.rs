//! Writing what some leaves lack of blocks, and only that.
//!
//! Invariant: nobody but those leaves is written to, or what lies for them on others; nothing is noted as missed,
//! for they lack it already, until a flush fails.

use super::error::VdevError;
use super::placed::Batch;
use super::plan::Planner;
use super::tree::{LeafId, VdevTree};
use super::write::{BlockWrite, Placer};
use std::ops::Range;

/// Blocks that are written again, for some leaves.
pub(super) struct Rewrite<'a> {
    /// Only these get anything.
    pub(super) only: &'a [LeafId],
    /// Groups whose blocks they lack if it is lost.
    pub(super) births: &'a Range<u64>,
}

impl VdevTree {
    /// Writes the parts of blocks that some leaves have; whether all of them have them now. Nothing is
    /// noted as missed: they lack it already.
    pub(super) fn rewrite(
        &self,
        writes: &[BlockWrite],
        rewrite: &Rewrite<'_>,
    ) -> Vec<Result<(), VdevError>> {
        let mut batch = Batch { births: Some(rewrite.births.clone()), ..Batch::default() };
        let placer = Placer { planner: Planner::new(self, false) };
        let (mut owners, mut results) = (Vec::new(), Vec::with_capacity(writes.len()));
        for (index, write) in writes.iter().enumerate() {
            let first = batch.ops.len();
            let placed = placer.block(write, &mut batch);
            results.push(placed.and_then(|placed| {
                match placed.is_lost_on(&|leaf| self.is_rebuilt(leaf)) {
                    false => Ok(()),
                    true => {
                        let reason = "a device that is rebuilt takes no writes now".into();
                        Err(VdevError::NotWritten { vdev: write.vdev, reason })
                    }
                }
            }));
            let new = batch.ops.split_off(first);
            let is_wanted = |leaf: LeafId| rewrite.only.contains(&leaf);
            let own = new.into_iter().filter(|op| {
                is_wanted(op.leaf) || op.through.iter().any(|spare| is_wanted(*spare))
            });
            batch.ops.extend(own);
            owners.resize(batch.ops.len(), index);
        }
        batch.fillers.clear();
        // Each of them is waited for.
        let answers = self.send(&mut batch, &|_| false);
        self.note_written(&batch, &answers);
        for ((owner, op), answer) in owners.into_iter().zip(&batch.ops).zip(answers) {
            let (Err(error), Some(leaf)) = (answer, self.leaves.get(op.leaf)) else { continue };
            let reason = format!("{}: {error}", leaf.name());
            if let (Some(slot), Some(write)) = (results.get_mut(owner), writes.get(owner)) {
                *slot = Err(VdevError::NotWritten { vdev: write.vdev, reason });
            }
        }
        results
    }
}
