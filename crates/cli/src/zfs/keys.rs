//! `zfs load-key` and `zfs unload-key`.
//!
//! Invariant: keys are read here, where the terminal and the user's files are, and wiped after they
//! were sent; the pool process never asks anybody.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use cenote_control::changes::{Change, LoadKeyRequest};
use cenote_control::client::Client;
use cenote_control::plan::{NewKey, PropertySetting};
use cenote_control::protocol::FailureKind;
use cenote_control::report::{DatasetKind, DatasetReport};
use cenote_control::secret::{SECRET_MAX, Secret};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use super::names;
use super::select::{self, Selection};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use crate::zpool::common::{change, history_line};
use cenote_control::terminal;

const LOAD: Spec = Spec { letters: "aL:nr", long: &[] };
const UNLOAD: Spec = Spec { letters: "ar", long: &[] };

/// Number of `encryption=off`.
const OFF: u64 = 2;
/// Rounds of PBKDF2 if nothing is said.
pub const DEFAULT_ITERATIONS: u64 = 350_000;
/// Exit code when a key could not be loaded or unloaded.
const KEY_FAILURE: u8 = 255;
/// Bytes of a raw key.
const RAW_LENGTH: usize = 32;
/// Least bytes of a passphrase.
const PASSPHRASE_LEAST: usize = 8;
/// Most bytes of a passphrase.
const PASSPHRASE_MOST: usize = 512;
/// How often a passphrase may be typed wrong.
const ATTEMPTS: u32 = 3;

const NEEDED: [&str; 5] = ["encryption", "encryptionroot", "keystatus", "keyformat", "keylocation"];

fn datasets(client: &Client, operands: &[String], recursive: bool) -> select::Found {
    let kinds = vec![DatasetKind::Filesystem, DatasetKind::Volume];
    let selection = Selection {
        operands: operands.to_vec(),
        kinds: kinds.clone(),
        operand_kinds: kinds,
        depth: if recursive || operands.is_empty() { None } else { Some(0) },
        properties: Some(NEEDED.iter().map(|name| (*name).to_owned()).collect()),
    };
    let mut found = select::select(client, &selection);
    found.datasets.sort_by(cenote_control::text::sort::by_name);
    found
}

fn value<'a>(dataset: &'a DatasetReport, property: &str) -> &'a str {
    dataset.properties.value(property).unwrap_or("-")
}

fn is_root(dataset: &DatasetReport) -> bool {
    value(dataset, "encryptionroot") == dataset.name
}

fn is_locked(dataset: &DatasetReport) -> bool {
    value(dataset, "keystatus") == "unavailable"
}

/// The one dataset named, or the complaint.
fn named(parsed: &Parsed, verb: &str) -> Result<Vec<String>, ExitCode> {
    let wrong = |message: &str| Err(Tool::Zfs.wrong(verb, message));
    match (parsed.has('a'), parsed.operands.as_slice()) {
        (true, []) => Ok(Vec::new()),
        (true, _) => wrong("Cannot specify dataset with -a option"),
        (false, []) => wrong("Missing dataset argument or -a option"),
        (false, [_]) => Ok(parsed.operands.clone()),
        (false, _) => wrong("Too many arguments"),
    }
}

/// Notes a command in the history of the pools it was about; only one that went well.
fn note(client: &Client, verb: &str, arguments: &[String], datasets: &[&DatasetReport]) {
    let pools: BTreeSet<&str> = datasets.iter().map(|one| names::pool_of(&one.name)).collect();
    for pool in pools {
        let line = history_line("zfs", verb, arguments);
        // pools that cannot be written keep no history
        drop(client.order(pool, &change(Some(line), Change::Log)));
    }
}

