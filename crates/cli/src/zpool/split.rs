//! `zpool split`.
//!
//! Invariant: the new pool is exported, or imported at the directory that was named.

use std::process::ExitCode;

use cenote_control::changes::{Change, SplitRequest};
use cenote_control::client::Client;
use cenote_control::plan::PropertySetting;
use cenote_control::report::{PoolReport, VdevClass, VdevReport};
use cenote_control::terminal;
use cenote_control::text::vdev_name::{self, Naming};

use super::{common, create, import};
use crate::getopt::{Parsed, Spec};
use crate::settings::pool::{self, When};
use crate::usage::Tool;

const SPEC: Spec = Spec { letters: "gLR:lno:P", long: &[] };
/// What is said of a pool that has something else.
const MIRRORS: &str = "Source pool must be composed only of mirrors\n";

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("split", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let options = match Options::of(&parsed) {
        Ok(options) => options,
        Err(Problem::Usage(message)) => return wrong(message),
        Err(Problem::Refused(message)) => return refuse(&message),
    };
    let (pool, new, devices) = match parsed.operands.as_slice() {
        [] => return wrong("Missing pool name"),
        [_] => return wrong("Missing new pool name"),
        [pool, new, devices @ ..] => (pool, new, devices),
    };
    if devices.first().is_some_and(|first| first == "mirror") {
        return refuse("Cannot use 'mirror' as a device for splitting");
    }
    let client = Client::default();
    if let Some(problem) = common::name_problem(pool) {
        return refuse(&format!("cannot open '{pool}': {problem}"));
    }
    if let Some(problem) = create::name_problem(new) {
        return refuse(&format!("Unable to split {pool}: {problem}"));
    }
    if client.knows(new) {
        return refuse(&format!("Unable to split {pool}: pool already exists"));
    }
    let report = match client.pool_report(pool) {
        Ok(report) => report,
        Err(failure) => return refuse(&failure.message),
    };
    let legs = match legs(&report, devices) {
        Ok(legs) => legs,
        Err(words) => return refuse(&format!("Unable to split {pool}: {words}")),
    };
    if parsed.has('n') {
        terminal::out(&layout(new, &legs, common::naming(&parsed)));
        return ExitCode::SUCCESS;
    }
    let line = common::history_line("zpool", "split", arguments);
    let places: Vec<String> = legs.iter().filter_map(|leg| leg.path.clone()).collect();
    let (name, devices) = (new.clone(), devices.to_vec());
    let request = SplitRequest { name, devices, properties: options.properties };
    if !common::order(&client, pool, &common::change(Some(line), Change::SplitPool(request))) {
        return ExitCode::FAILURE;
    }
    match options.altroot {
        None => ExitCode::SUCCESS,
        Some(altroot) => take_in(new, &altroot, &places, options.load_keys, &options.mount_options),
    }
}

/// Imports the new pool.
fn take_in(
    new: &str,
    altroot: &str,
    places: &[String],
    load_keys: bool,
    mount_options: &[String],
) -> ExitCode {
    let mut words = vec!["-R".to_owned(), altroot.to_owned()];
    words.extend(places.iter().flat_map(|place| ["-d".to_owned(), place.clone()]));
    words.extend(mount_options.iter().flat_map(|word| ["-o".to_owned(), word.clone()]));
    words.extend(load_keys.then(|| "-l".to_owned()));
    words.push(new.to_owned());
    import::run(&words)
}

fn refuse(message: &str) -> ExitCode {
    terminal::complain(message);
    ExitCode::FAILURE
}

/// What was asked for.
struct Options {
    altroot: Option<String>,
    load_keys: bool,
    mount_options: Vec<String>,
    properties: Vec<PropertySetting>,
}

