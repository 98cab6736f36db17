//! `zfs send`.
//!
//! Invariant: the stream does not pass through here: the pool process writes it to our standard output.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cenote_control::changes::{Change, SendRequest};
use cenote_control::client::Client;
use cenote_control::protocol::{Failure, FailureKind, Part, Request};
use cenote_control::report::DatasetKind;
use cenote_control::terminal;
use cenote_control::text::{number, time};

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use crate::zpool::common::now;

const SPEC: Spec = Spec {
    letters: "i:I:RsDpVvnPLeht:cwbd:SX:",
    long: &[
        ("replicate", 'R', false),
        ("skip-missing", 's', false),
        ("redact", 'd', true),
        ("props", 'p', false),
        ("parsable", 'P', false),
        ("dedup", 'D', false),
        ("proctitle", 'V', false),
        ("verbose", 'v', false),
        ("dryrun", 'n', false),
        ("large-block", 'L', false),
        ("embed", 'e', false),
        ("resume", 't', true),
        ("compressed", 'c', false),
        ("raw", 'w', false),
        ("backup", 'b', false),
        ("holds", 'h', false),
        ("saved", 'S', false),
        ("exclude", 'X', true),
    ],
};
/// What is said of `-i` with a name that is neither a snapshot's nor a bookmark's.
const ASSUMED: &str = "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' \
                       prefix to avoid ambiguity.";
/// How often it is said how far it is.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why nothing is asked for.
enum Refused {
    /// With this word on the command line, and the usage.
    Usage(String),
    /// For this reason.
    Line(String),
}

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zfs.wrong("send", &error.message()),
    };
    let client = Client::default();
    let request = match request(&client, &parsed) {
        Ok(request) => request,
        Err(Refused::Usage(message)) => return Tool::Zfs.wrong("send", &message),
        Err(Refused::Line(message)) => return fail(&message),
    };
    let shows_progress = parsed.has('v');
    let pools = match &request.token {
        // Only the pool itself can read what the token says.
        Some(_) => client.pools(),
        None => vec![names::pool_of(&request.snapshot).to_owned()],
    };
    let mut last = Failure::new(FailureKind::NotFound, "cannot resume send: no pool is imported");
    for pool in pools {
        match send(&client, &pool, &request, shows_progress) {
            Ok(warnings) => {
                warnings.iter().for_each(|line| terminal::complain(line));
                return ExitCode::SUCCESS;
            }
            Err(failure) if request.token.is_some() && failure.kind == FailureKind::NotFound => {
                last = failure;
            }
            Err(failure) => return fail(&failure.message),
        }
    }
    fail(&last.message)
}

/// The datasets that `-X` leaves out.
fn excluded(parsed: &Parsed) -> Result<Vec<String>, Refused> {
    let names: Vec<String> =
        parsed.arguments('X').flat_map(|all| all.split(',')).map(str::to_owned).collect();
    let is_odd =
        |name: &&String| !name.contains('/') || names::check(name, &common::DATASETS).is_err();
    match names.iter().find(is_odd) {
        Some(name) => Err(Refused::Usage(format!("-X {name}: not a valid non-root dataset name."))),
        None => Ok(names),
    }
}