/// Runs `zfs load-key`.
pub fn load(arguments: &[String]) -> ExitCode {
    let parsed = match LOAD.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zfs.wrong("load-key", &error.message()),
    };
    let operands = match named(&parsed, "load-key") {
        Ok(operands) => operands,
        Err(code) => return code,
    };
    let location = parsed.argument('L');
    if location.is_some_and(|l| l != "prompt" && !l.contains("://")) {
        return Tool::Zfs.wrong("load-key", "Invalid keylocation");
    }
    let client = Client::default();
    let (many, check_only) = (parsed.has('a') || parsed.has('r'), parsed.has('n'));
    let found = datasets(&client, &operands, many);
    if !many {
        let Some(dataset) = found.datasets.first() else {
            return ExitCode::FAILURE;
        };
        let result = load_named(&client, dataset, location, check_only);
        if check_only {
            let done = u32::from(result.is_ok());
            terminal::out(&format!("{done} / 1 key(s) successfully verified\n"));
        }
        if result.is_ok() {
            note(&client, "load-key", arguments, &[dataset]);
        }
        return key_result(result);
    }
    let verb = if check_only { "verified" } else { "loaded" };
    let roots = found.datasets.iter().filter(|dataset| is_root(dataset) && is_locked(dataset));
    let roots: Vec<&DatasetReport> = roots.collect();
    let load = |root: &&&DatasetReport| load_named(&client, root, location, check_only).is_ok();
    let (attempted, done) = (roots.len(), roots.iter().filter(load).count());
    if done == attempted && !found.failed {
        note(&client, "load-key", arguments, &roots);
    }
    if attempted > 0 || (check_only && !parsed.has('a')) {
        terminal::out(&format!("{done} / {attempted} key(s) successfully {verb}\n"));
    }
    if found.failed {
        ExitCode::FAILURE
    } else {
        key_result((done == attempted).then_some(()).ok_or(()))
    }
}

fn key_result(result: Result<(), ()>) -> ExitCode {
    ExitCode::from(if result.is_ok() { 0 } else { KEY_FAILURE })
}

/// Loads the keys of all locked encryption roots of a pool, or of all pools; says what fails.
pub fn load_all(client: &Client, pool: Option<&str>) -> Result<(), ()> {
    let operands: Vec<String> = pool.into_iter().map(str::to_owned).collect();
    let found = datasets(client, &operands, true);
    let roots = found.datasets.iter().filter(|dataset| is_root(dataset) && is_locked(dataset));
    let (mut attempted, mut done) = (0, 0);
    for root in roots {
        attempted += 1;
        done += u32::from(load_named(client, root, None, false).is_ok());
    }
    if attempted > 0 {
        terminal::out(&format!("{done} / {attempted} keys successfully loaded\n"));
    }
    if done == attempted { Ok(()) } else { Err(()) }
}

/// Loads the key one filesystem needs, if it is locked; says what fails.
pub fn load_for_mount(client: &Client, name: &str) -> Result<(), ()> {
    let found = datasets(client, &[name.to_owned()], false);
    let Some(dataset) = found.datasets.first() else {
        return Err(());
    };
    if !is_locked(dataset) {
        return Ok(());
    }
    let root = value(dataset, "encryptionroot").to_owned();
    match datasets(client, &[root], false).datasets.first() {
        Some(root) => load_named(client, root, None, false),
        None => Err(()),
    }
}

/// Loads or checks one key; everything that goes wrong has been said when this fails.
fn load_named(
    client: &Client,
    dataset: &DatasetReport,
    location: Option<&str>,
    check_only: bool,
) -> Result<(), ()> {
    let name = &dataset.name;
    let fail = |message: String| {
        terminal::complain(&format!("Key load error: {message}"));
        Err(())
    };
    let root = value(dataset, "encryptionroot");
    if root == "-" {
        return fail(format!("'{name}' is not encrypted."));
    }
    if !is_root(dataset) {
        return fail(format!("Keys must be loaded for encryption root of '{name}' ({root})."));
    }
    if !check_only && !is_locked(dataset) {
        return fail(format!("Key already loaded for '{name}'."));
    }
    let location = location.unwrap_or(value(dataset, "keylocation"));
    let format = value(dataset, "keyformat");
    let interactive = location == "prompt" && std::io::stdin().is_terminal();
    for attempt in 1..=ATTEMPTS {
        let secret = match read_key(name, format, location).and_then(|key| check(key, format)) {
            Ok(secret) => secret,
            Err(message) if interactive && attempt < ATTEMPTS => {
                terminal::complain(&format!("Key load error: {message}"));
                continue;
            }
            Err(message) => return fail(message),
        };
        let request = LoadKeyRequest { dataset: name.clone(), check_only };
        match client.load_key(names::pool_of(name), request, &secret) {
            Ok(()) => return Ok(()),
            Err(failure) => {
                let again = failure.kind == FailureKind::WrongKey && interactive;
                terminal::complain(&failure.message);
                if !again {
                    return Err(());
                }
            }
        }
    }
    Err(())
}

/// Reads a key from where it lies, as it lies there.
fn read_key(name: &str, format: &str, location: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    if let Some(path) = location.strip_prefix("file://") {
        let file = std::fs::File::open(path).map_err(|error| {
            let words = match error.kind() {
                std::io::ErrorKind::NotFound => "No such file or directory".to_owned(),
                std::io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
                _ => error.to_string(),
            };
            format!("Failed to open key material file: {words}")
        })?;
        return read_some(file);
    }
    if location != "prompt" {
        return Err(format!("keylocation={location} is not supported yet"));
    }
    if !std::io::stdin().is_terminal() {
        return read_some(std::io::stdin().lock());
    }
    match format {
        "raw" => Err("Cannot enter raw keys on the terminal".to_owned()),
        "hex" => ask(&format!("Enter hex key for '{name}': ")),
        _ => ask(&format!("Enter passphrase for '{name}': ")),
    }
}

