//! `zpool list`, `get` and `status` as JSON.
//!
//! Invariant: one object for each pool, keyed by its name or guid.

use serde_json::{Map, Value, json};

use super::{Options, document, line, property};
use crate::properties::{self, Show};
use crate::report::{
    Activity, ActivityState, JobReport, JobState, PoolReport, Property, RebuildReport,
    ScanFunction, ScanReport, ScanState, VdevClass, VdevReport,
};
use crate::text::vdev_name::{self, Naming, SECTIONS};
use crate::text::{advice, pool_list, pool_status, words};

pub(super) type Object = Map<String, Value>;

pub(super) fn head(pool: &PoolReport, options: &Options, typed: bool) -> Object {
    let mut map = Object::new();
    map.insert("name".into(), json!(pool.name));
    if typed {
        map.insert("type".into(), json!("POOL"));
    }
    map.insert("state".into(), json!(words::pool_state(pool)));
    map.insert("pool_guid".into(), options.plain(pool.guid));
    map.insert("txg".into(), options.plain(pool.txg));
    map.insert("spa_version".into(), options.plain(pool.pool_version));
    map.insert("zpl_version".into(), options.plain(pool.filesystem_version));
    map
}

pub(super) fn finish(
    command: &str,
    pools: Vec<(&PoolReport, Object)>,
    options: &Options,
) -> String {
    line(document_of(command, pools, options))
}

/// The whole output, before it becomes a line.
pub(super) fn document_of(
    command: &str,
    pools: Vec<(&PoolReport, Object)>,
    options: &Options,
) -> Object {
    let mut all = Object::new();
    for (pool, object) in pools {
        let key = if options.key_guid { pool.guid.to_string() } else { pool.name.clone() };
        all.insert(key, Value::Object(object));
    }
    let mut document = document(command);
    document.insert("pools".into(), Value::Object(all));
    document
}

fn properties_of(pool: &PoolReport, wanted: &[String], options: &Options) -> Value {
    let mut map = Object::new();
    for name in wanted {
        let full = properties::pool(name).map_or(name.as_str(), |info| info.name);
        if full == "name" {
            continue;
        }
        let absent = Property { name: full.to_owned(), value: "-".into(), ..Property::default() };
        let found = match pool.properties.get(full) {
            Some(found) => found,
            None if full.contains('@') => continue,
            None => &absent,
        };
        map.insert(full.to_owned(), property(options, found, pool_list::value(pool, full, false)));
    }
    Value::Object(map)
}

/// `zpool get -j` of these properties (`None`: all).
pub fn get(pools: &[PoolReport], wanted: Option<&[String]>, options: &Options) -> String {
    let object = |pool: &PoolReport| {
        let mut map = head(pool, options, true);
        let all = crate::text::pool_get::all_properties(pool);
        map.insert("properties".into(), properties_of(pool, wanted.unwrap_or(&all), options));
        map
    };
    finish("zpool get", pools.iter().map(|pool| (pool, object(pool))).collect(), options)
}

/// `zpool list -j` with these columns; with the devices if `verbose`.
pub fn list(
    pools: &[PoolReport],
    wanted: &[String],
    verbose: bool,
    naming: Naming,
    options: &Options,
) -> String {
    let object = |pool: &PoolReport| {
        let mut map = head(pool, options, true);
        map.insert("properties".into(), properties_of(pool, wanted, options));
        if verbose {
            map.insert("vdevs".into(), listed_devices(pool, naming, options));
        }
        map
    };
    finish("zpool list", pools.iter().map(|pool| (pool, object(pool))).collect(), options)
}

fn listed_devices(pool: &PoolReport, naming: Naming, options: &Options) -> Value {
    let mut map = Object::new();
    let add = |map: &mut Object, vdev: &VdevReport, spare: bool| {
        map.insert(vdev_name::name(vdev, naming), listed(vdev, naming, options, spare));
    };
    for vdev in vdev_name::tops(&pool.root, VdevClass::Normal) {
        if vdev.kind != "hole" {
            add(&mut map, vdev, false);
        }
    }
    for (heading, devices, spare) in sections(pool) {
        let mut section = Object::new();
        devices.iter().for_each(|vdev| add(&mut section, vdev, spare));
        map.insert(heading.to_owned(), Value::Object(section));
    }
    Value::Object(map)
}

