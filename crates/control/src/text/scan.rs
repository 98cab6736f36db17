//! The lines of `zpool status` about scans, removals, expansions and checkpoints.
//!
//! Invariant: rates and remaining times are computed from the report and the given time only.

use super::{number, time};
use crate::report::{
    CheckpointReport, ExpansionReport, PoolReport, RebuildReport, RemovalReport, ScanFunction,
    ScanReport, ScanState,
};

/// All such lines of a pool; `now` in unix seconds.
pub fn lines(pool: &PoolReport, now: i64) -> String {
    let mut out = String::new();
    let scrub = pool.scan.as_ref().filter(|scan| scan.function != ScanFunction::Resilver);
    let of_errors = pool.error_scrub.as_ref();
    let start = |scan: Option<&ScanReport>| scan.map_or(0, |scan| scan.start_time);
    match (scrub, of_errors) {
        (_, Some(own)) if own.start_time >= start(scrub) => {
            out.push_str(&format!(" scrub: {}", error_scrub_lines(own)));
        }
        (Some(scrub), _) => out.push_str(&format!("  scan: {}", scan_lines(scrub, now))),
        (None, _) => {}
    }
    let resilver = pool.scan.as_ref().filter(|scan| scan.function == ScanFunction::Resilver);
    let is_rebuilding = pool.rebuilds.iter().any(|one| one.state == ScanState::Scanning);
    let rebuilt = pool.rebuilds.iter().map(|one| one.end_time).max();
    let is_newer = |scan: &&ScanReport| {
        let older = rebuilt.is_none_or(|end| scan.end_time > end);
        scan.state == ScanState::Scanning || !is_rebuilding && older
    };
    match resilver.filter(is_newer) {
        Some(scan) => out.push_str(&format!("  scan: {}", scan_lines(scan, now))),
        None => {
            let lines = pool.rebuilds.iter().map(|one| format!("  scan: {}", rebuild_lines(one)));
            out.extend(lines);
        }
    }
    if let Some(removal) = &pool.removal {
        out.push_str(&removal_lines(removal, now));
    }
    if let Some(checkpoint) = &pool.checkpoint {
        out.push_str(&checkpoint_line(checkpoint));
    }
    if let Some(expansion) = &pool.expansion {
        out.push_str(&expansion_lines(expansion, now));
    }
    out
}

fn word(function: ScanFunction) -> &'static str {
    match function {
        ScanFunction::Scrub => "scrub",
        ScanFunction::Resilver => "resilver",
        ScanFunction::ErrorScrub => "error scrub",
    }
}

fn since(from: i64, to: i64) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}

fn percent(done: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { 100.0 * done as f64 / total as f64 }
}

fn scan_lines(scan: &ScanReport, now: i64) -> String {
    let word = word(scan.function);
    match scan.state {
        ScanState::Finished => {
            let length = number::clock(since(scan.start_time, scan.end_time));
            let (amount, end) = (number::bytes(scan.processed), time::long(scan.end_time));
            let what = match scan.function {
                ScanFunction::Resilver => format!("resilvered {amount}"),
                _ => format!("{word} repaired {amount}"),
            };
            return format!("{what} in {length} with {} errors on {end}\n", scan.errors);
        }
        ScanState::Canceled => {
            return format!("{word} canceled on {}\n", time::long(scan.end_time));
        }
        ScanState::Scanning => {}
    }
    let mut out = if scan.paused == 0 {
        format!("{word} in progress since {}\n", time::long(scan.start_time))
    } else {
        format!(
            "{word} paused since {}\n\t{word} started on {}\n",
            time::long(scan.paused),
            time::long(scan.start_time)
        )
    };
    let elapsed = since(scan.pass_start, now).saturating_sub(scan.spent_paused).max(1);
    let scan_rate = (scan.pass_examined / elapsed).max(1);
    // That of the whole pass where nobody has looked at the last seconds.
    let recent = scan.recent_rate.filter(|_| scan.paused == 0);
    let issue_rate = recent.unwrap_or(scan.pass_issued / elapsed);
    let total = scan.to_examine.saturating_sub(scan.skipped);
    out.push_str(&format!("\t{} / {} scanned", number::bytes(scan.examined), number::bytes(total)));
    if scan.paused == 0 && scan.pass_examined > 0 {
        out.push_str(&format!(" at {}/s", number::bytes(scan_rate)));
    }
    out.push_str(&format!(", {} / {} issued", number::bytes(scan.issued), number::bytes(total)));
    if scan.paused == 0 && scan.pass_issued > 0 {
        out.push_str(&format!(" at {}/s", number::bytes(issue_rate.max(1))));
    }
    out.push('\n');
    let done = percent(scan.issued, total);
    let amount = number::bytes(scan.processed);
    let verb = if scan.function == ScanFunction::Resilver { "resilvered" } else { "repaired" };
    out.push_str(&format!("\t{amount} {verb}, {done:.2}% done"));
    if scan.paused == 0 {
        out.push_str(&to_go(total.saturating_sub(scan.issued), issue_rate));
    }
    out.push('\n');
    out
}

