//! `zpool status`.
//!
//! Invariant: `-x` calls pools healthy only if every one of them answered and is.

use std::process::ExitCode;

use cenote_control::client::Client;
use cenote_control::json;
use cenote_control::remarks;
use cenote_control::report::PoolReport;
use cenote_control::text::pool_status::{self, Options};

use super::common::{self, Asked, Repeat, Stamp};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec {
    letters: "c:jdDegiLpPstT:vx",
    long: &[
        ("power", 'W', false),
        ("json", 'j', false),
        ("json-int", 'J', false),
        ("json-flat-vdevs", 'F', false),
        ("json-pool-key-guid", 'G', false),
    ],
};

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("status", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let Some(stamp) = Stamp::of(&parsed) else {
        return wrong("");
    };
    for (letter, option) in [('c', "-c"), ('W', "--power"), ('d', "-d")] {
        if parsed.has(letter) {
            terminal::complain(&format!("zpool status {option} is not supported yet"));
            return ExitCode::FAILURE;
        }
    }
    let json = match common::json_options(Tool::Zpool, "status", &parsed) {
        Ok(json) => json,
        Err(code) => return code,
    };
    let mut operands = parsed.operands.clone();
    let repeat = match Repeat::take(&mut operands) {
        Ok(repeat) => repeat,
        Err(message) => return wrong(message),
    };
    let client = Client::default();
    let mut done = 0;
    loop {
        let mut asked = common::ask(&client, &operands);
        asked.pools.iter_mut().for_each(remarks::add);
        let options = options(&parsed);
        let mut text = stamp.line();
        text.push_str(&match &json {
            Some(_) if asked.failed && asked.pools.is_empty() => String::new(),
            Some(json) => json::pool::status(&chosen(&asked, &parsed), &options, json),
            None => describe(&asked, &operands, &parsed, &options),
        });
        terminal::out(&text);
        done += 1;
        if !repeat.next(done) {
            return ExitCode::from(u8::from(asked.failed));
        }
    }
}

fn options(parsed: &Parsed) -> Options {
    Options {
        naming: common::naming(parsed),
        exact: parsed.has('p'),
        slow: parsed.has('s'),
        initialize: parsed.has('i'),
        trim: parsed.has('t'),
        dedup: parsed.has('D'),
        verbose: parsed.has('v'),
        unhealthy_only: parsed.has('e'),
        now: common::now(),
    }
}

/// The pools to show: with `-x` only those that something is wrong with.
fn chosen(asked: &Asked, parsed: &Parsed) -> Vec<PoolReport> {
    let mut pools = asked.pools.clone();
    if parsed.has('x') {
        pools.retain(|pool| !pool_status::is_fine(pool));
    }
    pools
}

/// The pools as text.
fn describe(asked: &Asked, operands: &[String], parsed: &Parsed, options: &Options) -> String {
    let pools = chosen(asked, parsed);
    let mut text = String::new();
    if parsed.has('x') && !operands.is_empty() {
        for pool in asked.pools.iter().filter(|pool| pool_status::is_fine(pool)) {
            text.push_str(&format!("pool '{}' is healthy\n", pool.name));
        }
    }
    let reports: Vec<String> =
        pools.iter().map(|pool| pool_status::render(pool, options)).collect();
    text.push_str(&reports.join("\n"));
    if operands.is_empty() && !asked.failed && pools.is_empty() {
        if asked.pools.is_empty() {
            terminal::complain("no pools available");
        } else {
            text.push_str("all pools are healthy\n");
        }
    }
    text
}
