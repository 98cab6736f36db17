//! What a walk gives, sorted by where it lies: metadata first, then by device and offset.
//!
//! A bounded number of blocks is gathered and sorted; when they are all given, the next ones are.
//! Invariant: every block of the walk is given once, and [`DiskOrder::resume`] is where a walk goes on
//! that gives everything again that was not given, and maybe some that was.

use cenote_format::bptree::BlockBookmark;

use super::node::Node;
use super::{Lost, Step, Walk};

/// Blocks that lie one behind the other, or nearly.
#[derive(Clone, Debug, Default)]
pub struct Portion {
    /// The blocks, in the order of where they lie.
    pub blocks: Vec<Node>,
    /// What was lost on the way.
    pub lost: Vec<Lost>,
}

/// A walk whose blocks are given in the order of where they lie. Parents come first in it.
pub struct DiskOrder<'a> {
    walk: Walk<'a>,
    most: usize,
    /// Sorted backwards.
    gathered: Vec<Node>,
    lost: Vec<Lost>,
    /// The first block that was not gathered.
    next: Option<Step>,
    /// The first that was gathered with those that are left.
    begin: Option<BlockBookmark>,
}

impl<'a> DiskOrder<'a> {
    /// Sorts what `walk` gives, at most `most` blocks at once.
    pub fn new(mut walk: Walk<'a>, most: usize) -> Self {
        let next = walk.next();
        let (gathered, lost, begin) = (Vec::new(), Vec::new(), None);
        Self { walk, most: most.max(1), gathered, lost, next, begin }
    }

    /// The next blocks, at most `blocks` and about `bytes` of them; `None` after the last.
    pub fn portion(&mut self, blocks: usize, bytes: u64) -> Option<Portion> {
        if self.gathered.is_empty() {
            self.gather();
        }
        let mut portion = Portion { lost: std::mem::take(&mut self.lost), ..Portion::default() };
        let mut left = bytes;
        while left > 0
            && portion.blocks.len() < blocks.max(1)
            && let Some(node) = self.gathered.pop()
        {
            left = left.saturating_sub(node.pointer.psize());
            portion.blocks.push(node);
        }
        (!portion.blocks.is_empty() || !portion.lost.is_empty()).then_some(portion)
    }

    /// Where to go on later, without what was gathered. `None`: nothing is left.
    pub fn resume(&self) -> Option<BlockBookmark> {
        match self.gathered.is_empty() && self.lost.is_empty() {
            true => self.next.as_ref().map(|step| self.bookmark(step)),
            false => self.begin,
        }
    }

    fn bookmark(&self, step: &Step) -> BlockBookmark {
        let node = match step {
            Step::Block(node) => node,
            Step::Lost(lost) => &lost.node,
        };
        node.bookmark(self.walk.objset())
    }

    fn gather(&mut self) {
        self.begin = self.next.as_ref().map(|step| self.bookmark(step));
        while self.gathered.len() + self.lost.len() < self.most
            && let Some(step) = self.next.take()
        {
            match step {
                Step::Block(node) => self.gathered.push(node),
                Step::Lost(lost) => self.lost.push(lost),
            }
            self.next = self.walk.next();
        }
        let place = |node: &Node| {
            let address = node.pointer.first_dva().map(|dva| (dva.vdev, dva.offset));
            let is_data = !node.leads_on() && !node.pointer.object_type().is_metadata();
            std::cmp::Reverse((is_data, address))
        };
        self.gathered.sort_by_key(place);
    }
}
