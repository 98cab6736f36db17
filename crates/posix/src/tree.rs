//! The tree every door serves: nodes, attributes, directories, data.
//!
//! A [`NodeId`] names a file of one mounted filesystem, of one of its snapshots, or a synthetic
//! directory (`.zfs`); it stays valid as long as the tree lives and equals `st_ino`.
//! Invariant: no door knows what lies behind a node; errors are those of the system, with a reason.

use bytes::Bytes;
pub use cenote_engine::txg::Interrupt;
use smallvec::SmallVec;

pub use crate::error::Errno;
use crate::error::{EOPNOTSUPP, EROFS};

/// Identity of a file in a [`Tree`]; the root is [`ROOT`].
pub type NodeId = u64;

/// The root directory of every tree (doors that need another number translate).
pub const ROOT: NodeId = 1;

/// Result of a file operation.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// Who asks: decides access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Process id, 0 if unknown (supplementary groups are looked up from it when needed).
    pub pid: u32,
}

/// Seconds and nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The present.
    pub fn now() -> Self {
        let since_epoch = cenote_engine::environment::now();
        let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
        Self { seconds, nanoseconds: since_epoch.subsec_nanos() }
    }
}

/// What `stat` reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Identity; also `st_ino`.
    pub node: NodeId,
    /// Generation: differs when an object number is reused.
    pub generation: u64,
    /// `st_mode`, type bits included.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number (`dev_t` as glibc encodes it) of device nodes.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Allocated 512-byte sectors.
    pub sectors: u64,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of content.
    pub modified: Timestamp,
    /// Last change of attributes.
    pub changed: Timestamp,
    /// Creation.
    pub created: Timestamp,
}

/// One entry of a directory listing.
#[derive(Debug, Clone)]
pub struct DirectoryEntry {
    /// Name as stored.
    pub name: Vec<u8>,
    /// The file it names.
    pub node: NodeId,
    /// `d_type` value (DT_*), 0 if unknown.
    pub kind: u8,
    /// Cursor that continues after this entry.
    pub next: u64,
}

/// File data, in order: pieces of cached blocks, and runs of zeros.
pub type Pieces = SmallVec<[Bytes; 4]>;

/// What to look for with [`Tree::seek`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// Next byte that is stored.
    Data,
    /// Next hole, or the end of the file.
    Hole,
}

/// What `statfs` reports, in blocks of `block_size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Unit of the figures below, in bytes.
    pub block_size: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// All file slots.
    pub files: u64,
    /// Free file slots.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// A file, directory, symbolic link or device node to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewNode<'a> {
    /// `st_mode`: type and permission bits as the caller gave them, `umask` not yet taken off.
    pub mode: u32,
    /// The caller's umask; a default ACL of the parent overrides it.
    pub umask: u32,
    /// Device number (`dev_t` as glibc encodes it) of device nodes.
    pub rdev: u64,
    /// Target of a symbolic link; empty otherwise.
    pub target: &'a [u8],
}

/// A time to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The present.
    Now,
    /// This time.
    At(Timestamp),
}

/// What `setattr` changes; `None` leaves a field as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits (type bits are ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of content.
    pub modified: Option<SetTime>,
    /// Last change of attributes; where `None`, a change of anything else sets it to the present.
    pub changed: Option<Timestamp>,
    /// The set-user-id and set-group-id bits are to be cleared (a write or truncation by somebody
    /// without the privilege to keep them).
    pub kill_set_id: bool,
}

/// What a file is marked as, and its project: what `FS_IOC_FSGETXATTR` tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileFlags {
    /// Nothing may change (`chattr +i`).
    pub immutable: bool,
    /// The content may only grow (`chattr +a`).
    pub append_only: bool,
    /// Backup programs skip it (`chattr +d`).
    pub no_dump: bool,
    /// New files in this directory get its project id.
    pub project_inherit: bool,
    /// The project its space is counted for.
    pub project: u32,
}

/// Bits of `renameat2`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail with EEXIST where the new name exists.
    pub no_replace: bool,
    /// Exchange both names.
    pub exchange: bool,
    /// Leave a whiteout (character device 0:0) under the old name.
    pub whiteout: bool,
}

/// What `fallocate` does with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Nothing is stored; the file grows to the range's end unless `keep_size`.
    Reserve {
        /// Do not change the length.
        keep_size: bool,
    },
    /// The range becomes a hole; the length stays.
    PunchHole,
    /// The range reads as zeros; the file grows unless `keep_size`.
    ZeroRange {
        /// Do not change the length.
        keep_size: bool,
    },
}

/// Whether an extended attribute must or must not exist already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrWrite {
    /// Either.
    Any,
    /// EEXIST where it exists.
    Create,
    /// ENODATA where it does not.
    Replace,
}

fn read_only<T>() -> Result<T> {
    Err(Errno::new(EROFS, "this tree is read-only"))
}

