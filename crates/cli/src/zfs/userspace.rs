//! `zfs userspace`, `groupspace` and `projectspace`.
//!
//! Invariant: a line comes for everybody who owns something or has a quota; what is not counted is
//! `-`.

use std::cmp::Ordering;
use std::process::ExitCode;

use cenote_control::client::Client;
use cenote_control::report::{DatasetKind, UsageRecord};
use cenote_control::text::number;
use cenote_control::text::table::{self, Column};

use super::common;
use crate::datasets::{names, select};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use cenote_control::principal::{self, Who};
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "nHpo:s:S:t:i", long: &[] };
/// Exit code if a field or type is wrong.
const WRONG_FIELD: u8 = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Type,
    Name,
    Used,
    Quota,
    Objects,
    ObjectQuota,
}

const FIELDS: [(&str, Field); 6] = [
    ("type", Field::Type),
    ("name", Field::Name),
    ("used", Field::Used),
    ("quota", Field::Quota),
    ("objused", Field::Objects),
    ("objquota", Field::ObjectQuota),
];

/// What is shown of whom, and in which order.
struct Wanted {
    whose: Vec<Who>,
    fields: Vec<Field>,
    /// What lines are sorted by, and whether the other way round.
    keys: Vec<(Field, bool)>,
}

/// Runs the command: `userspace`, `groupspace` or `projectspace`.
pub fn run(command: &str, arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong(command, message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let wanted = match Wanted::read(command, &parsed) {
        Ok(wanted) => wanted,
        Err(message) => {
            terminal::complain(&message);
            return ExitCode::from(WRONG_FIELD);
        }
    };
    let operand = match parsed.operands.as_slice() {
        [] => return wrong(""),
        [operand] => operand,
        _ => return wrong("too many arguments"),
    };
    let mut records = match records(operand) {
        Ok(records) => records,
        Err(message) => return common::fail(&message),
    };
    records.retain(|record| wanted.whose.contains(&who(record)));
    let name = |record: &UsageRecord| {
        let known = (!parsed.has('n')).then(|| principal::name(who(record), record.id)).flatten();
        known.unwrap_or_else(|| record.id.to_string())
    };
    let mut rows: Vec<(String, UsageRecord)> =
        records.into_iter().map(|record| (name(&record), record)).collect();
    rows.sort_by(|a, b| wanted.order(a, b));
    terminal::out(&render(&rows, &wanted.fields, &parsed));
    ExitCode::SUCCESS
}

impl Wanted {
    /// Reads the options; `Err` with the message about a wrong type or field.
    fn read(command: &str, parsed: &Parsed) -> Result<Wanted, String> {
        let whose = match (command, parsed.argument('t')) {
            ("projectspace", _) => vec![Who::Project],
            (_, Some(types)) => types_of(types)?,
            ("groupspace", None) => vec![Who::Group],
            (_, None) => vec![Who::User],
        };
        let named = |word: &str, letter: char| {
            field(word).ok_or_else(|| format!("invalid type '{word}' for -{letter} option"))
        };
        let fields = match parsed.argument('o') {
            Some(text) => text.split(',').map(|word| named(word, 'o')).collect::<Result<_, _>>()?,
            None => FIELDS.iter().map(|(_, field)| *field).collect(),
        };
        let mut keys = Vec::new();
        for (letter, word) in &parsed.options {
            if matches!(letter, 's' | 'S') {
                keys.push((named(word.as_deref().unwrap_or(""), *letter)?, *letter == 'S'));
            }
        }
        keys.extend([(Field::Type, false), (Field::Name, false)]);
        Ok(Wanted { whose, fields, keys })
    }

    fn order(&self, a: &(String, UsageRecord), b: &(String, UsageRecord)) -> Ordering {
        let by = |(field, reversed): &(Field, bool)| {
            let order = compare(*field, a, b);
            if *reversed { order.reverse() } else { order }
        };
        self.keys.iter().map(by).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

/// Reads the argument of `-t`.
fn types_of(types: &str) -> Result<Vec<Who>, String> {
    let mut whose = Vec::new();
    for word in types.split(',') {
        match word {
            "all" => whose.extend([Who::User, Who::Group]),
            "posixuser" => whose.push(Who::User),
            "posixgroup" => whose.push(Who::Group),
            // Windows identities are not used here
            "smbuser" | "smbgroup" => {}
            _ => return Err(format!("invalid type '{word}' for -t option")),
        }
    }
    Ok(whose)
}

fn field(word: &str) -> Option<Field> {
    FIELDS.iter().find(|(name, _)| *name == word).map(|(_, field)| *field)
}

fn who(record: &UsageRecord) -> Who {
    match record.kind.as_str() {
        "user" => Who::User,
        "group" => Who::Group,
        _ => Who::Project,
    }
}

/// Usage of the filesystem a name or path means.
fn records(operand: &str) -> Result<Vec<UsageRecord>, String> {
    let client = Client::default();
    let name = match operand.starts_with(['/', '.']) {
        true => select::at_path(&client, operand)?,
        false => operand.to_owned(),
    };
    let kinds = [DatasetKind::Filesystem, DatasetKind::Snapshot];
    common::open(&client, &name, &kinds, Some(0), &["type"])?;
    client.usage(names::pool_of(&name), &name).map_err(|failure| failure.message)
}

fn compare(field: Field, a: &(String, UsageRecord), b: &(String, UsageRecord)) -> Ordering {
    match field {
        Field::Type => a.1.kind.cmp(&b.1.kind),
        // names by letters, then numbers by size
        Field::Name => match (a.0.parse::<u64>(), b.0.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (a_number, b_number) => (a_number.is_ok(), &a.0).cmp(&(b_number.is_ok(), &b.0)),
        },
        Field::Used => a.1.used.cmp(&b.1.used),
        Field::Quota => a.1.quota.cmp(&b.1.quota),
        Field::Objects => a.1.objects.cmp(&b.1.objects),
        Field::ObjectQuota => a.1.object_quota.cmp(&b.1.object_quota),
    }
}

fn cell(row: &(String, UsageRecord), field: Field, exact: bool) -> String {
    let record = &row.1;
    let bytes = |size: u64| if exact { size.to_string() } else { number::bytes(size) };
    let count = |count: u64| if exact { count.to_string() } else { number::plain(count) };
    let counted = record.objects.is_some() || record.object_quota.is_some();
    let none = || if exact { "0".to_owned() } else { "none".to_owned() };
    match field {
        Field::Type => match who(record) {
            Who::User => "POSIX User".to_owned(),
            Who::Group => "POSIX Group".to_owned(),
            Who::Project => "Project".to_owned(),
        },
        Field::Name => row.0.clone(),
        Field::Used => bytes(record.used),
        Field::Quota => record.quota.map_or_else(none, bytes),
        Field::Objects | Field::ObjectQuota if !counted => "-".to_owned(),
        Field::Objects => count(record.objects.unwrap_or(0)),
        Field::ObjectQuota => record.object_quota.map_or_else(none, count),
    }
}

fn render(rows: &[(String, UsageRecord)], fields: &[Field], parsed: &Parsed) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| fields.iter().map(|field| cell(row, *field, parsed.has('p'))).collect())
        .collect();
    if parsed.has('H') {
        return cells.iter().map(|row| table::scripted(row)).collect();
    }
    let columns: Vec<Column> = fields
        .iter()
        .enumerate()
        .map(|(index, field)| {
            let known = FIELDS.iter().find(|(_, other)| other == field);
            let heading = known.map_or("", |(name, _)| name).to_uppercase();
            let widest = cells.iter().filter_map(|row| row.get(index)).map(String::len).max();
            let width = widest.unwrap_or(0).max(heading.len());
            Column { heading, width, right: !matches!(field, Field::Type | Field::Name) }
        })
        .collect();
    let mut text = table::headings(&columns);
    cells.iter().for_each(|row| text.push_str(&table::line(&columns, row)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from OpenZFS 2.1.11 in a virtual machine.
    #[test]
    fn tables_look_like_those_of_openzfs() {
        let record = |kind: &str, id, used, quota, objects, object_quota| UsageRecord {
            kind: kind.to_owned(),
            id,
            used,
            quota,
            objects,
            object_quota,
        };
        let rows = [
            ("cloudsdk".to_owned(), record("user", 1000, 0, Some(1 << 30), None, None)),
            ("root".to_owned(), record("user", 0, 1536, Some(1), Some(3), Some(5))),
        ];
        let fields: Vec<Field> = FIELDS.iter().map(|(_, field)| *field).collect();
        let parse = |line: &str| SPEC.parse(&[line.to_owned()]).unwrap();
        let expected = "TYPE        NAME       USED  QUOTA  OBJUSED  OBJQUOTA\nPOSIX User  \
                        cloudsdk     0B     1G        -         -\nPOSIX User  root      \
                        1.50K     1B        3         5\n";
        assert_eq!(render(&rows, &fields, &parse("tank")), expected);
        let expected =
            "POSIX User\tcloudsdk\t0\t1073741824\t-\t-\nPOSIX User\troot\t1536\t1\t3\t5\n";
        assert_eq!(render(&rows, &fields, &parse("-Hp")), expected);
        let rows = [("root".to_owned(), record("group", 0, 1536, Some(1 << 30), Some(3), None))];
        let expected = "TYPE         NAME   USED  QUOTA  OBJUSED  OBJQUOTA\nPOSIX Group  root  \
                        1.50K     1G        3      none\n";
        assert_eq!(render(&rows, &fields, &parse("tank")), expected);
    }

    #[test]
    fn names_come_before_numbers() {
        let row = |name: &str| (name.to_owned(), UsageRecord::default());
        let mut rows = ["70000", "root", "1002", "bin"].map(row);
        rows.sort_by(|a, b| compare(Field::Name, a, b));
        assert_eq!(rows.map(|row| row.0), ["bin", "root", "1002", "70000"]);
    }
}
