//! `zpool import`.
//!
//! Invariant: it returns when the pool is open, its keys are loaded and its filesystems are
//! mounted, as far as that was asked for; what could not be done is said and ends in exit code 1.

use std::path::PathBuf;
use std::process::ExitCode;

use cenote_control::begin::{self, Back, Beginning, OpenRequest, Search};
use cenote_control::changes::{Change, MountRequest};
use cenote_control::client::Client;
use cenote_control::look::{self, Cached, Look};
use cenote_control::properties;
use cenote_control::protocol::FailureKind;
use cenote_control::report::{ImportReport, ImportVdev};
use cenote_control::text::pool_import;

use super::{common, create, set};
use crate::getopt::{Parsed, Spec};
use crate::keys;
use crate::leftovers;
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec =
    Spec { letters: "aCc:d:DEfFlmnNo:R:stT:VX", long: &[("rewind-to-checkpoint", 'K', false)] };

/// What the options ask for.
struct Wanted {
    /// For each pool; guid and name are filled in later.
    request: OpenRequest,
    mount_options: Vec<String>,
    /// Pool properties to be set.
    properties: Vec<(String, String)>,
    /// Guids of the pools of a cache file (`-c`): no others.
    cached: Option<Vec<u64>>,
    all: bool,
    destroyed: bool,
    force: bool,
    load_keys: bool,
    mount: bool,
    dry_run: bool,
    exported_name: Option<String>,
    new_name: Option<String>,
    /// The command line, for the history.
    line: String,
}

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zpool.wrong("import", &error.message()),
    };
    match wanted(&parsed, common::history_line("zpool", "import", arguments)) {
        Ok(wanted) => import(&wanted),
        Err(code) => code,
    }
}

fn wanted(parsed: &Parsed, line: String) -> Result<Wanted, ExitCode> {
    let wrong = |message: &str| Tool::Zpool.wrong("import", message);
    let said = |message: String| {
        terminal::complain(&message);
        ExitCode::FAILURE
    };
    if let Some(message) = misused(parsed) {
        return Err(wrong(message));
    }
    if parsed.has('V') {
        return Err(said("zpool import -V is not supported yet".to_owned()));
    }
    let back = back(parsed).map_err(wrong)?;
    let read =
        |path: &str| -> Result<Cached, String> { look::ask(&Look::CacheFile(path.to_owned()))? };
    let cached = parsed.argument('c').map(read).transpose().map_err(said)?;
    let places = match &cached {
        Some(cached) => cached.devices.clone(),
        None => parsed.arguments('d').map(absolute).collect(),
    };
    let mut request = OpenRequest {
        search: Search { places, missing_log: parsed.has('m'), is_patient: parsed.has('a') },
        back,
        temporary: parsed.has('t'),
        force: parsed.has('f'),
        ..OpenRequest::default()
    };
    let (mount_options, properties) = settings(parsed, &mut request).map_err(said)?;
    let mut operands = parsed.operands.iter().cloned();
    Ok(Wanted {
        request,
        mount_options,
        properties,
        cached: cached.map(|cached| cached.pools),
        all: parsed.has('a'),
        destroyed: parsed.has('D'),
        force: parsed.has('f'),
        load_keys: parsed.has('l'),
        mount: !parsed.has('N'),
        dry_run: parsed.has('n'),
        exported_name: operands.next(),
        new_name: operands.next(),
        line,
    })
}

/// What is wrong with options that do not go together, or with the number of operands.
fn misused(parsed: &Parsed) -> Option<&'static str> {
    let both = |one, other| parsed.has(one) && parsed.has(other);
    let most = if parsed.has('a') { 0 } else { 2 };
    match () {
        () if both('c', 'd') => Some("-c is incompatible with -d"),
        () if both('c', 's') => Some("-c is incompatible with -s"),
        () if both('l', 'N') => Some("-l is incompatible with -N"),
        () if (parsed.has('n') || parsed.has('X')) && !parsed.has('F') => {
            Some("-n or -X only meaningful with -F")
        }
        () if parsed.operands.len() > most => Some("too many arguments"),
        () => None,
    }
}

