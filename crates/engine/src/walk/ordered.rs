//! A walk in logical order: by object number and block number, resumable at every block.
//!
//! Invariant: the order depends on the tree alone, so what a walk from a bookmark gives is what a
//! whole walk gives from there on. What waits are the siblings of the blocks above, and a window of
//! blocks read ahead on each level.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use cenote_format::BlockPointer;

use super::node::{Children, Node, NotTold};
use super::{Lost, Source, Tree, Trouble};
use crate::{Error, Result};

/// Which comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A block, then what it leads to.
    ParentFirst,
    /// What a block leads to, then the block.
    ChildrenFirst,
}

/// How much of what a walk comes to is read together.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// Blocks on one level.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { blocks: 16, bytes: 2 << 20 }
    }
}

/// What a walk comes to.
#[derive(Clone, Debug)]
pub enum Step {
    /// A block.
    Block(Node),
    /// A block that the walk cannot look at: neither it nor what is below it is given.
    Lost(Lost),
}

/// A walk over one object set. Its steps are taken with [`Iterator::next`].
pub struct Walk<'a> {
    source: &'a dyn Source,
    tree: Tree,
    order: Order,
    ahead: Ahead,
    levels: Vec<Level>,
    /// Addresses of blocks that lead to others and were followed.
    followed: HashSet<(u32, u64)>,
}

/// Blocks with the same parent that the walk has not come to.
struct Level {
    /// The parent, if it is still to be given.
    parent: Option<Node>,
    /// Dnodes in the parent that make no sense.
    bad: VecDeque<Lost>,
    nodes: VecDeque<Node>,
    /// Contents of the next of them that lead on.
    contents: VecDeque<(Node, Result<Bytes>)>,
    /// Blocks read together the last time.
    window: usize,
}

impl<'a> Walk<'a> {
    /// A walk over `tree`, whose root is `root`.
    pub fn new(source: &'a dyn Source, tree: Tree, root: BlockPointer, order: Order) -> Self {
        let mut walk = Self {
            source,
            tree,
            order,
            ahead: Ahead::default(),
            levels: Vec::new(),
            followed: HashSet::new(),
        };
        let nodes = vec![Node::root(root)];
        walk.levels.push(Level::new(None, VecDeque::new(), nodes));
        walk
    }

    /// Sets how much is read ahead.
    #[must_use]
    pub fn reading_ahead(mut self, ahead: Ahead) -> Self {
        self.ahead = ahead;
        self
    }

    /// Number of the object set.
    pub fn objset(&self) -> u64 {
        self.tree.read.objset
    }

    /// Neither a block nor what is below it is to be visited, or an earlier walk did.
    fn skips(&self, node: &Node) -> bool {
        if self.tree.leaves_out(node) {
            return true;
        }
        let Some(stop) = &self.tree.resume else { return false };
        let at = node.bookmark(stop.objset);
        match self.order {
            Order::ParentFirst => at.is_passed_before(stop, node.shift()),
            Order::ChildrenFirst => at.is_done_before(stop, node.shift()),
        }
    }

    /// An earlier walk that gave children first was about to give this block.
    fn is_emptied(&self, node: &Node) -> bool {
        let stop = self.tree.resume.filter(|_| self.order == Order::ChildrenFirst);
        stop.is_some_and(|stop| stop == node.bookmark(stop.objset))
    }

    /// The block is one of those wanted, and no earlier walk gave it.
    fn gives(&self, node: &Node) -> bool {
        let above = self.order == Order::ParentFirst
            && !self.tree.above
            && self
                .tree
                .resume
                .is_some_and(|stop| node.bookmark(stop.objset).leads_to(&stop, node.shift()));
        !above && node.pointer.logical_birth() <= self.tree.until
    }

    /// What the block leads to is visited.
    fn follows(&self, node: &Node) -> bool {
        let is_of_dnodes = node.object == 0 && node.level == 0 && !node.is_root();
        node.leads_on() && !(self.tree.only_dnodes && is_of_dnodes)
    }

