//! What a check does with the blocks of the pool: counts them, verifies them, marks their space.
//!
//! Chapter 04, section 4; chapter 06, section 11. Every dataset is walked from the txg of its
//! previous snapshot on, so shared blocks are visited once. Invariant: an intent log is followed
//! where its head is, and what a head shares with its last snapshot is counted there alone.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use cenote_format::dnode::Dnode;
use cenote_format::dsl_dataset::DslDataset;
use cenote_format::zil::Header;
use cenote_format::{BlockPointer, ObjectType, Objset, Txg};
use parking_lot::Mutex;

use super::census::{BlockKind, Census, allocated};
use super::progress::Progress;
use super::shared::SharedBlocks;
use super::space::{Extent, Space};
use super::{CheckOptions, Finding, FindingKind, Report, Verify, log};
use crate::job::Speed;
use crate::pipe::Pipe;
use crate::pool::Pool;
use crate::walk::{Lost, Node, Spread, Tree, Trouble, Visitor};
use crate::{Error, ErrorKind, Result};

/// Deepest nesting of gang headers that are marked.
const GANG_DEPTH: u32 = 16;

/// What the blocks of one object set have in common.
#[derive(Clone, Copy, Default)]
pub(super) struct Set {
    /// Everything counts as this.
    pub(super) counts_as: Option<BlockKind>,
    /// It can have an intent log.
    pub(super) has_log: bool,
}

/// What is checked, and against what.
pub(super) struct Checker<'a> {
    pool: &'a Pool,
    options: CheckOptions,
    space: &'a Space,
    shared: &'a SharedBlocks,
    unclaimed: Txg,
    total: u64,
    blocks: AtomicU64,
    bytes: AtomicU64,
    report: Mutex<Report>,
}

/// What one thread counts.
#[derive(Default)]
pub(super) struct Local {
    census: Census,
    clone_saved: u64,
    clone_references: u64,
    verified: u64,
}

