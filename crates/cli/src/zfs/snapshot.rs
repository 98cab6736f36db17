//! `zfs snapshot`.
//!
//! Invariant: all snapshots named are taken in one order, and so in one transaction group.

use std::collections::BTreeMap;
use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::report::DatasetKind;

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::Spec;
use crate::settings::dataset::{self, Subject};
use crate::usage::Tool;
use crate::zpool::common::history_line;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "ro:", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("snapshot", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let mut pairs = Vec::new();
    if let Err(message) = common::pairs(parsed.arguments('o'), &mut pairs) {
        return fail(&message);
    }
    if parsed.operands.is_empty() {
        return wrong("missing snapshot argument");
    }
    let client = Client::default();
    // by pool: the snapshots of one pool are taken together
    let mut wanted: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for operand in &parsed.operands {
        let Some((of, snapshot)) = operand.split_once('@') else { return wrong("") };
        if let Some(problem) = names::new_name_problem(operand, &[DatasetKind::Snapshot]) {
            return fail(&format!("cannot create snapshot '{operand}': {problem}"));
        }
        let depth = if parsed.has('r') { None } else { Some(0) };
        let all = match common::open(&client, of, &common::DATASETS, depth, &["type"]) {
            Ok(all) => all,
            Err(message) => return wrong(&message),
        };
        let names = wanted.entry(names::pool_of(of).to_owned()).or_default();
        for dataset in all.iter().filter(|one| common::DATASETS.contains(&one.kind)) {
            let name = format!("{}@{snapshot}", dataset.name);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let subject = Subject::new(DatasetKind::Snapshot, true);
    let mut properties = Vec::new();
    for (property, value) in &pairs {
        let known = dataset::is_property(property);
        match dataset::parse(property, value, &subject) {
            Ok(setting) => properties.push(setting),
            Err(_) if !known || dataset::native(property).is_some() => {
                let words = "this property can not be modified for snapshots";
                return fail(&format!("cannot create snapshots : {words}"));
            }
            Err(words) => return fail(&format!("cannot create snapshots : {words}")),
        }
    }
    // Those of several pools are told the same.
    if wanted.len() > 1 || wanted.values().any(|names| twice(names)) {
        terminal::complain("cannot create snapshots : multiple snapshots of same fs not allowed");
        return fail("no snapshots were created");
    }
    let line = history_line("zfs", "snapshot", arguments);
    let Some((pool, names)) = wanted.pop_first() else { return ExitCode::SUCCESS };
    common::code(common::change(&client, &pool, Some(line), Change::Snapshot { names, properties }))
}

/// Whether one dataset is to have two snapshots.
fn twice(names: &[String]) -> bool {
    let mut of: Vec<&str> = names.iter().filter_map(|name| Some(name.split_once('@')?.0)).collect();
    let count = of.len();
    of.sort_unstable();
    of.dedup();
    of.len() < count
}

#[cfg(test)]
mod tests {
    use super::twice;

    #[test]
    fn one_snapshot_of_each() {
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert!(twice(&names(&["tank@a", "tank@b"])));
        assert!(!twice(&names(&["tank@a", "tank/x@a"])));
    }
}
