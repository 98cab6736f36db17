//! What `zpool list`, `status`, `get` and `iostat` show, published.
//!
//! Invariant: everything that has to be read is read when it is published; what is added when somebody
//! looks (states, counters) is in memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use cenote_control::report::{
    CheckpointReport, DedupBucket, DedupReport, ExpansionReport, PoolReport, PoolStatus,
    Properties, RemovalReport, ScanFunction, ScanReport, ScanState, Source, VdevClass, VdevReason,
    VdevReport, VdevState,
};
use cenote_engine::Result;
use cenote_engine::alloc::CHECKPOINT;
use cenote_engine::dataset::{self, PropertyValue};
use cenote_engine::pool::Pool;
use cenote_engine::pool::group::{ExpansionProgress, ScanProgress};
use cenote_engine::pool::host::HostIdentity;
use cenote_engine::pool::import_status::EARLY_ENCRYPTION;
use cenote_engine::pool::properties::{self, Runtime};
use cenote_engine::pool::space::{DedupTables, PoolSpace};
use cenote_engine::vdev::LeafDevice;
use cenote_engine::zap::Zap;
use cenote_format::config::{PoolState, VdevConfig, VdevKind};
use cenote_format::ddt::Statistics;
use cenote_format::indirect_mapping::RemovalState;
use cenote_format::uberblock::Uberblock;
use cenote_format::{Guid, ObjectId, nvlist, scan_state};

use super::activities::Activities;
use super::changes::Suspended;
use super::troubles::Troubles;
use super::{rebuilds, spares, vdevs};

/// Largest packed list that is believed, in bytes.
const MAX_LIST: u64 = 16 << 20;

/// What a pool's report says that has to be read.
pub struct PoolFacts {
    fixed: PoolReport,
    activities: Activities,
    /// Bytes of files that are spares or cache devices, by guid.
    sizes: BTreeMap<u64, u64>,
    opened: Instant,
}

impl PoolFacts {
    /// Reads what a report needs; `space` is the pool's.
    pub fn read(pool: &Pool, runtime: &Runtime, space: &PoolSpace) -> Result<Self> {
        let directory = Zap::open(pool.mos().object(ObjectId(1))?)?;
        let words = |key: &str| -> Result<Option<Vec<u64>>> {
            Ok(directory.lookup(key.as_bytes())?.map(|value| value.as_u64s().unwrap_or_default()))
        };
        let tree = pool.config().vdev_tree.clone();
        let scan = words("scan")?.and_then(|words| scan_report(&words));
        let removal = words("com.delphix:removing")?
            .and_then(|words| removal_report(&words, tree.as_ref(), pool));
        let held = space.checkpoint;
        let checkpoint = match words(CHECKPOINT)? {
            Some(words) => Uberblock::from_words(&words).ok().map(|saved| CheckpointReport {
                discarding: false,
                start_time: i64::try_from(saved.timestamp).unwrap_or(0),
                space: held.unwrap_or(0),
            }),
            None => held.map(|space| CheckpointReport { discarding: true, start_time: 0, space }),
        };
        let values = properties::all(&pool.catalog(), &pool.config(), space, runtime)?;
        let fixed = PoolReport {
            name: pool.name().to_owned(),
            guid: pool.guid().0,
            is_of_another_host: !pool.is_written() && is_of_another_host(pool),
            txg: pool.uberblock().txg.0,
            pool_version: pool.uberblock().version,
            filesystem_version: 5,
            scan,
            removal,
            checkpoint,
            expansion: tree.as_ref().and_then(|tree| expansion_report(tree, pool)),
            rebuilds: tree.as_ref().map_or(Vec::new(), |tree| rebuilds::read(pool, tree)),
            error_scrub: words("error_scrub")?.and_then(|words| error_scrub_report(&words)),
            caches: list(pool, &directory, "l2cache", VdevClass::Cache)?,
            spares: list(pool, &directory, "spares", VdevClass::Spare)?,
            dedup: dedup_report(&space.dedup_tables),
            properties: convert(values),
            ..PoolReport::default()
        };
        let fixed = PoolReport { errata: errata(pool, &fixed.properties), ..fixed };
        let activities = Activities::read(pool, tree.as_ref());
        let aside = fixed.caches.iter().chain(&fixed.spares);
        let sizes = aside.filter_map(|vdev| Some((vdev.guid, size_of_file(vdev)?))).collect();
        Ok(Self { fixed, activities, sizes, opened: Instant::now() })
    }

