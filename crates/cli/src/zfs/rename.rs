//! `zfs rename`.
//!
//! Invariant: as in `super`.

use std::process::ExitCode;

use cenote_control::changes::{Change, RenameRequest};
use cenote_control::client::Client;

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::Spec;
use crate::usage::Tool;
use crate::zpool::common::history_line;

const SPEC: Spec = Spec { letters: "pruf", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("rename", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let (from, to) = match parsed.operands.as_slice() {
        [] => return wrong("missing source dataset argument"),
        [_] => return wrong("missing target dataset argument"),
        [from, to] => (from, to),
        _ => return wrong("too many arguments"),
    };
    let [parents, recursive, keep_mounts] = ['p', 'r', 'u'].map(|letter| parsed.has(letter));
    if recursive && parents {
        return wrong("-p and -r options are mutually exclusive");
    }
    if keep_mounts && parents {
        return wrong("-u and -p options are mutually exclusive");
    }
    if recursive && !from.contains('@') {
        return wrong("source dataset for recursive rename must be a snapshot");
    }
    let client = Client::default();
    let to = match target(&client, from, to) {
        Ok(to) => to,
        Err(message) => return fail(&message),
    };
    let force = parsed.has('f');
    let request = RenameRequest { from: from.clone(), to, parents, keep_mounts, force, recursive };
    let line = history_line("zfs", "rename", arguments);
    common::code(common::change(&client, from, Some(line), Change::Rename(request)))
}

/// The full new name.
fn target(client: &Client, from: &str, to: &str) -> Result<String, String> {
    let own = common::open(client, from, &common::SETTABLE, Some(0), &["type"])?;
    let kind = own.first().map(|dataset| dataset.kind).unwrap_or_default();
    let to = match from.split_once('@') {
        Some((of, _)) if !to.contains('@') && !to.contains('/') => format!("{of}@{to}"),
        Some((of, _)) if to.starts_with('@') => format!("{of}{to}"),
        _ => to.to_owned(),
    };
    let cannot = |words: &str| format!("cannot rename to '{to}': {words}");
    if let Some(problem) = names::new_name_problem(&to, &[kind]) {
        return Err(cannot(&problem));
    }
    if let Some((of, _)) = from.split_once('@') {
        if to.split_once('@').is_none_or(|(other, _)| other != of) {
            return Err(cannot("snapshots must be part of same dataset"));
        }
        return Ok(to);
    }
    if !to.contains('/') {
        return Err(format!("cannot create '{to}': missing dataset name"));
    }
    let pool = names::pool_of(&to);
    if !client.knows(pool) {
        return Err(format!("cannot create '{to}': no such pool '{pool}'"));
    }
    if pool != names::pool_of(from) || !from.contains('/') {
        return Err(cannot("datasets must be within same pool"));
    }
    Ok(to)
}
