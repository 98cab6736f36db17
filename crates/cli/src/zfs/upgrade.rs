//! `zfs upgrade`.
//!
//! Invariant: what is shown is the version each filesystem has; none is said to be upgraded that is
//! not.

use std::process::ExitCode;

use cenote_control::client::Client;
use cenote_control::report::{DatasetKind, DatasetReport};

use super::common;
use crate::datasets::select::{Selection, select};
use crate::getopt::Spec;
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "rvV:a", long: &[] };
/// The newest version of filesystems.
const NEWEST: u64 = 5;
/// What each version brought, from 1.
const VERSIONS: [&str; NEWEST as usize] = [
    "Initial ZFS filesystem version",
    "Enhanced directory entries",
    "Case insensitive and filesystem user identifier (FUID)",
    "userquota, groupquota properties",
    "System attributes",
];

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("upgrade", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let wanted = match parsed.argument('V') {
        None => NEWEST,
        Some("current") => NEWEST,
        Some(text) => match text.parse().ok().filter(|version| (1..=NEWEST).contains(version)) {
            Some(version) => version,
            None => return wrong(&format!("invalid version {text}")),
        },
    };
    let (all, names) = (parsed.has('a'), &parsed.operands);
    if !all && names.is_empty() && (parsed.has('r') || parsed.has('V')) {
        return wrong("");
    }
    if parsed.has('v') && (parsed.has('r') || all || parsed.has('V') || !names.is_empty()) {
        return wrong("");
    }
    if all && (parsed.has('r') || !names.is_empty()) {
        return wrong("");
    }
    if parsed.has('v') {
        terminal::out(&supported());
        return ExitCode::SUCCESS;
    }
    let selection = Selection {
        operands: names.clone(),
        kinds: vec![DatasetKind::Filesystem],
        operand_kinds: vec![DatasetKind::Filesystem],
        depth: (!names.is_empty() && !parsed.has('r')).then_some(0),
        properties: Some(vec!["version".to_owned()]),
        ..Selection::default()
    };
    let mut found = select(&Client::default(), &selection);
    found.datasets.sort_by(cenote_control::text::sort::by_name);
    if !all && names.is_empty() {
        terminal::out(&listing(&found.datasets));
        return common::code(!found.failed);
    }
    let mut well = !found.failed;
    let mut same = 0;
    for dataset in &found.datasets {
        let (name, version) = (&dataset.name, version_of(dataset));
        if version == wanted {
            same += 1;
        } else if version > wanted {
            let words = "can not be downgraded; it is already at version";
            terminal::complain(&format!("{name}: {words} {version}"));
            well = false;
        } else {
            let words = format!("{name}: upgrading from version {version} is not supported yet");
            terminal::complain(&words);
            well = false;
        }
    }
    terminal::out("0 filesystems upgraded\n");
    if same > 0 {
        terminal::out(&format!("{same} filesystems already at this version\n"));
    }
    common::code(well)
}

fn version_of(dataset: &DatasetReport) -> u64 {
    dataset.properties.number("version").unwrap_or(NEWEST)
}

fn listing(filesystems: &[DatasetReport]) -> String {
    let mut text = format!("This system is currently running ZFS filesystem version {NEWEST}.\n\n");
    let old: Vec<&DatasetReport> =
        filesystems.iter().filter(|dataset| version_of(dataset) < NEWEST).collect();
    if old.is_empty() {
        text.push_str("All filesystems are formatted with the current version.\n");
        return text;
    }
    text.push_str(
        "The following filesystems are out of date, and can be upgraded.  After being\nupgraded, \
         these filesystems (and any 'zfs send' streams generated from\nsubsequent snapshots) will \
         no longer be accessible by older software versions.\n\n\nVER  FILESYSTEM\n---  \
         ------------\n",
    );
    for dataset in old {
        text.push_str(&format!("{:2}   {}\n", version_of(dataset), dataset.name));
    }
    text
}

fn supported() -> String {
    let mut text = "The following filesystem versions are supported:\n\nVER  DESCRIPTION\n---  \
                    --------------------------------------------------------\n"
        .to_owned();
    for (version, description) in (1..).zip(VERSIONS) {
        text.push_str(&format!("{version:2}   {description}\n"));
    }
    text.push_str(
        "\nFor more information on a particular version, including supported releases,\nsee the \
         ZFS Administration Guide.\n\n",
    );
    text
}