    /// The same, counting time from when `before` began to.
    pub fn since(self, before: &Self) -> Self {
        Self { opened: before.opened, ..self }
    }

    /// The report as of now, with the states and counters of the devices; `mounted` tells where a dataset
    /// is mounted.
    pub fn now(
        &self,
        pool: &Pool,
        space: &PoolSpace,
        troubles: &Troubles,
        mounted: impl Fn(&str) -> Option<PathBuf>,
    ) -> PoolReport {
        let mut report = self.fixed.clone();
        troubles.put(pool, &mut report, mounted);
        let beyond = pool.vdevs().out_of_reach().into_iter();
        let groups = beyond.map(|range| range.end.min(report.txg + 1).saturating_sub(range.start));
        report.out_of_reach = groups.fold(0, u64::saturating_add);
        if let Some(status) = pool.vdevs().status() {
            report.root = vdevs::report(&status, pool.name(), Some(space));
        }
        let open = pool.vdevs().devices();
        self.set_sizes(&mut report.root, pool, &open);
        self.activities.put(&mut report.root);
        let aside = report.caches.iter_mut().chain(&mut report.spares);
        aside.for_each(|vdev| self.set_sizes(vdev, pool, &open));
        spares::mark(&mut report);
        let expandable = report.root.children.iter().map(|top| top.expandable);
        report.root.expandable = expandable.fold(0, u64::saturating_add);
        if report.root.expandable > 0 {
            let bytes = report.root.expandable.to_string();
            report.properties.set("expandsize", &bytes, Source::None);
        }
        report.state = report.root.state;
        report.status = status(&report);
        report.uptime_nanoseconds =
            u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let health = match report.state {
            VdevState::Closed | VdevState::CannotOpen => "UNAVAIL",
            VdevState::Offline => "OFFLINE",
            VdevState::Removed => "REMOVED",
            VdevState::Faulted => "FAULTED",
            VdevState::Degraded => "DEGRADED",
            VdevState::Online => "ONLINE",
        };
        report.properties.set("health", health, Source::None);
        report
    }

    /// Gives every leaf that was found what its device is like, and marks those that were not.
    fn set_sizes(&self, vdev: &mut VdevReport, pool: &Pool, open: &[LeafDevice]) {
        let guid = Guid(vdev.guid);
        let found = pool.candidate().and_then(|candidate| candidate.device_of(guid));
        // A pool that was made here has no candidate, and what was added since is not in it.
        let own = open.iter().find(|leaf| leaf.guid == guid);
        let size = own.map(|leaf| leaf.device.size());
        let size = size.or_else(|| found.map(|found| found.device.size()));
        let size = size.or_else(|| self.sizes.get(&vdev.guid).copied());
        // What was taken offline or is faulty is not opened, so that nobody knows its size.
        let is_open = matches!(vdev.state, VdevState::Online | VdevState::Degraded);
        if let Some(size) = size.filter(|_| vdev.is_leaf() && is_open) {
            vdev.physical_size = size;
            let device = own.map(|leaf| &leaf.device).or(found.map(|found| &found.device));
            let sector = device.map_or(0, |device| device.physical_sector_size());
            vdev.physical_ashift = sector.checked_ilog2().map_or(0, u64::from);
            vdev.allocatable = cenote_engine::vdev::allocatable(vdev.physical_size);
            let can = own.map(|leaf| leaf.device.can_trim());
            let can = can.or_else(|| found.map(|found| found.device.can_trim()));
            vdev.trim_supported = can.unwrap_or(true);
            if vdev.class == VdevClass::Cache {
                // Nothing is kept on it, and its header takes a sector.
                vdev.space = vdev.allocatable.saturating_sub(CACHE_HEADER);
                vdev.deflated_space = vdev.space;
                vdev.fragmentation = Some(0);
            }
        }
        // One that was there when the pool was opened, was made with it, or came since keeps its name when it is lost.
        let is_lost = vdev.state == VdevState::CannotOpen && vdev.kind != "dspare";
        let may_be = is_lost && found.is_none() && vdev.path.is_some() && vdev.is_leaf();
        let candidate = pool.candidate().filter(|_| may_be);
        vdev.not_present |=
            candidate.is_some_and(|candidate| candidate.tree.walk().any(|node| node.guid == guid));
        vdev.children.iter_mut().for_each(|child| self.set_sizes(child, pool, open));
    }
}

