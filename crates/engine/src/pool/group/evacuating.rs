//! A top-level vdev is emptied, a portion in each group: the job "removing".
//!
//! Chapter 08, section 18. A portion copies what is in use behind the end of the mapping, side by side,
//! and extends the mapping in the same group; what was freed before is left out. When nothing is left a
//! later group puts a vdev in the place of the old one that tells where everything is. Invariant: a
//! group's mapping leads only to what is on the disks with that group; until the vdev is gone
//! everything is still there, too, so that a removal can be given up at any moment. What fails changes
//! nothing of its group.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use cenote_format::config::{IndirectObjects, PoolConfig, VdevConfig};
use cenote_format::indirect_mapping::{
    Birth, MappingEntry, REMOVAL_CANCELED, REMOVAL_FINISHED, RemovalState,
};
use cenote_format::{Dva, Guid, Txg};
use parking_lot::Mutex;

use super::differing::{self, Doubt};
use super::hooks::GroupHooks;
use super::mapping;
use super::sync::seconds_now;
use super::vdev_zaps::free_objects_of;
use super::{LivePool, MosStore};
use crate::alloc::{AllocRequest, SpaceSource};
use crate::dataset::change::MosChange;
use crate::job::{Budget, Outcome};
use crate::pipe::Submit;
use crate::pool::labels;
use crate::pool::removed::active_removal;
use crate::vdev::{BlockWrite, Stretch, VdevTree};
use crate::{Error, ErrorKind, Result};

/// Most bytes that one entry of a mapping tells of.
const LONGEST: u64 = 16 << 20;
/// What is free between two ranges in use is copied with them up to this size.
const WIDEST_GAP: u64 = 32 << 10;
/// Bytes that are read together.
const TOGETHER: u64 = 16 << 20;
/// Bytes that count as a block to the budget of a portion.
const UNIT: u64 = 32 << 10;
/// Most bytes copied in one group, about.
const IN_ONE_GROUP: u64 = 4 << 30;
/// Portions that may fail, one after another, before the removal is given up.
const TRIES: u64 = 8;
/// The first group of any pool.
const FIRST: u64 = 4;
/// The entry of a top-level vdev's ZAP that says, by 0, that it takes no new blocks.
const ALLOCATING: &str = "allocating";

/// Has the configuration say that a top-level vdev takes no new blocks.
fn rests(top: &mut VdevConfig) {
    if let Some(facts) = &mut top.top {
        facts.non_allocating = Some(1);
    }
}

/// The part of a removal that is in memory.
#[derive(Default)]
pub(in crate::pool) struct Evacuation {
    /// Group, and the top-level vdevs that got copies in it.
    receivers: Mutex<(Txg, BTreeSet<u32>)>,
    /// Vdevs that the group being written has replaced by their mapping: as they were, and their ids.
    gone: Mutex<Vec<(Arc<VdevTree>, u32)>>,
    /// Portions that could not do anything.
    failures: AtomicU64,
    /// How often devices had come back when the job was stuck.
    comebacks: AtomicU64,
    /// The sides of the vdev were found to differ.
    pub(super) doubt: Mutex<Option<Doubt>>,
}

/// A stretch to be copied as one, and what of it is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Piece {
    start: u64,
    end: u64,
    gaps: Vec<(u64, u64)>,
}

impl Piece {
    /// The first piece of `ranges` (start and end, ascending, the first not empty) of at most `longest`
    /// bytes.
    fn first_of(ranges: &[(u64, u64)], from: u64, longest: u64) -> Option<Self> {
        let mut piece: Option<Self> = None;
        for (start, end) in ranges {
            let start = (*start).max(from);
            if start >= *end {
                continue;
            }
            let Some(piece) = &mut piece else {
                let end = (*end).min(start.saturating_add(longest));
                piece = Some(Self { start, end, gaps: Vec::new() });
                continue;
            };
            let is_near = start.saturating_sub(piece.end) <= WIDEST_GAP;
            if !is_near || end.saturating_sub(piece.start) > longest {
                break;
            }
            if start > piece.end {
                piece.gaps.push((piece.end, start));
            }
            piece.end = *end;
        }
        piece
    }

