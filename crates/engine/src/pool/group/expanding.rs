//! A RAID-Z vdev is spread over one device more, a portion in each group: the job "expanding".
//!
//! Chapter 08, section 21. A portion moves what is in use behind the place up to which the last uberblock says
//! that everything was moved, after all blocks of the group are on the disks; the group's uberblock tells how far
//! that went. The first part goes by way of the boot areas, for there old and new places overlap. Invariant: what an
//! uberblock on the disks says was moved is at its new place on all devices, and the rest is where it was; nothing
//! is moved while a device is away or lacks something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cenote_format::uberblock::{Reflow, ScratchState};
use cenote_format::{ObjectId, Txg};
use parking_lot::Mutex;

use super::sync::seconds_now;
use super::{LivePool, MosStore, ScanKind, ScanOrder};
use crate::alloc::{Occupied, SpaceStore};
use crate::dataset::change::MosChange;
use crate::job::Outcome;
use crate::pool::labels;
use crate::vdev::{Moving, VdevTree};
use crate::{Error, ErrorKind, Result};

/// Keys of a top-level vdev's ZAP.
pub(in crate::pool) const STATE: &str = "org.openzfs:raidz_expand_state";
pub(in crate::pool) const START: &str = "org.openzfs:raidz_expand_start_time";
pub(in crate::pool) const END: &str = "org.openzfs:raidz_expand_end_time";
pub(in crate::pool) const COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";
/// States of an expansion there.
pub(in crate::pool) const ACTIVE: u64 = 1;
const FINISHED: u64 = 2;

/// Bytes in use that are looked for in one group, about.
const IN_ONE_GROUP: u64 = 4 << 30;
/// How long sectors are moved in one group, and if somebody waits to write.
const ALONE: Duration = Duration::from_secs(1);
const WAITED_FOR: Duration = Duration::from_millis(100);
/// How long who reads where something was before is waited for.
const PATIENCE: Duration = Duration::from_millis(200);
/// Pause after something failed although all devices seem to be well.
const PAUSE: Duration = Duration::from_secs(30);
/// Groups that may have blocks under way which know the old width only.
const UNDER_WAY: u64 = 3;

/// The part of an expansion that is in memory.
#[derive(Default)]
pub(in crate::pool) struct Expanding {
    /// Bytes moved; `None`: what the metadata says.
    copied: Mutex<Option<u64>>,
    recorded: AtomicU64,
    /// When something failed last, and a device was away then.
    failed: Mutex<Option<Instant>>,
    was_away: AtomicBool,
    /// What a vdev has grown by in the group being written.
    grown: Mutex<Vec<(u32, u64)>>,
}

/// What a portion did: to be told with the group's uberblock.
pub(super) struct Moved<'a> {
    /// The uberblock's word.
    pub(super) word: Reflow,
    moving: Option<Moving<'a>>,
    _occupied: Option<Occupied<'a>>,
    /// Bytes, and why it was no more; `None`: no portion was due.
    done: Option<(u64, Option<Error>)>,
}

/// How far an expansion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpansionProgress {
    /// Bytes moved.
    pub moved: u64,
    /// Bytes in use on the vdev.
    pub in_use: u64,
    /// It waits until devices are well.
    pub waits: bool,
}

impl Moved<'_> {
    fn nothing(word: Reflow) -> Self {
        Self { word, moving: None, _occupied: None, done: None }
    }
}

/// What of ascending ranges makes up `most` bytes.
fn first_of(ranges: &[(u64, u64)], most: u64) -> Vec<(u64, u64)> {
    let mut left = most;
    let mut first = Vec::new();
    for (start, end) in ranges {
        let end = (*end).min(start.saturating_add(left));
        if end <= *start {
            break;
        }
        left = left.saturating_sub(end - start);
        first.push((*start, end));
    }
    first
}