    fn lost(&self, node: Node, trouble: Trouble, error: Error) -> Step {
        let error = self.tree.named(&node, error);
        Step::Lost(Lost { node, trouble, error })
    }

    /// Comes to `node`: what to give before anything else.
    fn enter(&mut self, node: Node) -> Option<Step> {
        if let Err(error) = node.check() {
            return Some(self.lost(node, Trouble::Malformed, error));
        }
        if !self.follows(&node) || self.is_emptied(&node) {
            return self.gives(&node).then_some(Step::Block(node));
        }
        let content = match self.content(&node) {
            Ok(content) => content,
            Err(error) => return Some(self.lost(node, Trouble::Unreadable, error)),
        };
        if let Some(dva) = node.pointer.first_dva()
            && !self.followed.insert((dva.vdev, dva.offset))
        {
            let reason = "what the block leads to belongs to another block as well";
            return Some(self.lost(node, Trouble::Repeated, Error::corrupt(reason)));
        }
        let Children { nodes, bad } = match node.children(&content, &mut NotTold) {
            Ok(children) => children,
            Err(error) => return Some(self.lost(node, Trouble::Malformed, error)),
        };
        let lost = |(object, error): (u64, Error)| {
            let error = error.at_object(self.tree.read.objset, object);
            Lost { node, trouble: Trouble::Malformed, error }
        };
        let bad = bad.into_iter().map(lost).collect();
        let gives = self.gives(&node);
        let first = gives && self.order == Order::ParentFirst;
        let parent = (gives && !first).then_some(node);
        self.levels.push(Level::new(parent, bad, nodes));
        first.then_some(Step::Block(node))
    }

    /// What a block that leads on contains. Reads those that come next with it.
    fn content(&mut self, node: &Node) -> Result<Bytes> {
        let objset = self.objset();
        let taken = self.levels.last_mut().and_then(|level| level.take(node));
        if let Some(content) = taken {
            return content;
        }
        let mut wanted = vec![*node];
        if let Some(level) = self.levels.last() {
            let most = self.ahead.blocks.min(level.window.saturating_mul(2)).max(1);
            let mut bytes = node.pointer.lsize();
            for next in &level.nodes {
                if wanted.len() >= most || bytes >= self.ahead.bytes {
                    break;
                }
                let leads_on = self.follows(next) && next.check().is_ok();
                if leads_on && !self.skips(next) && !self.is_emptied(next) {
                    bytes = bytes.saturating_add(next.pointer.lsize());
                    wanted.push(*next);
                }
            }
        }
        let pointers: Vec<BlockPointer> = wanted.iter().map(|node| node.pointer).collect();
        let contents = self.source.read_many(&pointers, &self.tree.read);
        let level = self.levels.last_mut();
        let missing = || Error::bug("no block was read").at_object(objset, node.object);
        let Some(level) = level else { return Err(missing()) };
        level.window = wanted.len();
        level.contents = wanted.into_iter().zip(contents).collect();
        level.take(node).unwrap_or_else(|| Err(missing()))
    }
}

impl Iterator for Walk<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        loop {
            let level = self.levels.last_mut()?;
            if let Some(lost) = level.bad.pop_front() {
                return Some(Step::Lost(lost));
            }
            let Some(node) = level.nodes.pop_front() else {
                if let Some(parent) = self.levels.pop().and_then(|level| level.parent) {
                    return Some(Step::Block(parent));
                }
                continue;
            };
            if self.skips(&node) {
                continue;
            }
            if let Some(step) = self.enter(node) {
                return Some(step);
            }
        }
    }
}

impl Level {
    fn new(parent: Option<Node>, bad: VecDeque<Lost>, nodes: Vec<Node>) -> Self {
        Self { parent, bad, nodes: nodes.into(), contents: VecDeque::new(), window: 1 }
    }

    /// The content that was read ahead for `node`.
    fn take(&mut self, node: &Node) -> Option<Result<Bytes>> {
        let (of, content) = self.contents.pop_front()?;
        (of == *node).then_some(content)
    }
}