    fn length(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    fn free_bytes(&self) -> u64 {
        self.gaps.iter().fold(0, |sum, (start, end)| sum + (end - start))
    }

    /// What of it is in use, as offsets from its beginning.
    fn used(&self) -> Vec<Range<u64>> {
        let ends = self.gaps.iter().map(|(start, _)| *start).chain([self.end]);
        let starts = [self.start].into_iter().chain(self.gaps.iter().map(|(_, end)| *end));
        let from_start = |at: u64| at.saturating_sub(self.start);
        starts.zip(ends).map(|(start, end)| from_start(start)..from_start(end)).collect()
    }
}

/// A piece and the place it goes to.
type Copy = (Piece, Dva);

/// How a portion ended.
enum End {
    /// So many bytes in use were copied.
    Copied(u64),
    /// There was nothing left.
    Through,
    /// It could not be done now, but later perhaps.
    Failed(Error),
    /// Sides differ, and which is right is not known yet.
    Doubtful,
}

impl LivePool {
    /// Goes on with the removal of a vdev, if there is one.
    pub(super) fn go_on_evacuating(
        &self,
        change: &MosChange<'_>,
        hooks: &GroupHooks<'_>,
    ) -> Result<()> {
        let job = &self.jobs.evacuating;
        let Some(portion) = job.begin() else { return Ok(()) };
        let Some((mut state, own)) =
            active_removal(change.mos)?.and_then(|state| Some((state, Emptied::of(self, &state)?)))
        else {
            self.jobs.end(job, Outcome::default());
            return Ok(());
        };
        if portion.anew {
            self.evacuation.failures.store(0, Relaxed);
            // Where OpenZFS 2.1 began the removal nothing says so, and who goes on with it may be a later one.
            self.mark_leaves(change, own.unmarked.into_iter().collect(), rests);
        }
        let txg = change.tx.txg();
        if portion.canceled {
            let left = state.to_copy.saturating_sub(state.copied);
            let done =
                self.all_or_nothing(txg, hooks, || self.give_up_removal(change, &own, state));
            self.jobs.end(job, ended(done, left));
            return Ok(());
        }
        let end = self.copy_portion(change, hooks, &own, &mut state)?;
        let left = state.to_copy.saturating_sub(state.copied);
        let outcome = match end {
            End::Copied(done) => {
                self.evacuation.failures.store(0, Relaxed);
                Outcome { done, left, more: true, trouble: None }
            }
            End::Through => {
                let done = self.all_or_nothing(txg, hooks, || {
                    self.refuse_to_leave_behind()?;
                    self.finish_removal(change, &own, state)
                });
                // Nothing is lost as long as the vdev is there.
                ended(done, left)
            }
            End::Doubtful => {
                let tell = || self.have_sides_told_apart(change, own.id);
                let trouble = self.all_or_nothing(txg, hooks, tell);
                Outcome { done: 0, left, more: false, trouble: Some(trouble.unwrap_or_else(|e| e)) }
            }
            // It may be read when a device is back, or was resilvered.
            End::Failed(error) if !self.can_be_copied(own.id) => {
                self.evacuation.comebacks.store(self.vdevs().comebacks(), Relaxed);
                Outcome { done: 0, left, more: false, trouble: Some(error) }
            }
            End::Failed(error) if self.evacuation.failures.fetch_add(1, Relaxed) >= TRIES => {
                tracing::error!(vdev = own.id, %error, "the removal is given up");
                let give_up = || self.give_up_removal(change, &own, state);
                ended(self.all_or_nothing(txg, hooks, give_up), left)
            }
            End::Failed(error) => Outcome { done: 0, left, more: true, trouble: Some(error) },
        };
        self.jobs.end(job, outcome);
        Ok(())
    }

