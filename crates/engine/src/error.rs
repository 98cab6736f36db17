//! The engine's one error: what kind, where, why, and what to do next.
//!
//! Invariant: an error of outside data names the place; what is known of it is added on the way up and
//! never taken away.

use std::backtrace::Backtrace;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_format::BlockPointer;

/// Result of an engine call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure; decides errno, exit code and message code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A device failed or is missing beyond the redundancy.
    Io,
    /// Bytes were read but no copy matches its checksum.
    Checksum,
    /// Verified bytes do not form the structure they should.
    Corrupt,
    /// No such object, name, dataset, pool.
    NotFound,
    /// The name exists already or is in use.
    Exists,
    /// The format or a feature is not supported.
    Unsupported,
    /// The dataset's encryption key is not loaded.
    KeyNotLoaded,
    /// The key given does not open the dataset.
    WrongKey,
    /// The block was left out by a redacted receive.
    Redacted,
    /// An argument makes no sense.
    InvalidArgument,
    /// In use: mounted, imported elsewhere, active.
    Busy,
    /// The pool or dataset cannot be changed.
    ReadOnly,
    /// No answer in time.
    TimedOut,
    /// Not permitted.
    Permission,
    /// No room left for it.
    NoSpace,
    /// A quota or a limit is reached.
    Quota,
    /// Who asked for it was killed, or does not want it any more.
    Interrupted,
    /// What was looked at has changed meanwhile: to be looked at again.
    Outdated,
    /// A mistake of this program, whatever the bytes on the disks are.
    Bug,
}

/// The first mistake of ours that was met since it was asked for last.
static BUGS: Mutex<Option<String>> = Mutex::new(None);

