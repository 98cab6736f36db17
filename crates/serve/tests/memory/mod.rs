//! A tree in memory, for testing and measuring the door without a pool.
//!
//! Invariant: built once, then never changed; the root's `st_ino` is 34, as in ZFS, so that the
//! translation of the root's number is exercised.
#![allow(dead_code, clippy::unwrap_used)] // each user needs a part of it

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cenote_posix::tree::*;

/// `st_ino` of the root.
pub const ROOT_INO: NodeId = 34;

/// What a node is.
pub enum Content {
    /// Stored extents by offset; the rest are holes.
    File(BTreeMap<u64, Bytes>),
    Directory(Vec<(Vec<u8>, NodeId)>),
    Link(Vec<u8>),
    /// Fifos, devices and the like.
    Other,
}

pub struct Node {
    pub attributes: Attributes,
    pub content: Content,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A filesystem in memory.
pub struct MemoryTree {
    nodes: HashMap<NodeId, Node>,
    names: HashMap<(NodeId, Vec<u8>), NodeId>,
    next: NodeId,
    /// Reads of this node sleep first.
    pub slow: Option<(NodeId, Duration)>,
    /// ... from this offset on.
    pub slow_from: u64,
    /// Reads of this node panic.
    pub panics: Option<NodeId>,
    /// Calls of `read` going on, and the most there were.
    pub reading: AtomicUsize,
    pub most_reading: AtomicUsize,
    /// Calls of `lookup`, `attributes` and `read`.
    pub lookups: AtomicUsize,
    pub stats: AtomicUsize,
    pub reads: AtomicUsize,
}

pub fn fail<T>(code: i32) -> Result<T> {
    Err(Errno { code, reason: "test".into() })
}

fn kind_of(mode: u32) -> u8 {
    ((mode & libc::S_IFMT) >> 12) as u8
}

impl MemoryTree {
    pub fn new() -> Self {
        let mut tree = Self {
            nodes: HashMap::new(),
            names: HashMap::new(),
            next: 100,
            slow: None,
            slow_from: 0,
            panics: None,
            reading: AtomicUsize::new(0),
            most_reading: AtomicUsize::new(0),
            lookups: AtomicUsize::new(0),
            stats: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
        };
        tree.insert(ROOT_INO, libc::S_IFDIR | 0o755, 2, Content::Directory(Vec::new()));
        tree.add_link(ROOT_INO, b".", ROOT_INO);
        tree.add_link(ROOT_INO, b"..", ROOT_INO);
        tree
    }

    fn insert(&mut self, node: NodeId, mode: u32, size: u64, content: Content) {
        let time = |nanoseconds| Timestamp { seconds: 1_700_000_000, nanoseconds };
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
            accessed: time(1),
            modified: time(2),
            changed: time(3),
            created: time(4),
        };
        self.nodes.insert(node, Node { attributes, content, xattrs: BTreeMap::new() });
    }

    pub fn add_link(&mut self, parent: NodeId, name: &[u8], node: NodeId) {
        let Content::Directory(entries) = &mut self.nodes.get_mut(&parent).unwrap().content else {
            panic!("not a directory");
        };
        entries.push((name.to_vec(), node));
        self.names.insert((parent, name.to_vec()), node);
    }

    fn add(
        &mut self,
        parent: NodeId,
        name: &str,
        mode: u32,
        size: u64,
        content: Content,
    ) -> NodeId {
        self.next += 1;
        let node = self.next;
        self.insert(node, mode, size, content);
        self.add_link(parent, name.as_bytes(), node);
        node
    }

    pub fn file(&mut self, parent: NodeId, name: &str, data: impl Into<Bytes>) -> NodeId {
        let data = data.into();
        let size = data.len() as u64;
        let extents = if size == 0 { BTreeMap::new() } else { BTreeMap::from([(0, data)]) };
        self.add(parent, name, libc::S_IFREG | 0o644, size, Content::File(extents))
    }

    pub fn sparse(
        &mut self,
        parent: NodeId,
        name: &str,
        size: u64,
        extents: BTreeMap<u64, Bytes>,
    ) -> NodeId {
        self.add(parent, name, libc::S_IFREG | 0o644, size, Content::File(extents))
    }

