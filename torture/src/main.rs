//! `torture [--seeds A..B] [--minutes N] [--jobs N] [--minimise SEED] [--plan FILE] [--show SEED]`.
//!
//! Prints one line for each seed; exit code 1 if one failed in another way than `--open FILE` tells of (a
//! piece of the reason on each line). Invariant: each seed runs in a process that
//! runs one at a time; one that hangs is ended and told of.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cenote_torture::{Plan, carry_out, draw, line, minimise};

/// As in the program itself. Workers keep what is freed, in small pages: pages given back and cleared again
/// took half of the time of a seed.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Longest time for one seed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Seeds one process runs: the memory of pools that were killed in it is not given back.
const SEEDS_OF_A_PROCESS: usize = 25;

#[derive(Default)]
struct Arguments {
    seeds: Option<Range<u64>>,
    minutes: Option<f64>,
    jobs: Option<usize>,
    minimise: Option<u64>,
    plan: Option<String>,
    shrink: bool,
    show: Option<u64>,
    commit: bool,
    /// Words of failures that are known and not mended yet.
    open: Vec<String>,
    worker: bool,
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: cargo xtask torture [--seeds A..B] [--minutes N] [--jobs N] [--commit] \
         [--open FILE] [--minimise SEED] [--plan FILE [--shrink]] [--show SEED]"
    );
    ExitCode::from(2)
}

fn arguments() -> Option<Arguments> {
    let mut out = Arguments::default();
    let mut all = std::env::args().skip(1);
    while let Some(word) = all.next() {
        match word.as_str() {
            "--seeds" => {
                let text = all.next()?;
                let (from, to) = text.split_once("..")?;
                out.seeds = Some(from.parse().ok()?..to.parse().ok()?);
            }
            "--minutes" => out.minutes = Some(all.next()?.parse().ok()?),
            "--jobs" => out.jobs = Some(all.next()?.parse().ok()?),
            "--minimise" => out.minimise = Some(all.next()?.parse().ok()?),
            "--plan" => out.plan = Some(all.next()?),
            "--shrink" => out.shrink = true,
            "--show" => out.show = Some(all.next()?.parse().ok()?),
            "--commit" => out.commit = true,
            "--open" => {
                let text = std::fs::read_to_string(all.next()?).ok()?;
                let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
                out.open = lines.map(str::to_owned).collect();
            }
            "--worker" => out.worker = true,
            _ => return None,
        }
    }
    Some(out)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else { return usage() };
    if arguments.worker {
        return worker();
    }
    if let Some(seed) = arguments.show {
        print!("{}", draw::plan(seed).to_text());
        return ExitCode::SUCCESS;
    }
    if let Some(seed) = arguments.minimise {
        return shrink(&draw::plan(seed));
    }
    if let Some(file) = &arguments.plan {
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
        let plan = text.and_then(|text| Plan::of_text(&text));
        return match plan {
            Ok(plan) if arguments.shrink => shrink(&plan),
            Ok(plan) => one(&plan),
            Err(reason) => {
                eprintln!("{file}: {reason}");
                ExitCode::from(2)
            }
        };
    }
    many(&arguments)
}

fn one(plan: &Plan) -> ExitCode {
    let outcome = carry_out(plan);
    println!("{} {}", line(plan, &outcome), outcome.digest());
    if outcome.verdict.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a reason is about: without the numbers in it, and without the number of the step.
fn kind(reason: &str) -> String {
    let reason = reason.split_once(": ").map_or(reason, |(_, rest)| rest);
    let words =
        reason.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.take(6).collect::<Vec<_>>().join(" ")
}

fn shrink(plan: &Plan) -> ExitCode {
    let first = carry_out(plan);
    let Err(reason) = first.verdict else {
        println!("# it does not fail");
        return ExitCode::SUCCESS;
    };
    let wanted = kind(&reason);
    eprintln!("# {reason}");
    let mut tried = 0;
    let mut fails = |plan: &Plan| {
        tried += 1;
        carry_out(plan).verdict.is_err_and(|reason| kind(&reason) == wanted)
    };
    let shortest = minimise::minimise(plan, &mut fails);
    let reason = carry_out(&shortest).verdict.err().unwrap_or_default();
    println!("# {} (of {} plans tried)", reason.replace('\n', " "), tried);
    print!("{}", shortest.to_text());
    ExitCode::FAILURE
}

/// Runs the seeds that come in, one a line.
fn worker() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    for seed in std::io::stdin().lines().map_while(Result::ok) {
        let Ok(seed) = seed.parse() else { return ExitCode::from(2) };
        let plan = draw::plan(seed);
        let outcome = carry_out(&plan);
        println!("{}", line(&plan, &outcome));
        let _ = std::io::stdout().flush();
    }
    ExitCode::SUCCESS
}

