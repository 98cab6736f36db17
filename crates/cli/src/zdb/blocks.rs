//! `zdb -b` and `zdb -c`: every block counted, verified, and compared with the space maps.
//!
//! Invariant: the text is laid out as OpenZFS lays it out, so that scripts find their lines; the
//! JSON has the same numbers.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::ops::ControlFlow;
use std::sync::Arc;

use cenote_control::text::number;
use cenote_engine::Result;
use cenote_engine::check::{
    BlockKind, Census, CheckOptions, FindingKind, Progress, Report, SizeHistogram, Tally, Verify,
    check,
};
use cenote_engine::pool::Pool;
use cenote_engine::pool::space::{Class, PoolSpace, TopSpace};
use serde_json::{Map, Value, json};

/// Highest level a block can have, and one more.
const LEVELS: u8 = 12;
/// Sizes the histogram shows: 512 bytes to 16 MiB.
const SIZES: std::ops::RangeInclusive<u32> = 9..=24;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// `-b`: detail.
    pub blocks: u8,
    /// `-c`: once metadata, twice everything, three times every copy of everything.
    pub checksums: u8,
    /// `-L`: do not compare with the space maps.
    pub no_leaks: bool,
    /// `-P`: exact numbers.
    pub exact: bool,
}

/// What was found: fields for JSON, text, and whether nothing is wrong.
pub struct Answer {
    pub fields: Map<String, Value>,
    pub text: String,
    pub sound: bool,
}

/// Checks `pool`.
pub fn show(pool: &Arc<Pool>, wanted: Wanted) -> Result<Answer> {
    let options = CheckOptions {
        verify: match wanted.checksums {
            0 => Verify::Structure,
            1 => Verify::Metadata,
            _ => Verify::Everything,
        },
        every_copy: wanted.checksums > 2,
        leaks: !wanted.no_leaks,
        ..CheckOptions::default()
    };
    let visible = std::io::stderr().is_terminal();
    let mut shown = false;
    let report = check(pool, &options, &mut |progress| {
        if visible {
            shown = true;
            eprint!("\r{}", progress_line(progress));
            let _ = std::io::stderr().flush();
        }
        ControlFlow::Continue(())
    })?;
    if shown {
        eprintln!();
    }
    let tree = pool.config().vdev_tree.clone().unwrap_or_default();
    let space = PoolSpace::read(pool.catalog(), &tree).ok();
    let tops = space.map(|space| space.tops).unwrap_or_default();
    let text = text(&report, &tops, wanted);
    let fields = fields(&report, &tops);
    Ok(Answer { fields, text, sound: report.is_clean() })
}

fn progress_line(progress: &Progress) -> String {
    let done = number::bytes(progress.bytes);
    let rate = number::bytes(progress.rate);
    let remaining = match progress.remaining {
        Some(left) => {
            let seconds = left.as_secs();
            format!("{}hr {:02}min {:02}sec", seconds / 3600, seconds / 60 % 60, seconds % 60)
        }
        None => "not known yet".to_owned(),
    };
    format!("{done:>5} completed ({rate:>4}B/s) estimated time remaining: {remaining}        ")
}

fn text(report: &Report, tops: &[TopSpace], wanted: Wanted) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_text(&mut out, report, tops, wanted);
    out
}

fn write_text(
    out: &mut String,
    report: &Report,
    tops: &[TopSpace],
    wanted: Wanted,
) -> std::fmt::Result {
    headline(out, wanted)?;
    for finding in &report.findings {
        writeln!(out, "\t{}: {}", what(&finding.kind), finding.error)?;
    }
    let unshown = report.findings_total.saturating_sub(report.findings.len() as u64);
    if unshown > 0 {
        writeln!(out, "\t... and {unshown} more")?;
    }
    if wanted.no_leaks {
        writeln!(out, "\n\tspace maps were not compared (-L)")?;
    } else if report.found() == report.allocated && report.leaked_bytes == 0 {
        writeln!(out, "\n\tNo leaks (block sum matches space maps exactly)")?;
    } else {
        leaks(out, report)?;
    }
    summary(out, report)?;
    classes(out, report, tops)?;
    embedded(out, &report.census, wanted)?;
    let copies = report.census.total().copies_on_one_vdev;
    if copies > 0 {
        writeln!(out, "\tDittoed blocks on same vdev: {copies}")?;
    }
    if wanted.blocks >= 2 {
        table(out, &report.census, wanted)?;
        histogram(out, &report.census, wanted)?;
    }
    Ok(())
}

