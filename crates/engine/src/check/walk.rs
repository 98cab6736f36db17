//! The walk: from the root of the pool down every block tree, by many threads.
//!
//! Chapter 04, section 4; chapter 06, section 11. Every dataset is walked from the txg of its
//! previous snapshot on, so shared blocks are visited once. Invariant: a block that leads to others
//! is followed once, so the walk ends; jobs are taken last in, first out, and roots of datasets
//! last, so what waits is bounded by the depth of the trees, not by their breadth.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use cenote_format::bptree::BlockBookmark;
use cenote_format::dnode::{self, Dnode, SLOTS_PER_BLOCK};
use cenote_format::dsl_dataset::DslDataset;
use cenote_format::zil::Header;
use cenote_format::{BlockPointer, ObjectType, Objset, Txg};
use parking_lot::{Condvar, Mutex};

use super::bits::SparseBits;
use super::census::{BlockKind, Census, allocated};
use super::progress::{Meter, Progress};
use super::shared::SharedBlocks;
use super::space::{Extent, Space};
use super::{CheckOptions, Finding, FindingKind, Report, Verify, log};
use crate::pipe::{Pipe, ReadContext};
use crate::pool::Pool;
use crate::{Error, ErrorKind, Result};

/// Pointers in one job whose blocks lead to others, and the bytes of these.
const INNER_BATCH: usize = 16;
const INNER_BYTES: u64 = 16 << 20;
/// Pointers in one job whose blocks are only verified, and their bytes.
const LEAF_BATCH: usize = 64;
const LEAF_BYTES: u64 = 4 << 20;
/// log2 of the smallest sector.
const SECTOR: u32 = 9;
/// Deepest nesting of gang headers that are marked.
const GANG_DEPTH: u32 = 16;

/// What all blocks of one object set have in common.
pub(super) struct SetContext {
    pub(super) read: ReadContext,
    /// Blocks born at or before belong to another set.
    pub(super) after: Txg,
    /// Everything counts as this.
    pub(super) counts_as: Option<BlockKind>,
    /// It can have an intent log.
    pub(super) has_log: bool,
    /// Nothing else in it is its own.
    pub(super) only_log: bool,
    /// What comes before was freed already.
    pub(super) resume: Option<BlockBookmark>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The root of an object set.
    Root,
    /// A block of an object's tree; `dnodes`: of the array of dnodes; `shift`: pointers in an indirect
    /// block, as an exponent of 2.
    Tree { dnodes: bool, shift: u32 },
    /// Attributes that did not fit the dnode.
    Spill,
}

struct Item {
    role: Role,
    object: u64,
    level: u8,
    block: u64,
    bp: BlockPointer,
}

struct Job {
    set: Arc<SetContext>,
    items: Vec<Item>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    working: usize,
}

/// A walk over one pool.
pub(super) struct Walk<'a> {
    pool: &'a Pool,
    options: CheckOptions,
    space: &'a Space,
    shared: &'a SharedBlocks,
    unclaimed: Txg,
    total: u64,
    queue: Mutex<Queue>,
    /// Sectors of blocks that lead to others and were followed, by top-level vdev.
    followed: Mutex<HashMap<u32, SparseBits>>,
    changed: Condvar,
    stopped: AtomicBool,
    blocks: AtomicU64,
    bytes: AtomicU64,
    report: Mutex<Report>,
}

/// Tells that a thread has ended its job, also if it panicked: nobody is to wait for it then.
struct JobEnd<'a, 'b>(&'b Walk<'a>);

impl Drop for JobEnd<'_, '_> {
    fn drop(&mut self) {
        self.0.queue.lock().working -= 1;
        self.0.changed.notify_all();
    }
}

