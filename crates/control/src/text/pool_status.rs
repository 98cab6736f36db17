//! `zpool status` as text.
//!
//! Invariant: what this prints for the reports of real pools equals what OpenZFS printed for them.

use super::table::pad;
use super::vdev_name::{self, Naming, SECTIONS};
use super::{advice, number, scan, time, words};
use crate::report::{
    Activity, ActivityState, PoolReport, PoolStatus, VdevClass, VdevReason, VdevReport, VdevState,
};

/// Options of `zpool status` that change what is printed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `-g`, `-L`, `-P`.
    pub naming: Naming,
    /// Exact numbers (`-p`).
    pub exact: bool,
    /// Column of slow operations (`-s`).
    pub slow: bool,
    /// Initialize states (`-i`).
    pub initialize: bool,
    /// Trim states (`-t`).
    pub trim: bool,
    /// Dedup histogram (`-D`).
    pub dedup: bool,
    /// Files with errors (`-v`).
    pub verbose: bool,
    /// Only devices with something wrong (`-e`).
    pub unhealthy_only: bool,
    /// Unix seconds now, for rates.
    pub now: i64,
}

/// Whether `zpool status -x` leaves the pool out.
pub fn is_fine(pool: &PoolReport) -> bool {
    pool.unreplayed.is_empty()
        && pool.jobs.iter().all(|job| job.trouble.is_none())
        && (pool.status == PoolStatus::Healthy || pool.status.is_remark())
}

/// The whole report of one pool.
pub fn render(pool: &PoolReport, options: &Options) -> String {
    let mut out = format!("  pool: {}\n state: {}\n", pool.name, words::pool_state(pool));
    if let Some(advice) = advice::pool_advice(pool) {
        out.push_str(&format!("status: {}\naction: {}\n", advice.status, advice.action));
        if let Some(article) = advice.article {
            out.push_str(&format!("   see: {}\n", advice::article_address(article)));
        }
    }
    out.push_str(&scan::lines(pool, options.now));
    out.push_str("config:\n\n");
    out.push_str(&tree(pool, options));
    out.push_str(&errors(pool, options));
    if options.dedup {
        out.push_str(&dedup(pool));
    }
    out
}

fn errors(pool: &PoolReport, options: &Options) -> String {
    if pool.error_count == 0 {
        return match pool.out_of_reach {
            0 => "\nerrors: No known data errors\n".to_owned(),
            _ => "\nerrors: Data may not be readable until missing devices are back\n".to_owned(),
        };
    }
    if !options.verbose {
        return format!("\nerrors: {} data errors, use '-v' for a list\n", pool.error_count);
    }
    let lists = [
        ("Permanent errors have been detected in the following files", &pool.errors),
        ("The following files cannot be read while devices are away or fail", &pool.passing),
    ];
    let mut out = String::new();
    for (heading, files) in lists.iter().filter(|(_, files)| !files.is_empty()) {
        out.push_str(&format!("\nerrors: {heading}:\n\n"));
        for path in *files {
            out.push_str(&format!("{:7} {path}\n", ""));
        }
    }
    out
}

/// Lines of the device table.
struct Tree<'a> {
    options: &'a Options,
    width: usize,
    out: String,
}

fn tree(pool: &PoolReport, options: &Options) -> String {
    let naming = options.naming;
    let mut width = vdev_name::widest(&pool.root, 0, naming);
    for vdev in pool.caches.iter().chain(&pool.spares) {
        width = width.max(vdev_name::widest(vdev, 2, naming));
    }
    let width = width.max(10);
    let mut out = format!(
        "\t{}  {:<8} {:>5} {:>5} {:>5}",
        pad("NAME", width, false),
        "STATE",
        "READ",
        "WRITE",
        "CKSUM"
    );
    if options.slow {
        out.push_str(&format!(" {:>5}", "SLOW"));
    }
    out.push('\n');
    let mut tree = Tree { options, width, out };
    tree.device(&pool.root, 0, false);
    for (heading, class) in SECTIONS {
        let tops: Vec<_> = vdev_name::tops(&pool.root, class).collect();
        if !tops.is_empty() {
            tree.out.push_str(&format!("\t{heading}\t\n"));
            tops.into_iter().for_each(|vdev| tree.device(vdev, 2, false));
        }
    }
    for (heading, devices, spare) in
        [("cache", &pool.caches, false), ("spares", &pool.spares, true)]
    {
        if !devices.is_empty() {
            tree.out.push_str(&format!("\t{heading}\n"));
            devices.iter().for_each(|vdev| tree.device(vdev, 2, spare));
        }
    }
    tree.out
}

