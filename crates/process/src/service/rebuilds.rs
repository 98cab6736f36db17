//! What `zpool status` tells of sequential rebuilds.
//!
//! Invariant: what cannot be read counts as never begun; it is for looking only.

use cenote_control::report::{
    PoolReport, RebuildReport, ScanFunction, ScanState, VdevReason, VdevReport, VdevState,
};
use cenote_engine::pool::Pool;
use cenote_engine::pool::group::RebuildProgress;
use cenote_engine::zap::Zap;
use cenote_format::config::VdevConfig;
use cenote_format::rebuild_state::{RebuildPhase, RebuildState};

use super::vdevs;

/// The entry of the table of a top-level vdev.
const ENTRY: &[u8] = b"org.openzfs:vdev_rebuild";

/// What the tables of the top-level vdevs of `tree` say.
pub fn read(pool: &Pool, tree: &VdevConfig) -> Vec<RebuildReport> {
    let of = |(id, top): (u64, &VdevConfig)| {
        let table = Zap::open(pool.mos().object(top.top_zap?).ok()?).ok()?;
        let words = table.lookup(ENTRY).ok()??.as_u64s()?;
        let state = RebuildState::from_words(&words).ok()?;
        let name = vdevs::name(top, top.children().len());
        report((id, name), &state)
    };
    (0..).zip(tree.children()).filter_map(of).collect()
}

fn report((vdev, name): (u64, String), state: &RebuildState) -> Option<RebuildReport> {
    let phase = match state.phase {
        RebuildPhase::Active => ScanState::Scanning,
        RebuildPhase::Complete => ScanState::Finished,
        RebuildPhase::Cancelled => ScanState::Canceled,
        RebuildPhase::None => return None,
    };
    let seconds = |time: u64| i64::try_from(time).unwrap_or(0);
    Some(RebuildReport {
        vdev,
        name,
        state: phase,
        start_time: seconds(state.start_time),
        end_time: seconds(state.end_time),
        milliseconds: state.milliseconds,
        estimated: state.estimated,
        scanned: state.scanned,
        issued: state.issued,
        rebuilt: state.rebuilt,
        errors: state.errors,
        pass_milliseconds: 0,
        pass_scanned: 0,
        pass_issued: 0,
    })
}

/// What rebuilds under way tell beyond what the groups record of them.
pub fn add(out: &mut PoolReport, progress: &[RebuildProgress]) {
    for one in progress {
        let vdev = u64::from(one.vdev);
        let Some(known) = out.rebuilds.iter_mut().find(|known| known.vdev == vdev) else {
            continue;
        };
        if let Some(now) = report((vdev, known.name.clone()), &one.state) {
            *known = RebuildReport {
                pass_milliseconds: one.pass_milliseconds,
                pass_scanned: one.pass_scanned,
                pass_issued: one.pass_issued,
                ..now
            };
        }
    }
    let is_active = |state: ScanState| state == ScanState::Scanning;
    let scans = out
        .scan
        .is_some_and(|scan| scan.function == ScanFunction::Resilver && is_active(scan.state));
    let rebuilds: Vec<u64> =
        out.rebuilds.iter().filter(|one| is_active(one.state)).map(|one| one.vdev).collect();
    for (id, top) in (0..).zip(&mut out.root.children) {
        match scans || rebuilds.contains(&id) {
            true => is_served(top),
            false => rests(top),
        }
    }
}

/// A device that gets what it lacks is called ONLINE, as OpenZFS does; those above it are not until it has all.
fn is_served(vdev: &mut VdevReport) {
    let lacks_only = vdev.state == VdevState::Degraded && vdev.reason == VdevReason::None;
    if vdev.is_leaf() && vdev.resilvering && lacks_only {
        vdev.state = VdevState::Online;
    }
    vdev.children.iter_mut().for_each(is_served);
}

/// Nothing of a vdev is resilvered now.
fn rests(vdev: &mut VdevReport) {
    vdev.resilvering = false;
    vdev.children.iter_mut().for_each(rests);
}