/// What one thread counts.
#[derive(Default)]
struct Local {
    census: Census,
    clone_saved: u64,
    clone_references: u64,
    verified: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        pool: &'a Pool,
        options: CheckOptions,
        space: &'a Space,
        shared: &'a SharedBlocks,
        total: u64,
        unclaimed: Txg,
    ) -> Self {
        Self {
            pool,
            options,
            space,
            shared,
            unclaimed,
            total,
            queue: Mutex::default(),
            followed: Mutex::default(),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
            blocks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            report: Mutex::default(),
        }
    }

    fn pipe(&self) -> &Pipe {
        &self.pool.io().pipe
    }

    /// Queues the pool's own object set; its dnodes lead to all others.
    pub(super) fn push_pool(&self) {
        let set = SetContext::new(0, Txg(0));
        self.push_root(set, *self.pool.mos().root_pointer());
    }

    /// Queues the root of an object set, behind everything else.
    pub(super) fn push_root(&self, set: SetContext, bp: BlockPointer) {
        let items = vec![Item { role: Role::Root, object: 0, level: 0, block: 0, bp }];
        self.queue.lock().jobs.push_front(Job { set: Arc::new(set), items });
        self.changed.notify_one();
    }

    /// Counts one pointer that is in no tree.
    pub(super) fn count_apart(&self, bp: &BlockPointer, kind: BlockKind) {
        let mut local = Local::default();
        self.count(&SetContext::new(0, Txg(0)), bp, kind, &mut local);
        self.keep(local);
    }

    /// Notes something wrong.
    pub(super) fn found(&self, kind: FindingKind, error: Error, bp: Option<&BlockPointer>) {
        let finding = Finding { kind, error, pointer: bp.map(|bp| Box::new(*bp)) };
        self.report.lock().add(finding, self.options.findings_kept);
    }

    /// Walks until nothing is left or `progress` says stop; adds what was found to `report`.
    pub(super) fn run(
        &self,
        report: &mut Report,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) {
        let start = Instant::now();
        let mut meter = Meter::default();
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.max(1) {
                scope.spawn(|| self.work());
            }
            let mut finished = false;
            while !finished {
                {
                    let mut queue = self.queue.lock();
                    if !self.is_done(&queue) {
                        self.changed.wait_for(&mut queue, self.options.interval);
                    }
                    finished = self.is_done(&queue);
                }
                if !finished && start.elapsed() < self.options.interval {
                    continue;
                }
                let now = Progress {
                    blocks: self.blocks.load(Relaxed),
                    bytes: self.bytes.load(Relaxed),
                    total: self.total,
                    findings: self.report.lock().findings_total,
                    elapsed: start.elapsed(),
                    ..Progress::default()
                };
                if progress(&meter.measure(now)).is_break() && !finished {
                    self.stopped.store(true, Relaxed);
                    self.changed.notify_all();
                }
            }
        });
        let mut mine = std::mem::take(&mut *self.report.lock());
        report.census.merge(&mine.census);
        report.clone_saved += mine.clone_saved;
        report.clone_references += mine.clone_references;
        report.verified_blocks += mine.verified_blocks;
        report.stopped = self.stopped.load(Relaxed);
        let more = mine.findings_total - mine.findings.len() as u64;
        mine.findings.drain(..).for_each(|one| report.add(one, self.options.findings_kept));
        report.findings_total += more;
    }

    fn is_done(&self, queue: &Queue) -> bool {
        (queue.jobs.is_empty() || self.stopped.load(Relaxed)) && queue.working == 0
    }

    fn work(&self) {
        let mut local = Local::default();
        loop {
            let job = {
                let mut queue = self.queue.lock();
                loop {
                    if self.is_done(&queue) || self.stopped.load(Relaxed) {
                        drop(queue);
                        self.changed.notify_all();
                        return self.keep(local);
                    }
                    if let Some(job) = queue.jobs.pop_back() {
                        queue.working += 1;
                        break job;
                    }
                    self.changed.wait(&mut queue);
                }
            };
            let _ended = JobEnd(self);
            self.job(&job, &mut local);
        }
    }

    fn keep(&self, local: Local) {
        let mut report = self.report.lock();
        report.census.merge(&local.census);
        report.clone_saved += local.clone_saved;
        report.clone_references += local.clone_references;
        report.verified_blocks += local.verified;
    }

    fn job(&self, job: &Job, local: &mut Local) {
        let mut inner = Vec::new();
        let mut leaves = Vec::new();
        for item in &job.items {
            if item.role != Role::Root || !job.set.only_log {
                let kind = BlockKind::of(item.bp.object_type());
                self.count(&job.set, &item.bp, job.set.counts_as.unwrap_or(kind), local);
            }
            if item.leads_on() {
                inner.push(item);
            } else if self.must_verify(&item.bp) {
                leaves.push(item);
            }
        }
        self.verify(&job.set, &leaves, local);
        if self.options.every_copy {
            let stored: Vec<&Item> =
                inner.iter().copied().filter(|item| self.must_verify(&item.bp)).collect();
            self.verify(&job.set, &stored, local);
        }
        let pointers: Vec<BlockPointer> = inner.iter().map(|item| item.bp).collect();
        let blocks = self.pipe().read_many(&pointers, &job.set.read);
        let mut children = Vec::new();
        for (item, block) in inner.into_iter().zip(blocks) {
            let content = block.map_err(|error| (FindingKind::Unreadable, error));
            let opened = content.and_then(|block| {
                local.verified += u64::from(!item.bp.is_embedded());
                if !job.set.only_log && self.was_followed(&item.bp) {
                    let reason = "what the block leads to belongs to another block as well";
                    return Err((FindingKind::Overlap, Error::corrupt(reason)));
                }
                self.children(&job.set, item, &block, &mut children)
                    .map_err(|error| (FindingKind::Malformed, error))
            });
            if let Err((kind, error)) = opened {
                self.found_at(&job.set, item, kind, error);
            }
        }
        self.push(&job.set, children, local);
    }

    /// Notes that a block that could be read is followed; whether some of its space was before.
    fn was_followed(&self, bp: &BlockPointer) -> bool {
        let Some(dva) = bp.first_dva() else { return false };
        let sectors = if bp.is_gang() { 1 } else { (bp.psize() >> SECTOR).max(1) };
        let mut followed = self.followed.lock();
        followed.entry(dva.vdev).or_default().insert(dva.offset >> SECTOR, sectors) > 0
    }

    /// Cuts `items` into jobs; those that need nothing but counting are counted at once.
    fn push(&self, set: &Arc<SetContext>, items: Vec<Item>, local: &mut Local) {
        let (mut jobs, mut leaves) = (Vec::new(), Vec::new());
        let (mut inner, mut inner_bytes, mut bytes) = (Vec::new(), 0, 0);
        for item in items {
            if item.bp.is_hole() || item.bp.is_redacted() || set.skips(&item) {
                continue;
            }
            if let Err(error) = item.check() {
                self.found_at(set, &item, FindingKind::Malformed, error);
                continue;
            }
            if item.leads_on() {
                inner_bytes += item.bp.lsize();
                inner.push(item);
                if inner.len() >= INNER_BATCH || inner_bytes >= INNER_BYTES {
                    jobs.push(std::mem::take(&mut inner));
                    inner_bytes = 0;
                }
            } else if self.must_verify(&item.bp) {
                bytes += item.bp.psize();
                leaves.push(item);
                if leaves.len() >= LEAF_BATCH || bytes >= LEAF_BYTES {
                    jobs.push(std::mem::take(&mut leaves));
                    bytes = 0;
                }
            } else {
                let kind = BlockKind::of(item.bp.object_type());
                self.count(set, &item.bp, set.counts_as.unwrap_or(kind), local);
            }
        }
        jobs.extend([inner, leaves].into_iter().filter(|items| !items.is_empty()));
        if jobs.is_empty() {
            return;
        }
        let jobs = jobs.into_iter().rev().map(|items| Job { set: set.clone(), items });
        self.queue.lock().jobs.extend(jobs);
        self.changed.notify_all();
    }

    /// The pointers in a block.
    fn children(
        &self,
        set: &Arc<SetContext>,
        item: &Item,
        block: &[u8],
        children: &mut Vec<Item>,
    ) -> Result<()> {
        match item.role {
            Role::Root => self.open_root(set, item, block, children),
            Role::Tree { .. } if item.level > 0 => {
                let (level, count) = (item.level - 1, (block.len() / 128) as u64);
                let first = item.block.saturating_mul(count);
                let role = item.role;
                // A tree that is too deep has more blocks than can be numbered.
                for (place, bp) in (0..).zip(BlockPointer::decode_all(block)) {
                    let block = first.saturating_add(place);
                    children.push(Item { role, object: item.object, level, block, bp });
                }
                Ok(())
            }
            Role::Tree { dnodes: true, .. } => {
                for (slot, dnode) in dnode::dnodes_in_block(block) {
                    let object = item.block.saturating_mul(SLOTS_PER_BLOCK).saturating_add(slot);
                    match dnode {
                        Ok(dnode) => self.open_dnode(set, object, &dnode, children),
                        Err(error) => {
                            let error = Error::from(error).at_object(set.read.objset, object);
                            self.found(FindingKind::Malformed, error, Some(&item.bp));
                        }
                    }
                }
                Ok(())
            }
            Role::Tree { .. } | Role::Spill => Ok(()),
        }
    }

    fn open_root(
        &self,
        set: &Arc<SetContext>,
        item: &Item,
        block: &[u8],
        children: &mut Vec<Item>,
    ) -> Result<()> {
        if item.bp.object_type() != ObjectType::OBJSET {
            return Err(Error::corrupt("the root of an object set is a block of another type"));
        }
        let objset = Objset::decode(block)?;
        if set.has_log {
            let header = Header::decode(&objset.zil_header)?;
            log::each_block(self.pipe(), &header, self.unclaimed, |bp| {
                self.count_apart(bp, BlockKind::of(bp.object_type()));
            });
        }
        if set.only_log {
            return Ok(());
        }
        top_pointers(&objset.meta_dnode, 0, true, children);
        let accounting = [&objset.user_used, &objset.group_used, &objset.project_used];
        for (dnode, number) in accounting.into_iter().zip(0..) {
            if let Some(dnode) = dnode {
                let object = u64::MAX - number;
                top_pointers(dnode, object, false, children);
            }
        }
        Ok(())
    }

    fn open_dnode(
        &self,
        set: &Arc<SetContext>,
        object: u64,
        dnode: &Dnode,
        children: &mut Vec<Item>,
    ) {
        top_pointers(dnode, object, false, children);
        if set.read.objset != 0 || dnode.bonus_type != ObjectType::DSL_DATASET {
            return;
        }
        match DslDataset::decode(dnode.bonus()) {
            Ok(dataset) if !dataset.pointer.is_hole() => {
                let mut root = SetContext::new(object, dataset.previous_snapshot_txg);
                root.has_log = !dataset.is_snapshot();
                root.only_log = dataset.pointer.logical_birth() <= root.after;
                if root.has_log || !root.only_log {
                    self.push_root(root, dataset.pointer);
                }
            }
            Ok(_) => {}
            Err(error) => {
                let error = Error::from(error).at_object(0, object);
                self.found(FindingKind::Malformed, error, None);
            }
        }
    }

    fn must_verify(&self, bp: &BlockPointer) -> bool {
        if bp.is_embedded() {
            return false;
        }
        match self.options.verify {
            Verify::Structure => false,
            Verify::Metadata => bp.level().0 > 0 || bp.object_type().is_metadata(),
            Verify::Everything => true,
        }
    }

    fn verify(&self, set: &Arc<SetContext>, items: &[&Item], local: &mut Local) {
        if items.is_empty() {
            return;
        }
        local.verified += items.len() as u64;
        if !self.options.every_copy {
            let pointers: Vec<BlockPointer> = items.iter().map(|item| item.bp).collect();
            for (item, result) in items.iter().zip(self.pipe().verify_many(&pointers)) {
                if let Err(error) = result {
                    self.found_at(set, item, FindingKind::Unreadable, error);
                }
            }
            return;
        }
        for item in items {
            match self.pipe().verify_copies(&item.bp) {
                Ok(copies) if copies.are_good() => {}
                Ok(copies) => {
                    let reason = "not every copy of the block is good";
                    let error = Error::new(ErrorKind::Checksum, reason);
                    let (liars, failed, lost) = (copies.liars, copies.failed, copies.lost);
                    let kind = FindingKind::BadCopy { liars, failed, lost };
                    self.found_at(set, item, kind, error);
                }
                Err(error) => self.found_at(set, item, FindingKind::Unreadable, error),
            }
        }
    }

    fn found_at(&self, set: &SetContext, item: &Item, kind: FindingKind, error: Error) {
        let error = error.at_pointer(&item.bp).at(|place| {
            place.objset = Some(set.read.objset);
            place.object = Some(item.object);
            place.block = Some((item.level, item.block));
        });
        self.found(kind, error, Some(&item.bp));
    }

    fn count(&self, set: &SetContext, bp: &BlockPointer, kind: BlockKind, local: &mut Local) {
        local.census.count(bp, kind);
        self.blocks.fetch_add(1, Relaxed);
        if bp.is_embedded() {
            return;
        }
        self.bytes.fetch_add(allocated(bp), Relaxed);
        if !self.options.leaks {
            return;
        }
        let mut again = 0;
        if let Err(error) = self.mark(bp, 0, &mut again) {
            let error = error.at_pointer(bp).at(|place| place.objset = Some(set.read.objset));
            self.found(FindingKind::BadAddress, error, Some(bp));
        }
        let of_log = kind == BlockKind::Type(ObjectType::INTENT_LOG.0);
        if again == 0 || bp.is_dedup() || of_log {
            return;
        }
        match self.shared.is_cloned(bp) {
            Ok(true) => {
                local.clone_saved = local.clone_saved.saturating_add(allocated(bp));
                local.clone_references += 1;
            }
            Ok(false) => {
                let reason = format!("{again} of its bytes belong to another block as well");
                let error = Error::corrupt(reason).at_pointer(bp);
                let error = error.at(|place| place.objset = Some(set.read.objset));
                self.found(FindingKind::Overlap, error, Some(bp));
            }
            Err(error) => self.found(FindingKind::Accounting, error, Some(bp)),
        }
    }

    /// Marks the space of a block in use; adds to `again` what was in use already.
    fn mark(&self, bp: &BlockPointer, depth: u32, again: &mut u64) -> Result<()> {
        if !bp.is_gang() {
            for dva in bp.dvas() {
                let extent = Extent { vdev: dva.vdev, offset: dva.offset, length: dva.asize };
                *again = again.saturating_add(self.space.mark(extent)?.again);
            }
            return Ok(());
        }
        if depth >= GANG_DEPTH {
            return Err(Error::corrupt(format!("gang headers nested {depth} deep")));
        }
        let (size, children) = self.pipe().gang_children(bp)?;
        let vdevs = self.pool.vdevs();
        for dva in bp.dvas() {
            let length = vdevs
                .asize(dva.vdev, size, bp.physical_birth())
                .ok_or_else(|| Error::corrupt(format!("no gang can be on vdev {}", dva.vdev)))?;
            let extent = Extent { vdev: dva.vdev, offset: dva.offset, length };
            *again = again.saturating_add(self.space.mark(extent)?.again);
        }
        children.iter().try_for_each(|child| self.mark(child, depth + 1, again))
    }
}

