//! `zfs allow` and `zfs unallow`: showing, giving and taking delegated permissions.
//!
//! Invariant: a permission is known and everybody named exists before a pool is asked to change
//! anything; one command is one change.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use cenote_control::changes::{Change, Grant};
use cenote_control::client::Client;
use cenote_control::delegation::{Key, PERMISSIONS, Scope, Who};
use cenote_control::property;

use super::common::{self, DATASETS};
use crate::datasets::names;
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use crate::zpool::common::history_line;
use cenote_control::principal;
use cenote_control::terminal;

const ALLOW: Spec = Spec { letters: "hldugecs", long: &[] };
const UNALLOW: Spec = Spec { letters: "hldugecsr", long: &[] };
/// Columns of the line that names a dataset.
const RULE: usize = 70;
const OPTIONS: &str = "
Options:
  -h          show this help message and exit
  -l          set permission locally
  -d          set permission for descents
  -u          set permission for user
  -g          set permission for group
  -e          set permission for everyone
  -c          set create time permission
  -s          define permission set
";

/// What a command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Show(String),
    Change { dataset: String, grants: Vec<Grant> },
}

/// Runs `zfs allow`.
pub fn allow(arguments: &[String]) -> ExitCode {
    run("allow", arguments)
}

/// Runs `zfs unallow`.
pub fn unallow(arguments: &[String]) -> ExitCode {
    run("unallow", arguments)
}

fn run(command: &str, arguments: &[String]) -> ExitCode {
    let takes = command == "unallow";
    let spec = if takes { UNALLOW } else { ALLOW };
    let wrong = |message: &str| {
        let text = format!("{}\nzfs: error: {message}", usage(command));
        terminal::complain(&text);
        ExitCode::from(2)
    };
    let parsed = match spec.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    if parsed.has('h') {
        terminal::out(&usage(command));
        return ExitCode::SUCCESS;
    }
    let wanted = match wanted(&parsed, takes) {
        Ok(wanted) => wanted,
        Err(Problem::Usage(message)) => return wrong(&message),
        Err(Problem::Permission { dataset, name }) => {
            return common::fail(&format!(
                "cannot set permissions on '{dataset}': '{name}' is not a permission; 'zfs \
                 {command} -h' lists them"
            ));
        }
    };
    let (Wanted::Show(dataset) | Wanted::Change { dataset, .. }) = &wanted;
    let client = Client::default();
    if let Err(message) = common::open(&client, dataset, &DATASETS, Some(0), &["type"]) {
        terminal::complain(&format!("{message}\nFailed to open dataset: {dataset}"));
        return ExitCode::from(255);
    }
    match wanted {
        Wanted::Show(dataset) => show(&client, &dataset),
        Wanted::Change { dataset, grants } => {
            let line = history_line("zfs", command, arguments);
            let pool = dataset.clone();
            let change = match takes {
                false => Change::Allow { dataset, grants },
                true => Change::Unallow { dataset, grants, recursive: parsed.has('r') },
            };
            common::code(common::change(&client, &pool, Some(line), change))
        }
    }
}

/// Why a command line is refused.
#[derive(Debug, PartialEq, Eq)]
enum Problem {
    Usage(String),
    Permission { dataset: String, name: String },
}

fn wanted(parsed: &Parsed, takes: bool) -> Result<Wanted, Problem> {
    let wrong = |message: &str| Err(Problem::Usage(message.to_owned()));
    let count = |letters: &str| letters.chars().filter(|letter| parsed.has(*letter)).count();
    if parsed.has('c') && count("ugelds") > 0 {
        return wrong("invalid options combined with -c");
    }
    if parsed.has('s') && count("ugeld") > 0 {
        return wrong("invalid options combined with -s");
    }
    if count("uge") > 1 {
        return wrong("-u, -g, and -e are mutually exclusive");
    }
    let words: Vec<&str> = parsed.operands.iter().map(String::as_str).collect();
    let nobody = parsed.has('c') || parsed.has('e');
    let (who, permissions, dataset) = match (nobody, words.as_slice()) {
        (false, [dataset]) if !takes && count("ugeldcs") == 0 => {
            return Ok(Wanted::Show((*dataset).to_owned()));
        }
        (false, [who, permissions, dataset]) => (*who, Some(*permissions), *dataset),
        (false, [who, dataset]) if takes => (*who, None, *dataset),
        (true, [permissions, dataset]) => ("", Some(*permissions), *dataset),
        (true, [dataset]) if takes => ("", None, *dataset),
        _ => return wrong("wrong number of parameters"),
    };
    let whom = whom(parsed, who).map_err(Problem::Usage)?;
    let names = match permissions {
        None => None,
        Some(list) => Some(sorted_out(list, dataset)?),
    };
    let scopes = match (parsed.has('l'), parsed.has('d')) {
        (true, false) => vec![Scope::Local],
        (false, true) => vec![Scope::Descendant],
        _ => vec![Scope::Local, Scope::Descendant],
    };
    let mut grants = Vec::new();
    for who in whom {
        let scopes = match who {
            Who::Set(_) | Who::Creator => vec![Scope::NotApplicable],
            _ => scopes.clone(),
        };
        for scope in scopes {
            for sets in [false, true] {
                let key = Key { who: who.clone(), scope, sets }.name();
                match &names {
                    None => grants.push(Grant { key, permissions: Vec::new() }),
                    Some((plain, named)) => {
                        let permissions = if sets { named.clone() } else { plain.clone() };
                        if !permissions.is_empty() {
                            grants.push(Grant { key, permissions });
                        }
                    }
                }
            }
        }
    }
    Ok(Wanted::Change { dataset: dataset.to_owned(), grants })
}

