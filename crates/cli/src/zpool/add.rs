//! `zpool add`.
//!
//! Invariant: nothing is added before every device was checked.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;

use super::vdevs::{devices, grammar, layout, replication};
use super::{common, create};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec {
    letters: "fgLno:P",
    long: &[
        ("allow-in-use", 'U', false),
        ("allow-replication-mismatch", 'M', false),
        ("allow-ashift-mismatch", 'A', false),
    ],
};

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("add", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let ashift = match create::only_ashift(&parsed) {
        Ok(ashift) => ashift,
        Err(None) => return wrong(""),
        Err(Some(message)) => {
            terminal::complain(&message);
            return ExitCode::FAILURE;
        }
    };
    let (name, words) = match parsed.operands.split_first() {
        None => return wrong("missing pool name argument"),
        Some((_, [])) => return wrong("missing vdev specification"),
        Some((name, words)) => (name, words),
    };
    let line = common::history_line("zpool", "add", arguments);
    match add(&parsed, ashift, name, words, line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            terminal::complain(&message);
            ExitCode::FAILURE
        }
    }
}

fn add(
    parsed: &Parsed,
    ashift: Option<u8>,
    name: &str,
    words: &[String],
    line: String,
) -> Result<(), String> {
    let client = Client::default();
    if let Some(problem) = common::name_problem(name) {
        return Err(format!("cannot open '{name}': {problem}"));
    }
    let pool = client.pool_report(name).map_err(|failure| failure.message)?;
    let mut plan = grammar::parse(words, &mut |word| devices::resolve(word))?;
    let force = parsed.has('f');
    let mut problems = create::checked(&plan, force || parsed.has('U'))?;
    if problems.is_empty() && !(force || parsed.has('M')) {
        match (replication::of_plan(&plan), replication::of_pool(&pool.root)) {
            (Err(words), _) => problems.push(words),
            (Ok(Some(new)), Some(old)) => {
                problems.extend(replication::fits(&old, &new).err());
            }
            _ => {}
        }
    }
    create::refuse(&problems, force)?;
    if parsed.has('n') {
        let naming = common::naming(parsed);
        let text = layout::updated(name, &pool.root, &pool.caches, &pool.spares, &plan, naming);
        terminal::out(&text);
        return Ok(());
    }
    create::refuse_small(name, &plan)
        .map_err(|message| message.replacen("cannot create", "cannot add to", 1))?;
    let of_pool = || pool.properties.number("ashift").and_then(|shift| u8::try_from(shift).ok());
    let ashift = ashift.or_else(|| of_pool().filter(|shift| *shift != 0));
    plan.iter_mut().for_each(|vdev| vdev.ashift = ashift);
    if pool.properties.number("readonly") == Some(1) {
        return Err(format!("cannot add to '{name}': pool is read-only"));
    }
    let request = common::change(Some(line), Change::AddVdevs(plan));
    let warnings = client.order(name, &request).map_err(|failure| failure.message)?;
    if warnings.is_empty() { Ok(()) } else { Err(warnings.join("\n")) }
}
