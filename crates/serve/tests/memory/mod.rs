//! A tree in memory, for testing and measuring the door without a pool.
//!
//! Invariant: the root's `st_ino` is 34, as in ZFS, so that the translation of the root's number
//! is exercised; a file without names stays until it is forgotten, and not longer.
#![allow(dead_code, clippy::unwrap_used, clippy::indexing_slicing)] // each user needs a part of it

mod acl;
mod change;
mod data;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cenote_posix::tree::*;
use parking_lot::{Mutex, MutexGuard};

pub use data::Extents;

/// `st_ino` of the root.
pub const ROOT_INO: NodeId = 34;
/// Longest name in bytes.
pub const NAME_MAX: usize = 255;

/// What a node is.
pub enum Content {
    File(Extents),
    Directory(Directory),
    Link(Vec<u8>),
    /// Fifos, devices and the like.
    Other,
}

/// The entries of a directory, "." and ".." included, by cursor and by name.
#[derive(Default)]
pub struct Directory {
    entries: BTreeMap<u64, (Vec<u8>, NodeId)>,
    names: HashMap<Vec<u8>, u64>,
    next: u64,
}

impl Directory {
    fn insert(&mut self, name: &[u8], node: NodeId) {
        self.next += 1;
        self.entries.insert(self.next, (name.to_vec(), node));
        self.names.insert(name.to_vec(), self.next);
    }

    fn find(&self, name: &[u8]) -> Option<NodeId> {
        self.names.get(name).map(|cursor| self.entries[cursor].1)
    }

    fn remove(&mut self, name: &[u8]) {
        let cursor = self.names.remove(name).unwrap();
        self.entries.remove(&cursor);
    }

    fn replace(&mut self, name: &[u8], node: NodeId) {
        let cursor = self.names[name];
        self.entries.get_mut(&cursor).unwrap().1 = node;
    }

    fn is_empty(&self) -> bool {
        self.names.len() == 2
    }
}