impl Tree<'_> {
    fn device(&mut self, vdev: &VdevReport, depth: usize, spare: bool) {
        if !vdev_name::is_shown(vdev) {
            return;
        }
        if !(self.options.unhealthy_only && vdev.kind != "root" && is_all_well(vdev)) {
            self.line(vdev, depth, spare);
        }
        let root = vdev.kind == "root";
        for child in &vdev.children {
            if !root || child.class == VdevClass::Normal {
                self.device(child, depth + 2, spare);
            }
        }
    }

    fn line(&mut self, vdev: &VdevReport, depth: usize, spare: bool) {
        let name = vdev_name::name(vdev, self.options.naming);
        let state =
            if spare { words::spare_state(vdev) } else { words::state(vdev.state, vdev.reason) };
        let width = self.width.saturating_sub(depth);
        let indent = " ".repeat(depth);
        self.out.push_str(&format!("\t{indent}{}  {state:<8}", pad(&name, width, false)));
        if !spare {
            let exact = self.options.exact;
            let count = |n: u64| if exact { n.to_string() } else { number::plain(n) };
            for errors in [vdev.read_errors, vdev.write_errors, vdev.checksum_errors] {
                self.out.push_str(&format!(" {:>5}", count(errors)));
            }
            if self.options.slow {
                let slow = if vdev.is_leaf() && vdev.kind != "root" {
                    count(vdev.slow_operations)
                } else {
                    "-".to_owned()
                };
                self.out.push_str(&format!(" {slow:>5}"));
            }
        }
        self.out.push_str(&self.notes(vdev, spare));
        self.out.push('\n');
    }

    fn notes(&self, vdev: &VdevReport, spare: bool) -> String {
        let mut out = String::new();
        if vdev.not_present {
            if let Some(path) = &vdev.path {
                out.push_str(&format!("  was {path}"));
            }
        } else if vdev.reason == VdevReason::Spared && spare {
            match &vdev.spare_used_by {
                Some(pool) => out.push_str(&format!("  in use by pool '{pool}'")),
                None => out.push_str("  currently in use"),
            }
        } else if vdev.reason != VdevReason::None && !spare {
            out.push_str(&format!("  {}", words::reason(vdev)));
        } else if vdev.is_leaf()
            && vdev.state == VdevState::Online
            && vdev.configured_ashift < vdev.physical_ashift
        {
            out.push_str(&format!(
                "  block size: {}B configured, {}B native",
                1_u64 << vdev.configured_ashift.min(63),
                1_u64 << vdev.physical_ashift.min(63)
            ));
        }
        if vdev.removing {
            out.push_str("  (removing)");
        } else if vdev.non_allocating {
            out.push_str("  (non-allocating)");
        }
        if vdev.is_leaf() {
            if vdev.resilvering {
                out.push_str("  (resilvering)");
            } else if vdev.awaiting_resilver {
                out.push_str("  (awaiting resilver)");
            }
            if vdev.missed > 0 && !vdev.not_present {
                let groups = number::plain(vdev.missed);
                let s = if vdev.missed == 1 { "" } else { "s" };
                out.push_str(&format!("  missed writes of {groups} transaction group{s}"));
            }
            if self.options.initialize {
                out.push_str(&initialize(vdev.initialize));
            }
            if self.options.trim {
                out.push_str(&trim(vdev));
            }
        }
        out
    }
}

fn is_well(vdev: &VdevReport) -> bool {
    let errors = vdev.read_errors + vdev.write_errors + vdev.checksum_errors + vdev.slow_operations;
    vdev.state == VdevState::Online && errors == 0
}

/// Whether neither the vdev nor anything below it wants to be looked at.
fn is_all_well(vdev: &VdevReport) -> bool {
    is_well(vdev) && vdev.children.iter().all(is_all_well)
}

fn percent(activity: Activity) -> u64 {
    if activity.total == 0 {
        return 100;
    }
    u64::try_from(u128::from(activity.done) * 100 / u128::from(activity.total)).unwrap_or(100)
}

fn when(activity: Activity) -> String {
    let time = time::long(activity.time);
    match activity.state {
        ActivityState::Active => format!(", started at {time}"),
        ActivityState::Suspended => format!(", suspended, started at {time}"),
        ActivityState::Complete => format!(", completed at {time}"),
        ActivityState::Canceled => format!(", canceled at {time}"),
    }
}

/// One that was given up is as if it had never been.
fn is_told(activity: &Activity) -> bool {
    activity.state != ActivityState::Canceled
}

fn initialize(activity: Option<Activity>) -> String {
    match activity.filter(is_told) {
        None => "  (uninitialized)".to_owned(),
        Some(activity) => {
            format!("  ({}% initialized{})", percent(activity), when(activity))
        }
    }
}

fn trim(vdev: &VdevReport) -> String {
    match vdev.trim.filter(is_told) {
        Some(activity) => format!("  ({}% trimmed{})", percent(activity), when(activity)),
        None if !vdev.trim_supported => "  (trim unsupported)".to_owned(),
        None => "  (untrimmed)".to_owned(),
    }
}

fn dedup(pool: &PoolReport) -> String {
    let Some(dedup) = pool.dedup.as_ref().filter(|dedup| dedup.entries > 0) else {
        return "\n dedup: no DDT entries\n".to_owned();
    };
    let mut out = format!(
        "\n dedup: DDT entries {}, size {} on disk, {} in core\n\n",
        dedup.entries,
        number::bytes(dedup.disk_bytes),
        number::bytes(dedup.memory_bytes)
    );
    out.push_str("bucket              allocated                       referenced          \n");
    out.push_str("______   ______________________________   ______________________________\n");
    out.push_str("refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE\n");
    out.push_str("------   ------   -----   -----   -----   ------   -----   -----   -----\n");
    let row = |label: &str, bucket: &crate::report::DedupBucket| {
        let mut line = format!("{label:>6}   {:>6}", number::plain(bucket.blocks));
        for size in bucket.sizes {
            line.push_str(&format!("   {:>5}", number::bytes(size)));
        }
        line.push_str(&format!("   {:>6}", number::plain(bucket.referenced_blocks)));
        for size in bucket.referenced_sizes {
            line.push_str(&format!("   {:>5}", number::bytes(size)));
        }
        line.push('\n');
        line
    };
    for bucket in &dedup.histogram {
        out.push_str(&row(&number::plain(bucket.refcount), bucket));
    }
    out.push_str(&row("Total", &dedup.total()));
    out.push('\n');
    out
}
