//! Asking what is on devices.
//!
//! A command that must know runs this program again as `cenote look`, with the question on its standard
//! input and the answer, one line, on its standard output: the command line has no engine, and a device
//! that does not answer holds up a process that can be left behind. Invariant: only
//! [`Look::ClearLabels`] writes to a device.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::begin::Search;
use crate::left_behind;
use crate::plan::VdevPlan;
use crate::report::ImportReport;

/// Hidden command that answers one question.
pub const COMMAND: &str = "look";
/// Longest time that is waited for an answer which only wants for a processor.
const LONGEST: Duration = Duration::from_secs(60);
/// Time between two looks at what it wants for.
const AGAIN: Duration = Duration::from_millis(100);
/// So many looks in a row must find that it does not want for a processor.
const LOOKS: u32 = 3;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Look {
    /// Which pools could be imported: `Vec<ImportReport>`.
    Importable(Search),
    /// What a cache file says: `Result<Cached, String>`, the error in the words of `zpool import`.
    CacheFile(String),
    /// What is at a path: `Option<Kind>`, none if nothing can be found there.
    Kind(PathBuf),
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

impl Look {
    /// What is looked at, for messages.
    fn subject(&self) -> String {
        match self {
            Self::Kind(path) | Self::Disk(path) | Self::ClearLabels { path, .. } => {
                format!("'{}'", path.display())
            }
            Self::WithLabel(word) => format!("'{word}'"),
            Self::Importable(_) | Self::CacheFile(_) | Self::Uses(_) => "devices".to_owned(),
        }
    }

    /// How long the answer is waited for. Whether a pool is used by another host takes its time.
    fn deadline(&self) -> Duration {
        match self {
            Self::Importable(_) | Self::CacheFile(_) => Duration::from_secs(600),
            Self::Kind(_)
            | Self::Disk(_)
            | Self::Uses(_)
            | Self::ClearLabels { .. }
            | Self::WithLabel(_) => Duration::from_millis(4500),
        }
    }
}

/// What a cache file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cached {
    /// Guids of its pools.
    pub pools: Vec<u64>,
    /// Paths of their devices, those that exist.
    pub devices: Vec<PathBuf>,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file of so many bytes.
    File(u64),
    /// A block device.
    BlockDevice,
    /// Nothing that can be a vdev.
    Other,
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
    /// Nor that: a process has the device open, and its labels are no pool's. A pool whose member was overwritten
    /// lets it go for a replacement by itself.
    pub open: Vec<String>,
}

impl Uses {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.forcible.len() + self.firm.len() + self.open.len()
    }

    /// Those that are left; with `force`, what nothing overrides.
    pub fn left(self, force: bool) -> Vec<String> {
        let overridden = if force { Vec::new() } else { self.forcible };
        [overridden, self.firm, self.open].concat()
    }
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
    let subject = look.subject();
    let failed = |error: &dyn std::fmt::Display| format!("cannot look at {subject}: {error}");
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut child = Command::new(program)
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    // One that is left behind must not keep open what our own readers wait for the end of.
    let said = child.stderr.take().and_then(|mut said| {
        let pass_on = move || drop(std::io::copy(&mut said, &mut std::io::stderr()));
        std::thread::Builder::new().spawn(pass_on).ok()
    });
    let text = serde_json::to_vec(look).map_err(|error| failed(&error))?;
    if let Some(mut input) = child.stdin.take() {
        // one that is gone already is noticed below
        drop(input.write_all(&text));
    }
    let (sender, receiver) = channel();
    if let Some(output) = child.stdout.take() {
        let read = move || {
            let mut answer = String::new();
            let read = BufReader::new(output).read_line(&mut answer);
            // Nobody may wait for it any more.
            drop(sender.send(read.map(|_| answer)));
        };
        std::thread::Builder::new().spawn(read).map_err(|error| failed(&error))?;
    }
    let answer = match answer_in_time(&receiver, &child, look.deadline()) {
        Ok(answer) => answer.map_err(|error| failed(&error))?,
        Err(RecvTimeoutError::Disconnected) => String::new(),
        Err(RecvTimeoutError::Timeout) => {
            let seconds = look.deadline().as_secs_f32();
            return Err(failed(&format!("no answer within {seconds} s")));
        }
    };
    match serde_json::from_str(&answer) {
        Ok(answer) => {
            if left_behind::leave(&mut child)
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

/// Waits for an answer until the deadline, and beyond it while the machine is too busy to look.
fn answer_in_time<T>(
    receiver: &Receiver<T>,
    child: &Child,
    deadline: Duration,
) -> Result<T, RecvTimeoutError> {
    let longest = Instant::now() + deadline.max(LONGEST);
    let (mut answer, mut held_up) = (receiver.recv_timeout(deadline), 0);
    while matches!(answer, Err(RecvTimeoutError::Timeout))
        && Instant::now() < longest
        && held_up < LOOKS
    {
        held_up = if left_behind::is_held_up(child) { held_up + 1 } else { 0 };
        answer = receiver.recv_timeout(AGAIN);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_processor_is_waited_for_but_not_who_waits() {
        let asked = |text: &str| {
            let child = Command::new("sh").args(["-c", text]).stdout(Stdio::piped()).spawn();
            let mut child = child.unwrap();
            let (sender, receiver) = channel();
            let output = child.stdout.take().unwrap();
            std::thread::spawn(move || sender.send(BufReader::new(output).lines().next()));
            let answer = answer_in_time(&receiver, &child, Duration::from_millis(50));
            child.kill().unwrap();
            child.wait().unwrap();
            answer.map(|line| line.unwrap().unwrap())
        };
        let busy = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; echo done";
        assert_eq!(asked(busy).as_deref(), Ok("done"));
        assert_eq!(asked("exec sleep 60"), Err(RecvTimeoutError::Timeout));
    }
}
