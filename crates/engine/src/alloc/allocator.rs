//! Choosing addresses for blocks, and taking them back.
//!
//! Chapter 03, section 11. The state is behind one lock, held for no I/O: a metaslab's map is read
//! without it, and read again if it changed meanwhile. Invariant: what is handed out is free on the
//! disks in every group that could still be opened after a crash, and handed out once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use cenote_format::{Dva, ObjectId, Txg};
use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;

use super::Figures;
use super::map::{Delta, read_free};
use super::metaslab::{Presence, slot};
use super::ranges::RangeSet;
use super::state::{AllocatorState, at};
use super::store::SpaceSource;
use super::top::COPIES;
use crate::vdev::{AllocationClass, VdevHandle, VdevTree};
use crate::{Error, ErrorKind, Result};

/// Longest wait for somebody else to read or write a metaslab's map.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest wait for who has metaslabs lent, after he was asked for them.
const LOAN: Duration = Duration::from_secs(30);
/// How long is waited before that is looked at again.
const GLANCE: Duration = Duration::from_millis(500);
/// Copies on one vdev keep this share of it between them, as a shift.
const COPY_DISTANCE: u32 = 3;

/// The addresses of a block's copies.
pub type Dvas = SmallVec<[Dva; COPIES]>;

/// What space is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocRequest {
    /// Bytes to be written; the allocated size follows from the vdev.
    pub psize: u64,
    /// Copies, 1 to 3.
    pub copies: u8,
    /// What the block is for.
    pub class: AllocationClass,
    /// The group it is written in.
    pub txg: Txg,
    /// An address on the vdev to try first: the gang's header, the block's old place.
    pub hint: Option<Dva>,
}

impl AllocRequest {
    /// One copy of a block of ordinary data.
    pub fn new(psize: u64, txg: Txg) -> Self {
        Self { psize, copies: 1, class: AllocationClass::Normal, txg, hint: None }
    }
}

/// Where in a class blocks may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The class's own vdevs.
    Class(AllocationClass),
    /// Metaslabs of normal vdevs set aside for the intent log.
    Embedded,
}

/// Where blocks of a class may go, in order.
fn steps(class: AllocationClass) -> &'static [Step] {
    use AllocationClass::{Dedup, Log, Normal, Special};
    use Step::{Class, Embedded};
    match class {
        Normal => &[Class(Normal), Embedded],
        Log => &[Class(Log), Embedded, Class(Normal)],
        Special => &[Class(Special), Class(Normal), Embedded],
        Dedup => &[Class(Dedup), Class(Special), Class(Normal), Embedded],
    }
}

/// How far a copy keeps from the others of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Apart {
    /// On a vdev of its own.
    Vdev,
    /// Far on the same vdev.
    Far,
    /// Anywhere.
    Anywhere,
}

/// One place that is being looked for.
struct Wish<'a> {
    asize: u64,
    txg: Txg,
    /// Number of the copy.
    copy: usize,
    embedded: bool,
    apart: Apart,
    others: &'a [Dva],
}

impl Wish<'_> {
    /// The metaslab may be used as far as the other copies and its purpose go.
    fn allows(&self, state: &AllocatorState, vdev: u32, index: usize) -> bool {
        let Some(top) = state.top(vdev) else { return false };
        if state.is_swept(vdev, index) || (top.embedded == Some(index)) != self.embedded {
            return false;
        }
        if self.apart != Apart::Far {
            return true;
        }
        let distance = ((top.metaslabs.len() >> COPY_DISTANCE) as u64).max(1);
        self.others
            .iter()
            .filter(|dva| dva.vdev == vdev)
            .all(|dva| (dva.offset >> top.facts.metaslab_shift).abs_diff(index as u64) >= distance)
    }
}

/// The metaslab allocator of a writable pool.
pub struct Allocator {
    pub(super) vdevs: VdevHandle,
    pub(super) source: Arc<dyn SpaceSource>,
    pub(super) state: Mutex<AllocatorState>,
    pub(super) changed: Condvar,
    pub(super) published: ArcSwap<Figures>,
}

