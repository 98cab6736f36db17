//! `zpool list`.
//!
//! Invariant: as in `super`.

use std::process::ExitCode;

use cenote_control::client::Client;
use cenote_control::json;
use cenote_control::properties::POOL;
use cenote_control::report::PoolReport;
use cenote_control::text::pool_list::{self, DEFAULT_COLUMNS, Options};

use super::common::{self, Repeat, Stamp};
use crate::getopt::Spec;
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec {
    letters: "gHjLo:pPT:v",
    long: &[("json", 'j', false), ("json-int", 'J', false), ("json-pool-key-guid", 'G', false)],
};

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("list", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let Some(stamp) = Stamp::of(&parsed) else {
        return wrong("");
    };
    let json = match common::json_options(Tool::Zpool, "list", &parsed) {
        Ok(json) => json,
        Err(code) => return code,
    };
    let mut operands = parsed.operands.clone();
    let repeat = match Repeat::take(&mut operands) {
        Ok(repeat) => repeat,
        Err(message) => return wrong(message),
    };
    let wanted = match common::property_list(parsed.argument('o').unwrap_or(DEFAULT_COLUMNS)) {
        Ok(wanted) => wanted,
        Err(message) => return wrong(&message),
    };
    let options = Options {
        naming: common::naming(&parsed),
        exact: parsed.has('p'),
        scripted: parsed.has('H'),
        verbose: parsed.has('v'),
    };
    let client = Client::default();
    let mut done = 0;
    loop {
        let asked = common::ask(&client, &operands);
        if asked.pools.is_empty() {
            if operands.is_empty() && !asked.failed && !options.scripted && json.is_none() {
                terminal::complain("no pools available");
            }
            return ExitCode::from(u8::from(asked.failed));
        }
        let columns = wanted.clone().unwrap_or_else(|| all_columns(&asked.pools));
        let mut text = String::new();
        if stamp != Stamp::None && json.is_none() {
            text.push_str(&stamp.line());
        }
        match &json {
            Some(json) => text.push_str(&json::pool::list(
                &asked.pools,
                &columns,
                options.verbose,
                options.naming,
                json,
            )),
            None if done == 0 => {
                text.push_str(&pool_list::render(&asked.pools, &columns, &options));
            }
            None => {
                let widths = pool_list::columns(&asked.pools, &columns, &options);
                text.push_str(&pool_list::rows(&asked.pools, &columns, &widths, &options));
            }
        }
        terminal::out(&text);
        done += 1;
        if !repeat.next(done) {
            // As in OpenZFS, other than in `status`: names of no pool do not count where there are others.
            return ExitCode::from(u8::from(asked.silent));
        }
    }
}

/// The columns of `-o all`: the name, every native property a pool has, its features.
fn all_columns(pools: &[PoolReport]) -> Vec<String> {
    let mut columns = vec!["name".to_owned()];
    let has = |name: &str| pools.iter().any(|pool| pool.properties.get(name).is_some());
    columns.extend(POOL.iter().filter(|info| has(info.name)).map(|info| info.name.to_owned()));
    for property in pools.iter().flat_map(|pool| &pool.properties.0) {
        if property.name.contains('@') && !columns.contains(&property.name) {
            columns.push(property.name.clone());
        }
    }
    columns
}
