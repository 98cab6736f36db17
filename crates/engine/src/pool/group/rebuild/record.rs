//! Beginning a rebuild, recording how far it is, and its end.
//!
//! Chapter 08, section 11. Invariant: the end of a rebuild and what devices do not lack any more are told by
//! the same group; one at which anything failed, or was not durable, ends no lack.

use std::collections::BTreeSet;
use std::ops::Range;

use cenote_format::rebuild_state::{RebuildPhase, RebuildState, WORDS};
use cenote_format::scan_state::ScanFunction;
use cenote_format::zap::Value;
use cenote_format::{Guid, ObjectId, Txg};

use super::{LivePool, Run};
use crate::alloc::SpaceSource;
use crate::dataset::change::MosChange;
use crate::events::string;
use crate::pool::group::MosSource;
use crate::pool::group::sync::seconds_now;
use crate::vdev::{Topology, VdevTree};
use crate::{Error, ErrorKind, Result, zap};

/// The entry of the table of a top-level vdev.
const ENTRY: &str = "org.openzfs:vdev_rebuild";
/// The feature that counts those under way.
const FEATURE: &str = "device_rebuild";

/// The table of a top-level vdev, and the guid of that.
fn table(topology: &Topology, vdev: u32) -> Option<(ObjectId, Guid)> {
    let top = topology.top(vdev)?;
    Some((top.top_zap.filter(|id| id.0 != 0)?, top.guid))
}

/// What the table of a top-level vdev says of its rebuild; what cannot be read counts as never begun, as in
/// OpenZFS.
fn read(source: &dyn SpaceSource, zap: ObjectId) -> Option<RebuildState> {
    let words = source.zap_words(zap, ENTRY).ok().flatten()?;
    RebuildState::from_words(&words).ok()
}

impl LivePool {
    /// What an earlier life of the pool, or OpenZFS, has left to rebuild.
    pub(in crate::pool) fn load_rebuilds(&self) {
        let source = MosSource::new(self.mos.clone());
        let vdevs = self.vdevs();
        for vdev in 0..vdevs.top_count() {
            let Some((zap, _)) = table(vdevs.topology(), vdev) else { continue };
            if let Some(state) = read(&source, zap) {
                self.rebuilds.resume(vdev, state);
            }
        }
    }

    /// Whether a rebuild of a device that comes into `vdev` of these vdevs could begin.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], or [`ErrorKind::Busy`] while a resilver runs.
    pub(in crate::pool) fn check_rebuildable(
        &self,
        change: &MosChange<'_>,
        tree: &VdevTree,
        vdev: u32,
    ) -> Result<()> {
        if !change.is_enabled(FEATURE)? {
            let words = "device_rebuild feature must be enabled in order to use sequential \
                         reconstruction";
            return Err(Error::unsupported(words));
        }
        if self.is_scanning() == Some(ScanFunction::Resilver) {
            return Err(Error::new(ErrorKind::Busy, "currently resilvering"));
        }
        if !tree.is_rebuildable(vdev) || table(tree.topology(), vdev).is_none() {
            let words = "only mirror and dRAID vdevs support sequential reconstruction";
            return Err(Error::unsupported(words));
        }
        Ok(())
    }

    /// Begins to rebuild `vdev` of the vdevs of `topology`, whose devices lack what was born in `births`; one
    /// under way begins anew.
    pub(in crate::pool) fn begin_rebuild(
        &self,
        change: &MosChange<'_>,
        topology: &Topology,
        vdev: u32,
        births: &Range<u64>,
    ) -> Result<()> {
        let missing = || Error::bug("a vdev that is to be rebuilt has no table");
        let (zap, guid) = table(topology, vdev).ok_or_else(missing)?;
        let is_anew = self.rebuilds.runs.lock().contains_key(&vdev);
        if !is_anew {
            change.add_reference(FEATURE)?;
        }
        if self.is_scanning() == Some(ScanFunction::Scrub) {
            self.stop_scan(change)?;
        }
        let state = RebuildState {
            phase: RebuildPhase::Active,
            min_txg: Txg(births.start.saturating_sub(1)),
            max_txg: Txg(births.end),
            start_time: seconds_now(),
            estimated: self.allocator.in_use_on(vdev),
            ..RebuildState::default()
        };
        write(change, zap, &state)?;
        let word = if is_anew { "reset" } else { "started" };
        note(change, vdev, guid, word)?;
        self.tell_sequential("resilver_start", guid);
        self.when_done(move |live| {
            // What was lost before is not meant; that of others is their error all the same.
            live.note_unflushed();
            live.rebuilds.resume(vdev, state);
        });
        Ok(())
    }

    /// Writes what is new.
    pub(super) fn record_rebuilds(&self, change: &MosChange<'_>) -> Result<()> {
        self.note_unflushed();
        let dirty: Vec<(u32, Run)> = {
            let mut runs = self.rebuilds.runs.lock();
            let all = runs.iter_mut().filter(|(_, run)| run.dirty);
            all.map(|(vdev, run)| {
                run.dirty = false;
                (*vdev, *run)
            })
            .collect()
        };
        for (vdev, run) in dirty {
            if let Err(error) = self.record_rebuild(change, vdev, &run) {
                self.rebuilds.mark_dirty(vdev);
                return Err(error);
            }
        }
        Ok(())
    }

