//! `zpool wait`: until nothing goes on in a pool, with a table of what is left meanwhile.
//!
//! Invariant: it returns when none of the activities waited for runs, or the pool is gone. The
//! table is that of OpenZFS 2.1, so that its columns can be counted on.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cenote_control::client::Client;
use cenote_control::report::{
    Activity, ActivityState, PoolReport, RebuildReport, ScanFunction, ScanReport, ScanState,
    VdevReport,
};
use cenote_control::text::number;

use super::common;
use crate::getopt::Spec;
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "HpT:t:", long: &[] };
/// How often it is looked.
const INTERVAL: Duration = Duration::from_millis(500);
/// What can be waited for, in the order of the columns.
const ACTIVITIES: [&str; 9] =
    ["discard", "free", "initialize", "replace", "remove", "resilver", "scrub", "trim", EXPANSION];
/// Has a column only when it is asked for: software before 2.3 knows none.
const EXPANSION: &str = "raidz_expand";
/// Narrowest column of the table.
const WIDTH_MIN: usize = 6;

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("wait", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let Some(stamp) = common::Stamp::of(&parsed) else {
        return wrong("");
    };
    let named = match parsed.argument('t').map(activities) {
        None => None,
        Some(Ok(named)) => Some(named),
        Some(Err(unknown)) => return wrong(&format!("invalid activity '{unknown}'")),
    };
    let mut operands = parsed.operands.clone();
    let interval = match interval(&mut operands) {
        Ok(interval) => interval,
        Err(message) => return wrong(message),
    };
    let name = match operands.as_slice() {
        [] => return wrong("missing 'pool' argument"),
        [name] => name,
        _ => return wrong("too many arguments"),
    };
    if let Some(problem) = common::name_problem(name) {
        terminal::complain(&format!("cannot open '{name}': {problem}"));
        return ExitCode::FAILURE;
    }
    let wanted = named.clone().unwrap_or_else(|| ACTIVITIES.to_vec());
    let table = interval.map(|interval| Table {
        columns: named.unwrap_or_else(|| {
            ACTIVITIES.into_iter().filter(|activity| *activity != EXPANSION).collect()
        }),
        interval,
        stamp,
        scripted: parsed.has('H'),
        exact: parsed.has('p'),
    });
    wait(&Client::default(), name, &wanted, table.as_ref())
}

/// The activities of a list, in their own order; `Err` with one that is none.
fn activities(list: &str) -> Result<Vec<&'static str>, &str> {
    // Nothing behind the last comma, and nothing at all, is no name.
    let list = list.strip_suffix(',').unwrap_or(list);
    let named: Vec<&str> = list.split(',').filter(|_| !list.is_empty()).collect();
    match named.iter().find(|name| !ACTIVITIES.contains(name)) {
        Some(unknown) => Err(unknown),
        None => Ok(ACTIVITIES.into_iter().filter(|known| named.contains(known)).collect()),
    }
}

/// Takes the interval off the end of the operands; a count is none of this command's.
fn interval(operands: &mut Vec<String>) -> Result<Option<Duration>, &'static str> {
    let Some(last) = operands.pop() else { return Ok(None) };
    let mut alone = vec![last.clone()];
    let interval = common::Repeat::take(&mut alone)?.interval;
    if interval.is_none() {
        operands.push(last);
    }
    Ok(interval)
}

/// Waits until none of these activities goes on in the pool.
pub(super) fn until_over(client: &Client, name: &str, wanted: &[&str]) -> ExitCode {
    wait(client, name, wanted, None)
}

