//! Messages between the command line and a pool process, and their framing.
//!
//! A frame is its length (u32, little-endian) and that many bytes of JSON. A request is answered by
//! one response, except that datasets and history come in several, the last with `more: false`.
//! Bulk data will not travel here: `send` and `receive` will pass a descriptor with the request.
//! Invariant: no frame is longer than [`FRAME_MAX`], and every exchange has a deadline.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::changes::{ChangeRequest, Grant};
use crate::report::{DatasetKind, DatasetReport, HistoryRecord, PoolReport, UsageRecord};

/// Version of the messages; both sides must have the same.
pub const VERSION: u32 = 3;
/// Longest frame in bytes.
pub const FRAME_MAX: usize = 64 << 20;
/// How long a question that only looks may take.
pub const LOOK_DEADLINE: Duration = Duration::from_secs(5);
/// How long a change may take (unmounting, deriving a key, writing labels).
pub const CHANGE_DEADLINE: Duration = Duration::from_secs(300);

/// A message with its version.
#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// Version of the sender.
    pub version: u32,
    /// The message.
    pub message: T,
}

/// Which datasets, and which of their properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetQuery {
    /// Dataset, snapshot or bookmark to start at; `None`: the whole pool.
    pub root: Option<String>,
    /// How many levels below it (a snapshot is one level below its dataset); `None`: all.
    pub depth: Option<u32>,
    /// Kinds wanted; empty: all.
    pub kinds: Vec<DatasetKind>,
    /// Properties wanted; `None`: all native ones and all user properties. Those with an argument
    /// (`userused@root`) only come when asked for by name.
    pub properties: Option<Vec<String>>,
}

impl DatasetQuery {
    /// Whether a dataset of this name and kind was asked for.
    pub fn selects(&self, name: &str, kind: DatasetKind) -> bool {
        if !self.kinds.is_empty() && !self.kinds.contains(&kind) {
            return false;
        }
        match &self.root {
            None => self.depth.is_none_or(|depth| below(name) <= depth),
            Some(root) => match name.strip_prefix(root.as_str()) {
                Some("") => true,
                Some(rest) if rest.starts_with(['/', '@', '#']) => {
                    self.depth.is_none_or(|depth| below(rest) <= depth)
                }
                _ => false,
            },
        }
    }

    /// Whether a property of this name was asked for.
    pub fn wants(&self, property: &str) -> bool {
        self.properties.as_ref().is_none_or(|names| names.iter().any(|name| name == property))
    }
}

fn below(path: &str) -> u32 {
    let levels = path.bytes().filter(|byte| matches!(byte, b'/' | b'@' | b'#')).count();
    u32::try_from(levels).unwrap_or(u32::MAX)
}

/// A key as the user gave it: a passphrase, hexadecimal digits, or raw bytes. Wiped when dropped.
#[derive(Clone, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(transparent)]
pub struct Secret(pub Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// What `zfs mount` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRequest {
    /// One filesystem, or `None` for all that should be mounted (`-a`).
    pub dataset: Option<String>,
    /// With `dataset`: those below it too (`-R`).
    pub recursive: bool,
    /// Temporary mount options (`-o`), as `ro` or `noatime`.
    pub options: Vec<String>,
    /// Mount over what lies there (`-O`).
    pub overlay: bool,
    /// Mount even what is redacted or was forcibly unmounted (`-f`).
    pub force: bool,
    /// With `dataset`: at this directory, which exists, whatever its `mountpoint` says (mount(8)).
    pub at: Option<String>,
}

/// What `zfs unmount` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmountRequest {
    /// One filesystem, or `None` for all (`-a`).
    pub dataset: Option<String>,
    /// Even if it is in use (`-f`).
    pub force: bool,
    /// Unload keys that are no longer needed (`-u`).
    pub unload_keys: bool,
}

/// What `zfs load-key` asks for. The client has read the key from where `keylocation` says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadKeyRequest {
    /// Encryption root.
    pub dataset: String,
    /// The key.
    pub secret: Secret,
    /// Only check it (`-n`).
    pub check_only: bool,
}