/// The sections that are not empty: heading, devices, whether they are spares.
pub(super) fn sections(pool: &PoolReport) -> Vec<(&'static str, Vec<&VdevReport>, bool)> {
    let mut all: Vec<(&str, Vec<&VdevReport>, bool)> = SECTIONS
        .iter()
        .map(|(heading, class)| (*heading, vdev_name::tops(&pool.root, *class).collect(), false))
        .collect();
    all.push(("l2cache", pool.caches.iter().collect(), false));
    all.push(("spares", pool.spares.iter().collect(), true));
    all.retain(|(_, devices, _)| !devices.is_empty());
    all
}

fn class_word(class: VdevClass) -> &'static str {
    match class {
        VdevClass::Normal => "normal",
        VdevClass::Dedup => "dedup",
        VdevClass::Special => "special",
        VdevClass::Log => "log",
        VdevClass::Cache => "l2cache",
        VdevClass::Spare => "spare",
    }
}

pub(super) fn device_head(vdev: &VdevReport, naming: Naming, options: &Options) -> Object {
    let mut map = Object::new();
    map.insert("name".into(), json!(vdev_name::name(vdev, naming)));
    map.insert("vdev_type".into(), json!(vdev.kind));
    map.insert("guid".into(), options.plain(vdev.guid));
    if let Some(path) = &vdev.path {
        map.insert("path".into(), json!(path));
    }
    map.insert("class".into(), json!(class_word(vdev.class)));
    map
}

fn listed(vdev: &VdevReport, naming: Naming, options: &Options, spare: bool) -> Value {
    let state = words::state(vdev.state, vdev.reason);
    let mut map = device_head(vdev, naming, options);
    map.insert("state".into(), json!(state));
    let names = [
        "size",
        "allocated",
        "free",
        "checkpoint",
        "expandsize",
        "fragmentation",
        "capacity",
        "dedupratio",
    ];
    let (exact, human) =
        (pool_list::device_values(vdev, true), pool_list::device_values(vdev, false));
    let mut values = Object::new();
    let none = super::source(&crate::report::Source::None);
    for ((name, exact), human) in names.into_iter().zip(exact).zip(human) {
        let value = options.property_value(&exact, human);
        values.insert(name.to_owned(), json!({ "value": value, "source": none }));
    }
    let health = if spare { words::spare_state(vdev) } else { state };
    values.insert("health".into(), json!({ "value": health, "source": none }));
    map.insert("properties".into(), Value::Object(values));
    if !vdev.children.is_empty() {
        let mut below = Object::new();
        for child in &vdev.children {
            below.insert(vdev_name::name(child, naming), listed(child, naming, options, spare));
        }
        map.insert("vdevs".into(), Value::Object(below));
    }
    Value::Object(map)
}

/// `zpool status -j`.
pub fn status(pools: &[PoolReport], show: &pool_status::Options, options: &Options) -> String {
    let object = |pool: &PoolReport| status_of(pool, show, options);
    finish("zpool status", pools.iter().map(|pool| (pool, object(pool))).collect(), options)
}

fn status_of(pool: &PoolReport, show: &pool_status::Options, options: &Options) -> Object {
    let mut map = head(pool, options, false);
    if let Some(advice) = advice::pool_advice(pool) {
        map.insert("status".into(), json!(format!("{}\n", advice.status)));
        map.insert("action".into(), json!(format!("{}\n", advice.action)));
        if let Some(article) = advice.article {
            map.insert("msgid".into(), json!(article));
            map.insert("moreinfo".into(), json!(advice::article_address(article)));
        }
    }
    if let Some(scan) = &pool.scan {
        map.insert("scan_stats".into(), scan_stats(scan, options));
    }
    if !pool.rebuilds.is_empty() {
        let all = pool.rebuilds.iter().map(|one| (one.name.clone(), rebuild_stats(one, options)));
        map.insert("rebuild_stats".into(), Value::Object(all.collect()));
    }
    insert_activities(&mut map, pool, options);
    let tree = Tree { show, options };
    if options.flat {
        let mut flat = Object::new();
        tree.flatten(&mut flat, &pool.root, None, false);
        for (_, devices, spare) in sections(pool) {
            devices.iter().for_each(|vdev| tree.flatten(&mut flat, vdev, None, spare));
        }
        map.insert("vdevs".into(), Value::Object(flat));
    } else {
        let root = tree.device(&pool.root, None, false);
        map.insert("vdevs".into(), json!({ pool.name.clone(): root }));
        for (heading, devices, spare) in sections(pool) {
            let mut section = Object::new();
            for vdev in devices {
                let name = vdev_name::name(vdev, show.naming);
                section.insert(name, tree.device(vdev, None, spare));
            }
            map.insert(heading.to_owned(), Value::Object(section));
        }
    }
    if show.dedup {
        map.insert("dedup_stats".into(), dedup_stats(pool, options));
    }
    map.insert("error_count".into(), options.plain(pool.error_count));
    if show.verbose && !pool.errors.is_empty() {
        map.insert("errlist".into(), json!(pool.errors));
    }
    if pool.passing_errors > 0 {
        map.insert("passing_error_count".into(), options.plain(pool.passing_errors));
        if show.verbose {
            map.insert("passing_errlist".into(), json!(pool.passing));
        }
    }
    if pool.out_of_reach > 0 {
        map.insert("txgs_out_of_reach".into(), options.plain(pool.out_of_reach));
    }
    map
}

