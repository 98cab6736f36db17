//! `zfs bookmark`.
//!
//! Invariant: as in `super`.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::report::DatasetKind;

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::Spec;
use crate::usage::Tool;
use crate::zpool::common::history_line;

const SPEC: Spec = Spec { letters: "", long: &[] };
/// What a bookmark can be made of.
const SOURCES: [DatasetKind; 2] = [DatasetKind::Snapshot, DatasetKind::Bookmark];

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("bookmark", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let (from, to) = match parsed.operands.as_slice() {
        [] => return wrong("missing source argument"),
        [_] => return wrong("missing bookmark argument"),
        [from, to] => (from, to),
        _ => return wrong("too many arguments"),
    };
    if !from.contains(['@', '#']) {
        return wrong(&format!("invalid source name '{from}': must contain a '@' or '#'"));
    }
    if !to.contains('#') {
        return wrong(&format!("invalid bookmark name '{to}': must contain a '#'"));
    }
    let (from, to) = full_names(from, to);
    let client = Client::default();
    if let Err(message) = common::open(&client, &from, &SOURCES, Some(0), &["type"]) {
        return fail(&message);
    }
    let cannot = |words: &str| fail(&format!("cannot create bookmark '{to}': {words}"));
    if let Some(problem) = names::new_name_problem(&to, &[DatasetKind::Bookmark]) {
        return cannot(&problem);
    }
    if names::pool_of(&from) != names::pool_of(&to) {
        return cannot("bookmark is in a different pool");
    }
    let line = history_line("zfs", "bookmark", arguments);
    let change = Change::Bookmark { from: from.clone(), to };
    common::code(common::change(&client, &from, Some(line), change))
}

/// Both names with their dataset: one of them may leave it to the other.
fn full_names(from: &str, to: &str) -> (String, String) {
    let dataset = |name: &str| name.split(['@', '#']).next().unwrap_or("").to_owned();
    if to.starts_with('#') {
        return (from.to_owned(), format!("{}{to}", dataset(from)));
    }
    if from.starts_with(['@', '#']) {
        return (format!("{}{from}", dataset(to)), to.to_owned());
    }
    (from.to_owned(), to.to_owned())
}

#[cfg(test)]
mod tests {
    use super::full_names;

    #[test]
    fn one_name_may_leave_its_dataset_to_the_other() {
        let both = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        assert_eq!(full_names("p/a@s", "#b"), both("p/a@s", "p/a#b"));
        assert_eq!(full_names("@s", "p/a#b"), both("p/a@s", "p/a#b"));
        assert_eq!(full_names("p/a#c", "p/a#b"), both("p/a#c", "p/a#b"));
    }
}