/// How far back in time the pool is opened.
fn back(parsed: &Parsed) -> Result<Back, &'static str> {
    if let Some(text) = parsed.argument('T') {
        return text.parse().map(Back::To).map_err(|_| "invalid txg value");
    }
    Ok(match () {
        () if parsed.has('K') => Back::Checkpoint,
        () if parsed.has('F') && parsed.has('X') => Back::Far,
        () if parsed.has('F') => Back::Few,
        () => Back::No,
    })
}

/// Options of mounts, and properties to be set.
type Settings = (Vec<String>, Vec<(String, String)>);

/// Reads `-o` and `-R`; what concerns the import itself goes into `request`.
fn settings(parsed: &Parsed, request: &mut OpenRequest) -> Result<Settings, String> {
    let (mut mount_options, mut properties) = (Vec::new(), Vec::new());
    for option in parsed.arguments('o') {
        match option.split_once('=') {
            Some((name, value)) => {
                if !property(request, name, value)? {
                    properties.push((name.to_owned(), value.to_owned()));
                }
            }
            None => mount_options.extend(option.split(',').map(str::to_owned)),
        }
    }
    if let Some(root) = parsed.argument('R') {
        property(request, "altroot", root)?;
    }
    Ok((mount_options, properties))
}

/// The pool process runs in the root directory: paths must not depend on ours.
fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path))
}

