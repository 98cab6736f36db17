//! Recording what a transaction group allocated and freed.
//!
//! Chapter 03, sections 9 to 11. Called in every pass of the group's writing: records what came up
//! since the pass before, into the metaslabs' own maps or into the group's log, which spares the
//! maps. Every group some metaslabs are flushed: what the logs say of them moves into their maps,
//! so that old logs can go. Invariant: a metaslab is flushed before the changes of the same group
//! are logged, and a log outlives every metaslab that is unflushed since its group.

use std::sync::Arc;

use cenote_format::space_map::Encoder;
use cenote_format::{ObjectId, ObjectType, Txg};

use super::allocator::Allocator;
use super::histogram::{self, Histogram};
use super::indirect;
use super::logs::LOG_SHIFT;
use super::map::{BLOCK, Delta, Frame, Moment, SpaceMap, encode};
use super::metaslab::slot;
use super::ranges::{Conflict, RangeSet};
use super::state::{AllocatorState, Log, at};
use super::store::{DIRECTORY, LOG_ZAP, LOGS, NewSpaceObject, SpaceStore, UNFLUSHED};
use crate::{Error, Result};

/// Groups within which every metaslab is flushed.
const FLUSH_CYCLE: usize = 200;
/// Bytes all logs may have together, and more by metaslab in them.
const LOGS_MAX: u64 = 8 << 20;
const LOGS_MAX_BY_METASLAB: u64 = 32 << 10;
/// A map longer than this many blocks is condensed if it is also this much longer than needed.
const CONDENSE_BLOCKS: u64 = 4;
const CONDENSE_FACTOR: u64 = 2;
/// Later passes only append, so that the group comes to rest.
const CONDENSE_UNTIL_PASS: u32 = 2;
/// Bytes one segment takes in a map, about.
const SEGMENT_BYTES: u64 = 16;
/// Metaslabs of a vdev that stay in memory, however idle.
const KEEP_LOADED: usize = 64;
/// Groups after which an idle metaslab may leave memory.
const IDLE_AFTER: u64 = 32;

/// A metaslab whose own map is written.
struct MapPlan {
    index: usize,
    start: u64,
    shift: u32,
    array: ObjectId,
    map: Option<SpaceMap>,
    /// What is appended.
    delta: Arc<Delta>,
    /// The map is rewritten: first everything that was allocated before `delta`.
    rewrite: Option<RangeSet>,
    histogram: Option<Histogram>,
}

fn broken(_: Conflict) -> Error {
    Error::corrupt("what is recorded contradicts what was recorded before")
}

impl MapPlan {
    /// Gathers what writing the map takes; `delta` was allocated and freed since it was written.
    fn new(
        state: &AllocatorState,
        vdev: u32,
        index: usize,
        delta: Arc<Delta>,
        condense: bool,
    ) -> Result<Self> {
        let slab = state.slab(vdev, index)?;
        let top = state.top(vdev).ok_or_else(|| Error::bug("the vdev is gone"))?;
        let (start, size) = (slab.start, slab.size);
        let mut rewrite = None;
        if let (true, Some(loaded), Some(map)) = (condense, slab.loaded(), &slab.map) {
            let needed = (loaded.tree.len() as u64 + 1) * SEGMENT_BYTES;
            let length = map.header.length;
            let long = length > CONDENSE_BLOCKS * map.block_size;
            if long && length > needed.saturating_mul(CONDENSE_FACTOR) {
                let mut allocated = RangeSet::default();
                for (from, to) in slab.recorded_free()?.gaps(start, size) {
                    allocated.insert(from, to - from).map_err(broken)?;
                }
                // `delta` may be recorded in logs already; the map gets it after the rest.
                rewrite = Some(allocated);
            }
        }
        let histogram = slab.histogram(top.facts.ashift).or_else(|| {
            let mut buckets = slab.map.as_ref()?.header.histogram?;
            for (from, to) in delta.freed.iter() {
                histogram::count(&mut buckets, to - from, top.facts.ashift);
            }
            Some(buckets)
        });
        let map = slab.map.clone();
        let (shift, array) = (top.facts.ashift, top.facts.array);
        Ok(Self { index, start, shift, array, map, delta, rewrite, histogram })
    }

