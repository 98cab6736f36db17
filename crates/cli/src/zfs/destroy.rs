//! `zfs destroy`.
//!
//! Invariant: everything that will be destroyed is known and, with `-v`, named before anything is;
//! what depends on something else is destroyed before it.

use std::collections::HashSet;
use std::process::ExitCode;

use cenote_control::changes::{Change, DestroyRequest};
use cenote_control::client::Client;
use cenote_control::report::DatasetKind;
use cenote_control::text::number;

use super::common::{self, fail};
use super::dependents::{Doomed, Family};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use crate::zpool::common::history_line;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "vpndfrR", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("destroy", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let operand = match parsed.operands.as_slice() {
        [] => return wrong("missing dataset argument"),
        [operand] => operand,
        _ => return wrong("too many arguments"),
    };
    let line = history_line("zfs", "destroy", arguments);
    let client = Client::default();
    let done = if operand.contains('@') {
        snapshots(&client, &parsed, operand, line)
    } else if operand.contains('#') {
        bookmark(&client, &parsed, operand, line)
    } else {
        dataset(&client, &parsed, operand, line)
    };
    match done {
        Ok(well) => common::code(well),
        Err(message) => fail(&message),
    }
}

fn word(kind: DatasetKind) -> &'static str {
    if kind == DatasetKind::Volume { "volume" } else { "filesystem" }
}

fn dataset(client: &Client, parsed: &Parsed, name: &str, line: String) -> Result<bool, String> {
    let kinds: &[DatasetKind] =
        if parsed.has('d') { &[DatasetKind::Snapshot] } else { &common::DATASETS };
    let own = common::open(client, name, kinds, Some(0), &["type"])?;
    let kind = own.first().map(|dataset| dataset.kind).unwrap_or_default();
    let clones = parsed.has('R');
    let recursive = parsed.has('r') || clones;
    if !name.contains('/') && !recursive {
        return Err(format!(
            "cannot destroy '{name}': operation does not apply to pools\nuse 'zfs destroy -r \
             {name}' to destroy all datasets in the pool\nuse 'zpool destroy {name}' to destroy \
             the pool itself"
        ));
    }
    let mut family = Family::new(client, name);
    family.read_tree(name)?;
    let mut doomed = Doomed::default();
    family.doom(name, clones, &mut doomed)?;
    let dependents: Vec<&String> = doomed.names.iter().filter(|other| *other != name).collect();
    let listed =
        |names: &[&String]| -> String { names.iter().map(|name| format!("\n{name}")).collect() };
    if !recursive && !dependents.is_empty() {
        return Err(format!(
            "cannot destroy '{name}': {} has children\nuse '-r' to destroy the following \
             datasets:{}",
            word(kind),
            listed(&dependents)
        ));
    }
    let kept: Vec<&String> = doomed.kept.iter().filter(|clone| !doomed.has(clone)).collect();
    if !kept.is_empty() {
        return Err(format!(
            "cannot destroy '{name}': {} has dependent clones\nuse '-R' to destroy the following \
             datasets:{}",
            word(kind),
            listed(&kept)
        ));
    }
    say(parsed, &doomed.names, None);
    // the root filesystem goes with the pool only
    let mut out = doomed.names;
    out.retain(|name| name.contains(['/', '@']));
    order(client, parsed, out, line)
}

fn snapshots(client: &Client, parsed: &Parsed, spec: &str, line: String) -> Result<bool, String> {
    let (of, wanted) = spec.split_once('@').unwrap_or((spec, ""));
    let top = common::open(client, of, &common::DATASETS, Some(0), &["type"])?;
    let mut family = Family::new(client, of);
    let is_recursive = parsed.has('r') || parsed.has('R');
    if is_recursive {
        family.read_tree(of)?;
    } else if wanted.contains('%') {
        family.read_snapshots(of)?;
    } else {
        for name in wanted.split(',').filter(|name| !name.is_empty()) {
            family.read_snapshot(&format!("{of}@{name}"))?;
        }
    }
    let mut holders: Vec<&str> = top.iter().map(|dataset| dataset.name.as_str()).collect();
    if is_recursive {
        holders.extend(family.below(of));
    }
    let mut found = Vec::new();
    for holder in holders {
        for name in wanted.split(',') {
            found.extend(matching(family.snapshots(holder), name).iter().cloned());
        }
    }
    let mut seen = HashSet::new();
    found.retain(|name| seen.insert(name.clone()));
    if found.is_empty() {
        let words = "could not find any snapshots to destroy; check snapshot names.";
        return Err(words.to_owned());
    }
    let mut doomed = Doomed::default();
    for name in &found {
        family.doom(name, parsed.has('R'), &mut doomed)?;
    }
    let Doomed { names: out, kept, .. } = doomed;
    if !kept.is_empty() && !parsed.has('d') {
        let first = found.iter().find(|name| !family.clones(name).is_empty());
        let first = first.map_or(spec, String::as_str);
        let listed: String = kept.iter().map(|name| format!("\n{name}")).collect();
        return Err(format!(
            "cannot destroy '{first}': snapshot has dependent clones\nuse '-R' to destroy the \
             following datasets:{listed}"
        ));
    }
    let used = |name: &String| family.find(name).and_then(|one| one.properties.number("used"));
    let bytes = match found.as_slice() {
        [only] => used(only),
        many => Some(many.iter().filter_map(used).fold(0, u64::saturating_add)),
    };
    say(parsed, &out, bytes.or(Some(0)));
    order(client, parsed, out, line)
}

