//! The histograms of `zpool iostat -r` and `-w`.
//!
//! Invariant: a table shows what was counted between two reports; every row is printed, also the
//! empty ones.

use super::iostat::{Kind, Options, Work, over};
use super::number;
use super::table::pad;
use crate::properties::{self, Show};
use crate::report::IoDetail;

/// Width of a column.
const COLUMN: usize = 5;

/// What is over the columns: a heading for one or two of them, and theirs.
type Group = (&'static str, &'static [&'static str]);

const SIZES: [Group; 6] = [
    ("sync_read", &["ind", "agg"]),
    ("sync_write", &["ind", "agg"]),
    ("async_read", &["ind", "agg"]),
    ("async_write", &["ind", "agg"]),
    ("scrub", &["ind", "agg"]),
    ("trim", &["ind", "agg"]),
];
const WAITS: [Group; 5] = [
    ("total_wait", &["read", "write"]),
    ("disk_wait", &["read", "write"]),
    ("syncq_wait", &["read", "write"]),
    ("asyncq_wait", &["read", "write"]),
    ("", &["scrub", "trim"]),
];

/// The table of one device called `name`.
pub(super) fn table(
    name: &str,
    now: &Work<'_>,
    before: &Work<'_>,
    width: usize,
    options: &Options,
) -> String {
    let (heading, groups, rows): (_, &[Group], _) = match options.kind {
        Kind::Waits => ("latency", &WAITS, 0..37),
        Kind::Sizes | Kind::Lines => ("req_size", &SIZES, 9..25),
    };
    let columns: usize = groups.iter().map(|group| group.1.len()).sum();
    let mut out = match options.scripted {
        true => format!("\n{name}\n"),
        false => format!("\n{}", headings(name, heading, groups, width)),
    };
    for row in rows {
        let counts = counts(row, now, before, options.kind, columns);
        let label = label(row, options);
        if options.scripted {
            out.push_str(&label);
            counts.iter().for_each(|count| out.push_str(&format!("\t{count}")));
        } else {
            out.push_str(&pad(&label, width, false));
            let form = if options.exact { Show::Plain } else { Show::Number };
            for count in counts {
                let cell = properties::show(form, &count.to_string());
                out.push_str(&format!("  {cell:>COLUMN$}"));
            }
        }
        out.push('\n');
    }
    if !options.scripted {
        out.push_str(&format!("{}\n", "-".repeat(width + columns * (COLUMN + 2))));
    }
    out
}

fn headings(name: &str, heading: &str, groups: &[Group], width: usize) -> String {
    let mut out = pad(name, width, false);
    for (text, columns) in groups.iter().filter(|group| !group.0.is_empty()) {
        out.push_str(&over(text, columns.len(), COLUMN));
    }
    out.push_str(&format!("\n{}", pad(heading, width, false)));
    let columns: Vec<&str> = groups.iter().flat_map(|group| group.1.iter().copied()).collect();
    for column in &columns {
        out.push_str(&format!("  {column:>COLUMN$}"));
    }
    out.push_str(&format!("\n{}", "-".repeat(width)));
    out.push_str(&format!("  {}", "-".repeat(COLUMN)).repeat(columns.len()));
    out.push('\n');
    out
}

/// What a row stands for: waits up to a time, operations from a size on.
fn label(row: u32, options: &Options) -> String {
    match (options.kind, options.scripted) {
        (Kind::Waits, true) => ((2u64 << row) - 1).to_string(),
        (Kind::Waits, false) => number::duration((2u64 << row) - 1),
        (_, true) => (1u64 << row).to_string(),
        (_, false) => number::plain(1 << row),
    }
}

/// The numbers of one row. We do not tell synchronous from asynchronous work: reads stand where
/// OpenZFS has those that somebody waits for, writes where it has those of transaction groups.
fn counts(row: u32, now: &Work<'_>, before: &Work<'_>, kind: Kind, columns: usize) -> Vec<u64> {
    let grown = |way: usize| {
        let of = |work: &Work<'_>| {
            let detail: Option<&&IoDetail> = work.details.get(way);
            let histogram = detail.map(|d| if kind == Kind::Waits { &d.waits } else { &d.sizes });
            histogram.and_then(|histogram| histogram.get(row as usize)).copied().unwrap_or(0)
        };
        of(now).saturating_sub(of(before))
    };
    let (read, write) = (grown(0), grown(1));
    let mut counts = match kind {
        Kind::Waits => vec![read, write, read, write],
        Kind::Sizes | Kind::Lines => vec![read, 0, 0, 0, 0, 0, write],
    };
    counts.resize(columns, 0);
    counts
}
