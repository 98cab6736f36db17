//! `zpool wait`.
//!
//! Invariant: it returns when none of the activities waited for runs, or the pool is gone.

use std::process::ExitCode;
use std::time::Duration;

use cenote_control::client::Client;
use cenote_control::report::{ActivityState, PoolReport, ScanFunction, ScanState, VdevReport};

use super::common;
use crate::getopt::Spec;
use crate::terminal;
use crate::usage::Tool;

const SPEC: Spec = Spec { letters: "HpT:t:", long: &[] };
/// How often it is looked.
const INTERVAL: Duration = Duration::from_millis(500);
const ACTIVITIES: [&str; 9] = [
    "discard",
    "free",
    "initialize",
    "replace",
    "remove",
    "resilver",
    "scrub",
    "trim",
    "raidz_expand",
];

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("wait", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    if common::Stamp::of(&parsed).is_none() {
        return wrong("");
    }
    let mut wanted: Vec<&str> = Vec::new();
    for name in parsed.arguments('t').flat_map(|list| list.split(',')) {
        match ACTIVITIES.iter().find(|known| **known == name) {
            Some(known) => wanted.push(known),
            None => return wrong(&format!("invalid activity '{name}'")),
        }
    }
    if wanted.is_empty() {
        wanted = ACTIVITIES.to_vec();
    }
    let mut operands = parsed.operands.clone();
    let interval = match common::Repeat::take(&mut operands) {
        Ok(repeat) => repeat.interval,
        Err(message) => return wrong(message),
    };
    let name = match operands.as_slice() {
        [] => return wrong("missing 'pool' argument"),
        [name] => name,
        _ => return wrong("too many arguments"),
    };
    if interval.is_some() {
        terminal::complain("zpool wait with an interval is not supported yet");
        return ExitCode::FAILURE;
    }
    if let Some(problem) = common::name_problem(name) {
        terminal::complain(&format!("cannot open '{name}': {problem}"));
        return ExitCode::FAILURE;
    }
    until_over(&Client::default(), name, &wanted)
}

/// Waits until none of these activities goes on in the pool.
pub(super) fn until_over(client: &Client, name: &str, wanted: &[&str]) -> ExitCode {
    let mut before = false;
    loop {
        match client.pool_report(name) {
            Ok(report) if wanted.iter().any(|activity| runs(&report, activity)) => {}
            Ok(_) => return ExitCode::SUCCESS,
            // exported or destroyed while it was waited for
            Err(_) if before && !client.knows(name) => return ExitCode::SUCCESS,
            Err(failure) => {
                terminal::complain(&failure.message);
                return ExitCode::FAILURE;
            }
        }
        before = true;
        std::thread::sleep(INTERVAL);
    }
}

fn runs(pool: &PoolReport, activity: &str) -> bool {
    let scans = |function| {
        let scan = pool.scan.as_ref();
        scan.is_some_and(|scan| scan.function == function && scan.state == ScanState::Scanning)
    };
    let active = |one: &Option<cenote_control::report::Activity>| {
        one.as_ref().is_some_and(|one| one.state == ActivityState::Active)
    };
    match activity {
        "discard" => pool.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.discarding),
        "free" => pool.properties.number("freeing").is_some_and(|bytes| bytes != 0),
        "initialize" => any(&pool.root, &|vdev| active(&vdev.initialize)),
        "trim" => any(&pool.root, &|vdev| active(&vdev.trim)),
        "replace" => any(&pool.root, &|vdev| vdev.kind == "replacing"),
        "remove" => {
            pool.removal.as_ref().is_some_and(|removal| removal.state == ScanState::Scanning)
        }
        "resilver" => scans(ScanFunction::Resilver),
        "scrub" => scans(ScanFunction::Scrub) || scans(ScanFunction::ErrorScrub),
        "raidz_expand" => {
            pool.expansion.as_ref().is_some_and(|expansion| expansion.state == ScanState::Scanning)
        }
        _ => false,
    }
}

fn any(vdev: &VdevReport, is: &dyn Fn(&VdevReport) -> bool) -> bool {
    is(vdev) || vdev.children.iter().any(|child| any(child, is))
}
