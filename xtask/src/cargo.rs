//! Cargo, begun by a program that cargo runs itself.
//!
//! Invariant: what it builds is what it builds from a shell. A program that cargo runs is told of its own package in
//! the environment; build scripts that look there (`ring`'s) would run again, and with them all that uses them be
//! compiled anew, at each change from one to the other.

use std::process::Command;

/// A command of it.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let is_own =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_own) {
            command.env_remove(name);
        }
    }
    command
}
