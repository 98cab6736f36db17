//! `zpool iostat` as text.
//!
//! Invariant: rates come from two snapshots of counters and the time between them; counters that
//! run backwards (a device came back) count as no work.

use super::table::pad;
use super::vdev_name::{self, Naming, SECTIONS};
use crate::properties::{self, Show};
use crate::report::{IoCounters, PoolReport, VdevClass, VdevReport};

/// Options of `zpool iostat` that change what is printed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `-g`, `-L`, `-P`.
    pub naming: Naming,
    /// Exact numbers (`-p`).
    pub exact: bool,
    /// For scripts (`-H`).
    pub scripted: bool,
    /// Devices too (`-v`).
    pub verbose: bool,
}

impl Options {
    fn column(&self) -> usize {
        if self.exact { 15 } else { 5 }
    }
}

/// Counters of one device at one time; what to subtract from a later report.
pub fn counters_of(pool: &PoolReport, guid: u64) -> Option<&IoCounters> {
    fn find(vdev: &VdevReport, guid: u64) -> Option<&IoCounters> {
        if vdev.guid == guid {
            return Some(&vdev.counters);
        }
        vdev.children.iter().find_map(|child| find(child, guid))
    }
    find(&pool.root, guid).or_else(|| pool.caches.iter().find_map(|vdev| find(vdev, guid)))
}

/// Width of the name column.
pub fn name_width(pools: &[PoolReport], options: &Options) -> usize {
    let width = pools.iter().map(|pool| {
        if !options.verbose {
            return pool.name.len();
        }
        let own = vdev_name::widest(&pool.root, 0, options.naming);
        pool.caches.iter().fold(own, |w, vdev| w.max(vdev_name::widest(vdev, 2, options.naming)))
    });
    width.max().unwrap_or(0).max(10)
}

/// The three heading lines.
pub fn headings(width: usize, options: &Options) -> String {
    let column = options.column();
    let mut out = " ".repeat(width);
    for group in ["capacity", "operations", "bandwidth"] {
        let span = 2 * column + 2;
        let left = (span - group.len()).div_ceil(2);
        let right = span - group.len() - left;
        out.push_str(&format!("  {}{group}{}", " ".repeat(left), " ".repeat(right)));
    }
    out.push('\n');
    out.push_str(&pad("pool", width, false));
    for heading in ["alloc", "free", "read", "write", "read", "write"] {
        out.push_str(&format!("  {heading:>column$}"));
    }
    out.push('\n');
    out.push_str(&rule(width, options));
    out
}

/// The line of dashes.
pub fn rule(width: usize, options: &Options) -> String {
    let mut out = "-".repeat(width);
    for _ in 0..6 {
        out.push_str(&format!("  {}", "-".repeat(options.column())));
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
    table.device(&pool.root, 0);
    if options.verbose {
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
        if self.options.scripted {
            self.out.push('\n');
        } else {
            self.out.push_str(&pad(heading, self.width, false));
            let column = self.options.column();
            for _ in 0..6 {
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
        self.device(vdev, depth);
        for child in &vdev.children {
            self.tree(child, depth + 2);
        }
    }

    fn rate(&self, now: u64, before: u64) -> u64 {
        let done = u128::from(now.saturating_sub(before));
        u64::try_from(done * 1_000_000_000 / u128::from(self.nanoseconds)).unwrap_or(u64::MAX)
    }

    fn device(&mut self, vdev: &VdevReport, depth: usize) {
        let zero = IoCounters::default();
        let before = self.before.and_then(|pool| counters_of(pool, vdev.guid)).unwrap_or(&zero);
        let now = &vdev.counters;
        let exact = self.options.exact;
        let show = |n: u64| {
            properties::show(if exact { Show::Plain } else { Show::Number }, &n.to_string())
        };
        let space = vdev.space != 0;
        let cells = [
            if space { show(vdev.allocated) } else { "-".to_owned() },
            if space { show(vdev.space.saturating_sub(vdev.allocated)) } else { "-".to_owned() },
            show(self.rate(now.reads, before.reads)),
            show(self.rate(now.writes, before.writes)),
            show(self.rate(now.read_bytes, before.read_bytes)),
            show(self.rate(now.write_bytes, before.write_bytes)),
        ];
        let name = vdev_name::name(vdev, self.options.naming);
        if self.options.scripted {
            self.out.push_str(&format!("{name}\t{}\n", cells.join("\t")));
            return;
        }
        let indented = format!("{}{name}", " ".repeat(depth));
        self.out.push_str(&pad(&indented, self.width, false));
        let column = self.options.column();
        for cell in cells {
            self.out.push_str(&format!("  {cell:>column$}"));
        }
        self.out.push('\n');
    }
}
