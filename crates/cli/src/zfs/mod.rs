//! `zfs`: finds the command and runs it.
//!
//! Invariant: commands print what OpenZFS prints and end with its exit codes: 0 done, 1 failed, 2
//! the command line is wrong, 255 a key could not be loaded or unloaded.

mod allow;
mod bookmark;
mod change_key;
mod clone;
pub mod common;
mod create;
mod dependents;
mod destroy;
mod diff;
mod file_project;
mod get;
mod hold;
mod list;
mod load_key;
mod mount;
mod program;
mod project;
mod receive;
mod redact;
mod rename;
mod rollback;
mod send;
mod set;
mod snapshot;
mod upgrade;
mod userspace;
mod wait;

use std::process::ExitCode;

use crate::usage::Tool;
use crate::version;

/// Runs `zfs` with the arguments after its name.
pub fn run(arguments: &[String]) -> ExitCode {
    let Some((command, rest)) = arguments.split_first() else {
        return Tool::Zfs.refuse("missing command");
    };
    let command = match command.as_str() {
        "umount" => "unmount",
        "recv" => "receive",
        "snap" => "snapshot",
        other => other,
    };
    match command {
        "-?" | "--help" | "help" => Tool::Zfs.help(command, rest),
        "-V" | "--version" => version::run("zfs", Tool::Zfs, &[]),
        "version" => version::run("zfs", Tool::Zfs, rest),
        "list" => list::run(rest),
        "get" => get::run(rest),
        "mount" => mount::mount(rest),
        "unmount" => mount::unmount(rest),
        "create" => create::run(rest),
        "destroy" => destroy::run(rest),
        "rename" => rename::run(rest),
        "set" => set::set(rest),
        "inherit" => set::inherit(rest),
        "snapshot" => snapshot::run(rest),
        "clone" => clone::run(rest),
        "promote" => clone::promote(rest),
        "rollback" => rollback::run(rest),
        "receive" => receive::run(rest),
        "send" => send::run(rest),
        "bookmark" => bookmark::run(rest),
        "redact" => redact::run(rest),
        "diff" => diff::run(rest),
        "hold" => hold::hold(rest),
        "release" => hold::release(rest),
        "holds" => hold::holds(rest),
        "change-key" => change_key::run(rest),
        "userspace" | "groupspace" | "projectspace" => userspace::run(command, rest),
        "program" => program::run(rest),
        "project" => project::run(rest),
        "upgrade" => upgrade::run(rest),
        "wait" => wait::run(rest),
        "allow" => allow::allow(rest),
        "unallow" => allow::unallow(rest),
        "load-key" => load_key::load(rest),
        "unload-key" => load_key::unload(rest),
        other => Tool::Zfs.refuse_command(other),
    }
}