impl<'a> Checker<'a> {
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
            blocks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            report: Mutex::default(),
        }
    }

    fn pipe(&self) -> &Pipe {
        &self.pool.io().pipe
    }

    /// Counts one pointer that is in no tree.
    pub(super) fn count_apart(&self, bp: &BlockPointer, kind: BlockKind) {
        let mut local = Local::default();
        self.count(0, bp, kind, &mut local);
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
        walk: &Spread<'_, Self>,
        report: &mut Report,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) {
        let start = Instant::now();
        let mut speed = Speed::default();
        let finished = walk.run(self.options.threads, self.options.interval, &mut || {
            let now = Progress {
                blocks: self.blocks.load(Relaxed),
                bytes: self.bytes.load(Relaxed),
                total: self.total,
                findings: self.report.lock().findings_total,
                elapsed: start.elapsed(),
                ..Progress::default()
            };
            progress(&now.at(&mut speed))
        });
        let mut mine = std::mem::take(&mut *self.report.lock());
        report.census.merge(&mine.census);
        report.clone_saved += mine.clone_saved;
        report.clone_references += mine.clone_references;
        report.verified_blocks += mine.verified_blocks;
        report.stopped = !finished;
        let more = mine.findings_total - mine.findings.len() as u64;
        mine.findings.drain(..).for_each(|one| report.add(one, self.options.findings_kept));
        report.findings_total += more;
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

    fn verify(&self, tree: &Tree<Set>, items: &[&Node], local: &mut Local) {
        if items.is_empty() {
            return;
        }
        local.verified += items.len() as u64;
        if !self.options.every_copy {
            let pointers: Vec<BlockPointer> = items.iter().map(|item| item.pointer).collect();
            for (item, result) in items.iter().zip(self.pipe().verify_many(&pointers)) {
                if let Err(error) = result {
                    self.found_at(tree, item, FindingKind::Unreadable, error);
                }
            }
            return;
        }
        for item in items {
            match self.pipe().verify_copies(&item.pointer) {
                Ok(copies) if copies.are_good() => {}
                Ok(copies) => {
                    let reason = "not every copy of the block is good";
                    let error = Error::new(ErrorKind::Checksum, reason);
                    let (liars, failed, lost) = (copies.liars, copies.failed, copies.lost);
                    let kind = FindingKind::BadCopy { liars, failed, lost };
                    self.found_at(tree, item, kind, error);
                }
                Err(error) => self.found_at(tree, item, FindingKind::Unreadable, error),
            }
        }
    }

    fn found_at(&self, tree: &Tree<Set>, node: &Node, kind: FindingKind, error: Error) {
        self.found(kind, tree.named(node, error), Some(&node.pointer));
    }

    fn count(&self, objset: u64, bp: &BlockPointer, kind: BlockKind, local: &mut Local) {
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
            let error = error.at_pointer(bp).at(|place| place.objset = Some(objset));
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
                let error = error.at(|place| place.objset = Some(objset));
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

impl Visitor for Checker<'_> {
    type Own = Set;
    type Tally = Local;

    fn is_read(&self, node: &Node) -> bool {
        self.must_verify(&node.pointer)
    }

    fn blocks(&self, tree: &Tree<Set>, nodes: &[Node], local: &mut Local) {
        for node in nodes.iter().filter(|_| !tree.only_root) {
            let kind = BlockKind::of(node.pointer.object_type());
            let kind = tree.own.counts_as.unwrap_or(kind);
            self.count(tree.read.objset, &node.pointer, kind, local);
        }
        // The others are verified by being read, unless each copy is to be.
        let every_copy = self.options.every_copy;
        let verified = |node: &&Node| self.must_verify(&node.pointer);
        let apart = |node: &&Node| every_copy || !node.leads_on();
        let stored: Vec<&Node> = nodes.iter().filter(apart).filter(verified).collect();
        self.verify(tree, &stored, local);
    }

    fn read(&self, _: &Tree<Set>, node: &Node, local: &mut Local) {
        local.verified += u64::from(!node.pointer.is_embedded());
    }

    fn objset(&self, tree: &Tree<Set>, objset: &Objset) -> Result<()> {
        if tree.own.has_log {
            let header = Header::decode(&objset.zil_header)?;
            // What nobody had any more when the log was claimed has no entry in a table.
            let is_of_log = |bp: &BlockPointer| {
                !bp.is_dedup() && self.shared.is_cloned(bp).is_ok_and(|cloned| !cloned)
            };
            log::each_block(self.pipe(), &header, self.unclaimed, is_of_log, |bp| {
                self.count_apart(bp, BlockKind::of(bp.object_type()));
            });
        }
        Ok(())
    }

    fn dnode(
        &self,
        tree: &Tree<Set>,
        object: u64,
        dnode: &Dnode,
    ) -> Option<(Tree<Set>, BlockPointer)> {
        if tree.read.objset != 0 || dnode.bonus_type != ObjectType::DSL_DATASET {
            return None;
        }
        match DslDataset::decode(dnode.bonus()) {
            Ok(dataset) if !dataset.pointer.is_hole() => {
                let own = Set { has_log: !dataset.is_snapshot(), ..Set::default() };
                let mut root = Tree::new(object, dataset.previous_snapshot_txg, own);
                root.only_root = dataset.pointer.logical_birth() <= root.after;
                (own.has_log || !root.only_root).then_some((root, dataset.pointer))
            }
            Ok(_) => None,
            Err(error) => {
                let error = Error::from(error).at_object(0, object);
                self.found(FindingKind::Malformed, error, None);
                None
            }
        }
    }

    fn lost(&self, _: &Tree<Set>, lost: Lost) {
        let kind = match lost.trouble {
            Trouble::Unreadable => FindingKind::Unreadable,
            Trouble::Malformed => FindingKind::Malformed,
            Trouble::Repeated => FindingKind::Overlap,
        };
        self.found(kind, lost.error, Some(&lost.node.pointer));
    }

    fn keep(&self, local: Local) {
        let mut report = self.report.lock();
        report.census.merge(&local.census);
        report.clone_saved += local.clone_saved;
        report.clone_references += local.clone_references;
        report.verified_blocks += local.verified;
    }
}
