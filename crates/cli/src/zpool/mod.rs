//! `zpool`: finds the command and runs it.
//!
//! Invariant: commands print what OpenZFS prints and end with its exit codes: 0 done, 1 failed, 2
//! the command line is wrong.

mod add;
pub mod common;
mod create;
mod export;
mod get;
mod history;
mod import;
mod iostat;
mod labelclear;
mod list;
mod remove;
mod set;
mod simple;
mod status;
mod upgrade;
pub mod vdevs;
mod wait;

use std::process::ExitCode;

use crate::usage::Tool;
use crate::version;
use cenote_control::terminal;

/// Runs `zpool` with the arguments after its name.
pub fn run(arguments: &[String]) -> ExitCode {
    let Some((command, rest)) = arguments.split_first() else {
        terminal::complain("missing command");
        terminal::complain(Tool::Zpool.overview().trim_end());
        return ExitCode::from(2);
    };
    match command.as_str() {
        "-?" | "--help" | "help" => help(command, rest),
        "-V" | "--version" => version::run("zpool", Tool::Zpool, &[]),
        "version" => version::run("zpool", Tool::Zpool, rest),
        "list" => list::run(rest),
        "status" => status::run(rest),
        "get" => get::run(rest),
        "history" => history::run(rest),
        "iostat" => iostat::run(rest),
        "import" => import::run(rest),
        "export" => export::run(rest),
        "create" => create::run(rest),
        "destroy" => simple::destroy(rest),
        "add" => add::run(rest),
        "remove" => remove::run(rest),
        "set" => set::run(rest),
        "labelclear" => labelclear::run(rest),
        "upgrade" => upgrade::run(rest),
        "wait" => wait::run(rest),
        "clear" => simple::clear(rest),
        "sync" => simple::sync(rest),
        "checkpoint" => simple::checkpoint(rest),
        "reguid" => simple::reguid(rest),
        known if Tool::Zpool.has(known) => {
            terminal::complain(&format!("zpool {known} is not supported yet"));
            ExitCode::FAILURE
        }
        unknown => {
            terminal::complain(&format!("unrecognized command '{unknown}'"));
            terminal::complain(Tool::Zpool.overview().trim_end());
            ExitCode::from(2)
        }
    }
}

fn help(command: &str, rest: &[String]) -> ExitCode {
    match rest.first().map(String::as_str) {
        Some(topic) if command == "help" && Tool::Zpool.has(topic) => {
            terminal::out(&Tool::Zpool.of(topic));
            ExitCode::SUCCESS
        }
        Some(topic) if command == "help" => {
            terminal::complain(&format!("there is no help on '{topic}'"));
            ExitCode::FAILURE
        }
        _ => {
            terminal::out(&Tool::Zpool.overview());
            ExitCode::SUCCESS
        }
    }
}
