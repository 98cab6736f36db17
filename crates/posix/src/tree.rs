//! The tree every door serves: nodes, attributes, directories, data.
//!
//! A [`NodeId`] names a file of one mounted filesystem, of one of its snapshots, or a synthetic
//! directory (`.zfs`); it stays valid as long as the tree lives and equals `st_ino`.

use bytes::Bytes;
use smallvec::SmallVec;

/// Identity of a file in a [`Tree`]; the root is [`ROOT`].
pub type NodeId = u64;

/// The root directory of every tree (doors that need another number translate).
pub const ROOT: NodeId = 1;

/// Result of a file operation.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// Why a file operation failed: the number a system call gives, and words for the log.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason} (errno {code})")]
pub struct Errno {
    /// Linux errno value, e.g. 2 for ENOENT.
    pub code: i32,
    /// What happened, for logs and messages.
    pub reason: String,
}

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

/// A served filesystem. All methods may be called from many threads at once.
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
}