/// What is asked for.
fn request(client: &Client, parsed: &Parsed) -> Result<SendRequest, Refused> {
    let usage = |message: &str| Err(Refused::Usage(message.to_owned()));
    if parsed.has('D') {
        terminal::complain(
            "WARNING: deduplicated send is no longer supported.  A regular, non-deduplicated \
             stream will be generated.\n",
        );
    }
    let mut request = SendRequest {
        token: parsed.argument('t').map(str::to_owned),
        intermediates: parsed.has('I'),
        recursive: parsed.has('R'),
        skip_missing: parsed.has('s'),
        excluded: excluded(parsed)?,
        properties: parsed.has('p'),
        backup: parsed.has('b'),
        holds: parsed.has('h'),
        raw: parsed.has('w'),
        large_blocks: parsed.has('L'),
        embedded: parsed.has('e'),
        compressed: parsed.has('c'),
        dry_run: parsed.has('n'),
        verbose: parsed.has('v') || parsed.has('V') || parsed.has('P'),
        parsable: parsed.has('P'),
        saved: parsed.has('S'),
        ..SendRequest::default()
    };
    if parsed.has('d') && (request.recursive || request.intermediates) {
        return Err(Refused::Line("Error: multiple snapshots cannot be sent redacted.".to_owned()));
    }
    if parsed.has('d') && request.raw {
        return Err(Refused::Line("Error: raw sends may not be redacted.".to_owned()));
    }
    if !request.excluded.is_empty() && !request.recursive {
        let line = "Cannot specify dataset exclusion (-X) on a non-recursive send.";
        return Err(Refused::Line(line.to_owned()));
    }
    if request.skip_missing && !request.recursive {
        return usage("skip-missing flag can only be used in conjunction with replicate");
    }
    let operand = match (&request.token, parsed.operands.as_slice()) {
        (Some(_), []) => None,
        (None, []) => return usage("missing snapshot argument"),
        (None, [operand]) => Some(operand.clone()),
        _ => return usage("too many arguments"),
    };
    let combined = ['i', 'I', 'R', 'p', 'b', 'h', 'S'].iter().any(|letter| parsed.has(*letter));
    if parsed.arguments('i').chain(parsed.arguments('I')).count() > 1 {
        return usage("");
    }
    if request.token.is_some() && combined {
        return usage("invalid flags combined with -t");
    }
    if !request.dry_run && std::io::stdout().is_terminal() {
        let lines = "Error: Stream can not be written to a terminal.\nYou must redirect standard \
                     output.";
        return Err(Refused::Line(lines.to_owned()));
    }
    if request.saved {
        of_saved(client, parsed, operand.unwrap_or_default(), &mut request)?;
    } else if let Some(operand) = operand {
        let from = parsed.argument('I').or(parsed.argument('i'));
        of_snapshot(client, operand, (from, parsed.argument('d')), &mut request)?;
    }
    // All snapshots, from the first on.
    request.intermediates |= request.recursive && request.from.is_none();
    Ok(request)
}

/// Takes the name of what was received in part.
fn of_saved(
    client: &Client,
    parsed: &Parsed,
    operand: String,
    request: &mut SendRequest,
) -> Result<(), Refused> {
    let usage = |message: &str| Err(Refused::Usage(message.to_owned()));
    // The forms of blocks are those of the stream that was received.
    let others = ['i', 'I', 'R', 'p', 'b', 'h', 'L', 'e', 'c', 'w', 'd'];
    if others.iter().any(|letter| parsed.has(*letter)) {
        return usage("incompatible flags combined with saved send flag");
    }
    if operand.contains('@') {
        return usage("saved send must specify the dataset with partially-received state");
    }
    open_dataset(client, &operand)?;
    request.snapshot = operand;
    Ok(())
}

fn open_dataset(client: &Client, name: &str) -> Result<(), Refused> {
    names::check(name, &common::DATASETS)
        .map_err(|problem| Refused::Line(format!("cannot open '{name}': {problem}")))?;
    let found = common::open(client, name, &common::DATASETS, Some(0), &["type"]);
    found.map(drop).map_err(Refused::Line)
}

/// Takes the names of what is sent and of what it goes on from.
fn of_snapshot(
    client: &Client,
    operand: String,
    (from, redaction): (Option<&str>, Option<&str>),
    request: &mut SendRequest,
) -> Result<(), Refused> {
    let is_of_several = request.recursive || request.intermediates;
    if is_of_several && from.is_some_and(|from| from.contains('#')) {
        let line = "Error: multiple snapshots cannot be sent from a bookmark.";
        return Err(Refused::Line(line.to_owned()));
    }
    let is_listed = request.properties || request.backup || request.holds;
    if !operand.contains('@') && (is_of_several || is_listed) {
        let line = "Error: Unsupported flag with filesystem or bookmark.";
        return Err(Refused::Line(line.to_owned()));
    }
    let of = operand.split('@').next().unwrap_or_default();
    request.from = match is_of_several {
        true => from_of_several(client, &operand, of, from)?,
        false => from_of_one(client, &operand, of, from)?,
    };
    // A name without a dataset is one of what is sent.
    request.redaction = redaction.map(|name| match name.split_once('#') {
        Some(("", name)) => format!("{of}#{name}"),
        Some(_) => name.to_owned(),
        None => format!("{of}#{name}"),
    });
    request.snapshot = operand;
    Ok(())
}

