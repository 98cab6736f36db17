//! What mount(8) runs for filesystems of type `zfs` and `fuse.cenote`: `mount.zfs` and
//! `mount.fuse.cenote`, and `cenote SOURCE MOUNTPOINT` as mount.fuse3 calls it.
//!
//! Invariant: a dataset goes where it is told only if its `mountpoint` is `legacy` (a snapshot
//! anywhere), unless the option `zfsutil` is there; words and exit codes are those of OpenZFS 2.1.

use std::process::ExitCode;

use cenote_control::changes::{Change, MountRequest};
use cenote_control::client::Client;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::DatasetKind;

use crate::datasets::names;
use crate::getopt::{OptionError, Spec};
use crate::zfs::common;
use cenote_control::mount_options::{self, MountOption};
use cenote_control::terminal;

/// Names under which mount(8) runs this program.
pub const NAMES: [&str; 2] = ["mount.zfs", "mount.fuse.cenote"];

/// mount(8) also gives helpers `-t` and `-N`.
const SPEC: Spec = Spec { letters: "sfnvo:h?t:N:", long: &[] };
const USAGE: &str = "Usage: mount.zfs [-sfnvh] [-o options] <dataset> <mountpoint>";

/// How mount(8) takes failures (OpenZFS gives most of them the first number).
#[derive(Clone, Copy)]
enum Exit {
    Usage = 1,
    System = 2,
    Busy = 128,
}

struct Refused(Exit, String);

/// Whether these arguments are a mount as mount.fuse3 asks for it.
pub fn is_asked(arguments: &[String]) -> bool {
    match arguments {
        [source, mountpoint, rest @ ..] => {
            let is_source = !source.starts_with('-') && names::shape(source).is_ok();
            is_source && mountpoint.starts_with('/') && rest.first().is_none_or(|word| word == "-o")
        }
        _ => false,
    }
}

/// Runs the helper.
pub fn run(arguments: &[String]) -> ExitCode {
    match mount(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Refused(exit, words)) => {
            terminal::complain(&words);
            ExitCode::from(exit as u8)
        }
    }
}

fn mount(arguments: &[String]) -> Result<(), Refused> {
    let usage = |words: String| Err(Refused(Exit::Usage, words));
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) if parsed.has('h') || parsed.has('?') => return usage(USAGE.to_owned()),
        Ok(parsed) => parsed,
        Err(OptionError::Unknown(letter) | OptionError::Missing(letter)) => {
            return usage(format!("Invalid option '{letter}'\n{USAGE}"));
        }
        Err(_) => return usage(USAGE.to_owned()),
    };
    let wrong = |words: &str| format!("{words}\nusage: mount <dataset> <mountpoint>");
    let (name, place) = match parsed.operands.as_slice() {
        [] => return usage(wrong("missing dataset argument")),
        [_] => return usage(wrong("missing mountpoint argument")),
        [name, place] => (name.as_str(), place),
        _ => return usage(wrong("too many arguments")),
    };
    let at = std::fs::canonicalize(place).map_err(|error| {
        let why = "due to canonicalization error";
        let error = terminal::words_of(&error);
        let words = format!("filesystem '{name}' cannot be mounted at '{place}' {why}: {error}");
        Refused(Exit::System, words)
    })?;
    let at = at.display().to_string();
    let options = options(name, parsed.arguments('o'), parsed.has('s'))?;
    if parsed.has('v') {
        terminal::out(&format!(
            "mount.zfs:\n  dataset:    \"{name}\"\n  mountpoint: \"{at}\"\n  mountopts:  \"{}\"\n",
            options.join(",")
        ));
    }
    let client = Client::default();
    let has = |wanted| options.iter().any(|option| mount_options::read(option) == Some(wanted));
    check_mountpoint(
        &client,
        name,
        &at,
        has(MountOption::Utility),
        has(MountOption::Remount) || parsed.has('f'),
    )?;
    if parsed.has('f') {
        return Ok(());
    }
    let request = MountRequest {
        dataset: Some(name.to_owned()),
        options,
        at: Some(at),
        ..MountRequest::default()
    };
    let done = client.order(names::pool_of(name), &Change::Mount(request).into());
    let warnings = done.map_err(|failure| refusal(name, &failure))?;
    warnings.iter().for_each(|line| terminal::complain(line));
    Ok(())
}

/// The options that are known; the others are dropped if `sloppy`.
fn options<'a>(
    name: &str,
    lists: impl Iterator<Item = &'a str>,
    sloppy: bool,
) -> Result<Vec<String>, Refused> {
    let mut known = Vec::new();
    for option in lists.flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
        let start = format!("filesystem '{name}' cannot be mounted");
        match mount_options::read(option) {
            Some(MountOption::NotYet) if !sloppy => {
                let words = format!("{start}: mount option '{option}' is not supported yet");
                return Err(Refused(Exit::Usage, words));
            }
            None if !sloppy => {
                let advice = "Use the '-s' option to ignore the bad mount option.";
                let words = format!("{start} due to invalid option '{option}'.\n{advice}");
                return Err(Refused(Exit::Usage, words));
            }
            Some(MountOption::NotYet) | None => {}
            Some(_) => known.push(option.to_owned()),
        }
    }
    Ok(known)
}

/// Whether the property `mountpoint` leaves the place to mount(8).
fn check_mountpoint(
    client: &Client,
    name: &str,
    at: &str,
    utility: bool,
    anyway: bool,
) -> Result<(), Refused> {
    let kinds = [DatasetKind::Filesystem, DatasetKind::Snapshot];
    let found = common::open(client, name, &kinds, Some(0), &["mountpoint"]).ok();
    let Some(dataset) = found.as_ref().and_then(|all| all.first()) else {
        let words = format!("filesystem '{name}' cannot be mounted, unable to open the dataset");
        return Err(Refused(Exit::Usage, words));
    };
    let legacy = dataset.kind == DatasetKind::Snapshot
        || dataset.properties.value("mountpoint") == Some("legacy");
    let (with, advice) = match (utility, legacy) {
        (true, true) => {
            let instead = format!("zfs set mountpoint={at}' or 'mount -t zfs {name} {at}");
            ("zfs mount", instead)
        }
        (false, false) if !anyway => {
            ("mount", format!("zfs set mountpoint=legacy' or 'zfs mount {name}"))
        }
        _ => return Ok(()),
    };
    let words = format!(
        "filesystem '{name}' cannot be mounted using '{with}'.\nUse '{advice}'.\nSee zfs(8) for more information."
    );
    Err(Refused(Exit::Usage, words))
}

fn refusal(name: &str, failure: &Failure) -> Refused {
    let start = format!("cannot mount '{name}': ");
    let reason = failure.message.strip_prefix(&start).unwrap_or(&failure.message);
    match failure.kind {
        FailureKind::Already => {
            Refused(Exit::Busy, format!("filesystem '{name}' is already mounted"))
        }
        _ => Refused(Exit::Usage, format!("filesystem '{name}' can not be mounted: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn only_what_can_be_a_mount_is_taken_for_one() {
        for line in ["tank/a /mnt", "tank /mnt/x -o rw,dev,suid", "tank/a@s /mnt"] {
            assert!(is_asked(&words(line)), "{line}");
        }
        for line in ["tank/a", "tank/:a:/x@ /mnt", "-o /mnt", "tank/a mnt", "a /b -d c", "/a /b"] {
            assert!(!is_asked(&words(line)), "{line}");
        }
    }
}
