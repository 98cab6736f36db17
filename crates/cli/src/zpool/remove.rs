//! `zpool remove`.
//!
//! Invariant: each device named is removed or refused on its own.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::report::{PoolReport, VdevClass, VdevReport};
use cenote_control::text::{number, vdev_name};

use super::{common, wait};
use crate::getopt::Spec;
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "npsw", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("remove", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let Some((name, devices)) = parsed.operands.split_first() else {
        return wrong("missing pool name argument");
    };
    if let Some(problem) = common::name_problem(name) {
        terminal::complain(&format!("cannot open '{name}': {problem}"));
        return ExitCode::FAILURE;
    }
    let client = Client::default();
    let report = match client.pool_report(name) {
        Ok(report) => report,
        Err(failure) => {
            terminal::complain(&failure.message);
            return ExitCode::FAILURE;
        }
    };
    if parsed.has('s') && parsed.has('n') {
        terminal::complain("stop request ignored");
        return ExitCode::SUCCESS;
    }
    let line = || common::history_line("zpool", "remove", arguments);
    if parsed.has('s') {
        if !devices.is_empty() {
            return wrong("too many arguments");
        }
        let done =
            common::order(&client, name, &common::change(Some(line()), Change::CancelRemoval));
        if parsed.has('w') {
            return wrong("invalid option combination: -w cannot be used with -s");
        }
        return ExitCode::from(u8::from(!done));
    }
    if devices.is_empty() {
        return wrong("missing device");
    }
    if parsed.has('n') {
        let estimated = devices.iter().all(|device| estimate(&report, device, parsed.has('p')));
        return ExitCode::from(u8::from(!estimated));
    }
    let mut well = true;
    for device in devices {
        let change = Change::RemoveVdev(device.clone());
        well &= common::order(&client, name, &common::change(None, change));
    }
    well = well && common::order(&client, name, &common::change(Some(line()), Change::Log));
    match well && parsed.has('w') {
        true => wait::until_over(&client, name, &["remove"]),
        false => ExitCode::from(u8::from(!well)),
    }
}

/// Says how much memory is used when a device is removed: none for those that hold no data.
fn estimate(pool: &PoolReport, device: &str, exact: bool) -> bool {
    let aside = pool.spares.iter().chain(&pool.caches);
    let logs = vdev_name::tops(&pool.root, VdevClass::Log);
    let is_it = |vdev: &VdevReport| vdev_name::answers_to(vdev, device);
    let bytes = if aside.chain(logs).any(is_it) {
        0
    } else {
        let tops = || pool.root.children.iter().filter(|top| vdev_name::is_shown(top));
        let known = tops().find(|top| is_it(top));
        let below = |top: &VdevReport| top.children.iter().any(is_it);
        let cannot = match known {
            Some(top) => match top.mapping_estimate {
                Some(bytes) => return tell(device, bytes, exact),
                None => "indirect size not available",
            },
            None if tops().any(below) => "indirect size not available",
            None => "no such device in pool",
        };
        terminal::complain(&format!("indirect memory size of {device}: {cannot}"));
        return false;
    };
    tell(device, bytes, exact)
}

fn tell(device: &str, bytes: u64, exact: bool) -> bool {
    terminal::out(&match exact {
        true => format!("{device} {bytes}\n"),
        false => {
            let size = number::plain(bytes);
            format!("Memory that will be used after removing {device}: {size}\n")
        }
    });
    true
}