/// What the first [`Error::bug`] of the process said since this was called last: none may stay unseen where the
/// error itself is taken for that of a device.
pub fn take_bug() -> Option<String> {
    BUGS.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Where it happened; whatever is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Pool name.
    pub pool: Option<Arc<str>>,
    /// Device path or dataset name.
    pub name: Option<Arc<str>>,
    /// Dataset object number in the MOS (0 is the MOS itself).
    pub objset: Option<u64>,
    /// Object number.
    pub object: Option<u64>,
    /// Level and block id in the object.
    pub block: Option<(u8, u64)>,
    /// First address: vdev, byte offset.
    pub dva: Option<(u32, u64)>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sep = "";
        let mut part = |f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>| {
            let result = write!(f, "{sep}{text}");
            sep = ", ";
            result
        };
        if let Some(pool) = &self.pool {
            part(f, format_args!("pool '{pool}'"))?;
        }
        if let Some(name) = &self.name {
            part(f, format_args!("{name}"))?;
        }
        match self.objset {
            Some(0) => part(f, format_args!("MOS"))?,
            Some(objset) => part(f, format_args!("dataset object {objset}"))?,
            None => {}
        }
        if let Some(object) = self.object {
            part(f, format_args!("object {object}"))?;
        }
        if let Some((level, id)) = self.block {
            part(f, format_args!("level {level} block {id}"))?;
        }
        if let Some((vdev, offset)) = self.dva {
            part(f, format_args!("address {vdev}:{offset:#x}"))?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    place: Place,
    reason: String,
    advice: Option<String>,
    passing: bool,
    forged: bool,
}

/// An engine failure. Cheap to move, cheap to clone.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

impl Error {
    /// A failure of `kind` because of `reason`, at a place not known yet.
    pub fn new(kind: ErrorKind, reason: impl Into<String>) -> Self {
        let (place, reason) = (Place::default(), reason.into());
        Self(Box::new(Inner { kind, place, reason, advice: None, passing: false, forged: false }))
    }

    /// Verified bytes that make no sense.
    pub fn corrupt(reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, reason)
    }

    /// A mistake of ours: `reason` says what should never be. It is logged with the way that led here.
    ///
    /// Only for what no bytes of a device or of a caller can bring about: those are [`Error::corrupt`] and
    /// [`Error::invalid`].
    #[cold]
    pub fn bug(reason: impl Into<String>) -> Self {
        let (reason, way) = (reason.into(), Backtrace::force_capture());
        tracing::error!(%reason, %way, "a mistake of Cenote's, not of the pool");
        let mut met = BUGS.lock().unwrap_or_else(PoisonError::into_inner);
        met.get_or_insert_with(|| reason.clone());
        drop(met);
        Self::new(ErrorKind::Bug, reason)
            .with_advice("this is a mistake of Cenote's: report it with the pool process's log")
    }

    /// Nothing by that name or number.
    pub fn not_found(reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, reason)
    }

    /// Not supported; `reason` names what.
    pub fn unsupported(reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, reason)
    }

    /// The pool can be opened, but for reading only.
    pub fn only_read(reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::ReadOnly, reason).with_advice("open the pool read-only")
    }

    /// A bad argument.
    pub fn invalid(reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, reason)
    }

    /// The system gives no thread.
    pub fn no_thread(error: std::io::Error) -> Self {
        Self::new(ErrorKind::Io, format!("cannot start a thread: {error}"))
    }

    /// What kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Where it happened.
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// Why, without the place.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// What the user can do, if that is known.
    pub fn advice(&self) -> Option<&str> {
        self.0.advice.as_deref()
    }

    /// Devices that are away, or that did not answer, may make it good when they are back.
    pub fn is_passing(&self) -> bool {
        self.0.passing
    }

    /// It tells of damage: who asks again later is told the same.
    pub fn is_lasting(&self) -> bool {
        match self.kind() {
            ErrorKind::Corrupt => true,
            ErrorKind::Checksum | ErrorKind::Io => !self.is_passing(),
            _ => false,
        }
    }

    /// The same, passing if `passing` says so.
    #[must_use]
    pub fn passing(mut self, passing: bool) -> Self {
        self.0.passing = passing;
        self
    }

    /// A MAC does not fit: whoever wrote the bytes did not have the key.
    pub fn is_forged(&self) -> bool {
        self.0.forged
    }

    /// The same, of bytes whose MAC does not fit.
    #[must_use]
    pub fn forged(mut self) -> Self {
        self.0.forged = true;
        self
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// Fills in parts of the place that are not known yet.
    #[must_use]
    pub fn at(mut self, fill: impl FnOnce(&mut Place)) -> Self {
        let mut place = Place::default();
        fill(&mut place);
        let own = &mut self.0.place;
        own.pool = own.pool.take().or(place.pool);
        own.name = own.name.take().or(place.name);
        own.objset = own.objset.or(place.objset);
        own.object = own.object.or(place.object);
        own.block = own.block.or(place.block);
        own.dva = own.dva.or(place.dva);
        self
    }

    /// Names the object.
    #[must_use]
    pub fn at_object(self, objset: u64, object: u64) -> Self {
        self.at(|place| {
            place.objset = Some(objset);
            place.object = Some(object);
        })
    }

    /// Names the block by its first address.
    #[must_use]
    pub fn at_pointer(self, bp: &BlockPointer) -> Self {
        self.at(|place| place.dva = bp.first_dva().map(|dva| (dva.vdev, dva.offset)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.place != Place::default() {
            write!(f, "{}: ", self.0.place)?;
        }
        f.write_str(&self.0.reason)?;
        if let Some(advice) = &self.0.advice {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<cenote_format::Error> for Error {
    fn from(error: cenote_format::Error) -> Self {
        Self::corrupt(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_says_so_and_is_remembered_until_it_is_asked_for() {
        let error = Error::bug("the group has no log").at_object(0, 7);
        assert_eq!(error.kind(), ErrorKind::Bug);
        let told = error.to_string();
        assert!(
            told.starts_with("MOS, object 7: the group has no log; this is a mistake"),
            "{told}"
        );
        assert!(take_bug().is_some());
    }
}