impl std::fmt::Debug for Allocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allocator").field("figures", &self.figures()).finish_non_exhaustive()
    }
}

fn no_space() -> Error {
    Error::new(ErrorKind::NoSpace, "no free space is large enough")
}

impl Allocator {
    /// The top-level vdev `id` has this ZAP from now on.
    pub fn set_vdev_zap(&self, id: u32, zap: ObjectId) {
        if let Some(top) = self.state.lock().top_mut(id) {
            top.facts.zap = zap;
        }
    }

    /// Space as of the newest group on the disks. Waits for nothing.
    pub fn figures(&self) -> Arc<Figures> {
        self.published.load_full()
    }

    /// Bytes of a vdev up to the end of its last metaslab; `None` if it takes no blocks.
    pub fn space_of(&self, vdev: u32) -> Option<u64> {
        let state = self.state.lock();
        let top = state.top(vdev)?;
        (top.metaslabs.len() as u64).checked_shl(top.facts.metaslab_shift)
    }

    /// Lets a vdev take new blocks, or no more; the one being removed takes none.
    pub fn set_passive(&self, vdev: u32, passive: bool) {
        let mut state = self.state.lock();
        state.set_passive(vdev, passive);
        self.published.store(Arc::new(state.figures()));
    }

    /// Somebody needs a vdev to take no new blocks for now, or does not any more: it takes some again when nobody does.
    pub fn keep_closed(&self, vdev: u32, closed: bool) {
        let mut state = self.state.lock();
        state.keep_closed(vdev, closed);
        self.published.store(Arc::new(state.figures()));
    }

    /// Finds space for all copies of a block, or none: [`ErrorKind::NoSpace`] if there is no
    /// contiguous space of that size, smaller blocks may still fit.
    pub fn allocate(&self, request: &AllocRequest) -> Result<Dvas> {
        self.allocate_in(request, steps(request.class), true)
    }

    /// The same for who has something else to do where there is no space: he waits for nothing that is lent.
    pub fn allocate_at_once(&self, request: &AllocRequest) -> Result<Dvas> {
        self.allocate_in(request, steps(request.class), false)
    }

    /// The same for a block of the intent log, on what is set aside for that alone.
    pub fn allocate_set_aside(&self, request: &AllocRequest) -> Result<Dvas> {
        self.allocate_in(request, &[Step::Class(AllocationClass::Log), Step::Embedded], false)
    }

