//! `cenote replicate`: brings datasets, with their snapshots, to another place and keeps them up.
//!
//! Invariant: a dataset counts as replicated when the target was asked afterwards and has the newest snapshot, by its
//! guid, and all between; what was cut off goes on where it was.

mod place;
mod pump;
mod steps;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use cenote_control::terminal;
use cenote_control::text::{number, time};
use serde_json::{Value, json};

use crate::getopt::{Parsed, Spec};
use place::Place;
use pump::{Limit, Speed};
use steps::{Point, Step};

const SPEC: Spec = Spec {
    letters: "hrwpnvj",
    long: &[
        ("help", 'h', false),
        ("recursive", 'r', false),
        ("raw", 'w', false),
        ("properties", 'p', false),
        ("dry-run", 'n', false),
        ("verbose", 'v', false),
        ("json", 'j', false),
        ("snapshot", 'S', false),
        ("force", 'F', false),
        ("jobs", 'J', true),
        ("bandwidth", 'B', true),
        ("retries", 'R', true),
    ],
};
const HELP: &str = "usage: cenote replicate [options] [[USER@]HOST:]SOURCE [[USER@]HOST:]TARGET

Sends what the target lacks of the source's snapshots; what was cut off before goes on where it was, or begins anew
where the source has that no more. Other hosts are asked by ssh, and need a zfs command.

  -r, --recursive      what lies below, too
  -w, --raw            as it is encrypted on the disks
  -p, --properties     with properties
      --snapshot       takes a snapshot first (@cenote_DATE_TIME)
      --force          takes the target back to the newest snapshot that both have
      --jobs N         so many datasets at a time (2)
      --bandwidth N    at most so many bytes a second, as 20M
      --retries N      goes on so often after a stream was cut off (3)
  -n, --dry-run        says what would be sent
  -v, --verbose        says what is sent
  -j, --json           tells the result as JSON
";
/// How often it is shown how far it is.
const SHOWN: Duration = Duration::from_millis(500);
/// Before a stream that was cut off goes on.
const PAUSE: Duration = Duration::from_secs(1);
/// Steps for one dataset, so that it ends.
const STEPS_MAX: u32 = 100_000;

/// What is asked for.
struct Request {
    source: Place,
    target: Place,
    options: Parsed,
    jobs: usize,
    retries: u32,
    limit: Limit,
}

/// What came of one dataset.
struct Outcome {
    source: String,
    target: String,
    bytes: u64,
    seconds: f64,
    /// The newest snapshot and its guid, or why it is not there.
    result: Result<(String, u64), String>,
}

/// Runs it with the arguments after its name.
pub fn run(arguments: &[String]) -> ExitCode {
    let request = match parsed(arguments) {
        Ok(Some(request)) => request,
        Ok(None) => {
            terminal::out(HELP);
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            terminal::complain(&format!("cenote replicate: {message}"));
            return ExitCode::from(2);
        }
    };
    match request.all() {
        Ok(outcomes) => request.tell(&outcomes),
        Err(message) => {
            terminal::complain(&format!("cenote replicate: {message}"));
            ExitCode::FAILURE
        }
    }
}

fn parsed(arguments: &[String]) -> Result<Option<Request>, String> {
    let options = SPEC
        .parse(arguments)
        .map_err(|error| format!("{}; see cenote replicate -h", error.message()))?;
    if options.has('h') {
        return Ok(None);
    }
    let [source, target] = options.operands.as_slice() else {
        return Err("a source and a target are wanted; see cenote replicate -h".to_owned());
    };
    let (source, target) = (Place::parse(source)?, Place::parse(target)?);
    let count = |letter: char, otherwise: u32| match options.argument(letter) {
        None => Ok(otherwise),
        Some(text) => text.parse().map_err(|_| format!("'{text}' is no number")),
    };
    let (jobs, retries) = (count('J', 2)?, count('R', 3)?);
    let rate = options.argument('B').map(bytes).transpose()?;
    let jobs = usize::try_from(jobs).unwrap_or(1).clamp(1, 64);
    Ok(Some(Request { source, target, jobs, retries, limit: Limit::new(rate), options }))
}

