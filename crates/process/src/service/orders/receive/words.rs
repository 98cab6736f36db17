//! What goes wrong with a receive, in the words of OpenZFS.
//!
//! Invariant: every refusal says at which step it happened, and of what.

use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::pool::Pool;
use cenote_engine::{Error, ErrorKind};

use super::super::super::failure;
use super::names::Destination;

/// The start of refusals before anything is known of the stream.
pub(super) const START: &str = "cannot receive";
/// What OpenZFS says of streams that refer to blocks sent before.
pub(super) const DEDUPLICATED: &str = "ERROR: \"zfs receive\" no longer supports deduplicated send streams.  \
    Use\nthe \"zstream redup\" command to convert this stream to a regular,\nnon-deduplicated stream.\n\
    cannot receive: operation not supported on this dataset";
/// A dataset keeps its keys, or that it has none.
pub(super) const KEYS_STAY: &str = "zfs receive -F cannot be used to destroy an encrypted filesystem or \
    overwrite an unencrypted one with an encrypted one";
/// What is not encrypted goes on with what is not.
pub(super) const RAW_ON_PLAIN: &str =
    "cannot perform raw receive on top of existing unencrypted dataset";
/// What it was to go into was renamed or destroyed meanwhile.
pub(super) const GONE: &str = "dataset does not exist";
/// Nothing more can be read.
const UNREADABLE: &str = "failed to read from stream";

/// One stream of one snapshot, as refusals speak of it.
pub(super) struct Speaking<'a> {
    /// How they begin.
    pub(super) start: &'static str,
    /// Where it goes.
    pub(super) to: &'a Destination,
}

impl Speaking<'_> {
    pub(super) fn refuse(&self, kind: FailureKind, reason: &str) -> Failure {
        Failure::new(kind, format!("{}: {reason}", self.start))
    }

    /// It cannot begin.
    pub(super) fn not_begun(&self, error: &Error) -> Failure {
        let Destination { dataset, snapshot } = self.to;
        let reason = match error.kind() {
            ErrorKind::NotFound => {
                format!("most recent snapshot of {dataset} does not\nmatch incremental source")
            }
            ErrorKind::Busy => format!(
                "destination {dataset} contains partially-complete state from \"zfs receive -s\"."
            ),
            ErrorKind::Exists => {
                let words =
                    format!("cannot restore to {dataset}@{snapshot}: destination already exists");
                return Failure::new(FailureKind::Already, words);
            }
            ErrorKind::Unsupported => error.to_string(),
            _ => return self.failed(error),
        };
        self.refuse(failure(error).kind, &reason)
    }

    /// It cannot go on, or end.
    pub(super) fn failed(&self, error: &Error) -> Failure {
        let dataset = &self.to.dataset;
        let reason = match error.kind() {
            ErrorKind::Outdated => {
                format!("destination {dataset} has been modified\nsince most recent snapshot")
            }
            ErrorKind::NoSpace => "out of space".to_owned(),
            ErrorKind::Quota => format!("destination {dataset} space quota exceeded."),
            ErrorKind::KeyNotLoaded => "inherited key must be loaded".to_owned(),
            ErrorKind::Checksum | ErrorKind::Interrupted => error.reason().to_owned(),
            ErrorKind::InvalidArgument => format!("invalid backup stream: {error}"),
            _ => error.to_string(),
        };
        self.refuse(failure(error).kind, &reason)
    }

    /// The stream was cut off or is damaged, and what came of it is kept, if it is.
    pub(super) fn cut_off(&self, error: &Error, pool: &Pool) -> Failure {
        let told = self.failed(error);
        let is_cut =
            matches!(error.kind(), ErrorKind::Checksum | ErrorKind::Interrupted | ErrorKind::Io);
        if !is_cut {
            return told;
        }
        let catalog = pool.catalog();
        let head = catalog.dataset_named(&self.to.dataset);
        let token = head.and_then(|head| catalog.resume_token(&head));
        match token {
            Ok(Some(token)) => {
                let words = format!(
                    "{}: checksum mismatch or incomplete stream.\nPartially received snapshot is \
                     saved.\nA resuming stream can be generated on the sending system by running:\n\
                     \x20   zfs send -t {token}",
                    self.start
                );
                Failure { message: words, ..told }
            }
            _ => told,
        }
    }
}

/// The stream cannot be read, before it is known what is in it.
pub(super) fn unreadable(error: &Error) -> Failure {
    let reason = match error.kind() {
        ErrorKind::InvalidArgument => "invalid stream (bad magic number)",
        ErrorKind::Checksum => "invalid stream (checksum mismatch)",
        _ => UNREADABLE,
    };
    Failure::new(FailureKind::Other, format!("{START}: {reason}"))
}
