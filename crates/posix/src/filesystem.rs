//! A mounted filesystem: the head's files, `.zfs`, and the snapshots behind it.
//!
//! Invariant: a node always means the same file. Nodes are the numbers OpenZFS shows as inode
//! numbers; [`crate::tree::ROOT`] is accepted for the root and never given out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cenote_engine::object::ObjectSet;
use cenote_format::ObjectId;

use crate::access;
use crate::attributes::DIRECTORY;
use crate::control_directory::{
    CONTROL, ControlDirectory, Numbers, SHARES, SNAPSHOTS, SnapshotAdmin, SnapshotDirectory,
    SnapshotSource,
};
use crate::directory::{LONG_NAME_MAX, NAME_MAX, Surroundings};
use crate::error::{
    EACCES, EEXIST, EINVAL, EISDIR, ENAMETOOLONG, ENODATA, ENOENT, ENOTDIR, EOPNOTSUPP, EPERM,
    EROFS, ESTALE,
};
use crate::stream::Streams;
use crate::tree::{
    Allocate, Attributes, Caller, DirectoryEntry, Errno, FileFlags, NewNode, NodeId, Pieces, ROOT,
    RenameFlags, Result, Seek, SetAttributes, Space, Timestamp, Tree, XattrWrite,
};
use crate::view::{File, OBJECT_BITS, View};
use crate::write::{FilesystemWriter, Node, WriteOptions, file_flags};
use crate::xattr::{AclType, Rules, XattrMode};

/// Permission bit of write access in a mask.
const WRITE: u32 = 2;
/// The bits of a mode that say what a node is.
const TYPE_BITS: u32 = 0o170_000;
/// Entries a listing takes under the directory's lock, the first time and later.
const FIRST_ENTRIES: usize = 128;
const MORE_ENTRIES: usize = 1024;

/// What a filesystem is mounted with.
pub struct FilesystemOptions {
    /// The dataset's objects.
    pub objects: ObjectSet,
    /// Property `xattr`.
    pub xattr: XattrMode,
    /// Property `acltype`.
    pub acl: AclType,
    /// Property `snapdir`.
    pub snapshot_directory: SnapshotDirectory,
    /// Property `longname` is on: names may have 1023 bytes.
    pub long_names: bool,
    /// What files hold may be kept in memory (`primarycache=all`).
    pub keeps_data: bool,
    /// Nothing may be written: `access` refuses it.
    pub read_only: bool,
    /// How files are written; the object set must be live. None: nothing can be changed.
    pub write: Option<WriteOptions>,
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
    keeps_data: AtomicBool,
    read_only: bool,
    writer: Option<FilesystemWriter>,
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
    pub fn open(options: FilesystemOptions) -> Result<Self> {
        let snapshot_directory = match options.snapshots {
            Some(_) => options.snapshot_directory,
            None => SnapshotDirectory::Disabled,
        };
        let head = Arc::new(View::open(options.objects, 0)?);
        let rules = Rules { mode: options.xattr, acl: options.acl };
        let writer = match options.write {
            Some(write) => {
                Some(FilesystemWriter::open(head.clone(), rules, options.long_names, write)?)
            }
            None => None,
        };
        Ok(Self {
            head,
            control: ControlDirectory::new(options.snapshots, options.mounted),
            streams: Streams::default(),
            rules,
            snapshot_directory,
            long_names: options.long_names,
            keeps_data: AtomicBool::new(options.keeps_data),
            read_only: options.read_only || writer.is_none(),
            writer,
            space: options.space,
        })
    }

    /// The files of the head.
    pub fn head(&self) -> &View {
        &self.head
    }

    /// Property `primarycache` is now `all` (true), or not. What the kernel keeps it keeps until the next mount.
    pub fn set_keeps_data(&self, keeps: bool) {
        self.keeps_data.store(keeps, Relaxed);
    }

    /// Snapshots can be made, removed and renamed as directories of `.zfs/snapshot` from now on, by `admin`.
    pub fn administer(&self, admin: Arc<dyn SnapshotAdmin>) {
        self.control.administer(admin);
    }

    /// What of `.zfs` stays as long as the mount does.
    pub fn numbers(&self) -> Numbers {
        self.control.numbers()
    }

    /// The mount was that of other files before.
    pub fn go_on_with(&self, numbers: Numbers) {
        self.control.go_on_with(numbers);
    }

