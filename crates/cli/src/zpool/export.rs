//! `zpool export`.
//!
//! Invariant: a pool process that has died is cleared away, so that the pool can be imported again.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;

use super::common;
use crate::getopt::Spec;
use crate::leftovers;
use crate::usage::Tool;
use cenote_control::terminal;

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
    let line = common::history_line("zpool", "export", arguments);
    let mut failed = false;
    for name in &names {
        if let Some(problem) = common::name_problem(name) {
            terminal::complain(&format!("cannot open '{name}': {problem}"));
            failed = true;
            continue;
        }
        let process = client.process(name);
        match client.order(name, &common::change(Some(line.clone()), Change::Export { force })) {
            Ok(warnings) => {
                warnings.iter().for_each(|line| terminal::complain(line));
                wait_for_end(&client, name, process);
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

/// Waits until the process has given its socket up, so that the next command sees no pool, and has
/// ended, so that its devices are free.
pub fn wait_for_end(client: &Client, pool: &str, process: Option<u32>) {
    for _ in 0..500 {
        if !client.knows(pool) && !process.is_some_and(runs) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Whether a process still holds what it opened; one that only waits to be buried does not.
fn runs(process: u32) -> bool {
    let facts = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = facts.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
