//! `zpool destroy`, `sync`, `reopen`, `reguid`, `checkpoint`, `clear`.
//!
//! Invariant: as in `super`.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::protocol::Request;

use super::{common, export, wait};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use cenote_control::terminal;

fn code(well: bool) -> ExitCode {
    ExitCode::from(u8::from(!well))
}

fn parse(command: &str, letters: &'static str, arguments: &[String]) -> Result<Parsed, ExitCode> {
    let spec = Spec { letters, long: &[] };
    spec.parse(arguments).map_err(|error| Tool::Zpool.wrong(command, &error.message()))
}

/// Runs `zpool destroy`.
pub fn destroy(arguments: &[String]) -> ExitCode {
    let parsed = match parse("destroy", "f", arguments) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    let name = match parsed.operands.as_slice() {
        [] => return Tool::Zpool.wrong("destroy", "missing pool argument"),
        [name] => name,
        _ => return Tool::Zpool.wrong("destroy", "too many arguments"),
    };
    let client = Client::default();
    let line = common::history_line("zpool", "destroy", arguments);
    let change = Change::DestroyPool { force: parsed.has('f') };
    let process = client.process(name);
    // Gone is gone, even if its devices were away and could not be told.
    let well = common::carried_out(&client, name, &common::change(Some(line), change)).is_some();
    if well {
        export::wait_for_end(&client, name, process);
    }
    code(well)
}

/// Runs `zpool sync`.
pub fn sync(arguments: &[String]) -> ExitCode {
    let parsed = match parse("sync", "f", arguments) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    code(in_each(&parsed, &common::change(None, Change::Sync)))
}

/// Runs `zpool reopen`. What is being resilvered goes on in any case, as with `-n`.
pub fn reopen(arguments: &[String]) -> ExitCode {
    let parsed = match parse("reopen", "n", arguments) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    let line = common::history_line("zpool", "reopen", arguments);
    code(in_each(&parsed, &common::change(Some(line), Change::Reopen)))
}

/// Gives an order in the pools that are named, or in all; whether all have done it.
fn in_each(parsed: &Parsed, change: &Request) -> bool {
    let client = Client::default();
    let names = match parsed.operands.as_slice() {
        [] => client.pools(),
        names => names.to_vec(),
    };
    let mut well = true;
    for name in names {
        well &= common::order(&client, &name, change);
    }
    well
}

/// Runs `zpool clear`.
pub fn clear(arguments: &[String]) -> ExitCode {
    let spec = Spec { letters: "nFX", long: &[] };
    let parsed = match spec.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zpool.wrong("clear", &error.message()),
    };
    let (name, device) = match parsed.operands.as_slice() {
        [] => return Tool::Zpool.wrong("clear", "missing pool name"),
        [name] => (name, None),
        [name, device] => (name, Some(device.clone())),
        _ => return Tool::Zpool.wrong("clear", "too many arguments"),
    };
    if parsed.has('n') || parsed.has('F') || parsed.has('X') {
        terminal::complain("zpool clear -F is for pools that do not open: use zpool import -F");
        return ExitCode::FAILURE;
    }
    let line = common::history_line("zpool", "clear", arguments);
    let request = common::change(Some(line), Change::Clear(device));
    code(common::order(&Client::default(), name, &request))
}

/// Runs `zpool reguid`.
pub fn reguid(arguments: &[String]) -> ExitCode {
    let parsed = match parse("reguid", "g:", arguments) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    let name = match parsed.operands.as_slice() {
        [] => return Tool::Zpool.wrong("reguid", "missing pool name"),
        [name] => name,
        _ => return Tool::Zpool.wrong("reguid", "too many arguments"),
    };
    let guid = match parsed.argument('g').map(str::parse::<u64>) {
        None => None,
        Some(Ok(guid)) => Some(guid),
        Some(Err(_)) => {
            let text = parsed.argument('g').unwrap_or_default();
            return Tool::Zpool.wrong("reguid", &format!("invalid GUID: {text}"));
        }
    };
    let client = Client::default();
    let others = || common::ask(&client, &[]).pools;
    if let Some(wanted) = guid.filter(|guid| *guid != 0)
        && others().iter().any(|pool| pool.guid == wanted)
    {
        terminal::complain(&format!("cannot reguid '{name}': pool already exists"));
        return ExitCode::FAILURE;
    }
    let line = common::history_line("zpool", "reguid", arguments);
    let request = common::change(Some(line), Change::Reguid(guid.filter(|guid| *guid != 0)));
    code(common::order(&client, name, &request))
}

/// Runs `zpool checkpoint`.
pub fn checkpoint(arguments: &[String]) -> ExitCode {
    let spec = Spec { letters: "dw", long: &[("discard", 'd', false), ("wait", 'w', false)] };
    let parsed = match spec.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zpool.wrong("checkpoint", &error.message()),
    };
    let (discard, wait) = (parsed.has('d'), parsed.has('w'));
    if wait && !discard {
        return Tool::Zpool.wrong("checkpoint", "--wait only valid when used with --discard");
    }
    let name = match parsed.operands.as_slice() {
        [] => return Tool::Zpool.wrong("checkpoint", "missing pool argument"),
        [name] => name,
        _ => return Tool::Zpool.wrong("checkpoint", "too many arguments"),
    };
    let client = Client::default();
    let line = common::history_line("zpool", "checkpoint", arguments);
    let change = common::change(Some(line), Change::Checkpoint { discard });
    if !common::order(&client, name, &change) {
        return ExitCode::FAILURE;
    }
    if wait { wait::until_over(&client, name, &["discard"]) } else { ExitCode::SUCCESS }
}
