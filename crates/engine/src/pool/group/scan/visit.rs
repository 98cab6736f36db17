//! Visiting a portion: finding blocks in logical order, reading them in the order of the disks.
//!
//! Chapter 08, sections 3 to 5. Invariant: a portion is found in one state of the pool, of which nothing
//! is overwritten before all of it is read, and ends before a block of data or of dnodes, so that OpenZFS
//! goes on there.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::Builder;
use std::time::{Duration, Instant};

use cenote_format::bptree::BlockBookmark;
use cenote_format::scan_state::{ScanFunction, ScanState};
use cenote_format::{BlockPointer, Dva, Guid, ObjectId, Txg};
use parking_lot::Mutex;

use super::run::Successors;
use super::{LivePool, Scan};
use crate::dataset::Catalog;
use crate::pipe::{Scope, Scrubbed};
use crate::vdev::Reading;
use crate::walk::{Node, Order, Step, Tree, Walk};
use crate::{Error, ErrorKind, Result};

/// Blocks of a portion, about: at first, at least and at most.
const BLOCKS: [usize; 3] = [512, 32, 8192];
/// Most bytes of a portion for each of its blocks, about.
const BYTES: u64 = 32 << 10;
/// Reading a portion is to take more than the first of these, and less than the second.
const READING: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(1500)];
/// Time for finding them.
const FINDING: Duration = Duration::from_secs(1);
/// Threads that read.
const READERS: usize = 4;
/// Blocks a reader takes at once, and the bytes after which it takes no more.
const TAKEN: (usize, u64) = (64, 2 << 20);
/// Threads that read while somebody else does, and what they take.
const SHARING: (usize, u64) = (1, 512 << 10);
/// For how long after a read it counts that somebody reads.
const SHARED: Duration = Duration::from_millis(100);
/// For how long a portion gives way to others: what is freed is kept until it is read.
const GIVING_WAY: Duration = Duration::from_secs(3);
/// How long a reader sits out while somebody waits for a group, or reads.
const SITTING: Duration = Duration::from_millis(1);
/// How long one of those does that are too many while somebody reads.
const RESTING: Duration = Duration::from_millis(20);
/// Time between two attempts when something is not there yet, or devices are away.
const AGAIN: Duration = Duration::from_millis(100);
/// The accounts of users, groups and projects, whose blocks no portion ends at.
const FIRST_ACCOUNT: u64 = u64::MAX - 2;

/// What is to be visited next.
pub(super) struct Place {
    pub(super) serial: u64,
    pub(super) record: ScanState,
    to_be_begun: Option<ObjectId>,
}

/// Blocks that are to be read.
#[derive(Default)]
pub(super) struct Blocks {
    pointers: Vec<BlockPointer>,
    /// Object set, object, level and number of each.
    places: Vec<(u64, u64, u8, u64)>,
    /// Allocated bytes of all that were found, and of those among them that are not to be read.
    pub(super) examined: u64,
    skipped: u64,
    /// What was lost on the way.
    lost: Vec<Error>,
}

impl Blocks {
    /// How many threads there is something to read for.
    fn readers(&self) -> usize {
        let bytes = self.pointers.iter().map(BlockPointer::psize).fold(0, u64::saturating_add);
        let by_bytes = usize::try_from(bytes / TAKEN.1).unwrap_or(READERS);
        READERS.min(by_bytes.saturating_add(self.pointers.len() / TAKEN.0).saturating_add(1))
    }

    /// The next blocks in `order` that are read together, `most` bytes or somewhat more; none if all were taken.
    fn take_next<'a>(
        &self,
        order: &'a [usize],
        next: &mut usize,
        most: u64,
    ) -> Option<&'a [usize]> {
        let rest = order.get(*next..)?;
        let (mut bytes, mut count) = (0_u64, 0);
        for index in rest.iter().take(TAKEN.0) {
            if bytes >= most {
                break;
            }
            bytes = bytes.saturating_add(self.pointers.get(*index).map_or(0, |bp| bp.psize()));
            count += 1;
        }
        *next = next.saturating_add(count);
        rest.get(..count).filter(|taken| !taken.is_empty())
    }

    pub(super) fn push(&mut self, pointer: BlockPointer, place: (u64, u64, u8, u64)) {
        self.examined = self.examined.saturating_add(allocated(&pointer));
        self.pointers.push(pointer);
        self.places.push(place);
    }
}