    /// Snapshots came or went.
    pub fn snapshots_changed(&self) {
        self.control.snapshots_changed();
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

    /// The node is the directory of the snapshots, which is there.
    fn holds_snapshots(&self, node: NodeId) -> bool {
        node == SNAPSHOTS && self.snapshot_directory != SnapshotDirectory::Disabled
    }

    /// What changes the files of the head; none if nothing can.
    pub fn writer(&self) -> Option<&FilesystemWriter> {
        self.writer.as_ref()
    }

    /// Runs `look` on the file of `node`, which does not change meanwhile; `otherwise` is the errno
    /// of a synthetic directory.
    fn look<T>(
        &self,
        node: NodeId,
        otherwise: i32,
        look: impl FnOnce(&Arc<View>, &File) -> Result<T>,
    ) -> Result<T> {
        match self.place(node)? {
            Place::File(view, object) => self.look_at(&view, object, look),
            Place::Synthetic => Err(Errno::new(otherwise, "a directory of .zfs")),
        }
    }

    fn look_at<T>(
        &self,
        view: &Arc<View>,
        object: ObjectId,
        look: impl FnOnce(&Arc<View>, &File) -> Result<T>,
    ) -> Result<T> {
        match &self.writer {
            Some(writer) if self.is_head(view) => {
                let node = writer.node(object)?;
                look(view, &node.read()?.file)
            }
            _ => look(view, &view.file(object)?),
        }
    }

    /// The writer and the object of `node`; EROFS where it cannot be changed.
    fn changeable(&self, node: NodeId) -> Result<(&FilesystemWriter, ObjectId)> {
        match (self.place(node)?, &self.writer) {
            (Place::File(view, object), Some(writer)) if self.is_head(&view) => {
                Ok((writer, object))
            }
            _ => Err(Errno::new(EROFS, "this cannot be changed")),
        }
    }

    /// As [`Self::changeable`] for making or removing `name` in `parent`.
    fn changeable_name(
        &self,
        parent: NodeId,
        name: &[u8],
    ) -> Result<(&FilesystemWriter, ObjectId)> {
        let (writer, object) = self.changeable(parent)?;
        if name == b".zfs"
            && object == self.head.root()
            && self.snapshot_directory != SnapshotDirectory::Disabled
        {
            return Err(Errno::new(EEXIST, ".zfs is there and stays"));
        }
        Ok((writer, object))
    }

    /// The attributes of a node of the head.
    fn stat_node(&self, writer: &FilesystemWriter, node: &Node) -> Result<Attributes> {
        let mut attributes = writer.attributes(node)?;
        if self.snapshot_directory == SnapshotDirectory::Visible && node.id() == self.head.root() {
            attributes.links = attributes.links.saturating_add(1);
        }
        Ok(attributes)
    }

    fn is_head(&self, view: &Arc<View>) -> bool {
        Arc::ptr_eq(view, &self.head)
    }

    /// `stat` of a file of `view`; a root that shows `.zfs` has a link more.
    fn stat(&self, view: &Arc<View>, object: ObjectId) -> Result<Attributes> {
        match &self.writer {
            Some(writer) if self.is_head(view) => self.stat_node(writer, &*writer.node(object)?),
            _ => {
                let mut attributes = view.attributes(object)?;
                if self.snapshot_directory == SnapshotDirectory::Visible
                    && self.is_head(view)
                    && object == view.root()
                {
                    attributes.links = attributes.links.saturating_add(1);
                }
                Ok(attributes)
            }
        }
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
        // A name that is found may be gone before its file is looked at: then it is looked for again.
        let mut tries = 0;
        loop {
            let found = self.look_at(&view, object, |view, directory| {
                expect_directory(directory)?;
                view.find(directory, name).map_err(|error| self.of_length(name, error))
            })?;
            match self.stat(&view, found.object) {
                Err(error) if error.code == ESTALE && self.writer.is_some() && tries < 8 => {
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        match self.place(node)? {
            Place::File(view, object) => self.stat(&view, object),
            Place::Synthetic => self.control.attributes(node),
        }
    }

    fn file_flags(&self, node: NodeId) -> Result<FileFlags> {
        let Place::File(view, object) = self.place(node)? else {
            return Err(Errno::new(EOPNOTSUPP, ".zfs has no flags"));
        };
        self.look_at(&view, object, |_, file| Ok(file_flags(&file.facts)))
    }

    fn access(&self, node: NodeId, caller: Caller, mask: u32) -> Result<()> {
        let (view, object) = match self.place(node)? {
            Place::File(view, object) => (view, object),
            Place::Synthetic if mask & WRITE != 0 => {
                return Err(Errno::new(EACCES, ".zfs cannot be changed"));
            }
            Place::Synthetic => return Ok(()),
        };
        if mask & WRITE != 0 && (self.read_only || !self.is_head(&view)) {
            return Err(Errno::new(EROFS, "mounted read-only"));
        }
        self.look_at(&view, object, |view, file| {
            let acl = || view.access_acl(file, self.rules);
            access::check(&file.facts, caller, mask, acl, access::groups_of_process)
        })
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        self.look(node, EINVAL, |view, file| view.read_link(file))
    }

    fn read(&self, node: NodeId, offset: u64, len: usize) -> Result<Pieces> {
        let pieces = self.look(node, EISDIR, |_, file| {
            let size = file.facts.size;
            let advice = self.streams.note(node, offset, len as u64, size);
            if let Some(ahead) = advice.ahead {
                file.object.prefetch(ahead.start, ahead.end - ahead.start, &advice.position);
            }
            let pieces = View::read(file, offset, len)?;
            if advice.streaming || !self.keeps_data() {
                // The caller keeps it (in the kernel's page cache); the buffers serve what comes
                // next.
                file.object.forget(offset, len as u64);
            }
            Ok(pieces)
        })?;
        self.note_access(node);
        Ok(pieces)
    }

    fn read_directory(
        &self,
        node: NodeId,
        cursor: u64,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        let (view, object) = match self.place(node)? {
            Place::File(view, object) => (view, object),
            Place::Synthetic => {
                let root = self.head.node(self.head.root());
                return self.control.list(node, root, cursor, each);
            }
        };
        if self.writer.is_none() || !self.is_head(&view) {
            let directory = view.directory(object)?;
            let around = self.surroundings(&view, &directory);
            return view.list(&directory, &around, cursor, each);
        }
        // `each` may ask for the files it hears of: no lock may be held then.
        let (mut position, mut wanted) = (cursor, FIRST_ENTRIES);
        loop {
            let mut batch = Vec::with_capacity(wanted);
            self.look_at(&view, object, |view, directory| {
                expect_directory(directory)?;
                let around = self.surroundings(view, directory);
                view.list(directory, &around, position, &mut |entry| {
                    batch.push(entry);
                    batch.len() < wanted
                })
            })?;
            let is_last = batch.len() < wanted;
            for entry in batch {
                position = entry.next;
                if !each(entry) {
                    return Ok(());
                }
            }
            if is_last {
                self.note_access(node);
                return Ok(());
            }
            wanted = MORE_ENTRIES;
        }
    }

    fn seek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
        self.look(node, EISDIR, |_, file| View::seek(file, offset, what))
    }

    fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.look(node, ENODATA, |view, file| view.get_xattr(file, name, self.rules))
    }

    fn list_xattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        match self.place(node)? {
            Place::File(view, object) => {
                self.look_at(&view, object, |view, file| view.list_xattr(file, self.rules))
            }
            Place::Synthetic => Ok(Vec::new()),
        }
    }

    fn space(&self) -> Result<Space> {
        Ok(Space { name_max: self.name_max() as u32, ..(self.space)() })
    }

    fn names_are_exact(&self) -> bool {
        self.head.naming().match_kind() == cenote_format::zap::MatchKind::Exact
    }

    fn keeps_data(&self) -> bool {
        self.keeps_data.load(Relaxed)
    }

    fn is_writable(&self) -> bool {
        !self.read_only
    }

    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Result<Attributes> {
        if self.holds_snapshots(parent) {
            return match new.mode & TYPE_BITS == DIRECTORY {
                true => self.control.make(caller, name).and_then(|()| self.lookup(parent, name)),
                false => Err(Errno::new(EPERM, "here are only snapshots")),
            };
        }
        let (writer, parent) = self.changeable_name(parent, name)?;
        let node = writer.create(caller, parent, name, new)?;
        writer.sync_if_always(None)?;
        self.stat_node(writer, &node)
    }

    fn create_unnamed(
        &self,
        caller: Caller,
        parent: NodeId,
        new: NewNode<'_>,
    ) -> Result<Attributes> {
        let (writer, parent) = self.changeable(parent)?;
        let node = writer.create_unnamed(caller, parent, new)?;
        writer.sync_if_always(None)?;
        self.stat_node(writer, &node)
    }

    fn link(
        &self,
        _caller: Caller,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Attributes> {
        let (writer, parent) = self.changeable_name(parent, name)?;
        let (_, object) = self.changeable(node)?;
        let node = writer.link(object, parent, name)?;
        writer.sync_if_always(None)?;
        self.stat_node(writer, &node)
    }

    fn unlink(&self, _caller: Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        let (writer, parent) = self.changeable_name(parent, name)?;
        writer.unlink(parent, name)?;
        writer.sync_if_always(None)
    }

    fn remove_directory(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        if self.holds_snapshots(parent) {
            return self.control.remove(caller, name);
        }
        let (writer, parent) = self.changeable_name(parent, name)?;
        writer.remove_directory(parent, name)?;
        writer.sync_if_always(None)
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
        if self.holds_snapshots(from_parent) || self.holds_snapshots(to_parent) {
            return match from_parent == to_parent && !flags.exchange && !flags.whiteout {
                true => self.control.rename(caller, from, to),
                false => Err(Errno::new(EINVAL, "a snapshot stays among the others")),
            };
        }
        let (writer, from_parent) = self.changeable_name(from_parent, from)?;
        let (_, to_parent) = self.changeable_name(to_parent, to)?;
        writer.rename(caller, from_parent, from, to_parent, to, flags)?;
        writer.sync_if_always(None)
    }

    fn set_attributes(
        &self,
        _caller: Caller,
        node: NodeId,
        change: &SetAttributes,
    ) -> Result<Attributes> {
        let (writer, object) = self.changeable(node)?;
        writer.set_attributes(object, change)?;
        writer.sync_if_always(Some(object))?;
        self.stat_node(writer, &*writer.node(object)?)
    }

    fn set_file_flags(&self, _caller: Caller, node: NodeId, flags: &FileFlags) -> Result<()> {
        let (writer, object) = self.changeable(node)?;
        writer.set_file_flags(object, flags)?;
        writer.sync_if_always(Some(object))
    }

    fn write(
        &self,
        _caller: Caller,
        node: NodeId,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> Result<()> {
        let (writer, object) = self.changeable(node)?;
        writer.write(object, offset, data, kill_set_id)?;
        writer.sync_if_always(Some(object))
    }

    fn allocate(
        &self,
        caller: Caller,
        node: NodeId,
        offset: u64,
        len: u64,
        what: Allocate,
    ) -> Result<()> {
        let (writer, object) = self.changeable(node)?;
        writer.allocate(object, (offset, len), what, !caller.is_root())?;
        writer.sync_if_always(Some(object))
    }

    fn copy_range(
        &self,
        caller: Caller,
        from: (NodeId, u64),
        to: (NodeId, u64),
        len: u64,
    ) -> Result<u64> {
        let (writer, target) = self.changeable(to.0)?;
        // A snapshot may go while it is read here: the kernel copies from one by reading and writing.
        let (_, source) = self
            .changeable(from.0)
            .map_err(|_| Errno::new(EOPNOTSUPP, "the source is in a snapshot"))?;
        let copied = writer.copy_range((source, from.1), (target, to.1), len, !caller.is_root())?;
        writer.sync_if_always(Some(target))?;
        Ok(copied)
    }

    fn sync(&self, node: NodeId, _data_only: bool) -> Result<()> {
        match self.changeable(node) {
            Ok((writer, object)) => {
                writer.store_access_time_of(object);
                writer.sync(object)
            }
            Err(_) => Ok(()),
        }
    }

    fn sync_all(&self) -> Result<()> {
        self.writer.as_ref().map_or(Ok(()), FilesystemWriter::sync_all)
    }

    fn set_xattr(
        &self,
        _caller: Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrWrite,
    ) -> Result<()> {
        let (writer, object) = self.changeable(node)?;
        writer.set_xattr(object, name, Some(value), how)?;
        writer.sync_if_always(Some(object))
    }

    fn remove_xattr(&self, _caller: Caller, node: NodeId, name: &[u8]) -> Result<()> {
        let (writer, object) = self.changeable(node)?;
        writer.set_xattr(object, name, None, XattrWrite::Any)?;
        writer.sync_if_always(Some(object))
    }

    fn is_suspended(&self) -> bool {
        self.writer().is_some_and(FilesystemWriter::is_suspended)
    }

    fn forget(&self, node: NodeId) {
        if let Ok((writer, object)) = self.changeable(node) {
            writer.forget(object);
        }
    }
}

/// ENOTDIR unless the file is a directory.
fn expect_directory(file: &File) -> Result<()> {
    match file.facts.is_directory() {
        true => Ok(()),
        false => Err(Errno::new(ENOTDIR, "not a directory")),
    }
}

impl Filesystem {
    /// Longest name a new file may have, in bytes. Longer ones may be there from before.
    fn name_max(&self) -> usize {
        if self.long_names { LONG_NAME_MAX } else { NAME_MAX }
    }

    /// Why there is no `name`: it may be longer than any.
    fn of_length(&self, name: &[u8], error: Errno) -> Errno {
        match error.code == ENOENT && name.len() > self.name_max() {
            true => Errno::new(ENAMETOOLONG, "name too long"),
            false => error,
        }
    }

    /// Notes that a file was read now.
    fn note_access(&self, node: NodeId) {
        if let Ok((writer, object)) = self.changeable(node) {
            writer.note_access(object);
        }
    }
}
