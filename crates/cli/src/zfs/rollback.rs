//! `zfs rollback`.
//!
//! Invariant: everything that will be destroyed was allowed to be by `-r` or `-R`; what depends on
//! something else goes before it.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::report::DatasetKind;

use super::common::{self, fail};
use super::dependents::{Doomed, Family};
use crate::getopt::Spec;
use crate::usage::Tool;
use crate::zpool::common::history_line;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "rRf", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("rollback", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let name = match parsed.operands.as_slice() {
        [] => return wrong("missing dataset argument"),
        [name] => name,
        _ => return wrong("too many arguments"),
    };
    let client = Client::default();
    let kinds = [DatasetKind::Snapshot];
    if let Err(message) = common::open(&client, name, &kinds, Some(0), &["type"]) {
        return fail(&message);
    }
    let (clones, recursive) = (parsed.has('R'), parsed.has('r') || parsed.has('R'));
    let newer = match newer(&client, name, recursive, clones) {
        Ok(newer) => newer,
        Err(lines) => {
            lines.iter().for_each(|line| terminal::complain(line));
            return ExitCode::FAILURE;
        }
    };
    let line = history_line("zfs", "rollback", arguments);
    let change = Change::Rollback { snapshot: name.clone(), newer, force: parsed.has('f') };
    common::code(common::change(&client, name, Some(line), change))
}

/// What has to go for `name` to be the newest snapshot; the lines to print if it may not.
fn newer(
    client: &Client,
    name: &str,
    recursive: bool,
    clones: bool,
) -> Result<Vec<String>, Vec<String>> {
    let line = |message: String| vec![message];
    let mut family = Family::new(client, name);
    family.read_snapshots(name.split('@').next().unwrap_or_default()).map_err(line)?;
    let later = family.later(name);
    let mut lines = Vec::new();
    if !later.is_empty() && !recursive {
        lines.push(format!(
            "cannot rollback to '{name}': more recent snapshots or bookmarks exist\nuse '-r' to \
             force deletion of the following snapshots and bookmarks:"
        ));
        lines.extend(later);
        return Err(lines);
    }
    let mut doomed = Doomed::default();
    for name in &later {
        family.doom(name, clones, &mut doomed).map_err(line)?;
    }
    let Doomed { names: out, kept, .. } = doomed;
    if !kept.is_empty() {
        lines.push(format!(
            "cannot rollback to '{name}': clones of previous snapshots exist\nuse '-R' to force \
             deletion of the following clones and dependents:"
        ));
        lines.extend(kept);
        return Err(lines);
    }
    Ok(out)
}
