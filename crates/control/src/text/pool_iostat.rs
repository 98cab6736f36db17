//! `zpool iostat` as text.
//!
//! Invariant: rates come from two snapshots of counters and the time between them; counters that
//! run backwards (a device came back) count as no work.

pub use super::iostat::{Kind, Options};
use super::iostat::{Work, over};
use super::table::pad;
use super::vdev_name::{self, SECTIONS};
use super::{number, pool_histogram};
use crate::properties::{self, Show};
use crate::report::{IoCounters, IoDetail, PoolReport, VdevClass, VdevReport};

/// A heading over one or two columns, the columns' own headings, and their widths: as they are and
/// with exact numbers.
type Group = (&'static str, &'static [&'static str], usize, usize);

const RATES: [Group; 3] = [
    ("capacity", &["alloc", "free"], 5, 15),
    ("operations", &["read", "write"], 5, 15),
    ("bandwidth", &["read", "write"], 5, 15),
];
const LATENCY: [Group; 6] = [
    ("total_wait", &["read", "write"], 5, 10),
    ("disk_wait", &["read", "write"], 5, 10),
    ("syncq_wait", &["read", "write"], 5, 10),
    ("asyncq_wait", &["read", "write"], 5, 10),
    ("scrub", &["wait"], 5, 10),
    ("trim", &["wait"], 5, 10),
];
const QUEUES: [Group; 6] = [
    ("syncq_read", &["pend", "activ"], 5, 6),
    ("syncq_write", &["pend", "activ"], 5, 6),
    ("asyncq_read", &["pend", "activ"], 5, 6),
    ("asyncq_write", &["pend", "activ"], 5, 6),
    ("scrubq_read", &["pend", "activ"], 5, 6),
    ("trimq_write", &["pend", "activ"], 5, 6),
];

/// The columns in order.
fn groups(options: &Options) -> impl Iterator<Item = &'static Group> {
    let latency = LATENCY.iter().filter(|_| options.latency);
    let queues = QUEUES.iter().filter(|_| options.queues);
    RATES.iter().chain(latency).chain(queues)
}

/// The widths of all columns.
fn columns(options: &Options) -> Vec<usize> {
    let width = |group: &Group| if options.exact { group.3 } else { group.2 };
    groups(options).flat_map(|group| vec![width(group); group.1.len()]).collect()
}

/// Counters of one device at one time; what to subtract from a later report.
fn work_of(pool: &PoolReport, guid: u64) -> Option<Work<'_>> {
    find(pool, guid)
        .map(|vdev| Work { counters: vdev.counters, details: [&vdev.reads, &vdev.writes] })
}

/// The device with that guid.
fn find(pool: &PoolReport, guid: u64) -> Option<&VdevReport> {
    fn below(vdev: &VdevReport, guid: u64) -> Option<&VdevReport> {
        if vdev.guid == guid {
            return Some(vdev);
        }
        vdev.children.iter().find_map(|child| below(child, guid))
    }
    below(&pool.root, guid).or_else(|| pool.caches.iter().find_map(|vdev| below(vdev, guid)))
}

/// Width of the name column.
pub fn name_width(pools: &[PoolReport], options: &Options) -> usize {
    let width = pools.iter().map(|pool| {
        if !options.shows_devices() {
            return pool.name.len();
        }
        let own = vdev_name::widest(&pool.root, 0, options.naming);
        pool.caches.iter().fold(own, |w, vdev| w.max(vdev_name::widest(vdev, 2, options.naming)))
    });
    width.max().unwrap_or(0).max(10)
}

/// The three heading lines; histograms have their own.
pub fn headings(width: usize, options: &Options) -> String {
    if options.kind != Kind::Lines {
        return String::new();
    }
    let mut out = " ".repeat(width);
    let mut second = pad(if options.devices.is_empty() { "pool" } else { "vdev" }, width, false);
    for group in groups(options) {
        let column = if options.exact { group.3 } else { group.2 };
        out.push_str(&over(group.0, group.1.len(), column));
        for heading in group.1 {
            second.push_str(&format!("  {heading:>column$}"));
        }
    }
    format!("{out}\n{second}\n{}", rule(width, options))
}

/// The line of dashes; none between histograms.
pub fn rule(width: usize, options: &Options) -> String {
    if options.kind != Kind::Lines {
        return String::new();
    }
    let mut out = "-".repeat(width);
    for column in columns(options) {
        out.push_str(&format!("  {}", "-".repeat(column)));
    }
    out.push('\n');
    out
}

/// The lines of one pool. `before` is the earlier snapshot, if there is one; without it rates are
/// since the pool was opened.
pub fn rows(
    pool: &PoolReport,
    before: Option<&PoolReport>,
    width: usize,
    options: &Options,
) -> String {
    let since = before.map_or(0, |earlier| earlier.uptime_nanoseconds);
    let nanoseconds = pool.uptime_nanoseconds.saturating_sub(since).max(1);
    let mut table = Rows { out: String::new(), width, options, before, nanoseconds };
    if options.devices.is_empty() {
        table.device(&pool.root, 0);
    }
    if options.shows_devices() {
        for vdev in vdev_name::tops(&pool.root, VdevClass::Normal) {
            table.tree(vdev, 2);
        }
        for (heading, class) in SECTIONS {
            let tops: Vec<_> = vdev_name::tops(&pool.root, class).collect();
            table.section(heading, &tops);
        }
        table.section("cache", &pool.caches.iter().collect::<Vec<_>>());
    }
    table.out
}

