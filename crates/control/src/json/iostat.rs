//! `zpool iostat` as JSON. OpenZFS 2.3 has no such output: this is made in the style of its others.
//!
//! Invariant: the numbers are those of the text, under names that say their unit; what nobody counts here is left out,
//! and a mean of nothing is `null`.

use serde_json::{Map, Value, json};

use super::pool::{Object, device_head, document_of, head, sections, shown_children};
use super::{Options, line};
use crate::properties::Show;
use crate::report::{IoDetail, PoolReport, VdevReport};
use crate::text::number;
use crate::text::pool_iostat::{self as iostat, Kind};
use crate::text::vdev_name;

/// Rows of a histogram of waits, as powers of two of nanoseconds.
const WAITS: u32 = 37;
/// Rows of a histogram of sizes, as powers of two of bytes.
const SIZES: std::ops::Range<u32> = 9..25;

/// One round of `zpool iostat -j`; `before` are the reports of the round before, `time` is told where it is asked for.
pub fn round(
    pools: &[PoolReport],
    before: &[PoolReport],
    time: Option<i64>,
    show: &iostat::Options,
    options: &Options,
) -> String {
    let object = |pool: &PoolReport| {
        let earlier = before.iter().find(|earlier| earlier.guid == pool.guid);
        let since = earlier.map_or(0, |earlier| earlier.uptime_nanoseconds);
        let nanoseconds = pool.uptime_nanoseconds.saturating_sub(since).max(1);
        let round = Round { earlier, nanoseconds, show, options };
        let mut map = head(pool, options, true);
        round.pool(&mut map, pool);
        map
    };
    let objects = pools.iter().map(|pool| (pool, object(pool))).collect();
    let mut document = document_of("zpool iostat", objects, options);
    if let Some(time) = time {
        document.insert("time".into(), options.time(time));
    }
    line(document)
}

struct Round<'a> {
    earlier: Option<&'a PoolReport>,
    nanoseconds: u64,
    show: &'a iostat::Options,
    options: &'a Options,
}

/// Every device of a pool, the root first.
fn all(pool: &PoolReport) -> Vec<&VdevReport> {
    fn add<'a>(vdev: &'a VdevReport, out: &mut Vec<&'a VdevReport>) {
        out.push(vdev);
        vdev.children.iter().for_each(|child| add(child, out));
    }
    let mut out = Vec::new();
    std::iter::once(&pool.root).chain(&pool.caches).for_each(|vdev| add(vdev, &mut out));
    out
}