fn scan_state(state: ScanState) -> &'static str {
    match state {
        ScanState::Scanning => "SCANNING",
        ScanState::Finished => "FINISHED",
        ScanState::Canceled => "CANCELED",
    }
}

fn scan_stats(scan: &ScanReport, options: &Options) -> Value {
    let bytes = |value| options.number(value, Show::Bytes);
    let function = match scan.function {
        ScanFunction::Scrub => "SCRUB",
        ScanFunction::Resilver => "RESILVER",
        ScanFunction::ErrorScrub => "ERRORSCRUB",
    };
    let pause = match scan.paused {
        0 if options.integers => json!(0),
        0 if options.exact => json!("0"),
        0 => json!("-"),
        paused => options.time(paused),
    };
    let pass_start = u64::try_from(scan.pass_start).unwrap_or(0);
    let mut map = Object::new();
    map.insert("function".into(), json!(function));
    map.insert("state".into(), json!(scan_state(scan.state)));
    map.insert("start_time".into(), options.time(scan.start_time));
    map.insert("end_time".into(), options.time(scan.end_time));
    map.insert("to_examine".into(), bytes(scan.to_examine));
    map.insert("examined".into(), bytes(scan.examined));
    map.insert("skipped".into(), bytes(scan.skipped));
    map.insert("processed".into(), bytes(scan.processed));
    map.insert("errors".into(), options.plain(scan.errors));
    map.insert("bytes_per_scan".into(), bytes(scan.pass_examined));
    map.insert("pass_start".into(), options.plain(pass_start));
    map.insert("scrub_pause".into(), pause);
    map.insert("scrub_spent_paused".into(), options.plain(scan.spent_paused));
    map.insert("issued_bytes_per_scan".into(), bytes(scan.pass_issued));
    map.insert("issued".into(), bytes(scan.issued));
    Value::Object(map)
}

/// Our own form: OpenZFS shows nothing of rebuilds in JSON.
fn rebuild_stats(one: &RebuildReport, options: &Options) -> Value {
    let bytes = |value| options.number(value, Show::Bytes);
    json!({
        "state": scan_state(one.state),
        "start_time": options.time(one.start_time),
        "end_time": options.time(one.end_time),
        "scanned": bytes(one.scanned),
        "issued": bytes(one.issued),
        "rebuilt": bytes(one.rebuilt),
        "estimated": bytes(one.estimated),
        "errors": options.plain(one.errors),
    })
}

fn insert_activities(map: &mut Object, pool: &PoolReport, options: &Options) {
    let bytes = |value| options.number(value, Show::Bytes);
    if let Some(removal) = &pool.removal {
        let name = removal.name.split('-').next().unwrap_or(&removal.name);
        map.insert(
            "removal_stats".into(),
            json!({
                "name": if removal.state == ScanState::Finished { name } else { &removal.name },
                "state": scan_state(removal.state),
                "removing_vdev": options.plain(removal.vdev),
                "start_time": options.time(removal.start_time),
                "end_time": options.time(removal.end_time),
                "to_copy": bytes(removal.to_copy),
                "copied": bytes(removal.copied),
                "mapping_memory": bytes(removal.mapping_memory),
            }),
        );
    }
    if let Some(checkpoint) = &pool.checkpoint {
        map.insert(
            "checkpoint_stats".into(),
            json!({
                "state": if checkpoint.discarding { "DISCARDING" } else { "EXISTS" },
                "start_time": options.time(checkpoint.start_time),
                "space": bytes(checkpoint.space),
            }),
        );
    }
    if let Some(expansion) = &pool.expansion {
        map.insert(
            "raidz_expand_stats".into(),
            json!({
                "name": expansion.name,
                "state": scan_state(expansion.state),
                "expanding_vdev": options.plain(expansion.vdev),
                "start_time": options.time(expansion.start_time),
                "end_time": options.time(expansion.end_time),
                "to_reflow": bytes(expansion.to_reflow),
                "reflowed": bytes(expansion.reflowed),
                "waiting_for_resilver": options.plain(u64::from(expansion.waiting_for_resilver)),
            }),
        );
    }
    insert_jobs(map, pool, options);
}

