//! For us only.
//!
//! `cargo xtask tidy` checks the house: arrows between crates and rooms, circles of files, headers,
//! sizes of files and functions, words that must not stay; exit code 0 means every rule holds. `cargo xtask unpack NAME DIR`
//! unpacks the devices of fixture pool NAME into DIR; `cargo xtask demo DIR` makes, fills and exports
//! a pool there. `cargo xtask torture ...` runs the whole stack on simulated disks (`torture/`).
//! Invariant: the source tree is only read.

mod cargo;
mod demo;
mod tidy;
mod unpack;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Cargo says at run time whose xtask this is: the same binary may serve two clones that share a target directory.
    let own = std::env::var_os("CARGO_MANIFEST_DIR");
    let own = own.as_deref().map_or(Path::new(env!("CARGO_MANIFEST_DIR")), Path::new);
    let root = own.parent().unwrap_or(Path::new("."));
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => {
            let found = tidy::check(root);
            for problem in &found {
                eprintln!("{problem}");
            }
            if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Some("unpack") => {
            let operands: Vec<String> = std::env::args().skip(2).collect();
            let [name, to] = operands.as_slice() else {
                eprintln!("usage: cargo xtask unpack NAME DIR");
                return ExitCode::from(2);
            };
            match unpack::unpack(root, name, Path::new(to)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("cannot unpack fixture '{name}': {error}");
                    ExitCode::FAILURE
                }
            }
        }
        Some("demo") => {
            let Some(to) = std::env::args().nth(2) else {
                eprintln!("usage: cargo xtask demo DIR");
                return ExitCode::from(2);
            };
            match demo::run(root, Path::new(&to)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("the demonstration stopped: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        Some("torture") => {
            let mut command = cargo::command();
            command.args(["run", "--quiet", "-p", "cenote-torture", "--"]);
            match command.args(std::env::args().skip(2)).status() {
                Ok(status) if status.success() => ExitCode::SUCCESS,
                Ok(_) => ExitCode::FAILURE,
                Err(error) => {
                    eprintln!("cargo does not start: {error}");
                    ExitCode::from(2)
                }
            }
        }
        _ => {
            eprintln!("usage: cargo xtask tidy | unpack NAME DIR | demo DIR | torture ...");
            ExitCode::from(2)
        }
    }
}
