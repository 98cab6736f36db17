//! `zpool history`.
//!
//! Invariant: as in `super`.

use std::process::ExitCode;

use cenote_control::client::{Client, History};
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
    let mut begun = None;
    let (internal, long) = (parsed.has('i'), parsed.has('l'));
    client.histories(&names, |pool, came| {
        // a pool that tells nothing has no heading
        if begun.as_deref() != Some(pool) && !matches!(came, History::End(Err(_))) {
            terminal::out(&pool_history::heading(pool));
            begun = Some(pool.to_owned());
        }
        match came {
            History::Some(records) => {
                let lines = records.iter().map(|one| pool_history::record(one, internal, long));
                terminal::out(&lines.collect::<String>());
            }
            History::End(Ok(())) => terminal::out("\n"),
            History::End(Err(failure)) => {
                terminal::complain(&failure.message);
                failed = true;
            }
        }
    });
    ExitCode::from(u8::from(failed))
}