/// To whom the options and the first operand point.
fn whom(parsed: &Parsed, list: &str) -> Result<Vec<Who>, String> {
    if parsed.has('c') {
        return Ok(vec![Who::Creator]);
    }
    if parsed.has('e') {
        return Ok(vec![Who::Everyone]);
    }
    if parsed.has('s') {
        return match list.strip_prefix('@') {
            None => Err("invalid set name: missing '@' prefix".to_owned()),
            Some(_) if !is_set(list) => Err(format!("invalid set name: {list}")),
            Some(_) => Ok(vec![Who::Set(list.to_owned())]),
        };
    }
    let (user, group) = (parsed.has('u'), parsed.has('g'));
    if list == "everyone" && !user && !group {
        return Ok(vec![Who::Everyone]);
    }
    let is_number = |name: &str| name.chars().all(|c| c.is_ascii_digit());
    let find = |name: &str| {
        let one = |who| principal::id(who, name);
        match (user, group) {
            (true, _) => one(principal::Who::User).map(Who::User),
            (_, true) => one(principal::Who::Group).map(Who::Group),
            // A number alone does not tell whose it is.
            _ if is_number(name) => None,
            _ => one(principal::Who::User)
                .map(Who::User)
                .or_else(|| one(principal::Who::Group).map(Who::Group)),
        }
    };
    let kind = match (user, group) {
        (true, _) => "user",
        (_, true) => "group",
        _ => "user/group",
    };
    list.split(',').map(|name| find(name).ok_or(format!("invalid {kind} {name}"))).collect()
}

/// Permissions, and names of sets.
type Names = (Vec<String>, Vec<String>);

fn sorted_out(list: &str, dataset: &str) -> Result<Names, Problem> {
    let (mut plain, mut sets) = (Vec::new(), Vec::new());
    for name in list.split(',') {
        let known = match name.starts_with('@') {
            true => is_set(name),
            false => is_permission(name),
        };
        if !known {
            return Err(Problem::Permission { dataset: dataset.into(), name: name.into() });
        }
        let names = if name.starts_with('@') { &mut sets } else { &mut plain };
        names.push(name.to_owned());
    }
    Ok((plain, sets))
}

fn is_permission(name: &str) -> bool {
    PERMISSIONS.contains(&name)
        || property::dataset(name).is_some_and(|found| {
            found.name == name && found.attribute != property::Attribute::ReadOnly
        })
}

/// Whether a text can be the name of a set, its `@` included.
fn is_set(name: &str) -> bool {
    let permitted = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ');
    name.len() < 256
        && name
            .strip_prefix('@')
            .is_some_and(|name| !name.is_empty() && name.chars().all(permitted))
}

fn show(client: &Client, dataset: &str) -> ExitCode {
    match client.permissions(names::pool_of(dataset), dataset) {
        Ok(levels) => {
            let text = |(name, grants): &(String, Vec<Grant>)| level(name, grants, &named);
            terminal::out(&levels.iter().map(text).collect::<String>());
            ExitCode::SUCCESS
        }
        Err(failure) => common::fail(&failure.message),
    }
}

/// What a user or group is called here.
fn named(who: &Who) -> String {
    let (word, kind, id) = match who {
        Who::User(id) => ("user", principal::Who::User, *id),
        Who::Group(id) => ("group", principal::Who::Group, *id),
        Who::Everyone | Who::Creator | Who::Set(_) => return "everyone".to_owned(),
    };
    match principal::name(kind, id.into()) {
        Some(name) => format!("{word} {name}"),
        None => format!("{word} (unknown: {id})"),
    }
}