    /// Writes the map and its header; gives the map as it is now.
    fn write(mut self, store: &mut dyn SpaceStore, moment: Moment) -> Result<SpaceMap> {
        let mut map = match self.map.take() {
            Some(map) => map,
            None => create_map(store, self.array, self.index)?,
        };
        let shift = u8::try_from(self.shift).unwrap_or(9);
        let frame = Frame { start: self.start, shift, vdev: None };
        if let Some(allocated) = self.rewrite.take() {
            map.clear(store)?;
            let whole = Delta { allocated, freed: RangeSet::default() };
            append(store, &mut map, &whole, frame, moment)?;
        }
        append(store, &mut map, &self.delta, frame, moment)?;
        if let Some(histogram) = self.histogram {
            map.set_histogram(histogram);
        }
        map.write_header(store)?;
        Ok(map)
    }
}

fn append(
    store: &mut dyn SpaceStore,
    map: &mut SpaceMap,
    delta: &Delta,
    frame: Frame,
    moment: Moment,
) -> Result<()> {
    let mut write = |map: &mut SpaceMap| {
        let mut encoder = map.encoder(store);
        encode(&mut encoder, delta, frame, moment)?;
        map.append(store, &encoder.finish(), delta.net())
    };
    match write(map) {
        // The end of the map cannot be read, so nothing can be put behind it in its block; nobody allocates by
        // this map any more, and what it counts stays right.
        Err(error) if error.is_lasting() => {
            map.skip_to_next_block();
            write(map)
        }
        done => done,
    }
}

/// Makes the map of a metaslab that has none, and lists it.
fn create_map(store: &mut dyn SpaceStore, array: ObjectId, index: usize) -> Result<SpaceMap> {
    let map = SpaceMap::create(store)?;
    store.write(array, (index as u64).saturating_mul(8), &map.object.0.to_le_bytes())?;
    Ok(map)
}

impl Allocator {
    /// From the next group on flushes all metaslabs in every group, so that hardly any log is left
    /// when the pool is exported.
    pub fn flush_all(&self) {
        self.state.lock().flush_all = true;
    }

    /// Records what group `txg` allocated and freed since the last call, in pass `pass` (from 1 on)
    /// of writing it. `false`: there was nothing, and nothing was written.
    pub fn sync(&self, store: &mut dyn SpaceStore, txg: Txg, pass: u32) -> Result<bool> {
        let done = self.try_sync(store, txg, pass);
        if let Err(error) = &done {
            self.state.lock().failure = Some(error.clone());
            self.changed.notify_all();
        }
        done
    }

    fn try_sync(&self, store: &mut dyn SpaceStore, txg: Txg, pass: u32) -> Result<bool> {
        let moment = Moment { txg, pass };
        let (any, flush_all) = {
            let state = self.state.lock();
            state.check_open(txg)?;
            if txg.0 != state.synced.0 + 1 {
                let reason = format!("group {} is recorded before the one before it", txg.0);
                return Err(Error::invalid(reason));
            }
            let dirty = state.dirty.get(slot(txg)).is_some_and(|dirty| !dirty.is_empty());
            let dirty = dirty || state.with_obsolete(txg).next().is_some();
            let dirty = dirty || state.keeping(txg).next().is_some();
            (dirty, state.flush_all && !state.logs.is_empty())
        };
        let logs = store.feature_enabled(LOGS);
        let forced = flush_all && logs && pass == 1;
        if !any && !forced {
            return Ok(false);
        }
        let mut wrote = self.record_obsolete(store, moment)?;
        wrote |= self.record_kept(store, moment)?;
        if !logs {
            let work = self.begin(txg)?;
            for (vdev, index, delta) in &work {
                self.write_map(store, moment, (*vdev, *index), delta)?;
            }
            return Ok(wrote || !work.is_empty());
        }
        // The first changes of the group, in whichever pass: before they are logged, flush.
        let first = self.ensure_log(store, txg)?;
        if first {
            self.flush(store, moment)?;
        }
        wrote |= first;
        let work = self.begin(txg)?;
        if !work.is_empty() {
            self.write_log(store, moment, &work)?;
            wrote = true;
        }
        if first {
            self.drop_logs(store, txg)?;
        }
        Ok(wrote)
    }

