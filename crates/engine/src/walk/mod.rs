//! Going through block trees: every block of an object set, from its root down.
//!
//! [`Walk`] gives blocks one after another in the order of objects and block numbers, parents or
//! children first, and can be stopped and resumed at any of them. [`drain`] gives them away in
//! portions: freeing uses it. [`Spread`] goes through many trees with many threads in no special
//! order: checking uses it. All read ahead in batches. Who wants blocks in the order of where they lie
//! gathers some and sorts them: how many, and where that may end, only he knows (`pool/group/scan`).
//!
//! Invariant: whatever lies on the disks, a walk ends, in memory that is bounded by the depth of the
//! trees: a block that leads to others is followed once, and where it leads to again is an error.
//! What cannot be read, or makes no sense, is told with its place, and the walk goes on beside it.

mod bits;
mod drain;
mod node;
mod ordered;
mod spread;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use cenote_format::bptree::BlockBookmark;
use cenote_format::{BlockPointer, Txg};

use crate::pipe::{Pipe, ReadContext};
use crate::{Error, Result};

pub(crate) use bits::SparseBits;
pub use drain::{Drained, drain};
pub use node::Node;
pub use ordered::{Ahead, Order, Step, Walk};
pub use spread::{Spread, Visitor};

/// Where blocks are read from.
pub trait Source: Sync {
    /// Reads many blocks at once; results in the order asked.
    fn read_many(&self, pointers: &[BlockPointer], context: &ReadContext) -> Vec<Result<Bytes>>;
}

impl Source for Pipe {
    fn read_many(&self, pointers: &[BlockPointer], context: &ReadContext) -> Vec<Result<Bytes>> {
        Self::read_many(self, pointers, context)
    }
}

/// The blocks of one object set that are wanted, and what the visitor knows of it.
#[derive(Clone)]
pub struct Tree<T = ()> {
    /// How its blocks are read, and the number of the set.
    pub read: ReadContext,
    /// Blocks born in this group or before are not visited, nor is what is below them.
    pub after: Txg,
    /// Blocks born after this group are not visited, but what is below them is.
    pub until: Txg,
    /// Holes that were born in these groups are visited as well.
    pub holes: bool,
    /// With `holes`: those of which no birth is known, too, whatever `after` is.
    pub unborn: bool,
    /// Where an earlier walk stopped.
    pub resume: Option<BlockBookmark>,
    /// Blocks above that place are given again, where parents come first.
    pub above: bool,
    /// Only the root is looked at: what it leads to belongs to another tree.
    pub only_root: bool,
    /// In order: the blocks of dnodes are looked at, and not what they lead to.
    pub only_dnodes: bool,
    /// What the visitor knows.
    pub own: T,
}

impl<T> Tree<T> {
    /// All blocks of set `objset` born after `after`. They are read without keys, and not kept in
    /// the cache.
    pub fn new(objset: u64, after: Txg, own: T) -> Self {
        let read = ReadContext { objset, transient: true, sealed: true, ..ReadContext::default() };
        let until = Txg(u64::MAX);
        Self {
            read,
            after,
            until,
            holes: false,
            unborn: false,
            resume: None,
            above: false,
            only_root: false,
            only_dnodes: false,
            own,
        }
    }

    /// A block, and all below it, is not to be visited. That a walk has done them already is
    /// another question.
    fn leaves_out(&self, node: &Node) -> bool {
        let pointer = &node.pointer;
        let birth = pointer.logical_birth();
        if pointer.is_hole() && (!self.holes || self.unborn && birth == Txg(0)) {
            return !self.holes;
        }
        pointer.is_redacted() || birth <= self.after
    }

    /// Adds to an error where it happened.
    pub(crate) fn named(&self, node: &Node, error: Error) -> Error {
        error.at_pointer(&node.pointer).at(|place| {
            place.objset = Some(self.read.objset);
            place.object = Some(node.object);
            place.block = Some((node.level, node.block));
        })
    }
}

/// Why a block, or what it leads to, is lost to a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It could not be read.
    Unreadable,
    /// Its pointer or its verified content makes no sense.
    Malformed,
    /// What it leads to belongs to another block as well.
    Repeated,
}

/// A block that a walk could not look at.
#[derive(Clone, Debug)]
pub struct Lost {
    /// The block.
    pub node: Node,
    /// What is the matter.
    pub trouble: Trouble,
    /// Where and why.
    pub error: Error,
}
