//! Asking what is on devices.
//!
//! A command that must know runs this program again as `cenote look`, with the question on its standard
//! input and the answer, one line, on its standard output: the command line has no engine, and a device
//! that does not answer holds up a process that can be left behind. Invariant: only
//! [`Look::ClearLabels`] writes to a device.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::begin::Search;
use crate::plan::VdevPlan;
use crate::report::ImportReport;

/// Hidden command that answers one question.
pub const COMMAND: &str = "look";

/// How long one that has answered may take to end.
const PATIENCE: Duration = Duration::from_millis(200);
/// Time between two looks at whether it has.
const PAUSE: Duration = Duration::from_millis(1);

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Look {
    /// Which pools could be imported: `Vec<ImportReport>`.
    Importable(Search),
    /// What a cache file says: `Result<Cached, String>`, the error in the words of `zpool import`.
    CacheFile(String),
    /// What a block device is: `Result<Disk, String>`.
    Disk(PathBuf),
    /// What stands against taking the devices of a plan: [`Uses`].
    Uses(Vec<VdevPlan>),
    /// Has a device forget that it was a pool's (`zpool labelclear`): `Result<(), Refusal>`.
    ClearLabels {
        /// The device.
        path: PathBuf,
        /// `-f`.
        force: bool,
    },
    /// The device a word means, of a whole disk the partition with its labels: `Option<PathBuf>`.
    WithLabel(String),
}

/// What a cache file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cached {
    /// Guids of its pools.
    pub pools: Vec<u64>,
    /// Paths of their devices, those that exist.
    pub devices: Vec<PathBuf>,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// It is a whole disk, which gets a partition table.
    pub whole: bool,
    /// Bytes a pool has of it.
    pub size: u64,
    /// The name it keeps wherever it is plugged in.
    pub stable_name: Option<String>,
}

/// What stands against taking devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uses {
    /// What `-f` overrides.
    pub forcible: Vec<String>,
    /// What it does not.
    pub firm: Vec<String>,
}

/// Why labels stay, and the exit code that goes with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What is said.
    pub message: String,
    /// Exit code.
    pub code: u8,
}

/// The pools that could be imported, those that were destroyed included.
///
/// # Errors
/// If nobody could look.
pub fn importable(search: &Search) -> Result<Vec<ImportReport>, String> {
    ask(&Look::Importable(search.clone()))
}

/// Asks; what comes back must be what the question is documented to give.
///
/// # Errors
/// If nobody could look.
pub fn ask<T: DeserializeOwned>(look: &Look) -> Result<T, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot look at devices: {error}");
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut child = Command::new(program)
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    // One that is left behind must not keep open what our own readers wait for the end of.
    let said = child.stderr.take().map(|mut said| {
        std::thread::spawn(move || drop(std::io::copy(&mut said, &mut std::io::stderr())))
    });
    let text = serde_json::to_vec(look).map_err(|error| failed(&error))?;
    if let Some(mut input) = child.stdin.take() {
        // one that is gone already is noticed below
        drop(input.write_all(&text));
    }
    let mut answer = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut answer).map_err(|error| failed(&error))?;
    }
    match serde_json::from_str(&answer) {
        Ok(answer) => {
            if leave(&mut child)
                && let Some(said) = said
            {
                drop(said.join());
            }
            Ok(answer)
        }
        Err(_) => match child.wait() {
            Ok(status) => Err(failed(&format!("the process that does ended ({status})"))),
            Err(error) => Err(failed(&error)),
        },
    }
}

/// Waits until the devices that were looked at are closed, but not for those that do not let go: false then.
pub(crate) fn leave(child: &mut Child) -> bool {
    let start = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if start.elapsed() >= PATIENCE {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}
