//! Bytes from one program to another, counted, slowed down if that is asked for.
//!
//! Invariant: no more bytes a second go over all pumps together than the limit says; what goes is counted when the
//! other end has taken it.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes taken at once.
const CHUNK: usize = 256 << 10;
/// How much may go at once after a pause, in seconds of the limit.
const BURST: f64 = 0.2;
/// How far back a speed looks.
const WINDOW: Duration = Duration::from_secs(10);

/// A limit for all pumps together.
pub(super) struct Limit {
    /// Bytes a second; none: no limit.
    rate: Option<f64>,
    /// When the next byte may go.
    next: Mutex<Instant>,
}

impl Limit {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Self { rate: rate.map(|rate| rate.max(1) as f64), next: Mutex::new(Instant::now()) }
    }

    /// Waits until so many bytes may go.
    fn wait(&self, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let pause = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let earliest = now.checked_sub(Duration::from_secs_f64(BURST)).unwrap_or(now);
            *next = (*next).max(earliest) + Duration::from_secs_f64(bytes as f64 / rate);
            next.saturating_duration_since(now)
        };
        std::thread::sleep(pause);
    }
}

/// How fast it went of late, and how long the rest will take.
#[derive(Default)]
pub(super) struct Speed(VecDeque<(Instant, u64)>);

impl Speed {
    /// So many bytes have gone at `now`: bytes a second.
    pub(super) fn at(&mut self, now: Instant, done: u64) -> f64 {
        self.0.push_back((now, done));
        while self.0.len() > 2
            && self.0.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW)
        {
            self.0.pop_front();
        }
        let Some((at, before)) = self.0.front() else { return 0.0 };
        let seconds = now.duration_since(*at).as_secs_f64();
        if seconds < 0.001 { 0.0 } else { done.saturating_sub(*before) as f64 / seconds }
    }
}

/// Seconds the rest takes at this speed; none if nothing moves, or more came than was expected.
pub(super) fn rest(done: u64, total: u64, speed: f64) -> Option<u64> {
    let left = total.checked_sub(done)?;
    (speed >= 1.0).then(|| (left as f64 / speed).ceil() as u64)
}

/// Lets `from` write to `to`. `done` counts.
///
/// # Errors
/// What the two complain of.
pub(super) fn run(
    mut from: Command,
    mut to: Command,
    limit: &Limit,
    done: &AtomicU64,
) -> Result<(), String> {
    let started = |error: std::io::Error| format!("cannot be run: {error}");
    let mut sender = from
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(started)?;
    let receiver = to.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut receiver = match receiver {
        Ok(receiver) => receiver,
        Err(error) => {
            drop(sender.kill());
            drop(sender.wait());
            return Err(started(error));
        }
    };
    let pipes = [sender.stderr.take(), receiver.stderr.take()];
    std::thread::scope(|scope| {
        let listen = |pipe: Option<ChildStderr>| {
            std::thread::Builder::new().spawn_scoped(scope, move || heard(pipe))
        };
        let [of_sender, of_receiver] = pipes.map(listen);
        let (of_sender, of_receiver) = match (of_sender, of_receiver) {
            (Ok(of_sender), Ok(of_receiver)) => (of_sender, of_receiver),
            (Err(error), _) | (_, Err(error)) => {
                // Nobody would read what they complain of, and they could wait for that for ever.
                for child in [&mut sender, &mut receiver] {
                    drop(child.kill());
                    drop(child.wait());
                }
                return Err(format!("cannot start a thread: {error}"));
            }
        };
        copy(&mut sender, &mut receiver, limit, done);
        let ends = [receiver.wait(), sender.wait()];
        let said = [of_receiver, of_sender].map(|thread| thread.join().unwrap_or_default());
        if ends.iter().all(|end| end.as_ref().is_ok_and(|status| status.success())) {
            return Ok(());
        }
        // What the receiver says, which comes first, is why the sender could not go on.
        let words: Vec<String> = said.into_iter().filter(|words| !words.is_empty()).collect();
        Err(words.join("; "))
    })
}

