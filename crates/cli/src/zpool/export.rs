//! `zpool export`.
//!
//! Invariant: a pool process that has died is cleared away, so that the pool can be imported again.

use std::process::ExitCode;

use cenote_control::client::Client;
use cenote_control::protocol::Request;

use super::common;
use crate::getopt::Spec;
use crate::leftovers;
use crate::terminal;
use crate::usage::Tool;

const SPEC: Spec = Spec { letters: "afF", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("export", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let client = Client::default();
    let names = if parsed.has('a') {
        if !parsed.operands.is_empty() {
            return wrong("too many arguments");
        }
        client.pools()
    } else if parsed.operands.is_empty() {
        return wrong("missing pool argument");
    } else {
        parsed.operands.clone()
    };
    let force = parsed.has('f') || parsed.has('F');
    let mut failed = false;
    for name in &names {
        if let Some(problem) = common::name_problem(name) {
            terminal::complain(&format!("cannot open '{name}': {problem}"));
            failed = true;
            continue;
        }
        match client.order(name, &Request::Export { force }) {
            Ok(warnings) => {
                warnings.iter().for_each(|line| terminal::complain(line));
                wait_for_end(&client, name);
            }
            Err(failure) => {
                if client.knows(name) && leftovers::clear(&client, name) {
                    let message = format!("the process of '{name}' had died; cleared what it left");
                    terminal::complain(&message);
                } else {
                    terminal::complain(&failure.message);
                    failed = true;
                }
            }
        }
    }
    ExitCode::from(u8::from(failed))
}

/// Waits until the process has given its socket up, so that the next command sees no pool.
pub fn wait_for_end(client: &Client, pool: &str) {
    for _ in 0..200 {
        if !client.knows(pool) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
