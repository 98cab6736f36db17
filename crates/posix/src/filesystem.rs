//! A mounted filesystem: the head's files, `.zfs`, and the snapshots behind it.
//!
//! Invariant: a node always means the same file. Nodes are the numbers OpenZFS shows as inode
//! numbers; [`crate::tree::ROOT`] is accepted for the root and never given out.

use std::sync::Arc;

use cenote_engine::object::ObjectSet;
use cenote_format::ObjectId;

use crate::access;
use crate::control_directory::{
    CONTROL, ControlDirectory, SHARES, SNAPSHOTS, SnapshotDirectory, SnapshotSource,
};
use crate::directory::{LONG_NAME_MAX, NAME_MAX, Surroundings};
use crate::error::{EACCES, EINVAL, EISDIR, ENODATA, ENOENT, EROFS};
use crate::stream::Streams;
use crate::tree::{
    Attributes, Caller, DirectoryEntry, Errno, NodeId, Pieces, ROOT, Result, Seek, Space,
    Timestamp, Tree,
};
use crate::view::{File, OBJECT_BITS, View};
use crate::xattr::{AclType, Rules, XattrMode};

/// Permission bit of write access in a mask.
const WRITE: u32 = 2;

/// What a filesystem is mounted with.
pub struct MountOptions {
    /// The dataset's objects.
    pub objects: ObjectSet,
    /// Property `xattr`.
    pub xattr: XattrMode,
    /// Property `acltype`.
    pub acl: AclType,
    /// Property `snapdir`.
    pub snapshot_directory: SnapshotDirectory,
    /// Feature `longname` is active: names may have 1023 bytes.
    pub long_names: bool,
    /// Nothing may be written: `access` refuses it.
    pub read_only: bool,
    /// When it was mounted: what `.zfs` shows as its times.
    pub mounted: Timestamp,
    /// The dataset's snapshots; none if it is one itself.
    pub snapshots: Option<Box<dyn SnapshotSource>>,
    /// What `statfs` reports (`name_max` is filled in here).
    pub space: Box<dyn Fn() -> Space + Send + Sync>,
}

/// A mounted filesystem.
pub struct Filesystem {
    head: Arc<View>,
    control: ControlDirectory,
    streams: Streams,
    rules: Rules,
    snapshot_directory: SnapshotDirectory,
    long_names: bool,
    read_only: bool,
    space: Box<dyn Fn() -> Space + Send + Sync>,
}

/// What a node is.
enum Place {
    /// A file of a view.
    File(Arc<View>, ObjectId),
    /// One of the synthetic directories.
    Synthetic,
}

impl Filesystem {
    /// Opens the dataset's files.
    pub fn open(options: MountOptions) -> Result<Self> {
        let snapshot_directory = match options.snapshots {
            Some(_) => options.snapshot_directory,
            None => SnapshotDirectory::Disabled,
        };
        Ok(Self {
            head: Arc::new(View::open(options.objects, 0)?),
            control: ControlDirectory::new(options.snapshots, options.mounted),
            streams: Streams::default(),
            rules: Rules { mode: options.xattr, acl: options.acl },
            snapshot_directory,
            long_names: options.long_names,
            read_only: options.read_only,
            space: options.space,
        })
    }

    /// The files of the head.
    pub fn head(&self) -> &View {
        &self.head
    }

    fn place(&self, node: NodeId) -> Result<Place> {
        if node == ROOT {
            return Ok(Place::File(self.head.clone(), self.head.root()));
        }
        if matches!(node, CONTROL | SHARES | SNAPSHOTS) {
            return match self.snapshot_directory {
                SnapshotDirectory::Disabled => Err(Errno::new(ENOENT, "there is no .zfs")),
                _ => Ok(Place::Synthetic),
            };
        }
        let object = ObjectId(node & ((1 << OBJECT_BITS) - 1));
        match (node >> OBJECT_BITS) as u16 {
            0 => Ok(Place::File(self.head.clone(), object)),
            number => {
                let view = self.control.view(number)?;
                let object = if object.0 == 0 { view.root() } else { object };
                Ok(Place::File(view, object))
            }
        }
    }

    /// The view and the file of `node`; `otherwise` is the errno of a synthetic directory.
    fn file(&self, node: NodeId, otherwise: i32) -> Result<(Arc<View>, File)> {
        match self.place(node)? {
            Place::File(view, object) => {
                let file = view.file(object)?;
                Ok((view, file))
            }
            Place::Synthetic => Err(Errno::new(otherwise, "a directory of .zfs")),
        }
    }