/// A question or order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Answered by [`Response::Pool`].
    PoolReport,
    /// Answered by [`Response::Datasets`].
    Datasets(DatasetQuery),
    /// Answered by [`Response::History`].
    History,
    /// Who uses how much of a filesystem or snapshot. Answered by [`Response::Usage`].
    Usage(String),
    /// The holds on a snapshot. Answered by [`Response::Holds`].
    Holds(String),
    /// The permissions on a dataset and on those above it. Answered by [`Response::Permissions`].
    Permissions(String),
    /// How many files of a filesystem wait to be deleted. Answered by [`Response::Count`].
    DeleteQueue(String),
    /// Answered by [`Response::Done`].
    Mount(MountRequest),
    /// Answered by [`Response::Done`].
    Unmount(UnmountRequest),
    /// Answered by [`Response::Done`].
    LoadKey(LoadKeyRequest),
    /// Unload the key of an encryption root. Answered by [`Response::Done`].
    UnloadKey(String),
    /// Unmount, close the pool and end the process. Answered by [`Response::Done`] once the pool
    /// is closed.
    Export {
        /// Even if filesystems are in use.
        force: bool,
        /// The command line, for the history.
        command: Option<String>,
    },
    /// Change the pool. Answered by [`Response::Done`] once the change is made; destroying the pool
    /// ends the process.
    Change(Box<ChangeRequest>),
    /// End the process at once without exporting, as a crash would.
    Quit,
}

impl Request {
    /// Whether this only looks and never waits for a disk.
    pub fn only_looks(&self) -> bool {
        matches!(
            self,
            Request::PoolReport
                | Request::Datasets(_)
                | Request::History
                | Request::Usage(_)
                | Request::Holds(_)
                | Request::Permissions(_)
        )
    }

    /// Whether every user may ask for it.
    pub fn is_open_to_all(&self) -> bool {
        self.only_looks() && !matches!(self, Request::Usage(_))
    }

    /// How long the exchange may take.
    pub fn deadline(&self) -> Duration {
        match self {
            // Who uses how much is not always in memory.
            Request::Usage(_) => CHANGE_DEADLINE,
            _ if self.only_looks() => LOOK_DEADLINE,
            _ => CHANGE_DEADLINE,
        }
    }
}

/// What kind of failure, for exit codes and for the client's own decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// Nothing more specific.
    #[default]
    Other,
    /// No such pool or dataset.
    NotFound,
    /// In use.
    Busy,
    /// Already so (mounted, loaded).
    Already,
    /// The key is wrong.
    WrongKey,
    /// Not allowed.
    Permission,
    /// There is no room, or a quota is reached.
    NoSpace,
    /// The pool or dataset cannot be written.
    ReadOnly,
    /// Cenote cannot do this yet.
    NotSupported,
}

/// Why something could not be done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind.
    pub kind: FailureKind,
    /// The lines to print, without a final newline.
    pub message: String,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    /// Something Cenote cannot do yet.
    pub fn not_supported(what: &str) -> Failure {
        Failure::new(FailureKind::NotSupported, format!("{what} is not supported yet"))
    }
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Response {
    /// The published snapshot.
    Pool(Box<PoolReport>),
    /// Some datasets.
    Datasets {
        /// These.
        datasets: Vec<DatasetReport>,
        /// Another response follows.
        more: bool,
    },
    /// Some of the history, oldest first.
    History {
        /// These.
        records: Vec<HistoryRecord>,
        /// Another response follows.
        more: bool,
    },
    /// Who uses how much.
    Usage(Vec<UsageRecord>),
    /// Holds: tag, and when it was placed (seconds since 1970).
    Holds(Vec<(String, u64)>),
    /// Permissions: names of datasets, the one asked for first, and what stands on them.
    Permissions(Vec<(String, Vec<Grant>)>),
    /// How many.
    Count(u64),
    /// It is done. The warnings are lines to print on standard error (what `mount -a` could not
    /// mount); with any, the command ends with exit code 1.
    Done {
        /// Lines without newlines.
        warnings: Vec<String>,
    },
    /// It could not be done.
    Failed(Failure),
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The socket.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The deadline passed.
    #[error("no answer in time")]
    Deadline,
    /// A frame is too long.
    #[error("message of {0} bytes is too long")]
    TooLong(usize),
    /// Not JSON of the right shape.
    #[error("message not understood: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Another version of Cenote.
    #[error("speaks version {0} of the control protocol, not {VERSION}")]
    Version(u32),
}

