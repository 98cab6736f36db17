//! The log of a pool process: bounded, and each thing once.
//!
//! Invariant: the log and the one before it together are never much longer than twice [`MOST`] bytes.
//! What is warned of again is left out, until something else is told (a device came back, writing goes
//! on) or [`AGAIN`] has passed; then it is said how often it was left out. A log that cannot be written
//! is done without: there is nowhere to say so.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes after which a log becomes the old one (`POOL.log.old`), of which there is one.
pub const MOST: u64 = 4 << 20;
/// After which time a warning is told again.
const AGAIN: Duration = Duration::from_secs(600);
/// Warnings that are remembered.
const REMEMBERED: usize = 1024;

/// What was warned of lately.
#[derive(Default)]
struct Told {
    lines: HashMap<u64, (Instant, u64)>,
    hasher: RandomState,
}

impl Told {
    /// What is to be written for `line`; none if it was told already.
    fn tell(&mut self, line: &str, now: Instant) -> Option<String> {
        // "TIME LEVEL where: what"; the time differs.
        let mut parts = line.splitn(2, ' ');
        let what = parts.nth(1).unwrap_or(line).trim_start();
        if !(what.starts_with("WARN") || what.starts_with("ERROR")) {
            if what.starts_with("INFO") {
                self.lines.clear();
            }
            return Some(line.to_owned());
        }
        let key = self.hasher.hash_one(without_numbers(what));
        if self.lines.len() >= REMEMBERED {
            self.lines.clear();
        }
        match self.lines.get_mut(&key) {
            Some((told, left_out)) if now.duration_since(*told) < AGAIN => {
                *left_out += 1;
                None
            }
            Some((told, left_out)) => {
                let times = std::mem::take(left_out);
                *told = now;
                Some(match times {
                    0 => line.to_owned(),
                    times => format!("{} (and {times} times before)\n", line.trim_end()),
                })
            }
            None => {
                self.lines.insert(key, (now, 0));
                Some(line.to_owned())
            }
        }
    }
}

/// The same warning for another place on a device is the same warning.
fn without_numbers(what: &str) -> String {
    what.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// Standard error, as a file that is exchanged when it has grown long.
struct Log {
    path: PathBuf,
    /// Bytes in it.
    size: u64,
    most: u64,
    told: Told,
}

impl Log {
    fn write_line(&mut self, line: &str) {
        let Some(line) = self.told.tell(line, Instant::now()) else { return };
        self.size = self.size.saturating_add(line.len() as u64);
        drop(io::stderr().write_all(line.as_bytes()));
        if self.size > self.most {
            self.size = 0;
            // Else it is tried again when it has grown as much once more.
            drop(exchange(&self.path));
        }
    }
}

/// The log becomes the old one; standard error goes on in a new one.
fn exchange(path: &Path) -> io::Result<()> {
    let beside = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    // Before the old one is moved away: there may be no descriptor for another.
    let file = std::fs::File::options().create(true).append(true).open(beside(".new"))?;
    std::fs::rename(path, beside(".old"))?;
    std::fs::rename(beside(".new"), path)?;
    rustix::stdio::dup2_stderr(&file)?;
    Ok(())
}

/// Writes lines into the log.
#[derive(Clone)]
pub struct Writer(Arc<Mutex<Log>>);

impl Writer {
    /// For standard error, which is the file at `path`.
    pub fn new(path: &Path) -> Self {
        let size = std::fs::metadata(path).map_or(0, |meta| meta.len());
        let log = Log { path: path.to_owned(), size, most: MOST, told: Told::default() };
        Self(Arc::new(Mutex::new(log)))
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.write_line(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_told_once_until_something_changes() {
        let mut told = Told::default();
        let start = Instant::now();
        let line = |second: u64, what: &str| format!("2026-11-23T08:00:{second:02}Z {what}\n");
        let failed = " ERROR cenote_engine::pool: a write failed vdev=0 offset=4096";
        assert!(told.tell(&line(1, failed), start).is_some());
        assert!(told.tell(&line(3, failed), start).is_none());
        let elsewhere = " ERROR cenote_engine::pool: a write failed vdev=0 offset=8192";
        assert!(told.tell(&line(5, elsewhere), start).is_none());
        assert!(told.tell(&line(6, "  WARN cenote_serve: request failed"), start).is_some());
        let later = told.tell(&line(9, failed), start + AGAIN).unwrap();
        assert!(later.ends_with("(and 2 times before)\n"), "{later}");
        assert!(told.tell(&line(10, "  INFO cenote: pool I/O goes on"), start).is_some());
        assert!(told.tell(&line(11, failed), start).is_some());
    }

    #[test]
    fn numbers_do_not_make_another_warning() {
        assert_eq!(without_numbers("vdev=10 offset=77"), without_numbers("vdev=2 offset=8"));
        assert_ne!(without_numbers("vdev=1"), without_numbers("leaf=1"));
    }
}
