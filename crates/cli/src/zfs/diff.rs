//! `zfs diff`.
//!
//! Invariant: as in `super`; what is different is shown as it is told, however much it is.

use std::process::ExitCode;

use cenote_control::changes::{Change, DiffRequest};
use cenote_control::client::Client;
use cenote_control::protocol::{Part, Request};
use cenote_control::report::DatasetKind;
use cenote_control::terminal;

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::Spec;
use crate::usage::Tool;

const SPEC: Spec = Spec { letters: "FHth", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("diff", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let (from, to) = match parsed.operands.as_slice() {
        [] => return wrong("must provide at least one snapshot name"),
        [from] => (from.as_str(), None),
        [from, to] => (from.as_str(), Some(to.as_str())),
        _ => return wrong("too many arguments"),
    };
    let Some((from, to)) = full_names(from, to) else {
        return match from.starts_with('@') {
            true => wrong("must provide at least one snapshot name"),
            false => fail(&format!(
                "Badly formed snapshot name {from}: missing '@' delimiter in snapshot name"
            )),
        };
    };
    let client = Client::default();
    let of = from.split('@').next().unwrap_or_default();
    if let Err(message) = common::open(&client, of, &[DatasetKind::Filesystem], Some(0), &["type"])
    {
        return fail(&message);
    }
    for name in [&from, &to] {
        let kinds = [DatasetKind::Snapshot, DatasetKind::Filesystem];
        if let Err(problem) = names::check(name, &kinds) {
            return fail(&format!("cannot open '{name}': {problem}"));
        }
    }
    if names::pool_of(&from) != names::pool_of(&to) {
        return fail("Not an earlier snapshot from the same fs: invalid name");
    }
    let request = DiffRequest {
        classify: parsed.has('F'),
        scripted: parsed.has('H'),
        times: parsed.has('t'),
        plain: parsed.has('h'),
        from,
        to,
    };
    let pool = names::pool_of(&request.from).to_owned();
    let order: Request = Change::Diff(Box::new(request)).into();
    let told = client.order_in_parts(&pool, &order, &[], |part| {
        if let Part::Said(lines) = part {
            lines.iter().for_each(|line| terminal::out(&format!("{line}\n")));
        }
    });
    match told {
        Ok(_) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure.message),
    }
}

/// The snapshot, and the later snapshot or the filesystem: each may leave its dataset to the other, and without
/// another one it is held against what is now.
fn full_names(from: &str, to: Option<&str>) -> Option<(String, String)> {
    let of = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
    if !from.contains('@') {
        return None;
    }
    Some(match (from.strip_prefix('@'), to) {
        (Some(_), None) => return None,
        (Some(_), Some(to)) => (format!("{}{from}", of(to)), to.to_owned()),
        (None, None) => (from.to_owned(), of(from)),
        (None, Some(to)) if to.starts_with('@') => (from.to_owned(), format!("{}{to}", of(from))),
        (None, Some(to)) => (from.to_owned(), to.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::full_names;

    #[test]
    fn names_are_completed() {
        let both = |from: &str, to: &str| Some((from.to_owned(), to.to_owned()));
        assert_eq!(full_names("p/a@x", None), both("p/a@x", "p/a"));
        assert_eq!(full_names("p/a@x", Some("@y")), both("p/a@x", "p/a@y"));
        assert_eq!(full_names("@x", Some("p/a@y")), both("p/a@x", "p/a@y"));
        assert_eq!(full_names("@x", Some("p/a")), both("p/a@x", "p/a"));
        assert_eq!(full_names("p/a", None), None);
        assert_eq!(full_names("@x", None), None);
    }
}