/// Bytes, as `20M`.
fn bytes(text: &str) -> Result<u64, String> {
    let odd = || format!("'{text}' is no number of bytes, as 20M");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.to_ascii_lowercase().trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(odd()),
    };
    let number: u64 = digits.parse().map_err(|_| odd())?;
    number.checked_mul(1 << shift).filter(|rate| *rate > 0).ok_or_else(odd)
}

impl Request {
    fn has(&self, letter: char) -> bool {
        self.options.has(letter)
    }

    /// Every dataset, those above first; several at a time.
    fn all(&self) -> Result<Vec<Outcome>, String> {
        let top = &self.source.dataset;
        let mut list = vec!["list", "-H", "-o", "name", "-t", "filesystem,volume"];
        list.extend(if self.has('r') { &["-r"][..] } else { &["-d", "0"] });
        list.push(top);
        let mut names: Vec<String> = self.source.ask(&list)?.lines().map(str::to_owned).collect();
        names.sort();
        if self.has('S') {
            self.take_snapshot()?;
        }
        let depth = |name: &String| name.matches('/').count();
        let (mut outcomes, mut failed): (Vec<Outcome>, Vec<String>) = Default::default();
        let deepest = names.iter().map(depth).max().unwrap_or(0);
        for level in 0..=deepest {
            let of: Vec<&String> = names.iter().filter(|name| depth(name) == level).collect();
            let is_lost =
                |name: &str| failed.iter().any(|above| name.starts_with(&format!("{above}/")));
            let (lost, due): (Vec<&String>, Vec<&String>) =
                of.into_iter().partition(|name| is_lost(name));
            let left_out = |name: &&String| Outcome {
                source: (*name).clone(),
                target: self.target.of(name, top),
                bytes: 0,
                seconds: 0.0,
                result: Err("what it lies below is not there".to_owned()),
            };
            outcomes.extend(lost.iter().map(left_out));
            outcomes.extend(self.level(&due));
            let bad = outcomes.iter().filter(|outcome| outcome.result.is_err());
            failed = bad.map(|outcome| outcome.source.clone()).collect();
        }
        outcomes.sort_by(|one, other| one.source.cmp(&other.source));
        Ok(outcomes)
    }

