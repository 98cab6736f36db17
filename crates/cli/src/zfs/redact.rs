//! `zfs redact`.
//!
//! Invariant: as in `super`.

use std::process::ExitCode;

use cenote_control::changes::{Change, RedactRequest};
use cenote_control::client::Client;
use cenote_control::report::DatasetKind;

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::Spec;
use crate::usage::Tool;
use crate::zpool::common::history_line;

const SPEC: Spec = Spec { letters: "", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("redact", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let [snapshot, name, kept @ ..] = parsed.operands.as_slice() else {
        return wrong("too few arguments");
    };
    if kept.is_empty() {
        return wrong("too few arguments");
    }
    if name.contains('#') {
        return fail("redaction bookmark name must not contain '#'");
    }
    let Some((of, _)) = snapshot.split_once('@') else {
        return fail(&format!("provided snapshot {snapshot} does not exist"));
    };
    if kept.iter().any(|name| !name.contains('@') || !name.contains('/') && !name.starts_with(of)) {
        return fail("potentially invalid redaction snapshot; full dataset names required");
    }
    let bookmark = format!("{of}#{name}");
    if names::new_name_problem(&bookmark, &[DatasetKind::Bookmark]).is_some() {
        return fail("provided bookmark name cannot be used, final name would be too long");
    }
    let line = history_line("zfs", "redact", arguments);
    let (snapshot, kept) = (snapshot.clone(), kept.to_vec());
    let client = Client::default();
    let pool = snapshot.clone();
    let change = Change::Redact(RedactRequest { snapshot, bookmark, kept });
    common::code(common::change(&client, &pool, Some(line), change))
}