/// Blocks that were found.
#[derive(Default)]
struct Found {
    blocks: Blocks,
    /// Where the next portion begins; `None`: the object set is done.
    next: Option<BlockBookmark>,
}

/// What reading them did.
#[derive(Default)]
struct Done {
    repaired: u64,
    lost: Vec<Error>,
    failed: Vec<Txg>,
    /// Leaves that could not be asked for something.
    away: BTreeSet<Guid>,
}

impl LivePool {
    /// Visits a portion of what the scan has left, if it has anything to do.
    pub(super) fn visit_portion(&self) {
        let visited = match self.place() {
            Some(place) if self.pool.uberblock().txg < place.record.max_txg => {
                // All that may be lacking is to be seen, also what was placed early in groups on their way.
                if !self.options.inline {
                    self.gate.want(self.gate.figures().open);
                }
                Err(Error::new(ErrorKind::Busy, "groups are on their way"))
            }
            Some(place) if self.gate.suspension().is_none() => match place.to_be_begun {
                Some(dataset) => self.begin_dataset(dataset, place.serial),
                None => match self.visit_in_order(&place) {
                    Ok(false) => self.visit(&place),
                    visited => visited.map(drop),
                },
            },
            Some(_) => Err(Error::new(ErrorKind::Busy, "pool I/O is currently suspended")),
            None => return,
        };
        if let Err(error) = visited {
            tracing::debug!(%error, "the scan waits");
            if !self.options.inline {
                std::thread::sleep(AGAIN);
            }
        }
    }

    fn place(&self) -> Option<Place> {
        let run = self.scan.run.lock();
        let run = run.as_ref().filter(|run| Scan::has_work(Some(run)))?;
        let to_be_begun = run.to_be_begun();
        Some(Place { serial: run.serial, record: run.record, to_be_begun })
    }

    /// Takes the next dataset from the queue.
    fn begin_dataset(&self, dataset: ObjectId, serial: u64) -> Result<()> {
        let seen = self.pool.uberblock().txg;
        let catalog = self.pool.catalog();
        let phys = catalog.dataset_phys(dataset);
        let after = successors(&catalog, dataset);
        let mut run = self.scan.run.lock();
        let Some(run) = run.as_mut().filter(|run| run.serial == serial) else { return Ok(()) };
        run.seen(seen);
        match phys {
            Ok(phys) => drop(run.take_up(&phys, || after)?),
            // It is younger than the view.
            Err(error) if run.is_ahead() => return Err(error),
            Err(error) => {
                tracing::warn!(dataset = dataset.0, %error, "a dataset cannot be scanned");
                self.scan.is_sure.fetch_and(!error.is_passing(), Relaxed);
                run.record.errors = run.record.errors.saturating_add(1);
                run.leave_out();
            }
        }
        self.scan.show(run);
        self.scan.worker.mark();
        Ok(())
    }

    fn visit(&self, place: &Place) -> Result<()> {
        // What is freed from now on, and was lately, stays where it is.
        let _held = self.allocator.hold_all();
        let seen = self.pool.uberblock().txg;
        let (catalog, mos) = (self.pool.catalog(), self.pool.mos());
        let objset = place.record.bookmark.objset;
        let root = match objset {
            0 => *mos.root_pointer(),
            dataset => match catalog.dataset_phys(ObjectId(dataset)) {
                Ok(phys) => phys.pointer,
                Err(error) => return self.dataset_is_gone(place, seen, error),
            },
        };
        let found = self.find(&place.record, root);
        let after = match (found.next, objset) {
            (Some(_), _) => Ok(Successors::default()),
            (None, 0) => Ok(Successors {
                next: catalog.common_origin()?.into_iter().collect(),
                birth: Txg(0),
            }),
            (None, dataset) => successors(&catalog, ObjectId(dataset)),
        };
        self.scan.pass.examined.fetch_add(found.blocks.examined, Relaxed);
        let started = Instant::now();
        if !self.read_and_count(place, &found.blocks, seen)? {
            return Ok(());
        }
        self.scan.portion.took(started.elapsed());
        let mut run = self.scan.run.lock();
        let Some(run) = run.as_mut().filter(|run| run.serial == place.serial) else {
            return Ok(());
        };
        match (found.next, objset) {
            (Some(next), _) => run.advance(next),
            (None, 0) => run.mos_is_done(after?.next.first().copied()),
            (None, _) => run.dataset_is_done(after?),
        }
        self.scan.show(run);
        self.scan.worker.mark();
        if run.is_through() && !self.options.inline {
            // Whoever waits for the end is told at once.
            self.gate.want(self.gate.figures().open);
        }
        Ok(())
    }

