//! `zed`: follows the events of all pools, runs scripts for them, tells people, and begins scrubs.
//!
//! Chapter 08, section 29. Invariant: an event is handled once, however often this program is started anew,
//! and none waits for a message that is slow to be sent.

mod channels;
mod notices;
mod schedule;
mod settings;
mod state;
mod variables;
mod zedlets;

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use cenote_control::client::Client;
use cenote_control::following::{Heard, follow};
use cenote_control::{run_directory, terminal};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::getopt::{Parsed, Spec};
use channels::Channels;
use schedule::Schedule;
use settings::Settings;
use state::State;
use zedlets::Zedlets;

const SPEC: Spec = Spec {
    letters: "hLVvfFMZId:p:P:s:j:b:c:",
    long: &[("help", 'h', false), ("version", 'V', false), ("background", 'B', false)],
};
const USAGE: &str = "Usage: zed [OPTION]...\n\n  -h        Display help.\n  -L        Display \
                     license information.\n  -V        Display version information.\n  -v        \
                     Be verbose.\n  -f        Force daemon to run: scripts of other owners, too.\n  \
                     -F        Run daemon in the foreground.\n  -M        Lock all pages in memory \
                     (nothing to do here).\n  -Z        Zero state: forget which events were \
                     handled.\n  -I        Idle daemon until there are pools (always done).\n  -d \
                     DIR    Read enabled ZEDLETs from DIR.\n  -p FILE   Write daemon's PID to \
                     FILE.\n  -P PATH   PATH for ZEDLETs (default: where zpool and zfs are, and \
                     the system's).\n  -s FILE   Write daemon state to FILE.\n  -j JOBS   Start \
                     at most JOBS at once.\n  -b LEN    Accepted and not needed.\n  -c FILE   Read \
                     what to do without scripts from FILE.\n";
/// Where the scripts are.
const ZEDLETS: &str = "/etc/zfs/zed.d";
/// Scripts at the same time.
const JOBS: usize = 16;
/// How long it may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) if parsed.operands.is_empty() => parsed,
        Ok(_) => return wrong("too many arguments"),
        Err(error) => return wrong(&error.message()),
    };
    if parsed.has('h') {
        terminal::out(USAGE);
        return ExitCode::SUCCESS;
    }
    if parsed.has('V') || parsed.has('L') {
        let license = if parsed.has('L') { "\nMIT OR Apache-2.0" } else { "" };
        terminal::out(&format!("{}{license}\n", crate::version::userland()));
        return ExitCode::SUCCESS;
    }
    let done = match parsed.has('F') || parsed.has('B') {
        true => Daemon::new(&parsed).map(Daemon::work),
        false => in_background(&parsed, arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            terminal::complain(&format!("zed: {reason}"));
            ExitCode::FAILURE
        }
    }
}

fn wrong(message: &str) -> ExitCode {
    terminal::complain(&format!("zed: {message}\n{}", USAGE.trim_end()));
    ExitCode::from(2)
}

/// The file of an option, or that name in the run directory.
fn file_of(parsed: &Parsed, letter: char, name: &str) -> PathBuf {
    let given = parsed.argument(letter).map(PathBuf::from);
    given.unwrap_or_else(|| run_directory::path().join(name))
}

