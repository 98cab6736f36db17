//! `zpool labelclear`.
//!
//! Invariant: the process that looks at the device decides what may be cleared.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::getopt::Spec;
use crate::usage::Tool;
use cenote_control::look::{self, Look, Refusal};
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "f", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("labelclear", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let word = match parsed.operands.as_slice() {
        [] => return wrong("missing vdev name"),
        [word] => word,
        _ => return wrong("too many arguments"),
    };
    let (message, code) = match clear(word, parsed.has('f')) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(refused) => refused,
    };
    terminal::complain(&message);
    ExitCode::from(code)
}

fn clear(word: &str, force: bool) -> Result<(), (String, u8)> {
    let failed = |message| (message, 1);
    let path: Option<PathBuf> = look::ask(&Look::WithLabel(word.to_owned())).map_err(failed)?;
    let Some(path) = path else {
        let advice = "try specifying absolute path instead";
        return Err(failed(format!("failed to find device {word}, {advice}")));
    };
    let cleared: Result<(), Refusal> =
        look::ask(&Look::ClearLabels { path, force }).map_err(failed)?;
    cleared.map_err(|refusal| (refusal.message, refusal.code))
}