    /// Records what became obsolete on removed vdevs.
    fn record_obsolete(&self, store: &mut dyn SpaceStore, moment: Moment) -> Result<bool> {
        let txg = moment.txg;
        let dirty: Vec<u32> = self.state.lock().with_obsolete(txg).collect();
        let any = !dirty.is_empty();
        for id in dirty {
            let taken = self.state.lock().moved_mut(id).map(|removed| removed.take(txg));
            let Some(taken) = taken else { continue };
            if let Some(map) = indirect::record(store, taken, moment)?
                && let Some(removed) = self.state.lock().moved_mut(id)
            {
                removed.set_map(map);
            }
        }
        Ok(any)
    }

    /// Takes what waits to be recorded.
    fn begin(&self, txg: Txg) -> Result<Vec<(u32, usize, Arc<Delta>)>> {
        let mut state = self.state.lock();
        let dirty = state.dirty.get_mut(slot(txg)).map(std::mem::take).unwrap_or_default();
        let mut work = Vec::with_capacity(dirty.len());
        for (vdev, index) in dirty {
            let slab = state.slab_mut(vdev, index)?;
            let delta = slab.pending.get_mut(slot(txg)).map(std::mem::take).unwrap_or_default();
            if !delta.is_empty() {
                let delta = Arc::new(delta);
                slab.writing = Some(delta.clone());
                work.push((vdev, index, delta));
            }
        }
        Ok(work)
    }

