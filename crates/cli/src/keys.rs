//! Keys of encrypted datasets: asking for them, reading and loading them.
//!
//! Invariant: keys are read here, where the terminal and the user's files are, and wiped after they
//! were sent; the pool process never asks anybody.

use std::io::{IsTerminal, Read, Write};

use cenote_control::changes::LoadKeyRequest;
use cenote_control::client::Client;
use cenote_control::plan::{NewKey, PropertySetting};
use cenote_control::protocol::FailureKind;
use cenote_control::report::{DatasetKind, DatasetReport};
use cenote_control::secret::{SECRET_MAX, Secret};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::datasets::names;
use crate::datasets::select::{self, Selection};
use cenote_control::terminal;

/// Number of `encryption=off`.
const OFF: u64 = 2;
/// Rounds of PBKDF2 if nothing is said.
pub const DEFAULT_ITERATIONS: u64 = 350_000;
/// Bytes of a raw key.
const RAW_LENGTH: usize = 32;
/// Least bytes of a passphrase.
const PASSPHRASE_LEAST: usize = 8;
/// Most bytes of a passphrase.
const PASSPHRASE_MOST: usize = 512;
/// How often a passphrase may be typed wrong.
const ATTEMPTS: u32 = 3;

const NEEDED: [&str; 5] = ["encryption", "encryptionroot", "keystatus", "keyformat", "keylocation"];

/// The filesystems and volumes named, or all; with what concerns their keys.
pub fn datasets(client: &Client, operands: &[String], recursive: bool) -> select::Found {
    let kinds = vec![DatasetKind::Filesystem, DatasetKind::Volume];
    let selection = Selection {
        operands: operands.to_vec(),
        kinds: kinds.clone(),
        operand_kinds: kinds,
        depth: if recursive || operands.is_empty() { None } else { Some(0) },
        properties: Some(NEEDED.iter().map(|name| (*name).to_owned()).collect()),
        ..Selection::default()
    };
    let mut found = select::select(client, &selection);
    found.datasets.sort_by(cenote_control::text::sort::by_name);
    found
}

/// A property of a dataset.
pub fn value<'a>(dataset: &'a DatasetReport, property: &str) -> &'a str {
    dataset.properties.value(property).unwrap_or("-")
}

/// It is an encryption root.
pub fn is_root(dataset: &DatasetReport) -> bool {
    value(dataset, "encryptionroot") == dataset.name
}

/// Its key is not loaded.
pub fn is_locked(dataset: &DatasetReport) -> bool {
    value(dataset, "keystatus") == "unavailable"
}

/// Loads the keys of all locked encryption roots of a pool, or of all pools; says what fails.
pub fn load_all(client: &Client, pool: Option<&str>) -> Result<(), ()> {
    let operands: Vec<String> = pool.into_iter().map(str::to_owned).collect();
    let found = datasets(client, &operands, true);
    let roots = found.datasets.iter().filter(|dataset| is_root(dataset) && is_locked(dataset));
    let (mut attempted, mut done) = (0, 0);
    for root in roots {
        attempted += 1;
        done += u32::from(load(client, root, None, false).is_ok());
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
        Some(root) => load(client, root, None, false),
        None => Err(()),
    }
}

/// Loads or checks one key; everything that goes wrong has been said when this fails.
pub fn load(
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

/// Checks the form of a key and takes what is not its first line off, as OpenZFS does; what remains is sent.
fn check(key: Zeroizing<Vec<u8>>, format: &str) -> Result<Secret, String> {
    let without_newline = || key.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let (kind, bytes, least, most) = match format {
        "raw" => ("Raw key", key.as_slice(), RAW_LENGTH, RAW_LENGTH),
        "hex" => {
            let line = without_newline();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            ("Hex key", line, 2 * RAW_LENGTH, 2 * RAW_LENGTH)
        }
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