    fn is_head(&self, view: &Arc<View>) -> bool {
        Arc::ptr_eq(view, &self.head)
    }

    /// `stat` of a file of `view`; a root that shows `.zfs` has a link more.
    fn stat(&self, view: &Arc<View>, object: ObjectId) -> Result<Attributes> {
        let mut attributes = view.attributes(object)?;
        if self.snapshot_directory == SnapshotDirectory::Visible
            && self.is_head(view)
            && object == view.root()
        {
            attributes.links = attributes.links.saturating_add(1);
        }
        Ok(attributes)
    }

    /// What surrounds the entries of directory `object` of `view`.
    fn surroundings(&self, view: &Arc<View>, directory: &File) -> Surroundings {
        let (object, root) = (directory.object.id(), view.root());
        let is_head = self.is_head(view);
        let parent = match object == root {
            true if !is_head => SNAPSHOTS,
            _ => view.node(view.parent(directory)),
        };
        let shown = self.snapshot_directory == SnapshotDirectory::Visible;
        let control = (object == root && is_head && shown).then_some(CONTROL);
        Surroundings { own: view.node(object), parent, control }
    }
}

impl Tree for Filesystem {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attributes> {
        let (view, object) = match self.place(parent)? {
            Place::File(view, object) => (view, object),
            Place::Synthetic if parent == SNAPSHOTS => {
                let view = self.control.snapshot(name)?;
                let root = view.root();
                return self.stat(&view, root);
            }
            Place::Synthetic => return self.control.attributes(self.control.find(parent, name)?),
        };
        if name == b".zfs"
            && object == view.root()
            && self.is_head(&view)
            && self.snapshot_directory != SnapshotDirectory::Disabled
        {
            return self.control.attributes(CONTROL);
        }
        let directory = view.directory(object)?;
        let found = view.find(&directory, name)?;
        self.stat(&view, found.object)
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        match self.place(node)? {
            Place::File(view, object) => self.stat(&view, object),
            Place::Synthetic => self.control.attributes(node),
        }
    }

    fn access(&self, node: NodeId, caller: Caller, mask: u32) -> Result<()> {
        let (view, file) = match self.place(node)? {
            Place::File(view, object) => {
                let file = view.file(object)?;
                (view, file)
            }
            Place::Synthetic if mask & WRITE != 0 => {
                return Err(Errno::new(EACCES, ".zfs cannot be changed"));
            }
            Place::Synthetic => return Ok(()),
        };
        if mask & WRITE != 0 && (self.read_only || !self.is_head(&view)) {
            return Err(Errno::new(EROFS, "mounted read-only"));
        }
        let acl = || view.access_acl(&file, self.rules);
        access::check(&file.facts, caller, mask, acl, access::groups_of_process)
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        match self.place(node)? {
            Place::File(view, object) => view.read_link(&view.file(object)?),
            Place::Synthetic => Err(Errno::new(EINVAL, "not a symbolic link")),
        }
    }

    fn read(&self, node: NodeId, offset: u64, len: usize) -> Result<Pieces> {
        let (_, file) = self.file(node, EISDIR)?;
        let size = file.facts.size;
        let advice = self.streams.note(node, offset, len as u64, size);
        if let Some(ahead) = advice.ahead {
            file.object.prefetch(ahead.start, ahead.end - ahead.start, &advice.position);
        }
        let pieces = View::read(&file, offset, len)?;
        if advice.streaming {
            // Whoever called keeps it (the kernel's page cache); the buffers serve what comes next.
            file.object.forget(offset, len as u64);
        }
        Ok(pieces)
    }

    fn read_directory(
        &self,
        node: NodeId,
        cursor: u64,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        match self.place(node)? {
            Place::File(view, object) => {
                let directory = view.directory(object)?;
                let around = self.surroundings(&view, &directory);
                view.list(&directory, &around, cursor, each)
            }
            Place::Synthetic => {
                let root = self.head.node(self.head.root());
                self.control.list(node, root, cursor, each)
            }
        }
    }

    fn seek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
        let (_, file) = self.file(node, EISDIR)?;
        View::seek(&file, offset, what)
    }

    fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let (view, file) = self.file(node, ENODATA)?;
        view.get_xattr(&file, name, self.rules)
    }

    fn list_xattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        match self.place(node)? {
            Place::File(view, object) => view.list_xattr(&view.file(object)?, self.rules),
            Place::Synthetic => Ok(Vec::new()),
        }
    }

    fn space(&self) -> Result<Space> {
        let name_max = if self.long_names { LONG_NAME_MAX } else { NAME_MAX };
        Ok(Space { name_max: name_max as u32, ..(self.space)() })
    }
}