fn headline(out: &mut String, wanted: Wanted) -> std::fmt::Result {
    let (checks, leaks) = (wanted.checksums > 0, !wanted.no_leaks);
    let parts = [
        (checks || leaks, "to verify "),
        (wanted.checksums == 1, "metadata "),
        (checks, "checksums "),
        (checks && leaks, "and verify "),
        (leaks, "nothing leaked "),
    ];
    let parts: String = parts.iter().filter(|(said, _)| *said).map(|(_, text)| *text).collect();
    writeln!(out, "\nTraversing all blocks {parts}...\n")
}

fn what(kind: &FindingKind) -> String {
    match kind {
        FindingKind::Unreadable => "unreadable".to_owned(),
        FindingKind::BadCopy { liars, failed, lost } => {
            let count = liars.len() + failed.len() + *lost as usize;
            format!("bad copy ({count})")
        }
        FindingKind::Malformed => "malformed".to_owned(),
        FindingKind::Overlap => "overlap".to_owned(),
        FindingKind::BadAddress => "bad address".to_owned(),
        FindingKind::Accounting => "accounting".to_owned(),
    }
}

fn leaks(out: &mut String, report: &Report) -> std::fmt::Result {
    let (found, allocated) = (report.found(), report.allocated);
    let leaked = i128::from(allocated) - i128::from(found);
    writeln!(out, "\n\tblock traversal size {found} != alloc {allocated} (leaked {leaked})")?;
    let extents = [("leaked space", &report.leaked), ("used but free", &report.unallocated)];
    for (label, extents) in extents {
        for extent in extents {
            let (vdev, offset, length) = (extent.vdev, extent.offset, extent.length);
            writeln!(out, "{label}: vdev {vdev}, offset {offset:#x}, size {length}")?;
        }
    }
    Ok(())
}

fn summary(out: &mut String, report: &Report) -> std::fmt::Result {
    let total = report.census.total();
    let count = total.count.max(1);
    let ratio = |size: u64| total.logical as f64 / size as f64;
    writeln!(out, "\n\t{:<16} {:>14}", "bp count:", total.count)?;
    writeln!(out, "\t{:<16} {:>14}", "ganged count:", total.gangs)?;
    let average = total.logical / count;
    writeln!(out, "\t{:<16} {:>14}      avg: {average:>6}", "bp logical:", total.logical)?;
    for (label, size) in [("bp physical:", total.physical), ("bp allocated:", total.allocated)] {
        writeln!(
            out,
            "\t{label:<16} {size:>14}      avg: {:>6}     compression: {:>6.2}",
            size / count,
            ratio(size)
        )?;
    }
    writeln!(
        out,
        "\t{:<16} {:>14}    ref>1: {:>6}   deduplication: {:>6.2}",
        "bp deduped:",
        report.dedup_saved,
        report.dedup_entries,
        saved_ratio(report.dedup_saved, total.allocated)
    )?;
    writeln!(
        out,
        "\t{:<16} {:>14}    count: {:>6}",
        "bp cloned:", report.clone_saved, report.clone_references
    )
}

/// One, and the part of the referenced space that is shared: `zdb`'s measure.
fn saved_ratio(saved: u64, allocated: u64) -> f64 {
    1.0 + saved as f64 / allocated.max(1) as f64
}

/// (label, allocated, size) by class of devices.
fn by_class(report: &Report, tops: &[TopSpace]) -> Vec<(&'static str, u64, u64)> {
    let labels = [
        (Class::Normal, "Normal class:"),
        (Class::Special, "Special class"),
        (Class::Dedup, "Dedup class"),
        (Class::Log, "Log class"),
    ];
    let mut rows = Vec::new();
    for (class, label) in labels {
        let of_class: Vec<&TopSpace> = tops.iter().filter(|top| top.class == class).collect();
        let size: u64 = of_class.iter().map(|top| top.size.saturating_sub(top.embedded_log)).sum();
        let ids: Vec<u32> = of_class.iter().map(|top| top.id).collect();
        let flushed = report.flushed.iter().filter(|(id, _)| ids.contains(id));
        let allocated: u64 = flushed.map(|(_, bytes)| *bytes).sum();
        if class == Class::Normal || (allocated > 0 && !ids.is_empty()) {
            rows.push((label, allocated, size));
        }
    }
    rows
}

