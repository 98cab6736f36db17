//! Errors as numbers, and the names that programs have for them.
//!
//! Invariant: the numbers are those of Linux; what a device or damaged bytes are to blame for has none.

use cenote_engine::{Error, ErrorKind};
use cenote_lua::{Stop, Value, Vm};

pub const EXDEV: i64 = 18;
pub const EINVAL: i64 = 22;
pub const ENAMETOOLONG: i64 = 36;
pub const E2BIG: i64 = 7;

/// Names that programs know.
const NAMES: &[(&str, i64)] = &[
    ("EPERM", 1),
    ("ENOENT", 2),
    ("ESRCH", 3),
    ("EINTR", 4),
    ("EIO", 5),
    ("ENXIO", 6),
    ("E2BIG", E2BIG),
    ("ENOEXEC", 8),
    ("EBADF", 9),
    ("ECHILD", 10),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("ENOTBLK", 15),
    ("EBUSY", 16),
    ("EEXIST", 17),
    ("EXDEV", EXDEV),
    ("ENODEV", 19),
    ("ENOTDIR", 20),
    ("EISDIR", 21),
    ("EINVAL", EINVAL),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOTTY", 25),
    ("ETXTBSY", 26),
    ("EFBIG", 27),
    ("ENOSPC", 28),
    ("ESPIPE", 29),
    ("EROFS", 30),
    ("EMLINK", 31),
    ("EPIPE", 32),
    ("EDOM", 33),
    ("ERANGE", 34),
    ("EDEADLK", 35),
    ("ENAMETOOLONG", ENAMETOOLONG),
    ("ENOLCK", 37),
    ("ENOTSUP", 95),
    ("EDQUOT", 122),
    ("ECANCELED", 125),
];

/// Makes the names known to a program.
pub fn register(vm: &mut Vm<'_>) -> Result<(), Stop> {
    let globals = vm.globals();
    for (name, number) in NAMES {
        let key = vm.string(name.as_bytes())?;
        vm.raw_set(globals, key, Value::Int(*number))?;
    }
    Ok(())
}

/// The number of an error of a change; `None` for a fault of the pool.
pub fn number(error: &Error) -> Option<i64> {
    Some(match error.kind() {
        ErrorKind::NotFound => 2,
        ErrorKind::Exists => 17,
        ErrorKind::Busy => 16,
        ErrorKind::InvalidArgument => EINVAL,
        ErrorKind::NoSpace => 28,
        ErrorKind::Quota => 122,
        ErrorKind::ReadOnly => 30,
        ErrorKind::KeyNotLoaded | ErrorKind::WrongKey | ErrorKind::Permission => 13,
        ErrorKind::Unsupported => 95,
        ErrorKind::TimedOut | ErrorKind::Outdated => 11,
        ErrorKind::Interrupted => 4,
        _ => return None,
    })
}