fn read_some(from: impl Read) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_MAX));
    let read = from.take(SECRET_MAX as u64).read_to_end(&mut bytes);
    read.map_err(|error| format!("Failed to read key material: {error}"))?;
    Ok(bytes)
}

/// Reads a line from the terminal without showing it.
fn ask(prompt: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    let problem = |error: std::io::Error| format!("Failed to read from the terminal: {error}");
    let input = std::io::stdin();
    let mut out = std::io::stderr();
    drop(out.write_all(prompt.as_bytes()).and_then(|()| out.flush()));
    let before = tcgetattr(&input).map_err(|error| problem(error.into()))?;
    let mut quiet = before.clone();
    quiet.local_modes.remove(LocalModes::ECHO);
    quiet.local_modes.insert(LocalModes::ECHONL);
    tcsetattr(&input, OptionalActions::Flush, &quiet).map_err(|error| problem(error.into()))?;
    let mut line = Zeroizing::new(String::with_capacity(PASSPHRASE_MOST * 2));
    let read = input.read_line(&mut line);
    // the terminal must come back whatever happened
    let _ = tcsetattr(&input, OptionalActions::Flush, &before);
    read.map_err(problem)?;
    Ok(Zeroizing::new(line.as_bytes().to_vec()))
}

/// Checks the form of a key and takes the newline off; what remains is sent.
fn check(key: Zeroizing<Vec<u8>>, format: &str) -> Result<Secret, String> {
    let without_newline = || {
        let end = key.strip_suffix(b"\n").unwrap_or(&key);
        end.strip_suffix(b"\r").unwrap_or(end)
    };
    let (kind, bytes, least, most) = match format {
        "raw" => ("Raw key", key.as_slice(), RAW_LENGTH, RAW_LENGTH),
        "hex" => ("Hex key", without_newline(), 2 * RAW_LENGTH, 2 * RAW_LENGTH),
        _ => ("Passphrase", without_newline(), PASSPHRASE_LEAST, PASSPHRASE_MOST),
    };
    let word = |length: usize, bound: &str| match kind {
        "Passphrase" => format!("({bound} {length})."),
        _ => format!("(expected {length})."),
    };
    if bytes.len() < least {
        return Err(format!("{kind} too short {}", word(least, "min")));
    }
    if bytes.len() > most {
        return Err(format!("{kind} too long {}", word(most, "max")));
    }
    if format == "hex" && !bytes.iter().all(u8::is_ascii_hexdigit) {
        return Err("Invalid hex key provided.".to_owned());
    }
    Ok(Secret(bytes.to_vec()))
}

/// The key of a new encryption root, as its properties demand: asks for it, and takes out of
/// `settings` what goes with the key. `inherited`: the encryption of the parent (`off` or a suite);
/// `None`: there is no parent. `None` comes back if the dataset becomes no encryption root.
///
/// # Errors
/// The words of OpenZFS, without `cannot create 'x': `.
pub fn new_key(
    name: &str,
    settings: &mut Vec<PropertySetting>,
    inherited: Option<&str>,
) -> Result<Option<NewKey>, String> {
    let find = |wanted: &str| {
        settings.iter().find(|setting| setting.name == wanted).map(|setting| setting.value.clone())
    };
    let number = |wanted: &str| find(wanted).and_then(|value| value.number());
    let parent_is_encrypted = inherited.is_some_and(|suite| suite != "off" && suite != "-");
    let encrypted = match number("encryption") {
        Some(OFF) => false,
        Some(_) => true,
        None => parent_is_encrypted,
    };
    let format = number("keyformat");
    let location = find("keylocation").and_then(|value| value.text().map(str::to_owned));
    let iterations = number("pbkdf2iters");
    if !encrypted {
        if format.is_some() || location.is_some() || iterations.is_some() {
            let words = "Encryption must be turned on to set encryption properties.";
            return Err(words.to_owned());
        }
        return Ok(None);
    }
    let Some(format) = format else {
        if location.is_some() || iterations.is_some() || !parent_is_encrypted {
            return Err("Keyformat required for new encryption root.".to_owned());
        }
        return Ok(None);
    };
    let format = match format {
        1 => "raw",
        2 => "hex",
        3 => "passphrase",
        _ => return Err("Keyformat required for new encryption root.".to_owned()),
    };
    if iterations.is_some() && format != "passphrase" {
        let words = "Cannot specify pbkdf2iters with a non-passphrase keyformat.";
        return Err(words.to_owned());
    }
    let location = location.unwrap_or_else(|| "prompt".to_owned());
    let secret = read_new_key(name, format, &location)?;
    let iterations = match format {
        "passphrase" => iterations.unwrap_or(DEFAULT_ITERATIONS),
        _ => 0,
    };
    let of_key = ["keyformat", "keylocation", "pbkdf2iters"];
    settings.retain(|setting| !of_key.contains(&setting.name.as_str()));
    Ok(Some(NewKey { secret, format: format.to_owned(), location, iterations }))
}

