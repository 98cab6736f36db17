//! `zpool history` as text.
//!
//! Invariant: one record is printed the same whatever stands before it.

use super::time;
use crate::report::HistoryRecord;

/// The history of one pool, with a blank line after it.
pub fn render(pool: &str, records: &[HistoryRecord], internal: bool, long: bool) -> String {
    let mut out = heading(pool);
    for each in records {
        out.push_str(&record(each, internal, long));
    }
    out.push('\n');
    out
}

/// What stands above the history of one pool.
pub fn heading(pool: &str) -> String {
    format!("History for '{pool}':\n")
}

/// One record; empty if it is internal and those were not asked for.
pub fn record(record: &HistoryRecord, internal: bool, long: bool) -> String {
    let mut line = time::history(record.time);
    if let Some(elapsed) = record.elapsed_nanoseconds {
        line.push_str(&format!(" ({}ms)", elapsed / 1_000_000));
    }
    let text = record.internal_text.as_deref().unwrap_or("");
    if let Some(command) = &record.command {
        line.push_str(&format!(" {command}"));
    } else if let Some(number) = record.internal_number {
        if !internal {
            return String::new();
        }
        let name = record.internal_name.clone().unwrap_or_else(|| number.to_string());
        let txg = record.txg.unwrap_or(0);
        line.push_str(&format!(" [internal {name} txg:{txg}] {text}"));
    } else if let Some(name) = &record.internal_name {
        if !internal {
            return String::new();
        }
        line.push_str(&format!(" [txg:{}] {name}", record.txg.unwrap_or(0)));
        if let Some((dataset, id)) = &record.dataset {
            line.push_str(&format!(" {dataset} ({id})"));
        }
        line.push_str(&format!(" {text}"));
    } else if let Some(ioctl) = &record.ioctl {
        if !internal {
            return String::new();
        }
        line.push_str(&format!(" ioctl {ioctl}\n"));
        if let Some(input) = &record.input {
            line.push_str(&format!("    input:\n{}", indented(input)));
        }
        if let Some(output) = &record.output {
            line.push_str(&format!("    output:\n{}", indented(output)));
        }
        if let Some(error) = record.error_number {
            line.push_str(&format!("    errno: {error}\n"));
        }
    } else {
        if !internal {
            return String::new();
        }
        line.push_str(" unrecognized record:\n");
    }
    if long {
        line.push_str(&origin(record));
    }
    line.push('\n');
    line
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("        {line}\n")).collect()
}

fn origin(record: &HistoryRecord) -> String {
    let mut out = " [".to_owned();
    if let Some(who) = record.who {
        out.push_str(&format!("user {who} "));
        if let Some(user) = &record.user {
            out.push_str(&format!("({user}) "));
        }
    }
    if let Some(host) = &record.host {
        out.push_str(&format!("on {host}"));
        if let Some(zone) = &record.zone {
            out.push_str(&format!(":{zone}"));
        }
    }
    out.push(']');
    out
}
