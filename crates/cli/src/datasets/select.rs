//! Which datasets a command is about: names, paths, kinds, depth.
//!
//! Invariant: each dataset comes once, also if several operands lead to it; what cannot be found is
//! said, and the rest is shown.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use cenote_control::client::Client;
use cenote_control::protocol::{DatasetQuery, FailureKind, LOOK_DEADLINE};
use cenote_control::report::{DatasetKind, DatasetReport};

use super::names;
use crate::getopt::Parsed;
use crate::settings::property_list;
use cenote_control::terminal;

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Names and paths; none: everything.
    pub operands: Vec<String>,
    /// Kinds to show.
    pub kinds: Vec<DatasetKind>,
    /// Kinds an operand may be of.
    pub operand_kinds: Vec<DatasetKind>,
    /// Levels below each operand; `None`: all.
    pub depth: Option<u32>,
    /// Properties needed; `None`: all.
    pub properties: Option<Vec<String>>,
    /// Pools whose snapshots are shown, too.
    pub with_snapshots: BTreeSet<String>,
}

impl Selection {
    /// Kinds to show of a pool.
    fn kinds_in(&self, pool: &str) -> Vec<DatasetKind> {
        let mut kinds = self.kinds.clone();
        kinds.extend(self.with_snapshots.contains(pool).then_some(DatasetKind::Snapshot));
        kinds
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// The datasets, in no particular order.
    pub datasets: Vec<DatasetReport>,
    /// Something could not be found or did not answer.
    pub failed: bool,
}

/// Asks the pools.
pub fn select(client: &Client, selection: &Selection) -> Found {
    let mut found = Found::default();
    if selection.operands.is_empty() {
        everything(client, selection, &mut found);
        return found;
    }
    for operand in &selection.operands {
        if let Err(message) = one(client, selection, operand, &mut found.datasets) {
            terminal::complain(&message);
            found.failed = true;
        }
    }
    let mut seen = BTreeSet::new();
    found.datasets.retain(|dataset| seen.insert(dataset.name.clone()));
    found
}

fn everything(client: &Client, selection: &Selection, found: &mut Found) {
    let wait = LOOK_DEADLINE + Duration::from_millis(500);
    let selection = selection.clone();
    let ask = move |client: &Client, pool: &str| {
        let query = DatasetQuery {
            root: None,
            depth: selection.depth,
            kinds: selection.kinds_in(pool),
            properties: selection.properties.clone(),
            ..DatasetQuery::default()
        };
        client.datasets(pool, &query)
    };
    for answer in client.ask_all(&client.pools(), wait, ask) {
        match answer.result {
            Ok(datasets) => found.datasets.extend(datasets),
            Err(failure) => {
                terminal::complain(&failure.message);
                found.failed = true;
            }
        }
    }
}

fn one(
    client: &Client,
    selection: &Selection,
    operand: &str,
    datasets: &mut Vec<DatasetReport>,
) -> Result<(), String> {
    let name = if operand.starts_with(['/', '.']) {
        at_path(client, operand)?
    } else {
        operand.to_owned()
    };
    let cannot = |why: &str| format!("cannot open '{name}': {why}");
    names::check(&name, &selection.operand_kinds).map_err(|problem| cannot(&problem))?;
    let query = DatasetQuery {
        root: Some(name.clone()),
        depth: selection.depth,
        kinds: Vec::new(),
        properties: selection.properties.clone(),
        ..DatasetQuery::default()
    };
    let all = client.datasets(names::pool_of(&name), &query).map_err(|failure| {
        if failure.kind == FailureKind::NotFound {
            cannot("dataset does not exist")
        } else {
            failure.message
        }
    })?;
    let own = all.iter().find(|dataset| dataset.name == name);
    let own = own.ok_or_else(|| cannot("dataset does not exist"))?;
    if !selection.operand_kinds.contains(&own.kind) {
        return Err(cannot("operation not applicable to datasets of this type"));
    }
    let kinds = selection.kinds_in(names::pool_of(&name));
    let shown = |dataset: &DatasetReport| {
        let named = dataset.name == name && selection.kinds.is_empty();
        named || kinds.contains(&dataset.kind) || implied(selection, dataset, &name)
    };
    datasets.extend(all.into_iter().filter(shown));
    Ok(())
}

/// A snapshot or bookmark that was named is shown whatever kinds are listed.
fn implied(selection: &Selection, dataset: &DatasetReport, name: &str) -> bool {
    let named = dataset.name == name && name.contains(['@', '#']);
    named && selection.operand_kinds.contains(&dataset.kind)
}

/// The filesystem that holds a path.
///
/// # Errors
/// The line to print.
pub fn at_path(client: &Client, operand: &str) -> Result<String, String> {
    let path = std::fs::canonicalize(operand).map_err(|error| {
        let words = match error.kind() {
            std::io::ErrorKind::NotFound => "No such file or directory".to_owned(),
            std::io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
            _ => error.to_string(),
        };
        format!("cannot open '{operand}': {words}")
    })?;
    let mounts = mounted(client);
    let holds = |dataset: &&DatasetReport| {
        dataset.mounted_at.as_deref().is_some_and(|place| path.starts_with(place))
    };
    let depth = |dataset: &&DatasetReport| {
        dataset.mounted_at.as_deref().map_or(0, |place| Path::new(place).components().count())
    };
    let best = mounts.iter().filter(holds).max_by_key(depth);
    let same = best.filter(|dataset| same_device(&path, dataset.mounted_at.as_deref()));
    same.map(|dataset| dataset.name.clone())
        .ok_or_else(|| format!("'{operand}': not a ZFS filesystem"))
}

/// Whether a path lies in the filesystem mounted there and not in one mounted below it.
fn same_device(path: &Path, mountpoint: Option<&str>) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).ok().map(|data| data.dev());
    mountpoint.is_some_and(|place| device(path) == device(Path::new(place)))
}