/// Reads a key that will be used from now on; typed twice on a terminal.
pub fn read_new_key(name: &str, format: &str, location: &str) -> Result<Secret, String> {
    let interactive = location == "prompt" && std::io::stdin().is_terminal();
    if !interactive {
        return read_key(name, format, location).and_then(|key| check(key, format));
    }
    let what = match format {
        "raw" => return Err("Cannot enter raw keys on the terminal".to_owned()),
        "hex" => "hex key",
        _ => "passphrase",
    };
    let first = check(ask(&format!("Enter new {what} for '{name}': "))?, format)?;
    let again = check(ask(&format!("Re-enter new {what} for '{name}': "))?, format)?;
    if first.0 != again.0 {
        return Err("Provided keys do not match.".to_owned());
    }
    Ok(first)
}

/// Runs `zfs unload-key`.
pub fn unload(arguments: &[String]) -> ExitCode {
    let parsed = match UNLOAD.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zfs.wrong("unload-key", &error.message()),
    };
    let operands = match named(&parsed, "unload-key") {
        Ok(operands) => operands,
        Err(code) => return code,
    };
    let client = Client::default();
    let many = parsed.has('a') || parsed.has('r');
    let found = datasets(&client, &operands, many);
    if !many {
        let Some(dataset) = found.datasets.first() else {
            return ExitCode::FAILURE;
        };
        let result = unload_named(&client, dataset);
        if result.is_ok() {
            note(&client, "unload-key", arguments, &[dataset]);
        }
        return key_result(result);
    }
    let roots = found.datasets.iter().filter(|dataset| is_root(dataset) && !is_locked(dataset));
    let roots: Vec<&DatasetReport> = roots.collect();
    let unload = |root: &&&DatasetReport| unload_named(&client, root).is_ok();
    let (attempted, done) = (roots.len(), roots.iter().filter(unload).count());
    if done == attempted && !found.failed {
        note(&client, "unload-key", arguments, &roots);
    }
    if attempted > 0 {
        terminal::out(&format!("{done} / {attempted} key(s) successfully unloaded\n"));
    }
    if found.failed {
        ExitCode::FAILURE
    } else {
        key_result((done == attempted).then_some(()).ok_or(()))
    }
}

fn unload_named(client: &Client, dataset: &DatasetReport) -> Result<(), ()> {
    let name = &dataset.name;
    let fail = |message: String| {
        terminal::complain(&format!("Key unload error: {message}"));
        Err(())
    };
    let root = value(dataset, "encryptionroot");
    if root == "-" {
        return fail(format!("'{name}' is not encrypted."));
    }
    if !is_root(dataset) {
        return fail(format!("Keys must be unloaded for encryption root of '{name}' ({root})."));
    }
    if is_locked(dataset) {
        return fail(format!("Key already unloaded for '{name}'."));
    }
    match client.order(names::pool_of(name), &Change::UnloadKey(name.clone()).into()) {
        Ok(_) => Ok(()),
        Err(failure) => {
            terminal::complain(&failure.message);
            Err(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_a_form() {
        let key = |text: &str, format: &str| {
            check(Zeroizing::new(text.as_bytes().to_vec()), format).map(|secret| secret.0.clone())
        };
        assert_eq!(key("passphrase101\n", "passphrase").unwrap(), b"passphrase101");
        assert_eq!(key("short", "passphrase"), Err("Passphrase too short (min 8).".into()));
        assert_eq!(key("short", "raw"), Err("Raw key too short (expected 32).".into()));
        assert_eq!(key(&"g".repeat(64), "hex"), Err("Invalid hex key provided.".into()));
        assert_eq!(key(&"a".repeat(65), "hex"), Err("Hex key too long (expected 64).".into()));
        assert_eq!(key(&format!("{}\n", "aF".repeat(32)), "hex").unwrap().len(), 64);
    }
}