/// How long the rest takes at this rate, however slow that is.
fn to_go(left: u64, rate: u64) -> String {
    match left.checked_div(rate) {
        _ if left == 0 => format!(", {} to go", number::clock(0)),
        Some(seconds) => format!(", {} to go", number::clock(seconds)),
        None => ", no estimated completion time".to_owned(),
    }
}

/// The lines of OpenZFS's `print_err_scrub_status`.
fn error_scrub_lines(scan: &ScanReport) -> String {
    match scan.state {
        ScanState::Finished => {
            let spent = since(scan.start_time, scan.end_time);
            let (days, hours, minutes) = (spent / 86400, spent / 3600 % 24, spent / 60 % 60);
            return format!(
                "scrubbed {} error blocks in {days} days {hours:02}:{minutes:02}:{:02} on {}\n",
                scan.examined,
                spent % 60,
                time::long(scan.end_time)
            );
        }
        ScanState::Canceled => {
            return format!("error scrub canceled on {}\n", time::long(scan.end_time));
        }
        ScanState::Scanning => {}
    }
    let start = time::long(scan.start_time);
    let mut out = match scan.paused {
        0 => format!("error scrub in progress since {start}\n"),
        paused => {
            let paused = time::long(paused);
            format!("error scrub paused since {paused}\n\terror scrub started on {start}\n")
        }
    };
    let done = percent(scan.examined, scan.to_examine);
    let blocks = scan.examined;
    out.push_str(&format!("\t{done:.2}% done, issued I/O for {blocks} error blocks\n"));
    out
}

fn rebuild_lines(one: &RebuildReport) -> String {
    let name = &one.name;
    match one.state {
        ScanState::Finished => {
            let (amount, time) =
                (number::bytes(one.rebuilt), number::clock(one.milliseconds / 1000));
            let (errors, end) = (one.errors, time::long(one.end_time));
            return format!(
                "resilvered ({name}) {amount} in {time} with {errors} errors on {end}\n"
            );
        }
        ScanState::Canceled => {
            return format!("resilver ({name}) canceled on {}\n", time::long(one.end_time));
        }
        ScanState::Scanning => {}
    }
    let total = number::bytes(one.estimated);
    let rate = |bytes: u64| bytes / one.pass_milliseconds.saturating_add(1) * 1000;
    let (scan_rate, issue_rate) = (rate(one.pass_scanned), rate(one.pass_issued));
    let at = |rate: u64| match rate {
        0 => String::new(),
        rate => format!(" at {}/s", number::bytes(rate)),
    };
    let mut out = format!("resilver ({name}) in progress since {}\n", time::long(one.start_time));
    let (scanned, issued) = (number::bytes(one.scanned), number::bytes(one.issued));
    out.push_str(&format!("\t{scanned} / {total} scanned{}", at(scan_rate)));
    out.push_str(&format!(", {issued} / {total} issued{}\n", at(issue_rate)));
    let (rebuilt, done) = (number::bytes(one.rebuilt), percent(one.scanned, one.estimated));
    let left = one.estimated.saturating_sub(one.scanned);
    out.push_str(&format!("\t{rebuilt} resilvered, {done:.2}% done{}\n", to_go(left, scan_rate)));
    out
}