impl LivePool {
    /// Records how far an expansion has come, or that it has come to its end.
    pub(super) fn go_on_expanding(&self, change: &MosChange<'_>) -> Result<()> {
        let vdevs = self.vdevs();
        let Some(id) = vdevs.expanding() else { return Ok(()) };
        let Some(zap) = vdevs.topology().top(id).and_then(|top| top.top_zap) else {
            return Err(Error::corrupt(format!("vdev {id} is being expanded and has no ZAP")));
        };
        let mut store = MosStore::new(change);
        let copied = self.copied(&store, zap)?;
        if self.expanding.recorded.swap(copied, Relaxed) != copied {
            store.zap_set(zap, COPIED, copied)?;
        }
        let end = self.allocator.space_of(id).unwrap_or(u64::MAX);
        let word = self.pool.uberblock().reflow;
        if word.scratch() != ScratchState::Valid && word.offset() >= end {
            self.finish_expansion(change, &mut store, (id, zap))?;
        }
        Ok(())
    }

    /// Bytes that were moved.
    fn copied(&self, store: &MosStore<'_, '_>, zap: ObjectId) -> Result<u64> {
        use crate::alloc::SpaceSource;
        let mut copied = self.expanding.copied.lock();
        if let Some(copied) = *copied {
            return Ok(copied);
        }
        let recorded = store.zap_number(zap, COPIED)?.unwrap_or(0);
        self.expanding.recorded.store(recorded, Relaxed);
        Ok(*copied.insert(recorded))
    }

    /// An expansion begins.
    pub(in crate::pool) fn expansion_begins(&self) {
        *self.expanding.copied.lock() = None;
        *self.expanding.failed.lock() = None;
        self.jobs.expanding.wake();
    }

    /// Everything lies over all devices: so does what is born from some groups later on, and there is more space.
    fn finish_expansion(
        &self,
        change: &MosChange<'_>,
        store: &mut MosStore<'_, '_>,
        (id, zap): (u32, ObjectId),
    ) -> Result<()> {
        let (txg, before) = (change.tx.txg(), self.vdevs());
        let top = before.topology().top(id).cloned().unwrap_or_default();
        let from = Txg(txg.0.saturating_add(UNDER_WAY));
        let tree = before.with_topology(before.topology().expanded(top.guid, from, txg)?)?;
        let mut grown = tree.growable();
        grown.retain(|(of, _)| *of == id);
        let tree = tree.with_topology(tree.topology().grown(&grown, txg))?;
        store.zap_set(zap, STATE, FINISHED)?;
        store.zap_set(zap, END, seconds_now())?;
        let words = format!("{} vdev {id} new width {}", self.pool.name(), top.children().len());
        change.log_event("raidz vdev expansion completed", None, &words)?;
        if !grown.is_empty() {
            self.log_growth(change, &grown)?;
        }
        self.take_vdevs(Arc::new(tree));
        *self.expanding.grown.lock() = grown;
        *self.expanding.copied.lock() = None;
        // Nothing was verified while it was moved.
        if self.is_scanning().is_none() {
            self.order_scan(change, ScanOrder::Begin(ScanKind::Scrub))?;
        }
        Ok(())
    }

    /// Does a portion of an expansion; all blocks of the group are on the disks.
    pub(super) fn move_some<'a>(&'a self, vdevs: &'a VdevTree) -> Moved<'a> {
        let job = &self.jobs.expanding;
        let Some(id) = vdevs.expanding() else {
            if job.begin().is_some() {
                self.jobs.end(job, Outcome::default());
            }
            return Moved::nothing(Reflow(0));
        };
        let word = self.pool.uberblock().reflow;
        let config = self.pool.config();
        let top = config.vdev_tree.as_ref().and_then(|root| root.children().get(id as usize));
        let is_told = top.is_some_and(|top| top.raidz_expanding);
        if job.begin().is_none() {
            return Moved::nothing(word);
        }
        if !is_told {
            // The newest group on the disks must tell of it first.
            return Moved { done: Some((0, None)), ..Moved::nothing(word) };
        }
        let moved = match word.offset() == 0 || word.scratch() == ScratchState::Valid {
            true => self.move_first(vdevs, id, word),
            false => self.move_next(vdevs, id, word),
        };
        moved.unwrap_or_else(|error| Moved { done: Some((0, Some(error))), ..Moved::nothing(word) })
    }

