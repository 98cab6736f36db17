//! Sending: from a snapshot to the records of a stream.
//!
//! Chapter 07. [`Sending`] is one stream, of all of a snapshot or of what changed [`Since`] an earlier one. A
//! thread goes through the snapshot, reads its blocks in batches and makes them records; who asked for the
//! stream writes them meanwhile.
//!
//! Invariant: what is sent depends on the snapshot and the options alone, so that a stream that was cut off can
//! be resumed; two batches wait in memory at most.

mod begin;
mod beside;
mod blocks;
mod estimate;
mod left_out;
mod objects;
mod package;
mod pending;
mod redaction;
mod resumed;
mod sending;
mod since;
mod source;

pub use estimate::{Before, estimate};
pub use left_out::Redaction;
pub use package::{Member, Package};
pub use redaction::redact;
pub use resumed::{resumed_options, resumed_snapshot, resumed_source};
pub use sending::Sending;
pub use since::{Lacking, Since};
pub use source::{Options, Resume};
