//! Writes of leaves: which of them make a block, and what it means that some were not done.
//!
//! Invariant: a block stands if what reached the devices is enough to read it now; who did not get a part of
//! it misses it, also one that is needed only later.

use super::tree::LeafId;
use bytes::Bytes;
use cenote_device::DeviceError;
use cenote_format::Txg;
use std::collections::HashSet;
use std::ops::Range;

/// A write of one leaf.
pub(super) struct Op {
    pub(super) leaf: LeafId,
    /// First byte on the device.
    pub(super) offset: u64,
    pub(super) data: Bytes,
    pub(super) birth: Txg,
    /// The distributed spares that it is written for: one may stand in for another.
    pub(super) through: Vec<LeafId>,
}

impl Op {
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.data.len() as u64)
    }
}

/// Writes to be sent together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) ops: Vec<Op>,
    /// Zeros that fill gaps between other writes: sent only where they join two of them.
    pub(super) fillers: Vec<Op>,
    /// Leaves were left out although they have a device, or failed where another try may help.
    pub(super) again: bool,
    /// It is answered when it is durable.
    pub(super) durable: bool,
    /// Groups whose blocks a leaf lacks if what was written is lost; `None`: those of each write.
    pub(super) births: Option<Range<u64>>,
}

impl Batch {
    /// The fillers that lie right between two other writes of their leaf.
    pub(super) fn useful_fillers(&mut self) -> Vec<Op> {
        if self.fillers.is_empty() {
            return Vec::new();
        }
        let starts: HashSet<(LeafId, u64)> =
            self.ops.iter().map(|op| (op.leaf, op.offset)).collect();
        let ends: HashSet<(LeafId, u64)> = self.ops.iter().map(|op| (op.leaf, op.end())).collect();
        let mut fillers = std::mem::take(&mut self.fillers);
        fillers.retain(|op| {
            ends.contains(&(op.leaf, op.offset)) && starts.contains(&(op.leaf, op.end()))
        });
        fillers
    }
}

/// Where the parts of a block go.
pub(super) enum Placed {
    /// An operation of the batch.
    Op(usize),
    /// A leaf that takes no writes now, if it is one.
    Lost(Option<LeafId>),
    /// The same on each of these; one is enough.
    Copies(Vec<Placed>),
    /// All of these are needed.
    All(Vec<Placed>),
    /// Columns of a row, of which this many may be lost.
    Row(usize, Vec<Placed>),
    /// What nobody reads before an expansion has come on.
    Later(Box<Placed>),
}

impl Placed {
    /// What reached the devices is enough.
    pub(super) fn stands(&self, is_done: &dyn Fn(usize) -> bool) -> bool {
        match self {
            Self::Op(op) => is_done(*op),
            Self::Lost(_) => false,
            Self::Copies(copies) => copies.iter().any(|copy| copy.stands(is_done)),
            Self::All(parts) => parts.iter().all(|part| part.stands(is_done)),
            Self::Row(parity, columns) => {
                columns.iter().filter(|column| !column.stands(is_done)).count() <= *parity
            }
            Self::Later(_) => true,
        }
    }

    /// Tells `each` every leaf that did not get its part.
    pub(super) fn each_missed(
        &self,
        batch: &Batch,
        answers: &[Result<(), DeviceError>],
        each: &mut dyn FnMut(LeafId),
    ) {
        match self {
            Self::Op(op) if answers.get(*op).is_some_and(Result::is_ok) => {}
            Self::Op(op) => batch.ops.get(*op).into_iter().for_each(|op| each(op.leaf)),
            Self::Lost(leaf) => leaf.iter().for_each(|leaf| each(*leaf)),
            Self::Copies(parts) | Self::All(parts) | Self::Row(_, parts) => {
                parts.iter().for_each(|part| part.each_missed(batch, answers, each));
            }
            Self::Later(part) => part.each_missed(batch, answers, each),
        }
    }

    /// Some leaf of those takes no writes now.
    pub(super) fn is_lost_on(&self, is_one: &dyn Fn(LeafId) -> bool) -> bool {
        match self {
            Self::Op(_) => false,
            Self::Lost(leaf) => leaf.is_some_and(is_one),
            Self::Copies(parts) | Self::All(parts) | Self::Row(_, parts) => {
                parts.iter().any(|part| part.is_lost_on(is_one))
            }
            Self::Later(part) => part.is_lost_on(is_one),
        }
    }

    /// The first operation that failed.
    pub(super) fn failure<'a>(
        &self,
        answers: &'a [Result<(), DeviceError>],
    ) -> Option<(usize, &'a DeviceError)> {
        match self {
            Self::Op(op) => Some((*op, answers.get(*op)?.as_ref().err()?)),
            Self::Lost(_) => None,
            Self::Copies(parts) | Self::All(parts) | Self::Row(_, parts) => {
                parts.iter().find_map(|part| part.failure(answers))
            }
            Self::Later(part) => part.failure(answers),
        }
    }
}