    /// Vdev `id` has a side that can be read and lacks nothing.
    fn can_be_copied(&self, id: u32) -> bool {
        let vdevs = self.vdevs();
        vdevs.is_readable(id) && vdevs.has_whole_side(id)
    }

    /// A device is back that the removal waited for.
    pub(super) fn wake_evacuation(&self) {
        let job = &self.jobs.evacuating;
        if job.trouble().is_some() && !job.gets_on() {
            let comebacks = self.vdevs().comebacks();
            if self.evacuation.comebacks.swap(comebacks, Relaxed) != comebacks {
                job.wake();
            }
        }
    }

    /// Copies a portion, and records it.
    fn copy_portion(
        &self,
        change: &MosChange<'_>,
        hooks: &GroupHooks<'_>,
        own: &Emptied,
        state: &mut RemovalState,
    ) -> Result<End> {
        let txg = change.tx.txg();
        let is_waited_for = || self.gate.is_waited_for(txg);
        let most = self.options.copied_at_once.unwrap_or(IN_ONE_GROUP);
        let mut budget = Budget::blocks(most.div_ceil(UNIT)).sharing(&is_waited_for);
        let (mut entries, mut copied, mut failure) = (Vec::new(), 0_u64, None);
        let mut from = self.allocator.moved_until();
        while !budget.is_spent() {
            let most = TOGETHER.min(budget.left().saturating_mul(UNIT));
            let used = match self.allocator.in_use_from(from, most) {
                Ok(used) => used,
                Err(error) => {
                    failure = Some(End::Failed(error));
                    break;
                }
            };
            let Some(used) = used else { break };
            let (copies, short) = self.place_copies(own, &used, (from, most), txg)?;
            let undone = match self.copy(own, &copies, txg) {
                Ok(true) => None,
                Ok(false) => Some(End::Doubtful),
                Err(error) => Some(End::Failed(error)),
            };
            if undone.is_some() {
                copies.iter().try_for_each(|(_, dva)| self.allocator.free(dva, txg, txg))?;
                failure = undone;
                break;
            }
            for (piece, dva) in copies {
                from = piece.end;
                copied = copied.saturating_add(piece.length().saturating_sub(piece.free_bytes()));
                budget.spend(piece.length().div_ceil(UNIT));
                entries.push((piece, dva));
            }
            if short.is_some() {
                failure = short.map(End::Failed);
                break;
            }
        }
        if entries.is_empty() {
            return Ok(failure.unwrap_or(End::Through));
        }
        let more = RemovalState { copied: state.copied.saturating_add(copied), ..*state };
        let recorded = self.all_or_nothing(txg, hooks, || {
            self.record_copies(change, own, &entries)?;
            mapping::put_removal_state(change, &more)
        });
        if let Err(error) = recorded {
            entries.iter().try_for_each(|(_, dva)| self.allocator.free(dva, txg, txg))?;
            return Ok(End::Failed(error));
        }
        *state = more;
        self.take_over_copies(&entries, txg)?;
        Ok(End::Copied(copied))
    }

    /// Finds places for what is in use, as far as there is room, and `most` bytes or the first piece: what
    /// is short if there is none.
    fn place_copies(
        &self,
        own: &Emptied,
        ranges: &[(u64, u64)],
        (mut from, most): (u64, u64),
        txg: Txg,
    ) -> Result<(Vec<Copy>, Option<Error>)> {
        let (mut copies, mut bytes, mut longest) =
            (Vec::new(), 0_u64, LONGEST.min(most.max(own.unit)));
        longest -= longest % own.unit;
        while bytes < most
            && let Some(piece) = Piece::first_of(ranges, from, longest)
        {
            let request =
                AllocRequest { class: own.class, ..AllocRequest::new(piece.length(), txg) };
            match self.allocator.allocate(&request) {
                Ok(dvas) => {
                    let dva = dvas.first().copied();
                    let dva = dva.ok_or_else(|| Error::bug("space without an address"))?;
                    if dva.asize != piece.length() {
                        return Err(Error::bug("a copy takes another size than the original"));
                    }
                    from = piece.end;
                    bytes = bytes.saturating_add(piece.length());
                    copies.push((piece, dva));
                }
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    if piece.length() <= own.unit {
                        return Ok((copies, Some(error)));
                    }
                    let half = piece.length() / 2;
                    longest = (half - half % own.unit).max(own.unit);
                }
                Err(error) => return Ok((copies, Some(error))),
            }
        }
        Ok((copies, None))
    }

