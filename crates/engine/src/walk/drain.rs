//! Giving the blocks of a tree away, children first, a portion at a time.
//!
//! Invariant: over all portions each block is given once, after every block below it. A portion stops
//! at a block that cannot be looked at; when it can be, the next one goes on with what lies below
//! it. Portions end where OpenZFS ends them, at blocks of level 0.

use cenote_format::BlockPointer;
use cenote_format::bptree::BlockBookmark;

use super::node::Node;
use super::{Lost, Order, Source, Step, Tree, Walk};
use crate::Result;
use crate::job::Budget;

/// How far a portion came.
#[derive(Debug)]
pub enum Drained {
    /// Everything was given.
    All,
    /// The budget is spent; the next portion begins here.
    Part(BlockBookmark),
    /// Nothing behind a block that was lost, nor below it, was given.
    Stopped {
        /// Where the next portion begins; `None`: where the tree does.
        resume: Option<BlockBookmark>,
        /// The block.
        lost: Box<Lost>,
    },
}

/// Calls `give` for the blocks of `tree` from its bookmark on, children first, until `budget` is
/// spent. An error of `give` ends it.
pub fn drain(
    source: &dyn Source,
    tree: Tree,
    root: BlockPointer,
    budget: &mut Budget<'_>,
    give: &mut dyn FnMut(&Node) -> Result<()>,
) -> Result<Drained> {
    let (begin, objset) = (tree.resume, tree.read.objset);
    for step in Walk::new(source, tree, root, Order::ChildrenFirst) {
        match step {
            Step::Block(node) => {
                let is_leaf = node.level == 0 && !node.is_root();
                if is_leaf && budget.is_spent() {
                    return Ok(Drained::Part(node.bookmark(objset)));
                }
                give(&node)?;
                budget.spend(1);
            }
            Step::Lost(lost) => {
                // What lies below a block may have been given in part by earlier portions.
                let kept = begin.filter(|begin| {
                    let at = lost.node.bookmark(begin.objset);
                    at == *begin || at.leads_to(begin, lost.node.shift())
                });
                let resume = kept.or_else(|| lost.node.first_below(objset));
                return Ok(Drained::Stopped { resume, lost: Box::new(lost) });
            }
        }
    }
    Ok(Drained::All)
}
