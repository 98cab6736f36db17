//! `zfs receive`.
//!
//! Invariant: the stream does not pass through here: the pool process reads it from our standard input.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::process::ExitCode;

use cenote_control::changes::{Change, ReceiveRequest, ReceivedNames};
use cenote_control::client::Client;
use cenote_control::plan::{NewKey, PropertySetting};
use cenote_control::properties;
use cenote_control::protocol::Part;
use cenote_control::report::DatasetKind;
use cenote_control::terminal;

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::{Parsed, Spec};
use crate::keys;
use crate::settings::dataset::{self, Subject};
use crate::usage::Tool;
use crate::zpool::common::{change, history_line};

const SPEC: Spec = Spec { letters: "o:x:dehMnuvFsAc", long: &[] };
/// Property that is no property but a snapshot to clone from.
const ORIGIN: &str = "origin";
/// Properties that are made with a dataset, or are no option of a receive.
const NOT_GIVEN: [&str; 2] = ["version", "volsize"];
/// What is made with a dataset, and is asked about when it is known what the stream is.
const OF_KEYS: [&str; 4] = ["encryption", "keyformat", "keylocation", "pbkdf2iters"];

/// Why nothing is asked for.
enum Refused {
    /// With this word on the command line, and the usage.
    Usage(String),
    /// For this reason.
    Line(String),
}

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("receive", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    if parsed.has('d') && parsed.has('e') {
        return wrong("invalid option combination: -d and -e are mutually exclusive");
    }
    let target = match parsed.operands.as_slice() {
        [] => return wrong("missing snapshot argument"),
        [target] => target,
        _ => return wrong("too many arguments"),
    };
    if parsed.has('A') {
        return abort(&parsed, target, arguments);
    }
    if parsed.has('c') && ['d', 'e', 'F', 's', 'u', 'h'].iter().any(|letter| parsed.has(*letter)) {
        let words = "corrective recv can not be used when combined with this flag";
        return fail(&format!("cannot receive: {words}"));
    }
    if std::io::stdin().is_terminal() {
        terminal::complain("Error: Backup stream can not be read from a terminal.");
        return fail("You must redirect standard input.");
    }
    let client = Client::default();
    let request = match request(&client, &parsed, target) {
        Ok(request) => request,
        Err(Refused::Usage(message)) => return wrong(&message),
        Err(Refused::Line(message)) => return fail(&message),
    };
    let kinds = [DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot];
    if let Err(problem) = names::check(target, &kinds) {
        return fail(&format!("cannot receive: invalid name '{target}': {problem}"));
    }
    let pool = names::pool_of(target);
    let order =
        change(Some(history_line("zfs", "receive", arguments)), Change::Receive(Box::new(request)));
    let stdin = std::io::stdin();
    let said = client.order_in_parts(pool, &order, &[stdin.as_fd()], |part| {
        if let Part::Said(lines) = part {
            lines.iter().for_each(|line| terminal::out(&format!("{line}\n")));
        }
    });
    match said {
        Ok(warnings) => {
            warnings.iter().for_each(|line| terminal::complain(line));
            ExitCode::SUCCESS
        }
        Err(failure) => fail(&failure.message),
    }
}

