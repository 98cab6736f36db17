//! What file operations fail with: the numbers system calls give, and how failures of the engine
//! become such numbers.
//!
//! Invariant: every engine error kind has one errno, and the reason keeps the place.

use cenote_engine::ErrorKind;

/// Why a file operation failed: the number a system call gives, and words for the log.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason} (errno {code})")]
pub struct Errno {
    /// Linux errno value, e.g. 2 for ENOENT.
    pub code: i32,
    /// What happened, for logs and messages.
    pub reason: String,
}

/// Not permitted.
pub const EPERM: i32 = 1;
/// No such file or directory.
pub const ENOENT: i32 = 2;
/// What was served here is not any more.
pub const ENOTCONN: i32 = 107;
/// Interrupted.
pub const EINTR: i32 = 4;
/// Input/output error.
pub const EIO: i32 = 5;
/// Too long a list, too large a value.
pub const E2BIG: i32 = 7;
/// No such device or address; no more data.
pub const ENXIO: i32 = 6;
/// Permission denied.
pub const EACCES: i32 = 13;
/// Busy.
pub const EBUSY: i32 = 16;
/// Exists already.
pub const EEXIST: i32 = 17;
/// Across what cannot be crossed.
pub const EXDEV: i32 = 18;
/// No such device.
pub const ENODEV: i32 = 19;
/// Not a directory.
pub const ENOTDIR: i32 = 20;
/// A directory.
pub const EISDIR: i32 = 21;
/// Invalid argument.
pub const EINVAL: i32 = 22;
/// Too many open files in the system.
pub const ENFILE: i32 = 23;
/// Too large.
pub const EFBIG: i32 = 27;
/// No space left.
pub const ENOSPC: i32 = 28;
/// Beyond what fits.
pub const ERANGE: i32 = 34;
/// Read-only filesystem.
pub const EROFS: i32 = 30;
/// Name too long.
pub const ENAMETOOLONG: i32 = 36;
/// Not empty.
pub const ENOTEMPTY: i32 = 39;
/// No such attribute.
pub const ENODATA: i32 = 61;
/// Bytes that are no text.
pub const EILSEQ: i32 = 84;
/// Not supported.
pub const EOPNOTSUPP: i32 = 95;
/// The node is gone.
pub const ESTALE: i32 = 116;
/// Over quota.
pub const EDQUOT: i32 = 122;
/// Inside this crate only: the change is to be begun anew.
pub(crate) const RETRY: i32 = -1;

impl Errno {
    /// An error of number `code`.
    pub fn new(code: i32, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }
}

impl From<cenote_engine::Error> for Errno {
    fn from(error: cenote_engine::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::NotFound => ENOENT,
            ErrorKind::Exists => EEXIST,
            ErrorKind::Unsupported => EOPNOTSUPP,
            ErrorKind::KeyNotLoaded | ErrorKind::WrongKey => EACCES,
            ErrorKind::InvalidArgument => EINVAL,
            ErrorKind::Busy => EBUSY,
            ErrorKind::ReadOnly => EROFS,
            ErrorKind::Permission => EPERM,
            ErrorKind::NoSpace => ENOSPC,
            ErrorKind::Quota => EDQUOT,
            ErrorKind::Interrupted => EINTR,
            // Io, Checksum, Corrupt, Redacted, TimedOut, Bug: programs know what to do with EIO.
            _ => EIO,
        };
        Self::new(code, error.to_string())
    }
}

impl From<cenote_format::Error> for Errno {
    fn from(error: cenote_format::Error) -> Self {
        Self::new(EIO, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_numbers_openzfs_gives() {
        for (kind, code) in [
            (ErrorKind::Checksum, EIO),
            (ErrorKind::Corrupt, EIO),
            (ErrorKind::Bug, EIO),
            (ErrorKind::NotFound, ENOENT),
            (ErrorKind::KeyNotLoaded, EACCES),
            (ErrorKind::ReadOnly, EROFS),
            (ErrorKind::NoSpace, ENOSPC),
        ] {
            let error = cenote_engine::Error::new(kind, "why").at_object(54, 7);
            let errno = Errno::from(error);
            assert_eq!(errno.code, code);
            assert!(errno.reason.contains("object 7"), "{errno}");
        }
    }
}
