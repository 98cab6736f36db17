//! `zfs destroy`.
//!
//! Invariant: everything that will be destroyed is known and, with `-v`, named before anything is;
//! what depends on something else is destroyed before it.

use std::collections::BTreeSet;
use std::process::ExitCode;

use cenote_control::changes::{Change, DestroyRequest};
use cenote_control::client::Client;
use cenote_control::report::{DatasetKind, DatasetReport};
use cenote_control::text::number;

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use crate::zpool::common::history_line;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "vpndfrR", long: &[] };
/// What has to be known of datasets to destroy them.
const NEEDED: [&str; 4] = ["type", "clones", "used", "origin"];

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

/// Everything in a pool.
pub(super) struct Pool {
    all: Vec<DatasetReport>,
}

impl Pool {
    /// Asks the pool that `name` is in.
    ///
    /// # Errors
    /// The line to print.
    pub(super) fn read(client: &Client, name: &str) -> Result<Pool, String> {
        let pool = names::pool_of(name);
        let query = cenote_control::protocol::DatasetQuery {
            properties: Some(NEEDED.iter().map(|name| (*name).to_owned()).collect()),
            ..Default::default()
        };
        let mut all = client.datasets(pool, &query).map_err(|failure| failure.message)?;
        all.sort_by(cenote_control::text::sort::by_name);
        Ok(Pool { all })
    }

    fn find(&self, name: &str) -> Option<&DatasetReport> {
        self.all.iter().find(|dataset| dataset.name == name)
    }

    /// Filesystems and volumes right below.
    fn children(&self, name: &str) -> Vec<&DatasetReport> {
        let below = |dataset: &&DatasetReport| {
            common::DATASETS.contains(&dataset.kind)
                && dataset.name.rsplit_once('/').is_some_and(|(parent, _)| parent == name)
        };
        self.all.iter().filter(below).collect()
    }

    /// Snapshots of one dataset, oldest first.
    fn snapshots(&self, name: &str) -> Vec<&DatasetReport> {
        let own = |dataset: &&DatasetReport| {
            dataset.kind == DatasetKind::Snapshot
                && dataset.name.split_once('@').is_some_and(|(of, _)| of == name)
        };
        let mut found: Vec<&DatasetReport> = self.all.iter().filter(own).collect();
        found.sort_by_key(|snapshot| snapshot.createtxg);
        found
    }

    /// Snapshots and bookmarks of the same dataset that are newer than the snapshot `name`, newest
    /// first.
    pub(super) fn later(&self, name: &str) -> Vec<String> {
        let dataset = name.split('@').next().unwrap_or("");
        let since = self.find(name).map_or(0, |snapshot| snapshot.createtxg);
        let own = |other: &&DatasetReport| {
            let kinds = [DatasetKind::Snapshot, DatasetKind::Bookmark];
            kinds.contains(&other.kind)
                && other.name.split(['@', '#']).next() == Some(dataset)
                && other.createtxg > since
        };
        let mut found: Vec<&DatasetReport> = self.all.iter().filter(own).collect();
        found.sort_by_key(|other| std::cmp::Reverse(other.createtxg));
        found.into_iter().map(|other| other.name.clone()).collect()
    }

    /// What has to go for `names` (snapshots and bookmarks) to go, and themselves, in order; and
    /// clones elsewhere that would have to, without `clones`.
    pub(super) fn dependents(
        &self,
        names: &[String],
        clones: bool,
    ) -> (Vec<String>, BTreeSet<String>) {
        let (mut out, mut kept) = (Vec::new(), BTreeSet::new());
        for name in names {
            self.collect_snapshot(name, clones, &mut out, &mut kept);
        }
        (out, kept)
    }

    /// Clones of a snapshot.
    fn clones(&self, snapshot: &str) -> Vec<&DatasetReport> {
        let of = |dataset: &&DatasetReport| {
            common::DATASETS.contains(&dataset.kind)
                && dataset.properties.value("origin") == Some(snapshot)
        };
        self.all.iter().filter(of).collect()
    }

    /// Adds what has to go for `name` (a filesystem or volume) to go, and itself, in order. With
    /// `clones`, what was cloned from it too; without, such clones elsewhere come back in `kept`.
    fn collect(
        &self,
        name: &str,
        clones: bool,
        out: &mut Vec<String>,
        kept: &mut BTreeSet<String>,
    ) {
        if out.iter().any(|known| known == name) {
            return;
        }
        for child in self.children(name) {
            self.collect(&child.name, clones, out, kept);
        }
        for snapshot in self.snapshots(name).into_iter().rev() {
            self.collect_snapshot(&snapshot.name, clones, out, kept);
        }
        out.push(name.to_owned());
    }

