//! What the commands that change datasets do alike.
//!
//! Invariant: a name is checked before a pool is asked, and the words are those of OpenZFS.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::protocol::{DatasetQuery, FailureKind};
use cenote_control::report::{DatasetKind, DatasetReport};

use crate::datasets::names;
use crate::settings::dataset::Subject;
use crate::zpool::common;
use cenote_control::terminal;

/// Filesystems and volumes.
pub const DATASETS: [DatasetKind; 2] = [DatasetKind::Filesystem, DatasetKind::Volume];
/// What properties can be set on.
pub const SETTABLE: [DatasetKind; 3] =
    [DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot];

/// A dataset and, if asked for, everything below it: itself first.
///
/// # Errors
/// `cannot open 'x': ...`.
pub fn open(
    client: &Client,
    name: &str,
    kinds: &[DatasetKind],
    depth: Option<u32>,
    properties: &[&str],
) -> Result<Vec<DatasetReport>, String> {
    let cannot = |why: &str| format!("cannot open '{name}': {why}");
    names::check(name, kinds).map_err(|problem| cannot(&problem))?;
    let query = DatasetQuery {
        root: Some(name.to_owned()),
        depth,
        kinds: Vec::new(),
        properties: Some(properties.iter().map(|name| (*name).to_owned()).collect()),
        ..DatasetQuery::default()
    };
    let mut all =
        client.datasets(names::pool_of(name), &query).map_err(|failure| match failure.kind {
            FailureKind::NotFound => cannot("dataset does not exist"),
            _ => failure.message,
        })?;
    all.sort_by(cenote_control::text::sort::by_name);
    let at = all.iter().position(|dataset| dataset.name == name);
    let at = at.ok_or_else(|| cannot("dataset does not exist"))?;
    let own = all.remove(at);
    if !kinds.contains(&own.kind) {
        return Err(cannot("operation not applicable to datasets of this type"));
    }
    all.insert(0, own);
    Ok(all)
}

/// Whether there is such a dataset, as far as its pool answers.
pub fn exists(client: &Client, name: &str) -> bool {
    let query = DatasetQuery {
        root: Some(name.to_owned()),
        depth: Some(0),
        properties: Some(Vec::new()),
        ..DatasetQuery::default()
    };
    client.datasets(names::pool_of(name), &query).is_ok()
}

/// The encryption (`off` or a suite) of the nearest dataset above `name` that is there.
pub fn encryption_above(client: &Client, name: &str) -> String {
    let mut above = name;
    while let Some((parent, _)) = above.rsplit_once('/') {
        if let Ok(found) = open(client, parent, &DATASETS, Some(0), &["encryption"]) {
            let suite = found.first().and_then(|parent| parent.properties.value("encryption"));
            return suite.unwrap_or("off").to_owned();
        }
        above = parent;
    }
    "off".to_owned()
}

/// Gives an order that changes the pool `name` is in; says what goes wrong.
pub fn change(client: &Client, name: &str, command: Option<String>, change: Change) -> bool {
    common::order(client, names::pool_of(name), &common::change(command, change))
}

/// What values are held against, for a dataset of `kind` in the pool of `name`. The pool is only
/// asked if one of the properties depends on it.
pub fn subject(
    client: &Client,
    name: &str,
    kind: DatasetKind,
    creating: bool,
    properties: &[(String, String)],
) -> Subject {
    let mut subject = Subject::new(kind, creating);
    let has = |wanted: &[&str]| properties.iter().any(|(name, _)| wanted.contains(&name.as_str()));
    if !has(&["recordsize", "recsize", "volblocksize", "special_small_blocks"]) {
        return subject;
    }
    let Ok(report) = client.pool_report(names::pool_of(name)) else { return subject };
    let large = report.properties.value("feature@large_blocks").unwrap_or("disabled");
    if large == "disabled" {
        subject.block_most = 128 << 10;
    }
    let special = cenote_control::report::VdevClass::Special;
    if has(&["special_small_blocks"])
        && !report.root.children.iter().any(|vdev| vdev.class == special)
    {
        let words = "special_small_blocks: property requires a special device in the pool";
        terminal::complain(words);
    }
    subject
}

/// Takes the arguments of `-o` apart.
///
/// # Errors
/// The line to print.
pub fn pairs<'a>(
    options: impl Iterator<Item = &'a str>,
    pairs: &mut Vec<(String, String)>,
) -> Result<(), String> {
    for option in options {
        let split = option.split_once('=');
        let (name, value) = split.ok_or("missing '=' for property=value argument")?;
        add_pair(name, value, pairs)?;
    }
    Ok(())
}

/// Adds one property.
///
/// # Errors
/// The line to print, if it is there already.
pub fn add_pair(name: &str, value: &str, pairs: &mut Vec<(String, String)>) -> Result<(), String> {
    if pairs.iter().any(|(other, _)| other == name) {
        return Err(format!("property '{name}' specified multiple times"));
    }
    pairs.push((name.to_owned(), value.to_owned()));
    Ok(())
}

/// Says why nothing was done.
pub fn fail(message: &str) -> ExitCode {
    terminal::complain(message);
    ExitCode::FAILURE
}

/// Exit code of something that went well or not.
pub fn code(well: bool) -> ExitCode {
    ExitCode::from(u8::from(!well))
}