    /// Reads blocks for a scan that has no place to go on at.
    pub(super) fn read_blocks(&self, place: &Place, blocks: &Blocks, seen: Txg) -> Result<()> {
        match self.read_and_count(place, blocks, seen)? {
            true => {
                self.scan.worker.mark();
                Ok(())
            }
            false => Err(Error::new(ErrorKind::Busy, "something else is to be done first")),
        }
    }

    /// Metadata could not be read while blocks were looked for.
    pub(super) fn note_lost_metadata(&self, place: &Place, error: Error) {
        let blocks = Blocks { lost: vec![error], ..Blocks::default() };
        let counted = self.read_and_count(place, &blocks, self.pool.uberblock().txg);
        if let Err(error) = counted {
            tracing::debug!(%error, "the scan waits");
        }
    }

    /// Reads blocks, and notes what came of it. False: something else is to be done first.
    fn read_and_count(&self, place: &Place, blocks: &Blocks, seen: Txg) -> Result<bool> {
        let Some(done) = self.read(&place.record, blocks) else { return Ok(false) };
        let lost: Vec<&Error> = blocks.lost.iter().chain(&done.lost).collect();
        if !lost.is_empty() && self.gate.suspension().is_some() {
            // Devices may have what is lost for now: the portion is visited anew.
            return Err(Error::new(ErrorKind::Busy, "pool I/O is currently suspended"));
        }
        for error in &lost {
            self.io.pipe.note_fault(error);
        }
        let mut run = self.scan.run.lock();
        let Some(run) = run.as_mut().filter(|run| run.serial == place.serial) else {
            return Ok(false);
        };
        run.seen(seen);
        let record = &mut run.record;
        record.examined = record.examined.saturating_add(blocks.examined);
        record.skipped = record.skipped.saturating_add(blocks.skipped);
        record.processed = record.processed.saturating_add(done.repaired);
        let errors = lost.len().saturating_add(done.failed.len());
        record.errors = record.errors.saturating_add(errors as u64);
        if blocks.lost.iter().any(Error::is_passing) {
            // Nobody knows when that was written which is not found now.
            self.scan.is_sure.store(false, Relaxed);
        }
        self.scan.failed.lock().extend(done.failed);
        self.scan.unfit.lock().extend(done.away);
        self.scan.show(run);
        Ok(true)
    }

    /// The dataset being visited is not in the view: it will be, or it is gone.
    fn dataset_is_gone(&self, place: &Place, seen: Txg, error: Error) -> Result<()> {
        let mut run = self.scan.run.lock();
        let Some(run) = run.as_mut().filter(|run| run.serial == place.serial) else {
            return Ok(());
        };
        run.seen(seen);
        if run.is_ahead() {
            return Err(error);
        }
        let dataset = run.record.bookmark.objset;
        tracing::warn!(dataset, %error, "a dataset cannot be scanned");
        self.scan.is_sure.fetch_and(!error.is_passing(), Relaxed);
        run.record.errors = run.record.errors.saturating_add(1);
        run.leave_out();
        self.scan.show(run);
        self.scan.worker.mark();
        Ok(())
    }