/// Takes a property of the import itself; false if it is one of the pool, to be set later.
fn property(request: &mut OpenRequest, name: &str, value: &str) -> Result<bool, String> {
    let bad = |values: &str| {
        let name = properties::pool(name).map_or(name, |info| info.name);
        Err(format!("cannot import pool '': '{name}' must be one of '{values}'").replace(" ''", ""))
    };
    match properties::pool(name).map(|info| info.name) {
        Some("readonly") => match value {
            "on" => request.read_only = true,
            "off" => request.read_only = false,
            _ => return bad("on | off"),
        },
        Some("altroot") if value.starts_with('/') => request.altroot = Some(value.to_owned()),
        Some("altroot") => {
            return Err(format!("cannot import pool: bad alternate root '{value}'"));
        }
        Some("cachefile") => request.no_cache_file = value == "none",
        None if !name.starts_with("feature@") => {
            return Err(format!("property '{name}' is not a valid pool property"));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn import(wanted: &Wanted) -> ExitCode {
    let client = Client::default();
    let looked = match &wanted.cached {
        // No devices would mean: those of the system.
        Some(_) if wanted.request.search.places.is_empty() => Ok(Vec::new()),
        _ => look::importable(&wanted.request.search),
    };
    let mut found = match looked {
        Ok(found) => found,
        Err(message) => {
            terminal::complain(&message);
            return ExitCode::FAILURE;
        }
    };
    found.retain(|pool| pool.destroyed == wanted.destroyed);
    if let Some(cached) = &wanted.cached {
        found.retain(|pool| cached.contains(&pool.guid));
    }
    if wanted.exported_name.is_none() && !wanted.all {
        return list(&client, &found);
    }
    let chosen = match choose(wanted, &client, &found) {
        Ok(chosen) => chosen,
        Err(code) => return code,
    };
    let mut failed = false;
    for pool in chosen {
        failed |= one(wanted, &client, pool).is_err();
    }
    ExitCode::from(u8::from(failed))
}

/// Guids and names of the pools that are imported. One whose process died is not: importing it
/// again is how it comes back.
fn imported(client: &Client) -> Vec<(u64, String)> {
    let mut names = client.pools();
    names.retain(|name| client.lives(name));
    if names.is_empty() {
        return Vec::new();
    }
    common::ask(client, &names).pools.into_iter().map(|pool| (pool.guid, pool.name)).collect()
}

fn is_among(here: &[(u64, String)], pool: &ImportReport) -> bool {
    here.iter().any(|(guid, _)| *guid == pool.guid)
}

fn list(client: &Client, found: &[ImportReport]) -> ExitCode {
    let here = imported(client);
    let shown: Vec<String> =
        found.iter().filter(|pool| !is_among(&here, pool)).map(pool_import::render).collect();
    if shown.is_empty() {
        terminal::complain("no pools available to import");
    }
    terminal::out(&shown.join("\n"));
    ExitCode::SUCCESS
}

fn choose<'a>(
    wanted: &Wanted,
    client: &Client,
    found: &'a [ImportReport],
) -> Result<Vec<&'a ImportReport>, ExitCode> {
    let here = imported(client);
    let Some(name) = &wanted.exported_name else {
        let rest: Vec<_> = found.iter().filter(|pool| !is_among(&here, pool)).collect();
        if rest.is_empty() {
            terminal::complain("no pools available to import");
            return Err(ExitCode::SUCCESS);
        }
        return Ok(rest);
    };
    let called = |pool: &&ImportReport| pool.name == *name || pool.guid.to_string() == *name;
    let mut matching: Vec<_> = found.iter().filter(called).collect();
    if matching.len() > 1 {
        matching.retain(|pool| !is_among(&here, pool));
    }
    let new_name = wanted.new_name.as_ref();
    if let [pool] = matching.as_slice()
        && let Some((_, other)) = here.iter().find(|(guid, _)| *guid == pool.guid)
        && other != new_name.unwrap_or(&pool.name)
    {
        terminal::complain(&format!(
            "cannot import '{name}': this pool is imported already, as '{other}'"
        ));
        return Err(ExitCode::FAILURE);
    }
    let message = match matching.as_slice() {
        [_] => return Ok(matching),
        [] if here.iter().any(|(_, other)| other == name) => taken(name),
        [] => format!("cannot import '{name}': no such pool available"),
        _ => {
            format!(
                "cannot import '{name}': more than one matching pool\nimport by numeric ID \
                     instead"
            )
        }
    };
    terminal::complain(&message);
    Err(ExitCode::FAILURE)
}

/// What is said of a name that an imported pool has.
fn taken(name: &str) -> String {
    format!(
        "cannot import '{name}': a pool with that name already exists\nuse the form 'zpool import \
         <pool | id> <newpool>' to give it a new name"
    )
}

/// What is said of a pool that lacks nothing but devices of its intent log.
fn missing_log(pool: &ImportReport) -> Option<String> {
    fn line(vdev: &ImportVdev, depth: usize, mark: &str, out: &mut String) {
        let indent = " ".repeat(depth);
        out.push_str(&format!("\t{indent}{}{mark}\n", vdev.name));
        vdev.children.iter().for_each(|child| line(child, depth + 2, "", out));
    }
    let is_lost = |vdev: &&ImportVdev| vdev.state == "UNAVAIL";
    let data_is_there = !pool.root.children.iter().any(|vdev| is_lost(&vdev));
    let mut lost = pool.logs.iter().filter(is_lost).peekable();
    if !data_is_there || lost.peek().is_none() {
        return None;
    }
    let mut devices = String::new();
    lost.for_each(|vdev| line(vdev, 4, " [log]", &mut devices));
    Some(format!(
        "The devices below are missing or corrupted, use '-m' to import the pool anyway:\n\
         {devices}\ncannot import '{}': one or more devices is currently unavailable",
        pool.name
    ))
}

/// Imports one pool. Everything that goes wrong has been said when this fails.
fn one(wanted: &Wanted, client: &Client, pool: &ImportReport) -> Result<(), ()> {
    let name = wanted.new_name.clone().unwrap_or_else(|| pool.name.clone());
    let fail = |message: String| {
        terminal::complain(&message);
        Err(())
    };
    let problem = match &wanted.new_name {
        Some(new) => create::name_problem(new),
        None => common::name_problem(&name),
    };
    if let Some(problem) = problem {
        return fail(format!("cannot import '{name}': {problem}"));
    }
    // Its mounts stay until others are in their places, so that nobody writes into bare directories.
    let has_left = client.knows(&name);
    if has_left && !client.sweep(&name) {
        return fail(taken(&name));
    }
    if let Some(refusal) = refusal(wanted, pool, &name) {
        return fail(refusal);
    }
    if wanted.dry_run {
        return Ok(());
    }
    let (guid, watched) = (pool.guid, pool.newest);
    let request = OpenRequest { guid, name, watched, ..wanted.request.clone() };
    if let Err(failure) = begin::start(&Beginning::Open(request.clone())) {
        return fail(failure.message);
    }
    say_how_it_was_opened(client, &request.name, pool);
    let mut result = set_properties(wanted, client, &request.name);
    if wanted.load_keys {
        result = keys::load_all(client, Some(&request.name));
    }
    if wanted.mount {
        result = mount(wanted, client, &request.name).and(result);
    }
    if has_left {
        leftovers::clear_mounts(client, &request.name);
    }
    if result.is_ok() && !request.read_only {
        note(wanted, client, &request.name);
    }
    result
}

/// Why a pool that was found is not imported.
fn refusal(wanted: &Wanted, pool: &ImportReport, name: &str) -> Option<String> {
    if let Some((host, id, time)) = &pool.last_host
        && !wanted.force
    {
        return Some(pool_import::used_elsewhere(&pool.name, host, *id, *time));
    }
    if pool.destroyed && !wanted.force {
        return Some(format!("cannot import '{name}': pool was destroyed, use '-Df' to import it"));
    }
    if pool.importable || wanted.request.back != Back::No && !pool.in_use_elsewhere {
        return None;
    }
    missing_log(pool).or_else(|| {
        let unavailable = "one or more devices is currently unavailable";
        let reason = pool.reason.as_deref().unwrap_or(unavailable);
        Some(format!("cannot import '{}': {reason}", pool.name))
    })
}

/// Says if an older state of the pool was opened, or if it can only be read.
fn say_how_it_was_opened(client: &Client, name: &str, pool: &ImportReport) {
    let report = client.pool_report(name).unwrap_or_default();
    if let Some(back) = report.gone_back {
        terminal::out(&format!("{}\n", pool_import::gone_back(&pool.name, back)));
    }
    if let Some(because) = report.read_only_because {
        terminal::complain(&format!("'{name}' is open for reading only: {because}"));
    }
}

fn set_properties(wanted: &Wanted, client: &Client, name: &str) -> Result<(), ()> {
    let mut result = Ok(());
    for (property, value) in &wanted.properties {
        match set::set(client, name, property, value, None) {
            Ok(warnings) => warnings.iter().for_each(|line| terminal::complain(line)),
            Err(message) => {
                terminal::complain(&message);
                result = Err(());
            }
        }
    }
    result
}

/// Mounts the filesystems; a warning is a failure too.
fn mount(wanted: &Wanted, client: &Client, name: &str) -> Result<(), ()> {
    let mount = MountRequest { options: wanted.mount_options.clone(), ..MountRequest::default() };
    match common::carried_out(client, name, &Change::Mount(mount).into()) {
        Some(0) => Ok(()),
        _ => Err(()),
    }
}

/// Adds the command line to the pool's history.
fn note(wanted: &Wanted, client: &Client, name: &str) {
    let log = common::change(Some(wanted.line.clone()), Change::Log);
    // A pool that can only be read is told of in no history.
    if let Err(failure) = client.order(name, &log)
        && failure.kind != FailureKind::ReadOnly
    {
        terminal::complain(&failure.message);
    }
}