/// What stands on one dataset.
fn level(dataset: &str, grants: &[Grant], named: &dyn Fn(&Who) -> String) -> String {
    let mut sets: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let mut at_creation: BTreeSet<&str> = BTreeSet::new();
    let mut local: BTreeMap<Who, BTreeSet<&str>> = BTreeMap::new();
    let mut below = local.clone();
    for grant in grants {
        let Ok(key) = Key::parse(grant.key.as_bytes()) else { continue };
        let names = match (key.who, key.scope) {
            (Who::Set(name), _) => sets.entry(name).or_default(),
            (Who::Creator, _) => &mut at_creation,
            (who, Scope::Descendant) => below.entry(who).or_default(),
            (who, _) => local.entry(who).or_default(),
        };
        names.extend(grant.permissions.iter().map(String::as_str));
    }
    let joined = |names: &BTreeSet<&str>| names.iter().copied().collect::<Vec<_>>().join(",");
    let mut text = format!("---- Permissions on {dataset} ");
    let rule = RULE.saturating_sub(text.len());
    text.push_str(&"-".repeat(rule));
    text.push('\n');
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text.push_str(&format!("{title}:\n"));
            lines.iter().for_each(|line| text.push_str(&format!("\t{line}\n")));
        }
    };
    let line = |(name, names): (&String, &BTreeSet<&str>)| format!("{name} {}", joined(names));
    section("Permission sets", sets.iter().map(line).collect());
    let created = (!at_creation.is_empty()).then(|| joined(&at_creation));
    section("Create time permissions", created.into_iter().collect());
    let everybody: BTreeSet<&Who> = local.keys().chain(below.keys()).collect();
    let none = BTreeSet::new();
    let lines = |choose: &dyn Fn(&str, bool, bool) -> bool| -> Vec<String> {
        let of = |who: &&Who| {
            let (here, there) = (local.get(who).unwrap_or(&none), below.get(who).unwrap_or(&none));
            let names: BTreeSet<&str> = here
                .union(there)
                .copied()
                .filter(|name| choose(name, here.contains(name), there.contains(name)))
                .collect();
            (!names.is_empty()).then(|| format!("{} {}", named(who), joined(&names)))
        };
        everybody.iter().filter_map(of).collect()
    };
    section("Local permissions", lines(&|_, here, there| here && !there));
    section("Descendent permissions", lines(&|_, here, there| there && !here));
    section("Local+Descendent permissions", lines(&|_, here, there| here && there));
    text
}