/// Starts the same again without a terminal; returns when it follows events.
fn in_background(parsed: &Parsed, arguments: &[String]) -> Result<(), String> {
    let directory = run_directory::path();
    run_directory::create(&directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    let log = directory.join("zed.log");
    let said = |error| format!("{}: {error}", log.display());
    let out = File::options().create(true).append(true).open(&log).map_err(said)?;
    let program = std::env::current_exe().map_err(|error| format!("own program: {error}"))?;
    let mut child = Command::new(program)
        .arg("zed")
        .args(arguments)
        .arg("--background")
        .current_dir("/")
        .env("CENOTE_RUN_DIR", &directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(out)
        .spawn()
        .map_err(|error| format!("cannot start: {error}"))?;
    let pid_file = file_of(parsed, 'p', "zed.pid");
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let text = std::fs::read_to_string(&pid_file).unwrap_or_default();
        if text.trim() == child.id().to_string() {
            return Ok(());
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("ended at once ({status}); {} says why", log.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!("has not begun in time; see {}", log.display()))
}

/// All that is at work.
struct Daemon {
    /// Its lock tells others that this one runs.
    _claim: File,
    /// What scripts inherit.
    _third: Option<OwnedFd>,
    zedlets: Zedlets,
    channels: Channels,
    schedule: Schedule,
    settings: Settings,
    state: State,
    verbose: bool,
}

impl Daemon {
    fn new(parsed: &Parsed) -> Result<Self, String> {
        // OpenZFS's daemon hands its scripts /dev/zfs as number 3, where events come from. Here they find nothing there.
        let third = rustix::fs::open("/dev/null", OFlags::RDONLY, rustix::fs::Mode::empty());
        if parsed.has('B') {
            // It fails only if there is a session of its own already.
            let _ = rustix::process::setsid();
        }
        rustix::process::umask(rustix::fs::Mode::from_bits_retain(0o022));
        let jobs = match parsed.argument('j') {
            None => JOBS,
            Some(text) => text
                .parse()
                .ok()
                .filter(|jobs| (1..=1024).contains(jobs))
                .ok_or_else(|| format!("-j {text}: is to be a number from 1 to 1024"))?,
        };
        let settings = Settings::read(parsed.argument('c').map(Path::new))?;
        let directory = run_directory::path();
        run_directory::create(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        let claim = claim(&file_of(parsed, 'p', "zed.pid"))?;
        let state = State::read(file_of(parsed, 's', "zed.state"), parsed.has('Z'))?;
        let zedlets = Zedlets::new(zedlets::Options {
            directory: PathBuf::from(parsed.argument('d').unwrap_or(ZEDLETS)),
            path: parsed.argument('P').map(str::to_owned),
            jobs,
            force: parsed.has('f'),
            verbose: parsed.has('v'),
        })?;
        Ok(Self {
            _claim: claim,
            _third: third.ok(),
            zedlets,
            channels: Channels::start(&settings),
            schedule: Schedule::default(),
            settings,
            state,
            verbose: parsed.has('v'),
        })
    }

    /// Handles events until the process is ended.
    fn work(mut self) {
        let client = Client::default();
        let from = self.state.positions().clone();
        follow(&client, None, &from, |heard| {
            match heard {
                Heard::Events(pool, part) => {
                    if part.dropped > 0 {
                        terminal::complain(&format!("missed {} events of {pool}", part.dropped));
                    }
                    for event in &part.events {
                        if self.verbose {
                            terminal::complain(&format!(
                                "eid={} class={} pool={pool}",
                                event.number,
                                event.subclass()
                            ));
                        }
                        self.zedlets.run(event);
                        if let Some(notice) = notices::of(event, &self.settings) {
                            self.channels.send(notice);
                        }
                        self.schedule.heard(event, &mut self.state);
                        self.state.handled(&pool, part.life, event.number);
                    }
                    self.state.write();
                }
                Heard::End(pool) if self.verbose => {
                    terminal::complain(&format!("pool={pool} says no more"));
                }
                Heard::Refused(pool, why) => {
                    terminal::complain(&format!("pool={pool} cannot be followed: {why}"));
                }
                Heard::End(_) | Heard::Nothing => {}
            }
            self.zedlets.reap();
            self.schedule.begin_scrubs(&client, &self.settings, &mut self.state);
            true
        });
    }
}

/// Takes the file that tells the number of this process.
fn claim(path: &Path) -> Result<File, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let options = File::options().create(true).truncate(false).read(true).write(true).open(path);
    let mut file = options.map_err(failed)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let other = std::fs::read_to_string(path).unwrap_or_default();
        return Err(format!(
            "process {} follows events already (it holds {}); end it, or name another file with -p",
            other.trim(),
            path.display()
        ));
    }
    file.set_len(0).map_err(failed)?;
    writeln!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(file)
}
