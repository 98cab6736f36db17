//! The messages of Linux FUSE, as the kernel and a server exchange them over `/dev/fuse`.
//!
//! Invariant: every structure has exactly the size and layout of its C counterpart (native byte
//! order, explicit padding), checked by the sizes below.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol version we speak: major.
pub const MAJOR: u32 = 7;
/// Protocol version we speak: minor.
pub const MINOR: u32 = 45;
/// The node id the kernel gives to the root of a mount.
pub const ROOT_ID: u64 = 1;
/// Least size of the buffer a server reads requests into, in bytes.
pub const MIN_READ_BUFFER: usize = 8192;

/// Request numbers.
pub mod opcode {
    #![allow(missing_docs)] // the names are those of the protocol
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Features negotiated by INIT. Bits 32 and up travel in `flags2`.
pub mod feature {
    /// Several reads of a file at once.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// `O_TRUNC` is part of OPEN.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// LOOKUP of "." and ".." works (exporting by NFS).
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes above 4 KiB.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The server applies the umask (needed for default ACLs).
    pub const DONT_MASK: u64 = 1 << 6;
    /// Listings are asked for by READDIRPLUS, always.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// Several direct reads or writes of a file at once.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The kernel collects writes and owns sizes and times of files being written.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// ENOSYS to OPEN means: never ask again, opening always works.
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    /// Lookups and listings in one directory at once.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel enforces and caches POSIX ACLs; implies `default_permissions`.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// `max_pages` of the INIT reply counts.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links are cached.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// ENOSYS to OPENDIR means: never ask again.
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// The server drops set-id bits and capabilities on write.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR has its longer form.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` counts.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Shared mappings of files opened for direct I/O.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Id-mapped mounts.
    pub const ALLOW_IDMAP: u64 = 1 << 40;
}

/// OPEN reply: cached data stay valid.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// OPENDIR reply: the listing may be cached.
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// OPEN reply: no FLUSH on close.
pub const FOPEN_NOFLUSH: u32 = 1 << 5;

/// Which fields of SETATTR count, and how.
pub mod set {
    #![allow(missing_docs)] // the names are those of the protocol
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flag of WRITE: the kernel writes back what it kept (of a mapping, say).
pub const WRITE_CACHE: u32 = 1;
/// WRITE: clear the set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// FSYNC: the data suffice.
pub const FSYNC_DATA: u32 = 1 << 0;
/// SETXATTR: clear the set-group-id bit with this access ACL.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Messages a server sends by itself; they stand in the error field of the header.
pub mod notify {
    /// Attributes (and cached data) of a node are no longer valid.
    pub const INVAL_INODE: i32 = 2;
    /// A name is no longer valid.
    pub const INVAL_ENTRY: i32 = 3;
    /// No name looked up so far is valid any more (7.44).
    pub const INC_EPOCH: i32 = 8;
}

/// Declares wire structures that are read from requests or written to replies.
macro_rules! wire {
    ($($(#[$meta:meta])* $name:ident [$size:literal] { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs)] // the fields are those of the protocol
        pub struct $name { $(pub $field: $kind,)* }
        const _: () = assert!(size_of::<$name>() == $size);
        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    )*};
}

wire! {
    /// Starts every request.
    InHeader [40] {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        extension_units: u16, padding: u16,
    }
    /// Starts every reply; `error` is 0 or a negative errno.
    OutHeader [16] { len: u32, error: i32, unique: u64, }
    /// Attributes of a file.
    Attr [88] {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32, mode: u32, nlink: u32,
        uid: u32, gid: u32, rdev: u32, block_size: u32, flags: u32,
    }
    /// Reply to LOOKUP, part of READDIRPLUS.
    EntryOut [128] {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nanos: u32, attr_valid_nanos: u32, attr: Attr,
    }
    /// Reply to GETATTR.
    AttrOut [104] { attr_valid: u64, attr_valid_nanos: u32, dummy: u32, attr: Attr, }
    /// Request INIT.
    InitIn [64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    /// Reply to INIT.
    InitOut [64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_granularity: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    /// Request OPEN and OPENDIR.
    OpenIn [8] { flags: u32, open_flags: u32, }
    /// Reply to OPEN and OPENDIR.
    OpenOut [16] { handle: u64, open_flags: u32, backing: i32, }
    /// Request READ, READDIR and READDIRPLUS.
    ReadIn [40] {
        handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// Reply to STATFS.
    StatfsOut [80] {
        blocks: u64, free: u64, available: u64, files: u64, files_free: u64, block_size: u32,
        name_max: u32, fragment_size: u32, padding: u32, spare: [u32; 6],
    }
    /// Request GETXATTR and LISTXATTR.
    XattrIn [8] { size: u32, padding: u32, }
    /// Reply to GETXATTR and LISTXATTR that ask for the size only.
    XattrOut [8] { size: u32, padding: u32, }
    /// Request ACCESS.
    AccessIn [8] { mask: u32, padding: u32, }
    /// Request LSEEK.
    SeekIn [24] { handle: u64, offset: u64, whence: u32, padding: u32, }
    /// Reply to LSEEK.
    SeekOut [8] { offset: u64, }
    /// Request INTERRUPT.
    InterruptIn [8] { unique: u64, }
    /// Request STATX.
    StatxIn [24] { getattr_flags: u32, reserved: u32, handle: u64, flags: u32, mask: u32, }
    /// Request FORGET, with the node of the header.
    ForgetIn [8] { lookups: u64, }
    /// Starts BATCH_FORGET; as many [`ForgetOne`] follow.
    BatchForgetIn [8] { count: u32, dummy: u32, }
    /// A part of BATCH_FORGET.
    ForgetOne [16] { node: u64, lookups: u64, }
    /// Request SETATTR.
    SetattrIn [88] {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    /// Request MKNOD; the name follows.
    MknodIn [16] { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// Request MKDIR; the name follows.
    MkdirIn [8] { mode: u32, umask: u32, }
    /// Request CREATE and TMPFILE; the name follows.
    CreateIn [16] { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// Request RENAME; both names follow.
    RenameIn [8] { new_parent: u64, }
    /// Request RENAME2; both names follow.
    Rename2In [16] { new_parent: u64, flags: u32, padding: u32, }
    /// Request LINK; the name follows.
    LinkIn [8] { old_node: u64, }
    /// Request WRITE; the data follow.
    WriteIn [40] {
        handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// Reply to WRITE and COPY_FILE_RANGE.
    WriteOut [8] { size: u32, padding: u32, }
    /// Request IOCTL; what goes in follows.
    IoctlIn [32] {
        handle: u64, flags: u32, command: u32, argument: u64, in_size: u32, out_size: u32,
    }
    /// Reply to IOCTL; what comes out follows.
    IoctlOut [16] { result: i32, flags: u32, in_vectors: u32, out_vectors: u32, }
    /// Argument of `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`.
    FileAttributes [28] {
        flags: u32, extent_size: u32, extents: u32, project: u32, copy_size: u32, padding: [u8; 8],
    }
    /// Request FSYNC and FSYNCDIR.
    FsyncIn [16] { handle: u64, fsync_flags: u32, padding: u32, }
    /// Request SETXATTR with [`feature::SETXATTR_EXT`]; name and value follow.
    SetxattrIn [16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// Request FALLOCATE.
    FallocateIn [32] { handle: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// Request COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyIn [56] {
        handle_in: u64, offset_in: u64, node_out: u64, handle_out: u64, offset_out: u64, len: u64,
        flags: u64,
    }
    /// Reply to COPY_FILE_RANGE_64.
    CopyOut [8] { bytes: u64, }
    /// Notification INVAL_INODE; a negative offset leaves the data alone.
    InvalInodeOut [24] { node: u64, offset: i64, len: i64, }
    /// Notification INVAL_ENTRY; the name and a zero byte follow.
    InvalEntryOut [16] { parent: u64, name_len: u32, flags: u32, }
    /// A time of a STATX reply.
    StatxTime [16] { seconds: i64, nanoseconds: u32, reserved: i32, }
    /// Attributes of a STATX reply.
    Statx [256] {
        mask: u32, block_size: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime,
        btime: StatxTime, ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Reply to STATX.
    StatxOut [288] {
        attr_valid: u64, attr_valid_nanos: u32, flags: u32, spare: [u64; 2], stat: Statx,
    }
    /// Starts an entry of a listing; the name follows, padded to 8 bytes.
    Dirent [24] { ino: u64, offset: u64, name_len: u32, kind: u32, }
}
