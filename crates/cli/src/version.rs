//! `zpool version` and `zfs version`.
//!
//! Invariant: the first line starts like that of OpenZFS, whose command set this is, so that tools
//! which read a version find one.

use std::process::ExitCode;

use cenote_control::json;
use serde_json::json;

use crate::getopt::Spec;
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "j", long: &[("json", 'j', false)] };

/// The version of the command set and of Cenote.
pub fn userland() -> String {
    format!("zfs-2.3.0-cenote-{}", env!("CARGO_PKG_VERSION"))
}

/// Runs the command for the tool called `name`.
pub fn run(name: &str, tool: Tool, arguments: &[String]) -> ExitCode {
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return tool.wrong("version", &error.message()),
    };
    let module = format!("cenote-{} (no kernel module)", env!("CARGO_PKG_VERSION"));
    if parsed.has('j') {
        let mut document = json::document(&format!("{name} version"));
        let versions = json!({ "userland": userland(), "kernel": module });
        document.insert("zfs_version".to_owned(), versions);
        terminal::out(&json::line(document));
    } else {
        terminal::out(&format!("{}\n{module}\n", userland()));
    }
    ExitCode::SUCCESS
}
