//! For us only: `cargo xtask tidy` checks the house: arrows between crates and rooms, file headers,
//! file sizes, words that must not stay.
//!
//! Invariant: it only reads. Exit code 0 means every rule holds.

mod tidy;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => {
            let found = tidy::check(root);
            for problem in &found {
                eprintln!("{problem}");
            }
            if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        _ => {
            eprintln!("usage: cargo xtask tidy");
            ExitCode::from(2)
        }
    }
}