    fn take_snapshot(&self) -> Result<(), String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let at = time::moment(now.as_secs());
        let date = format!("{:04}-{:02}-{:02}", at.year, at.month, at.day);
        let (hour, minute, second) = (at.hour, at.minute, at.second);
        let name =
            format!("{}@cenote_{date}_{hour:02}:{minute:02}:{second:02}", self.source.dataset);
        let mut command = vec!["snapshot"];
        command.extend(self.has('r').then_some("-r"));
        command.push(&name);
        if self.has('n') {
            if !self.has('j') {
                let words = command.join(" ");
                terminal::out(&format!("would run: zfs {words}, and send up to that\n"));
            }
            return Ok(());
        }
        self.source.ask(&command).map(drop)
    }

    /// Datasets of which none lies below another.
    fn level(&self, names: &[&String]) -> Vec<Outcome> {
        let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        pump::by_several(self.jobs.min(names.len()), || {
            while let Some(name) = names.get(next.fetch_add(1, Relaxed)) {
                let outcome = self.one(name);
                outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
            }
        });
        outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn one(&self, name: &str) -> Outcome {
        let target = self.target.of(name, &self.source.dataset);
        let (begun, sent) = (Instant::now(), AtomicU64::new(0));
        let result = self.brought_up(name, &target, &sent);
        let (bytes, seconds) = (sent.load(Relaxed), begun.elapsed().as_secs_f64());
        Outcome { source: name.to_owned(), target, bytes, seconds, result }
    }

    fn points(&self, place: &Place, of: &str, kinds: &str) -> Result<Vec<Point>, String> {
        let list =
            ["list", "-Hp", "-d", "1", "-t", kinds, "-o", "name,guid", "-s", "createtxg", of];
        Ok(steps::points(&place.ask(&list)?, of))
    }

    /// The snapshots of the target; none if it does not exist.
    fn at_target(&self, target: &str) -> Result<Option<Vec<Point>>, String> {
        match self.points(&self.target, target, "snapshot") {
            Ok(points) => Ok(Some(points)),
            Err(words) if words.contains("does not exist") => Ok(None),
            Err(words) => Err(words),
        }
    }

    /// Step by step, until nothing is missing. The newest snapshot and its guid.
    fn brought_up(
        &self,
        name: &str,
        target: &str,
        sent: &AtomicU64,
    ) -> Result<(String, u64), String> {
        let mut retries = self.retries;
        for _ in 0..STEPS_MAX {
            let source = self.points(&self.source, name, "snapshot,bookmark")?;
            let there = self.at_target(target)?;
            let token = match &there {
                None => None,
                Some(_) => self.token(target)?,
            };
            if let Some(why) = token.as_ref().and_then(|token| self.why_lost(token)) {
                if self.gives_up_partial(name, target, &why)? {
                    continue;
                }
                return Ok((String::new(), 0));
            }
            let step = match &token {
                Some(_) => None,
                None => Some(steps::next(&source, there.as_deref(), self.has('F'))?),
            };
            if step == Some(Step::Done) {
                let missing = steps::missing(&source, there.as_deref().unwrap_or(&[]));
                let newest = source.iter().rev().find(|point| point.name.starts_with('@'));
                return match (missing.is_empty(), newest) {
                    (true, Some(newest)) => Ok((newest.name.clone(), newest.guid)),
                    _ => Err(format!("the target lacks {}", missing.join(", "))),
                };
            }
            let words = self.send_words(name, token.as_deref(), step.as_ref());
            if self.has('n') {
                terminal::out(&format!("would run: zfs {} into {target}\n", words.join(" ")));
                return Ok((String::new(), 0));
            }
            let takes_back = matches!(step, Some(Step::Since { takes_back: true, .. }));
            match self.stream(name, target, &words, takes_back, sent) {
                Ok(()) => {}
                Err(why)
                    if retries > 0 && self.token(target).is_ok_and(|token| token.is_some()) =>
                {
                    retries -= 1;
                    terminal::complain(&format!(
                        "{name}: {why}\n{name}: goes on where it was cut off"
                    ));
                    std::thread::sleep(PAUSE);
                }
                Err(why) => return Err(why),
            }
        }
        Err("it does not come to an end".to_owned())
    }

    /// What a receive that was cut off has left.
    fn token(&self, target: &str) -> Result<Option<String>, String> {
        let got = self.target.ask(&["get", "-H", "-o", "value", "receive_resume_token", target])?;
        Ok(Some(got.trim().to_owned()).filter(|token| token != "-" && !token.is_empty()))
    }

    /// What the source says if what the target has received in part is not there any more.
    fn why_lost(&self, token: &str) -> Option<String> {
        let said = self.source.ask(&["send", "-nP", "-t", token]).err()?;
        steps::lost(&said).map(str::to_owned)
    }

    /// Gives up what the target has received in part of this dataset, or says only that it would.
    fn gives_up_partial(&self, name: &str, target: &str, why: &str) -> Result<bool, String> {
        if !steps::is_of(why, name) {
            return Err(format!("{why} (zfs receive -A {target} gives up what came of it)"));
        }
        if self.has('n') {
            terminal::out(&format!("would run: zfs receive -A {target}\n"));
            return Ok(false);
        }
        terminal::complain(&format!(
            "{name}: what {target} has received in part cannot be gone on with ({why}): begins anew"
        ));
        self.target.ask(&["receive", "-A", target]).map(|_| true)
    }

    /// The arguments of `zfs send`.
    fn send_words(&self, name: &str, token: Option<&str>, step: Option<&Step>) -> Vec<String> {
        let mut words = vec!["send".to_owned()];
        if let Some(token) = token {
            words.extend(["-t".to_owned(), token.to_owned()]);
            return words;
        }
        words.push(if self.has('w') { "-w".to_owned() } else { "-Lc".to_owned() });
        words.extend(self.has('p').then(|| "-p".to_owned()));
        match step {
            Some(Step::Since { from, to, all, .. }) => {
                let how = if *all { "-I" } else { "-i" };
                words.extend([how.to_owned(), format!("{name}{from}"), format!("{name}{to}")]);
            }
            Some(Step::Full(snapshot)) => words.push(format!("{name}{snapshot}")),
            Some(Step::Done) | None => {}
        }
        words
    }

    /// Sends one stream.
    fn stream(
        &self,
        name: &str,
        target: &str,
        words: &[String],
        takes_back: bool,
        sent: &AtomicU64,
    ) -> Result<(), String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let total = self.estimate(&words);
        if self.has('v') {
            let size = total.map_or_else(|| "?".to_owned(), number::bytes);
            terminal::complain(&format!("{name} -> {target}: zfs {} (~{size})", words.join(" ")));
        }
        let mut receive = vec!["receive", "-s", "-u"];
        receive.extend((takes_back || self.has('F')).then_some("-F"));
        receive.push(target);
        let (from, to) = (self.source.zfs(&words), self.target.zfs(&receive));
        let (done, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let result = std::thread::scope(|scope| {
            // Where no thread can be had nothing is shown.
            let show = || self.show(name, total, &done, &ended);
            drop(std::thread::Builder::new().spawn_scoped(scope, show));
            let result = pump::run(from, to, &self.limit, &done);
            ended.store(true, Relaxed);
            result
        });
        sent.fetch_add(done.load(Relaxed), Relaxed);
        result
    }

    /// How many bytes it will be, about.
    fn estimate(&self, words: &[&str]) -> Option<u64> {
        let (send, rest) = words.split_first()?;
        let asked = [&[*send, "-nP"][..], rest].concat();
        let said = self.source.ask(&asked).ok()?;
        said.lines().rev().find_map(|line| line.strip_prefix("size\t")?.trim().parse().ok())
    }

    /// Shows how far it is, to who sits at a terminal.
    fn show(&self, name: &str, total: Option<u64>, done: &AtomicU64, ended: &AtomicBool) {
        let is_seen = std::io::stderr().is_terminal() && !self.has('j');
        let (mut speed, mut last) = (Speed::default(), Instant::now());
        while !ended.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            if !is_seen || last.elapsed() < SHOWN {
                continue;
            }
            last = Instant::now();
            let gone = done.load(Relaxed);
            let rate = speed.at(last, gone);
            let mut line = format!("\r\x1b[K{name}: {}", number::bytes(gone));
            if let Some(total) = total.filter(|total| *total > 0) {
                let part = (gone as f64 / total as f64 * 100.0).min(100.0);
                line.push_str(&format!(" of {} ({part:.0}%)", number::bytes(total)));
            }
            line.push_str(&format!(", {}/s", number::bytes(rate as u64)));
            if let Some(rest) = total.and_then(|total| pump::rest(gone, total, rate)) {
                line.push_str(&format!(", {}:{:02} to go", rest / 60, rest % 60));
            }
            eprint!("{line}");
        }
        if is_seen {
            eprint!("\r\x1b[K");
        }
    }

    /// Says what came of it.
    fn tell(&self, outcomes: &[Outcome]) -> ExitCode {
        let is_well = outcomes.iter().all(|outcome| outcome.result.is_ok());
        if self.has('j') {
            let of = |one: &Outcome| -> Value {
                let mut told = json!({
                    "source": one.source, "target": one.target, "bytes": one.bytes, "seconds": one.seconds,
                });
                match &one.result {
                    Ok((snapshot, guid)) => {
                        told["snapshot"] = json!(snapshot);
                        told["guid"] = json!(guid.to_string());
                    }
                    Err(why) => told["error"] = json!(why),
                }
                told
            };
            let all: Vec<Value> = outcomes.iter().map(of).collect();
            terminal::out(&format!("{}\n", json!({ "datasets": all, "dry_run": self.has('n') })));
        }
        for one in outcomes {
            match &one.result {
                Err(why) => terminal::complain(&format!("{} -> {}: {why}", one.source, one.target)),
                Ok((snapshot, _)) if !self.has('j') && !self.has('n') => {
                    let (bytes, seconds) = (number::bytes(one.bytes), one.seconds);
                    let Outcome { source, target, .. } = one;
                    terminal::out(&format!(
                        "{source} -> {target}: {snapshot} is there ({bytes} in {seconds:.1} s)\n"
                    ));
                }
                Ok(_) => {}
            }
        }
        if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn limits_are_read() {
        assert_eq!((bytes("20M"), bytes("512"), bytes("3kb")), (Ok(20 << 20), Ok(512), Ok(3072)));
        for odd in ["", "M", "0", "5x", "99999999999T"] {
            assert!(bytes(odd).is_err(), "{odd}");
        }
    }
}
