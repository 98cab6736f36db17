//! `zpool iostat`.
//!
//! Invariant: the first round shows rates since the pools were opened, later ones since the round
//! before; `-y` leaves the first out.

use std::process::ExitCode;
use std::time::Duration;

use cenote_control::client::Client;
use cenote_control::report::PoolReport;
use cenote_control::text::pool_iostat::{self, Kind, Options};
use cenote_control::text::vdev_get;

use super::common::{self, Repeat, Stamp};
use crate::getopt::Spec;
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "c:gLPT:vyhplqrwnH", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("iostat", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let Some(stamp) = Stamp::of(&parsed) else {
        return wrong("");
    };
    let histogram = parsed.has('r') || parsed.has('w');
    if histogram && ['c', 'l', 'q'].into_iter().any(|letter| parsed.has(letter)) {
        return wrong("[-r|-w] isn't allowed with [-c|-l|-q]");
    }
    if parsed.has('r') && parsed.has('w') {
        return wrong("Only one of [-r|-w] can be passed at a time");
    }
    if parsed.has('c') {
        terminal::complain("zpool iostat -c is not supported yet");
        return ExitCode::FAILURE;
    }
    let mut operands = parsed.operands.clone();
    let repeat = match Repeat::take(&mut operands) {
        Ok(repeat) => repeat,
        Err(message) => return wrong(message),
    };
    let mut options = Options {
        naming: common::naming(&parsed),
        exact: parsed.has('p'),
        scripted: parsed.has('H'),
        verbose: parsed.has('v'),
        latency: parsed.has('l'),
        queues: parsed.has('q'),
        kind: match (parsed.has('r'), parsed.has('w')) {
            (true, _) => Kind::Sizes,
            (_, true) => Kind::Waits,
            _ => Kind::Lines,
        },
        devices: Vec::new(),
    };
    let client = Client::default();
    let operands = match subjects(&client, operands, &mut options.devices) {
        Ok(pools) => pools,
        Err(code) => return code,
    };
    let mut before: Vec<PoolReport> = Vec::new();
    if parsed.has('y') {
        before = common::ask(&client, &operands).pools;
        std::thread::sleep(repeat.interval.unwrap_or(Duration::from_secs(1)));
    }
    let mut done = 0;
    loop {
        let asked = common::ask(&client, &operands);
        if asked.pools.is_empty() {
            if !asked.failed {
                terminal::complain("no pools available");
            }
            return ExitCode::FAILURE;
        }
        let width = pool_iostat::name_width(&asked.pools, &options);
        let mut text = stamp.line();
        if !options.scripted
            && (done == 0 || options.shows_devices())
            && !(done > 0 && parsed.has('n'))
        {
            text.push_str(&pool_iostat::headings(width, &options));
        }
        for pool in &asked.pools {
            let earlier = before.iter().find(|earlier| earlier.guid == pool.guid);
            text.push_str(&pool_iostat::rows(pool, earlier, width, &options));
            if options.verbose && options.devices.is_empty() && !options.scripted {
                text.push_str(&pool_iostat::rule(width, &options));
            }
        }
        let alone = !options.devices.is_empty();
        if (alone || asked.pools.len() > 1 && !options.verbose) && !options.scripted {
            text.push_str(&pool_iostat::rule(width, &options));
        }
        terminal::out(&text);
        before = asked.pools;
        done += 1;
        if !repeat.next(done) {
            return ExitCode::from(u8::from(asked.failed));
        }
    }
}

/// The pools to ask, from what was named: pools, devices of one pool behind its name, or devices of
/// any pool. The guids of devices go to `devices`.
fn subjects(
    client: &Client,
    operands: Vec<String>,
    devices: &mut Vec<u64>,
) -> Result<Vec<String>, ExitCode> {
    if operands.iter().all(|name| client.knows(name)) {
        return Ok(operands);
    }
    let (pool, named) = match operands.split_first() {
        Some((first, others)) if client.knows(first) => (Some(first.clone()), others),
        _ => (None, operands.as_slice()),
    };
    let pools = pool.iter().cloned().collect::<Vec<_>>();
    let reports = common::ask(client, &pools).pools;
    let found = |name: &String| reports.iter().find_map(|report| device(report, name));
    let guids: Vec<Option<u64>> = named.iter().map(found).collect();
    if guids.iter().all(Option::is_some) {
        devices.extend(guids.into_iter().flatten());
        return Ok(pools);
    }
    let Some(pool) = pool.filter(|_| !named.is_empty()) else {
        terminal::complain("Unable to parse pools/vdevs list.\n");
        return Err(ExitCode::FAILURE);
    };
    let mut message =
        format!("Expected either a list of pools, or list of vdevs in \"{pool}\", but got:\n");
    for (name, guid) in named.iter().zip(guids) {
        let what = match guid {
            Some(_) => "vdev in this pool",
            None if client.knows(name) => "pool",
            None => "unknown",
        };
        message.push_str(&format!("\t{name} ({what})\n"));
    }
    Err(Tool::Zpool.wrong("iostat", &message))
}

/// The guid of the device that is called so, in one of all the ways.
fn device(pool: &PoolReport, wanted: &str) -> Option<u64> {
    let all = vdev_get::devices(pool);
    let found = all.iter().find(|device| vdev_get::is_called(device.vdev, wanted));
    found.filter(|device| device.parent.is_some()).map(|device| device.vdev.guid)
}
