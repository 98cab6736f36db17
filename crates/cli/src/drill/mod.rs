//! `cenote drill`: virtual disks in a directory, and breaking them on purpose, to practise before it counts.
//!
//! Invariant: nothing outside the directory is written, and no pool but those whose processes were started
//! for it is asked anything.

mod bench;
mod breaking;
mod scenarios;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;

use cenote_control::terminal;

use crate::getopt::{Parsed, Spec};
use bench::Bench;
use scenarios::SCENARIOS;
use stage::{Scenario, Stage};

const SPEC: Spec = Spec {
    letters: "C:s:h",
    long: &[
        ("list", 'l', false),
        ("auto", 'a', false),
        ("keep", 'k', false),
        ("help", 'h', false),
        ("seed", 's', true),
        ("directory", 'C', true),
    ],
};
const USAGE: &str = "usage:
    cenote drill --list
    cenote drill NAME [--auto] [--keep] [-C DIR]    play a scenario (all: every one)
    cenote drill -C DIR disks COUNT [SIZE]          make virtual disks, and a place to practise
    cenote drill -C DIR zero DISK                   write zeros over a whole disk
    cenote drill -C DIR rot DISK PERCENT [-s SEED]  write noise over blocks of 8 KiB, labels left out
    cenote drill -C DIR unplug DISK                 take a disk away
    cenote drill -C DIR plug DISK                   and put it back
    cenote drill -C DIR slow DISK MILLISECONDS      let a disk take long
    cenote drill -C DIR flip DISK PERCENT           of its writes get one bit wrong
    cenote drill -C DIR tear DISK PERCENT           of its writes get there in part only
    cenote drill -C DIR cache DISK                  let it hold what is written until a flush
    cenote drill -C DIR well DISK                   none of that any more
    cenote drill -C DIR power                       pull the power: pools end, what disks hold is lost
    cenote drill -C DIR clean                       end its pools and take all of it away
";

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    if parsed.has('h') {
        terminal::out(USAGE);
        return ExitCode::SUCCESS;
    }
    if parsed.has('l') {
        for scenario in SCENARIOS {
            terminal::out(&format!("{:<16} {}\n", scenario.name, scenario.title));
        }
        return ExitCode::SUCCESS;
    }
    let Some((word, rest)) = parsed.operands.split_first() else {
        return wrong("missing name of a scenario");
    };
    let chosen: Vec<&Scenario> =
        SCENARIOS.iter().filter(|one| word == "all" || one.name == word).collect();
    let done = match (chosen.is_empty(), rest) {
        (false, []) => play_all(&chosen, &parsed),
        (false, _) => return wrong("too many arguments"),
        (true, rest) => match breaking::do_word(&parsed, word, rest) {
            Some(done) => done.map(|()| true),
            None => {
                return wrong(&format!("there is no scenario and nothing to do called '{word}'"));
            }
        },
    };
    match done {
        Ok(well) => ExitCode::from(u8::from(!well)),
        Err(reason) => {
            terminal::complain(&format!("cenote drill: {reason}"));
            ExitCode::FAILURE
        }
    }
}

fn wrong(message: &str) -> ExitCode {
    terminal::complain(&format!("cenote drill: {message}\n{}", USAGE.trim_end()));
    ExitCode::from(2)
}

/// Whether all ended as they should.
fn play_all(chosen: &[&Scenario], parsed: &Parsed) -> Result<bool, String> {
    let mut well = true;
    for scenario in chosen {
        let directory = match parsed.argument('C') {
            Some(directory) => PathBuf::from(directory).join(scenario.name),
            None => std::env::temp_dir().join(format!(
                "cenote-drill-{}-{}",
                std::process::id(),
                scenario.name
            )),
        };
        let bench = Bench::make(&directory, scenario.disks, scenario.size)?;
        let mut stage = Stage::new(bench, parsed.has('a'));
        let ended = stage.play(scenario);
        if parsed.has('k') {
            terminal::out(&format!("All of it stays in {}.\n", directory.display()));
        } else {
            stage.bench().clean()?;
        }
        well &= ended?;
    }
    Ok(well)
}
