//! `zfs clone` and `zfs promote`.
//!
//! Invariant: as in `super`.

use std::process::ExitCode;

use cenote_control::changes::{Change, NewDataset};
use cenote_control::client::Client;
use cenote_control::report::DatasetKind;

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::Spec;
use crate::settings::dataset;
use crate::usage::Tool;
use crate::zpool::common::history_line;

const CLONE: Spec = Spec { letters: "o:pu", long: &[] };
const PROMOTE: Spec = Spec { letters: "", long: &[] };

/// Runs `zfs clone`.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("clone", message);
    let parsed = match CLONE.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let mut pairs = Vec::new();
    if let Err(message) = common::pairs(parsed.arguments('o'), &mut pairs) {
        return fail(&message);
    }
    let (origin, name) = match parsed.operands.as_slice() {
        [] => return wrong("missing source dataset argument"),
        [_] => return wrong("missing target dataset argument"),
        [origin, name] => (origin, name),
        _ => return wrong("too many arguments"),
    };
    let client = Client::default();
    let cannot = |words: &str| fail(&format!("cannot create '{name}': {words}"));
    let snapshots = [DatasetKind::Snapshot];
    if let Err(message) = common::open(&client, origin, &snapshots, Some(0), &["type"]) {
        return fail(&message);
    }
    if let Some(problem) = names::new_name_problem(name, &common::DATASETS) {
        return cannot(&problem);
    }
    if !name.contains('/') {
        return cannot("missing dataset name");
    }
    if names::pool_of(name) != names::pool_of(origin) {
        return cannot("source and target pools differ");
    }
    let of = origin.split('@').next().unwrap_or("");
    let kind = common::open(&client, of, &common::DATASETS, Some(0), &["type"])
        .ok()
        .and_then(|all| all.first().map(|dataset| dataset.kind))
        .unwrap_or_default();
    let subject = common::subject(&client, name, kind, false, &pairs);
    let mut properties = Vec::new();
    for (property, value) in &pairs {
        match dataset::parse(property, value, &subject) {
            Ok(setting) => properties.push(setting),
            Err(words) => return cannot(&words),
        }
    }
    let new = NewDataset {
        name: name.clone(),
        volume_size: None,
        properties,
        key: None,
        parents: parsed.has('p'),
        mount: !parsed.has('u'),
    };
    let line = history_line("zfs", "clone", arguments);
    let change = Change::Clone { origin: origin.clone(), new };
    common::code(common::change(&client, name, Some(line), change))
}

/// Runs `zfs promote`.
pub fn promote(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("promote", message);
    let parsed = match PROMOTE.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let name = match parsed.operands.as_slice() {
        [] => return wrong("missing clone filesystem argument"),
        [name] => name,
        _ => return wrong("too many arguments"),
    };
    let client = Client::default();
    if let Err(message) = common::open(&client, name, &common::DATASETS, Some(0), &["type"]) {
        return fail(&message);
    }
    let line = history_line("zfs", "promote", arguments);
    common::code(common::change(&client, name, Some(line), Change::Promote(name.clone())))
}
