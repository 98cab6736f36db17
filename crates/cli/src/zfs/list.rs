//! `zfs list`.
//!
//! Invariant: as in `super`.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use cenote_control::client::Client;
use cenote_control::json;
use cenote_control::report::{DatasetKind, PoolReport};
use cenote_control::text::dataset_list::{self, DEFAULT_COLUMNS, SPACE_COLUMNS};
use cenote_control::text::sort::{self, SortKey};

use crate::datasets::names;
use crate::datasets::select::{self, Selection};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use crate::zpool::common::json_options;
use cenote_control::terminal;

/// How long the property `listsnapshots` of a pool is waited for.
const HINT_WAIT: Duration = Duration::from_secs(1);

const SPEC: Spec =
    Spec { letters: "jHS:d:o:prs:t:", long: &[("json", 'j', false), ("json-int", 'J', false)] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("list", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        // this command calls a missing argument an invalid option too
        Err(crate::getopt::OptionError::Missing(letter)) => {
            return wrong(&format!("invalid option '{letter}'"));
        }
        Err(error) => return wrong(&error.message()),
    };
    let json = match json_options(Tool::Zfs, "list", &parsed) {
        Ok(json) => json,
        Err(code) => return code,
    };
    let columns = match columns(&parsed) {
        Ok(columns) => columns,
        Err(message) => return wrong(&message),
    };
    let keys = match sort_keys(&parsed) {
        Ok(keys) => keys,
        Err(message) => return wrong(&message),
    };
    let client = Client::default();
    let mut selection = match selection(&client, &parsed) {
        Ok(selection) => selection,
        Err(message) => return wrong(&message),
    };
    selection.properties = columns.clone().map(|mut names| {
        names.extend(keys.iter().map(|key| key.property.clone()));
        names.retain(|name| name != "name");
        names
    });
    let mut found = select::select(&client, &selection);
    found.datasets.sort_by(|a, b| sort::compare(&keys, a, b));
    let columns = columns.unwrap_or_else(|| {
        let all = cenote_control::properties::DATASET.iter();
        all.filter(|info| info.applies_to_any()).map(|info| info.name.to_owned()).collect()
    });
    let (exact, scripted) = (parsed.has('p'), parsed.has('H'));
    if found.datasets.is_empty() && !found.failed && selection.operands.is_empty() && !scripted {
        terminal::complain("no datasets available");
    }
    if let Some(options) = &json {
        if !(found.failed && found.datasets.is_empty()) {
            terminal::out(&json::dataset::list(&found.datasets, &columns, options));
        }
    } else if !found.datasets.is_empty() {
        terminal::out(&dataset_list::render(&found.datasets, &columns, exact, scripted));
    }
    ExitCode::from(u8::from(found.failed))
}

fn columns(parsed: &Parsed) -> Result<Option<Vec<String>>, String> {
    match parsed.argument('o') {
        None => select::properties(DEFAULT_COLUMNS),
        Some("space") => select::properties(SPACE_COLUMNS),
        Some(text) => select::properties(text),
    }
}

fn sort_keys(parsed: &Parsed) -> Result<Vec<SortKey>, String> {
    let mut keys = Vec::new();
    for (letter, argument) in &parsed.options {
        if !matches!(letter, 's' | 'S') {
            continue;
        }
        let text = argument.as_deref().unwrap_or("");
        match select::properties(text).ok().flatten().as_deref() {
            Some([property]) => {
                keys.push(SortKey { property: property.clone(), reverse: *letter == 'S' });
            }
            _ => return Err(format!("invalid property '{text}'")),
        }
    }
    Ok(keys)
}

fn selection(client: &Client, parsed: &Parsed) -> Result<Selection, String> {
    let operands = parsed.operands.clone();
    let plain = vec![DatasetKind::Filesystem, DatasetKind::Volume];
    let mut named = [plain.clone(), vec![DatasetKind::Snapshot]].concat();
    let mut kinds = plain;
    let mut depth = select::depth(parsed, &operands)?;
    let mut with_snapshots = BTreeSet::new();
    if let Some(text) = parsed.argument('t') {
        kinds = select::kinds(text)?;
        let attached = [DatasetKind::Snapshot, DatasetKind::Bookmark];
        if let [only] = kinds.as_slice()
            && attached.contains(only)
            && !operands.is_empty()
            && !parsed.has('r')
            && !parsed.has('d')
        {
            // the snapshots or bookmarks of the dataset itself
            depth = Some(1);
        }
        named = kinds.clone();
        // What lies below a filesystem is looked for, whatever of it is shown.
        if depth != Some(0) {
            named.push(DatasetKind::Filesystem);
        }
        if kinds.iter().any(|kind| attached.contains(kind)) && depth != Some(0) {
            named.push(DatasetKind::Volume);
        }
    } else if parsed.argument('o') != Some("space") {
        with_snapshots = listing_snapshots(client, &operands);
    }
    Ok(Selection { operands, kinds, operand_kinds: named, depth, properties: None, with_snapshots })
}

/// The pools asked about that have `listsnapshots` on.
fn listing_snapshots(client: &Client, operands: &[String]) -> BTreeSet<String> {
    let pools = match operands {
        [] => client.pools(),
        named => named.iter().map(|name| names::pool_of(name).to_owned()).collect(),
    };
    // only a hint: a pool that hangs is complained of when it is asked for its datasets
    let reports = client.ask_all(&pools, HINT_WAIT, |client, pool| client.pool_report(pool));
    let is_on = |pool: &PoolReport| pool.properties.value("listsnapshots") == Some("on");
    let found = reports.into_iter().filter_map(|answer| answer.result.ok());
    found.filter(is_on).map(|pool| pool.name).collect()
}