    /// Finds the blocks of a portion.
    fn find(&self, record: &ScanState, root: BlockPointer) -> Found {
        let at = record.bookmark;
        let whole = BlockBookmark { object: 0, level: 0, block: 0, ..at };
        let (min, max) = match at.objset {
            0 => (record.min_txg, record.max_txg),
            _ => (record.current_min_txg, record.current_max_txg),
        };
        let mut tree = Tree::new(at.objset, min, ());
        tree.resume = (at != whole).then_some(at);
        tree.above = true;
        let started = Instant::now();
        let mut found = Found::default();
        let most = self.scan.portion.blocks();
        let (mut bytes, mut steps) = (0_u64, 0_usize);
        for step in Walk::new(&*self.io.pipe, tree, root, Order::ParentFirst) {
            let node = match &step {
                Step::Block(node) => node,
                Step::Lost(lost) => &lost.node,
            };
            let is_enough = steps >= most
                || bytes >= most as u64 * BYTES
                || steps > 0 && started.elapsed() >= FINDING;
            if is_enough && may_end_before(node) {
                found.next = Some(node.bookmark(at.objset));
                break;
            }
            steps += 1;
            match step {
                Step::Block(node) => {
                    bytes = bytes.saturating_add(node.pointer.psize());
                    found.blocks.take(&node, record, max);
                }
                Step::Lost(lost) => found.blocks.lost.push(lost.error),
            }
        }
        found
    }

    /// Reads what was found. `None`: something else is to be done first.
    fn read(&self, record: &ScanState, blocks: &Blocks) -> Option<Done> {
        let mut order: Vec<usize> = (0..blocks.pointers.len()).collect();
        let address = |index: &usize| {
            blocks
                .pointers
                .get(*index)
                .and_then(BlockPointer::first_dva)
                .map(|dva| (dva.vdev, dva.offset))
        };
        order.sort_by_key(address);
        let vdevs = self.vdevs();
        let is_resilver = record.function == ScanFunction::Resilver;
        let lacks = |bp: &BlockPointer, dva: Dva| {
            !is_resilver || bp.is_gang() || vdevs.lacks_some(dva.vdev, bp.physical_birth())
        };
        let reading = if is_resilver { Reading::Enough } else { Reading::Held };
        let scope = Scope { wanted: &lacks, reading };
        let started = Instant::now();
        let (next, done) = (Mutex::new(0), Mutex::new(Done::default()));
        let read = |reader: usize| {
            while *next.lock() < order.len() && !self.scan.worker.rests() && self.is_still(record) {
                let is_shared = self.scan.others.read_lately(self.io.pipe.loaded())
                    && started.elapsed() < GIVING_WAY;
                let waits = self.gate.is_waited_for(self.gate.figures().open);
                if !self.options.inline && is_shared && reader >= SHARING.0 {
                    std::thread::sleep(RESTING);
                    continue;
                }
                if !self.options.inline && (waits || is_shared) {
                    std::thread::sleep(SITTING);
                }
                let most = if waits || is_shared { SHARING.1 } else { TAKEN.1 };
                let Some(taken) = blocks.take_next(&order, &mut next.lock(), most) else { break };
                let pointers: Vec<&BlockPointer> =
                    taken.iter().filter_map(|index| blocks.pointers.get(*index)).collect();
                let all = self.io.pipe.scrub_many(&pointers, scope);
                for ((one, index), block) in all.into_iter().zip(taken).zip(pointers) {
                    self.scan.pass.issued.fetch_add(allocated(block), Relaxed);
                    self.scan.pass.repaired.fetch_add(one.repaired, Relaxed);
                    if let Some(place) = blocks.places.get(*index) {
                        done.lock().add(one, block, *place);
                    }
                }
            }
        };
        self.note_unfit();
        self.scan.others.forget();
        match self.options.inline {
            true => read(0),
            false => std::thread::scope(|threads| {
                let read = &read;
                // Where no thread can be had it is slower.
                let begin = |reader| {
                    Builder::new().name("scan".into()).spawn_scoped(threads, move || read(reader))
                };
                (1..blocks.readers()).map(begin).take_while(Result::is_ok).for_each(drop);
                read(0);
            }),
        }
        self.note_unfit();
        let all = next.into_inner() >= order.len();
        (all && !self.scan.worker.rests() && self.is_still(record)).then(|| done.into_inner())
    }

    /// Notes leaves to which it cannot be written now what they lack, and those that may have lost what was.
    pub(super) fn note_unfit(&self) {
        let vdevs = self.vdevs();
        let unflushed = vdevs.take_unflushed();
        self.scan.unfit.lock().extend(vdevs.lacking_and_away().into_iter().chain(unflushed));
    }