    pub fn directory(&mut self, parent: NodeId, name: &str) -> NodeId {
        let content = Content::Directory(Vec::new());
        let node = self.add(parent, name, libc::S_IFDIR | 0o755, 2, content);
        self.add_link(node, b".", node);
        self.add_link(node, b"..", parent);
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
        self.nodes.get_mut(&node).unwrap()
    }

    fn node(&self, node: NodeId) -> Result<&Node> {
        let node = if node == ROOT { ROOT_INO } else { node };
        self.nodes.get(&node).map_or_else(|| fail(libc::ESTALE), Ok)
    }
}

impl Tree for MemoryTree {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attributes> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let parent = self.node(parent)?.attributes.node;
        match self.names.get(&(parent, name.to_vec())) {
            Some(&node) => Ok(self.node(node)?.attributes.clone()),
            None => fail(libc::ENOENT),
        }
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.stats.fetch_add(1, Ordering::Relaxed);
        Ok(self.node(node)?.attributes.clone())
    }

    fn access(&self, _: NodeId, _: Caller, _: u32) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        match &self.node(node)?.content {
            Content::Link(target) => Ok(target.clone()),
            _ => fail(libc::EINVAL),
        }
    }

    fn read(&self, node: NodeId, offset: u64, len: usize) -> Result<Pieces> {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.panics == Some(node) {
            panic!("asked for");
        }
        if let Some((_, time)) = self.slow.filter(|slow| slow.0 == node && offset >= self.slow_from)
        {
            let now = self.reading.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_reading.fetch_max(now, Ordering::Relaxed);
            std::thread::sleep(time);
            self.reading.fetch_sub(1, Ordering::Relaxed);
        }
        let node = self.node(node)?;
        let Content::File(extents) = &node.content else { return fail(libc::EISDIR) };
        let end = node.attributes.size.min(offset.saturating_add(len as u64));
        let mut at = offset;
        let mut pieces = Pieces::new();
        while at < end {
            let before = extents.range(..=at).next_back();
            if let Some((&start, data)) = before
                && at - start < data.len() as u64
            {
                let from = (at - start) as usize;
                let to = data.len().min(from + (end - at) as usize);
                pieces.push(data.slice(from..to));
                at += (to - from) as u64;
                continue;
            }
            let next = extents.range(at..).next().map_or(end, |(&start, _)| start.min(end));
            let zeros = (next - at).min(ZEROS.len() as u64);
            pieces.push(Bytes::from_static(&ZEROS[..zeros as usize]));
            at += zeros;
        }
        Ok(pieces)
    }

    fn read_directory(
        &self,
        node: NodeId,
        cursor: u64,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        let Content::Directory(entries) = &self.node(node)?.content else {
            return fail(libc::ENOTDIR);
        };
        for (index, (name, node)) in entries.iter().enumerate().skip(cursor as usize) {
            let entry = DirectoryEntry {
                name: name.clone(),
                node: *node,
                kind: self.nodes.get(node).map_or(0, |node| kind_of(node.attributes.mode)),
                next: index as u64 + 1,
            };
            if !each(entry) {
                break;
            }
        }
        Ok(())
    }

    fn seek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
        let node = self.node(node)?;
        let Content::File(extents) = &node.content else { return fail(libc::EINVAL) };
        let size = node.attributes.size;
        if offset >= size {
            return fail(libc::ENXIO);
        }
        let mut at = offset;
        let inside = |at: u64| {
            let before = extents.range(..=at).next_back();
            before.map(|(start, data)| start + data.len() as u64).filter(|&end| at < end)
        };
        match what {
            Seek::Data if inside(at).is_some() => Ok(at),
            Seek::Data => {
                extents.range(at..).next().map_or_else(|| fail(libc::ENXIO), |e| Ok(*e.0))
            }
            Seek::Hole => {
                while let Some(end) = inside(at) {
                    at = end;
                }
                Ok(at.min(size))
            }
        }
    }

    fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let found = self.node(node)?.xattrs.get(name);
        found.map_or_else(|| fail(libc::ENODATA), |value| Ok(value.clone()))
    }

    fn list_xattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(self.node(node)?.xattrs.keys().cloned().collect())
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
}
