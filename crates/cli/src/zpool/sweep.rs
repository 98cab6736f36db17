//! `zpool initialize` and `zpool trim`.
//!
//! Invariant: options that exclude each other are refused before a pool is asked; what is wrong with one of all pools
//! keeps nothing from the others.

use std::process::ExitCode;

use cenote_control::changes::{Change, SweepAction, SweepRequest};
use cenote_control::client::Client;
use cenote_control::terminal;

use super::{common, wait};
use crate::getopt::{Parsed, Spec};
use crate::settings;
use crate::usage::Tool;

/// What both end with if they fail, as in OpenZFS.
const REFUSED: u8 = 255;

const INITIALIZE: Spec = Spec {
    letters: "acsuw",
    long: &[
        ("all", 'a', false),
        ("cancel", 'c', false),
        ("suspend", 's', false),
        ("uninit", 'u', false),
        ("wait", 'w', false),
    ],
};
const TRIM: Spec = Spec {
    letters: "acdr:sw",
    long: &[
        ("all", 'a', false),
        ("cancel", 'c', false),
        ("secure", 'd', false),
        ("rate", 'r', true),
        ("suspend", 's', false),
        ("wait", 'w', false),
    ],
};

/// Runs `zpool initialize`.
pub fn initialize(arguments: &[String]) -> ExitCode {
    run("initialize", &INITIALIZE, arguments)
}

/// Runs `zpool trim`.
pub fn trim(arguments: &[String]) -> ExitCode {
    run("trim", &TRIM, arguments)
}

fn run(command: &'static str, spec: &Spec, arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong(command, message);
    let parsed = match spec.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let action = match action(command, &parsed) {
        Ok(action) => action,
        Err(message) => return wrong(message),
    };
    if parsed.has('a') && !parsed.operands.is_empty() {
        return wrong(match command {
            "trim" => "-a cannot be combined with individual zpools or vdevs",
            _ => "-a cannot be combined with individual pools or vdevs",
        });
    }
    let client = Client::default();
    let (pools, devices) = match parsed.operands.split_first() {
        Some((pool, devices)) => (vec![pool.clone()], devices.to_vec()),
        None if parsed.has('a') => (client.pools(), Vec::new()),
        None => return wrong("missing pool name argument"),
    };
    if parsed.has('d') {
        let words = "cannot trim: secure trim is not supported yet";
        terminal::complain(words);
        return ExitCode::from(REFUSED);
    }
    if pools.is_empty() {
        terminal::complain("no pools available");
        return ExitCode::FAILURE;
    }
    let line = common::history_line("zpool", command, arguments);
    let request = SweepRequest { trim: command == "trim", devices, action };
    let order = common::change(Some(line), Change::Sweep(request));
    let given = |pool: &String| common::order(&client, pool, &order);
    let (done, refused): (Vec<String>, Vec<String>) = pools.into_iter().partition(given);
    let mut code = match refused.is_empty() {
        true => ExitCode::SUCCESS,
        false if parsed.has('a') => ExitCode::FAILURE,
        false => ExitCode::from(REFUSED),
    };
    for pool in done.iter().filter(|_| parsed.has('w')) {
        let over = wait::until_over(&client, pool, &[command]);
        if over != ExitCode::SUCCESS {
            code = over;
        }
    }
    code
}

/// What the options ask for, or what is wrong with them.
fn action(command: &str, parsed: &Parsed) -> Result<SweepAction, &'static str> {
    // It is the second that is complained of.
    let given = parsed.options.iter().map(|(letter, _)| *letter);
    let mut ends: Vec<char> = given.filter(|letter| ['c', 's', 'u'].contains(letter)).collect();
    ends.dedup();
    if command == "trim" {
        let others = |letters: &[char]| letters.iter().any(|letter| parsed.has(*letter));
        if parsed.has('d') && !ends.is_empty() {
            return Err("-d cannot be combined with the -c or -s options");
        }
        if parsed.has('r') && !ends.is_empty() {
            return Err("-r cannot be combined with the -c or -s options");
        }
        if others(&['w']) && !ends.is_empty() {
            return Err("-w cannot be used with -c or -s options");
        }
    }
    match ends.as_slice() {
        [_, 'c', ..] => return Err("-c cannot be combined with other options"),
        [_, 's', ..] => return Err("-s cannot be combined with other options"),
        [_, _, ..] => return Err("-u cannot be combined with other options"),
        [_] if parsed.has('w') => return Err("-w cannot be used with -c, -sor -u"),
        _ => {}
    }
    Ok(match ends.first() {
        Some('c') => SweepAction::Cancel,
        Some('s') => SweepAction::Suspend,
        Some(_) => SweepAction::Forget,
        None => {
            let rate = parsed.argument('r').map(settings::number::parse);
            let rate = rate.transpose().map_err(|_| "invalid value for rate")?;
            SweepAction::Begin { rate }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_exclude_each_other() {
        let asked = |command: &str, line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let spec = if command == "trim" { TRIM } else { INITIALIZE };
            action(command, &spec.parse(&words).unwrap())
        };
        assert_eq!(asked("initialize", "tank"), Ok(SweepAction::Begin { rate: None }));
        assert_eq!(asked("initialize", "-u tank"), Ok(SweepAction::Forget));
        let words = "-s cannot be combined with other options";
        assert_eq!(asked("initialize", "-c -s tank"), Err(words));
        let words = "-c cannot be combined with other options";
        assert_eq!(asked("trim", "-s -c tank"), Err(words));
        let words = "-w cannot be used with -c, -sor -u";
        assert_eq!(asked("initialize", "-w -s tank"), Err(words));
        assert_eq!(asked("trim", "-r 1M tank"), Ok(SweepAction::Begin { rate: Some(1 << 20) }));
        assert_eq!(asked("trim", "-r x tank"), Err("invalid value for rate"));
        let words = "-d cannot be combined with the -c or -s options";
        assert_eq!(asked("trim", "--secure --cancel tank"), Err(words));
        let words = "-w cannot be used with -c or -s options";
        assert_eq!(asked("trim", "-w -c tank"), Err(words));
    }
}
