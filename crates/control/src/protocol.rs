//! Messages between the command line and a pool process.
//!
//! Invariant: a request is answered by any number of parts ([`Part`]) and then by one last reply, which says
//! how it ended. Bulk data does not travel here: a request brings the descriptor that it is read from or
//! written to.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::changes::{Change, ChangeRequest, Grant};
use crate::events::{EventsAsked, EventsPart};
use crate::faults::FaultReport;
use crate::report::{DatasetKind, DatasetReport, HistoryRecord, PoolReport, UsageRecord};

/// How long a question that only looks may take to its first part, and from part to part.
pub const LOOK_DEADLINE: Duration = Duration::from_secs(5);
/// The same for a change (unmounting, deriving a key, writing labels).
pub const CHANGE_DEADLINE: Duration = Duration::from_secs(300);

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
    /// The numbers of those who are named in properties, by property: the tables of people are read by
    /// who asks ([`crate::client::Client::datasets`]), not in the process, which waits for no file.
    pub people: BTreeMap<String, u32>,
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

/// A question or order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Answered by [`Answer::Pool`].
    PoolReport,
    /// Answered by [`Part::Datasets`].
    Datasets(DatasetQuery),
    /// Answered by [`Part::History`].
    History,
    /// Who uses how much of a filesystem or snapshot. Answered by [`Part::Usage`].
    Usage(String),
    /// The holds on a snapshot. Answered by [`Answer::Holds`].
    Holds(String),
    /// The permissions on a dataset and on those above it. Answered by [`Answer::Permissions`].
    Permissions(String),
    /// How many files of a filesystem wait to be deleted. Answered by [`Answer::Count`].
    DeleteQueue(String),
    /// What happened to the pool. Answered by [`Part::Events`].
    Events(EventsAsked),
    /// The faults that may happen on purpose. Answered by [`Answer::Faults`].
    Faults,
    /// Forget what happened. Answered by [`Answer::Count`]: how many events there were.
    ClearEvents,
    /// An order. Answered by [`Answer::Done`] once it is carried out.
    Change(Box<ChangeRequest>),
    /// End the process at once without exporting, as a crash would.
    Quit,
}

impl From<Change> for Request {
    /// The order, of which the history is told nothing.
    fn from(change: Change) -> Request {
        Request::Change(Box::new(ChangeRequest { command: None, change }))
    }
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
                | Request::Events(_)
                | Request::Faults
        )
    }

    /// How many descriptors it brings.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::Change(request) => request.change.descriptors(),
            _ => 0,
        }
    }

    /// How long it may take to the first reply, and from one to the next.
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
    /// Who asked has gone.
    Gone,
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

/// How far something is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is done, of `total`.
    pub done: u64,
    /// What there is to do.
    pub total: u64,
}

/// A piece of what was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Part {
    /// Some datasets.
    Datasets(Vec<DatasetReport>),
    /// Some of the history, oldest first.
    History(Vec<HistoryRecord>),
    /// Some of those who use something.
    Usage(Vec<UsageRecord>),
    /// Some events.
    Events(EventsPart),
    /// How far it is. Of these some may be left out.
    Progress(Progress),
    /// Lines for standard output.
    Said(Vec<String>),
    /// Text for standard output, as it is.
    Text(String),
    /// This snapshot is sent from now on: how far it is, is told of it.
    Sending(String),
}

/// What the last reply says of something that went well.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The published snapshot.
    Pool(Box<PoolReport>),
    /// Holds: tag, and when it was placed (seconds since 1970).
    Holds(Vec<(String, u64)>),
    /// Permissions: names of datasets, the one asked for first, and what stands on them.
    Permissions(Vec<(String, Vec<Grant>)>),
    /// How many.
    Count(u64),
    /// Faults on purpose.
    Faults(Vec<FaultReport>),
    /// It is done, and all parts of it were sent. The warnings are lines to print on standard error
    /// (what `mount -a` could not mount); with any, the command ends with exit code 1.
    Done {
        /// Lines without newlines.
        warnings: Vec<String>,
    },
}

/// What a pool process sends: parts, and then one of the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// More follows.
    Part(Part),
    /// It ended well.
    Last(Answer),
    /// It could not be done, or not to its end.
    Failed(Failure),
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
}
