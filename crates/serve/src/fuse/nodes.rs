//! Which nodes the kernel holds references to, and which files those are.
//!
//! Every reply that hands out a node gives the kernel one reference; FORGET takes some back. When
//! none is left, the tree is told, and a file without names goes.
//!
//! Invariant: a node is handed out again only after the tree has finished forgetting it: otherwise
//! a file that was found, opened and unlinked meanwhile would be lost under its user. As long as the
//! kernel holds a number it means one file, also when the tree was exchanged for another: a number whose
//! file is not there any more is stale, and what has its place in the tree gets another number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cenote_posix::tree::{Attributes, NodeId, Result, Timestamp};
use parking_lot::{Condvar, Mutex};

/// Independent tables, so that threads seldom meet. A power of two.
const SHARDS: usize = 16;
/// How long after a change a node's attributes may change by themselves: allocated sizes are known
/// once the change is on disk.
const SETTLING: Duration = Duration::from_secs(60);
/// Numbers that are given out where the tree's own is taken begin so. No object of a dataset has such a
/// number: its dnode would lie 2^56 bytes behind the first.
const OTHERS: u64 = 1 << 47;
/// ... and end before this.
const OTHERS_END: u64 = 3 << 46;

/// What tells a file from the others that have or had its number. A generation alone does not where files come
/// from another pool.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    generation: u64,
    created: Timestamp,
    is_directory: bool,
}

impl Identity {
    /// That of the file with these attributes.
    pub(super) fn of(attributes: &Attributes) -> Self {
        Self {
            generation: attributes.generation,
            created: attributes.created,
            is_directory: attributes.mode & libc::S_IFMT == libc::S_IFDIR,
        }
    }
}

/// A node the kernel knows.
#[derive(Debug)]
struct Known {
    /// References of the kernel.
    references: u64,
    /// The tree is forgetting it right now.
    leaving: bool,
    /// When it was changed last.
    changed: Option<Instant>,
    /// The tree's number.
    node: NodeId,
    identity: Identity,
    /// Exchanges of the tree after which it was seen to be there.
    seen: u64,
    /// Its file went with an exchange.
    is_stale: bool,
}

#[derive(Debug, Default)]
struct Shard {
    table: Mutex<HashMap<u64, Known>>,
    left: Condvar,
}

/// What came of handing out a number.
enum Held {
    Yes,
    /// It means another file.
    Taken,
    /// It is not the file's number any more.
    Gone,
}

/// The nodes the kernel knows, by the kernel's numbers: the tree's, but for [`OTHERS`].
#[derive(Debug, Default)]
pub(super) struct Nodes {
    shards: [Shard; SHARDS],
    ended: AtomicBool,
    /// How often the tree was exchanged.
    exchanges: AtomicU64,
    /// Nodes of the tree that have other numbers. Taken with a shard's table held, or alone.
    others: Mutex<HashMap<NodeId, u64>>,
    next_other: AtomicU64,
}

impl Nodes {
    fn shard(&self, number: u64) -> &Shard {
        let [first, ..] = &self.shards;
        self.shards.get(number as usize % SHARDS).unwrap_or(first)
    }

    fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::Acquire)
    }

    /// Whether the tree is not the one that was mounted.
    pub(super) fn were_exchanged(&self) -> bool {
        self.exchanges() > 0
    }

    /// The tree was exchanged: what is known is looked at before it is used.
    pub(super) fn exchanged(&self) {
        self.exchanges.fetch_add(1, Ordering::AcqRel);
    }

    /// The kernel's number for a node of the tree.
    pub(super) fn number_of(&self, node: NodeId) -> u64 {
        if self.exchanges() == 0 {
            return node;
        }
        self.others.lock().get(&node).copied().unwrap_or(node)
    }

    /// The kernel is given a reference to the file `identity`: by the number that is given back.
    pub(super) fn hold(&self, node: NodeId, identity: Identity) -> u64 {
        loop {
            let number = self.number_of(node);
            match self.hold_as(number, node, identity) {
                Held::Yes => return number,
                Held::Taken => self.find_another(node, number),
                Held::Gone => {}
            }
        }
    }

    fn hold_as(&self, number: u64, node: NodeId, identity: Identity) -> Held {
        let shard = self.shard(number);
        let mut table = shard.table.lock();
        while table.get(&number).is_some_and(|known| known.leaving) {
            shard.left.wait(&mut table);
        }
        if number != node && self.others.lock().get(&node) != Some(&number) {
            return Held::Gone;
        }
        let seen = self.exchanges();
        let known = table.entry(number).or_insert(Known {
            references: 0,
            leaving: false,
            changed: None,
            node,
            identity,
            seen,
            is_stale: false,
        });
        known.is_stale |= known.seen != seen && known.identity != identity;
        if known.is_stale {
            return Held::Taken;
        }
        known.seen = seen;
        known.references = known.references.saturating_add(1);
        Held::Yes
    }

    /// `number` is taken: `node` gets another.
    fn find_another(&self, node: NodeId, number: u64) {
        let mut others = self.others.lock();
        if others.get(&node).is_none_or(|other| *other == number) {
            let next = self.next_other.fetch_add(1, Ordering::Relaxed);
            others.insert(node, OTHERS + next % (OTHERS_END - OTHERS));
        }
    }

    /// The tree's node for a number of the kernel; `None` if its file is not there any more. `look` tells
    /// which file is at a node now.
    pub(super) fn file_of(
        &self,
        number: u64,
        look: impl FnOnce(NodeId) -> Result<Option<Identity>>,
    ) -> Result<Option<NodeId>> {
        let exchanges = self.exchanges();
        if exchanges == 0 {
            return Ok(Some(number));
        }
        let (node, identity) = match self.shard(number).table.lock().get(&number) {
            // From a file handle, say.
            None => return Ok((!(OTHERS..OTHERS_END).contains(&number)).then_some(number)),
            Some(known) if known.is_stale => return Ok(None),
            Some(known) if known.seen == exchanges => return Ok(Some(known.node)),
            Some(known) => (known.node, known.identity),
        };
        let is_there = look(node)? == Some(identity);
        if let Some(known) = self.shard(number).table.lock().get_mut(&number) {
            known.is_stale |= !is_there;
            known.seen = exchanges;
        }
        Ok(is_there.then_some(node))
    }

    /// The kernel gives up `references`; after the last one calls `forget`, with what must be there still, if that was
    /// not looked at since the tree was exchanged.
    pub(super) fn release(
        &self,
        number: u64,
        references: u64,
        forget: impl FnOnce(NodeId, Option<Identity>),
    ) {
        let shard = self.shard(number);
        let (node, unseen, is_stale) = {
            let mut table = shard.table.lock();
            let Some(known) = table.get_mut(&number) else { return };
            known.references = known.references.saturating_sub(references);
            if known.references > 0 || known.leaving {
                return;
            }
            known.leaving = true;
            (known.node, self.unseen(known), known.is_stale)
        };
        // However the call ends, those that wait for the node must go on.
        let _gone = Leaving { nodes: self, number, node };
        if !is_stale {
            forget(node, unseen);
        }
    }

    fn unseen(&self, known: &Known) -> Option<Identity> {
        (known.seen != self.exchanges()).then_some(known.identity)
    }

    /// `node` is being changed.
    pub(super) fn changed(&self, node: NodeId) {
        let number = self.number_of(node);
        if let Some(known) = self.shard(number).table.lock().get_mut(&number) {
            known.changed = Some(Instant::now());
        }
    }

    /// Whether attributes of `node` may still change by themselves.
    pub(super) fn is_settling(&self, node: NodeId) -> bool {
        let number = self.number_of(node);
        let mut table = self.shard(number).table.lock();
        let Some(known) = table.get_mut(&number) else { return false };
        let settling = known.changed.is_some_and(|changed| changed.elapsed() < SETTLING);
        if !settling {
            known.changed = None;
        }
        settling
    }

    fn each<T>(&self, each: impl Fn(u64, &Known) -> Option<T>) -> Vec<T> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let table = shard.table.lock();
            found.extend(table.iter().filter_map(|(number, known)| each(*number, known)));
        }
        found
    }

    /// The numbers of what was changed a short time ago.
    pub(super) fn settling(&self) -> Vec<u64> {
        let is_new = |known: &Known| known.changed.is_some_and(|at| at.elapsed() < SETTLING);
        self.each(|number, known| is_new(known).then_some(number))
    }

    /// The numbers the kernel holds now.
    pub(super) fn held(&self) -> Vec<u64> {
        self.each(|number, _| Some(number))
    }

    /// The directories the kernel holds now: its numbers and the tree's.
    pub(super) fn held_directories(&self) -> Vec<(u64, NodeId)> {
        self.each(|number, known| {
            (known.identity.is_directory && !known.is_stale).then_some((number, known.node))
        })
    }

    /// Whether the kernel holds `node`.
    pub(super) fn is_held(&self, node: NodeId) -> bool {
        let number = self.number_of(node);
        self.shard(number).table.lock().contains_key(&number)
    }

    /// The kernel is gone: calls `forget` for everything it held, once; see [`Self::release`].
    pub(super) fn release_all(&self, mut forget: impl FnMut(NodeId, Option<Identity>)) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.table.lock());
            nodes
                .into_values()
                .filter(|known| !known.leaving && !known.is_stale)
                .for_each(|known| forget(known.node, self.unseen(&known)));
        }
    }
}