fn removal_lines(removal: &RemovalReport, now: i64) -> String {
    let name = &removal.name;
    let mut out = "remove: ".to_owned();
    match removal.state {
        ScanState::Finished => {
            let spent = since(removal.start_time, removal.end_time);
            out.push_str(&format!(
                "Removal of vdev {} copied {} in {}h{}m, completed on {}\n",
                removal.vdev,
                number::bytes(removal.copied),
                spent / 3600,
                spent / 60 % 60,
                time::long(removal.end_time)
            ));
        }
        ScanState::Canceled => {
            out.push_str(&format!(
                "Removal of {name} canceled on {}\n",
                time::long(removal.end_time)
            ));
        }
        ScanState::Scanning => {
            let rate = (removal.copied / since(removal.start_time, now).max(1)).max(1);
            let left = removal.to_copy.saturating_sub(removal.copied) / rate;
            out.push_str(&format!(
                "Evacuation of {name} in progress since {}\n\t{} copied out of {} at {}/s, \
                 {:.2}% done",
                time::long(removal.start_time),
                number::bytes(removal.copied),
                number::bytes(removal.to_copy),
                number::bytes(rate),
                percent(removal.copied, removal.to_copy)
            ));
            if left < 30 * 24 * 3600 {
                out.push_str(&format!(", {}h{:02}m to go\n", left / 3600, left / 60 % 60));
            } else {
                out.push_str(", (copy is slow, no estimated time)\n");
            }
        }
    }
    if removal.mapping_memory > 0 {
        out.push_str(&format!(
            "\t{} memory used for removed device mappings\n",
            number::plain(removal.mapping_memory)
        ));
    }
    out
}

fn expansion_lines(expansion: &ExpansionReport, now: i64) -> String {
    let name = &expansion.name;
    if expansion.state == ScanState::Finished {
        let spent = since(expansion.start_time, expansion.end_time);
        return format!(
            "expand: expanded {name} copied {} in {}, on {}\n",
            number::bytes(expansion.reflowed),
            number::clock(spent),
            time::long(expansion.end_time)
        );
    }
    let rate = (expansion.reflowed / since(expansion.start_time, now).max(1)).max(1);
    let left = expansion.to_reflow.saturating_sub(expansion.reflowed) / rate;
    let mut out = format!(
        "expand: expansion of {name} in progress since {}\n\t{} / {} copied at {}/s, {:.2}% done",
        time::long(expansion.start_time),
        number::bytes(expansion.reflowed),
        number::bytes(expansion.to_reflow),
        number::bytes(rate),
        percent(expansion.reflowed, expansion.to_reflow)
    );
    if expansion.waiting_for_resilver {
        out.push_str(", paused for resilver or clear\n");
    } else if left < 30 * 24 * 3600 {
        out.push_str(&format!(", {} to go\n", number::clock(left)));
    } else {
        out.push_str(", (copy is slow, no estimated time)\n");
    }
    out
}