    fn collect_snapshot(
        &self,
        name: &str,
        clones: bool,
        out: &mut Vec<String>,
        kept: &mut BTreeSet<String>,
    ) {
        if out.iter().any(|known| known == name) {
            return;
        }
        for clone in self.clones(name) {
            if clones {
                self.collect(&clone.name, clones, out, kept);
            } else if !out.contains(&clone.name) {
                kept.insert(clone.name.clone());
            }
        }
        out.push(name.to_owned());
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
    let pool = Pool::read(client, name)?;
    let mut out = Vec::new();
    let mut kept = BTreeSet::new();
    pool.collect(name, clones, &mut out, &mut kept);
    let dependents: Vec<&String> = out.iter().filter(|other| *other != name).collect();
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
    let kept: Vec<&String> = kept.iter().filter(|clone| !out.contains(*clone)).collect();
    if !kept.is_empty() {
        return Err(format!(
            "cannot destroy '{name}': {} has dependent clones\nuse '-R' to destroy the following \
             datasets:{}",
            word(kind),
            listed(&kept)
        ));
    }
    say(parsed, &out, None);
    // the root filesystem goes with the pool only
    out.retain(|name| name.contains(['/', '@']));
    order(client, parsed, out, line)
}

fn snapshots(client: &Client, parsed: &Parsed, spec: &str, line: String) -> Result<bool, String> {
    let (of, wanted) = spec.split_once('@').unwrap_or((spec, ""));
    let top = common::open(client, of, &common::DATASETS, Some(0), &["type"])?;
    let pool = Pool::read(client, of)?;
    let mut holders: Vec<&str> = top.iter().map(|dataset| dataset.name.as_str()).collect();
    if parsed.has('r') || parsed.has('R') {
        let start = format!("{of}/");
        let below = pool.all.iter().filter(|dataset| {
            dataset.name.starts_with(&start) && common::DATASETS.contains(&dataset.kind)
        });
        holders.extend(below.map(|dataset| dataset.name.as_str()));
    }
    let mut found = Vec::new();
    for holder in holders {
        let all = pool.snapshots(holder);
        for name in wanted.split(',') {
            for snapshot in matching(&all, name) {
                if !found.contains(&snapshot.name) {
                    found.push(snapshot.name.clone());
                }
            }
        }
    }
    if found.is_empty() {
        let words = "could not find any snapshots to destroy; check snapshot names.";
        return Err(words.to_owned());
    }
    let clones = parsed.has('R');
    let (mut out, mut kept) = (Vec::new(), BTreeSet::new());
    for name in &found {
        pool.collect_snapshot(name, clones, &mut out, &mut kept);
    }
    if !kept.is_empty() && !parsed.has('d') {
        let first = found.iter().find(|name| !pool.clones(name).is_empty());
        let first = first.map_or(spec, String::as_str);
        let listed: String = kept.iter().map(|name| format!("\n{name}")).collect();
        return Err(format!(
            "cannot destroy '{first}': snapshot has dependent clones\nuse '-R' to destroy the \
             following datasets:{listed}"
        ));
    }
    let used = |name: &String| pool.find(name).and_then(|one| one.properties.number("used"));
    let bytes = match found.as_slice() {
        [only] => used(only),
        many => Some(many.iter().filter_map(used).fold(0, u64::saturating_add)),
    };
    say(parsed, &out, bytes.or(Some(0)));
    order(client, parsed, out, line)
}

/// The snapshots a name or a range (`a%b`, `a%`, `%b`, `%`) means; none if an end is not there.
fn matching<'a>(all: &[&'a DatasetReport], spec: &str) -> Vec<&'a DatasetReport> {
    let at = |name: &str| {
        all.iter().position(|one| one.name.split_once('@').is_some_and(|(_, own)| own == name))
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
        (Some(first), Some(last)) => all.get(first..=last).unwrap_or(&[]).to_vec(),
        _ => Vec::new(),
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
    use cenote_control::report::Source;

    use super::*;

    fn one(name: &str, kind: DatasetKind, txg: u64) -> DatasetReport {
        DatasetReport { name: name.into(), kind, createtxg: txg, ..DatasetReport::default() }
    }

    /// The pool of the session recorded from OpenZFS 2.1.11.
    fn pool() -> Pool {
        use DatasetKind::{Filesystem, Snapshot};
        let mut clone = one("tank/clone", Filesystem, 9);
        clone.properties.set("origin", "tank/a@s", Source::None);
        let mut all = vec![
            one("tank", Filesystem, 1),
            one("tank/a", Filesystem, 2),
            one("tank/a/b", Filesystem, 3),
            one("tank/a@s", Snapshot, 4),
            clone,
            one("tank/v0", Filesystem, 2),
            one("tank/v0@s1", Snapshot, 3),
            one("tank/v0@s2", Snapshot, 4),
            one("tank/v0@s3", Snapshot, 5),
            one("tank/v0@q2", Snapshot, 6),
        ];
        all.sort_by(cenote_control::text::sort::by_name);
        Pool { all }
    }

    fn collected(name: &str, clones: bool) -> (Vec<String>, BTreeSet<String>) {
        let (mut out, mut kept) = (Vec::new(), BTreeSet::new());
        pool().collect(name, clones, &mut out, &mut kept);
        (out, kept)
    }

    #[test]
    fn dependents_go_first() {
        let (out, _) = collected("tank/v0", false);
        assert_eq!(out, ["tank/v0@q2", "tank/v0@s3", "tank/v0@s2", "tank/v0@s1", "tank/v0"]);
        let (out, kept) = collected("tank/a", false);
        assert_eq!(out, ["tank/a/b", "tank/a@s", "tank/a"]);
        assert_eq!(kept.into_iter().collect::<Vec<_>>(), ["tank/clone"]);
        let (out, kept) = collected("tank/a", true);
        assert_eq!(out, ["tank/a/b", "tank/clone", "tank/a@s", "tank/a"]);
        assert!(kept.is_empty());
    }

    #[test]
    fn ranges_mean_what_they_mean_in_openzfs() {
        let pool = pool();
        let all = pool.snapshots("tank/v0");
        let names = |spec: &str| -> Vec<&str> {
            let found = matching(&all, spec).into_iter();
            found.filter_map(|one| Some(one.name.split_once('@')?.1)).collect()
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
