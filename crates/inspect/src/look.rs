//! `cenote look`: answers one question about devices.
//!
//! Invariant: one line of JSON comes out, of the type `control::look` documents for the question.

use std::io::Read;
use std::process::ExitCode;

use cenote_control::look::Look;
use cenote_control::terminal;
use serde::Serialize;

use crate::{cache_file, clear_labels, disks, importable, in_use};

/// Longest question, in bytes.
const LONGEST: u64 = 16 << 20;

/// Runs the command.
pub fn run() -> ExitCode {
    let mut text = Vec::new();
    let read = std::io::stdin().lock().take(LONGEST).read_to_end(&mut text);
    let look = read
        .map_err(|error| error.to_string())
        .and_then(|_| serde_json::from_slice::<Look>(&text).map_err(|error| error.to_string()));
    match look {
        Ok(look) => answer(&look),
        Err(error) => {
            terminal::complain(&format!("cenote look is for cenote itself: {error}"));
            ExitCode::from(2)
        }
    }
}

fn answer(look: &Look) -> ExitCode {
    match look {
        Look::Importable(search) => say(&importable::find(search)),
        Look::CacheFile(path) => say(&cache_file::read(path)),
        Look::Kind(path) => say(&disks::kind(path)),
        Look::Disk(path) => say(&disks::disk(path)),
        Look::Uses(plan) => say(&in_use::uses_of_all(plan)),
        Look::ClearLabels { path, force } => say(&clear_labels::clear_labels(path, *force)),
        Look::WithLabel(word) => say(&disks::with_label(word)),
    }
}

fn say(answer: &impl Serialize) -> ExitCode {
    match serde_json::to_string(answer) {
        Ok(line) => {
            terminal::out(&format!("{line}\n"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            terminal::complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}
