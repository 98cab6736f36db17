//! The one program: it answers by the name it is called by.
//!
//! Invariant: nothing is done here but choosing who does it.

mod links;

use std::path::Path;
use std::process::ExitCode;

use cenote_cli::{
    mount_helper, run_drill, run_replicate, run_snap, run_zed, run_zfs, run_zinject, run_zpool,
    userland,
};
use cenote_control::{begin, look, terminal};
use cenote_inspect::{offline, zdb};
use clap::{CommandFactory, Parser};

/// Blocks are allocated by one thread and freed by another all the time, which the C library's
/// allocator answers with page faults and heaps that grow.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
enum Cenote {
    /// List a directory
    Ls(offline::command::ListArguments),
    /// Show a tree
    Tree(offline::command::TreeArguments),
    /// Print files or volumes
    Cat(offline::command::CatArguments),
    /// Copy a tree out
    Cp(offline::command::CopyArguments),
    /// Make links so that this program answers as zpool, zfs, zdb, zed and zinject
    InstallLinks(links::Arguments),
}

/// What the help says of the tools that are called by their own names.
const TOOLS: &str = "As zpool, zfs, zdb, zed and zinject (cenote zpool ..., or by links of these names) it has the \
                     commands of OpenZFS:\n  cenote zpool help\n  cenote zfs help\n  cenote zdb\n  cenote zed -h\n  cenote zinject -h\nSnapshots by a policy: cenote snap -h\nCopies that are kept up: cenote replicate -h\nDisks to practise with: cenote drill -h";

fn main() -> ExitCode {
    let mut arguments: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let called = arguments.first().map_or("cenote", String::as_str);
    let called = Path::new(called).file_name().map(|name| name.to_string_lossy().into_owned());
    // called by the name of a tool, or with it as the first argument
    if !called.as_deref().is_some_and(|name| links::names().any(|tool| tool == name)) {
        arguments = arguments.split_off(arguments.len().min(1));
    } else if let (Some(first), Some(name)) = (arguments.first_mut(), called) {
        *first = name;
    }
    let rest = arguments.get(1..).unwrap_or(&[]);
    match arguments.first().map(String::as_str) {
        Some("zpool") => run_zpool(rest),
        Some("zfs") => run_zfs(rest),
        Some("zdb") => zdb::run(&arguments),
        Some("zed") => run_zed(rest),
        Some("zinject") => run_zinject(rest),
        Some("drill") => run_drill(rest),
        Some("snap") => run_snap(rest),
        Some("replicate") => run_replicate(rest),
        Some(name) if mount_helper::NAMES.contains(&name) => mount_helper::run(rest),
        Some(begin::COMMAND) => cenote_process::run(),
        Some(look::COMMAND) => cenote_inspect::look::run(),
        Some("--version" | "-V") => {
            terminal::out(&format!("cenote {}\n{}\n", env!("CARGO_PKG_VERSION"), userland()));
            ExitCode::SUCCESS
        }
        None | Some("--help" | "-h" | "help") if rest.is_empty() => {
            let mut command = Cenote::command().name("cenote").after_help(TOOLS);
            terminal::out(&command.render_help().to_string());
            ExitCode::from(u8::from(arguments.is_empty()))
        }
        Some(word) if !is_command(word) && mount_helper::is_asked(&arguments) => {
            mount_helper::run(&arguments)
        }
        _ => match Cenote::parse() {
            Cenote::Ls(a) => offline::command::list(&a),
            Cenote::Tree(a) => offline::command::tree(&a),
            Cenote::Cat(a) => offline::command::cat(&a),
            Cenote::Cp(a) => offline::command::copy_out(&a),
            Cenote::InstallLinks(a) => links::run(&a),
        },
    }
}

/// Whether this is one of the words after which `cenote` does something of its own.
fn is_command(word: &str) -> bool {
    word == "help" || Cenote::command().get_subcommands().any(|command| command.get_name() == word)
}