/// A node the tree is forgetting.
struct Leaving<'a> {
    nodes: &'a Nodes,
    number: u64,
    node: NodeId,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let shard = self.nodes.shard(self.number);
        let mut table = shard.table.lock();
        table.remove(&self.number);
        let mut others = self.nodes.others.lock();
        if others.get(&self.node) == Some(&self.number) {
            others.remove(&self.node);
        }
        drop((others, table));
        shard.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(generation: u64) -> Identity {
        Identity { generation, ..Identity::default() }
    }

    #[test]
    fn the_last_reference_forgets_once() {
        let nodes = Nodes::default();
        let mut forgotten = Vec::new();
        nodes.hold(5, file(1));
        nodes.hold(5, file(1));
        nodes.hold(21, file(1));
        nodes.release(5, 1, |node, _| forgotten.push(node));
        nodes.release(6, 1, |node, _| forgotten.push(node));
        assert!(forgotten.is_empty());
        nodes.release(5, 9, |node, _| forgotten.push(node));
        nodes.release(5, 1, |node, _| forgotten.push(node));
        assert_eq!(forgotten, [5]);
        nodes.hold(5, file(1));
        let mut held = nodes.held();
        held.sort_unstable();
        assert_eq!(held, [5, 21]);
        nodes.release_all(|node, _| forgotten.push(node));
        nodes.release_all(|node, _| forgotten.push(node));
        forgotten.sort_unstable();
        assert_eq!(forgotten, [5, 5, 21]);
    }

    #[test]
    fn a_node_comes_back_only_after_it_has_left() {
        let nodes = Nodes::default();
        let (started, starts) = std::sync::mpsc::channel();
        let done = AtomicBool::new(false);
        nodes.hold(7, file(1));
        std::thread::scope(|scope| {
            let (nodes, done) = (&nodes, &done);
            scope.spawn(move || {
                nodes.release(7, 1, |_, _| {
                    started.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                    done.store(true, Ordering::Release);
                });
            });
            starts.recv().unwrap();
            nodes.hold(7, file(1));
            assert!(done.load(Ordering::Acquire));
        });
        assert_eq!(nodes.held(), [7]);
    }

    #[test]
    fn changed_nodes_settle() {
        let nodes = Nodes::default();
        nodes.changed(3);
        nodes.hold(3, file(1));
        assert!(!nodes.is_settling(3));
        nodes.changed(3);
        assert!(nodes.is_settling(3));
    }

    #[test]
    fn a_number_means_one_file_until_it_is_forgotten() {
        let nodes = Nodes::default();
        let at = |there| move |_| Ok(there);
        for node in [5, 6, 7] {
            assert_eq!(nodes.hold(node, file(1)), node);
        }
        nodes.exchanged();
        assert_eq!(nodes.file_of(5, at(Some(file(1)))).unwrap(), Some(5));
        // It is looked at once, and again if that failed.
        assert_eq!(nodes.file_of(5, |_| panic!("seen")).unwrap(), Some(5));
        let error = || cenote_posix::tree::Errno::new(libc::EIO, "test");
        assert!(nodes.file_of(6, |_| Err(error())).is_err());
        assert_eq!(nodes.file_of(6, at(None)).unwrap(), None);
        assert_eq!(nodes.file_of(6, at(Some(file(1)))).unwrap(), None, "stale for ever");
        // Another file at the same place gets another number, and keeps it.
        let other = nodes.hold(7, file(2));
        assert_ne!(other, 7);
        assert_eq!(nodes.hold(7, file(2)), other);
        assert_eq!(nodes.file_of(7, at(Some(file(2)))).unwrap(), None);
        assert_eq!(nodes.file_of(other, at(None)).unwrap(), Some(7));
        assert_eq!((nodes.number_of(7), nodes.is_held(7)), (other, true));
        nodes.changed(7);
        assert_eq!(nodes.settling(), [other]);
        // Of what is stale the tree hears nothing.
        nodes.release(7, 1, |_, _| panic!("stale"));
        assert_eq!(nodes.number_of(7), other);
        let mut forgotten = Vec::new();
        nodes.release(other, 2, |node, unseen| forgotten.push((node, unseen)));
        assert_eq!(nodes.number_of(7), 7);
        assert_eq!(nodes.file_of(other, |_| panic!("unknown")).unwrap(), None);
        // What was not looked at is to be before it is forgotten.
        nodes.exchanged();
        nodes.release(5, 1, |node, unseen| forgotten.push((node, unseen)));
        assert_eq!(forgotten, [(7, None), (5, Some(file(1)))]);
        nodes.release_all(|_, _| panic!("stale"));
    }
}