/// Stream with one deadline for everything read and written through it.
#[derive(Debug)]
pub struct Timed<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl<'a> Timed<'a> {
    /// Everything must be done `after` from now.
    pub fn new(stream: &'a UnixStream, after: Duration) -> Timed<'a> {
        Timed { stream, end: Instant::now() + after }
    }

    fn left(&self) -> Result<Duration, ExchangeError> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ExchangeError::Deadline) } else { Ok(left) }
    }

    fn read_all(&mut self, mut into: &mut [u8]) -> Result<(), ExchangeError> {
        while !into.is_empty() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(into) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => into = into.get_mut(count..).unwrap_or(&mut []),
                Err(error) => again(error)?,
            }
        }
        Ok(())
    }

    fn write_all(&mut self, mut from: &[u8]) -> Result<(), ExchangeError> {
        while !from.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            match self.stream.write(from) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(count) => from = from.get(count..).unwrap_or(&[]),
                Err(error) => again(error)?,
            }
        }
        Ok(())
    }

    /// Sends one message.
    ///
    /// # Errors
    /// If it cannot be sent in time.
    pub fn send<T: Serialize>(&mut self, message: T) -> Result<(), ExchangeError> {
        let mut bytes = serde_json::to_vec(&Envelope { version: VERSION, message })?;
        let sent = self.send_bytes(&bytes);
        bytes.zeroize();
        sent
    }

    fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), ExchangeError> {
        let length = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= FRAME_MAX);
        let length = length.ok_or(ExchangeError::TooLong(bytes.len()))?;
        self.write_all(&length.to_le_bytes())?;
        self.write_all(bytes)
    }

    /// Receives one message.
    ///
    /// # Errors
    /// If none comes in time, or not one of this type and version.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ExchangeError> {
        let mut length = [0; 4];
        self.read_all(&mut length)?;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > FRAME_MAX {
            return Err(ExchangeError::TooLong(length));
        }
        let mut bytes = Vec::new();
        // in steps, so that a lying length takes no memory
        while bytes.len() < length {
            let start = bytes.len();
            bytes.resize(length.min(start + (1 << 20)), 0);
            self.read_all(bytes.get_mut(start..).unwrap_or(&mut []))?;
        }
        let message = open(&bytes);
        bytes.zeroize();
        message
    }
}

fn open<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ExchangeError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let version = serde_json::from_slice::<Version>(bytes)?.version;
    if version != VERSION {
        return Err(ExchangeError::Version(version));
    }
    Ok(serde_json::from_slice::<Envelope<T>>(bytes)?.message)
}

fn again(error: io::Error) -> Result<(), ExchangeError> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Err(ExchangeError::Deadline),
        _ => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_select_by_root_depth_and_kind() {
        use DatasetKind::{Filesystem, Snapshot};
        let query =
            DatasetQuery { root: Some("tank/a".into()), depth: Some(1), ..DatasetQuery::default() };
        assert!(query.selects("tank/a", Filesystem));
        assert!(query.selects("tank/a@s", Snapshot));
        assert!(query.selects("tank/a/b", Filesystem));
        assert!(!query.selects("tank/a/b@s", Snapshot));
        assert!(!query.selects("tank/ab", Filesystem));
        let whole = DatasetQuery { kinds: vec![Snapshot], ..DatasetQuery::default() };
        assert!(whole.selects("tank@x", Snapshot) && !whole.selects("tank", Filesystem));
    }

    #[test]
    fn messages_cross_a_socket_and_other_versions_are_refused() {
        let (a, b) = UnixStream::pair().unwrap();
        let wait = Duration::from_secs(2);
        Timed::new(&a, wait).send(Request::Export { force: true, command: None }).unwrap();
        let got: Request = Timed::new(&b, wait).receive().unwrap();
        assert!(matches!(got, Request::Export { force: true, command: None }));

        Timed::new(&a, wait).send_bytes(br#"{"version":9,"message":{"New":1}}"#).unwrap();
        let error = Timed::new(&b, wait).receive::<Request>().unwrap_err();
        assert!(matches!(error, ExchangeError::Version(9)), "{error}");

        Timed::new(&a, wait).write_all(&u32::MAX.to_le_bytes()).unwrap();
        let error = Timed::new(&b, wait).receive::<Request>().unwrap_err();
        assert!(matches!(error, ExchangeError::TooLong(_)), "{error}");
        let error = Timed::new(&b, Duration::from_millis(20)).receive::<Request>().unwrap_err();
        assert!(matches!(error, ExchangeError::Deadline), "{error}");
    }
}
