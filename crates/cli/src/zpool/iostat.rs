//! `zpool iostat`.
//!
//! Invariant: the first round shows rates since the pools were opened, later ones since the round
//! before; `-y` leaves the first out.

use std::process::ExitCode;
use std::time::Duration;

use cenote_control::client::Client;
use cenote_control::json;
use cenote_control::report::PoolReport;
use cenote_control::text::pool_iostat::{self, Kind, Options};
use cenote_control::text::vdev_get;

use super::common::{self, Repeat, Stamp};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec {
    letters: "c:gjLPT:vyhplqrwnH",
    long: &[("json", 'j', false), ("json-int", 'J', false), ("json-pool-key-guid", 'G', false)],
};

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
    let json = match common::json_options(Tool::Zpool, "iostat", &parsed) {
        Ok(json) => json,
        Err(code) => return code,
    };
    let mut operands = parsed.operands.clone();
    let repeat = match Repeat::take(&mut operands) {
        Ok(repeat) => repeat,
        Err(message) => return wrong(message),
    };
    let client = Client::default();
    let mut options = options(&parsed);
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
        let is_headed = match done {
            0 => true,
            _ => options.shows_devices() && !parsed.has('n'),
        };
        terminal::out(&match &json {
            Some(json) => {
                let time = (stamp != Stamp::None).then(common::now);
                json::iostat::round(&asked.pools, &before, time, &options, json)
            }
            None => stamp.line() + &round(&asked.pools, &before, is_headed, &options),
        });
        before = asked.pools;
        done += 1;
        if !repeat.next(done) {
            return ExitCode::from(u8::from(asked.failed));
        }
    }
}

fn options(parsed: &Parsed) -> Options {
    Options {
        naming: common::naming(parsed),
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
    }
}

/// The lines of one round.
fn round(
    pools: &[PoolReport],
    before: &[PoolReport],
    is_headed: bool,
    options: &Options,
) -> String {
    let width = pool_iostat::name_width(pools, options);
    let mut text = String::new();
    if is_headed && !options.scripted {
        text.push_str(&pool_iostat::headings(width, options));
    }
    let alone = !options.devices.is_empty();
    for pool in pools {
        let earlier = before.iter().find(|earlier| earlier.guid == pool.guid);
        text.push_str(&pool_iostat::rows(pool, earlier, width, options));
        if options.verbose && !alone && !options.scripted {
            text.push_str(&pool_iostat::rule(width, options));
        }
    }
    if (alone || pools.len() > 1 && !options.verbose) && !options.scripted {
        text.push_str(&pool_iostat::rule(width, options));
    }
    text
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
