//! `zpool iostat`.
//!
//! Invariant: the first round shows rates since the pools were opened, later ones since the round
//! before; `-y` leaves the first out.

use std::process::ExitCode;
use std::time::Duration;

use cenote_control::client::Client;
use cenote_control::report::PoolReport;
use cenote_control::text::pool_iostat::{self, Options};

use super::common::{self, Repeat, Stamp};
use crate::getopt::Spec;
use crate::terminal;
use crate::usage::Tool;

const SPEC: Spec = Spec { letters: "c:gLPT:vyhplqrwnH", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("iostat", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let Some(stamp) = Stamp::of(&parsed) else {
        return wrong("");
    };
    for letter in ['c', 'l', 'q', 'r', 'w'] {
        if parsed.has(letter) {
            terminal::complain(&format!("zpool iostat -{letter} is not supported yet"));
            return ExitCode::FAILURE;
        }
    }
    let mut operands = parsed.operands.clone();
    let repeat = match Repeat::take(&mut operands) {
        Ok(repeat) => repeat,
        Err(message) => return wrong(message),
    };
    let options = Options {
        naming: common::naming(&parsed),
        exact: parsed.has('p'),
        scripted: parsed.has('H'),
        verbose: parsed.has('v'),
    };
    let client = Client::default();
    if let Some(code) = unresolved(&client, &operands) {
        return code;
    }
    let mut before: Vec<PoolReport> = Vec::new();
    if parsed.has('y') {
        before = common::ask(&client, &operands).pools;
        std::thread::sleep(repeat.interval.unwrap_or(Duration::from_secs(1)));
    }
    let mut done = 0;
    loop {
        let asked = common::ask(&client, &operands);
        if asked.pools.is_empty() {
            if !asked.failed {
                terminal::complain("no pools available");
            }
            return ExitCode::FAILURE;
        }
        let width = pool_iostat::name_width(&asked.pools, &options);
        let mut text = stamp.line();
        if !options.scripted && (done == 0 || options.verbose) && !(done > 0 && parsed.has('n')) {
            text.push_str(&pool_iostat::headings(width, &options));
        }
        for pool in &asked.pools {
            let earlier = before.iter().find(|earlier| earlier.guid == pool.guid);
            text.push_str(&pool_iostat::rows(pool, earlier, width, &options));
            if options.verbose && !options.scripted {
                text.push_str(&pool_iostat::rule(width, &options));
            }
        }
        if asked.pools.len() > 1 && !options.verbose && !options.scripted {
            text.push_str(&pool_iostat::rule(width, &options));
        }
        terminal::out(&text);
        before = asked.pools;
        done += 1;
        if !repeat.next(done) {
            return ExitCode::from(u8::from(asked.failed));
        }
    }
}

/// What to do if an operand is not a pool: devices cannot be picked yet.
fn unresolved(client: &Client, operands: &[String]) -> Option<ExitCode> {
    let [first, others @ ..] = operands else {
        return None;
    };
    let unknown: Vec<_> = operands.iter().filter(|name| !client.knows(name)).collect();
    if unknown.is_empty() {
        return None;
    }
    if !client.knows(first) || others.is_empty() {
        terminal::complain("Unable to parse pools/vdevs list.\n");
        return Some(ExitCode::FAILURE);
    }
    let devices = match client.pool_report(first) {
        Ok(report) => names_of(&report),
        Err(_) => Vec::new(),
    };
    if others.iter().all(|name| devices.contains(name)) {
        terminal::complain("zpool iostat of single devices is not supported yet");
        return Some(ExitCode::FAILURE);
    }
    let mut message =
        format!("Expected either a list of pools, or list of vdevs in \"{first}\", but got:\n");
    for name in unknown {
        message.push_str(&format!("\t{name} (unknown)\n"));
    }
    Some(Tool::Zpool.wrong("iostat", &message))
}

/// Every way the devices of a pool are called.
fn names_of(pool: &PoolReport) -> Vec<String> {
    use cenote_control::report::VdevReport;
    use cenote_control::text::vdev_name::{Naming, name};
    fn add(vdev: &VdevReport, names: &mut Vec<String>) {
        names.push(name(vdev, Naming::default()));
        names.push(vdev.guid.to_string());
        names.extend(vdev.path.clone());
        vdev.children.iter().for_each(|child| add(child, names));
    }
    let mut names = Vec::new();
    pool.root.children.iter().chain(&pool.caches).for_each(|vdev| add(vdev, &mut names));
    names
}
