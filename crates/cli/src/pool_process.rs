//! The pool process: how it is started, and what it does until its pool is exported.
//!
//! `zpool import` and `zpool create` run this program again as `cenote pool-process`, with the request on its
//! standard input. The child leaves the session of the terminal, takes the pid file, opens or
//! makes the pool, binds the socket, says so on its standard output and serves. Invariant: the starter
//! returns only when the pool answers on its socket, or with the reason why it does not.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use cenote_control::client::Client;
use cenote_control::plan::CreatePool;
use cenote_control::protocol::{Failure, FailureKind, Request};
use cenote_control::run_directory::{self, PoolFiles};
use cenote_control::server::{self, PoolService};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::backend::{self, OpenRequest};

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
    fn name(&self) -> &str {
        match self {
            Beginning::Open(request) => &request.name,
            Beginning::Create(plan) => plan.imported_name(),
        }
    }

    /// The start of a refusal.
    fn cannot(&self) -> String {
        match self {
            Beginning::Open(request) => format!("cannot import '{}'", request.name),
            Beginning::Create(plan) => format!("cannot create '{}'", plan.name),
        }
    }
}

/// What the child says on its standard output.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Ready,
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
    let log = std::fs::File::options().create(true).append(true).open(&files.log);
    let log = log.map_err(|error| cannot(&files.log.display().to_string(), &error))?;
    let program = std::env::current_exe().map_err(|error| cannot("own program", &error))?;
    let mut child = Command::new(program)
        .args([COMMAND, request.name()])
        .current_dir("/")
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
            // it ends by itself now; nothing hangs on how
            drop(child.wait());
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

/// The process itself.
pub fn run() -> ExitCode {
    // a session of its own; it fails only if it has one already
    let _ = rustix::process::setsid();
    let failed = match prepare() {
        Ok(prepared) => return prepared.serve(),
        Err(failure) => failure,
    };
    tracing::error!("{failed}");
    say(&Said::Failed(failed));
    ExitCode::FAILURE
}

/// A pool that is open and whose socket is bound.
struct Prepared {
    service: Arc<dyn PoolService>,
    listener: std::os::unix::net::UnixListener,
    files: PoolFiles,
    /// The lock of the pid file.
    claim: std::fs::File,
}

fn prepare() -> Result<Prepared, Failure> {
    let other = |text: String| Failure::new(FailureKind::Other, text);
    let mut text = Zeroizing::new(Vec::new());
    let read = std::io::stdin().lock().take(1 << 20).read_to_end(&mut text);
    read.map_err(|error| other(format!("request of the pool process: {error}")))?;
    let request: Beginning = serde_json::from_slice(&text)
        .map_err(|error| other(format!("request of the pool process: {error}")))?;
    let (name, start) = (request.name(), request.cannot());
    let directory = run_directory::path();
    let files = run_directory::files(&directory, name);
    let claim = run_directory::claim(&files, name).map_err(|error| {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            let message = match &request {
                Beginning::Create(_) => format!("{start}: pool already exists"),
                Beginning::Open(_) => format!(
                    "{start}: a pool with that name already exists\nuse the form 'zpool import \
                     <pool | id> <newpool>' to give it a new name"
                ),
            };
            return Failure::new(FailureKind::Already, message);
        }
        other(format!("{start}: {}: {error}", files.pid.display()))
    })?;
    start_log(&files.log);
    export_on_signals(name, &directory);
    tracing::info!(pool = %name, "opening");
    let opened = match &request {
        Beginning::Open(request) => backend::open(request),
        Beginning::Create(plan) => backend::create(plan),
    };
    let bound = opened.and_then(|service| {
        let listener = server::bind(&files.socket);
        let failed = |error| other(format!("{start}: {}: {error}", files.socket.display()));
        Ok((service, listener.map_err(failed)?))
    });
    match bound {
        Ok((service, listener)) => Ok(Prepared { service, listener, files, claim }),
        Err(failure) => {
            // while the claim is held, the file is this process's
            drop(std::fs::remove_file(&files.pid));
            drop(claim);
            Err(failure)
        }
    }
}

impl Prepared {
    fn serve(self) -> ExitCode {
        say(&Said::Ready);
        let ending = server::serve(self.listener, self.service);
        tracing::info!(?ending, "ended");
        for path in [&self.files.socket, &self.files.pid] {
            // left over, they are recognised as such
            drop(std::fs::remove_file(path));
        }
        drop(self.claim);
        ExitCode::SUCCESS
    }
}

/// Tells the starter, and gives its pipe back so that it sees the end of it.
fn say(said: &Said) {
    if let Ok(text) = serde_json::to_vec(said) {
        let mut out = std::io::stdout().lock();
        // the starter may have been killed; the pool is served nevertheless
        drop(out.write_all(&text).and_then(|()| out.flush()));
    }
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Exports the pool when this process is asked to end, so that no dead mount stays behind. What is
/// in use is taken out of the tree of files and answers with errors from then on.
fn export_on_signals(pool: &str, directory: &Path) {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = match signal_hook::iterator::Signals::new([SIGTERM, SIGINT]) {
        Ok(signals) => signals,
        Err(error) => {
            tracing::warn!(%error, "signals end this process without unmounting");
            return;
        }
    };
    let (client, pool) = (Client::new(directory.to_owned()), pool.to_owned());
    std::thread::spawn(move || {
        for signal in signals.forever() {
            tracing::info!(signal, "exporting");
            // by the same way as everybody's orders; before the socket is there nothing is mounted
            if let Err(failure) =
                client.order(&pool, &Request::Export { force: true, command: None })
            {
                tracing::error!(%failure, "ended without exporting");
                std::process::exit(1);
            }
        }
    });
}

fn start_log(path: &Path) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("CENOTE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let writer = crate::process_log::Writer::new(path);
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    let log = log.with_writer(move || writer.clone());
    // fails only if there is one already
    drop(log.with_ansi(false).try_init());
}