/// The mean of what grew, or nothing.
fn mean(now: (u64, u64), before: (u64, u64)) -> Option<u64> {
    now.0.saturating_sub(before.0).checked_div(now.1.saturating_sub(before.1))
}

struct Rows<'a> {
    out: String,
    width: usize,
    options: &'a Options,
    before: Option<&'a PoolReport>,
    nanoseconds: u64,
}

impl Rows<'_> {
    fn section(&mut self, heading: &str, devices: &[&VdevReport]) {
        if devices.is_empty() {
            return;
        }
        let options = self.options;
        if options.scripted || options.kind != Kind::Lines || !options.devices.is_empty() {
            self.out.push('\n');
        } else {
            self.out.push_str(&pad(heading, self.width, false));
            for column in columns(options) {
                self.out.push_str(&format!("  {:>column$}", "-"));
            }
            self.out.push('\n');
        }
        for vdev in devices {
            self.tree(vdev, 2);
        }
    }

    fn tree(&mut self, vdev: &VdevReport, depth: usize) {
        if !vdev_name::is_shown(vdev) {
            return;
        }
        let alone = !self.options.devices.is_empty();
        if !alone || self.options.devices.contains(&vdev.guid) {
            self.device(vdev, if alone { 0 } else { depth });
        }
        for child in &vdev.children {
            self.tree(child, depth + 2);
        }
    }

    fn rate(&self, now: u64, before: u64) -> u64 {
        let done = u128::from(now.saturating_sub(before));
        u64::try_from(done * 1_000_000_000 / u128::from(self.nanoseconds)).unwrap_or(u64::MAX)
    }

    fn device(&mut self, vdev: &VdevReport, depth: usize) {
        let (none, options) = (IoDetail::default(), self.options);
        let nothing = Work { counters: IoCounters::default(), details: [&none, &none] };
        let before = self.before.and_then(|pool| work_of(pool, vdev.guid)).unwrap_or(nothing);
        let name = vdev_name::name(vdev, options.naming);
        let now = Work { counters: vdev.counters, details: [&vdev.reads, &vdev.writes] };
        if options.kind != Kind::Lines {
            let table = pool_histogram::table(&name, &now, &before, self.width, options);
            self.out.push_str(&table);
            return;
        }
        let mut cells = self.rates(vdev, &now.counters, &before.counters);
        if options.latency {
            cells.extend(self.waits(&now, &before));
        }
        if options.queues {
            let active = |detail: &IoDetail| self.show(detail.active);
            for detail in [Some(now.details[0]), None, None, Some(now.details[1]), None, None] {
                cells.extend(["0".to_owned(), detail.map_or_else(|| "0".to_owned(), active)]);
            }
        }
        if options.scripted {
            self.out.push_str(&format!("{name}\t{}\n", cells.join("\t")));
            return;
        }
        let indented = format!("{}{name}", " ".repeat(depth));
        self.out.push_str(&pad(&indented, self.width, false));
        for (cell, column) in cells.iter().zip(columns(options)) {
            self.out.push_str(&format!("  {cell:>column$}"));
        }
        self.out.push('\n');
    }

    fn show(&self, n: u64) -> String {
        let form = if self.options.exact { Show::Plain } else { Show::Number };
        properties::show(form, &n.to_string())
    }

    fn rates(&self, vdev: &VdevReport, now: &IoCounters, before: &IoCounters) -> Vec<String> {
        let space = |bytes: u64| match vdev.space {
            0 => "-".to_owned(),
            _ => self.show(bytes),
        };
        vec![
            space(vdev.allocated),
            space(vdev.space.saturating_sub(vdev.allocated)),
            self.show(self.rate(now.reads, before.reads)),
            self.show(self.rate(now.writes, before.writes)),
            self.show(self.rate(now.read_bytes, before.read_bytes)),
            self.show(self.rate(now.write_bytes, before.write_bytes)),
        ]
    }

    /// Mean waits. Operations go to the devices as soon as they are there: they wait in no queue of
    /// ours, and all of the wait is the device's.
    fn waits(&self, now: &Work<'_>, before: &Work<'_>) -> Vec<String> {
        let counts = |work: &Work<'_>| [work.counters.reads, work.counters.writes];
        let mut means = [0, 1].into_iter().map(|way: usize| {
            let of = |work: &Work<'_>| {
                Some((work.details.get(way)?.wait_nanoseconds, *counts(work).get(way)?))
            };
            match mean(of(now).unwrap_or_default(), of(before).unwrap_or_default()) {
                None | Some(0) => "-".to_owned(),
                Some(mean) if self.options.exact => mean.to_string(),
                Some(mean) => number::duration(mean),
            }
        });
        let none = || "-".to_owned();
        let (read, write) = (means.next().unwrap_or_else(none), means.next().unwrap_or_else(none));
        let mut cells = vec![read.clone(), write.clone(), read, write];
        cells.resize_with(10, none);
        cells
    }
}
