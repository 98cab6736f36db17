//! Which objects of a set may have changed since a group.
//!
//! Invariant: an object whose dnode was written, or freed, after the group is told; blocks of dnodes that are older
//! are not read.

use std::ops::Range;

use cenote_format::Txg;
use cenote_format::dnode::SLOTS_PER_BLOCK;

use super::{OBJECTS_END, ObjectSet};
use crate::Result;
use crate::walk::{Order, Step, Tree, Walk};

impl ObjectSet {
    /// Numbers of objects of which some were written or freed after the group `after`, ascending. A live set is
    /// taken as it is on the disks.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn changed_since(&self, after: Txg) -> Result<Vec<Range<u64>>> {
        let mut tree = Tree::new(self.id(), after, ());
        tree.read = self.context().clone();
        (tree.holes, tree.unborn, tree.only_dnodes) = (true, true, true);
        let mut all: Vec<Range<u64>> = Vec::new();
        for step in Walk::new(&*self.io().pipe, tree, *self.root_pointer(), Order::ParentFirst) {
            let node = match step {
                Step::Lost(lost) => return Err(lost.error),
                Step::Block(node) if node.object != 0 => break,
                Step::Block(node) => node,
            };
            let is_told = !node.is_root() && (node.pointer.is_hole() || node.level == 0);
            let Some((first, count)) = node.data_blocks().filter(|_| is_told) else { continue };
            let first = first.saturating_mul(SLOTS_PER_BLOCK).min(OBJECTS_END);
            let end = first.saturating_add(count.saturating_mul(SLOTS_PER_BLOCK)).min(OBJECTS_END);
            match all.last_mut() {
                Some(last) if last.end == first => last.end = end,
                _ => all.push(first..end),
            }
        }
        Ok(all)
    }
}