/// The usage with the list of permissions.
fn usage(command: &str) -> String {
    let whole = Tool::Zfs.of(command);
    let syntax = whole.split("\n\nFor the ").next().unwrap_or_default();
    let mut text = syntax.replacen("usage:\n", "Usage: ", 1);
    text.truncate(text.trim_end().len());
    text.push('\n');
    text.push_str(OPTIONS);
    if command == "unallow" {
        text.push_str("  -r          remove permissions recursively\n");
    }
    text.push_str("\nThe following permissions are supported:\n\nNAME             TYPE\n");
    let other =
        |name: &str| name.ends_with("quota") || name.ends_with("used") || name == "userprop";
    for (kind, is_other) in [("subcommand", false), ("other", true)] {
        for name in PERMISSIONS.iter().filter(|name| other(name) == is_other) {
            text.push_str(&format!("{name:<16} {kind}\n"));
        }
    }
    let mut properties: Vec<&str> = property::DATASET
        .iter()
        .filter(|found| found.visible && found.attribute != property::Attribute::ReadOnly)
        .map(|found| found.name)
        .collect();
    properties.sort_unstable();
    properties.iter().for_each(|name| text.push_str(&format!("{name:<16} property\n")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(takes: bool, line: &str) -> Result<Vec<(String, String)>, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let spec = if takes { UNALLOW } else { ALLOW };
        let parsed = spec.parse(&words).map_err(|error| error.message())?;
        match wanted(&parsed, takes) {
            Ok(Wanted::Show(dataset)) => Ok(vec![(dataset, String::new())]),
            Ok(Wanted::Change { grants, .. }) => Ok(grants
                .into_iter()
                .map(|grant| (grant.key, grant.permissions.join(",")))
                .collect()),
            Err(Problem::Usage(message)) => Err(message),
            Err(Problem::Permission { name, .. }) => Err(format!("not {name}")),
        }
    }

    fn pairs(pairs: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
        Ok(pairs.iter().map(|(key, names)| ((*key).into(), (*names).into())).collect())
    }

    /// The keys are those that OpenZFS 2.1.11 wrote for these lines.
    #[test]
    fn command_lines_become_keys() {
        let give = |line| asked(false, line);
        let take = |line| asked(true, line);
        assert_eq!(give("t/a"), pairs(&[("t/a", "")]));
        assert_eq!(
            give("everyone mount,create t"),
            pairs(&[("el$", "mount,create"), ("ed$", "mount,create")])
        );
        assert_eq!(
            give("-u root @x,snapshot t"),
            pairs(&[("ul$0", "snapshot"), ("Ul$0", "@x"), ("ud$0", "snapshot"), ("Ud$0", "@x")])
        );
        assert_eq!(give("-s @x destroy,compression t"), pairs(&[("s-$@x", "destroy,compression")]));
        assert_eq!(give("-c @x,create t"), pairs(&[("c-$", "create"), ("C-$", "@x")]));
        assert_eq!(give("-l -g 1 clone t"), pairs(&[("gl$1", "clone")]));
        assert_eq!(give("-d -u 2 promote t"), pairs(&[("ud$2", "promote")]));
        assert_eq!(take("-e t"), pairs(&[("el$", ""), ("El$", ""), ("ed$", ""), ("Ed$", "")]));
        assert_eq!(take("-s @x t"), pairs(&[("s-$@x", ""), ("S-$@x", "")]));
        assert_eq!(take("-c t"), pairs(&[("c-$", ""), ("C-$", "")]));
        assert_eq!(take("-l root t"), pairs(&[("ul$0", ""), ("Ul$0", "")]));
        assert_eq!(take("-r -u 2 promote t"), pairs(&[("ul$2", "promote"), ("ud$2", "promote")]));
        let refused = [
            (false, "root t", "wrong number of parameters"),
            (false, "-e create t x", "wrong number of parameters"),
            (true, "t", "wrong number of parameters"),
            (true, "-s t", "wrong number of parameters"),
            (false, "-s foo create t", "invalid set name: missing '@' prefix"),
            (false, "-c -l create t", "invalid options combined with -c"),
            (false, "-ug daemon create t", "-u, -g, and -e are mutually exclusive"),
            (false, "4712 create t", "invalid user/group 4712"),
            (false, "-u nosuchuser create t", "invalid user nosuchuser"),
            (false, "root,nosuch create t", "invalid user/group nosuch"),
            (false, "-u everyone create t", "invalid user everyone"),
            (false, "root bogus t", "not bogus"),
            (false, "root create,used t", "not used"),
            (false, "root compress t", "not compress"),
            (false, "root @ t", "not @"),
        ];
        for (takes, line, message) in refused {
            assert_eq!(asked(takes, line), Err(message.to_owned()), "{line}");
        }
        for known in ["compression", "keyformat", "volsize", "send:raw", "userprop", "version"] {
            assert!(is_permission(known), "{known}");
        }
    }

    /// Recorded from OpenZFS 2.1.11.
    #[test]
    fn permissions_are_shown_as_openzfs_does() {
        let grants = |pairs: &[(&str, &str)]| -> Vec<Grant> {
            let names = |list: &str| list.split(',').map(str::to_owned).collect();
            pairs
                .iter()
                .map(|(key, list)| Grant { key: (*key).into(), permissions: names(list) })
                .collect()
        };
        let called = |who: &Who| match who {
            Who::User(2) => "user bin".to_owned(),
            Who::User(65534) => "user nobody".to_owned(),
            Who::Group(1) => "group daemon".to_owned(),
            Who::Group(id) => format!("group (unknown: {id})"),
            _ => "everyone".to_owned(),
        };
        let all = grants(&[
            ("Ud$65534", "@x"),
            ("Ul$65534", "@x"),
            ("c-$", "create"),
            ("ed$", "create"),
            ("el$", "create"),
            ("gl$1", "clone"),
            ("gl$4711", "create"),
            ("gd$4711", "create"),
            ("s-$@x", "destroy,compression"),
            ("S-$@x", "@y"),
            ("ud$2", "promote"),
            ("ud$65534", "snapshot"),
            ("ul$65534", "snapshot"),
        ]);
        let expected = "---- Permissions on tank/a -------------------------------------------\n\
            Permission sets:\n\t@x @y,compression,destroy\n\
            Create time permissions:\n\tcreate\n\
            Local permissions:\n\tgroup daemon clone\n\
            Descendent permissions:\n\tuser bin promote\n\
            Local+Descendent permissions:\n\tuser nobody @x,snapshot\n\
            \tgroup (unknown: 4711) create\n\teveryone create\n";
        assert_eq!(level("tank/a", &all, &called), expected);
    }

    #[test]
    fn usage_lists_permissions() {
        let text = usage("allow");
        assert!(text.starts_with("Usage: \tallow <filesystem|volume>\n\tallow [-ldug] "), "{text}");
        for line in ["clone            subcommand\n", "userprop         other\n"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("\ncompression      property\n"), "{text}");
    }
}
