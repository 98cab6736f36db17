//! `zfs get`.
//!
//! Invariant: as in `super`.

use std::process::ExitCode;

use cenote_control::client::Client;
use cenote_control::json;
use cenote_control::report::DatasetKind;
use cenote_control::text::dataset_get::{self, Sources};
use cenote_control::text::pool_get::Field;
use cenote_control::text::sort;

use crate::datasets::select::{self, Selection};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use crate::zpool::common::json_options;
use cenote_control::terminal;

const SPEC: Spec =
    Spec { letters: "jd:o:s:rt:Hp", long: &[("json", 'j', false), ("json-int", 'J', false)] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("get", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let json = match json_options(Tool::Zfs, "get", &parsed) {
        Ok(json) => json,
        Err(code) => return code,
    };
    let fields = match Field::list(parsed.argument('o')) {
        Ok(fields) => fields,
        Err(message) => return wrong(&message),
    };
    let sources = match sources(&parsed) {
        Ok(sources) => sources,
        Err(message) => return wrong(&message),
    };
    let Some((properties, operands)) = parsed.operands.split_first() else {
        return wrong("missing property argument");
    };
    let wanted = match select::properties(properties) {
        Ok(wanted) => wanted,
        Err(message) => return wrong(&message),
    };
    let mut selection = match selection(&parsed, operands) {
        Ok(selection) => selection,
        Err(message) => return wrong(&message),
    };
    selection.properties = wanted.clone();
    let client = Client::default();
    let mut found = select::select(&client, &selection);
    found.datasets.sort_by(sort::by_name);
    let (exact, scripted) = (parsed.has('p'), parsed.has('H'));
    if let Some(options) = &json {
        if !(found.failed && found.datasets.is_empty()) {
            let wanted = wanted.as_deref();
            terminal::out(&json::dataset::get(&found.datasets, wanted, sources, options));
        }
    } else {
        let datasets = &found.datasets;
        let wanted = wanted.as_deref();
        let text = dataset_get::render(datasets, wanted, &fields, sources, exact, scripted);
        terminal::out(&text);
    }
    ExitCode::from(u8::from(found.failed))
}

fn sources(parsed: &Parsed) -> Result<Sources, String> {
    let Some(text) = parsed.argument('s') else {
        return Ok(Sources::ALL);
    };
    let mut sources = Sources::NOTHING;
    for name in text.split(',') {
        if !sources.allow(name) {
            return Err(format!("invalid source '{name}'"));
        }
    }
    Ok(sources)
}

fn selection(parsed: &Parsed, operands: &[String]) -> Result<Selection, String> {
    let mut kinds = select::ALL.to_vec();
    let mut named = kinds.clone();
    let mut depth = select::depth(parsed, operands)?;
    if let Some(text) = parsed.argument('t') {
        kinds = select::kinds(text)?;
        let attached = [DatasetKind::Snapshot, DatasetKind::Bookmark];
        if let [only] = kinds.as_slice()
            && attached.contains(only)
            && !operands.is_empty()
            && depth == Some(0)
            && !parsed.has('d')
        {
            depth = Some(1);
        }
        if depth == Some(0) {
            named = kinds.clone();
        }
    }
    let operands = operands.to_vec();
    Ok(Selection {
        operands,
        kinds,
        operand_kinds: named,
        depth,
        properties: None,
        ..Selection::default()
    })
}