    fn allocate_in(&self, request: &AllocRequest, steps: &[Step], waits: bool) -> Result<Dvas> {
        let copies = usize::from(request.copies);
        if request.psize == 0 || copies == 0 || copies > COPIES {
            let reason = format!("{} copies of {} bytes", request.copies, request.psize);
            return Err(Error::invalid(reason));
        }
        let mut state = self.state.lock();
        loop {
            match self.allocate_now(&mut state, request, steps) {
                // It may be in what is lent now.
                Err(error)
                    if error.kind() == ErrorKind::NoSpace && waits && state.swept.is_some() =>
                {
                    if !self.ask_back(&mut state)? {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    fn allocate_now(
        &self,
        state: &mut MutexGuard<'_, AllocatorState>,
        request: &AllocRequest,
        steps: &[Step],
    ) -> Result<Dvas> {
        let copies = usize::from(request.copies);
        let vdevs = self.vdevs.load();
        state.check_open(request.txg)?;
        for step in steps {
            let mut found = Dvas::new();
            let failure = loop {
                if found.len() == copies {
                    return Ok(found);
                }
                match self.place(state, &vdevs, request, *step, &found) {
                    Ok(Some(dva)) => found.push(dva),
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            for dva in &found {
                Self::give_back(state, dva, request.txg)?;
            }
            if let Some(error) = failure {
                return Err(error);
            }
        }
        Err(no_space())
    }

    /// Finds space for the next copy of a block.
    fn place(
        &self,
        state: &mut MutexGuard<'_, AllocatorState>,
        vdevs: &VdevTree,
        request: &AllocRequest,
        step: Step,
        others: &[Dva],
    ) -> Result<Option<Dva>> {
        let (class, embedded) = match step {
            Step::Class(class) => (class, false),
            Step::Embedded => (AllocationClass::Normal, true),
        };
        let copy = others.len();
        let ring: SmallVec<[u32; 16]> = state.ring(class).into();
        let hinted = request.hint.and_then(|hint| ring.iter().position(|id| *id == hint.vdev));
        let first = hinted.unwrap_or_else(|| state.turn(class)) + copy;
        let ways: &[Apart] =
            if copy == 0 { &[Apart::Vdev] } else { &[Apart::Vdev, Apart::Far, Apart::Anywhere] };
        for apart in ways {
            for step in 0..ring.len() {
                let place = (first + step) % ring.len();
                let Some(vdev) = ring.get(place).copied() else { continue };
                let taken = others.iter().any(|dva| dva.vdev == vdev);
                let early = state.top(vdev).is_none_or(|top| request.txg < top.facts.from);
                let wrong = copy > 0 && taken == (*apart == Apart::Vdev);
                if early || wrong || !vdevs.is_readable(vdev) {
                    continue;
                }
                let Some(asize) = vdevs.asize(vdev, request.psize, request.txg) else { continue };
                let txg = request.txg;
                let wish = Wish { asize, txg, copy, embedded, apart: *apart, others };
                if let Some(offset) = self.allocate_on(state, vdev, &wish)? {
                    if copy == 0 && hinted.is_none() && !embedded {
                        state.count_turn(class, place, asize);
                    }
                    return Ok(Some(Dva { vdev, offset, asize, gang: false }));
                }
            }
        }
        Ok(None)
    }

    /// Allocates on one vdev.
    fn allocate_on(
        &self,
        state: &mut MutexGuard<'_, AllocatorState>,
        vdev: u32,
        wish: &Wish<'_>,
    ) -> Result<Option<u64>> {
        // The metaslabs in use, as long as they do not get crumbly.
        let active = state.top(vdev).map(|top| top.active(wish.copy)).unwrap_or_default();
        for index in active {
            if !wish.allows(state, vdev, index) {
                continue;
            }
            let slab = state.slab(vdev, index)?;
            if slab.loaded().is_none() || slab.largest() < wish.asize {
                continue;
            }
            if let Some(offset) = slab.first_fit(wish.asize) {
                return Self::take(state, vdev, index, offset, wish).map(Some);
            }
            let largest = slab.largest();
            let allows = |index| wish.allows(state, vdev, index);
            if state.top(vdev).and_then(|top| top.has_better(largest, allows)).is_none()
                && let Some(offset) = state.slab(vdev, index)?.best_fit(wish.asize)
            {
                return Self::take(state, vdev, index, offset, wish).map(Some);
            }
        }
        // Then the most promising ones. Each turn loads one more, or ends.
        loop {
            let allows = |index| wish.allows(state, vdev, index);
            let Some(index) = state.top(vdev).and_then(|top| top.pick(wish.asize, allows)) else {
                return Ok(None);
            };
            // While its map was read it may have been lent to somebody.
            if !self.load(state, vdev, index)? || !wish.allows(state, vdev, index) {
                continue;
            }
            if let Some(top) = state.top_mut(vdev) {
                top.rerank(index);
            }
            let slab = state.slab(vdev, index)?;
            let offset = slab.first_fit(wish.asize).or_else(|| slab.best_fit(wish.asize));
            if let Some(offset) = offset {
                if let Some(top) = state.top_mut(vdev) {
                    top.activate(wish.copy, index);
                }
                return Self::take(state, vdev, index, offset, wish).map(Some);
            }
        }
    }

    /// Takes what was found.
    fn take(
        state: &mut AllocatorState,
        vdev: u32,
        index: usize,
        offset: u64,
        wish: &Wish<'_>,
    ) -> Result<u64> {
        let taken = state.slab_mut(vdev, index)?.take(offset, wish.asize, wish.txg, true);
        taken.map_err(|_| at(Error::bug("allocated twice"), vdev, offset))?;
        state.mark_dirty(vdev, index, wish.txg);
        Ok(offset)
    }

    /// Reads a metaslab's map if that is not in memory. Gives the lock away meanwhile. `false`: the
    /// map makes no sense.
    pub(super) fn load(
        &self,
        state: &mut MutexGuard<'_, AllocatorState>,
        vdev: u32,
        index: usize,
    ) -> Result<bool> {
        loop {
            let top = state.top(vdev);
            let (shift, boundary) =
                top.map_or((9, None), |t| (t.facts.ashift, t.facts.geometry.boundary));
            let slab = state.slab_mut(vdev, index)?;
            match slab.presence {
                Presence::Loaded(_) => return Ok(true),
                Presence::Broken => return Ok(false),
                Presence::Loading => {
                    self.wait(state)?;
                    continue;
                }
                Presence::Absent if slab.writing.is_some() => {
                    self.wait(state)?;
                    continue;
                }
                Presence::Absent => slab.presence = Presence::Loading,
            }
            let (generation, range) = (slab.generation, (slab.start, slab.size));
            let extent = slab.map.as_ref().map(super::map::SpaceMap::extent);
            let shift = u8::try_from(shift).unwrap_or(9);
            let free = MutexGuard::unlocked(state, || match extent {
                Some(extent) => read_free(self.source.as_ref(), extent, range, shift),
                None => {
                    let mut all = RangeSet::default();
                    let whole = all.insert(range.0, range.1);
                    whole.map(|()| all).map_err(|_| Error::bug("an empty metaslab"))
                }
            });
            self.changed.notify_all();
            let slab = state.slab_mut(vdev, index)?;
            slab.presence = Presence::Absent;
            if slab.generation != generation || slab.writing.is_some() {
                continue;
            }
            let free = match free {
                Ok(free) => slab.finish_load(free, boundary).map_err(Error::corrupt),
                Err(error) if error.is_lasting() => Err(error),
                // The map cannot be read now; it may be later.
                Err(error) => return Err(error),
            };
            if let Err(error) = free {
                tracing::error!(vdev, metaslab = index, %error, "a metaslab cannot be used");
                slab.presence = Presence::Broken;
            }
            if let Some(top) = state.top_mut(vdev) {
                top.rerank(index);
            }
        }
    }

    /// Asks for the metaslabs that are lent, and waits a little. False: whoever has them does not give them back.
    pub(super) fn ask_back(&self, state: &mut MutexGuard<'_, AllocatorState>) -> Result<bool> {
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.asked.get_or_insert_with(Instant::now).elapsed() >= LOAN {
            return Ok(false);
        }
        state.waiting = state.waiting.saturating_add(1);
        self.changed.wait_for(state, GLANCE);
        state.waiting = state.waiting.saturating_sub(1);
        Ok(true)
    }

    pub(super) fn wait(&self, state: &mut MutexGuard<'_, AllocatorState>) -> Result<()> {
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if self.changed.wait_for(state, PATIENCE).timed_out() {
            let reason = "waited too long for a metaslab's space map";
            return Err(Error::new(ErrorKind::TimedOut, reason));
        }
        Ok(())
    }

    /// Frees one copy in `txg` of a block born in `birth`; what the pool's checkpoint holds is kept.
    /// Gang headers and their children are freed one by one. On a removed vdev its pieces are freed
    /// where they lie now. It can be allocated again when `txg + 2` is on the disks.
    pub fn free(&self, dva: &Dva, birth: Txg, txg: Txg) -> Result<()> {
        let mut state = self.state.lock();
        state.check_open(txg)?;
        let places = state.resolve(dva)?;
        for dva in &places.concrete {
            match state.keeps(birth, txg) {
                true => {
                    state.locate(dva)?;
                    state.keep(dva, txg)?;
                }
                false => state.give_up(dva, txg)?,
            }
        }
        state.note_obsolete(&places, txg)
    }

    /// Gives back what was allocated in `txg` and is not used: nothing refers to it, no write of it
    /// is on its way, and no [`Allocator::sync`] has recorded it. What was recorded is freed with
    /// [`Allocator::free`] instead.
    pub fn unalloc(&self, dva: &Dva, txg: Txg) -> Result<()> {
        let mut state = self.state.lock();
        state.check_open(txg)?;
        Self::give_back(&mut state, dva, txg)
    }

    fn give_back(state: &mut AllocatorState, dva: &Dva, txg: Txg) -> Result<()> {
        let index = state.locate(dva)?;
        let slab = state.slab_mut(dva.vdev, index)?;
        slab.give_back(dva.offset, dva.asize, txg).map_err(|_| {
            let reason = format!("{:#x} bytes are given back that are in use", dva.asize);
            at(Error::bug(reason), dva.vdev, dva.offset)
        })?;
        if slab.pending.get(slot(txg)).is_some_and(Delta::is_empty)
            && let Some(dirty) = state.dirty.get_mut(slot(txg))
        {
            dirty.remove(&(dva.vdev, index));
        }
        if let Some(top) = state.top_mut(dva.vdev)
            && !top.is_active(index)
        {
            top.rerank(index);
        }
        Ok(())
    }

    /// Takes exactly this range, found in an intent log, out of the free space. An error if part of
    /// it is not free.
    pub fn claim(&self, dva: &Dva, txg: Txg) -> Result<()> {
        let mut state = self.state.lock();
        state.check_open(txg)?;
        let index = state.locate(dva)?;
        let Dva { vdev, offset, asize, .. } = *dva;
        let wrong = |what: &str| {
            at(Error::corrupt(format!("{asize:#x} bytes of an intent log {what}")), vdev, offset)
        };
        if !self.load(&mut state, vdev, index)? {
            return Err(wrong("lie in a metaslab whose space map is damaged"));
        }
        let taken = state.slab_mut(vdev, index)?.take(offset, asize, txg, false);
        taken.map_err(|_| wrong("are not free"))?;
        state.mark_dirty(vdev, index, txg);
        if let Some(top) = state.top_mut(vdev) {
            top.rerank(index);
        }
        Ok(())
    }

    /// Allocates exactly this range for a block of the intent log, if it is free and on a vdev that
    /// takes such blocks now; says whether it did. Reads no space map.
    pub fn allocate_for_log(&self, dva: &Dva, txg: Txg) -> Result<bool> {
        let mut state = self.state.lock();
        state.check_open(txg)?;
        let Dva { vdev, offset, asize, .. } = *dva;
        let class = match state.ring(AllocationClass::Log) {
            [] => AllocationClass::Normal,
            _ => AllocationClass::Log,
        };
        let early = state.top(vdev).is_none_or(|top| txg < top.facts.from);
        if early || !state.ring(class).contains(&vdev) {
            return Ok(false);
        }
        let index = state.locate(dva)?;
        if state.is_swept(vdev, index) {
            return Ok(false);
        }
        // What was prepared is free space like any other: somebody else may have it by now.
        let taken = state.slab_mut(vdev, index)?.take(offset, asize, txg, false).is_ok();
        if taken {
            state.mark_dirty(vdev, index, txg);
        }
        Ok(taken)
    }

    /// All of this range can be allocated now.
    pub fn is_free(&self, dva: &Dva) -> Result<bool> {
        let mut state = self.state.lock();
        let index = state.locate(dva)?;
        if !self.load(&mut state, dva.vdev, index)? {
            return Ok(false);
        }
        let slab = state.slab(dva.vdev, index)?;
        Ok(slab.loaded().is_some_and(|loaded| loaded.tree.contains(dva.offset, dva.asize)))
    }
}