/// All mounted filesystems of all pools, by name.
pub fn mounted(client: &Client) -> Vec<DatasetReport> {
    let selection = Selection {
        kinds: vec![DatasetKind::Filesystem],
        properties: Some(vec!["mountpoint".to_owned(), "mounted".to_owned()]),
        ..Selection::default()
    };
    let mut all = select(client, &selection).datasets;
    all.retain(|dataset| dataset.mounted_at.is_some());
    all.sort_by(cenote_control::text::sort::by_name);
    all
}

/// Reads the argument of `-t`; `Err` with the message.
pub fn kinds(text: &str) -> Result<Vec<DatasetKind>, String> {
    let mut kinds = Vec::new();
    for word in text.split(',') {
        match word {
            "filesystem" | "fs" => kinds.push(DatasetKind::Filesystem),
            "volume" | "vol" => kinds.push(DatasetKind::Volume),
            "snapshot" | "snap" => kinds.push(DatasetKind::Snapshot),
            "bookmark" => kinds.push(DatasetKind::Bookmark),
            "all" => kinds.extend(ALL),
            _ => return Err(format!("invalid type '{word}'")),
        }
    }
    Ok(kinds)
}

/// Every kind.
pub const ALL: [DatasetKind; 4] =
    [DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot, DatasetKind::Bookmark];

/// How many levels below each operand `-d` and `-r` ask for, `None` for all; `Err` with the message.
pub fn depth(parsed: &Parsed, operands: &[String]) -> Result<Option<u32>, String> {
    match parsed.argument('d') {
        Some(text) => levels(text).map(Some),
        None if parsed.has('r') || operands.is_empty() => Ok(None),
        None => Ok(Some(0)),
    }
}

fn levels(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(depth) if depth < 0 => Err("Depth can not be negative.".to_owned()),
        Ok(depth) => Ok(u32::try_from(depth).unwrap_or(u32::MAX)),
        Err(_) => Err(format!("{text} is not an integer")),
    }
}

/// Reads a list of properties; `all` becomes `None`. `Err` with the message.
pub fn properties(text: &str) -> Result<Option<Vec<String>>, String> {
    use cenote_control::properties::{dataset, dataset_show};
    property_list(text, |name| match dataset(name) {
        Some(info) => Some(info.name.to_owned()),
        None => dataset_show(name).map(|_| name.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        assert_eq!(kinds("fs,snap").unwrap(), [DatasetKind::Filesystem, DatasetKind::Snapshot]);
        assert_eq!(kinds("bogus"), Err("invalid type 'bogus'".into()));
        assert_eq!(levels("2"), Ok(2));
        assert_eq!(levels("-1"), Err("Depth can not be negative.".into()));
        assert_eq!(levels("x"), Err("x is not an integer".into()));
        let names = properties("name,avail,userused@0,com.x:y").unwrap().unwrap();
        assert_eq!(names, ["name", "available", "userused@0", "com.x:y"]);
        let message = "bad property list: invalid property 'used@x'";
        assert_eq!(properties("name,used@x"), Err(message.into()));
        assert!(properties("NAME").is_err());
    }
}
