//! The bits of ZPL_FLAGS: what a file system remembers of a file beside its mode.
//!
//! Chapter 05, section 7.

/// The object is an extended attribute directory or value.
pub const XATTR: u64 = 0x1;
/// The ACL has inheritable entries.
pub const INHERIT_ACE: u64 = 0x2;
/// The ACL says no more than the mode.
pub const ACL_TRIVIAL: u64 = 0x4;
/// The ACL has object entries.
pub const ACL_OBJECT_ACE: u64 = 0x8;
/// The ACL is protected from inheritance.
pub const ACL_PROTECTED: u64 = 0x10;
/// The ACL came from a default.
pub const ACL_DEFAULTED: u64 = 0x20;
/// The ACL was inherited automatically.
pub const ACL_AUTO_INHERIT: u64 = 0x40;
/// A scan stamp stands in the bonus (legacy znode only).
pub const BONUS_SCANSTAMP: u64 = 0x80;
/// Nobody is denied execution.
pub const NO_EXECS_DENIED: u64 = 0x100;
/// DOS attribute: read-only.
pub const READONLY: u64 = 0x1_0000_0000;
/// DOS attribute: hidden.
pub const HIDDEN: u64 = 0x2_0000_0000;
/// DOS attribute: system.
pub const SYSTEM: u64 = 0x4_0000_0000;
/// DOS attribute: archive.
pub const ARCHIVE: u64 = 0x8_0000_0000;
/// Nothing may change.
pub const IMMUTABLE: u64 = 0x10_0000_0000;
/// May not be unlinked.
pub const NOUNLINK: u64 = 0x20_0000_0000;
/// Content may only grow.
pub const APPEND_ONLY: u64 = 0x40_0000_0000;
/// Backup programs skip it.
pub const NODUMP: u64 = 0x80_0000_0000;
/// Opaque directory.
pub const OPAQUE: u64 = 0x100_0000_0000;
/// Antivirus: in quarantine.
pub const QUARANTINED: u64 = 0x200_0000_0000;
/// Antivirus: modified since the last scan.
pub const SCAN_MODIFIED: u64 = 0x400_0000_0000;
/// DOS reparse point.
pub const REPARSE: u64 = 0x800_0000_0000;
/// DOS attribute: offline.
pub const OFFLINE: u64 = 0x1000_0000_0000;
/// DOS attribute: sparse.
pub const SPARSE: u64 = 0x2000_0000_0000;
/// New entries inherit the project id.
pub const PROJECT_INHERIT: u64 = 0x4000_0000_0000;
/// The project id attribute is present.
pub const PROJECT: u64 = 0x8000_0000_0000;
