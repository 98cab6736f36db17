//! `zpool history`.
//!
//! Invariant: as in `super`.

use std::process::ExitCode;
use std::time::Duration;

use cenote_control::client::Client;
use cenote_control::protocol::LOOK_DEADLINE;
use cenote_control::text::pool_history;

use super::common;
use crate::getopt::Spec;
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "il", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zpool.wrong("history", &error.message()),
    };
    let client = Client::default();
    let mut failed = false;
    let mut names = Vec::new();
    for name in &parsed.operands {
        match common::name_problem(name) {
            None => names.push(name.clone()),
            Some(problem) => {
                terminal::complain(&format!("cannot open '{name}': {problem}"));
                failed = true;
            }
        }
    }
    if parsed.operands.is_empty() {
        names = client.pools();
        if names.is_empty() {
            terminal::complain("no pools available");
        }
    }
    let wait = LOOK_DEADLINE + Duration::from_millis(500);
    for answer in client.ask_all(&names, wait, |client, pool| client.history(pool)) {
        match answer.result {
            Ok(records) => terminal::out(&pool_history::render(
                &answer.pool,
                &records,
                parsed.has('i'),
                parsed.has('l'),
            )),
            Err(failure) => {
                terminal::complain(&failure.message);
                failed = true;
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
