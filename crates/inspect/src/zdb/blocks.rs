//! `zdb -b` and `-c`: counting and verifying every block of a pool.
//!
//! Totals and table as `zdb` prints them. Invariant: whatever is unreadable, overlaps or leaks is
//! told with its place, and makes the exit code 1.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cenote_control::text::number;
use cenote_engine::Error;
use cenote_engine::check::{
    BlockKind, CheckOptions, Extent, Finding, FindingKind, Progress, Report, Tally, Verify, check,
};
use cenote_engine::pool::Pool;
use cenote_engine::pool::space::Class;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::pointer;
use super::sink::Sink;

/// Most findings that are told one by one.
const TOLD: usize = 10_000;

/// Walks the pool: `-b` given `counts` times, `-c` given `checksums` times; leaks are not looked
/// for when `leaks` is false.
pub fn show(
    pool: &Arc<Pool>,
    counts: u8,
    checksums: u8,
    leaks: bool,
    sink: &mut Sink,
) -> Result<(), Error> {
    let options = CheckOptions {
        verify: match checksums {
            0 => Verify::Structure,
            1 => Verify::Metadata,
            _ => Verify::Everything,
        },
        every_copy: checksums > 1,
        leaks,
        findings_kept: TOLD,
        ..CheckOptions::default()
    };
    let bar = bar();
    let report = check(pool, &options, &mut |progress| {
        advance(&bar, progress);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let report = report?;
    if !report.is_clean() {
        sink.complain();
    }
    verdict(&report, checksums, sink);
    totals(pool, &report, sink);
    if counts > 1 {
        table(&report, counts > 2, sink);
    }
    sink.json("blocks", value(&report));
    Ok(())
}

/// A bar on the terminal; silent when there is none.
fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:30} {percent:>3}% {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn advance(bar: &ProgressBar, progress: &Progress) {
    bar.set_length(progress.total);
    bar.set_position(progress.bytes.min(progress.total));
    let mut text = format!(
        "{} of {}, {}/s",
        number::plain(progress.bytes),
        number::plain(progress.total),
        number::plain(progress.rate)
    );
    match progress.remaining {
        Some(left) => {
            let _ = write!(text, ", {} left", number::clock(left.as_secs()));
        }
        None if progress.elapsed > Duration::from_secs(5) => text += ", time left not known yet",
        None => {}
    }
    if progress.findings > 0 {
        let _ = write!(text, ", {} PROBLEMS", progress.findings);
    }
    bar.set_message(text);
}

fn verdict(report: &Report, checksums: u8, sink: &mut Sink) {
    let what = match checksums {
        0 => "",
        1 => "metadata checksums and ",
        _ => "checksums of every copy and ",
    };
    sink.line(format_args!("\nTraversed all blocks to verify {what}nothing leaked\n"));
    for finding in &report.findings {
        sink.line(format_args!("\t{}: {}", kind(&finding.kind), finding.error));
        if let FindingKind::BadCopy { liars, failed, lost } = &finding.kind {
            let guids = |list: &[cenote_format::Guid]| {
                list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            };
            sink.line(format_args!(
                "\t\twrong on: {}; silent: {}; copies lost: {lost}",
                guids(liars),
                guids(failed)
            ));
        }
        if let Some(pointer) = &finding.pointer {
            sink.line(format_args!("\t\t{}", pointer::long(pointer)));
        }
    }
    let untold = report.findings_total.saturating_sub(report.findings.len() as u64);
    if untold > 0 {
        sink.line(format_args!("\t({untold} more problems are not listed)"));
    }
    if report.findings_total > 0 {
        sink.line(format_args!("\n\t{} problems with blocks", report.findings_total));
    }
    if !report.leaks_checked {
        return sink.line("\tleaks were not looked for (-L)");
    }
    extents("leaked space", "allocated, but not in use", report.leaked_bytes, &report.leaked, sink);
    let (bytes, list) = (report.unallocated_bytes, &report.unallocated);
    extents("unprotected space", "in use, but not allocated", bytes, list, sink);
    if report.leaked_bytes == 0 && report.unallocated_bytes == 0 {
        sink.line("\tNo leaks (block sum matches space maps exactly)");
    } else {
        let (found, allocated) = (report.found(), report.allocated);
        sink.line(format_args!("\tblock traversal size {found} != alloc {allocated}"));
    }
}

fn extents(what: &str, meaning: &str, bytes: u64, list: &[Extent], sink: &mut Sink) {
    if bytes == 0 {
        return;
    }
    for extent in list {
        let Extent { vdev, offset, length } = *extent;
        sink.line(format_args!("\t{what}: vdev {vdev}, offset {offset:#x}, size {length}"));
    }
    sink.line(format_args!("\t{what}: {bytes} bytes in all ({meaning})"));
}

fn kind(kind: &FindingKind) -> &'static str {
    match kind {
        FindingKind::Unreadable => "UNREADABLE",
        FindingKind::BadCopy { .. } => "BAD COPY",
        FindingKind::Malformed => "MALFORMED",
        FindingKind::Overlap => "OVERLAP",
        FindingKind::BadAddress => "BAD ADDRESS",
        FindingKind::Accounting => "ACCOUNTING",
    }
}

fn ratio(whole: u64, part: u64) -> f64 {
    if part == 0 { 1.0 } else { whole as f64 / part as f64 }
}

fn totals(pool: &Arc<Pool>, report: &Report, sink: &mut Sink) {
    let total = report.census.total();
    let average = |sum: u64| sum.checked_div(total.count).unwrap_or(0);
    let (logical, physical, allocated) = (total.logical, total.physical, total.allocated);
    sink.line(format_args!("\n\tbp count:       {:>16}", total.count));
    sink.line(format_args!("\tganged count:   {:>16}", total.gangs));
    sink.line(format_args!("\tbp logical:     {logical:>16}      avg: {:>6}", average(logical)));
    sink.line(format_args!(
        "\tbp physical:    {physical:>16}      avg: {:>6}     compression: {:>6.2}",
        average(physical),
        ratio(logical, physical)
    ));
    sink.line(format_args!(
        "\tbp allocated:   {allocated:>16}      avg: {:>6}     compression: {:>6.2}",
        average(allocated),
        ratio(logical, allocated)
    ));
    sink.line(format_args!(
        "\tbp deduped:     {:>16}    ref>1: {:>6}   deduplication: {:>6.2}",
        report.dedup_saved,
        report.dedup_entries,
        ratio(allocated, allocated.saturating_sub(report.dedup_saved))
    ));
    if report.clone_saved > 0 {
        sink.line(format_args!(
            "\tbp cloned:      {:>16}    count: {:>6}",
            report.clone_saved, report.clone_references
        ));
    }
    if let Ok(space) = pool.space() {
        for (class, name) in [
            (Class::Normal, "Normal class"),
            (Class::Log, "Log class"),
            (Class::Special, "Special class"),
            (Class::Dedup, "Dedup class"),
        ] {
            let tops = space.tops.iter().filter(|top| top.class == class);
            let (used, size) = tops.fold((0u64, 0u64), |(used, size), top| {
                (used.saturating_add(top.allocated), size.saturating_add(top.size))
            });
            if size > 0 {
                let percent = used as f64 * 100.0 / size as f64;
                sink.line(format_args!(
                    "\t{:<15} {used:>16}     used: {percent:>5.2}%",
                    format!("{name}:")
                ));
            }
        }
    }
    if report.checkpoint > 0 {
        let held = number::plain(report.checkpoint);
        sink.line(format_args!("\tcheckpointed space: {held} held by the pool's checkpoint"));
    }
    if report.verified_blocks > 0 {
        sink.line(format_args!("\tverified:       {:>16} blocks read", report.verified_blocks));
    }
    sink.line("");
    let mut embedded: BTreeMap<u8, u64> = BTreeMap::new();
    for ((kind, _), count) in &report.census.embedded {
        *embedded.entry(*kind).or_default() += count;
    }
    for (kind, count) in embedded {
        sink.line(format_args!("\tadditional, non-pointer bps of type {kind}: {count:>10}"));
    }
    if total.copies_on_one_vdev > 0 {
        sink.line(format_args!("\tDittoed blocks on same vdev: {}", total.copies_on_one_vdev));
    }
    sink.line("");
}

fn table(report: &Report, levels: bool, sink: &mut Sink) {
    let census = &report.census;
    let total = census.total();
    sink.line("Blocks\tLSIZE\tPSIZE\tASIZE\t  avg\t comp\t%Total\tType");
    for kind in BlockKind::all() {
        let tally = census.of_kind(kind);
        if tally.is_empty() {
            if !matches!(kind, BlockKind::Deferred | BlockKind::Ditto) {
                sink.line(format_args!(
                    "{}{}",
                    "     -\t    -\t    -\t    -\t    -\t    -\t     -\t",
                    kind.name()
                ));
            }
            continue;
        }
        if levels {
            for level in (0..cenote_format::dnode::MAX_LEVELS).rev() {
                let part = census.of(kind, level);
                if !part.is_empty() && part.count != tally.count {
                    sink.line(row(&part, &total, &format!("    L{level} {}", kind.name())));
                }
            }
        }
        sink.line(row(&tally, &total, &kind.name()));
    }
    sink.line(row(&total, &total, "Total"));
}

fn row(tally: &Tally, total: &Tally, name: &str) -> String {
    format!(
        "{:>6}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:>5.2}\t{:>6.2}\t{name}",
        tally.count,
        number::plain(tally.logical),
        number::plain(tally.physical),
        number::plain(tally.allocated),
        number::plain(tally.allocated.checked_div(tally.count).unwrap_or(0)),
        ratio(tally.logical, tally.physical),
        tally.allocated as f64 * 100.0 / total.allocated.max(1) as f64,
    )
}

fn tally_value(tally: &Tally) -> Value {
    json!({
        "count": tally.count,
        "logical": tally.logical,
        "physical": tally.physical,
        "allocated": tally.allocated,
        "gangs": tally.gangs,
        "copies_on_one_vdev": tally.copies_on_one_vdev,
    })
}

fn finding_value(finding: &Finding) -> Value {
    let place = finding.error.place();
    let (liars, failed, lost) = match &finding.kind {
        FindingKind::BadCopy { liars, failed, lost } => (
            liars.iter().map(|guid| guid.0).collect(),
            failed.iter().map(|guid| guid.0).collect(),
            *lost,
        ),
        _ => (Vec::new(), Vec::new(), 0),
    };
    json!({
        "kind": kind(&finding.kind),
        "reason": finding.error.reason(),
        "name": place.name.as_deref(),
        "dataset": place.objset,
        "object": place.object,
        "level": place.block.map(|(level, _)| level),
        "block": place.block.map(|(_, id)| id),
        "address": place.dva.map(|(vdev, offset)| format!("{vdev}:{offset:x}")),
        "pointer": finding.pointer.as_ref().map(|bp| pointer::value(bp)),
        "wrong_leaves": liars,
        "silent_leaves": failed,
        "copies_lost": lost,
    })
}

fn value(report: &Report) -> Value {
    let extents = |list: &[Extent]| -> Value {
        let one = |e: &Extent| json!({"vdev": e.vdev, "offset": e.offset, "length": e.length});
        list.iter().map(one).collect()
    };
    let mut types = serde_json::Map::new();
    for kind in BlockKind::all() {
        let tally = report.census.of_kind(kind);
        if !tally.is_empty() {
            types.insert(kind.name(), tally_value(&tally));
        }
    }
    json!({
        "clean": report.is_clean(),
        "total": tally_value(&report.census.total()),
        "types": types,
        "embedded": report.census.embedded_total(),
        "allocated_by_space_maps": report.allocated,
        "found": report.found(),
        "dedup_saved": report.dedup_saved,
        "clone_saved": report.clone_saved,
        "checkpoint": report.checkpoint,
        "verified_blocks": report.verified_blocks,
        "leaks_checked": report.leaks_checked,
        "leaked_bytes": report.leaked_bytes,
        "leaked": extents(&report.leaked),
        "unallocated_bytes": report.unallocated_bytes,
        "unallocated": extents(&report.unallocated),
        "problems": report.findings_total,
        "findings": report.findings.iter().map(finding_value).collect::<Vec<_>>(),
    })
}