    /// What is being read is still what the scan is at.
    fn is_still(&self, record: &ScanState) -> bool {
        let run = self.scan.run.lock();
        let same = |now: &ScanState| {
            now.phase == record.phase && now.start_time == record.start_time && !now.is_paused()
        };
        run.as_ref().is_some_and(|run| same(&run.record))
    }
}

/// How many blocks a portion has, so that it is read in about a second: meanwhile freed space cannot be
/// used.
#[derive(Debug)]
pub(super) struct PortionSize(AtomicUsize);

impl Default for PortionSize {
    fn default() -> Self {
        let [first, ..] = BLOCKS;
        Self(AtomicUsize::new(first))
    }
}

impl PortionSize {
    fn blocks(&self) -> usize {
        self.0.load(Relaxed)
    }

    fn took(&self, time: Duration) {
        let ([_, least, most], [short, long]) = (BLOCKS, READING);
        let blocks = self.blocks();
        let next = match () {
            () if time < short => blocks * 2,
            () if time > long => blocks / 2,
            () => blocks,
        };
        self.0.store(next.clamp(least, most), Relaxed);
    }
}

/// Whether somebody else reads, too.
#[derive(Debug, Default)]
pub(super) struct Others(Mutex<(Option<u64>, Option<Instant>)>);

impl Others {
    /// Whether somebody read lately; `loaded` is how often somebody did so far.
    fn read_lately(&self, loaded: u64) -> bool {
        let (now, mut known) = (Instant::now(), self.0.lock());
        let (count, at) = &mut *known;
        if count.replace(loaded).is_some_and(|before| before != loaded) {
            *at = Some(now);
        }
        at.is_some_and(|at| now.duration_since(at) < SHARED)
    }

    /// What was read until now is no reason to sit out: the scan looked for blocks.
    fn forget(&self) {
        self.0.lock().0 = None;
    }
}

/// A walk that begins there gives the block, and all that comes after it.
fn may_end_before(node: &Node) -> bool {
    let bookmark = node.bookmark(0);
    bookmark.level == 0
        && bookmark.block != BlockBookmark::SPILL_BLOCK
        && (bookmark.object, bookmark.block) != (0, 0)
        && bookmark.object < FIRST_ACCOUNT
}

fn allocated(pointer: &BlockPointer) -> u64 {
    pointer.dvas().map(|dva| dva.asize).fold(0, u64::saturating_add)
}

fn successors(catalog: &Catalog, dataset: ObjectId) -> Result<Successors> {
    let phys = catalog.dataset_phys(dataset)?;
    let next = catalog.successors_of(dataset, &phys)?;
    Ok(Successors { birth: phys.creation_txg, next })
}

impl Blocks {
    /// Takes a block, if it is in the range.
    fn take(&mut self, node: &Node, record: &ScanState, max: Txg) {
        let pointer = &node.pointer;
        let birth = pointer.physical_birth();
        if pointer.is_hole() || pointer.is_redacted() || birth > max {
            return;
        }
        let bytes = allocated(pointer);
        self.examined = self.examined.saturating_add(bytes);
        let is_outside = birth <= record.min_txg || birth >= record.max_txg;
        if is_outside || pointer.is_embedded() {
            self.skipped = self.skipped.saturating_add(bytes);
            return;
        }
        self.pointers.push(*pointer);
        self.places.push((record.bookmark.objset, node.object, node.level, node.block));
    }
}

impl Done {
    fn add(
        &mut self,
        one: Scrubbed,
        pointer: &BlockPointer,
        (objset, object, level, block): (u64, u64, u8, u64),
    ) {
        self.repaired = self.repaired.saturating_add(one.repaired);
        self.failed.extend(one.failed);
        self.away.extend(one.away);
        // A device that is away may have it.
        let may_come = one.lost.as_ref().is_some_and(Error::is_passing);
        self.failed.extend(may_come.then(|| pointer.physical_birth()));
        self.lost.extend(one.lost.map(|error| {
            error.at(|place| {
                place.objset = Some(objset);
                place.object = Some(object);
                place.block = Some((level, block));
            })
        }));
    }
}