/// What is wrong with that.
#[derive(Debug, PartialEq, Eq)]
enum Problem {
    Usage(&'static str),
    Refused(String),
}

impl Options {
    fn of(parsed: &Parsed) -> Result<Self, Problem> {
        let altroot = parsed.argument('R').map(str::to_owned);
        let (mut mount_options, mut properties) = (Vec::new(), Vec::new());
        for word in parsed.arguments('o') {
            match word.split_once('=') {
                Some((name, value)) => {
                    let setting = pool::parse(name, value, When::Later);
                    let setting = setting.map_err(Problem::Refused)?;
                    // No cache file is written.
                    properties.extend(Some(setting).filter(|setting| setting.name != "cachefile"));
                }
                None => mount_options.push(word.to_owned()),
            }
        }
        if altroot.is_none() && !mount_options.is_empty() {
            let words = "setting mntopts is only valid when importing the pool";
            return Err(Problem::Usage(words));
        }
        if altroot.is_none() && parsed.has('l') {
            return Err(Problem::Usage("loading keys is only valid when importing the pool"));
        }
        Ok(Self { altroot, load_keys: parsed.has('l'), mount_options, properties })
    }
}

/// The devices that leave: those named, and the last of each other mirror.
fn legs<'a>(pool: &'a PoolReport, devices: &[String]) -> Result<Vec<&'a VdevReport>, String> {
    let mut used = 0;
    let mut legs = Vec::new();
    // Log devices stay.
    let is_left_out = |top: &VdevReport| {
        top.class == VdevClass::Log || top.kind == "hole" || top.kind == "indirect"
    };
    for top in pool.root.children.iter().filter(|top| !is_left_out(top)) {
        if top.kind != "mirror" {
            return Err(MIRRORS.to_owned());
        }
        let answers =
            |leg: &&VdevReport| devices.iter().any(|device| vdev_name::answers_to(leg, device));
        let named: Vec<&VdevReport> = top.children.iter().filter(answers).collect();
        used += named.len();
        match named.as_slice() {
            [_, _, ..] => used = usize::MAX,
            [one] => legs.push(*one),
            [] => legs.extend(top.children.last()),
        }
        if used == usize::MAX {
            break;
        }
    }
    match used == devices.len() {
        true => Ok(legs),
        false => Err("Device list must include at most one disk from each mirror".to_owned()),
    }
}

/// What `-n` shows.
fn layout(new: &str, legs: &[&VdevReport], naming: Naming) -> String {
    let head = format!("would create '{new}' with the following layout:\n\n\t{new}\n");
    let leaf = |leg: &&VdevReport| format!("\t  {}\n", vdev_name::name(leg, naming));
    head + &legs.iter().map(leaf).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(kind: &str, path: &str, children: Vec<VdevReport>) -> VdevReport {
        let path = (!path.is_empty()).then(|| path.to_owned());
        VdevReport { kind: kind.to_owned(), path, children, ..VdevReport::default() }
    }

    #[test]
    fn one_device_of_each_mirror_leaves() {
        let pair =
            |a, b| vdev("mirror", "", vec![vdev("file", a, vec![]), vdev("file", b, vec![])]);
        let root = vdev("root", "", vec![pair("/d/a", "/d/b"), pair("/d/c", "/d/e")]);
        let mut pool = PoolReport { root, ..PoolReport::default() };
        let chosen = |pool: &PoolReport, devices: &[&str]| {
            let devices: Vec<String> = devices.iter().map(|word| (*word).to_owned()).collect();
            let legs = legs(pool, &devices);
            legs.map(|all| all.iter().filter_map(|leg| leg.path.clone()).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&pool, &[]), Ok(vec!["/d/b".into(), "/d/e".into()]));
        assert_eq!(chosen(&pool, &["/d/a"]), Ok(vec!["/d/a".into(), "/d/e".into()]));
        assert!(chosen(&pool, &["/d/a", "/d/b"]).is_err() && chosen(&pool, &["/d/x"]).is_err());
        let log = VdevReport { class: VdevClass::Log, ..vdev("file", "/d/log", vec![]) };
        pool.root.children.push(log);
        assert_eq!(chosen(&pool, &[]), Ok(vec!["/d/b".into(), "/d/e".into()]));
        pool.root.children.push(vdev("file", "/d/f", vec![]));
        assert_eq!(chosen(&pool, &[]), Err(MIRRORS.to_owned()));
    }

    #[test]
    fn options_of_an_import_need_one() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Options::of(&SPEC.parse(&words).unwrap()).map(drop)
        };
        let words = "setting mntopts is only valid when importing the pool";
        assert_eq!(of("-o ro tank new"), Err(Problem::Usage(words)));
        let words = "loading keys is only valid when importing the pool";
        assert_eq!(of("-l tank new"), Err(Problem::Usage(words)));
        assert_eq!(of("-R /mnt -l -o ro -o comment=x tank new"), Ok(()));
        assert!(matches!(of("-o guid=7 tank new"), Err(Problem::Refused(_))));
    }
}
