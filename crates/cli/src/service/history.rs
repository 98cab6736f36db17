//! The pool's history as the report has it.

use cenote_control::report::HistoryRecord;
use cenote_engine::pool::Pool;
use cenote_engine::pool::history::History;
use cenote_engine::{Error, Result};
use cenote_format::history::key;
use cenote_format::nvlist::NvList;

/// Every record, oldest first. A record that cannot be read ends the list.
pub fn records(pool: &Pool) -> Result<Vec<HistoryRecord>> {
    let mut out = Vec::new();
    for record in History::open(&pool.catalog())? {
        match record {
            Ok(record) => out.push(convert(&record.fields)),
            Err(error) if out.is_empty() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the history ends early");
                break;
            }
        }
    }
    Ok(out)
}

fn convert(list: &NvList) -> HistoryRecord {
    let text = |name: &str| list.string_lossy(name);
    let signed = |name: &str| list.u64(name).and_then(|number| i64::try_from(number).ok());
    let dataset = match (text(key::DATASET_NAME), list.u64(key::DATASET_ID)) {
        (Some(name), Some(id)) => Some((name, id)),
        _ => None,
    };
    HistoryRecord {
        time: signed(key::TIME).unwrap_or(0),
        command: text(key::COMMAND),
        ioctl: text(key::IOCTL),
        internal_name: text(key::INTERNAL_NAME),
        internal_text: text(key::INTERNAL_TEXT),
        internal_number: list.u64(key::INTERNAL_EVENT),
        dataset,
        txg: list.u64(key::TXG),
        elapsed_nanoseconds: list.i64(key::ELAPSED).and_then(|n| u64::try_from(n).ok()),
        input: list.nvlist(key::INPUT).map(lines),
        output: list.nvlist(key::OUTPUT).map(lines),
        error_number: list.i64(key::ERRNO),
        who: list.u64(key::WHO),
        user: list.u64(key::WHO).and_then(user_name),
        host: text(key::HOSTNAME),
        zone: text(key::ZONE),
    }
}

/// A nested list as `name: value` lines.
fn lines(list: &NvList) -> String {
    let mut out = String::new();
    push(&mut out, list, 0);
    out
}

fn push(out: &mut String, list: &NvList, depth: usize) {
    use std::fmt::Write;

    use cenote_format::nvlist::Value;
    let indent = "    ".repeat(depth.min(16));
    for pair in list.iter() {
        let name = String::from_utf8_lossy(&pair.name);
        // Writing to a string cannot fail.
        let _ = match &pair.value {
            Value::List(inner) => {
                let _ = writeln!(out, "{indent}{name}:");
                if depth < 16 {
                    push(out, inner, depth + 1);
                }
                Ok(())
            }
            Value::String(text) => {
                writeln!(out, "{indent}{name}: '{}'", String::from_utf8_lossy(text))
            }
            Value::Uint64(number) => writeln!(out, "{indent}{name}: {number}"),
            Value::Int64(number) => writeln!(out, "{indent}{name}: {number}"),
            Value::Boolean => writeln!(out, "{indent}{name}"),
            other => writeln!(out, "{indent}{name}: {other:?}"),
        };
    }
}

/// Name of a user of this machine.
fn user_name(uid: u64) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number: u64 = fields.nth(1)?.parse().ok()?;
        (number == uid).then(|| name.to_owned())
    })
}

/// What to say when the history cannot be read.
pub fn failure(error: &Error) -> String {
    format!("cannot get history: {error}")
}
