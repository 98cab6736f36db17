//! Everything that can be tried for one block: all copies, all parity, all combinations, until the
//! checksum is right; and then who was wrong.
//!
//! Invariant: bytes are returned only if `verify` accepted them, and a leaf is blamed only if it
//! failed to answer or gave other bytes than the accepted block demands of it. The search is
//! bounded: see [`MAX_CANDIDATES`] and [`MAX_CANDIDATE_BYTES`].

use super::batch::Batch;
use super::candidates::Search;
use super::difference;
use super::error::VdevError;
use super::extent::Extent;
use super::layout::Column;
use super::leaf::Fitness;
use super::plan::{NoPlan, Planner};
use super::raidz::Reflow;
use super::read::BlockRead;
use super::source::Source;
use super::tree::{LeafId, NodeId, Shape, VdevTree};
use crate::events::Members;
use bytes::Bytes;
use cenote_device::DeviceError;
use cenote_format::{Guid, Txg};
use std::cell::RefCell;

pub use super::candidates::{MAX_CANDIDATE_BYTES, MAX_CANDIDATES};

/// What a device should hold and does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// Guid of the leaf.
    pub leaf: Guid,
    /// First byte on the device.
    pub offset: u64,
    /// The right bytes.
    pub data: Bytes,
    /// How far an expansion had come when that was the place.
    pub(super) place: Reflow,
}

/// A block that was read by trying everything.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// The bytes `verify` accepted.
    pub data: Bytes,
    /// Leaves that gave wrong bytes. Those whose dirty time log says they miss the block are not
    /// among them.
    pub liars: Vec<Guid>,
    /// Leaves that did not answer.
    pub failed: Vec<Guid>,
    /// Leaves that should have a part of it and could not be asked.
    pub away: Vec<Guid>,
    /// What must be written to make every copy and all parity right again.
    pub repairs: Vec<Repair>,
}

/// How a block is examined.
#[derive(Debug, Clone, Copy)]
struct Examination {
    /// Devices that were given up are read too.
    desperate: bool,
    /// Read what is not needed to make the block as well: dRAID's zero sectors, second places.
    all: bool,
    /// If nothing is right, errors are counted.
    blames: bool,
}

