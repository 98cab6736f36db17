//! Walking many trees with many threads, in no special order.
//!
//! Invariant: jobs are taken last in, first out, and the roots of other trees last, so what waits is
//! bounded by the depth of the trees, not by their breadth.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::Builder;
use std::time::{Duration, Instant};

use cenote_format::{BlockPointer, Dnode, Objset};
use parking_lot::{Condvar, Mutex};

use super::bits::SparseBits;
use super::node::{Node, Told};
use super::{Lost, Source, Tree, Trouble};
use crate::{Error, Result};

/// Pointers in one job whose blocks lead to others, and the bytes of these.
const INNER_BATCH: usize = 16;
const INNER_BYTES: u64 = 16 << 20;
/// Pointers in one job whose blocks are only looked at, and their bytes.
const LEAF_BATCH: usize = 64;
const LEAF_BYTES: u64 = 4 << 20;
/// log2 of the smallest sector.
const SECTOR: u32 = 9;

/// What is done with the blocks.
pub trait Visitor: Sync {
    /// What it knows of a tree.
    type Own: Send + Sync;
    /// What a thread notes for itself.
    type Tally: Default + Send;

    /// It will read this block, which leads to no other: it is given with others.
    fn is_read(&self, node: &Node) -> bool;

    /// Blocks of a tree, before those that lead on are read.
    fn blocks(&self, tree: &Tree<Self::Own>, nodes: &[Node], tally: &mut Self::Tally);

    /// A block that leads on was read.
    fn read(&self, _tree: &Tree<Self::Own>, _node: &Node, _tally: &mut Self::Tally) {}

    /// So was the root of a tree. After an error nothing below it is visited.
    fn objset(&self, _tree: &Tree<Self::Own>, _objset: &Objset) -> Result<()> {
        Ok(())
    }

    /// So was a dnode. It may lead to the root of another tree.
    fn dnode(
        &self,
        _tree: &Tree<Self::Own>,
        _object: u64,
        _dnode: &Dnode,
    ) -> Option<(Tree<Self::Own>, BlockPointer)> {
        None
    }

    /// A block, or what is below it, cannot be visited.
    fn lost(&self, tree: &Tree<Self::Own>, lost: Lost);

    /// A thread has ended.
    fn keep(&self, tally: Self::Tally);
}

struct Job<T> {
    tree: Arc<Tree<T>>,
    nodes: Vec<Node>,
}

struct Queue<T> {
    jobs: VecDeque<Job<T>>,
    working: usize,
}

/// A walk over many trees.
pub struct Spread<'a, V: Visitor> {
    source: &'a dyn Source,
    visitor: &'a V,
    queue: Mutex<Queue<V::Own>>,
    /// Sectors of blocks that lead to others and were followed, by top-level vdev.
    followed: Mutex<HashMap<u32, SparseBits>>,
    changed: Condvar,
    stopped: AtomicBool,
}

/// Tells that a thread has ended its job, also if it panicked: nobody is to wait for it then.
struct JobEnd<'a, 'b, V: Visitor>(&'b Spread<'a, V>);

impl<V: Visitor> Drop for JobEnd<'_, '_, V> {
    fn drop(&mut self) {
        self.0.queue.lock().working -= 1;
        self.0.changed.notify_all();
    }
}

/// Hands what is on the way to the visitor.
struct OnTheWay<'a, V: Visitor> {
    visitor: &'a V,
    tree: &'a Tree<V::Own>,
    roots: Vec<(Tree<V::Own>, BlockPointer)>,
}

impl<V: Visitor> Told for OnTheWay<'_, V> {
    fn objset(&mut self, objset: &Objset) -> Result<()> {
        self.visitor.objset(self.tree, objset)
    }

    fn dnode(&mut self, object: u64, dnode: &Dnode) {
        self.roots.extend(self.visitor.dnode(self.tree, object, dnode));
    }
}