fn classes(out: &mut String, report: &Report, tops: &[TopSpace]) -> std::fmt::Result {
    for (label, allocated, size) in by_class(report, tops) {
        let used = 100.0 * allocated as f64 / size.max(1) as f64;
        writeln!(out, "\t{label:<16} {allocated:>14}     used: {used:>5.2}%")?;
    }
    Ok(())
}

fn embedded(out: &mut String, census: &Census, wanted: Wanted) -> std::fmt::Result {
    let mut kinds: Vec<u8> = census.embedded.keys().map(|(kind, _)| *kind).collect();
    kinds.dedup();
    for kind in kinds {
        let rows = census.embedded.iter().filter(|((of, _), _)| *of == kind);
        let rows: Vec<(u64, u64)> = rows.map(|((_, bytes), count)| (*bytes, *count)).collect();
        let total: u64 = rows.iter().map(|(_, count)| count).sum();
        writeln!(out, "\n\tadditional, non-pointer bps of type {kind}: {total:>10}")?;
        if wanted.blocks >= 3 {
            writeln!(out, "\t number of (compressed) bytes:  number of bps")?;
            bars(out, &rows)?;
        }
    }
    Ok(())
}

/// A histogram of stars over all sizes from the first to the last.
fn bars(out: &mut String, rows: &[(u64, u64)]) -> std::fmt::Result {
    let longest = rows.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let (Some((first, _)), Some((last, _))) = (rows.first(), rows.last()) else { return Ok(()) };
    // Embedded payloads have at most 112 bytes; what claims more is not drawn.
    for bytes in *first..=(*last).min(first.saturating_add(128)) {
        let count = rows.iter().find(|(size, _)| *size == bytes).map_or(0, |(_, count)| *count);
        let stars = if longest > 40 { (count * 40).div_ceil(longest) } else { count };
        let stars = "*".repeat(usize::try_from(stars).unwrap_or(40));
        writeln!(out, "\t\t\t{bytes:>3}: {count:>6} {stars}")?;
    }
    Ok(())
}

fn size_text(value: u64, exact: bool) -> String {
    if exact { value.to_string() } else { number::plain(value) }
}

fn table(out: &mut String, census: &Census, wanted: Wanted) -> std::fmt::Result {
    writeln!(out, "\nBlocks\tLSIZE\tPSIZE\tASIZE\t  avg\t comp\t%Total\tType")?;
    let all = census.total();
    let kinds = BlockKind::all().map(|kind| (kind.name(), Some(kind)));
    for (name, kind) in kinds.chain([("Total".to_owned(), None)]) {
        let whole = kind.map_or(all, |kind| census.of_kind(kind));
        if whole.allocated == 0 && kind.is_some() {
            writeln!(out, "     -\t    -\t    -\t    -\t    -\t    -\t     -\t{name}")?;
            continue;
        }
        if wanted.blocks >= 3 {
            for level in (0..LEVELS).rev() {
                let one = kind.map_or(census.of_level(level), |kind| census.of(kind, level));
                let only = level == 0 && one.allocated == whole.allocated;
                if one.allocated > 0 && !only {
                    row(out, &one, &all, wanted, &format!("    L{level} {name}"))?;
                }
            }
        }
        if kind.is_none() {
            row(out, &census.metadata(), &all, wanted, "Metadata Total")?;
        }
        row(out, &whole, &all, wanted, &name)?;
    }
    Ok(())
}

fn row(
    out: &mut String,
    tally: &Tally,
    all: &Tally,
    wanted: Wanted,
    name: &str,
) -> std::fmt::Result {
    let size = |value| size_text(value, wanted.exact);
    let share = tally.allocated as f64 * 100.0 / all.allocated.max(1) as f64;
    writeln!(
        out,
        "{:>6}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:>5.2}\t{share:>6.2}\t{name}",
        size(tally.count),
        size(tally.logical),
        size(tally.physical),
        size(tally.allocated),
        size(tally.allocated / tally.count.max(1)),
        tally.logical as f64 / tally.physical.max(1) as f64,
    )
}

