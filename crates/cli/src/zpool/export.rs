//! `zpool export`.
//!
//! Invariant: a pool process that has died is cleared away, so that the pool can be imported again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cenote_control::changes::Change;
use cenote_control::client::Client;

use super::common;
use crate::getopt::Spec;
use crate::leftovers;
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "afF", long: &[] };
/// How long a process is waited for whose pool is exported.
const END_TIME: Duration = Duration::from_secs(5);
/// How long what is left of it is, once its first thread has ended.
const LAST_THREADS_TIME: Duration = Duration::from_secs(2);

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("export", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let client = Client::default();
    let names = if parsed.has('a') {
        if !parsed.operands.is_empty() {
            return wrong("too many arguments");
        }
        client.pools()
    } else if parsed.operands.is_empty() {
        return wrong("missing pool argument");
    } else {
        parsed.operands.clone()
    };
    let force = parsed.has('f') || parsed.has('F');
    let line = common::history_line("zpool", "export", arguments);
    let mut failed = false;
    for name in &names {
        if let Some(problem) = common::name_problem(name) {
            terminal::complain(&format!("cannot open '{name}': {problem}"));
            failed = true;
            continue;
        }
        let process = client.process(name);
        match client.order(name, &common::change(Some(line.clone()), Change::Export { force })) {
            Ok(warnings) => {
                warnings.iter().for_each(|line| terminal::complain(line));
                wait_for_end(&client, name, process);
            }
            Err(failure) => {
                if client.knows(name) && leftovers::clear(&client, name) {
                    let message = format!("the process of '{name}' had died; cleared what it left");
                    terminal::complain(&message);
                } else {
                    terminal::complain(&failure.message);
                    failed = true;
                }
            }
        }
    }
    ExitCode::from(u8::from(failed))
}

/// Waits until the process has given its socket up, so that the next command sees no pool, and has
/// ended, so that its devices are free. Threads of it that wait for a silent device last as long as that pleases.
pub fn wait_for_end(client: &Client, pool: &str, process: Option<u32>) {
    let begun = Instant::now();
    let mut ending_since = None;
    while begun.elapsed() < END_TIME {
        let has_ended = match process.map_or(State::Ended, state_of) {
            State::Runs => false,
            State::Ending => {
                ending_since.get_or_insert_with(Instant::now).elapsed() >= LAST_THREADS_TIME
            }
            State::Ended => true,
        };
        if has_ended && !client.knows(pool) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How far a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// Its first thread has ended, others have not: it still holds what it opened.
    Ending,
    /// It is gone, or only waits to be buried.
    Ended,
}

fn state_of(process: u32) -> State {
    let facts = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = facts.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    let threads = || std::fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    match state {
        Some('Z' | 'X') if threads() > 1 => State::Ending,
        None | Some('Z' | 'X') => State::Ended,
        Some(_) => State::Runs,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::{State, state_of};

    #[test]
    fn a_process_has_not_ended_before_its_last_thread() {
        // The first thread ends at once, the other one at the end of input.
        let words = "import ctypes, sys, threading\n\
                     def other():\n print('begun', flush=True)\n sys.stdin.read()\n\
                     threading.Thread(target=other).start()\n\
                     ctypes.CDLL(None).syscall(SYS_EXIT, 0)";
        let words = words.replace("SYS_EXIT", &libc::SYS_exit.to_string());
        let python = Command::new("python3")
            .args(["-c", &words])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = python else { return println!("skipped: there is no python3") };
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let first_has_ended = || {
            let facts = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            facts.contains(") Z ")
        };
        while !first_has_ended() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(state_of(child.id()), State::Ending);
        child.stdin.take().unwrap().write_all(b"end").unwrap();
        while state_of(child.id()) != State::Ended {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert_eq!(state_of(child.id()), State::Ended);
    }
}