impl<'a, V: Visitor> Spread<'a, V> {
    /// A walk with nothing to do yet.
    pub fn new(source: &'a dyn Source, visitor: &'a V) -> Self {
        Self {
            source,
            visitor,
            queue: Mutex::new(Queue { jobs: VecDeque::new(), working: 0 }),
            followed: Mutex::default(),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Adds a tree, behind everything else.
    pub fn add(&self, tree: Tree<V::Own>, root: BlockPointer) {
        let nodes = vec![Node::root(root)];
        self.queue.lock().jobs.push_front(Job { tree: Arc::new(tree), nodes });
        self.changed.notify_one();
    }

    /// Walks until nothing is left or `progress`, which is asked every `interval` and at the end,
    /// says stop. False if it was stopped.
    pub fn run(
        &self,
        threads: usize,
        interval: Duration,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> bool {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for begun in 0..threads.max(1) {
                if Builder::new().name("walk".into()).spawn_scoped(scope, || self.work()).is_err() {
                    // Those there are do it, or this one.
                    (begun == 0).then(|| self.work());
                    break;
                }
            }
            let mut finished = false;
            while !finished {
                {
                    let mut queue = self.queue.lock();
                    if !self.is_done(&queue) {
                        self.changed.wait_for(&mut queue, interval);
                    }
                    finished = self.is_done(&queue);
                }
                if !finished && start.elapsed() < interval {
                    continue;
                }
                if progress().is_break() && !finished {
                    self.stopped.store(true, Relaxed);
                    self.changed.notify_all();
                }
            }
        });
        !self.stopped.load(Relaxed)
    }

    fn is_done(&self, queue: &Queue<V::Own>) -> bool {
        (queue.jobs.is_empty() || self.stopped.load(Relaxed)) && queue.working == 0
    }

    fn work(&self) {
        let mut tally = V::Tally::default();
        loop {
            let job = {
                let mut queue = self.queue.lock();
                loop {
                    if self.is_done(&queue) || self.stopped.load(Relaxed) {
                        drop(queue);
                        self.changed.notify_all();
                        return self.visitor.keep(tally);
                    }
                    if let Some(job) = queue.jobs.pop_back() {
                        queue.working += 1;
                        break job;
                    }
                    self.changed.wait(&mut queue);
                }
            };
            let _ended = JobEnd(self);
            self.visit(&job, &mut tally);
        }
    }

    fn visit(&self, job: &Job<V::Own>, tally: &mut V::Tally) {
        let tree = &*job.tree;
        self.visitor.blocks(tree, &job.nodes, tally);
        let inner: Vec<&Node> = job.nodes.iter().filter(|node| node.leads_on()).collect();
        let pointers: Vec<BlockPointer> = inner.iter().map(|node| node.pointer).collect();
        let contents = self.source.read_many(&pointers, &tree.read);
        let mut on_the_way = OnTheWay { visitor: self.visitor, tree, roots: Vec::new() };
        let mut below = Vec::new();
        for (node, content) in inner.into_iter().zip(contents) {
            let content = match content {
                Ok(content) => content,
                Err(error) => {
                    self.lost(tree, *node, Trouble::Unreadable, error);
                    continue;
                }
            };
            self.visitor.read(tree, node, tally);
            if !tree.only_root && self.was_followed(&node.pointer) {
                let reason = "what the block leads to belongs to another block as well";
                self.lost(tree, *node, Trouble::Repeated, Error::corrupt(reason));
                continue;
            }
            match node.children(&content, &mut on_the_way) {
                Ok(children) => {
                    for (object, error) in children.bad {
                        let error = error.at_object(tree.read.objset, object);
                        let lost = Lost { node: *node, trouble: Trouble::Malformed, error };
                        self.visitor.lost(tree, lost);
                    }
                    below.extend(children.nodes);
                }
                Err(error) => self.lost(tree, *node, Trouble::Malformed, error),
            }
        }
        let OnTheWay { roots, .. } = on_the_way;
        roots.into_iter().for_each(|(tree, root)| self.add(tree, root));
        if !tree.only_root {
            self.push(&job.tree, below, tally);
        }
    }

    fn lost(&self, tree: &Tree<V::Own>, node: Node, trouble: Trouble, error: Error) {
        let error = tree.named(&node, error);
        self.visitor.lost(tree, Lost { node, trouble, error });
    }

    /// Notes that a block that could be read is followed; whether some of its space was before.
    fn was_followed(&self, pointer: &BlockPointer) -> bool {
        let Some(dva) = pointer.first_dva() else { return false };
        let sectors = if pointer.is_gang() { 1 } else { (pointer.psize() >> SECTOR).max(1) };
        let mut followed = self.followed.lock();
        followed.entry(dva.vdev).or_default().insert(dva.offset >> SECTOR, sectors) > 0
    }

    /// Cuts `nodes` into jobs; those that nobody reads are visited at once.
    fn push(&self, tree: &Arc<Tree<V::Own>>, nodes: Vec<Node>, tally: &mut V::Tally) {
        let (mut jobs, mut leaves) = (Vec::new(), Vec::new());
        let (mut inner, mut inner_bytes, mut bytes) = (Vec::new(), 0, 0);
        for node in nodes.into_iter().filter(|node| !tree.leaves_out(node)) {
            let done = |stop| node.bookmark(0).is_done_before(stop, node.shift());
            if tree.resume.as_ref().is_some_and(done) {
                continue;
            }
            if let Err(error) = node.check() {
                self.lost(tree, node, Trouble::Malformed, error);
                continue;
            }
            if node.leads_on() {
                inner_bytes += node.pointer.lsize();
                inner.push(node);
                if inner.len() >= INNER_BATCH || inner_bytes >= INNER_BYTES {
                    jobs.push(std::mem::take(&mut inner));
                    inner_bytes = 0;
                }
            } else if self.visitor.is_read(&node) {
                bytes += node.pointer.psize();
                leaves.push(node);
                if leaves.len() >= LEAF_BATCH || bytes >= LEAF_BYTES {
                    jobs.push(std::mem::take(&mut leaves));
                    bytes = 0;
                }
            } else {
                self.visitor.blocks(tree, std::slice::from_ref(&node), tally);
            }
        }
        jobs.extend([inner, leaves].into_iter().filter(|nodes| !nodes.is_empty()));
        if jobs.is_empty() {
            return;
        }
        let jobs = jobs.into_iter().rev().map(|nodes| Job { tree: tree.clone(), nodes });
        self.queue.lock().jobs.extend(jobs);
        self.changed.notify_all();
    }
}