    /// Reads pieces and hands them on to be written to their places; false: nothing was done, for sides
    /// differ and nothing tells which is right.
    fn copy(&self, own: &Emptied, copies: &[Copy], txg: Txg) -> Result<bool> {
        let vdevs = self.vdevs();
        let stretch =
            |(piece, _): &Copy| Stretch { vdev: own.id, offset: piece.start, size: piece.length() };
        let stretches: Vec<Stretch> = copies.iter().map(stretch).collect();
        let read = vdevs.read_sides(&stretches);
        let read: Vec<Vec<Bytes>> =
            read.into_iter().collect::<std::result::Result<_, _>>().map_err(Error::from)?;
        let differ = copies
            .iter()
            .zip(&read)
            .any(|((piece, _), sides)| differing::differ(sides, &piece.used()));
        let right = match differ {
            false => 0,
            true => match self.right_side(own.id) {
                Some(side) => side,
                None => return Ok(false),
            },
        };
        {
            let mut receivers = self.evacuation.receivers.lock();
            if receivers.0 != txg {
                *receivers = (txg, BTreeSet::new());
            }
            receivers.1.extend(copies.iter().map(|(_, dva)| dva.vdev));
        }
        for ((piece, dva), mut sides) in copies.iter().zip(read) {
            // Where there are fewer sides, the first are written.
            if let Some(front) = sides.get_mut(..=right) {
                front.rotate_right(1);
            }
            let data = sides.first().cloned().unwrap_or_default();
            if data.len() as u64 != piece.length() {
                return Err(Error::bug("a side was read that has another length"));
            }
            let (vdev, offset) = (dva.vdev, dva.offset);
            let sides = Some(Arc::from(sides));
            self.submit.submit(BlockWrite { vdev, offset, data, sides, birth: txg })?;
        }
        Ok(true)
    }

    /// Extends the mapping in the metadata by what was copied.
    fn record_copies(&self, change: &MosChange<'_>, own: &Emptied, copies: &[Copy]) -> Result<()> {
        let txg = change.tx.txg();
        let entry = |(piece, dva): &Copy| {
            let free = u32::try_from(piece.free_bytes()).unwrap_or(u32::MAX);
            (MappingEntry { source: piece.start, destination: *dva }, free)
        };
        let entries: Vec<(MappingEntry, u32)> = copies.iter().map(entry).collect();
        mapping::extend_mapping(change, own.objects.mapping, &entries)?;
        let end = copies.last().map_or(0, |(piece, _)| piece.end);
        mapping::add_birth(change, own.objects.births, Birth { end_offset: end, txg })
    }

    /// Extends the mapping in memory by what was copied and is recorded, and frees the copies of what was not
    /// in use.
    fn take_over_copies(&self, copies: &[Copy], txg: Txg) -> Result<()> {
        let entry = |(piece, dva): &Copy| MappingEntry { source: piece.start, destination: *dva };
        let entries: Vec<MappingEntry> = copies.iter().map(entry).collect();
        self.allocator.note_moved(&entries)?;
        for (piece, dva) in copies {
            for (start, end) in &piece.gaps {
                let offset = dva.offset.saturating_add(start.saturating_sub(piece.start));
                let gap = Dva { offset, asize: end.saturating_sub(*start), ..*dva };
                self.allocator.free(&gap, txg, txg)?;
            }
        }
        Ok(())
    }