/// What the one stream goes on from: a snapshot or bookmark, of whatever dataset.
fn from_of_one(
    client: &Client,
    operand: &str,
    of: &str,
    from: Option<&str>,
) -> Result<Option<String>, Refused> {
    let from = from.map(|from| match from.contains(['@', '#']) {
        true => from.to_owned(),
        false => {
            terminal::complain(ASSUMED);
            format!("@{from}")
        }
    });
    let from = from.map(|from| match from.starts_with(['@', '#']) {
        true => format!("{of}{from}"),
        false => from,
    });
    match operand.contains('@') {
        true => open_snapshot(client, operand)?,
        false => open_dataset(client, operand)?,
    }
    if let Some(from) = &from {
        match from.contains('@') {
            true => open_snapshot(client, from)?,
            false => drop(
                names::check(from, &[DatasetKind::Bookmark])
                    .map_err(|problem| Refused::Line(format!("cannot open '{from}': {problem}")))?,
            ),
        }
    }
    Ok(from)
}

/// What all of several streams go on from: a snapshot of what is sent, or what that was cloned from.
fn from_of_several(
    client: &Client,
    operand: &str,
    of: &str,
    from: Option<&str>,
) -> Result<Option<String>, Refused> {
    let usage = |message: &str| Err(Refused::Usage(message.to_owned()));
    let found = common::open(client, of, &common::DATASETS, Some(0), &["type", "origin"])
        .map_err(Refused::Line)?;
    let origin = found.first().and_then(|one| one.properties.value("origin")).unwrap_or("-");
    let from = match from {
        None => None,
        Some("") => {
            let line = format!("cannot send '{of}': zero-length incremental source");
            return Err(Refused::Line(line));
        }
        Some(from) if from == origin => Some(from.to_owned()),
        Some(from) => {
            let (path, short) = from.split_once('@').unwrap_or(("", from));
            if !path.is_empty() && path != of {
                return usage("incremental source must be in same filesystem");
            }
            if short.is_empty() || short.contains(['@', '/']) {
                return usage("invalid incremental source");
            }
            Some(format!("{of}@{short}"))
        }
    };
    from.iter().try_for_each(|from| open_snapshot(client, from))?;
    open_snapshot(client, operand)?;
    Ok(from)
}

/// Refuses a snapshot that is not there.
fn open_snapshot(client: &Client, name: &str) -> Result<(), Refused> {
    let found = common::open(client, name, &[DatasetKind::Snapshot], Some(0), &["type"]);
    found.map(drop).map_err(Refused::Line)
}

/// Gives the order, and says what there is to say.
fn send(
    client: &Client,
    pool: &str,
    request: &SendRequest,
    shows_progress: bool,
) -> Result<Vec<String>, Failure> {
    let order: Request = Change::Send(Box::new(request.clone())).into();
    let stdout = std::io::stdout();
    let mut name = String::new();
    let mut shown = Instant::now();
    let asked = Arc::new(AtomicBool::new(false));
    // Whoever wants to know how far it is: without this, the signal would end the program.
    if let Err(error) = signal_hook::flag::register(libc::SIGUSR1, asked.clone()) {
        terminal::complain(&format!("SIGUSR1 is not listened to: {error}"));
    }
    client.order_in_parts(pool, &order, &[stdout.as_fd()], |part| match part {
        Part::Said(lines) if request.dry_run => {
            lines.iter().for_each(|line| terminal::out(&format!("{line}\n")));
        }
        Part::Said(lines) => lines.iter().for_each(|line| terminal::complain(line)),
        Part::Sending(next) => {
            if shows_progress && !request.parsable {
                terminal::complain(&format!("TIME        SENT   SNAPSHOT {next}"));
            }
            name = next;
        }
        Part::Progress(progress)
            if shows_progress && shown.elapsed() >= INTERVAL || asked.swap(false, Relaxed) =>
        {
            shown = Instant::now();
            let at = time::of_day(now());
            let line = match request.parsable {
                true => format!("{at}\t{}\t{name}", progress.done),
                false => format!("{at}   {:>5}   {name}", number::bytes(progress.done)),
            };
            terminal::complain(&line);
        }
        _ => {}
    })
}
