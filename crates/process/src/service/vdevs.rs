//! From the engine's vdevs to the report of them.
//!
//! Invariant: inner nodes are named as `zpool` names them; leaves keep their path.

use cenote_control::report::{IoCounters, IoDetail, VdevClass, VdevReason, VdevReport, VdevState};
use cenote_engine::pool::naming::interior_name;
use cenote_engine::pool::space::PoolSpace;
use cenote_engine::vdev::{self, AllocationClass, Aux, VdevStatus};
use cenote_format::config::{VdevConfig, VdevKind};

/// The report of `status` and everything below it.
pub fn report(status: &VdevStatus, pool: &str, space: Option<&PoolSpace>) -> VdevReport {
    node(status, pool, space, (0, 0))
}

/// How deep it lies, and log2 of the block size of the vdev above, come last.
fn node(
    status: &VdevStatus,
    pool: &str,
    space: Option<&PoolSpace>,
    (depth, ashift): (u32, u64),
) -> VdevReport {
    let config = &status.config;
    let ashift = config.top.map_or(ashift, |top| top.ashift);
    let below = |child| node(child, pool, space, (depth + 1, ashift));
    let children: Vec<VdevReport> = status.children.iter().map(below).collect();
    let top = space
        .filter(|_| depth == 1)
        .and_then(|space| space.tops.iter().find(|top| config.id == Some(u64::from(top.id))));
    let own = match (depth, space) {
        (0, Some(space)) => Some((space.size(), space.allocated(), space.fragmentation())),
        _ => top.map(|top| (top.size, top.allocated, top.fragmentation)),
    };
    let stats = &status.stats;
    let (size, allocated, fragmentation) = own.unwrap_or((0, 0, None));
    VdevReport {
        name: if depth == 0 { pool.to_owned() } else { name(config, status.children.len()) },
        kind: config.kind.name().to_owned(),
        path: config.path.clone(),
        whole_disk: config.whole_disk == Some(true),
        guid: config.guid.0,
        class: class(status.class),
        state: state(status.condition.state),
        reason: reason(status.condition.aux),
        // The configuration may say so of one that is back.
        not_present: config.not_present && !status.condition.state.is_readable(),
        read_errors: stats.read_errors,
        write_errors: stats.write_errors,
        checksum_errors: stats.checksum_errors,
        slow_operations: stats.slow,
        allocated,
        space: size,
        deflated_space: size,
        fragmentation,
        checkpoint_space: top.map_or(0, |top| top.checkpoint),
        non_allocating: config.top.is_some_and(|top| top.non_allocating.unwrap_or(0) != 0),
        mapping_estimate: top.and_then(|top| top.mapping_estimate),
        removing: config.top.is_some_and(|top| top.removing.unwrap_or(0) != 0),
        awaiting_resilver: config.resilver_defer
            || status.missed > 0 && status.condition.state.is_readable(),
        // As long as a resilver goes on.
        resilvering: status.missed > 0
            && status.condition.state.is_readable()
            && !config.resilver_defer,
        missed: status.missed,
        configured_ashift: ashift,
        counters: IoCounters {
            reads: stats.reads,
            read_bytes: stats.bytes,
            writes: stats.writes,
            write_bytes: stats.bytes_written,
        },
        allocatable: status.asize,
        expandable: status.expandable,
        parity: match config.kind {
            VdevKind::Raidz | VdevKind::Draid => config.nparity.unwrap_or(1),
            _ => 0,
        },
        reads: detail(stats.nanos, &stats.latency, &stats.sizes, stats.reading),
        writes: detail(stats.write_nanos, &stats.write_latency, &stats.write_sizes, stats.writing),
        children,
        ..VdevReport::default()
    }
}

fn detail(wait_nanoseconds: u64, waits: &[u64], sizes: &[u64], active: u64) -> IoDetail {
    let used = |histogram: &[u64]| {
        let end = histogram.iter().rposition(|count| *count != 0).map_or(0, |last| last + 1);
        histogram.iter().take(end).copied().collect()
    };
    IoDetail { wait_nanoseconds, waits: used(waits), sizes: used(sizes), active }
}

/// What an inner vdev or a distributed spare is called.
pub fn name(config: &VdevConfig, children: usize) -> String {
    match config.kind {
        VdevKind::DistributedSpare => config.path.clone().unwrap_or_default(),
        _ => interior_name(config, children),
    }
}

fn class(class: AllocationClass) -> VdevClass {
    match class {
        AllocationClass::Normal => VdevClass::Normal,
        AllocationClass::Log => VdevClass::Log,
        AllocationClass::Special => VdevClass::Special,
        AllocationClass::Dedup => VdevClass::Dedup,
    }
}

/// The state as the report has it.
pub fn state(state: vdev::VdevState) -> VdevState {
    match state {
        vdev::VdevState::Closed => VdevState::Closed,
        vdev::VdevState::Offline => VdevState::Offline,
        vdev::VdevState::Removed => VdevState::Removed,
        vdev::VdevState::Unavailable => VdevState::CannotOpen,
        vdev::VdevState::Faulted => VdevState::Faulted,
        vdev::VdevState::Degraded => VdevState::Degraded,
        vdev::VdevState::Online => VdevState::Online,
    }
}

/// The reason as the report has it.
pub fn reason(aux: Aux) -> VdevReason {
    match aux {
        Aux::None => VdevReason::None,
        Aux::OpenFailed => VdevReason::OpenFailed,
        Aux::CorruptData => VdevReason::CorruptData,
        Aux::NoReplicas => VdevReason::NoReplicas,
        Aux::BadGuidSum => VdevReason::BadGuidSum,
        Aux::TooSmall => VdevReason::TooSmall,
        Aux::BadLabel => VdevReason::BadLabel,
        Aux::VersionNewer => VdevReason::VersionNewer,
        Aux::VersionOlder => VdevReason::VersionOlder,
        Aux::UnsupportedFeature => VdevReason::UnsupportedFeature,
        Aux::Spared => VdevReason::Spared,
        Aux::ErrorsExceeded => VdevReason::ErrorsExceeded,
        Aux::IoFailure => VdevReason::IoFailure,
        Aux::BadLog => VdevReason::BadLog,
        Aux::External => VdevReason::External,
        Aux::SplitPool => VdevReason::SplitPool,
        Aux::BadAshift => VdevReason::BadAshift,
        Aux::Active => VdevReason::Active,
        Aux::ExternalPersistent => VdevReason::ExternalPersistent,
        Aux::ChildrenOffline => VdevReason::ChildrenOffline,
    }
}

/// A device of the list of spares or cache devices.
pub fn auxiliary(config: &VdevConfig, class: VdevClass, present: bool) -> VdevReport {
    let leafless = config.kind == VdevKind::DistributedSpare;
    let state = if present || leafless { VdevState::Online } else { VdevState::CannotOpen };
    let reason = if state == VdevState::Online { VdevReason::None } else { VdevReason::OpenFailed };
    VdevReport {
        name: name(config, 0),
        kind: config.kind.name().to_owned(),
        path: config.path.clone(),
        whole_disk: config.whole_disk == Some(true),
        guid: config.guid.0,
        class,
        state,
        reason,
        ..VdevReport::default()
    }
}