fn start() -> std::io::Result<Child> {
    let own = std::env::current_exe()?;
    let mut worker = Command::new(own);
    worker.arg("--worker").env("MIMALLOC_PURGE_DELAY", "-1").env("MIMALLOC_ALLOW_THP", "0");
    worker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// The first seed of a commit's own.
fn seed_of_commit() -> u64 {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let hash = text.ok().and_then(|text| u64::from_str_radix(text.get(..10)?, 16).ok());
    hash.unwrap_or(0)
}

/// Runs seeds in processes of their own.
fn many(arguments: &Arguments) -> ExitCode {
    let begin = Instant::now();
    let end = arguments.minutes.map(|minutes| begin + Duration::from_secs_f64(minutes * 60.0));
    let from = if arguments.commit { seed_of_commit() } else { 0 };
    let all = match (&arguments.seeds, end) {
        (Some(seeds), _) => seeds.clone(),
        (None, Some(_)) => from..u64::MAX,
        (None, None) => from..from + 1000,
    };
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(all.start);
    let (failed, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let known = AtomicU64::new(0);
    let broken = AtomicBool::new(false);
    let output = Mutex::new(std::io::stdout());
    let say = |text: &str| {
        let mut output = output.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = writeln!(output, "{text}");
    };
    let take = || {
        let seed = next.fetch_add(1, SeqCst);
        (seed < all.end && end.is_none_or(|end| Instant::now() < end)).then_some(seed)
    };
    let job = || {
        let mut seed = take();
        while seed.is_some() && !broken.load(SeqCst) {
            match serve(&mut seed, &take, &mut |text| {
                done.fetch_add(1, SeqCst);
                let has_failed = text.contains(" FAILED ");
                let is_known = has_failed && arguments.open.iter().any(|open| text.contains(open));
                failed.fetch_add(u64::from(has_failed && !is_known), SeqCst);
                known.fetch_add(u64::from(is_known), SeqCst);
                say(&if is_known { text.replace(" FAILED ", " known ") } else { text.to_owned() });
            }) {
                Ok(()) => {}
                Err(error) => {
                    eprintln!("no process for seeds: {error}");
                    broken.store(true, SeqCst);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.unwrap_or(jobs).max(1) {
            scope.spawn(job);
        }
    });
    let (failed, done) = (failed.load(SeqCst), done.load(SeqCst));
    let known = known.load(SeqCst);
    println!(
        "{done} seeds, {failed} failed, {known} in ways that are known, in {:.0?}",
        begin.elapsed()
    );
    match failed == 0 && done > 0 && !broken.load(SeqCst) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Has one process run `seed` and some after it, until there are none or it fails.
fn serve(
    seed: &mut Option<u64>,
    take: &dyn Fn() -> Option<u64>,
    say: &mut dyn FnMut(&str),
) -> std::io::Result<()> {
    let mut child = start()?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(std::io::Error::other("no pipes"));
    };
    let (send, lines) = channel();
    let reader = std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let _ = lines.try_for_each(|line| send.send(line));
    });
    for _ in 0..SEEDS_OF_A_PROCESS {
        let Some(now) = *seed else { break };
        writeln!(input, "{now}")?;
        match patiently(&lines, child.id()) {
            Ok(text) => say(&text),
            Err(why) => {
                let word = match why {
                    RecvTimeoutError::Timeout => "hangs",
                    RecvTimeoutError::Disconnected => "the process ended",
                };
                say(&format!("seed {now} FAILED {word}"));
                *seed = take();
                let _ = child.kill();
                break;
            }
        }
        *seed = take();
    }
    drop(input);
    let _ = child.wait();
    let _ = reader.join();
    Ok(())
}

/// The next line, unless the process idles for too long: what it waits for a processor does not count.
fn patiently(lines: &Receiver<String>, process: u32) -> Result<String, RecvTimeoutError> {
    let (start, before) = (Instant::now(), queued(process));
    loop {
        match lines.recv_timeout(Duration::from_secs(1)) {
            Err(RecvTimeoutError::Timeout) => {}
            done => return done,
        }
        let waited = queued(process).saturating_sub(before);
        if start.elapsed().saturating_sub(waited) > PATIENCE {
            return Err(RecvTimeoutError::Timeout);
        }
    }
}

/// How long the threads of a process that live now were ready and not run.
fn queued(process: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| -> Option<u64> {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse().ok()
    };
    Duration::from_nanos(tasks.filter_map(of_task).fold(0, u64::saturating_add))
}
