//! `zpool`: finds the command and runs it.
//!
//! Invariant: commands print what OpenZFS prints and end with its exit codes: 0 done, 1 failed, 2
//! the command line is wrong.

mod add;
pub mod common;
mod create;
mod events;
mod export;
mod get;
mod history;
mod import;
mod iostat;
mod labelclear;
mod list;
mod members;
mod remove;
mod scrub;
mod set;
mod simple;
mod split;
mod status;
mod sweep;
mod upgrade;
pub mod vdevs;
mod wait;

use std::process::ExitCode;

use crate::usage::Tool;
use crate::version;

/// Runs `zpool` with the arguments after its name.
pub fn run(arguments: &[String]) -> ExitCode {
    let Some((command, rest)) = arguments.split_first() else {
        return Tool::Zpool.refuse("missing command");
    };
    match command.as_str() {
        "-?" | "--help" | "help" => Tool::Zpool.help(command, rest),
        "-V" | "--version" => version::run("zpool", Tool::Zpool, &[]),
        "version" => version::run("zpool", Tool::Zpool, rest),
        "list" => list::run(rest),
        "status" => status::run(rest),
        "get" => get::run(rest),
        "history" => history::run(rest),
        "events" => events::run(rest),
        "iostat" => iostat::run(rest),
        "import" => import::run(rest),
        "export" => export::run(rest),
        "create" => create::run(rest),
        "destroy" => simple::destroy(rest),
        "add" => add::run(rest),
        "remove" => remove::run(rest),
        "attach" => members::attach(rest),
        "replace" => members::replace(rest),
        "detach" => members::detach(rest),
        "offline" => members::offline(rest),
        "online" => members::online(rest),
        "set" => set::run(rest),
        "labelclear" => labelclear::run(rest),
        "upgrade" => upgrade::run(rest),
        "wait" => wait::run(rest),
        "clear" => simple::clear(rest),
        "sync" => simple::sync(rest),
        "checkpoint" => simple::checkpoint(rest),
        "reguid" => simple::reguid(rest),
        "reopen" => simple::reopen(rest),
        "split" => split::run(rest),
        "initialize" => sweep::initialize(rest),
        "trim" => sweep::trim(rest),
        "scrub" => scrub::scrub(rest),
        "resilver" => scrub::resilver(rest),
        other => Tool::Zpool.refuse_command(other),
    }
}
