//! `zfs wait`: until nothing goes on in a filesystem.
//!
//! Invariant: it returns when none of the activities waited for runs, or the filesystem is gone.

use std::process::ExitCode;
use std::time::Duration;

use cenote_control::client::Client;
use cenote_control::protocol::FailureKind;
use cenote_control::report::DatasetKind;

use super::common;
use crate::datasets::names;
use crate::getopt::Spec;
use crate::usage::Tool;

const SPEC: Spec = Spec { letters: "t:", long: &[] };
/// The only activity there is: files that lost their last name are freed.
const DELETE_QUEUE: &str = "deleteq";
/// How often it is looked.
const INTERVAL: Duration = Duration::from_millis(500);

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("wait", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    // Nothing behind the last comma, and nothing at all, is no name.
    let list = parsed.argument('t').map(|list| list.strip_suffix(',').unwrap_or(list));
    let waits = list.is_none_or(|list| !list.is_empty());
    if let Some(list) = list.filter(|list| !list.is_empty())
        && let Some(unknown) = list.split(',').find(|name| *name != DELETE_QUEUE)
    {
        return wrong(&format!("invalid activity '{unknown}'"));
    }
    let name = match parsed.operands.as_slice() {
        [] => return wrong("missing 'filesystem' argument"),
        [name] => name,
        _ => return wrong("too many arguments"),
    };
    let client = Client::default();
    let kinds = [DatasetKind::Filesystem];
    if let Err(message) = common::open(&client, name, &kinds, Some(0), &["type"]) {
        return common::fail(&message);
    }
    if !waits {
        return ExitCode::SUCCESS;
    }
    loop {
        match client.delete_queue(names::pool_of(name), name) {
            Ok(0) => return ExitCode::SUCCESS,
            Ok(_) => std::thread::sleep(INTERVAL),
            // destroyed or exported while it was waited for
            Err(failure) if failure.kind == FailureKind::NotFound => return ExitCode::SUCCESS,
            Err(failure) => return common::fail(&failure.message),
        }
    }
}