    /// Refuses the end of a removal with which something would go that is in use and was not copied.
    fn refuse_to_leave_behind(&self) -> Result<()> {
        let Some((start, end)) = self.allocator.left_behind()? else { return Ok(()) };
        let reason = format!("{start:#x}..{end:#x} of the device was not copied: it stays");
        Err(Error::bug(reason))
    }

    /// Everything was copied: a vdev takes the place of the old one that tells where.
    fn finish_removal(
        &self,
        change: &MosChange<'_>,
        own: &Emptied,
        state: RemovalState,
    ) -> Result<()> {
        let (id, before) = (own.id, self.vdevs());
        let missing = || Error::bug("the vdev that is removed is not there");
        let gone = before.topology().top(id).cloned().ok_or_else(missing)?;
        let guid = Guid(change.hooks.random());
        let topology = before.topology().emptied(id, guid, state.previous, change.tx.txg())?;
        let tree = before.with_topology(topology)?;
        tree.set_mapping(id, self.allocator.moved()?)?;
        let mut store = MosStore::new(change);
        self.allocator.destroy_maps(&mut store, id)?;
        // The vdev that takes the place goes on with the ZAP.
        let mut left = gone.clone();
        left.top_zap = None;
        free_objects_of(change, &mut store, left.walk())?;
        let state = RemovalState {
            state: REMOVAL_FINISHED,
            previous: Some(id.into()),
            end_time: seconds_now(),
            ..state
        };
        mapping::put_removal_state(change, &state)?;
        let words = format!("{} vdev {id}", self.pool.name());
        change.log_event("vdev remove completed", None, &words)?;
        self.tell_of_gone("vdev_remove_dev", gone.guid);
        self.allocator.forget_moved(id);
        self.forget_missed(&gone);
        *self.evacuation.doubt.lock() = None;
        self.take_vdevs(Arc::new(tree));
        self.evacuation.gone.lock().push((before, id));
        Ok(())
    }

    /// The vdevs are on the disks as they are now: devices that have left learn of it.
    pub(super) fn part_with_devices(&self) {
        for (before, id) in std::mem::take(&mut *self.evacuation.gone.lock()) {
            let facts = PoolConfig { txg: Some(Txg(0)), ..self.config.lock().facts() };
            for leaf in before.devices().into_iter().filter(|leaf| leaf.top == id) {
                let Some(own) = before.topology().label(&facts, leaf.guid) else { continue };
                let own = self.vdevs().topology().parting_label(own, id);
                let device = [(leaf.device.clone(), own)];
                if let Err(error) = labels::initialise_devices(&device, &self.pool.uberblock()) {
                    tracing::warn!(%error, "a removed device keeps its labels");
                }
            }
        }
    }

    /// Takes a removal back: the copies are freed.
    fn give_up_removal(
        &self,
        change: &MosChange<'_>,
        own: &Emptied,
        state: RemovalState,
    ) -> Result<()> {
        let (id, txg) = (own.id, change.tx.txg());
        let vdevs = self.vdevs();
        let copied = self.allocator.copied_in_use()?;
        self.allocator.destroy_obsolete_of_moved(&mut MosStore::new(change))?;
        mapping::free_mapping(change, own.objects.mapping)?;
        change.mos.free_object(change.tx, own.objects.births)?;
        change.remove_reference(mapping::FEATURE)?;
        let state = RemovalState { state: REMOVAL_CANCELED, end_time: seconds_now(), ..state };
        mapping::put_removal_state(change, &state)?;
        let top = vdevs.topology().top(id).cloned().unwrap_or_default();
        let path = top.path.as_deref().unwrap_or("-");
        let words = format!("{} vdev {id} {path}", self.pool.name());
        change.log_event("vdev remove canceled", None, &words)?;
        self.change_topology(|topology| topology.removing(id, None, txg))?;
        // Somebody else's wish outlasts the removal (the device property `allocating`).
        let allocating = match top.top_zap {
            Some(zap) => MosStore::new(change).zap_number(zap, ALLOCATING)?,
            None => None,
        };
        let is_passive = allocating == Some(0);
        if is_passive {
            self.mark_leaves(change, vec![top.guid], rests);
        }
        self.when_done(move |live| {
            *live.evacuation.doubt.lock() = None;
            if let Err(error) = live.allocator.free_copies(&copied, txg) {
                tracing::error!(vdev = id, %error, "the space of copies is lost");
            }
            live.allocator.keep_vdev(id, is_passive);
        });
        Ok(())
    }