/// Whether another host had the pool last and did not export it.
fn is_of_another_host(pool: &Pool) -> bool {
    let host = HostIdentity::of_this_machine();
    pool.candidate().is_some_and(|candidate| {
        candidate.state == PoolState::Active && candidate.hostid != 0 && candidate.hostid != host.id
    })
}

/// The damage by an old release that the pool has, by its number; 0: none.
fn errata(pool: &Pool, properties: &Properties) -> u32 {
    let recorded = pool.config().errata.filter(|number| *number != 0);
    let is_enabled = |name| properties.value(name).is_some_and(|state| state != "disabled");
    let is_early = is_enabled("feature@encryption") && !is_enabled("feature@bookmark_v2");
    let number = recorded.or(is_early.then_some(EARLY_ENCRYPTION)).unwrap_or(0);
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Bytes of a spare or cache device that is a file.
fn size_of_file(vdev: &VdevReport) -> Option<u64> {
    let file = std::fs::metadata(vdev.path.as_deref()?).ok()?;
    file.is_file().then_some(file.len())
}

/// Says that the pool is suspended, and how changes are treated meanwhile.
pub fn suspend(report: &mut PoolReport, how: Suspended) {
    report.suspended = true;
    report.status = match how {
        Suspended::Waiting => PoolStatus::IoFailureWait,
        Suspended::Refusing => PoolStatus::IoFailureContinue,
        Suspended::Unseen => PoolStatus::IoFailureMultihost,
    };
    report.properties.set("health", "SUSPENDED", Source::None);
}

/// Bytes at the start of a cache device that hold no data.
const CACHE_HEADER: u64 = 512;

/// Properties of the engine as the report has them.
pub fn convert(values: Vec<PropertyValue>) -> Properties {
    let mut out = Properties::default();
    for value in values {
        let text = value.parsable();
        let source = match &value.source {
            dataset::Source::Default => Source::Default,
            dataset::Source::Local => Source::Local,
            dataset::Source::Inherited(from) => Source::Inherited(from.clone()),
            dataset::Source::Received => Source::Received,
            dataset::Source::Temporary => Source::Temporary,
            dataset::Source::None => Source::None,
        };
        let received = value
            .received
            .clone()
            .map(|received| PropertyValue { value: received, ..value.clone() }.parsable());
        out.0.push(cenote_control::report::Property {
            name: value.name,
            value: text,
            source,
            received,
        });
    }
    out
}

fn list(pool: &Pool, directory: &Zap, key: &str, class: VdevClass) -> Result<Vec<VdevReport>> {
    let Some(number) = directory.lookup_u64(key)?.filter(|number| *number != 0) else {
        return Ok(Vec::new());
    };
    let packed = cenote_engine::pool::packed::read(&pool.mos(), ObjectId(number), MAX_LIST)?;
    let entries: &[nvlist::NvList] = packed.nvlist_array(key).unwrap_or(&[]);
    let mut out = Vec::new();
    for entry in entries {
        let mut config = VdevConfig::from_nvlist(entry)?;
        let found = pool.candidate().and_then(|candidate| candidate.device_of(config.guid));
        if let Some(found) = found {
            let path = found.path(config.path.as_deref());
            config.path = Some(path.display().to_string());
        }
        // One that was added since has not been looked for.
        let path = config.path.as_deref().map(std::path::Path::new);
        let present = found.is_some() || path.is_some_and(std::path::Path::exists);
        out.push(vdevs::auxiliary(&config, class, present));
    }
    Ok(out)
}

fn error_scrub_report(words: &[u64]) -> Option<ScanReport> {
    let state = scan_state::ErrorScrubState::from_words(words).ok()?;
    error_scrub_of(&state)
}

/// What a scrub of the error log tells.
pub fn error_scrub_of(state: &scan_state::ErrorScrubState) -> Option<ScanReport> {
    if state.function != scan_state::ScanFunction::ErrorScrub {
        return None;
    }
    let phase = match state.phase {
        scan_state::ScanPhase::Finished => ScanState::Finished,
        scan_state::ScanPhase::Cancelled => ScanState::Canceled,
        scan_state::ScanPhase::ErrorScrubbing => ScanState::Scanning,
        _ => return None,
    };
    let seconds = |time: u64| i64::try_from(time).unwrap_or(0);
    Some(ScanReport {
        function: ScanFunction::ErrorScrub,
        state: phase,
        start_time: seconds(state.start_time),
        end_time: seconds(state.end_time),
        to_examine: state.to_examine,
        examined: state.examined,
        skipped: 0,
        processed: 0,
        errors: state.errors,
        pass_examined: 0,
        issued: state.examined,
        pass_issued: 0,
        pass_start: seconds(state.start_time),
        paused: if state.is_paused() { seconds(state.start_time) } else { 0 },
        spent_paused: 0,
        recent_rate: None,
    })
}

fn scan_report(words: &[u64]) -> Option<ScanReport> {
    scan_of(&scan_state::ScanState::from_words(words).ok()?)
}

/// What a scan tells beyond what the groups record of it; `recent_rate`: bytes per second, lately, if known.
pub fn add_scan(report: &mut PoolReport, progress: &ScanProgress, recent_rate: Option<u64>) {
    let Some(scan) = progress.record.as_ref().and_then(scan_of) else { return };
    let seconds = |time: u64| i64::try_from(time).unwrap_or(0);
    let now = ScanReport {
        pass_examined: progress.pass_examined,
        examined: scan.examined.max(progress.issued),
        issued: progress.issued,
        pass_issued: progress.pass_issued,
        pass_start: seconds(progress.pass_start),
        paused: seconds(progress.paused),
        spent_paused: progress.spent_paused,
        recent_rate,
        ..scan
    };
    if scan.state == ScanState::Scanning {
        report.scan = Some(now);
        report.status = status(report);
    }
}

/// What an expansion under way tells beyond what the groups record of it.
pub fn add_expansion(report: &mut PoolReport, progress: &ExpansionProgress) {
    if let Some(own) = report.expansion.as_mut().filter(|own| own.state == ScanState::Scanning) {
        own.reflowed = own.reflowed.max(progress.moved);
        own.to_reflow = progress.in_use.max(own.reflowed);
        own.waiting_for_resilver = progress.waits;
    }
}

/// When the scrub of the error log pauses, nothing on the disks says since when.
pub fn add_error_scrub(report: &mut PoolReport, paused: u64) {
    if let Some(scan) = report.error_scrub.as_mut().filter(|scan| scan.paused != 0) {
        scan.paused = i64::try_from(paused).unwrap_or(0).max(1);
    }
}

fn scan_of(state: &scan_state::ScanState) -> Option<ScanReport> {
    let function = match state.function {
        scan_state::ScanFunction::Scrub => ScanFunction::Scrub,
        scan_state::ScanFunction::Resilver => ScanFunction::Resilver,
        scan_state::ScanFunction::ErrorScrub => ScanFunction::ErrorScrub,
        _ => return None,
    };
    let phase = match state.phase {
        scan_state::ScanPhase::Finished => ScanState::Finished,
        scan_state::ScanPhase::Cancelled => ScanState::Canceled,
        _ => ScanState::Scanning,
    };
    let seconds = |time: u64| i64::try_from(time).unwrap_or(0);
    Some(ScanReport {
        function,
        state: phase,
        start_time: seconds(state.start_time),
        end_time: seconds(state.end_time),
        to_examine: state.to_examine,
        examined: state.examined,
        skipped: state.skipped,
        processed: state.processed,
        errors: state.errors,
        pass_examined: 0,
        issued: state.examined,
        pass_issued: 0,
        pass_start: seconds(state.start_time),
        paused: i64::from(state.is_paused()),
        spent_paused: 0,
        recent_rate: None,
    })
}

fn removal_report(words: &[u64], tree: Option<&VdevConfig>, pool: &Pool) -> Option<RemovalReport> {
    let state = RemovalState::from_words(words).ok()?;
    let phase = match state.state {
        1 => ScanState::Scanning,
        2 => ScanState::Finished,
        3 => ScanState::Canceled,
        _ => return None,
    };
    let id = state.vdev?;
    let top = tree?.children().get(usize::try_from(id).ok()?)?;
    let mapping_memory: u64 = tree?
        .children()
        .iter()
        .filter(|top| top.kind == VdevKind::Indirect)
        .filter_map(|top| {
            let objects = top.indirect?;
            let dnode = pool.mos().dnode(objects.mapping).ok()?;
            let header = cenote_format::indirect_mapping::MappingHeader::decode(dnode.bonus());
            Some(header.ok()?.entries.saturating_mul(24))
        })
        .sum();
    Some(RemovalReport {
        state: phase,
        vdev: id,
        name: removed_name(top),
        start_time: i64::try_from(state.start_time).unwrap_or(0),
        end_time: i64::try_from(state.end_time).unwrap_or(0),
        to_copy: state.to_copy,
        copied: state.copied,
        mapping_memory,
    })
}

/// What OpenZFS calls a top-level vdev in the lines about its removal: `mirror`, or the path of a disk.
fn removed_name(top: &VdevConfig) -> String {
    match (top.kind, &top.path) {
        (VdevKind::Mirror, _) => top.kind.name().to_owned(),
        (VdevKind::Disk | VdevKind::File, Some(path)) => path.clone(),
        _ => vdevs::name(top, top.children().len()),
    }
}

/// The raidz expansion that runs, or the last one: each top-level vdev keeps a record of its own.
fn expansion_report(tree: &VdevConfig, pool: &Pool) -> Option<ExpansionReport> {
    let of = |id: u64, top: &VdevConfig| {
        let zap = Zap::open(pool.mos().object(top.top_zap?).ok()?).ok()?;
        let number = |key: &str| zap.lookup_u64(&format!("org.openzfs:raidz_expand_{key}")).ok()?;
        let state = match number("state")? {
            1 => ScanState::Scanning,
            2 => ScanState::Finished,
            _ => return None,
        };
        let time = |key: &str| number(key).and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
        let reflowed = number("bytes_copied").unwrap_or(0);
        Some(ExpansionReport {
            state,
            name: vdevs::name(top, top.children().len()),
            vdev: id,
            start_time: time("start_time"),
            end_time: time("end_time"),
            to_reflow: reflowed,
            reflowed,
            waiting_for_resilver: false,
        })
    };
    let all = (0..).zip(tree.children()).filter_map(|(id, top)| of(id, top));
    all.max_by_key(|expansion| (expansion.state == ScanState::Scanning, expansion.end_time))
}

/// The dedup tables as `zpool status -D` shows them.
fn dedup_report(tables: &DedupTables) -> Option<DedupReport> {
    let entries = tables.entries;
    let row = |(power, row): (u32, &Statistics)| DedupBucket {
        refcount: 1_u64.checked_shl(power).unwrap_or(u64::MAX),
        blocks: row.blocks,
        sizes: [row.lsize, row.psize, row.dsize],
        referenced_blocks: row.referenced_blocks,
        referenced_sizes: [row.referenced_lsize, row.referenced_psize, row.referenced_dsize],
    };
    let rows = (0..).zip(&tables.histogram).filter(|(_, row)| row.blocks > 0);
    (entries > 0).then(|| DedupReport {
        entries,
        disk_bytes: tables.disk_bytes,
        memory_bytes: tables.memory_bytes,
        histogram: rows.map(row).collect(),
    })
}

/// What `zpool status` has to explain, by OpenZFS's order of urgency.
pub(super) fn status(report: &PoolReport) -> PoolStatus {
    use VdevReason::{BadLabel, CorruptData, OpenFailed};
    let mut leaves = Vec::new();
    collect(&report.root, &mut leaves);
    let any = |test: &dyn Fn(&VdevReport) -> bool| leaves.iter().any(|leaf| test(leaf));
    let is = |state: VdevState| any(&|leaf| leaf.state == state);
    let no_replicas = report.root.state < VdevState::Degraded;
    let cannot_open = |leaf: &VdevReport| leaf.state == VdevState::CannotOpen;
    let scan = report.scan.filter(|scan| scan.state == ScanState::Scanning);
    let faulted = || is(VdevState::Faulted);
    let missing = || any(&|leaf| cannot_open(leaf) && leaf.reason == OpenFailed);
    let bad_label =
        || any(&|leaf| cannot_open(leaf) && matches!(leaf.reason, BadLabel | CorruptData));
    let lost = report.error_count.saturating_sub(report.passing_errors);
    let missed = leaves.iter().filter(|leaf| leaf.state >= VdevState::Degraded);
    let missed = missed.map(|leaf| leaf.missed).max().unwrap_or(0);
    let errors =
        |leaf: &VdevReport| leaf.read_errors + leaf.write_errors + leaf.checksum_errors > 0;
    let rebuilt = report.rebuilds.iter().filter(|one| one.state != ScanState::Scanning);
    let rebuilt = rebuilt.map(|one| one.end_time).max().unwrap_or(0);
    let scrub = report.scan.filter(|scan| scan.function == ScanFunction::Scrub);
    let conditions: [(PoolStatus, &dyn Fn() -> bool); 18] = [
        (PoolStatus::Resilvering, &|| {
            scan.is_some_and(|scan| scan.function == ScanFunction::Resilver)
        }),
        (PoolStatus::Rebuilding, &|| {
            report.rebuilds.iter().any(|one| one.state == ScanState::Scanning)
        }),
        (PoolStatus::RebuildScrub, &|| {
            rebuilt > 0 && scrub.is_none_or(|scrub| scrub.start_time < rebuilt)
        }),
        (PoolStatus::HostMismatch, &|| report.is_of_another_host),
        (PoolStatus::FaultedDeviceNoReplicas, &|| no_replicas && faulted()),
        (PoolStatus::MissingDeviceNoReplicas, &|| no_replicas && missing()),
        (PoolStatus::CorruptLabelNoReplicas, &|| no_replicas && bad_label()),
        (PoolStatus::CorruptData, &|| lost > 0),
        // The next ones say that all is there.
        (PoolStatus::OutOfReach(report.out_of_reach), &|| {
            report.out_of_reach > 0 || report.passing_errors > 0
        }),
        (PoolStatus::FaultedDevice, &faulted),
        (PoolStatus::MissingDevice, &missing),
        (PoolStatus::CorruptLabel, &bad_label),
        (PoolStatus::MissedWrites(missed), &|| missed > 0),
        (PoolStatus::FailingDevice, &|| is(VdevState::Degraded) || any(&errors)),
        (PoolStatus::OfflineDevice, &|| is(VdevState::Offline)),
        (PoolStatus::RemovedDevice, &|| is(VdevState::Removed)),
        // It does not answer.
        (PoolStatus::MissingDevice, &|| !no_replicas && any(&cannot_open)),
        (PoolStatus::MissingDeviceNoReplicas, &|| no_replicas),
    ];
    let first = conditions.into_iter().find(|(_, holds)| holds());
    first.map_or(PoolStatus::Healthy, |(status, _)| status)
}

fn collect<'a>(vdev: &'a VdevReport, out: &mut Vec<&'a VdevReport>) {
    if vdev.is_leaf() {
        out.push(vdev);
    }
    for child in &vdev.children {
        collect(child, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leaf in this state, with this reason.
    fn leaf(state: VdevState, reason: VdevReason) -> VdevReport {
        VdevReport { kind: "file".into(), state, reason, ..VdevReport::default() }
    }

    fn of(state: VdevState, children: Vec<VdevReport>) -> PoolReport {
        let root = VdevReport { kind: "root".into(), state, children, ..VdevReport::default() };
        PoolReport { state, root, pool_version: 5000, ..PoolReport::default() }
    }

    #[test]
    fn who_else_may_have_the_pool_is_said() {
        let well = of(VdevState::Online, vec![leaf(VdevState::Online, VdevReason::None)]);
        let mut late = well.clone();
        suspend(&mut late, Suspended::Unseen);
        assert_eq!(late.status, PoolStatus::IoFailureMultihost);
        suspend(&mut late, Suspended::Refusing);
        assert_eq!((late.status, late.suspended), (PoolStatus::IoFailureContinue, true));
        let theirs = PoolReport { is_of_another_host: true, ..well };
        assert_eq!(status(&theirs), PoolStatus::HostMismatch);
    }

    #[test]
    fn what_is_most_urgent_is_said() {
        use VdevState::{CannotOpen, Degraded, Online};
        let well = || leaf(Online, VdevReason::None);
        let wiped = || leaf(CannotOpen, VdevReason::BadLabel);
        let gone = || leaf(CannotOpen, VdevReason::OpenFailed);
        let behind = || VdevReport { missed: 3, ..leaf(Degraded, VdevReason::None) };
        assert_eq!(status(&of(Online, vec![well(), well()])), PoolStatus::Healthy);
        assert_eq!(status(&of(Degraded, vec![wiped(), well()])), PoolStatus::CorruptLabel);
        assert_eq!(status(&of(Degraded, vec![wiped(), gone()])), PoolStatus::MissingDevice);
        assert_eq!(status(&of(CannotOpen, vec![gone()])), PoolStatus::MissingDeviceNoReplicas);
        assert_eq!(status(&of(Degraded, vec![behind(), well()])), PoolStatus::MissedWrites(3));
        // Errors that were cleared or not: what it misses stays.
        let worn = VdevReport { checksum_errors: 1, ..behind() };
        assert_eq!(status(&of(Degraded, vec![worn, well()])), PoolStatus::MissedWrites(3));
        // What only the missing device has must not be called there.
        let beyond = PoolReport { out_of_reach: 2, ..of(Degraded, vec![behind(), gone()]) };
        assert_eq!(status(&beyond), PoolStatus::OutOfReach(2));
        let passing = PoolReport { error_count: 4, passing_errors: 4, ..beyond.clone() };
        assert_eq!(status(&passing), PoolStatus::OutOfReach(2));
        let lost = PoolReport { passing_errors: 3, ..passing };
        assert_eq!(status(&lost), PoolStatus::CorruptData);
        assert_eq!(status(&of(Degraded, vec![behind(), gone()])), PoolStatus::MissingDevice);
    }
}