impl VdevTree {
    /// Tries every alternative for one block until `verify` accepts the bytes: other sides of
    /// mirrors, replacing and spare vdevs, reconstruction from parity (also when devices lie,
    /// trying every set of up to parity devices), and combinations over the pieces of a block on a
    /// removed vdev.
    ///
    /// Counts checksum errors on exactly the leaves that lied and read errors on those that
    /// failed. If nothing is right, checksum errors are counted on every leaf that gave a whole
    /// copy, or on the top-level vdev when parity makes it impossible to tell. At most
    /// [`MAX_CANDIDATES`] combinations are tried.
    pub fn read_recover(
        &self,
        read: &BlockRead,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Recovered, VdevError> {
        let first = self.examine(read, verify, false, false);
        match first {
            Err(
                VdevError::NoIntactCopy { .. }
                | VdevError::Unavailable { .. }
                | VdevError::Device { .. },
            ) if self.has_given_up(read.vdev) => self.examine(read, verify, true, false),
            other => other,
        }
    }

    /// As [`VdevTree::read_recover`] for a block that may never have been written, like the one at
    /// the end of a log: `None` if every device that should hold a part of it answered and nothing
    /// is right. That is nobody's fault, and no checksum errors are counted for it. If a device
    /// failed, given up or not, the block may be there: that is [`VdevError::Unavailable`], which
    /// names the device.
    pub fn read_if_written(
        &self,
        read: &BlockRead,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Option<Recovered>, VdevError> {
        match self.examine_with(
            read,
            verify,
            Examination { desperate: true, all: false, blames: false },
        ) {
            Ok(recovered) => Ok(Some(recovered)),
            Err(VdevError::NoIntactCopy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads every copy and all parity of one block, and tells which leaves do not hold what the
    /// verified block demands (dRAID's zero sectors included). Counts errors like
    /// [`VdevTree::read_recover`].
    pub fn read_all_copies(
        &self,
        read: &BlockRead,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Recovered, VdevError> {
        self.examine(read, verify, false, true)
    }

    /// Makes a block whole that belongs to no transaction group, so that no dirty time log tells of
    /// it: what a leaf lacks of it is written, and noted as missed where that fails. Does nothing if
    /// the block is not there.
    pub fn complete(&self, read: &BlockRead, verify: &mut dyn FnMut(&[u8]) -> bool) {
        let how = Examination { desperate: false, all: true, blames: false };
        let Ok(found) = self.examine_with(read, verify, how) else { return };
        let written = self.repair(&found.repairs);
        let failed = found.repairs.iter().zip(written).filter(|(_, written)| written.is_err());
        let without: Vec<Guid> =
            failed.map(|(repair, _)| repair.leaf).chain(found.away.iter().copied()).collect();
        for leaf in self.leaves.iter().filter(|leaf| without.contains(&leaf.config.guid)) {
            self.note_missed(leaf, read.birth);
        }
    }

    /// Some leaf of the pool is not being read because of earlier failures.
    fn has_given_up(&self, vdev: u32) -> bool {
        let removed = self.top_node(vdev).is_some_and(|n| matches!(n.shape, Shape::Indirect(_)));
        let now = self.now();
        self.leaves
            .iter()
            .filter(|leaf| removed || leaf.top == vdev)
            .any(|leaf| leaf.device().is_some() && !leaf.health.lock().may_try(now))
    }

    fn examine(
        &self,
        read: &BlockRead,
        verify: &mut dyn FnMut(&[u8]) -> bool,
        desperate: bool,
        all: bool,
    ) -> Result<Recovered, VdevError> {
        self.examine_with(read, verify, Examination { desperate, all, blames: true })
    }

    fn examine_with(
        &self,
        read: &BlockRead,
        verify: &mut dyn FnMut(&[u8]) -> bool,
        Examination { desperate, all, blames }: Examination,
    ) -> Result<Recovered, VdevError> {
        let (node, extent) = self.locate(read)?;
        let size = usize::try_from(read.size).map_err(|_| read.bad("too large"))?;
        let planner = Planner::new(self, desperate);
        let gatherer = Gatherer { planner, birth: read.birth, all, away: RefCell::default() };
        let mut batch = Batch::new(self);
        let source =
            gatherer.gather(node, extent, &mut batch, 0).map_err(|why| read.unavailable(why))?;
        let answers = batch.run(true);
        let away = gatherer.away.into_inner();
        let place = *gatherer.planner.reflow;
        let given = Given { tree: self, read, source, batch, answers, away, place };
        let search = Search::new(&given.answers);
        let mut accepted = None;
        search.run(&given.source, &mut |candidate| match candidate.get(..size) {
            Some(bytes) if verify(bytes) => {
                accepted = Some(candidate.slice(..size));
                true
            }
            _ => false,
        });
        match accepted {
            Some(data) => Ok(given.recovered(data)),
            None if search.tried() == 0 => Err(given.nothing_to_try(blames)),
            None => Err(given.nothing_right(blames)),
        }
    }

    fn count_liars(&self, liars: Vec<Liar>) {
        let now = self.now();
        let mut changed = false;
        for Liar { leaf: id, place, how } in liars {
            let Some(leaf) = self.leaves.get(id) else { continue };
            leaf.stats.add_checksum_error();
            self.report_lie(id, place, || how);
            changed |= leaf.health.lock().lied(now);
        }
        if changed {
            self.refresh();
        }
    }
}

/// A leaf that gave wrong bytes.
struct Liar {
    leaf: LeafId,
    /// First byte on the device, and bytes.
    place: (u64, u64),
    /// In what they differ from the right ones.
    how: Members,
}

/// Everything that the devices gave of a block.
struct Given<'a> {
    tree: &'a VdevTree,
    read: &'a BlockRead,
    /// How the answers make the block.
    source: Source,
    batch: Batch<'a>,
    answers: Vec<Result<Bytes, DeviceError>>,
    /// Leaves that have a part of the block, or should, and could not be asked.
    away: Vec<LeafId>,
    /// How far an expansion had come.
    place: Reflow,
}

impl Given<'_> {
    /// `data` is right: who gave something else, or nothing, and what is to be written there.
    fn recovered(&self, data: Bytes) -> Recovered {
        let leaves = &self.tree.leaves;
        let guid = |leaf: &LeafId| leaves.get(*leaf).map(|leaf| leaf.config.guid);
        let away = self.away.iter().filter_map(guid).collect();
        let mut recovered = Recovered { data: data.clone(), away, ..Recovered::default() };
        let mut liars: Vec<Liar> = Vec::new();
        self.source.compare(&data, &mut |piece, expected| {
            let Some(op) = self.batch.ops.get(piece.op) else { return };
            let Some(guid) = guid(&op.leaf) else { return };
            let found = piece.bytes(&self.answers);
            if found.as_ref().and_then(|found| found.get(..expected.len())) == Some(expected) {
                return;
            }
            if found.is_none() && !recovered.failed.contains(&guid) {
                recovered.failed.push(guid);
            }
            let offset = op.offset + piece.skip as u64;
            if let Some(found) = &found
                && !piece.stale
                && !recovered.liars.contains(&guid)
            {
                let place = (offset, expected.len() as u64);
                let how = difference::members(found, expected);
                liars.push(Liar { leaf: op.leaf, place, how });
                recovered.liars.push(guid);
            }
            let data = Bytes::copy_from_slice(expected);
            recovered.repairs.push(Repair { leaf: guid, offset, data, place: self.place });
        });
        self.tree.count_liars(liars);
        recovered
    }

    /// There was nothing to make a block of.
    fn nothing_to_try(&self, blames: bool) -> VdevError {
        if !blames && let Some(silent) = self.silent() {
            return self.read.unavailable(silent);
        }
        match self.answers.iter().position(Result::is_err) {
            Some(op) => self.tree.failure(self.read, &self.batch, op, &self.answers),
            None => self.read.unavailable("no device is available".into()),
        }
    }

    /// No combination was right.
    fn nothing_right(&self, blames: bool) -> VdevError {
        if blames {
            self.blame_all();
        } else if let Some(silent) = self.silent() {
            return self.read.unavailable(silent);
        }
        let BlockRead { vdev, offset, size, .. } = *self.read;
        let away = !self.away.is_empty() || self.answers.iter().any(Result::is_err);
        VdevError::NoIntactCopy { vdev, offset, size, away }
    }

    /// A device that failed and may hold what the others do not: its name, and what it said.
    fn silent(&self) -> Option<String> {
        let mut silent = None;
        self.source.each_piece(&mut |piece| {
            let op = self.batch.ops.get(piece.op).filter(|_| !piece.stale);
            let leaf = op.and_then(|op| self.tree.leaves.get(op.leaf));
            if let (Some(leaf), Some(Err(error))) = (leaf, self.answers.get(piece.op)) {
                silent.get_or_insert_with(|| format!("{}: {error}", leaf.name()));
            }
        });
        silent
    }

    /// Counts an error for every leaf that gave a whole copy, or for the top-level vdev where nobody can
    /// tell.
    fn blame_all(&self) {
        let mut liars: Vec<Liar> = Vec::new();
        let whole = self.source.whole_copies(&mut |piece| {
            if let (Some(op), Some(_)) = (self.batch.ops.get(piece.op), piece.bytes(&self.answers))
                && !piece.stale
                && !liars.iter().any(|liar| liar.leaf == op.leaf)
            {
                let place = (op.offset + piece.skip as u64, piece.len as u64);
                liars.push(Liar { leaf: op.leaf, place, how: Members::new() });
            }
        });
        if whole {
            self.tree.count_liars(liars);
        } else if let Some(top) = self.tree.top_node(self.read.vdev) {
            top.stats.add_checksum_error();
            self.tree.report_wrong_below(self.read.vdev, (self.read.offset, self.read.size));
        }
    }
}

/// Collects every source of a block.
struct Gatherer<'a> {
    planner: Planner<'a>,
    birth: Txg,
    /// Read what is not needed to make the block as well: dRAID's zero sectors, second places.
    all: bool,
    /// Leaves that have a part of the block, or should, and cannot be asked.
    away: RefCell<Vec<LeafId>>,
}

impl Gatherer<'_> {
    fn gather(
        &self,
        id: NodeId,
        extent: Extent,
        batch: &mut Batch<'_>,
        depth: usize,
    ) -> Result<Source, NoPlan> {
        let planner = &self.planner;
        if depth >= planner.max_depth() {
            return Err("removed vdevs or spares point at each other".into());
        }
        let node = planner.node(id)?;
        Ok(match &node.shape {
            Shape::Leaf(leaf) => self.leaf(*leaf, extent, batch)?,
            Shape::Copies => {
                let ranked = planner.ranked(node, extent, self.birth, &[], depth);
                for &child in node.children.iter().filter(|child| !ranked.contains(child)) {
                    self.note_away(child);
                }
                let copies =
                    ranked.into_iter().map(|child| self.gather(child, extent, batch, depth + 1));
                Source::Any(copies.filter_map(Result::ok).collect())
            }
            Shape::DistributedSpare { .. } => self.spare(&node.shape, extent, batch, depth)?,
            Shape::Indirect(_) => {
                let mut parts = Vec::new();
                for (target, part) in planner.pieces(node, extent)? {
                    let source = self.gather(target, part, batch, depth + 1)?;
                    parts.push((source, part.len as usize));
                }
                Source::Join(parts)
            }
            Shape::Raidz(_) | Shape::Draid(_) => {
                let map = planner.map(node, extent, self.birth)?;
                let mut cells = Vec::with_capacity(map.columns().len());
                let (mut pads, mut twins) = (Vec::new(), Vec::new());
                batch.join_small(map.row_count() > 2);
                let mut cell = |child: u32, offset: u64, len: u64, scratch: bool| {
                    let extent = Extent { offset, len, scratch };
                    let source = match node.children.get(child as usize) {
                        Some(&child) if len > 0 => {
                            self.gather(child, extent, batch, depth + 1).ok()
                        }
                        _ => None,
                    };
                    source.unwrap_or(Source::Nothing)
                };
                for column in map.columns() {
                    let Column { child, offset, size, pad, scratch, .. } = *column;
                    cells.push(cell(child, offset, size, scratch));
                    if self.all && pad > 0 {
                        pads.push((cell(child, offset + size, pad, scratch), pad as usize));
                    }
                }
                for twin in map.twins().iter().filter(|_| self.all) {
                    let size = map.columns().get(twin.column).map_or(0, |column| column.size);
                    let source = cell(twin.child, twin.offset, size, twin.scratch);
                    twins.push((twin.column, source));
                }
                batch.join_small(false);
                let widths = match &node.shape {
                    Shape::Raidz(raidz) => raidz.widths_since(self.birth).collect(),
                    _ => Vec::new(),
                };
                Source::Rows { map, cells, pads, twins, widths }
            }
            Shape::Root | Shape::Nothing(_) => Source::Nothing,
        })
    }

    /// What a distributed spare holds lies on another child; it may lack it all the same.
    fn spare(
        &self,
        shape: &Shape,
        extent: Extent,
        batch: &mut Batch<'_>,
        depth: usize,
    ) -> Result<Source, NoPlan> {
        let Shape::DistributedSpare { draid, spare, leaf } = shape else {
            return Ok(Source::Nothing);
        };
        let target = self.planner.spare_target(*draid, *spare, extent.offset)?;
        let away = self.away.borrow().len();
        let mut source = self.gather(target, extent, batch, depth + 1)?;
        if self.away.borrow().len() > away {
            // Who cannot be asked for the spare's is the child; the spare is who lacks it.
            self.away.borrow_mut().push(*leaf);
        }
        if self.planner.tree.leaves.get(*leaf).is_some_and(|leaf| leaf.misses(self.birth)) {
            source.is_stale();
        }
        Ok(source)
    }

    /// Nothing at or below this node can be asked, or not enough.
    fn note_away(&self, id: NodeId) {
        let Some(node) = self.planner.tree.nodes.get(id) else { return };
        match &node.shape {
            Shape::Leaf(leaf) => self.away.borrow_mut().push(*leaf),
            _ => node.children.iter().for_each(|&child| self.note_away(child)),
        }
    }

    fn leaf(&self, id: LeafId, extent: Extent, batch: &mut Batch<'_>) -> Result<Source, NoPlan> {
        let planner = &self.planner;
        let leaf = planner.tree.leaves.get(id).ok_or("no such leaf")?;
        let Some(fitness) = leaf.fitness(self.birth, planner.now, planner.desperate) else {
            self.away.borrow_mut().push(id);
            return Ok(Source::Nothing);
        };
        let Some((op, skip)) = batch.add(id, leaf, extent) else { return Ok(Source::Nothing) };
        let piece = super::source::Piece {
            op,
            skip,
            len: extent.len as usize,
            stale: fitness == Fitness::Stale,
        };
        Ok(Source::Leaf(piece))
    }
}