/// Not in OpenZFS: what the pool does in the background, if it does something.
fn insert_jobs(map: &mut Object, pool: &PoolReport, options: &Options) {
    let bytes = |value| options.number(value, Show::Bytes);
    let job = |job: &JobReport| {
        let state = match job.state {
            JobState::Working => "WORKING",
            JobState::Paused => "PAUSED",
            JobState::Stuck => "STUCK",
        };
        let values = json!({
            "state": state,
            "done": bytes(job.done),
            "left": bytes(job.left),
            "rate": bytes(job.rate),
            "seconds_left": job.remaining.map(|seconds| options.plain(seconds)),
            "trouble": job.trouble,
        });
        (job.name.replace(' ', "_"), values)
    };
    if !pool.jobs.is_empty() {
        map.insert("jobs".into(), Value::Object(pool.jobs.iter().map(job).collect()));
    }
}

/// Builds the objects of a device tree.
struct Tree<'a> {
    show: &'a pool_status::Options,
    options: &'a Options,
}

impl Tree<'_> {
    fn device(&self, vdev: &VdevReport, parent: Option<&str>, spare: bool) -> Value {
        let options = self.options;
        let mut map = device_head(vdev, self.show.naming, options);
        let state =
            if spare { words::spare_state(vdev) } else { words::state(vdev.state, vdev.reason) };
        map.insert("state".into(), json!(state));
        if let Some(parent) = parent {
            map.insert("parent".into(), json!(parent));
        }
        if !spare {
            self.numbers(&mut map, vdev);
        }
        if vdev.not_present {
            map.insert("not_present".into(), options.plain(1));
            if let Some(path) = &vdev.path {
                map.insert("was".into(), json!(path));
            }
        } else if vdev.reason != crate::report::VdevReason::None && !spare {
            map.insert("aux".into(), json!(words::reason(vdev)));
        }
        if vdev.is_leaf() && vdev.kind != "root" {
            if self.show.initialize {
                initialize(&mut map, vdev.initialize, options);
            }
            if self.show.trim {
                trim(&mut map, vdev, options);
            }
        }
        let below = self.children(vdev, spare);
        if !below.is_empty() {
            map.insert("vdevs".into(), Value::Object(below));
        }
        Value::Object(map)
    }

    fn children(&self, vdev: &VdevReport, spare: bool) -> Object {
        let own = vdev_name::name(vdev, self.show.naming);
        let parent = self.options.flat.then_some(own.as_str());
        let mut below = Object::new();
        for child in shown_children(vdev) {
            if self.options.flat && vdev.kind == "root" {
                self.flatten(&mut below, child, parent, spare);
            } else {
                let name = vdev_name::name(child, self.show.naming);
                below.insert(name, self.device(child, parent, spare));
            }
        }
        below
    }

    /// Adds the devices below, then the device itself.
    fn flatten(&self, flat: &mut Object, vdev: &VdevReport, parent: Option<&str>, spare: bool) {
        let own = vdev_name::name(vdev, self.show.naming);
        for child in shown_children(vdev) {
            self.flatten(flat, child, Some(&own), spare);
        }
        flat.insert(own, self.device(vdev, parent, spare));
    }

    fn numbers(&self, map: &mut Object, vdev: &VdevReport) {
        let options = self.options;
        let sizes = [
            ("alloc_space", vdev.allocated),
            ("total_space", vdev.space),
            ("def_space", vdev.deflated_space),
            ("rep_dev_size", vdev.replacement_size),
            ("ex_dev_size", vdev.expandable),
            ("phys_space", vdev.physical_size),
        ];
        for (name, value) in sizes.into_iter().filter(|(_, value)| *value != 0) {
            map.insert(name.into(), options.number(value, Show::Bytes));
        }
        let count = |value| options.number(value, Show::Number);
        map.insert("read_errors".into(), count(vdev.read_errors));
        map.insert("write_errors".into(), count(vdev.write_errors));
        map.insert("checksum_errors".into(), count(vdev.checksum_errors));
        if vdev.checkpoint_space != 0 {
            let space = options.number(vdev.checkpoint_space, Show::Bytes);
            map.insert("checkpoint_space".into(), space);
        }
        if vdev.is_leaf() && vdev.kind != "root" {
            map.insert("slow_ios".into(), count(vdev.slow_operations));
        }
        if vdev.removing {
            map.insert("removing".into(), options.plain(1));
        } else if vdev.non_allocating {
            map.insert("noalloc".into(), options.plain(1));
        }
        if vdev.awaiting_resilver {
            map.insert("resilver_deferred".into(), options.plain(1));
        }
        if vdev.missed != 0 {
            map.insert("missed_txgs".into(), count(vdev.missed));
        }
    }
}

