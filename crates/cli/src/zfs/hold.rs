//! `zfs hold`, `zfs release` and `zfs holds`.
//!
//! Invariant: operands are dealt with one by one, and one that is refused keeps none from the next.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::report::DatasetKind;
use cenote_control::text::table::{self, Column};
use cenote_control::text::time;

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::Spec;
use crate::usage::Tool;
use crate::zpool::common::history_line;
use cenote_control::terminal;

const CHANGE: Spec = Spec { letters: "rt", long: &[] };
const LIST: Spec = Spec { letters: "rHp", long: &[] };
/// Longest name of a hold in bytes.
const TAG_MAX: usize = 255;

/// Runs `zfs hold`.
pub fn hold(arguments: &[String]) -> ExitCode {
    change("hold", arguments)
}

/// Runs `zfs release`.
pub fn release(arguments: &[String]) -> ExitCode {
    change("release", arguments)
}

/// The snapshot `name` and, with `recursive`, those of that name of everything below.
fn snapshots(client: &Client, name: &str, recursive: bool) -> Result<Vec<String>, String> {
    let Some((of, snapshot)) = name.split_once('@') else {
        return Err(format!("'{name}' is not a snapshot"));
    };
    if !recursive {
        let kinds = [DatasetKind::Snapshot];
        return common::open(client, name, &kinds, Some(0), &["type"]).map(|_| vec![name.into()]);
    }
    let all = common::open(client, of, &common::DATASETS, None, &["type"])?;
    let own = all.iter().filter(|dataset| dataset.kind == DatasetKind::Snapshot);
    let own = own
        .filter(|dataset| dataset.name.split_once('@').is_some_and(|(_, name)| name == snapshot));
    let found: Vec<String> = own.map(|dataset| dataset.name.clone()).collect();
    match found.is_empty() {
        true => Err(format!("cannot open '{name}': dataset does not exist")),
        false => Ok(found),
    }
}

fn change(command: &str, arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong(command, message);
    let parsed = match CHANGE.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let (tag, operands) = match parsed.operands.split_first() {
        Some((tag, operands)) if !operands.is_empty() => (tag, operands),
        _ => return wrong(""),
    };
    if tag.starts_with('.') {
        return wrong("tag may not start with '.'");
    }
    let client = Client::default();
    let mut well = true;
    let line = history_line("zfs", command, arguments);
    // A pool whose history has the line.
    let mut noted: Option<&str> = None;
    for operand in operands {
        let snapshots = match snapshots(&client, operand, parsed.has('r')) {
            Ok(snapshots) => snapshots,
            Err(message) => {
                terminal::complain(&message);
                well = false;
                continue;
            }
        };
        if tag.len() > TAG_MAX {
            return fail(&format!("cannot hold snapshot '{}': tag too long", snapshots.join(" ")));
        }
        let (pool, tag) = (names::pool_of(operand), tag.clone());
        let change = match command {
            "hold" => Change::Hold { snapshots, tag },
            _ => Change::Release { snapshots, tag },
        };
        let line = (noted != Some(pool)).then(|| line.clone());
        match common::change(&client, pool, line, change) {
            true => noted = Some(pool),
            false => well = false,
        }
    }
    common::code(well)
}

/// Runs `zfs holds`.
pub fn holds(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("holds", message);
    let parsed = match LIST.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    if parsed.operands.is_empty() {
        return wrong("");
    }
    let client = Client::default();
    let mut well = true;
    let mut rows: Vec<(String, String, u64)> = Vec::new();
    let mut longest = 0;
    for operand in &parsed.operands {
        let names = match snapshots(&client, operand, parsed.has('r')) {
            Ok(names) => names,
            Err(message) => {
                terminal::complain(&message);
                well = false;
                continue;
            }
        };
        for name in names {
            longest = name.len().max(longest);
            match client.holds(names::pool_of(&name), &name) {
                Ok(holds) => {
                    // A snapshot is shown once, however often it is named.
                    rows.retain(|(shown, ..)| *shown != name);
                    rows.extend(holds.into_iter().map(|(tag, since)| (name.clone(), tag, since)));
                }
                Err(failure) => {
                    terminal::complain(&failure.message);
                    well = false;
                }
            }
        }
    }
    if longest == 0 {
        terminal::complain("no datasets available");
    }
    let since = |seconds: u64| match parsed.has('p') {
        true => seconds.to_string(),
        false => time::creation(i64::try_from(seconds).unwrap_or(i64::MAX)),
    };
    if parsed.has('H') {
        let line =
            |(name, tag, at): &(String, String, u64)| format!("{name}\t{tag}\t{}\n", since(*at));
        terminal::out(&rows.iter().map(line).collect::<String>());
    } else {
        let width = |heading: &str, longest: usize| Column {
            heading: heading.to_owned(),
            width: longest,
            right: false,
        };
        let columns = [
            width("NAME", longest),
            width("TAG", rows.iter().map(|row| row.1.len()).max().unwrap_or(0)),
            width("TIMESTAMP", 0),
        ];
        let mut text = table::headings(&columns);
        for (name, tag, at) in &rows {
            text.push_str(&table::line(&columns, &[name, tag, &since(*at)]));
        }
        terminal::out(&text);
    }
    common::code(well)
}
