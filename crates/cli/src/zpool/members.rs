//! `zpool attach`, `replace`, `detach`, `offline`, `online`.
//!
//! Invariant: nothing is changed before the new device was checked; each device named is taken offline or
//! online, or refused, on its own.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::look::{self, Look, Uses};
use cenote_control::plan::VdevPlan;
use cenote_control::report::{PoolReport, VdevReport};
use cenote_control::terminal;
use cenote_control::text::vdev_name;

use super::vdevs::{devices, grammar};
use super::{common, create, wait};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;

/// What attach and replace end with if they fail, as in OpenZFS.
const REFUSED: u8 = 255;

/// Runs `zpool attach`.
pub fn attach(arguments: &[String]) -> ExitCode {
    take_in("attach", arguments)
}

/// Runs `zpool replace`.
pub fn replace(arguments: &[String]) -> ExitCode {
    take_in("replace", arguments)
}

fn take_in(command: &str, arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong(command, message);
    let parsed = match (Spec { letters: "fswo:", long: &[] }).parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let ashift = match create::only_ashift(&parsed) {
        Ok(ashift) => ashift,
        Err(None) => return wrong(""),
        Err(Some(message)) => return refuse(&message),
    };
    let replaces = command == "replace";
    let (pool, old, new) = match parsed.operands.as_slice() {
        [] => return wrong("missing pool name argument"),
        [_] => return wrong("missing <device> specification"),
        [pool, old] if replaces => (pool, old, None),
        [_, _] => return wrong("missing <new_device> specification"),
        [pool, old, new] => (pool, old, Some(new.as_str())),
        _ => return wrong("too many arguments"),
    };
    let client = Client::default();
    let line = common::history_line("zpool", command, arguments);
    let device = match new_device(&client, (&parsed, replaces), (pool, old, new)) {
        Ok(device) => VdevPlan { ashift, ..device },
        Err(message) => return refuse(&message),
    };
    let sequential = parsed.has('s');
    let change = match replaces {
        true => Change::ReplaceVdev { old: old.clone(), device, sequential },
        false => Change::AttachVdev { beside: old.clone(), device, sequential },
    };
    if !common::order(&client, pool, &common::change(Some(line), change)) {
        return ExitCode::from(REFUSED);
    }
    match (parsed.has('w'), replaces) {
        (false, _) => ExitCode::SUCCESS,
        (true, true) => wait::until_over(&client, pool, &["replace"]),
        (true, false) if old.starts_with("raidz") => {
            wait::until_over(&client, pool, &["raidz_expand"])
        }
        (true, false) => wait::until_over(&client, pool, &["resilver"]),
    }
}

fn refuse(message: &str) -> ExitCode {
    terminal::complain(message);
    ExitCode::FAILURE
}

/// The device that comes in, checked; without `new`, what is at the place of `old`.
fn new_device(
    client: &Client,
    (parsed, replaces): (&Parsed, bool),
    (pool, old, new): (&str, &str, Option<&str>),
) -> Result<VdevPlan, String> {
    if let Some(problem) = common::name_problem(pool) {
        return Err(format!("cannot open '{pool}': {problem}"));
    }
    let report = client.pool_report(pool).map_err(|failure| failure.message)?;
    let there = find(&report, old);
    let place = match new {
        Some(new) => new.to_owned(),
        None => there
            .and_then(|node| node.path.clone())
            .ok_or_else(|| format!("cannot replace {old} with {old}: no such device in pool"))?,
    };
    // A distributed spare is no device of its own.
    if report.spares.iter().any(|spare| spare.kind == "dspare" && spare.name == place) {
        return Ok(VdevPlan { path: Some(place), ..VdevPlan::default() });
    }
    let words = [place];
    let plan = grammar::parse(&words, &mut |word| devices::resolve(word))?;
    let [device] = plan.as_slice() else {
        return Err("new device must be a single disk".to_owned());
    };
    // A spare of the pool is in use by that, and may step in.
    if report.spares.iter().any(|spare| spare.path == device.path) {
        return Ok(device.clone());
    }
    let force = parsed.has('f');
    let mut uses: Uses = look::ask(&Look::Uses(plan.clone()))?;
    // A member that was overwritten is open in the pool, which decides whether it can do without.
    let path = device.path.as_deref().unwrap_or_default();
    if replaces && there.is_some_and(|node| vdev_name::answers_to(node, path)) {
        uses.open.clear();
    }
    create::refuse(&uses.left(force), force)?;
    Ok(device.clone())
}

fn find<'a>(report: &'a PoolReport, device: &str) -> Option<&'a VdevReport> {
    fn below<'a>(node: &'a VdevReport, device: &str) -> Option<&'a VdevReport> {
        if vdev_name::answers_to(node, device) && vdev_name::is_shown(node) {
            return Some(node);
        }
        node.children.iter().find_map(|child| below(child, device))
    }
    below(&report.root, device)
}

/// Runs `zpool detach`.
pub fn detach(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("detach", message);
    let parsed = match (Spec { letters: "", long: &[] }).parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let (pool, device) = match parsed.operands.as_slice() {
        [] => return wrong("missing pool name argument"),
        [_] => return wrong("missing <device> specification"),
        [pool, device] => (pool, device),
        _ => return wrong("too many arguments"),
    };
    let line = common::history_line("zpool", "detach", arguments);
    let request = common::change(Some(line), Change::DetachVdev(device.clone()));
    match common::order(&Client::default(), pool, &request) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(REFUSED),
    }
}

/// Runs `zpool offline`.
pub fn offline(arguments: &[String]) -> ExitCode {
    let spec = Spec { letters: "ft", long: &[("power", 'P', false)] };
    each("offline", &spec, arguments, &|parsed, device| {
        let (temporary, faulty) = (parsed.has('t'), parsed.has('f'));
        Change::OfflineVdev { device, temporary, faulty }
    })
}

/// Runs `zpool online`.
pub fn online(arguments: &[String]) -> ExitCode {
    let spec = Spec { letters: "e", long: &[("power", 'P', false)] };
    each("online", &spec, arguments, &|parsed, device| Change::OnlineVdev {
        device,
        expand: parsed.has('e'),
    })
}

/// Gives an order for each device named.
fn each(
    command: &str,
    spec: &Spec,
    arguments: &[String],
    order: &dyn Fn(&Parsed, String) -> Change,
) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong(command, message);
    let parsed = match spec.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    for (letter, other) in [('f', 'P'), ('t', 'P')] {
        if parsed.has(letter) && parsed.has(other) {
            return wrong(&format!("-0 and -{letter} cannot be used together"));
        }
    }
    let (pool, names) = match parsed.operands.split_first() {
        None => return wrong("missing pool name"),
        Some((_, [])) => return wrong("missing device name"),
        Some((pool, names)) => (pool, names),
    };
    if parsed.has('P') {
        return refuse("Power control not supported");
    }
    if let Some(problem) = common::name_problem(pool) {
        return refuse(&format!("cannot open '{pool}': {problem}"));
    }
    let client = Client::default();
    let mut line = Some(common::history_line("zpool", command, arguments));
    let mut well = true;
    for name in names {
        let request = common::change(line.take(), order(&parsed, name.clone()));
        match client.order(pool, &request) {
            Ok(warnings) => {
                well &= !warnings.iter().any(|words| words.starts_with("error: "));
                warnings.iter().for_each(|words| terminal::out(&format!("{words}\n")));
            }
            Err(failure) => {
                terminal::complain(&failure.message);
                well = false;
            }
        }
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