    /// All devices are well, and have the newest uberblock.
    fn prepare_to_move(&self, vdevs: &VdevTree, id: u32) -> Result<()> {
        let children = vdevs.movable_children(id)?;
        if vdevs.take_unspread()
            && let Err(error) = labels::rewrite_uberblock(vdevs, &self.pool.uberblock(), &children)
        {
            vdevs.note_unspread();
            return Err(error);
        }
        Ok(())
    }

    /// Moves the first part by way of the scratch area.
    fn move_first<'a>(&'a self, vdevs: &'a VdevTree, id: u32, word: Reflow) -> Result<Moved<'a>> {
        self.prepare_to_move(vdevs, id)?;
        let reach = vdevs.scratch_reach(id);
        let bytes = {
            let occupied = self.allocator.occupy(id, (0, reach), u64::MAX)?;
            occupied.ranges().iter().fold(0, |sum, (start, end)| sum + (end - start))
        };
        let moving = vdevs.move_sectors(PATIENCE)?;
        if word.scratch() != ScratchState::Valid {
            vdevs.fill_scratch(id)?;
            let filled = Reflow::of(reach, ScratchState::Valid);
            self.tell_scratch(vdevs, id, filled)?;
            moving.came_to(filled.0);
        }
        // Old places are written over: from now on the scratch area is read, and nobody may be about to read those.
        let emptied = moving.wait_for_readers(PATIENCE).and_then(|()| vdevs.empty_scratch(id));
        let (word, done) = match emptied {
            Ok(()) => {
                // No block is written there before the group is on the disks: if this fails, the scratch area is
                // as good.
                let told = Reflow::of(reach, ScratchState::InvalidSynced);
                if let Err(error) = self.tell_scratch(vdevs, id, told) {
                    tracing::warn!(%error, "the scratch area is not given up yet");
                }
                (Reflow::of(reach, ScratchState::InvalidSyncedReflow), (bytes, None))
            }
            Err(error) => (Reflow::of(reach, ScratchState::Valid), (0, Some(error.into()))),
        };
        Ok(Moved { word, moving: Some(moving), _occupied: None, done: Some(done) })
    }

    /// Has the newest uberblock tell what the scratch area holds.
    fn tell_scratch(&self, vdevs: &VdevTree, id: u32, word: Reflow) -> Result<()> {
        let mut uberblock = self.pool.uberblock();
        // It is newer than the one without, and than what tells of activity.
        uberblock.timestamp = uberblock.timestamp.max(seconds_now()).saturating_add(1);
        uberblock.reflow = word;
        self.pool.retell(uberblock.clone());
        labels::rewrite_uberblock(vdevs, &uberblock, &vdevs.movable_children(id)?)
    }

    /// Moves what comes next, as far as nothing is overwritten that is read where it was.
    fn move_next<'a>(&'a self, vdevs: &'a VdevTree, id: u32, word: Reflow) -> Result<Moved<'a>> {
        self.prepare_to_move(vdevs, id)?;
        let from = word.offset();
        let end = self.allocator.space_of(id).unwrap_or(0);
        let limit = vdevs.reach(id, from).min(end);
        if limit <= from {
            return Ok(Moved { done: Some((0, None)), ..Moved::nothing(word) });
        }
        let occupied = self.allocator.occupy(id, (from, limit), IN_ONE_GROUP)?;
        let moving = vdevs.move_sectors(PATIENCE)?;
        let start = Instant::now();
        let goes_on = || {
            let most = if moving.is_waited_for() { WAITED_FOR } else { ALONE };
            start.elapsed() < most
        };
        let unit = 1_u64.checked_shl(vdevs.ashift(id).unwrap_or(9)).unwrap_or(1);
        let most = self.options.copied_at_once.unwrap_or(IN_ONE_GROUP).max(unit);
        let ranges = first_of(occupied.ranges(), most - most % unit);
        let (moved, trouble) = vdevs.move_ranges(id, &ranges, &goes_on);
        vdevs.flush_moved(id)?;
        let trouble = trouble.err().map(Error::from);
        let last = occupied.ranges().last();
        let is_all = last.is_none_or(|(_, end)| moved >= Some(*end));
        let reached = if is_all { occupied.end() } else { moved.unwrap_or(from) };
        let bytes = occupied.ranges().iter().fold(0_u64, |sum, (start, end)| {
            sum.saturating_add((*end).min(reached).saturating_sub(*start))
        });
        let word = Reflow::of(reached, ScratchState::InvalidSyncedReflow);
        let done = Some((bytes, trouble));
        Ok(Moved { word, moving: Some(moving), _occupied: Some(occupied), done })
    }