/// The snapshots, of these of one dataset, that a name or a range (`a%b`, `a%`, `%b`, `%`) means; none if
/// an end is not there.
fn matching<'a>(all: &'a [String], spec: &str) -> &'a [String] {
    let at = |name: &str| {
        all.iter().position(|one| one.split_once('@').is_some_and(|(_, own)| own == name))
    };
    let (first, last) = match spec.split_once('%') {
        None => (at(spec), at(spec)),
        Some((first, last)) => {
            let first = if first.is_empty() { Some(0) } else { at(first) };
            let last = if last.is_empty() { all.len().checked_sub(1) } else { at(last) };
            (first, last)
        }
    };
    match (first, last) {
        (Some(first), Some(last)) => all.get(first..=last).unwrap_or_default(),
        _ => &[],
    }
}

fn bookmark(client: &Client, parsed: &Parsed, name: &str, line: String) -> Result<bool, String> {
    if !common::exists(client, name) {
        return Err(format!("bookmark '{name}' does not exist."));
    }
    say(parsed, &[name.to_owned()], None);
    order(client, parsed, vec![name.to_owned()], line)
}

/// What `-v`, `-n` and `-p` show; `bytes` are those that become free.
fn say(parsed: &Parsed, names: &[String], bytes: Option<u64>) {
    let exact = parsed.has('p');
    if !parsed.has('v') && !exact {
        return;
    }
    let verb = if parsed.has('n') { "would" } else { "will" };
    let mut text = String::new();
    for name in names {
        text.push_str(&match exact {
            true => format!("destroy\t{name}\n"),
            false => format!("{verb} destroy {name}\n"),
        });
    }
    if let Some(bytes) = bytes {
        text.push_str(&match exact {
            true => format!("reclaim\t{bytes}\n"),
            false => format!("{verb} reclaim {}\n", number::bytes(bytes)),
        });
    }
    terminal::out(&text);
}

fn order(
    client: &Client,
    parsed: &Parsed,
    names: Vec<String>,
    line: String,
) -> Result<bool, String> {
    if parsed.has('n') || names.is_empty() {
        return Ok(true);
    }
    let of = names.first().cloned().unwrap_or_default();
    let request = DestroyRequest { names, force: parsed.has('f'), defer: parsed.has('d') };
    Ok(common::change(client, &of, Some(line), Change::Destroy(request)))
}

#[cfg(test)]
mod tests {
    use super::super::dependents::tests::pool;
    use super::*;

    #[test]
    fn ranges_mean_what_they_mean_in_openzfs() {
        let mut family = pool();
        family.read_snapshots("tank/v0").unwrap();
        let all = family.snapshots("tank/v0");
        let names = |spec: &str| -> Vec<&str> {
            let found = matching(all, spec).iter();
            found.filter_map(|one| Some(one.split_once('@')?.1)).collect()
        };
        assert_eq!(names("s1"), ["s1"]);
        assert_eq!(names("s1%s3"), ["s1", "s2", "s3"]);
        assert_eq!(names("%"), ["s1", "s2", "s3", "q2"]);
        assert_eq!(names("%s2"), ["s1", "s2"]);
        assert_eq!(names("s2%"), ["s2", "s3", "q2"]);
        for nothing in ["s9%s10", "s1%s9", "s2%s1", "nope", ""] {
            assert!(names(nothing).is_empty(), "{nothing}");
        }
    }
}