pub struct Node {
    pub attributes: Attributes,
    pub content: Content,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Node {
    fn directory(&mut self) -> Result<&mut Directory> {
        match &mut self.content {
            Content::Directory(directory) => Ok(directory),
            _ => fail(libc::ENOTDIR),
        }
    }

    fn file(&mut self) -> Result<&mut Extents> {
        match &mut self.content {
            Content::File(extents) => Ok(extents),
            Content::Directory(_) => fail(libc::EISDIR),
            _ => fail(libc::EINVAL),
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }
}

#[derive(Default)]
pub struct State {
    nodes: HashMap<NodeId, Node>,
    next: NodeId,
}

impl State {
    fn node(&mut self, node: NodeId) -> Result<&mut Node> {
        self.nodes.get_mut(&real(node)).map_or_else(|| fail(libc::ESTALE), Ok)
    }
}

/// A filesystem in memory.
#[derive(Default)]
pub struct MemoryTree {
    state: Mutex<State>,
    /// Whether anything can be changed.
    pub writable: bool,
    /// Reads of this node sleep first.
    pub slow: Option<(NodeId, Duration)>,
    /// ... from this offset on.
    pub slow_from: u64,
    /// Reads of this node panic.
    pub panics: Option<NodeId>,
    /// Writes to this node are refused.
    pub fixed: Option<NodeId>,
    /// Writes, and reads of the slow node, wait while this is set.
    pub stopped: AtomicBool,
    /// Calls of `read` of the slow node going on.
    pub reading: AtomicUsize,
    /// Calls of `write` going on.
    pub writing: AtomicUsize,
    /// Calls of `lookup`, `attributes`, `read`, `write` and so on.
    pub lookups: AtomicUsize,
    pub stats: AtomicUsize,
    pub reads: AtomicUsize,
    pub writes: AtomicUsize,
    pub sets: AtomicUsize,
    pub syncs: AtomicUsize,
    pub xattr_reads: AtomicUsize,
    pub forgets: AtomicUsize,
}

pub fn fail<T>(code: i32) -> Result<T> {
    Err(Errno { code, reason: "test".into() })
}

fn kind_of(mode: u32) -> u8 {
    ((mode & libc::S_IFMT) >> 12) as u8
}

/// The root has two numbers.
fn real(node: NodeId) -> NodeId {
    if node == ROOT { ROOT_INO } else { node }
}

fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

fn new_node(node: NodeId, mode: u32, size: u64, content: Content, time: Timestamp) -> Node {
    let attributes = Attributes {
        node,
        generation: 9,
        mode,
        links: if mode & libc::S_IFMT == libc::S_IFDIR { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        sectors: size.div_ceil(512),
        block_size: 131_072,
        accessed: time,
        modified: time,
        changed: time,
        created: time,
    };
    Node { attributes, content, xattrs: BTreeMap::new() }
}

impl MemoryTree {
    pub fn new() -> Self {
        let mut tree = Self::default();
        tree.state.get_mut().next = 100;
        tree.insert(ROOT_INO, libc::S_IFDIR | 0o755, 2, Content::Directory(Directory::default()));
        tree.put_name(ROOT_INO, b".", ROOT_INO);
        tree.put_name(ROOT_INO, b"..", ROOT_INO);
        tree
    }

    /// A tree that can be changed.
    pub fn writable() -> Self {
        Self { writable: true, ..Self::new() }
    }

    fn insert(&mut self, node: NodeId, mode: u32, size: u64, content: Content) {
        let time = |nanoseconds| Timestamp { seconds: 1_700_000_000, nanoseconds };
        let mut made = new_node(node, mode, size, content, time(1));
        made.attributes.modified = time(2);
        made.attributes.changed = time(3);
        made.attributes.created = time(4);
        self.state.get_mut().nodes.insert(node, made);
    }

    pub fn put_name(&mut self, parent: NodeId, name: &[u8], node: NodeId) {
        self.change(parent).directory().unwrap().insert(name, node);
    }

    fn add(
        &mut self,
        parent: NodeId,
        name: &str,
        mode: u32,
        size: u64,
        content: Content,
    ) -> NodeId {
        let state = self.state.get_mut();
        state.next += 1;
        let node = state.next;
        self.insert(node, mode, size, content);
        self.put_name(parent, name.as_bytes(), node);
        node
    }

    pub fn file(&mut self, parent: NodeId, name: &str, data: impl Into<Bytes>) -> NodeId {
        let data = data.into();
        let size = data.len() as u64;
        let extents = if size == 0 { BTreeMap::new() } else { BTreeMap::from([(0, data)]) };
        self.sparse(parent, name, size, extents)
    }

    pub fn sparse(
        &mut self,
        parent: NodeId,
        name: &str,
        size: u64,
        extents: BTreeMap<u64, Bytes>,
    ) -> NodeId {
        self.add(parent, name, libc::S_IFREG | 0o644, size, Content::File(Extents(extents)))
    }

    pub fn directory(&mut self, parent: NodeId, name: &str) -> NodeId {
        let content = Content::Directory(Directory::default());
        let node = self.add(parent, name, libc::S_IFDIR | 0o755, 2, content);
        self.change(parent).attributes.links += 1;
        self.put_name(node, b".", node);
        self.put_name(node, b"..", parent);
        node
    }

    pub fn symlink(&mut self, parent: NodeId, name: &str, target: &str) -> NodeId {
        let content = Content::Link(target.as_bytes().to_vec());
        self.add(parent, name, libc::S_IFLNK | 0o777, target.len() as u64, content)
    }

    pub fn special(&mut self, parent: NodeId, name: &str, mode: u32, rdev: u64) -> NodeId {
        let node = self.add(parent, name, mode, 0, Content::Other);
        self.change(node).attributes.rdev = rdev;
        node
    }

    pub fn change(&mut self, node: NodeId) -> &mut Node {
        self.state.get_mut().nodes.get_mut(&node).unwrap()
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Nodes without names.
    pub fn nameless(&self) -> usize {
        self.lock().nodes.values().filter(|node| node.attributes.links == 0).count()
    }

    /// All nodes.
    pub fn count(&self) -> usize {
        self.lock().nodes.len()
    }

    fn wait_while_stopped(&self) {
        while self.stopped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn count_call(&self, counter: &AtomicUsize) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Tree for MemoryTree {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attributes> {
        self.count_call(&self.lookups);
        if name.len() > NAME_MAX {
            return fail(libc::ENAMETOOLONG);
        }
        let mut state = self.lock();
        let Some(node) = state.node(parent)?.directory()?.find(name) else {
            return fail(libc::ENOENT);
        };
        Ok(state.node(node)?.attributes.clone())
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.count_call(&self.stats);
        Ok(self.lock().node(node)?.attributes.clone())
    }

    fn access(&self, _: NodeId, _: Caller, _: u32) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        match &self.lock().node(node)?.content {
            Content::Link(target) => Ok(target.clone()),
            _ => fail(libc::EINVAL),
        }
    }

    fn read(&self, node: NodeId, offset: u64, len: usize) -> Result<Pieces> {
        self.count_call(&self.reads);
        if self.panics == Some(node) {
            panic!("asked for");
        }
        if let Some((_, time)) = self.slow.filter(|slow| slow.0 == node && offset >= self.slow_from)
        {
            self.reading.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(time);
            self.wait_while_stopped();
            self.reading.fetch_sub(1, Ordering::Relaxed);
        }
        let mut state = self.lock();
        let node = state.node(node)?;
        let end = node.attributes.size.min(offset.saturating_add(len as u64));
        Ok(node.file()?.read(offset, end))
    }

    fn read_directory(
        &self,
        node: NodeId,
        mut cursor: u64,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        loop {
            // The callee asks for more, so not while the lock is held.
            let mut batch = Vec::new();
            {
                let mut state = self.lock();
                let directory = state.node(node)?.directory()?;
                let entries = directory.entries.range(cursor + 1..).take(512);
                batch.extend(entries.map(|(&next, (name, node))| DirectoryEntry {
                    name: name.clone(),
                    node: *node,
                    kind: 0,
                    next,
                }));
                for entry in &mut batch {
                    let node = state.nodes.get(&entry.node);
                    entry.kind = node.map_or(0, |node| kind_of(node.attributes.mode));
                }
            }
            let Some(last) = batch.last() else { return Ok(()) };
            cursor = last.next;
            for entry in batch {
                if !each(entry) {
                    return Ok(());
                }
            }
        }
    }

    fn seek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
        let mut state = self.lock();
        let node = state.node(node)?;
        let size = node.attributes.size;
        node.file()?.seek(offset, size, what).map_or_else(|| fail(libc::ENXIO), Ok)
    }

    fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.count_call(&self.xattr_reads);
        let mut state = self.lock();
        let found = state.node(node)?.xattrs.get(name);
        found.map_or_else(|| fail(libc::ENODATA), |value| Ok(value.clone()))
    }

    fn list_xattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(self.lock().node(node)?.xattrs.keys().cloned().collect())
    }

    fn space(&self) -> Result<Space> {
        Ok(Space {
            block_size: 131_072,
            blocks: 1000,
            free: 250,
            files: 5000,
            files_free: 4000,
            name_max: 255,
        })
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Result<Attributes> {
        self.make(caller, parent, Some(name), new)
    }

    fn create_unnamed(
        &self,
        caller: Caller,
        parent: NodeId,
        new: NewNode<'_>,
    ) -> Result<Attributes> {
        self.make(caller, parent, None, new)
    }

    fn link(&self, _: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Attributes> {
        self.link_to(node, parent, name)
    }

    fn unlink(&self, _: Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        self.remove(parent, name, false)
    }

    fn remove_directory(&self, _: Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        self.remove(parent, name, true)
    }

    fn rename(
        &self,
        caller: Caller,
        from_parent: NodeId,
        from: &[u8],
        to_parent: NodeId,
        to: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.move_name(caller, (real(from_parent), from), (real(to_parent), to), flags)
    }

    fn set_attributes(&self, _: Caller, node: NodeId, to: &SetAttributes) -> Result<Attributes> {
        self.count_call(&self.sets);
        self.set(node, to)
    }

    fn write(
        &self,
        _: Caller,
        node: NodeId,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> Result<()> {
        self.count_call(&self.writes);
        self.writing.fetch_add(1, Ordering::Relaxed);
        self.wait_while_stopped();
        self.writing.fetch_sub(1, Ordering::Relaxed);
        if self.fixed == Some(node) {
            return fail(libc::EPERM);
        }
        self.write_data(node, offset, data, kill_set_id)
    }

    fn allocate(
        &self,
        caller: Caller,
        node: NodeId,
        offset: u64,
        len: u64,
        what: Allocate,
    ) -> Result<()> {
        self.allocate_range(node, offset, len, what)?;
        self.write_data(node, 0, b"", caller.uid != 0)
    }

    fn copy_range(
        &self,
        caller: Caller,
        from: (NodeId, u64),
        to: (NodeId, u64),
        len: u64,
    ) -> Result<u64> {
        let pieces = Tree::read(self, from.0, from.1, len.min(16 << 20) as usize)?;
        let data = pieces.concat();
        self.write_data(to.0, to.1, &data, caller.uid != 0)?;
        Ok(data.len() as u64)
    }

    fn sync(&self, node: NodeId, _: bool) -> Result<()> {
        self.count_call(&self.syncs);
        self.lock().node(node).map(drop)
    }

    fn set_xattr(
        &self,
        _: Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrWrite,
    ) -> Result<()> {
        self.put_xattr(node, name, value, how)
    }

    fn remove_xattr(&self, _: Caller, node: NodeId, name: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let node = state.node(node)?;
        if node.xattrs.remove(name).is_none() {
            return fail(libc::ENODATA);
        }
        node.attributes.changed = now();
        Ok(())
    }

    fn forget(&self, node: NodeId) {
        self.count_call(&self.forgets);
        let mut state = self.lock();
        if state.nodes.get(&node).is_some_and(|node| node.attributes.links == 0) {
            state.nodes.remove(&node);
        }
    }
}