fn checkpoint_line(checkpoint: &CheckpointReport) -> String {
    let space = number::bytes(checkpoint.space);
    if checkpoint.discarding {
        format!("checkpoint: discarding, {space} remaining.\n")
    } else {
        let start = time::long(checkpoint.start_time);
        format!("checkpoint: created {start}, consumes {space}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rebuild(state: ScanState) -> RebuildReport {
        RebuildReport {
            vdev: 0,
            name: "mirror-0".into(),
            state,
            start_time: 1_000,
            end_time: 1_100,
            milliseconds: 65_000,
            estimated: 4 << 30,
            scanned: 1 << 30,
            issued: 1 << 30,
            rebuilt: 1 << 30,
            errors: 0,
            pass_milliseconds: 9_999,
            pass_scanned: 1 << 30,
            pass_issued: 1 << 30,
        }
    }

    fn scan(function: ScanFunction, state: ScanState, times: (i64, i64)) -> ScanReport {
        ScanReport {
            function,
            state,
            start_time: times.0,
            end_time: times.1,
            to_examine: 4,
            examined: 1,
            skipped: 0,
            processed: 0,
            errors: 0,
            pass_examined: 0,
            issued: 0,
            pass_issued: 0,
            pass_start: times.0,
            paused: 0,
            spent_paused: 0,
            recent_rate: None,
        }
    }

    fn starts(text: &str) -> Vec<String> {
        let words = |line: &str| line.split(" on ").next().unwrap_or_default().to_owned();
        text.lines().map(words).collect()
    }

    #[test]
    fn rebuilds_are_told_beside_scrubs_and_in_the_place_of_older_resilvers() {
        let scrub = scan(ScanFunction::Scrub, ScanState::Finished, (1_100, 1_101));
        let done = PoolReport {
            scan: Some(scrub),
            rebuilds: vec![rebuild(ScanState::Finished)],
            ..PoolReport::default()
        };
        let expected = [
            "  scan: scrub repaired 0B in 00:00:01 with 0 errors",
            "  scan: resilvered (mirror-0) 1G in 00:01:05 with 0 errors",
        ];
        assert_eq!(starts(&lines(&done, 0)), expected);
        let older = scan(ScanFunction::Resilver, ScanState::Finished, (10, 20));
        let told = lines(&PoolReport { scan: Some(older), ..done.clone() }, 0);
        assert_eq!(starts(&told), expected[1..]);
        let newer = scan(ScanFunction::Resilver, ScanState::Finished, (2_000, 2_001));
        let told = lines(&PoolReport { scan: Some(newer), ..done }, 0);
        assert_eq!(starts(&told), ["  scan: resilvered 0B in 00:00:01 with 0 errors"]);
        let active =
            PoolReport { rebuilds: vec![rebuild(ScanState::Scanning)], ..PoolReport::default() };
        let told = lines(&active, 0);
        assert!(told.starts_with("  scan: resilver (mirror-0) in progress since "), "{told}");
        let rest = "\n\t1G / 4G scanned at 102M/s, 1G / 4G issued at 102M/s\n\t1G resilvered, \
                    25.00% done, 00:00:30 to go\n";
        assert!(told.ends_with(rest), "{told}");
    }

    #[test]
    fn the_rest_is_told_by_the_rate_of_the_last_seconds_however_slow() {
        let slow = ScanReport {
            to_examine: 200 << 20,
            examined: 100 << 20,
            issued: 100 << 20,
            pass_examined: 100 << 20,
            pass_issued: 100 << 20,
            ..scan(ScanFunction::Scrub, ScanState::Scanning, (1_000, 0))
        };
        let told = |scan| lines(&PoolReport { scan: Some(scan), ..PoolReport::default() }, 1_050);
        let text = told(slow);
        assert!(
            text.contains("issued at 2M/s\n\t0B repaired, 50.00% done, 00:00:50 to go\n"),
            "{text}"
        );
        let text = told(ScanReport { recent_rate: Some(1 << 20), ..slow });
        assert!(
            text.contains("issued at 1M/s\n\t0B repaired, 50.00% done, 00:01:40 to go\n"),
            "{text}"
        );
        // Disks that have nothing to say do not go on at the speed they had.
        let text = told(ScanReport { recent_rate: Some(0), ..slow });
        assert!(text.ends_with("50.00% done, no estimated completion time\n"), "{text}");
    }

    #[test]
    fn a_scrub_of_the_error_log_is_told_if_it_is_newer_than_a_scrub() {
        let scrub = scan(ScanFunction::Scrub, ScanState::Finished, (100, 101));
        let own = scan(ScanFunction::ErrorScrub, ScanState::Finished, (200, 203));
        let pool =
            PoolReport { scan: Some(scrub), error_scrub: Some(own), ..PoolReport::default() };
        let expected = [" scrub: scrubbed 1 error blocks in 0 days 00:00:03"];
        assert_eq!(starts(&lines(&pool, 0)), expected);
        let active = ScanReport { state: ScanState::Scanning, ..own };
        let told = lines(&PoolReport { error_scrub: Some(active), ..pool.clone() }, 0);
        assert!(told.starts_with(" scrub: error scrub in progress since "), "{told}");
        assert!(told.ends_with("\t25.00% done, issued I/O for 1 error blocks\n"), "{told}");
        let older = ScanReport { start_time: 50, ..own };
        let told = lines(&PoolReport { error_scrub: Some(older), ..pool }, 0);
        assert!(told.starts_with("  scan: scrub repaired"), "{told}");
    }
}
