//! `zpool events`.
//!
//! Invariant: as in `super`. Events of several pools are listed in the order of time.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use cenote_control::client::Client;
use cenote_control::events::{EventRecord, EventsAsked};
use cenote_control::following::{Heard, follow};
use cenote_control::json;
use cenote_control::protocol::{FailureKind, LOOK_DEADLINE};
use cenote_control::terminal;
use cenote_control::text::pool_events;

use super::common;
use crate::getopt::Spec;
use crate::usage::Tool;

const SPEC: Spec =
    Spec { letters: "vHfcj", long: &[("json", 'j', false), ("json-int", 'J', false)] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("events", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let (verbose, scripted, follows) = (parsed.has('v'), parsed.has('H'), parsed.has('f'));
    let pool = match &parsed.operands[..] {
        [] => None,
        [pool] => Some(pool.as_str()),
        _ => return wrong("too many arguments"),
    };
    let json = match common::json_options(Tool::Zpool, "events", &parsed) {
        Ok(json) => json,
        Err(code) => return code,
    };
    if parsed.has('c') {
        return match verbose || scripted || follows || json.is_some() || pool.is_some() {
            true => wrong("invalid options combined with -c"),
            false => clear(),
        };
    }
    if let Some(name) = pool.filter(|name| common::name_problem(name).is_some()) {
        return wrong(&format!("invalid pool name '{name}'"));
    }
    if !scripted && json.is_none() {
        terminal::out(&pool_events::heading());
    }
    let show = |events: &[EventRecord], dropped: u64| match &json {
        Some(json) => terminal::out(&json::events::list(events, dropped, verbose, json)),
        None => {
            if dropped > 0 {
                terminal::out(&format!("dropped {dropped} events\n"));
            }
            let line = |event| terminal::out(&pool_events::event(event, scripted, verbose));
            events.iter().for_each(line);
        }
    };
    if !follows {
        return list(pool, show);
    }
    follow(&Client::default(), pool, &BTreeMap::new(), |heard| {
        match heard {
            // Empty ones only say that the pool is there.
            Heard::Events(_, part) if part.events.is_empty() && part.dropped == 0 => {}
            Heard::Events(_, part) => show(&part.events, part.dropped),
            Heard::Refused(pool, why) => {
                terminal::complain(&format!("cannot follow '{pool}': {why}"));
            }
            Heard::End(_) | Heard::Nothing => {}
        }
        true
    });
    ExitCode::SUCCESS
}

fn list(pool: Option<&str>, show: impl Fn(&[EventRecord], u64)) -> ExitCode {
    let client = Client::default();
    let mut names = client.pools();
    names.retain(|name| pool.is_none_or(|pool| pool == name));
    let (mut all, mut failed, mut lost) = (Vec::new(), false, 0_u64);
    let wait = LOOK_DEADLINE + Duration::from_millis(500);
    let ask = |client: &Client, pool: &str| {
        let mut parts = Vec::new();
        client.events(pool, EventsAsked::default(), |part| parts.push(part)).map(|()| parts)
    };
    for answer in client.ask_all(&names, wait, ask) {
        match answer.result {
            Ok(parts) => {
                for part in parts {
                    lost = lost.saturating_add(part.dropped);
                    all.extend(part.events);
                }
            }
            // It was exported a moment ago.
            Err(failure) if failure.kind == FailureKind::NotFound => {}
            Err(failure) => {
                terminal::complain(&failure.message);
                failed = true;
            }
        }
    }
    all.sort_by_key(|event| (event.seconds, event.nanoseconds));
    show(&all, lost);
    ExitCode::from(u8::from(failed))
}

fn clear() -> ExitCode {
    let client = Client::default();
    let names = client.pools();
    let wait = LOOK_DEADLINE + Duration::from_millis(500);
    let (mut count, mut failed) = (0_u64, false);
    for answer in client.ask_all(&names, wait, |client, pool| client.clear_events(pool)) {
        match answer.result {
            Ok(cleared) => count = count.saturating_add(cleared),
            Err(failure) => {
                terminal::complain(&failure.message);
                failed = true;
            }
        }
    }
    terminal::out(&format!("cleared {count} events\n"));
    ExitCode::from(u8::from(failed))
}