    /// The changes are recorded, in the metaslab's map if it is given, else in the log.
    fn end(&self, (vdev, index): (u32, usize), delta: &Delta, map: Option<SpaceMap>) -> Result<()> {
        let mut state = self.state.lock();
        let slab = state.slab_mut(vdev, index)?;
        match map {
            Some(map) => slab.map = Some(map),
            None => slab
                .unflushed
                .apply_all(delta)
                .map_err(|conflict| at(broken(conflict), vdev, slab.start))?,
        }
        slab.recorded = slab.recorded.saturating_add(delta.net());
        slab.freed.insert_all(&delta.freed).map_err(broken)?;
        slab.writing = None;
        slab.generation += 1;
        if u64::try_from(slab.recorded).is_ok_and(|bytes| bytes > slab.size) || slab.recorded < 0 {
            return Err(at(broken(Conflict), vdev, slab.start));
        }
        if let Some(top) = state.top_mut(vdev) {
            top.recorded = top.recorded.saturating_add(delta.net());
        }
        if !delta.freed.is_empty() {
            state.held.insert((vdev, index));
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Records changes in the metaslab's own map.
    fn write_map(
        &self,
        store: &mut dyn SpaceStore,
        moment: Moment,
        (vdev, index): (u32, usize),
        delta: &Arc<Delta>,
    ) -> Result<()> {
        let plan = {
            let state = self.state.lock();
            if !state.slab(vdev, index)?.unflushed.is_empty() {
                let reason = "space map logs are left although their feature is not enabled";
                return Err(Error::unsupported(reason));
            }
            MapPlan::new(&state, vdev, index, delta.clone(), moment.pass <= CONDENSE_UNTIL_PASS)?
        };
        let map = plan.write(store, moment)?;
        self.end((vdev, index), delta, Some(map))
    }

    /// Makes the log of a group if there is none. `true`: it was made.
    fn ensure_log(&self, store: &mut dyn SpaceStore, txg: Txg) -> Result<bool> {
        let zap = {
            let state = self.state.lock();
            if state.logs.contains_key(&txg) {
                return Ok(false);
            }
            state.log_zap
        };
        let zap = match zap {
            Some(zap) => zap,
            None => {
                let zap = store.create_zap()?;
                store.zap_set(DIRECTORY, LOG_ZAP, zap.0)?;
                store.feature_add(LOGS, 1)?;
                zap
            }
        };
        let map = SpaceMap::create(store)?;
        store.zap_set(zap, &format!("{:x}", txg.0), map.object.0)?;
        let mut state = self.state.lock();
        state.log_zap = Some(zap);
        state.logs.insert(txg, Log { map });
        Ok(true)
    }

    /// Records changes in the log of the group.
    fn write_log(
        &self,
        store: &mut dyn SpaceStore,
        moment: Moment,
        work: &[(u32, usize, Arc<Delta>)],
    ) -> Result<()> {
        let txg = moment.txg;
        let log = self.state.lock().logs.get(&txg).map(|log| log.map.clone());
        let mut log = log.ok_or_else(|| Error::bug("the group has no log"))?;
        let mut encoder: Encoder = log.encoder(store);
        let mut change = 0i64;
        for (vdev, index, delta) in work {
            self.list(store, moment, *vdev, *index)?;
            if !delta.allocated.is_empty() {
                self.update_histogram(store, *vdev, *index)?;
            }
            let frame = Frame { start: 0, shift: LOG_SHIFT, vdev: Some(*vdev) };
            encode(&mut encoder, delta, frame, moment)?;
            change = change.saturating_add(delta.net());
        }
        log.append(store, &encoder.finish(), change)?;
        log.write_header(store)?;
        self.state.lock().logs.insert(txg, Log { map: log });
        for (vdev, index, delta) in work {
            self.end((*vdev, *index), delta, None)?;
        }
        Ok(())
    }

    /// Makes a metaslab known that is in a log for the first time: it gets a map, and the group
    /// since which it is not flushed.
    fn list(
        &self,
        store: &mut dyn SpaceStore,
        moment: Moment,
        vdev: u32,
        index: usize,
    ) -> Result<()> {
        let (absent, since, plan) = {
            let state = self.state.lock();
            let slab = state.slab(vdev, index)?;
            let absent = slab.map.is_none();
            // An empty map, but with the histogram.
            let nothing = Arc::new(Delta::default());
            let plan = absent.then(|| MapPlan::new(&state, vdev, index, nothing, false));
            (absent, slab.unflushed_since, plan.transpose()?)
        };
        if let (true, Some(plan)) = (absent, plan) {
            let map = plan.write(store, moment)?;
            let mut state = self.state.lock();
            let slab = state.slab_mut(vdev, index)?;
            slab.map = Some(map);
        }
        if since.0 == 0 {
            self.set_unflushed(store, vdev, index, moment.txg)?;
        }
        Ok(())
    }

    /// Brings the histogram of a metaslab up to date in which something was allocated that is only
    /// logged: OpenZFS weighs metaslabs by it before it loads them, and relies on it not telling of
    /// more than is free. Of less it may: what was freed counts when the map is written.
    fn update_histogram(&self, store: &mut dyn SpaceStore, vdev: u32, index: usize) -> Result<()> {
        let (map, histogram) = {
            let state = self.state.lock();
            let slab = state.slab(vdev, index)?;
            let histogram = state.top(vdev).and_then(|top| slab.histogram(top.facts.ashift));
            (slab.map.clone(), histogram)
        };
        let (Some(mut map), Some(histogram)) = (map, histogram) else { return Ok(()) };
        if map.header.histogram.is_none_or(|recorded| recorded == histogram) {
            return Ok(());
        }
        map.set_histogram(histogram);
        map.write_header(store)?;
        self.state.lock().slab_mut(vdev, index)?.map = Some(map);
        Ok(())
    }

    /// Writes since when a metaslab is not flushed.
    fn set_unflushed(
        &self,
        store: &mut dyn SpaceStore,
        vdev: u32,
        index: usize,
        txg: Txg,
    ) -> Result<()> {
        let known = self.state.lock().top(vdev).map(|top| (top.unflushed, top.facts.zap));
        let (object, zap) = known.unwrap_or_default();
        let object = match object {
            Some(object) => object,
            None if zap.0 == 0 => {
                let reason = format!("top-level vdev {vdev} has no ZAP, which logs need");
                return Err(Error::corrupt(reason));
            }
            None => {
                let object = store.create(&NewSpaceObject {
                    object_type: ObjectType(0xc3),
                    block_size: BLOCK,
                    indirect_shift: 17,
                    bonus_type: ObjectType::NONE,
                    bonus: Vec::new(),
                })?;
                store.zap_set(zap, UNFLUSHED, object.0)?;
                object
            }
        };
        store.write(object, (index as u64).saturating_mul(8), &txg.0.to_le_bytes())?;
        let mut state = self.state.lock();
        if let Some(top) = state.top_mut(vdev) {
            top.unflushed = Some(object);
        }
        state.slab_mut(vdev, index)?.unflushed_since = txg;
        Ok(())
    }

    /// Flushes the metaslabs that are due.
    fn flush(&self, store: &mut dyn SpaceStore, moment: Moment) -> Result<()> {
        let due = self.state.lock().due(moment.txg);
        for (vdev, index) in &due {
            let plan = {
                let mut state = self.state.lock();
                let slab = state.slab_mut(*vdev, *index)?;
                slab.writing = Some(Arc::default());
                let delta = Arc::new(std::mem::take(&mut slab.unflushed));
                if delta.is_empty() {
                    None
                } else {
                    Some(MapPlan::new(&state, *vdev, *index, delta, true)?.flushed())
                }
            };
            let map = plan.map(|plan| plan.write(store, moment)).transpose()?;
            self.set_unflushed(store, *vdev, *index, moment.txg)?;
            let mut state = self.state.lock();
            let slab = state.slab_mut(*vdev, *index)?;
            if map.is_some() {
                slab.map = map;
            }
            slab.writing = None;
            slab.generation += 1;
            drop(state);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Drops logs that no metaslab needs.
    fn drop_logs(&self, store: &mut dyn SpaceStore, txg: Txg) -> Result<()> {
        let (zap, old) = {
            let mut state = self.state.lock();
            let oldest = state.unflushed().map(|(since, ..)| since).min().unwrap_or(txg);
            let kept = state.logs.split_off(&oldest.min(txg));
            (state.log_zap, std::mem::replace(&mut state.logs, kept))
        };
        for (txg, log) in old {
            if let Some(zap) = zap {
                store.zap_remove(zap, &format!("{:x}", txg.0))?;
            }
            log.map.destroy(store)?;
        }
        Ok(())
    }

    /// The group is on the disks: space freed two groups earlier can be allocated again unless somebody
    /// holds it, and the figures are published.
    pub fn sync_done(&self, txg: Txg) -> Result<()> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.check_open(txg)?;
        let unrecorded = state.dirty.get(slot(txg)).is_some_and(|dirty| !dirty.is_empty())
            || state.with_obsolete(txg).next().is_some()
            || state.keeping(txg).next().is_some();
        if txg.0 != state.synced.0 + 1 || unrecorded {
            let reason = format!("group {} ends with changes that are not recorded", txg.0);
            return Err(Error::bug(reason));
        }
        for (vdev, index) in state.held.clone() {
            let slab = state.slab_mut(vdev, index)?;
            let start = slab.start;
            slab.defer(txg).map_err(|conflict| at(broken(conflict), vdev, start))?;
        }
        state.synced = txg;
        state.release()?;
        if txg.0.is_multiple_of(IDLE_AFTER) {
            let before = Txg(txg.0.saturating_sub(IDLE_AFTER));
            for top in state.tops.iter_mut().flatten() {
                top.unload_idle(before, KEEP_LOADED);
            }
        }
        if cfg!(debug_assertions) {
            state.assert_agrees();
        }
        self.published.store(Arc::new(state.figures()));
        Ok(())
    }
}

impl MapPlan {
    /// For a flush: the map gets what the logs already say, so a rewritten map is complete with
    /// what is allocated now.
    fn flushed(mut self) -> Self {
        if self.rewrite.is_some() {
            self.delta = Arc::default();
        }
        self
    }
}

impl AllocatorState {
    /// Metaslabs in logs: since when, vdev, index.
    fn unflushed(&self) -> impl Iterator<Item = (Txg, u32, usize)> + '_ {
        self.tops.iter().flatten().flat_map(|top| {
            let all = top.metaslabs.iter().enumerate();
            all.filter(|(_, slab)| slab.unflushed_since.0 != 0)
                .map(|(index, slab)| (slab.unflushed_since, top.facts.id, index))
        })
    }

    /// Metaslabs to be flushed in `txg`, those first that are unflushed for longest.
    fn due(&self, txg: Txg) -> Vec<(u32, usize)> {
        let mut all: Vec<_> = self.unflushed().filter(|(since, ..)| *since < txg).collect();
        all.sort_unstable();
        let usual = if self.flush_all { all.len() } else { all.len().div_ceil(FLUSH_CYCLE) };
        let limit = LOGS_MAX + LOGS_MAX_BY_METASLAB * all.len() as u64;
        let kept = |oldest: Txg| -> u64 {
            self.logs.range(oldest..).map(|(_, log)| log.map.header.length).sum()
        };
        let mut number = usual;
        while let Some((since, ..)) = all.get(number) {
            if kept(*since) <= limit {
                break;
            }
            // All that are unflushed since then hold the same log.
            number += all.iter().skip(number).take_while(|(other, ..)| other == since).count();
        }
        all.into_iter().take(number).map(|(_, vdev, index)| (vdev, index)).collect()
    }
}
