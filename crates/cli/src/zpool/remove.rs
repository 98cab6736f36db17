//! `zpool remove`.
//!
//! Invariant: each device named is removed or refused on its own.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::report::{PoolReport, VdevClass, VdevReport};
use cenote_control::text::vdev_name;

use super::common;
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
        return wrong("invalid option combination");
    }
    if parsed.has('s') {
        if parsed.has('w') {
            return wrong("invalid option combination: -w cannot be used with -s");
        }
        terminal::complain("cannot cancel removal: operation is not in progress");
        return ExitCode::FAILURE;
    }
    if devices.is_empty() {
        return wrong("missing device");
    }
    let mut well = true;
    for device in devices {
        well &= match parsed.has('n') {
            true => estimate(&report, device, parsed.has('p')),
            false => {
                let change = Change::RemoveVdev(device.clone());
                common::order(&client, name, &common::change(None, change))
            }
        };
    }
    if well && !parsed.has('n') {
        let line = common::history_line("zpool", "remove", arguments);
        well = common::order(&client, name, &common::change(Some(line), Change::Log));
    }
    ExitCode::from(u8::from(!well))
}

/// Says how much memory is used when a device is removed: none for those that hold no data.
fn estimate(pool: &PoolReport, device: &str, exact: bool) -> bool {
    let aside = pool.spares.iter().chain(&pool.caches);
    let logs = vdev_name::tops(&pool.root, VdevClass::Log);
    let is_it = |vdev: &VdevReport| vdev_name::answers_to(vdev, device);
    if !aside.chain(logs).any(is_it) {
        let words = "removing devices that hold data is not supported yet";
        terminal::complain(&format!("cannot remove {device}: {words}"));
        return false;
    }
    terminal::out(&match exact {
        true => format!("{device} 0\n"),
        false => format!("Memory that will be used after removing {device}: 0\n"),
    });
    true
}