/// What is asked for.
fn request(client: &Client, parsed: &Parsed, target: &str) -> Result<ReceiveRequest, Refused> {
    let mut pairs = Vec::new();
    common::pairs(parsed.arguments('o'), &mut pairs).map_err(Refused::Usage)?;
    let mut excluded: Vec<String> = parsed.arguments('x').map(str::to_owned).collect();
    for (place, name) in excluded.iter().enumerate() {
        let is_again = excluded.iter().take(place).any(|other| other == name);
        if is_again || pairs.iter().any(|(other, _)| other == name) {
            return Err(Refused::Usage(format!("property '{name}' specified multiple times")));
        }
    }
    let mut given = pairs.iter().map(|(name, _)| name).chain(&excluded);
    if let Some(name) = given.find(|name| !can_be_given(name)) {
        return Err(Refused::Line(format!("cannot receive: invalid property '{name}'")));
    }
    let origin = pairs.iter().find(|(name, _)| name == ORIGIN).map(|(_, value)| value.clone());
    pairs.retain(|(name, _)| name != ORIGIN);
    excluded.retain(|name| name != ORIGIN);
    if let Some(origin) = origin.as_ref().filter(|origin| !common::exists(client, origin)) {
        let words = format!("specified origin fs ({origin}) does not exist");
        return Err(Refused::Line(format!("cannot receive: {words}")));
    }
    let names = match (parsed.has('d'), parsed.has('e')) {
        (true, _) => ReceivedNames::WithoutPool,
        (_, true) => ReceivedNames::LastPart,
        _ => ReceivedNames::Exact,
    };
    let dataset = target.split('@').next().unwrap_or(target);
    // The stream itself is not read here: into what is there comes more, as a rule.
    let is_more =
        names == ReceivedNames::Exact && origin.is_none() && common::exists(client, dataset);
    let start = match is_more {
        true => "cannot receive incremental stream",
        false => "cannot receive new filesystem stream",
    };
    let mut properties = settings(client, target, &pairs).map_err(|words| {
        Refused::Line(format!("{start}: {words}\n{start}: invalid property value"))
    })?;
    let key = key(client, target, names, &mut properties)
        .map_err(|words| Refused::Line(format!("{start}: {words}")))?;
    Ok(ReceiveRequest {
        target: target.to_owned(),
        names,
        key,
        verbose: parsed.has('v'),
        dry_run: parsed.has('n'),
        resumable: parsed.has('s'),
        force: parsed.has('F'),
        keep_unmounted: parsed.has('u'),
        skip_holds: parsed.has('h'),
        properties,
        excluded,
        origin,
        corrective: parsed.has('c'),
    })
}

/// Whether `-o` and `-x` can be about a property.
fn can_be_given(name: &str) -> bool {
    match dataset::native(name) {
        Some(property) if property.name == ORIGIN || OF_KEYS.contains(&property.name) => true,
        Some(property) => {
            let is_made = property.is_read_only() || property.is_settable_once();
            !is_made && !NOT_GIVEN.contains(&property.name)
        }
        None => properties::is_user_property(name),
    }
}

/// What `-o` sets: whether it is for a filesystem or a volume, the stream will tell.
fn settings(
    client: &Client,
    target: &str,
    pairs: &[(String, String)],
) -> Result<Vec<PropertySetting>, String> {
    let subject = common::subject(client, target, DatasetKind::Filesystem, true, pairs);
    let volume = Subject { kind: DatasetKind::Volume, ..Subject::new(DatasetKind::Volume, true) };
    let parse = |(name, value): &(String, String)| {
        let parsed = dataset::parse(name, value, &subject);
        parsed.or_else(|words| dataset::parse(name, value, &volume).map_err(|_| words))
    };
    pairs.iter().map(parse).collect()
}

/// The key of what becomes an encryption root, which cannot be typed: the stream comes that way.
fn key(
    client: &Client,
    target: &str,
    names: ReceivedNames,
    properties: &mut Vec<PropertySetting>,
) -> Result<Option<NewKey>, String> {
    let is_own = |setting: &PropertySetting| {
        ["encryption", "keyformat", "pbkdf2iters"].contains(&setting.name.as_str())
    };
    if !properties.iter().any(is_own) {
        return Ok(None);
    }
    let dataset = target.split('@').next().unwrap_or(target);
    let location = properties.iter().find(|setting| setting.name == "keylocation");
    let location = location.and_then(|setting| setting.value.text()).unwrap_or("prompt");
    let is_root = properties.iter().any(|setting| setting.name == "keyformat");
    if is_root && location == "prompt" {
        return Err("Cannot use 'prompt' keylocation because stdin is in use.".to_owned());
    }
    let above = match names {
        ReceivedNames::Exact => common::encryption_above(client, dataset),
        _ => common::encryption_above(client, &format!("{dataset}/-")),
    };
    keys::new_key(dataset, properties, Some(&above))
}

/// Gives up what a receive has left.
fn abort(parsed: &Parsed, target: &str, arguments: &[String]) -> ExitCode {
    if ['d', 'e', 'n', 's', 'u'].iter().any(|letter| parsed.has(*letter)) {
        return Tool::Zfs.wrong("receive", "invalid option");
    }
    let client = Client::default();
    if let Err(message) = common::open(&client, target, &common::DATASETS, Some(0), &["type"]) {
        return Tool::Zfs.wrong("receive", &message);
    }
    let line = history_line("zfs", "receive", arguments);
    let change = Change::AbortReceive(target.to_owned());
    common::code(common::change(&client, target, Some(line), change))
}