fn histogram(out: &mut String, census: &Census, wanted: Wanted) -> std::fmt::Result {
    let size = |value| size_text(value, wanted.exact);
    writeln!(out, "\nBlock Size Histogram\n")?;
    if wanted.exact {
        writeln!(out, "block\tpsize\t\t\tlsize\t\t\t  asize")?;
        writeln!(out, "size\tCount\tSize\tCum.\tCount\tSize\tCum.\tCount\tSize\tCum.\t")?;
    } else {
        writeln!(out, "  block   psize                lsize                asize")?;
        let heads = "  Count   Size   Cum.".repeat(3);
        writeln!(out, "   size {}", heads.trim_start_matches(' ').replacen("Count", "  Count", 1))?;
    }
    let columns = [&census.physical, &census.logical, &census.allocated];
    let mut sums = [0_u64; 3];
    for log in SIZES {
        if wanted.exact {
            write!(out, "{}", 1_u64 << log)?;
        } else {
            write!(out, "{:>7}:", size(1 << log))?;
        }
        for (histogram, sum) in columns.iter().zip(&mut sums) {
            let (count, bytes) = slot(histogram, log);
            *sum = sum.saturating_add(bytes);
            if wanted.exact {
                write!(out, "\t{count}\t{bytes}\t{sum}")?;
            } else {
                write!(out, "{:>7}{:>7}{:>7}", size(count), size(bytes), size(*sum))?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Blocks of a size class; the last one holds everything larger.
fn slot(histogram: &SizeHistogram, log: u32) -> (u64, u64) {
    let last = *SIZES.end();
    let wanted = histogram.0.iter().filter(|(of, _)| **of == log || (log == last && **of > last));
    wanted.fold((0, 0), |sum, (_, one)| (sum.0 + one.0, sum.1 + one.1))
}

fn tally_json(tally: &Tally) -> Value {
    json!({
        "count": tally.count,
        "logical": tally.logical,
        "physical": tally.physical,
        "allocated": tally.allocated,
        "gangs": tally.gangs,
    })
}

fn fields(report: &Report, tops: &[TopSpace]) -> Map<String, Value> {
    let census = &report.census;
    let mut types = Map::new();
    for kind in BlockKind::all() {
        let whole = census.of_kind(kind);
        if whole.is_empty() {
            continue;
        }
        let mut one = tally_json(&whole);
        let levels = (0..LEVELS).map(|level| (level, census.of(kind, level)));
        let levels: Map<String, Value> = levels
            .filter(|(_, tally)| !tally.is_empty())
            .map(|(level, tally)| (level.to_string(), tally_json(&tally)))
            .collect();
        if let Some(one) = one.as_object_mut() {
            one.insert("levels".into(), levels.into());
        }
        types.insert(kind.name(), one);
    }
    let extents = |extents: &[cenote_engine::check::Extent]| -> Vec<Value> {
        let one = |e: &cenote_engine::check::Extent| json!({"vdev": e.vdev, "offset": e.offset, "size": e.length});
        extents.iter().map(one).collect()
    };
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| json!({"kind": what(&finding.kind), "error": finding.error.to_string()}))
        .collect();
    let classes = by_class(report, tops).into_iter().map(|(label, allocated, size)| {
        (label.trim_end_matches(':').to_owned(), json!({"allocated": allocated, "size": size}))
    });
    let value = json!({
        "total": tally_json(&census.total()),
        "types": types,
        "embedded": census.embedded_total(),
        "copies on one vdev": census.total().copies_on_one_vdev,
        "dedup": {
            "saved": report.dedup_saved,
            "entries": report.dedup_entries,
            "references": report.dedup_references,
        },
        "cloned": {"saved": report.clone_saved, "references": report.clone_references},
        "checkpoint": report.checkpoint,
        "classes": classes.collect::<Map<String, Value>>(),
        "found": report.found(),
        "allocated": report.allocated,
        "leaked bytes": report.leaked_bytes,
        "leaked": extents(&report.leaked),
        "used but free bytes": report.unallocated_bytes,
        "used but free": extents(&report.unallocated),
        "verified blocks": report.verified_blocks,
        "findings total": report.findings_total,
        "findings": findings,
    });
    Map::from_iter([("Blocks".to_owned(), value)])
}