/// A served filesystem. All methods may be called from many threads at once.
///
/// The door checks permissions before it calls (the kernel does for FUSE); methods that change
/// something answer EROFS where a tree does not implement them.
pub trait Tree: Send + Sync + 'static {
    /// Finds `name` in `parent`.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attributes>;
    /// `stat`.
    fn attributes(&self, node: NodeId) -> Result<Attributes>;
    /// Checks `mask` (R_OK 4, W_OK 2, X_OK 1) for `caller`: mode bits and POSIX ACL.
    fn access(&self, node: NodeId, caller: Caller, mask: u32) -> Result<()>;
    /// Target of a symbolic link.
    fn read_link(&self, node: NodeId) -> Result<Vec<u8>>;
    /// Reads up to `len` bytes at `offset`; short only at the end of the file. Detects sequential
    /// streams by itself and reads ahead.
    fn read(&self, node: NodeId, offset: u64, len: usize) -> Result<Pieces>;
    /// Calls `each` for entries after `cursor` (0 = from the start, "." and ".." included) until
    /// it returns false or the directory ends.
    fn read_directory(
        &self,
        node: NodeId,
        cursor: u64,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()>;
    /// Next data or hole at or after `offset` (ENXIO beyond the end).
    fn seek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64>;
    /// Value of extended attribute `name` (ENODATA if absent).
    fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>>;
    /// Names of all extended attributes.
    fn list_xattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>>;
    /// `statfs`.
    fn space(&self) -> Result<Space>;

    /// Whether anything can be changed.
    fn is_writable(&self) -> bool {
        false
    }
    /// Whether changes wait, or are refused, because devices fail.
    fn is_suspended(&self) -> bool {
        false
    }
    /// Whether a file has one spelling of its name only. Otherwise those that remember names cannot tell
    /// which of them a change took away.
    fn names_are_exact(&self) -> bool {
        true
    }
    /// Whether what files hold may be kept in memory when it was read (`primarycache=all`).
    fn keeps_data(&self) -> bool {
        true
    }
    /// Makes a node named `name` in `parent`, owned by `caller` (set-group-id directories give
    /// their group). EEXIST where the name exists.
    fn create(
        &self,
        _caller: Caller,
        _parent: NodeId,
        _name: &[u8],
        _new: NewNode<'_>,
    ) -> Result<Attributes> {
        read_only()
    }
    /// Makes a regular file without a name in the filesystem of `parent` (O_TMPFILE).
    fn create_unnamed(
        &self,
        _caller: Caller,
        _parent: NodeId,
        _new: NewNode<'_>,
    ) -> Result<Attributes> {
        read_only()
    }
    /// Gives `node` another name.
    fn link(
        &self,
        _caller: Caller,
        _node: NodeId,
        _parent: NodeId,
        _name: &[u8],
    ) -> Result<Attributes> {
        read_only()
    }
    /// Removes a name of anything but a directory. A file without names lives on until
    /// [`Tree::forget`].
    fn unlink(&self, _caller: Caller, _parent: NodeId, _name: &[u8]) -> Result<()> {
        read_only()
    }
    /// Removes an empty directory.
    fn remove_directory(&self, _caller: Caller, _parent: NodeId, _name: &[u8]) -> Result<()> {
        read_only()
    }
    /// Moves `from` in `from_parent` to `to` in `to_parent`.
    fn rename(
        &self,
        _caller: Caller,
        _from_parent: NodeId,
        _from: &[u8],
        _to_parent: NodeId,
        _to: &[u8],
        _flags: RenameFlags,
    ) -> Result<()> {
        read_only()
    }
    /// Changes attributes; gives all of them after the change.
    fn set_attributes(
        &self,
        _caller: Caller,
        _node: NodeId,
        _change: &SetAttributes,
    ) -> Result<Attributes> {
        read_only()
    }
    /// Writes `data` at `offset`. All of it is taken, or none. `kill_set_id` as in
    /// [`SetAttributes`].
    fn write(
        &self,
        _caller: Caller,
        _node: NodeId,
        _offset: u64,
        _data: &[u8],
        _kill_set_id: bool,
    ) -> Result<()> {
        read_only()
    }
    /// `fallocate`. Set-id bits go with it, unless the caller is root.
    fn allocate(
        &self,
        _caller: Caller,
        _node: NodeId,
        _offset: u64,
        _len: u64,
        _what: Allocate,
    ) -> Result<()> {
        read_only()
    }
    /// Copies a range between two files (or within one); gives the bytes copied. Set-id bits of the
    /// other go with it, unless the caller is root.
    fn copy_range(
        &self,
        _caller: Caller,
        _from: (NodeId, u64),
        _to: (NodeId, u64),
        _len: u64,
    ) -> Result<u64> {
        read_only()
    }
    /// Flags and project of a regular file or directory; EOPNOTSUPP where there are none.
    fn file_flags(&self, _node: NodeId) -> Result<FileFlags> {
        Err(Errno::new(EOPNOTSUPP, "files have no flags here"))
    }
    /// Changes flags and project. The caller may (the kernel has checked it).
    fn set_file_flags(&self, _caller: Caller, _node: NodeId, _flags: &FileFlags) -> Result<()> {
        read_only()
    }
    /// Makes what has been done to `node` survive a crash (fsync).
    fn sync(&self, _node: NodeId, _data_only: bool) -> Result<()> {
        Ok(())
    }
    /// Makes everything survive a crash (syncfs).
    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
    /// Sets an extended attribute.
    fn set_xattr(
        &self,
        _caller: Caller,
        _node: NodeId,
        _name: &[u8],
        _value: &[u8],
        _how: XattrWrite,
    ) -> Result<()> {
        read_only()
    }
    /// Removes an extended attribute (ENODATA if absent).
    fn remove_xattr(&self, _caller: Caller, _node: NodeId, _name: &[u8]) -> Result<()> {
        read_only()
    }
    /// The door holds no reference to `node` any more (every name looked up was forgotten and
    /// every open file closed): a file without names goes now.
    fn forget(&self, _node: NodeId) {}
}