/// All that a program says. What cannot be read is not said.
fn heard(pipe: Option<ChildStderr>) -> String {
    let mut text = Vec::new();
    if let Some(mut pipe) = pipe {
        drop(pipe.read_to_end(&mut text));
    }
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// Does `work` in up to `threads` threads at once, this one among them: where no more can be had, with fewer.
pub(super) fn by_several(threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..threads {
            if std::thread::Builder::new().spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        work();
    });
}

/// Until one of the two has gone.
fn copy(sender: &mut Child, receiver: &mut Child, limit: &Limit, done: &AtomicU64) {
    let (Some(mut out), Some(mut into)) = (sender.stdout.take(), receiver.stdin.take()) else {
        return;
    };
    let mut chunk = vec![0; CHUNK];
    loop {
        let got = match out.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(got) => got,
        };
        limit.wait(got);
        if chunk.get(..got).is_none_or(|bytes| into.write_all(bytes).is_err()) {
            return;
        }
        done.fetch_add(got as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn bytes_go_and_are_counted_at_most_so_fast() {
        let (done, begun) = (AtomicU64::new(0), Instant::now());
        let limit = Limit::new(Some(1 << 20));
        run(sh("head -c 700000 /dev/zero"), sh("test $(wc -c) = 700000"), &limit, &done).unwrap();
        assert_eq!(done.load(Relaxed), 700_000);
        assert!(begun.elapsed() > Duration::from_millis(350), "{:?}", begun.elapsed());
    }

    #[test]
    fn who_fails_is_heard() {
        let (done, limit) = (AtomicU64::new(0), Limit::new(None));
        let failed =
            run(sh("yes"), sh("head -c 10 >/dev/null; echo full >&2; exit 1"), &limit, &done);
        assert!(failed.unwrap_err().starts_with("full"));
        let failed = run(sh("echo gone >&2; exit 3"), sh("cat >/dev/null"), &limit, &done);
        assert_eq!(failed.unwrap_err(), "gone");
    }

    #[test]
    fn a_rest_is_told_by_what_went_of_late() {
        let (mut speed, begun) = (Speed::default(), Instant::now());
        assert_eq!(speed.at(begun, 0), 0.0);
        assert_eq!(speed.at(begun + Duration::from_secs(2), 200) as u64, 100);
        assert_eq!(speed.at(begun + Duration::from_secs(30), 200) as u64, 0);
        assert_eq!(
            (rest(200, 1200, 100.0), rest(5, 4, 100.0), rest(0, 4, 0.0)),
            (Some(10), None, None)
        );
    }

    /// Runs one of these tests alone in a process in which no thread can be had: their stacks have no room.
    fn without_threads(test: &str) {
        let own = std::env::current_exe().unwrap();
        let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
        let out = Command::new(own)
            .args([name.as_str(), "--exact", "--test-threads=1"])
            .env("RUST_MIN_STACK", (1_u64 << 60).to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && said.contains("1 passed"), "{said}");
    }

    fn has_threads() -> bool {
        std::thread::Builder::new().spawn(|| {}).is_ok()
    }

    #[test]
    fn where_no_thread_can_be_had_nothing_is_sent() {
        if has_threads() {
            return without_threads("where_no_thread_can_be_had_nothing_is_sent");
        }
        let (done, limit) = (AtomicU64::new(0), Limit::new(None));
        let failed = run(sh("yes"), sh("cat >/dev/null"), &limit, &done).unwrap_err();
        assert!(failed.starts_with("cannot start a thread"), "{failed}");
    }

    #[test]
    fn where_no_thread_can_be_had_work_is_done_all_the_same() {
        if has_threads() {
            return without_threads("where_no_thread_can_be_had_work_is_done_all_the_same");
        }
        let left = AtomicU64::new(5);
        by_several(3, || {
            while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {}
        });
        assert_eq!(left.load(Relaxed), 0);
    }
}