    /// Who missed a copy made in `txg` lacks blocks that are older: everything up to then, as far as a
    /// resilver can tell.
    pub(super) fn note_missed_copies(&self, vdevs: &VdevTree, txg: Txg) {
        let receivers = self.evacuation.receivers.lock();
        if receivers.0 != txg {
            return;
        }
        let tops = receivers.1.iter().filter_map(|id| vdevs.topology().top(*id));
        for leaf in tops.flat_map(|top| top.devices()) {
            if vdevs.misses(leaf.guid, txg) {
                vdevs.add_missing_txgs(leaf.guid, FIRST..txg.0.saturating_add(1));
            }
        }
    }
}

/// How the last portion ended: with `left` bytes not copied if it failed.
fn ended(done: Result<()>, left: u64) -> Outcome {
    match done {
        Ok(()) => Outcome::default(),
        Err(error) => Outcome { done: 0, left, more: false, trouble: Some(error) },
    }
}

/// The vdev being removed.
struct Emptied {
    id: u32,
    objects: IndirectObjects,
    class: crate::vdev::AllocationClass,
    /// Its sectors.
    unit: u64,
    /// Its guid, if its configuration does not say that it takes no new blocks.
    unmarked: Option<Guid>,
}

impl Emptied {
    fn of(live: &LivePool, state: &RemovalState) -> Option<Self> {
        let vdevs = live.vdevs();
        let id = u32::try_from(state.vdev?).ok()?;
        let top = vdevs.topology().top(id)?;
        let is_removing = top.top.is_some_and(|facts| facts.removing == Some(1));
        let objects = top.indirect.filter(|_| is_removing)?;
        let unit = 1_u64.checked_shl(vdevs.ashift(id)?)?;
        let says = top.top.is_some_and(|facts| facts.non_allocating == Some(1));
        let unmarked = (!says).then_some(top.guid);
        Some(Self { id, objects, class: vdevs.class(id), unit, unmarked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_what_is_near_and_end_where_they_are_full() {
        let ranges = [(0, 8192), (12288, 16384), (1 << 20, (1 << 20) + 4096), (2 << 20, 40 << 20)];
        let piece = Piece::first_of(&ranges, 0, LONGEST).unwrap();
        assert_eq!(piece, Piece { start: 0, end: 16384, gaps: vec![(8192, 12288)] });
        assert_eq!((piece.length(), piece.free_bytes()), (16384, 4096));
        assert_eq!(piece.used(), [0..8192, 12288..16384]);
        // From the middle of a range, and no longer than asked for.
        let piece = Piece::first_of(&ranges, 4096, 8192).unwrap();
        assert_eq!((piece.start, piece.end), (4096, 8192));
        let piece = Piece::first_of(&ranges, 16384, LONGEST).unwrap();
        assert_eq!((piece.start, piece.end), (1 << 20, (1 << 20) + 4096));
        let piece = Piece::first_of(&ranges, 2 << 20, LONGEST).unwrap();
        assert_eq!(piece.end, 18 << 20);
        assert_eq!(Piece::first_of(&ranges, 40 << 20, LONGEST), None);
    }
}
