//! What a pool process does, from its start to the export of its pool.
//!
//! It leaves the session of the terminal, takes the pid file, opens or makes the pool, binds the socket,
//! says so on its standard output and serves. Invariant: what is said there is final: ready means that
//! the pool answers on its socket.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock, mpsc};

use cenote_control::begin::{Beginning, Said};
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::run_directory::{self, PoolFiles};
use cenote_control::server::{self, Ending, PoolService, Server};
use zeroize::Zeroizing;

use crate::{memory, opening};

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
    server: Server,
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
    allow_descriptors();
    let server = Server::default();
    let served = Arc::new(OnceLock::new());
    let listening = export_on_signals(served.clone(), server.ended());
    let no_thread = |error| other(format!("{start}: cannot start a thread: {error}"));
    let opened = listening.map_err(no_thread).and_then(|()| {
        tracing::info!(pool = %name, "opening");
        memory::begin();
        match &request {
            Beginning::Open(request) => opening::open(request),
            Beginning::Create(plan) => opening::create(plan),
        }
    });
    let bound = opened.and_then(|service| {
        drop(served.set(service.clone()));
        let listener = server::bind(&files.socket);
        let failed = |error| other(format!("{start}: {}: {error}", files.socket.display()));
        server.begin(listener.map_err(failed)?, service).map_err(no_thread)
    });
    match bound {
        Ok(()) => Ok(Prepared { server, files, claim }),
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
        let ending = self.server.ending();
        tracing::info!(?ending, "ended");
        for path in [&self.files.socket, &self.files.mounts, &self.files.pid] {
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

/// As many descriptors as this process may have: each thread that reads devices takes one.
fn allow_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "no more open files than at first");
    }
}

/// Exports the pool when this process is asked to end, so that no dead mount stays behind: streams are cut off, what is
/// in use is taken out of the tree of files and answers with errors from then on. Before the pool is
/// `served` nothing is mounted.
///
/// # Errors
/// If there is no thread for it.
fn export_on_signals(
    served: Arc<OnceLock<Arc<dyn PoolService>>>,
    ended: mpsc::Sender<Ending>,
) -> std::io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    let listen = move || {
        for signal in signals.forever() {
            tracing::info!(signal, "exporting");
            let Some(service) = served.get() else { std::process::exit(1) };
            match service.leave() {
                // Nobody waits any more once the first ending was taken.
                Ok(()) => drop(ended.send(Ending::Exported)),
                Err(failure) => {
                    tracing::error!(%failure, "ended without exporting");
                    std::process::exit(1);
                }
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).map(drop)
}

fn start_log(path: &Path) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("CENOTE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let writer = crate::log::Writer::new(path);
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    // What is wrong with the log would be told on standard error, which is the log.
    let log = log.with_writer(move || writer.clone()).log_internal_errors(false);
    // fails only if there is one already
    drop(log.with_ansi(false).try_init());
    log_panics();
}

/// A panic is told in the log, with the way that led there; who waits for that thread hears of it otherwise.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let way = std::backtrace::Backtrace::force_capture();
        tracing::error!(%way, "a mistake of Cenote's, report it with this log: {panic}");
    }));
}
