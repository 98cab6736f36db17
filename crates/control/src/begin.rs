//! Starting the process of a pool.
//!
//! `zpool import` and `zpool create` run this program again as `cenote pool-process`, with the request on its
//! standard input; it says on its standard output when the pool is served, or why it is not. Invariant:
//! the starter returns only when the pool answers on its socket, or with the reason why it does not.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::budget::Budget;
use crate::left_behind;
use crate::plan::CreatePool;
use crate::protocol::{Failure, FailureKind};
use crate::run_directory;

/// Where to look for pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    /// Files, devices and directories (`-d`); empty: the system's disks.
    pub places: Vec<PathBuf>,
    /// A missing log device is no obstacle (`-m`).
    pub missing_log: bool,
    /// Disks that do not answer are waited for as long as one takes to spin up: nobody waits for the answer (`-a`).
    pub is_patient: bool,
}

/// How far back to go when the newest state does not open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Back {
    /// Not at all.
    #[default]
    No,
    /// The last few transaction groups (`-F`).
    Few,
    /// As far as possible (`-FX`).
    Far,
    /// To this transaction group (`-T`).
    To(u64),
    /// To the checkpoint (`--rewind-to-checkpoint`).
    Checkpoint,
}

/// How to open a pool. Sent to its new process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// Guid of the pool.
    pub guid: u64,
    /// Name it has while it is imported.
    pub name: String,
    /// That name is not kept (`-t`).
    pub temporary: bool,
    /// Its state when it was looked whether another host uses it ([`crate::report::ImportReport::newest`]).
    pub watched: Option<(u64, u64, u64)>,
    /// Where its devices are.
    pub search: Search,
    /// What goes before all mountpoints (`-R`).
    pub altroot: Option<String>,
    /// Only for reading (`-o readonly=on`).
    pub read_only: bool,
    /// Also if devices that do not answer may hold a newer state (`-f`).
    pub force: bool,
    /// Go back.
    pub back: Back,
    /// Property `cachefile` is `none`.
    pub no_cache_file: bool,
}

/// Hidden command that makes this program a pool process.
pub const COMMAND: &str = "pool-process";

/// What a pool process begins with.
#[derive(Debug, Serialize, Deserialize)]
pub enum Beginning {
    /// A pool that is there.
    Open(OpenRequest),
    /// A pool to be made.
    Create(Box<CreatePool>),
}

impl Beginning {
    /// Name the pool has while its process runs.
    pub fn name(&self) -> &str {
        match self {
            Beginning::Open(request) => &request.name,
            Beginning::Create(plan) => plan.imported_name(),
        }
    }

    /// The start of a refusal.
    pub fn cannot(&self) -> String {
        match self {
            Beginning::Open(request) => format!("cannot import '{}'", request.name),
            Beginning::Create(plan) => format!("cannot create '{}'", plan.name),
        }
    }
}

/// What the child says on its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// The pool answers on its socket.
    Ready,
    /// It does not, and never will.
    Failed(Failure),
}

/// Starts the process of a pool and waits until it serves.
///
/// # Errors
/// With the reason, ready to print.
pub fn start(request: &Beginning) -> Result<(), Failure> {
    let cannot = |what: &str, error: &dyn std::fmt::Display| {
        let start = request.cannot();
        Failure::new(FailureKind::Other, format!("{start}: {what}: {error}"))
    };
    let directory = run_directory::path();
    let shown = directory.display().to_string();
    run_directory::create(&directory).map_err(|error| cannot(&shown, &error))?;
    let files = run_directory::files(&directory, request.name());
    let mut append = std::fs::File::options();
    let log = run_directory::no_link(append.create(true).append(true)).open(&files.log);
    let log = log.map_err(|error| cannot(&files.log.display().to_string(), &error))?;
    let program = std::env::current_exe().map_err(|error| cannot("own program", &error))?;
    let mut child = Command::new(program)
        .args([COMMAND, request.name()])
        .current_dir("/")
        .envs(Budget::now().variable())
        .env("CENOTE_RUN_DIR", &directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|error| cannot("pool process", &error))?;
    let text =
        Zeroizing::new(serde_json::to_vec(request).map_err(|error| cannot("request", &error))?);
    if let Some(mut input) = child.stdin.take() {
        // a child that is gone already is noticed below
        drop(input.write_all(&text));
    }
    let mut said = String::new();
    if let Some(mut output) = child.stdout.take() {
        drop(output.read_to_string(&mut said));
    }
    match serde_json::from_str::<Said>(&said) {
        Ok(Said::Ready) => Ok(()),
        Ok(Said::Failed(failure)) => {
            // It ends by itself now; nothing hangs on how, or on a device that holds it up.
            left_behind::leave(&mut child);
            Err(failure)
        }
        Err(_) => {
            let status = child.wait().map_err(|error| cannot("pool process", &error))?;
            let what = format!("its process ended ({status})");
            Err(cannot(&what, &last_words(&files.log)))
        }
    }
}

/// The end of the log, for a process that could not say why it ended.
fn last_words(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    let mut words: Vec<&str> = lines.into_iter().rev().collect();
    if words.is_empty() {
        words.push("no more is known");
    }
    words.join("\n")
}