    /// The uberblock that tells what was moved is on the disks.
    pub(super) fn have_moved(&self, moved: Moved<'_>) {
        if let Some(moving) = &moved.moving {
            moving.came_to(moved.word.0);
        }
        let Some((bytes, trouble)) = moved.done else { return };
        drop((moved.moving, moved._occupied));
        let copied = {
            let mut copied = self.expanding.copied.lock();
            let now = copied.unwrap_or(0).saturating_add(bytes);
            *copied.insert(now)
        };
        let vdevs = self.vdevs();
        let all = vdevs.expanding().map_or(0, |id| self.allocator.in_use_on(id));
        let left = all.saturating_sub(copied).max(1);
        // Who reads by older places ends by and by.
        let is_passing =
            trouble.as_ref().is_some_and(|error| error.kind() == ErrorKind::Unsupported);
        let trouble = trouble.filter(|_| !is_passing);
        if trouble.is_some() {
            *self.expanding.failed.lock() = Some(Instant::now());
            let is_away = vdevs.expanding().is_some_and(|id| vdevs.check_movable(id).is_err());
            self.expanding.was_away.store(is_away, Relaxed);
        }
        let more = trouble.is_none();
        self.jobs.end(&self.jobs.expanding, Outcome { done: bytes, left, more, trouble });
    }

    /// What the group has grown by is on the disks.
    pub(super) fn use_grown(&self) -> Result<()> {
        let grown = std::mem::take(&mut *self.expanding.grown.lock());
        grown.into_iter().try_for_each(|(id, size)| self.allocator.grow_vdev(id, size))
    }

    /// Devices are well again that an expansion waited for, or somebody wants it tried again.
    pub(super) fn wake_expansion(&self) {
        let job = &self.jobs.expanding;
        if job.trouble().is_none() || job.gets_on() {
            return;
        }
        let vdevs = self.vdevs();
        let Some(id) = vdevs.expanding().filter(|id| vdevs.check_movable(*id).is_ok()) else {
            self.expanding.was_away.store(true, Relaxed);
            return;
        };
        tracing::trace!(vdev = id, "an expansion can go on");
        let is_late = self.expanding.failed.lock().is_none_or(|then| then.elapsed() > PAUSE);
        if self.expanding.was_away.swap(false, Relaxed) || vdevs.take_move_again() || is_late {
            job.wake();
        }
    }

    /// An expansion waits until devices are well.
    pub fn is_expansion_stuck(&self) -> bool {
        let job = &self.jobs.expanding;
        self.vdevs().expanding().is_some() && job.trouble().is_some() && !job.gets_on()
    }

    /// How far the expansion of a vdev is; `None` if none is under way.
    pub fn expansion_progress(&self) -> Option<ExpansionProgress> {
        let id = self.vdevs().expanding()?;
        let figures = self.allocator.figures();
        let in_use = figures.tops.iter().find(|top| top.id == id).map_or(0, |top| top.allocated);
        let moved = self.expanding.copied.lock().unwrap_or(0);
        Some(ExpansionProgress { moved, in_use, waits: self.is_expansion_stuck() })
    }
}