    /// What a device was sent and may have lost is not rebuilt: that is an error of its vdev, which is recorded, so
    /// that another life of the pool knows of it, too.
    fn note_unflushed(&self) {
        let vdevs = self.vdevs();
        let unflushed = vdevs.take_unflushed();
        for (vdev, run) in self.rebuilds.runs.lock().iter_mut() {
            let own = vdevs.rebuilt_below(*vdev);
            if own.iter().any(|leaf| unflushed.contains(leaf)) {
                run.state.errors = run.state.errors.saturating_add(1);
                run.dirty = true;
            }
        }
    }

    fn record_rebuild(&self, change: &MosChange<'_>, vdev: u32, run: &Run) -> Result<()> {
        let vdevs = self.vdevs();
        let Some((zap, _)) = table(vdevs.topology(), vdev) else { return Ok(()) };
        if run.idle {
            return self.end_rebuild(change, vdev, run.state_now(), RebuildPhase::Cancelled);
        }
        if run.through && !vdevs.is_too_soon(run.state.max_txg, change.tx.txg()) {
            return self.end_rebuild(change, vdev, run.state_now(), RebuildPhase::Complete);
        }
        if run.through {
            // Devices that seem to be whole now are watched for some groups more.
            self.rebuilds.mark_dirty(vdev);
            self.gate.want(self.gate.figures().open);
        }
        write(change, zap, &run.state_now())
    }

    /// A resilver begins: what there is to tell of rebuilds that have ended is older.
    pub(in crate::pool) fn forget_rebuilds(&self, change: &MosChange<'_>) -> Result<()> {
        let source = MosSource::new(change.mos.clone());
        let vdevs = self.vdevs();
        for vdev in 0..vdevs.top_count() {
            let Some((zap, _)) = table(vdevs.topology(), vdev) else { continue };
            let known = read(&source, zap).map(|state| state.phase);
            if matches!(known, Some(RebuildPhase::Cancelled | RebuildPhase::Complete)) {
                write(change, zap, &RebuildState::default())?;
            }
        }
        Ok(())
    }

    fn end_rebuild(
        &self,
        change: &MosChange<'_>,
        vdev: u32,
        state: RebuildState,
        phase: RebuildPhase,
    ) -> Result<()> {
        let vdevs = self.vdevs();
        let missing = || Error::bug("a vdev that was rebuilt is gone");
        let (zap, guid) = table(vdevs.topology(), vdev).ok_or_else(missing)?;
        let complete = phase == RebuildPhase::Complete;
        let state = RebuildState { phase, end_time: seconds_now(), ..state };
        write(change, zap, &state)?;
        change.remove_reference(FEATURE)?;
        note(change, vdev, guid, if complete { "complete" } else { "canceled" })?;
        self.tell_sequential("resilver_finish", guid);
        let is_last = self.rebuilds.runs.lock().keys().all(|other| *other == vdev);
        let is_whole = complete && state.errors == 0;
        let rebuilt = vdevs.rebuilt_below(vdev);
        if complete && is_last && self.is_scanning().is_none() {
            let lacking = vdevs.resilver_range_of(|_, leaf| !is_whole || !rebuilt.contains(&leaf));
            self.begin_scrub_after(change, lacking)?;
        }
        let leaves = vdevs.topology().top(vdev).into_iter().flat_map(|top| top.walk());
        let begun = leaves.filter(|leaf| leaf.rebuild_txg.is_some()).map(|leaf| leaf.guid);
        let begun: Vec<Guid> = begun.collect();
        self.mark_leaves(change, begun, |node| node.rebuild_txg = None);
        self.when_done(move |live| {
            live.rebuilds.runs.lock().remove(&vdev);
        });
        if is_whole {
            // Last: this is not taken back.
            let is_one = |leaf: Guid| rebuilt.contains(&leaf);
            vdevs.forget_missed(is_one, state.max_txg, &BTreeSet::new());
        }
        Ok(())
    }

    fn tell_sequential(&self, name: &'static str, top: Guid) {
        self.when_done(move |live| {
            let vdevs = live.vdevs();
            let mut members = vdevs.named_in_event(top);
            members.push(("resilver_type", string("sequential")));
            vdevs.events().system(name, members);
        });
    }
}

impl super::Rebuilds {
    /// Something of a run is to be recorded.
    pub(super) fn mark_dirty(&self, vdev: u32) {
        if let Some(run) = self.runs.lock().get_mut(&vdev) {
            run.dirty = true;
            self.worker.mark();
        }
    }
}

fn write(change: &MosChange<'_>, table: ObjectId, state: &RebuildState) -> Result<()> {
    let words: [u64; WORDS] = state.to_words();
    zap::update(&change.mos.object(table)?, change.tx, ENTRY, &Value::of_u64s(&words)?)
}

fn note(change: &MosChange<'_>, vdev: u32, guid: Guid, word: &str) -> Result<()> {
    change.log_event("rebuild", None, &format!("vdev_id={vdev} vdev_guid={} {word}", guid.0))
}