impl SetContext {
    pub(super) fn new(objset: u64, after: Txg) -> Self {
        let read = ReadContext { objset, transient: true, sealed: true, ..ReadContext::default() };
        Self { read, after, counts_as: None, has_log: false, only_log: false, resume: None }
    }

    fn skips(&self, item: &Item) -> bool {
        item.bp.logical_birth() <= self.after
            || self.resume.is_some_and(|resume| item.is_before(&resume))
    }
}

impl Item {
    /// The content of the block leads to other blocks.
    fn leads_on(&self) -> bool {
        match self.role {
            Role::Root => true,
            Role::Tree { dnodes, .. } => self.level > 0 || dnodes,
            Role::Spill => false,
        }
    }

    /// The pointer is one that can stand here.
    fn check(&self) -> Result<()> {
        self.bp.validate()?;
        if self.bp.level().0 != self.level {
            let level = self.bp.level();
            return Err(Error::corrupt(format!(
                "pointer of level {level} where {} belongs",
                self.level
            )));
        }
        Ok(())
    }

    /// A walk that stopped before `resume` has freed this block.
    fn is_before(&self, resume: &BlockBookmark) -> bool {
        let (level, block, shift) = match self.role {
            Role::Root => return false,
            Role::Spill => (0, BlockBookmark::SPILL_BLOCK, 0),
            Role::Tree { shift, .. } => (i64::from(self.level), self.block, shift),
        };
        let at = BlockBookmark { objset: 0, object: self.object, level, block };
        at.is_done_before(resume, shift)
    }
}

fn top_pointers(dnode: &Dnode, object: u64, dnodes: bool, items: &mut Vec<Item>) {
    let role = Role::Tree { dnodes, shift: dnode.pointers_shift() };
    let level = dnode.levels.saturating_sub(1);
    for (block, bp) in (0..).zip(&dnode.pointers) {
        items.push(Item { role, object, level, block, bp: *bp });
    }
    if let Some(spill) = dnode.spill {
        items.push(Item { role: Role::Spill, object, level: 0, block: 0, bp: spill });
    }
}
