//! `zfs change-key`.
//!
//! Invariant: the new key is read here and wiped after it was sent.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::plan::{NewKey, PropertySetting};
use cenote_control::report::{DatasetKind, DatasetReport};

use super::common;
use crate::datasets::names;
use crate::getopt::{Parsed, Spec};
use crate::keys;
use crate::settings::dataset::{self, Subject};
use crate::usage::Tool;
use crate::zpool::common::{change, history_line};
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "lio:", long: &[] };
/// Exit code when a key could not be changed.
const KEY_FAILURE: u8 = 255;
const NEEDED: [&str; 6] =
    ["encryptionroot", "keystatus", "keyformat", "keylocation", "pbkdf2iters", "origin"];

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("change-key", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let mut pairs = Vec::new();
    if let Err(message) = common::pairs(parsed.arguments('o'), &mut pairs) {
        return common::fail(&message);
    }
    if parsed.has('i') && !pairs.is_empty() {
        return wrong("Properties not allowed for inheriting");
    }
    let name = match parsed.operands.as_slice() {
        [] => return wrong("Missing dataset argument"),
        [name] => name,
        _ => return wrong("Too many arguments"),
    };
    let client = Client::default();
    if parsed.has('l') && keys::load_for_mount(&client, name).is_err() {
        return ExitCode::from(KEY_FAILURE);
    }
    let own = match common::open(&client, name, &common::DATASETS, Some(0), &NEEDED) {
        Ok(own) => own,
        Err(message) => return wrong(&message),
    };
    let line = history_line("zfs", "change-key", arguments);
    let done = match own.first() {
        Some(dataset) => change_key(&client, &parsed, dataset, &pairs, line),
        None => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            terminal::complain(&message);
            ExitCode::from(KEY_FAILURE)
        }
    }
}

fn change_key(
    client: &Client,
    parsed: &Parsed,
    own: &DatasetReport,
    pairs: &[(String, String)],
    line: String,
) -> Result<(), String> {
    let error = |words: &str| format!("Key change error: {words}");
    let value = |name: &str| own.properties.value(name).unwrap_or("");
    let root = value("encryptionroot");
    if root.is_empty() {
        return Err(error("Dataset not encrypted."));
    }
    if !matches!(value("origin"), "" | "-") {
        return Err(error("Keys cannot be changed on clones."));
    }
    let is_root = root == own.name;
    let key = if parsed.has('i') {
        if !is_root {
            let words = "Key inheritting can only be performed on encryption roots.";
            return Err(error(words));
        }
        let parent = own.name.rsplit_once('/').map_or("", |(parent, _)| parent);
        let parent = common::open(client, parent, &common::DATASETS, Some(0), &NEEDED);
        let parent = parent.ok().and_then(|all| all.into_iter().next());
        let of_parent = |name: &str| parent.as_ref()?.properties.value(name);
        if of_parent("encryptionroot").is_none() {
            return Err(error("Parent must be encrypted."));
        }
        if of_parent("keystatus") == Some("unavailable") {
            return Err(error("Parent key must be loaded."));
        }
        None
    } else {
        if value("keystatus") == "unavailable" {
            return Err(error("Key must be loaded."));
        }
        Some(key(own, is_root, pairs).map_err(|words| error(&words))?)
    };
    if value("keystatus") == "unavailable" {
        return Err(error("Key must be loaded."));
    }
    let order = Change::ChangeKey { dataset: own.name.clone(), key };
    let request = change(Some(line), order);
    client.order(names::pool_of(&own.name), &request).map(|_| ()).map_err(|f| f.message)
}

/// The new key, as far as it is said with what is there already.
fn key(own: &DatasetReport, is_root: bool, pairs: &[(String, String)]) -> Result<NewKey, String> {
    let value = |name: &str| own.properties.value(name).unwrap_or("");
    let subject = Subject::new(DatasetKind::Filesystem, true);
    let mut settings: Vec<PropertySetting> = Vec::new();
    for (name, text) in pairs {
        if !matches!(name.as_str(), "keyformat" | "keylocation" | "pbkdf2iters") {
            let words = "Only keyformat, keylocation and pbkdf2iters may be set with this command.";
            return Err(words.to_owned());
        }
        settings.push(dataset::parse(name, text, &subject)?);
    }
    let find = |wanted: &str| settings.iter().find(|setting| setting.name == wanted);
    let format = match find("keyformat").and_then(|setting| setting.value.number()) {
        Some(1) => "raw",
        Some(2) => "hex",
        Some(3) => "passphrase",
        None if is_root => value("keyformat"),
        _ => return Err("Keyformat required for new encryption root.".to_owned()),
    };
    let location = find("keylocation").and_then(|setting| setting.value.text());
    let location = match location {
        Some(location) => location.to_owned(),
        None if is_root => value("keylocation").to_owned(),
        None => "prompt".to_owned(),
    };
    let iterations = find("pbkdf2iters").and_then(|setting| setting.value.number());
    let iterations = match (format, iterations) {
        ("passphrase", iterations) => iterations.unwrap_or(keys::DEFAULT_ITERATIONS),
        (_, None) => 0,
        _ => {
            let words = "Cannot specify pbkdf2iters with a non-passphrase keyformat.";
            return Err(words.to_owned());
        }
    };
    let secret = keys::read_new_key(&own.name, format, &location)?;
    Ok(NewKey { secret, format: format.to_owned(), location, iterations })
}
