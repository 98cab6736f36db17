//! `zfs mount` and `zfs unmount`.
//!
//! Invariant: the pool process decides what can be mounted and says why not; this only finds it.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use cenote_control::changes::{Change, MountRequest, UnmountRequest};
use cenote_control::client::Client;
use cenote_control::json;
use cenote_control::protocol::{Failure, FailureKind, Progress, Request};
use cenote_control::report::DatasetKind;
use cenote_control::text::dataset_list;

use super::common;
use crate::datasets::{names, select};
use crate::getopt::Spec;
use crate::keys;
use crate::usage::Tool;
use cenote_control::terminal;

const MOUNT: Spec = Spec { letters: "aRjfo:lOv", long: &[("json", 'j', false)] };
const UNMOUNT: Spec = Spec { letters: "afu", long: &[] };

/// Gives an order to a pool and says what went wrong; true if nothing did. With `told`, how far it is is
/// shown where somebody looks, and at the end.
fn order(
    client: &Client,
    pool: &str,
    request: &Request,
    dataset: Option<&str>,
    told: bool,
) -> bool {
    let watched = std::io::stdout().is_terminal();
    let show = |now: Progress| {
        let is_end = now.done == now.total;
        if told && (watched || is_end) {
            let start = if watched { "\r" } else { "" };
            let end = if is_end { "\n" } else { "" };
            let line = format!("Mounting ZFS filesystems: ({}/{})", now.done, now.total);
            terminal::out(&format!("{start}{line}{end}"));
        }
    };
    match client.order_with(pool, request, &[], show) {
        Ok(warnings) => {
            warnings.iter().for_each(|line| terminal::complain(line));
            warnings.is_empty()
        }
        Err(failure) => {
            terminal::complain(&words(&failure, dataset));
            false
        }
    }
}

fn words(failure: &Failure, dataset: Option<&str>) -> String {
    match dataset {
        Some(name) if failure.kind == FailureKind::NotFound => {
            format!("cannot open '{name}': dataset does not exist")
        }
        _ => failure.message.clone(),
    }
}

/// Runs `zfs mount`.
pub fn mount(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("mount", message);
    let parsed = match MOUNT.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let client = Client::default();
    let mut request = MountRequest {
        dataset: None,
        recursive: parsed.has('R'),
        options: parsed.arguments('o').flat_map(|o| o.split(',')).map(str::to_owned).collect(),
        overlay: parsed.has('O'),
        force: parsed.has('f'),
        at: None,
        ..MountRequest::default()
    };
    if parsed.has('a') {
        if !parsed.operands.is_empty() {
            return wrong("too many arguments");
        }
        let mut well = true;
        for pool in client.pools() {
            if parsed.has('l') {
                well &= keys::load_all(&client, Some(&pool)).is_ok();
            }
            well &= order(
                &client,
                &pool,
                &Change::Mount(request.clone()).into(),
                None,
                parsed.has('v'),
            );
        }
        return ExitCode::from(u8::from(!well));
    }
    let name = match parsed.operands.as_slice() {
        [] if request.recursive => return wrong("no dataset provided"),
        [] => return listing(&client, parsed.has('j')),
        [name] => name,
        _ => return wrong("too many arguments"),
    };
    if let Err(problem) = names::check(name, &[DatasetKind::Filesystem]) {
        terminal::complain(&format!("cannot open '{name}': {problem}"));
        return ExitCode::FAILURE;
    }
    if parsed.has('l') && keys::load_for_mount(&client, name).is_err() {
        return ExitCode::FAILURE;
    }
    request.dataset = Some(name.clone());
    let (pool, told) = (names::pool_of(name), parsed.has('v'));
    let well = order(&client, pool, &Change::Mount(request).into(), Some(name), told);
    ExitCode::from(u8::from(!well))
}

fn listing(client: &Client, as_json: bool) -> ExitCode {
    let mounted = select::mounted(client);
    terminal::out(&if as_json {
        json::dataset::mounts(&mounted)
    } else {
        dataset_list::mounts(&mounted)
    });
    ExitCode::SUCCESS
}

/// Runs `zfs unmount`.
pub fn unmount(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("unmount", message);
    let parsed = match UNMOUNT.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let client = Client::default();
    let mut request =
        UnmountRequest { dataset: None, force: parsed.has('f'), unload_keys: parsed.has('u') };
    if parsed.has('a') {
        if !parsed.operands.is_empty() {
            return wrong("too many arguments");
        }
        let mut well = true;
        for pool in client.pools() {
            well &= order(&client, &pool, &Change::Unmount(request.clone()).into(), None, false);
        }
        return ExitCode::from(u8::from(!well));
    }
    let operand = match parsed.operands.as_slice() {
        [] => return wrong("missing filesystem argument"),
        [operand] => operand,
        _ => return wrong("too many arguments"),
    };
    let name = match target(&client, operand) {
        Ok(name) => name,
        Err(message) => {
            terminal::complain(&message);
            return ExitCode::FAILURE;
        }
    };
    let found = common::open(&client, &name, &[DatasetKind::Filesystem], Some(0), &["mountpoint"]);
    let mountpoint =
        found.ok().and_then(|mut all| all.pop()?.properties.value("mountpoint").map(str::to_owned));
    if mountpoint.as_deref() == Some("legacy") {
        let advice = "use umount(8) to unmount this filesystem";
        terminal::complain(&format!("cannot unmount '{name}': legacy mountpoint\n{advice}"));
        return ExitCode::FAILURE;
    }
    request.dataset = Some(name.clone());
    let well =
        order(&client, names::pool_of(&name), &Change::Unmount(request).into(), Some(&name), false);
    ExitCode::from(u8::from(!well))
}

/// The filesystem to unmount: named, or mounted at a path.
fn target(client: &Client, operand: &str) -> Result<String, String> {
    if !operand.starts_with('/') {
        return match names::check(operand, &[DatasetKind::Filesystem]) {
            Ok(_) => Ok(operand.to_owned()),
            Err(problem) => Err(format!("cannot open '{operand}': {problem}")),
        };
    }
    // the path may be unreadable because the mount is broken: compare it as it is, too
    let path = std::fs::canonicalize(operand).unwrap_or_else(|_| Path::new(operand).to_path_buf());
    let mounted = select::mounted(client);
    let here = mounted.iter().find(|dataset| {
        dataset.mounted_at.as_deref().is_some_and(|place| Path::new(place) == path)
    });
    match here {
        Some(dataset) => Ok(dataset.name.clone()),
        None if path.exists() => Err(format!("cannot unmount '{operand}': not a ZFS filesystem")),
        None => Err(format!("cannot open '{operand}': No such file or directory")),
    }
}
