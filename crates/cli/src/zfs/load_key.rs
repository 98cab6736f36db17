//! `zfs load-key` and `zfs unload-key`.
//!
//! Invariant: a command goes into the history only if it went well.

use std::collections::BTreeSet;
use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::report::DatasetReport;
use cenote_control::terminal;

use crate::datasets::names;
use crate::getopt::{Parsed, Spec};
use crate::keys;
use crate::usage::Tool;
use crate::zpool::common::{change, history_line};

const LOAD: Spec = Spec { letters: "aL:nr", long: &[] };
const UNLOAD: Spec = Spec { letters: "ar", long: &[] };

/// Exit code when a key could not be loaded or unloaded.
const KEY_FAILURE: u8 = 255;

/// The one dataset named, or the complaint.
fn named(parsed: &Parsed, verb: &str) -> Result<Vec<String>, ExitCode> {
    let wrong = |message: &str| Err(Tool::Zfs.wrong(verb, message));
    match (parsed.has('a'), parsed.operands.as_slice()) {
        (true, []) => Ok(Vec::new()),
        (true, _) => wrong("Cannot specify dataset with -a option"),
        (false, []) => wrong("Missing dataset argument or -a option"),
        (false, [_]) => Ok(parsed.operands.clone()),
        (false, _) => wrong("Too many arguments"),
    }
}

/// Notes a command in the history of the pools it was about; only one that went well.
fn note(client: &Client, verb: &str, arguments: &[String], datasets: &[&DatasetReport]) {
    let pools: BTreeSet<&str> = datasets.iter().map(|one| names::pool_of(&one.name)).collect();
    for pool in pools {
        let line = history_line("zfs", verb, arguments);
        // pools that cannot be written keep no history
        drop(client.order(pool, &change(Some(line), Change::Log)));
    }
}

/// Runs `zfs load-key`.
pub fn load(arguments: &[String]) -> ExitCode {
    let parsed = match LOAD.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zfs.wrong("load-key", &error.message()),
    };
    let operands = match named(&parsed, "load-key") {
        Ok(operands) => operands,
        Err(code) => return code,
    };
    let location = parsed.argument('L');
    if location.is_some_and(|l| l != "prompt" && !l.contains("://")) {
        return Tool::Zfs.wrong("load-key", "Invalid keylocation");
    }
    let client = Client::default();
    let (many, check_only) = (parsed.has('a') || parsed.has('r'), parsed.has('n'));
    let found = keys::datasets(&client, &operands, many);
    if !many {
        let Some(dataset) = found.datasets.first() else {
            return ExitCode::FAILURE;
        };
        let result = keys::load(&client, dataset, location, check_only);
        if check_only {
            let done = u32::from(result.is_ok());
            terminal::out(&format!("{done} / 1 key(s) successfully verified\n"));
        }
        if result.is_ok() {
            note(&client, "load-key", arguments, &[dataset]);
        }
        return key_result(result);
    }
    let verb = if check_only { "verified" } else { "loaded" };
    let roots =
        found.datasets.iter().filter(|dataset| keys::is_root(dataset) && keys::is_locked(dataset));
    let roots: Vec<&DatasetReport> = roots.collect();
    let load = |root: &&&DatasetReport| keys::load(&client, root, location, check_only).is_ok();
    let (attempted, done) = (roots.len(), roots.iter().filter(load).count());
    if done == attempted && !found.failed {
        note(&client, "load-key", arguments, &roots);
    }
    if attempted > 0 || (check_only && !parsed.has('a')) {
        terminal::out(&format!("{done} / {attempted} key(s) successfully {verb}\n"));
    }
    if found.failed {
        ExitCode::FAILURE
    } else {
        key_result((done == attempted).then_some(()).ok_or(()))
    }
}

fn key_result(result: Result<(), ()>) -> ExitCode {
    ExitCode::from(if result.is_ok() { 0 } else { KEY_FAILURE })
}

/// Runs `zfs unload-key`.
pub fn unload(arguments: &[String]) -> ExitCode {
    let parsed = match UNLOAD.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zfs.wrong("unload-key", &error.message()),
    };
    let operands = match named(&parsed, "unload-key") {
        Ok(operands) => operands,
        Err(code) => return code,
    };
    let client = Client::default();
    let many = parsed.has('a') || parsed.has('r');
    let found = keys::datasets(&client, &operands, many);
    if !many {
        let Some(dataset) = found.datasets.first() else {
            return ExitCode::FAILURE;
        };
        let result = unload_named(&client, dataset);
        if result.is_ok() {
            note(&client, "unload-key", arguments, &[dataset]);
        }
        return key_result(result);
    }
    let roots =
        found.datasets.iter().filter(|dataset| keys::is_root(dataset) && !keys::is_locked(dataset));
    let roots: Vec<&DatasetReport> = roots.collect();
    let unload = |root: &&&DatasetReport| unload_named(&client, root).is_ok();
    let (attempted, done) = (roots.len(), roots.iter().filter(unload).count());
    if done == attempted && !found.failed {
        note(&client, "unload-key", arguments, &roots);
    }
    if attempted > 0 {
        terminal::out(&format!("{done} / {attempted} key(s) successfully unloaded\n"));
    }
    if found.failed {
        ExitCode::FAILURE
    } else {
        key_result((done == attempted).then_some(()).ok_or(()))
    }
}

fn unload_named(client: &Client, dataset: &DatasetReport) -> Result<(), ()> {
    let name = &dataset.name;
    let fail = |message: String| {
        terminal::complain(&format!("Key unload error: {message}"));
        Err(())
    };
    let root = keys::value(dataset, "encryptionroot");
    if root == "-" {
        return fail(format!("'{name}' is not encrypted."));
    }
    if !keys::is_root(dataset) {
        return fail(format!("Keys must be unloaded for encryption root of '{name}' ({root})."));
    }
    if keys::is_locked(dataset) {
        return fail(format!("Key already unloaded for '{name}'."));
    }
    match client.order(names::pool_of(name), &Change::UnloadKey(name.clone()).into()) {
        Ok(_) => Ok(()),
        Err(failure) => {
            terminal::complain(&failure.message);
            Err(())
        }
    }
}