fn wait(client: &Client, name: &str, wanted: &[&str], table: Option<&Table>) -> ExitCode {
    let mut before = false;
    let mut next = Instant::now();
    loop {
        let report = match client.pool_report(name) {
            Ok(report) => report,
            // exported or destroyed while it was waited for
            Err(_) if before && !client.knows(name) => return ExitCode::SUCCESS,
            Err(failure) => {
                terminal::complain(&failure.message);
                return ExitCode::FAILURE;
            }
        };
        if let Some(table) = table
            && next <= Instant::now()
        {
            if !before {
                terminal::out(&table.headings());
            }
            terminal::out(&table.row(&report));
            next = Instant::now() + table.interval;
        }
        if !wanted.iter().any(|activity| runs(&report, activity)) {
            return ExitCode::SUCCESS;
        }
        before = true;
        let row = table.map(|_| next.saturating_duration_since(Instant::now()));
        std::thread::sleep(row.map_or(INTERVAL, |row| row.min(INTERVAL)));
    }
}

/// The table of what is left.
struct Table {
    columns: Vec<&'static str>,
    interval: Duration,
    stamp: common::Stamp,
    scripted: bool,
    exact: bool,
}

impl Table {
    fn headings(&self) -> String {
        if self.scripted {
            return String::new();
        }
        let mut line: String = self.columns.iter().map(|name| cell(name, name)).collect();
        line = line.to_uppercase();
        line.push('\n');
        line
    }

    fn row(&self, pool: &PoolReport) -> String {
        let mut line = self.stamp.line();
        for name in &self.columns {
            let left = remaining(pool, name);
            let text = if self.exact { left.to_string() } else { number::plain(left) };
            if !self.scripted {
                line.push_str(&cell(name, &text));
                continue;
            }
            // The separator belongs to the column: that is how OpenZFS prints it.
            if *name != "discard" {
                line.push('\t');
            }
            line.push_str(&text);
        }
        line.push('\n');
        line
    }
}

fn cell(column: &str, text: &str) -> String {
    format!(" {text:>width$}", width = column.len().max(WIDTH_MIN) + 1)
}

/// Bytes that an activity still has to do.
fn remaining(pool: &PoolReport, activity: &str) -> u64 {
    if !runs(pool, activity) {
        return 0;
    }
    let scan = pool.scan.as_ref().map_or(0, |scan| scan.to_examine.saturating_sub(scan.issued));
    let rebuilt = pool.rebuilds.iter().filter(|one| one.state == ScanState::Scanning);
    let left_to_rebuild: u64 = rebuilt.map(|one| one.estimated.saturating_sub(one.scanned)).sum();
    match activity {
        "discard" => pool.checkpoint.map_or(0, |checkpoint| checkpoint.space),
        "free" => pool.properties.number("freeing").unwrap_or(0),
        "initialize" => left(&pool.root, &|vdev| vdev.initialize),
        "trim" => left(&pool.root, &|vdev| vdev.trim),
        "remove" => pool.removal.as_ref().map_or(0, |one| one.to_copy.saturating_sub(one.copied)),
        "raidz_expand" => {
            pool.expansion.as_ref().map_or(0, |one| one.to_reflow.saturating_sub(one.reflowed))
        }
        "resilver" | "replace" if left_to_rebuild > 0 => left_to_rebuild,
        _ => scan,
    }
}

/// Bytes that the devices of a tree still have to do.
fn left(vdev: &VdevReport, of: &dyn Fn(&VdevReport) -> Option<Activity>) -> u64 {
    let active = of(vdev).filter(|one| one.state == ActivityState::Active);
    let own = active.map_or(0, |one| one.total.saturating_sub(one.done));
    vdev.children.iter().fold(own, |sum, child| sum.saturating_add(left(child, of)))
}