pub(super) fn shown_children(vdev: &VdevReport) -> impl Iterator<Item = &VdevReport> {
    let root = vdev.kind == "root";
    let below = vdev.children.iter().filter(|child| vdev_name::is_shown(child));
    below.filter(move |child| !root || child.class == VdevClass::Normal)
}

fn activity_word(activity: Option<Activity>, never: &'static str) -> &'static str {
    match activity.map(|activity| activity.state) {
        None => never,
        Some(ActivityState::Active) => "ACTIVE",
        Some(ActivityState::Canceled) => "CANCELED",
        Some(ActivityState::Suspended) => "SUSPENDED",
        Some(ActivityState::Complete) => "COMPLETE",
    }
}

fn initialize(map: &mut Object, activity: Option<Activity>, options: &Options) {
    map.insert("init_state".into(), json!(activity_word(activity, "UNINITIALIZED")));
    if let Some(activity) = activity {
        map.insert("initialized".into(), options.number(activity.done, Show::Bytes));
        map.insert("to_initialize".into(), options.number(activity.total, Show::Bytes));
        map.insert("init_time".into(), options.time(activity.time));
        map.insert("init_errors".into(), options.plain(0));
    }
}

fn trim(map: &mut Object, vdev: &VdevReport, options: &Options) {
    map.insert("trim_state".into(), json!(activity_word(vdev.trim, "UNTRIMMED")));
    if let Some(activity) = vdev.trim {
        map.insert("trimmed".into(), options.number(activity.done, Show::Bytes));
        map.insert("to_trim".into(), options.number(activity.total, Show::Bytes));
        map.insert("trim_time".into(), options.time(activity.time));
        map.insert("trim_errors".into(), options.plain(0));
    }
    map.insert("trim_notsup".into(), options.plain(u64::from(!vdev.trim_supported)));
}

fn dedup_stats(pool: &PoolReport, options: &Options) -> Value {
    let Some(dedup) = &pool.dedup else {
        return json!({ "obj_count": options.plain(0), "ddt_object_stats": {} });
    };
    let row = |bucket: &crate::report::DedupBucket| {
        let bytes = |value: u64| options.number(value, Show::Bytes);
        let ([lsize, psize, dsize], [ref_lsize, ref_psize, ref_dsize]) =
            (bucket.sizes, bucket.referenced_sizes);
        json!({
            "blocks": options.plain(bucket.blocks),
            "logical_size": bytes(lsize),
            "physical_size": bytes(psize),
            "deflated_size": bytes(dsize),
            "ref_blocks": options.plain(bucket.referenced_blocks),
            "ref_lsize": bytes(ref_lsize),
            "ref_psize": bytes(ref_psize),
            "ref_dsize": bytes(ref_dsize),
        })
    };
    let mut histogram = Object::new();
    for bucket in &dedup.histogram {
        histogram.insert(bucket.refcount.checked_ilog2().unwrap_or(0).to_string(), row(bucket));
    }
    json!({
        "obj_count": options.plain(dedup.entries),
        "dspace": options.number(dedup.disk_bytes, Show::Bytes),
        "mspace": options.number(dedup.memory_bytes, Show::Bytes),
        "cspace": options.plain(0),
        "ddt_stats": { "total": row(&dedup.total()), "histogram": histogram },
    })
}