impl Round<'_> {
    fn pool(&self, map: &mut Object, pool: &PoolReport) {
        if !self.show.devices.is_empty() {
            let chosen = all(pool).into_iter().filter(|v| self.show.devices.contains(&v.guid));
            let chosen = chosen.map(|vdev| (self.name(vdev), self.device(vdev, false)));
            map.insert("vdevs".into(), Value::Object(chosen.collect()));
            return;
        }
        let root = self.device(&pool.root, self.show.verbose);
        map.insert("vdevs".into(), json!({ pool.name.clone(): root }));
        let traffic = sections(pool).into_iter().filter(|(_, _, spares)| !spares);
        for (heading, devices, _) in traffic.filter(|_| self.show.verbose) {
            let section =
                devices.into_iter().map(|vdev| (self.name(vdev), self.device(vdev, true)));
            map.insert(heading.to_owned(), Value::Object(section.collect()));
        }
    }

    fn name(&self, vdev: &VdevReport) -> String {
        vdev_name::name(vdev, self.show.naming)
    }

    fn device(&self, vdev: &VdevReport, with_children: bool) -> Value {
        let mut map = device_head(vdev, self.show.naming, self.options);
        let before =
            self.earlier.and_then(|pool| all(pool).into_iter().find(|v| v.guid == vdev.guid));
        let nothing = VdevReport::default();
        let before = before.unwrap_or(&nothing);
        match self.show.kind {
            Kind::Lines => self.numbers(&mut map, vdev, before),
            Kind::Sizes | Kind::Waits => self.histograms(&mut map, vdev, before),
        }
        if with_children {
            let below =
                shown_children(vdev).map(|child| (self.name(child), self.device(child, true)));
            let below: Map<String, Value> = below.collect();
            if !below.is_empty() {
                map.insert("vdevs".into(), Value::Object(below));
            }
        }
        Value::Object(map)
    }

    fn numbers(&self, map: &mut Object, vdev: &VdevReport, before: &VdevReport) {
        let options = self.options;
        if vdev.space != 0 {
            let free = vdev.space.saturating_sub(vdev.allocated);
            map.insert("alloc_space".into(), options.number(vdev.allocated, Show::Bytes));
            map.insert("free_space".into(), options.number(free, Show::Bytes));
        }
        let (now, then) = (&vdev.counters, &before.counters);
        for (name, form, now, then) in [
            ("read_ops", Show::Number, now.reads, then.reads),
            ("write_ops", Show::Number, now.writes, then.writes),
            ("read_bytes", Show::Bytes, now.read_bytes, then.read_bytes),
            ("write_bytes", Show::Bytes, now.write_bytes, then.write_bytes),
        ] {
            map.insert(name.into(), options.number(self.rate(now, then), form));
        }
        for (way, count, earlier, now, then) in [
            ("read", now.reads, then.reads, &vdev.reads, &before.reads),
            ("write", now.writes, then.writes, &vdev.writes, &before.writes),
        ] {
            if self.show.latency {
                let waited = now.wait_nanoseconds.saturating_sub(then.wait_nanoseconds);
                let mean = self.wait(waited.checked_div(count.saturating_sub(earlier)));
                map.insert(format!("total_wait_{way}"), mean.clone());
                map.insert(format!("disk_wait_{way}"), mean);
            }
            if self.show.queues {
                // As in the text: reads are those that somebody waits for, writes those of groups.
                let queue = if way == "read" { "sync_read" } else { "async_write" };
                map.insert(format!("{queue}_pending"), options.plain(0));
                map.insert(format!("{queue}_active"), options.plain(now.active));
            }
        }
    }

    /// A mean wait in nanoseconds.
    fn wait(&self, mean: Option<u64>) -> Value {
        match mean {
            None | Some(0) => Value::Null,
            Some(mean) if self.options.integers || self.options.exact => self.options.plain(mean),
            Some(mean) => json!(number::duration(mean)),
        }
    }

    /// How many operations took up to so many nanoseconds, or were of so many bytes.
    fn histograms(&self, map: &mut Object, vdev: &VdevReport, before: &VdevReport) {
        let ways = [("read", &vdev.reads, &before.reads), ("write", &vdev.writes, &before.writes)];
        for (way, now, then) in ways {
            let (name, rows) = match self.show.kind {
                Kind::Waits => (format!("total_wait_{way}_histogram"), 0..WAITS),
                Kind::Sizes | Kind::Lines => (format!("{way}_size_histogram"), SIZES),
            };
            let row = |row: u32| {
                let of = |detail: &IoDetail| {
                    let is_wait = self.show.kind == Kind::Waits;
                    let counts = if is_wait { &detail.waits } else { &detail.sizes };
                    counts.get(row as usize).copied().unwrap_or(0)
                };
                let least = 1_u64 << row;
                let label = if self.show.kind == Kind::Waits { 2 * least - 1 } else { least };
                let count = of(now).saturating_sub(of(then));
                (label.to_string(), self.options.number(count, Show::Number))
            };
            map.insert(name, Value::Object(rows.map(row).collect()));
        }
    }

    fn rate(&self, now: u64, before: u64) -> u64 {
        let done = u128::from(now.saturating_sub(before));
        u64::try_from(done * 1_000_000_000 / u128::from(self.nanoseconds)).unwrap_or(u64::MAX)
    }
}