fn runs(pool: &PoolReport, activity: &str) -> bool {
    let scans = |function| {
        let scan = pool.scan.as_ref();
        scan.is_some_and(|scan| {
            scan.function == function && scan.state == ScanState::Scanning && scan.paused == 0
        })
    };
    let active =
        |one: &Option<Activity>| one.as_ref().is_some_and(|one| one.state == ActivityState::Active);
    match activity {
        "discard" => pool.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.discarding),
        "free" => pool.properties.number("freeing").is_some_and(|bytes| bytes != 0),
        "initialize" => any(&pool.root, &|vdev| active(&vdev.initialize)),
        "trim" => any(&pool.root, &|vdev| active(&vdev.trim)),
        "replace" => any(&pool.root, &|vdev| {
            let [_, spare, others @ ..] = vdev.children.as_slice() else { return false };
            let is_spared = vdev.kind == "spare" && (!others.is_empty() || spare.missed > 0);
            vdev.kind == "replacing" || is_spared
        }),
        "remove" => {
            pool.removal.as_ref().is_some_and(|removal| removal.state == ScanState::Scanning)
        }
        "resilver" => {
            let is_rebuilt = |one: &RebuildReport| one.state == ScanState::Scanning;
            scans(ScanFunction::Resilver) || pool.rebuilds.iter().any(is_rebuilt)
        }
        "scrub" => {
            let is_active = |scan: &ScanReport| scan.state == ScanState::Scanning;
            let of_errors = pool.error_scrub.as_ref();
            let pauses = of_errors.is_some_and(|scan| scan.paused != 0);
            scans(ScanFunction::Scrub) || !pauses && of_errors.is_some_and(is_active)
        }
        "raidz_expand" => {
            pool.expansion.as_ref().is_some_and(|expansion| expansion.state == ScanState::Scanning)
        }
        _ => false,
    }
}

fn any(vdev: &VdevReport, is: &dyn Fn(&VdevReport) -> bool) -> bool {
    is(vdev) || vdev.children.iter().any(|child| any(child, is))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from OpenZFS 2.1.11.
    #[test]
    fn the_table_is_that_of_openzfs() {
        let scan = ScanReport {
            function: ScanFunction::Scrub,
            state: ScanState::Scanning,
            start_time: 0,
            end_time: 0,
            to_examine: 125_545_472,
            examined: 0,
            skipped: 0,
            processed: 0,
            errors: 0,
            pass_examined: 0,
            issued: 0,
            pass_issued: 0,
            pass_start: 0,
            paused: 0,
            spent_paused: 0,
            recent_rate: None,
        };
        let pool = PoolReport { scan: Some(scan), ..PoolReport::default() };
        let table = |columns: &[&'static str], scripted, exact| Table {
            columns: columns.to_vec(),
            interval: INTERVAL,
            stamp: common::Stamp::None,
            scripted,
            exact,
        };
        let all = table(&ACTIVITIES[..8], false, false);
        let expected = "  DISCARD    FREE  INITIALIZE  REPLACE  REMOVE  RESILVER   SCRUB    TRIM\n";
        assert_eq!(all.headings(), expected);
        let expected = "        0       0           0        0       0         0    120M       0\n";
        assert_eq!(all.row(&pool), expected);
        let expected =
            "        0       0           0        0       0         0 125545472       0\n";
        assert_eq!(table(&ACTIVITIES[..8], false, true).row(&pool), expected);
        let scripted = table(&ACTIVITIES[..8], true, false);
        assert_eq!(scripted.headings() + &scripted.row(&pool), "0\t0\t0\t0\t0\t0\t120M\t0\n");
        assert_eq!(table(&["scrub"], true, true).row(&pool), "\t125545472\n");
        let two = table(&["scrub", "trim"], false, false);
        assert_eq!(two.headings() + &two.row(&pool), "   SCRUB    TRIM\n    120M       0\n");
    }

    #[test]
    fn lists_of_activities() {
        assert_eq!(activities("trim,scrub"), Ok(vec!["scrub", "trim"]));
        assert_eq!(activities("scrub,"), Ok(vec!["scrub"]));
        assert_eq!(activities(""), Ok(vec![]));
        assert_eq!(activities("bogus"), Err("bogus"));
        assert_eq!(activities(",scrub"), Err(""));
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let take = |line: &str| {
            let mut words = words(line);
            (interval(&mut words), words.join(" "))
        };
        assert_eq!(take("tank 1"), (Ok(Some(Duration::from_secs(1))), "tank".into()));
        assert_eq!(take("tank 1 2"), (Ok(Some(Duration::from_secs(2))), "tank 1".into()));
        assert_eq!(take("tank x"), (Ok(None), "tank x".into()));
        assert!(take("tank 0").0.is_err());
    }
}
