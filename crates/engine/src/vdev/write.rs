//! Writing many blocks at once: all copies, all columns and their parity, on all devices together.
//!
//! Chapter 03. Invariant: a block is called written only if what reached the devices is enough to
//! read it without those that failed: one copy of a mirror, all columns but the parity of a row. A
//! leaf that did not get its part of such a block notes the block's birth as missed, so that nobody
//! reads there what is not there. Nobody misses a block that was not written: it is written again
//! or nothing ever refers to it.

use super::error::VdevError;
use super::extent::Extent;
use super::layout::Map;
use super::leaf::failure_of;
use super::parity;
use super::patience::WriteWait;
use super::placed::{Batch, Op, Placed};
use super::plan::{NoPlan, Planner};
use super::read::BlockRead;
use super::reports::{Asked, Question, SLOW};
use super::tree::{LeafId, Node, NodeId, Shape, VdevTree};
use bytes::{Bytes, BytesMut};
use cenote_device::{DeviceError, Patience, Took, WriteOp, write_batch, write_durable};
use cenote_format::Txg;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Zeros for sectors that belong to a layout and hold nothing.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Tells whether what was done is enough; asked with a function that says of each operation whether it was.
pub(super) type WillDo<'a> = &'a dyn Fn(&dyn Fn(usize) -> bool) -> bool;

/// A block to write: one address of a block pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockWrite {
    /// Top-level vdev id.
    pub vdev: u32,
    /// Byte offset in the vdev's address space.
    pub offset: u64,
    /// The block as it lies on disk: its physical size. Zeros follow up to whole sectors.
    pub data: Bytes,
    /// What each side of a mirror gets instead, in turn; each is as long as `data`.
    pub sides: Option<Arc<[Bytes]>>,
    /// Physical birth: the transaction group being written.
    pub birth: Txg,
}

impl BlockWrite {
    /// The read that gives it back.
    pub fn as_read(&self) -> BlockRead {
        let size = self.data.len() as u64;
        BlockRead { vdev: self.vdev, offset: self.offset, size, birth: self.birth }
    }
}

impl VdevTree {
    /// Writes each block with all its copies and parity; everything is in flight together. Blocks
    /// of one batch must not overlap. Durable after [`VdevTree::flush`].
    ///
    /// A leaf that fails within a block's redundancy is counted, told to its health, and noted in
    /// [`VdevTree::missed`]; one that is unavailable is noted too. Beyond the redundancy the
    /// block's answer is [`VdevError::NotWritten`]; addresses that make no sense and removed vdevs
    /// give the other errors.
    pub fn write_batch(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>> {
        self.write_all(writes, false)
    }

    /// As [`VdevTree::write_batch`] for few blocks: what is called written is durable without
    /// [`VdevTree::flush`].
    pub fn write_durable(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>> {
        self.write_all(writes, true)
    }

    fn write_all(&self, writes: &[BlockWrite], durable: bool) -> Vec<Result<(), VdevError>> {
        // Nothing is moved from when a block is laid out until it is written.
        let _still = self.expansion.writing();
        let all: Vec<&BlockWrite> = writes.iter().collect();
        let (mut results, again) = self.write_round(&all, false, durable);
        if again && results.iter().any(is_unwritten) {
            // Devices given up earlier are better than none, and an error may have been the only one.
            let failed: Vec<usize> =
                (0..results.len()).filter(|&i| results.get(i).is_some_and(is_unwritten)).collect();
            let again: Vec<&BlockWrite> = failed.iter().filter_map(|&i| writes.get(i)).collect();
            let (answers, _) = self.write_round(&again, true, durable);
            for (index, answer) in failed.into_iter().zip(answers) {
                if let Some(slot) = results.get_mut(index) {
                    *slot = answer;
                }
            }
        }
        results
    }

    /// One attempt. Also tells whether another may do better: devices were left out because of earlier failures,
    /// or gave an error.
    fn write_round(
        &self,
        writes: &[&BlockWrite],
        desperate: bool,
        durable: bool,
    ) -> (Vec<Result<(), VdevError>>, bool) {
        let mut batch = Batch { durable, ..Batch::default() };
        let placer = Placer { planner: Planner::new(self, desperate) };
        let placed: Vec<Result<Placed, VdevError>> =
            writes.iter().map(|write| placer.block(write, &mut batch)).collect();
        let will_do = |done: &dyn Fn(usize) -> bool| {
            placed.iter().flatten().all(|placed| placed.stands(done))
        };
        let answers = self.send(&mut batch, &will_do);
        batch.again |= answers.iter().any(|answer| matches!(answer, Err(DeviceError::Io(_))));
        let is_done = |op: usize| answers.get(op).is_some_and(Result::is_ok);
        let judge = |(write, placed): (&&BlockWrite, Result<Placed, VdevError>)| {
            let placed = placed?;
            if placed.stands(&is_done) {
                placed.each_missed(&batch, &answers, &mut |leaf| {
                    if let Some(leaf) = self.leaves.get(leaf) {
                        self.note_missed(leaf, write.birth);
                    }
                });
                return Ok(());
            }
            let reason = match placed.failure(&answers) {
                Some((op, error)) => {
                    let leaf = batch.ops.get(op).and_then(|op| self.leaves.get(op.leaf));
                    format!("{}: {error}", leaf.map_or_else(String::new, |leaf| leaf.name()))
                }
                None => "not enough devices are available".into(),
            };
            Err(VdevError::NotWritten { vdev: write.vdev, reason })
        };
        let results = writes.iter().zip(placed).map(judge).collect();
        self.note_written(&batch, &answers);
        (results, batch.again)
    }

    /// What was done waits for a flush. Only when all that others missed of it is noted: a flush that takes it for
    /// its own and fails has to know who else lacks it.
    pub(super) fn note_written(&self, batch: &Batch, answers: &[Result<(), DeviceError>]) {
        for (op, _) in batch.ops.iter().zip(answers).filter(|(_, answer)| answer.is_ok()) {
            let Some(leaf) = self.leaves.get(op.leaf) else { continue };
            match &batch.births {
                Some(births) => leaf.wrote_all(births),
                None if !batch.durable => leaf.wrote(op.birth),
                None => {}
            }
        }
    }

    /// Sends everything; the answers of the batch's operations in order, all counted. `will_do` tells whether
    /// those that were done are enough. No flush knows of it before [`VdevTree::note_written`].
    pub(super) fn send(
        &self,
        batch: &mut Batch,
        will_do: WillDo<'_>,
    ) -> Vec<Result<(), DeviceError>> {
        let fillers = batch.useful_fillers();
        let mut sent = Vec::with_capacity(batch.ops.len() + fillers.len());
        let mut sent_to = Vec::with_capacity(batch.ops.len() + fillers.len());
        let mut answers = Vec::with_capacity(batch.ops.len());
        let count = batch.ops.len();
        for (index, op) in batch.ops.iter().chain(&fillers).enumerate() {
            if index < count {
                answers.push(Err(DeviceError::Gone));
            }
            let leaf = self.leaves.get(op.leaf);
            if let Some((leaf, device)) = leaf.and_then(|leaf| Some((leaf, leaf.device()?))) {
                leaf.stats.write_sent(op.data.len() as u64);
                sent_to.push(op.leaf);
                let write = WriteOp { device, offset: op.offset, data: op.data.clone() };
                sent.push((index, write));
            }
        }
        let (indexes, writes): (Vec<usize>, Vec<WriteOp>) = sent.into_iter().unzip();
        let (wait, ops) = (WriteWait::begin(self), &batch.ops);
        // Operations of the batch, and those that were sent, in the same order.
        let enough = |done: &dyn Fn(usize) -> bool| {
            let is_done = |op: usize| indexes.binary_search(&op).is_ok_and(done);
            if !will_do(&is_done) {
                return wait.needs();
            }
            let sent = indexes.iter().enumerate().filter(|(sent, _)| !done(*sent));
            let missing = sent.filter_map(|(_, &index)| ops.get(index));
            wait.left(&missing.map(|op| (op.leaf, op.data.len() as u64)).collect::<Vec<_>>())
        };
        let took = Took::default();
        let patience =
            Patience { deadline: self.deadline(), early: Some(&enough), took: Some(&took) };
        let answered = match batch.durable {
            true => write_durable(writes, patience),
            false => write_batch(writes, patience),
        };
        let mut times = vec![Duration::ZERO; count];
        for ((&index, answer), took) in indexes.iter().zip(answered).zip(took.take()) {
            if let Some(time) = times.get_mut(index) {
                *time = took;
            }
            // What fills a gap is nobody's data.
            if let Some(slot) = answers.get_mut(index) {
                *slot = answer;
            }
        }
        for leaf in sent_to.into_iter().filter_map(|leaf| self.leaves.get(leaf)) {
            leaf.stats.write_answered();
        }
        drop(wait);
        self.count_writes(batch, &answers, &times);
        answers
    }

    /// Counts the answers, and how long each took, and draws conclusions about the devices.
    fn count_writes(&self, batch: &Batch, answers: &[Result<(), DeviceError>], times: &[Duration]) {
        let mut longest: HashMap<LeafId, Duration> = HashMap::new();
        let mut failed: HashSet<LeafId> = HashSet::new();
        let mut changed = false;
        for ((op, answer), took) in batch.ops.iter().zip(answers).zip(times) {
            match answer {
                Ok(()) => {
                    let Some(leaf) = self.leaves.get(op.leaf) else { continue };
                    leaf.stats.add_write(op.data.len() as u64, *took);
                    if *took >= SLOW {
                        self.note_slow(op.leaf, Asked::Write, *took);
                    }
                    let longest = longest.entry(op.leaf).or_default();
                    *longest = (*longest).max(*took);
                }
                Err(error) => {
                    failed.insert(op.leaf);
                    let len = op.data.len() as u64;
                    let asked = Question { what: Asked::Write, offset: op.offset, len };
                    changed |= self.write_failed(op.leaf, error, asked);
                }
            }
        }
        for (id, took) in longest {
            let Some(leaf) = self.leaves.get(id) else { continue };
            // Only a leaf all of whose writes were answered has recovered.
            if !failed.contains(&id) {
                changed |= self.answered(id, leaf, took);
            }
        }
        if changed {
            self.refresh();
        }
    }

    /// Counts a failed write of a leaf. Tells whether its condition changed.
    pub(super) fn write_failed(&self, id: LeafId, error: &DeviceError, asked: Question) -> bool {
        let Some(leaf) = self.leaves.get(id) else { return false };
        if leaf.is_put_away() {
            // Somebody closed it while this was on its way: that is no error of the device.
            return false;
        }
        let now = self.now();
        if self.is_only_slow(leaf, error) {
            if let DeviceError::TimedOut(waited) = error {
                self.note_slow(id, asked.what, *waited);
            }
            return leaf.health.lock().was_too_late(now);
        }
        leaf.stats.add_write_error(error);
        tracing::debug!(leaf = leaf.config.guid.0, %error, "write failed");
        let needed = self.is_needed(id);
        let failed = |failure| leaf.health.lock().failed(failure, now, needed);
        let is_changed = failure_of(error).is_some_and(failed);
        self.report_failure(id, error, asked, is_changed);
        is_changed
    }
}

fn is_unwritten(result: &Result<(), VdevError>) -> bool {
    matches!(result, Err(VdevError::NotWritten { .. }))
}

/// Lays blocks out.
pub(super) struct Placer<'a> {
    pub(super) planner: Planner<'a>,
}

impl Placer<'_> {
    pub(super) fn block(&self, write: &BlockWrite, batch: &mut Batch) -> Result<Placed, VdevError> {
        let tree = self.planner.tree;
        let refused = |reason| VdevError::NoSuchVdev { vdev: write.vdev, reason };
        let read = write.as_read();
        let (node, extent) = tree.locate(&read)?;
        if matches!(tree.nodes.get(node).map(|node| &node.shape), Some(Shape::Indirect(_))) {
            return Err(refused("it has been removed"));
        }
        let unwritten = |reason| VdevError::NotWritten { vdev: write.vdev, reason };
        if let Some(sides) = &write.sides {
            return self.sides(node, extent, write.birth, sides, batch).map_err(unwritten);
        }
        let mut data = write.data.clone();
        if data.len() as u64 != extent.len {
            let len = usize::try_from(extent.len).map_err(|_| read.bad("too large"))?;
            let mut padded = BytesMut::with_capacity(len);
            padded.extend_from_slice(&data);
            padded.resize(len, 0);
            data = padded.freeze();
        }
        self.place(node, extent, write.birth, &data, batch, 0).map_err(unwritten)
    }

    /// Gives each side of a mirror its own bytes.
    fn sides(
        &self,
        id: NodeId,
        extent: Extent,
        birth: Txg,
        sides: &[Bytes],
        batch: &mut Batch,
    ) -> Result<Placed, NoPlan> {
        let node = self.planner.node(id)?;
        if sides.iter().any(|side| side.len() as u64 != extent.len) {
            return Err("a side is not as long as its place".into());
        }
        let first = sides.first().ok_or("there is no side")?;
        if !matches!(node.shape, Shape::Copies) {
            return self.place(id, extent, birth, first, batch, 0);
        }
        let mut copies = Vec::with_capacity(node.children.len());
        for (child, side) in node.children.iter().zip(sides.iter().cycle()) {
            copies.push(self.place(*child, extent, birth, side, batch, 1)?);
        }
        Ok(Placed::Copies(copies))
    }

    fn place(
        &self,
        id: NodeId,
        extent: Extent,
        birth: Txg,
        data: &Bytes,
        batch: &mut Batch,
        depth: usize,
    ) -> Result<Placed, NoPlan> {
        if depth >= self.planner.max_depth() {
            return Err("spares point at each other".into());
        }
        let node = self.planner.node(id)?;
        match &node.shape {
            Shape::Leaf(leaf) => self.leaf(*leaf, extent, birth, data, batch),
            Shape::Copies => {
                let mut copies = Vec::with_capacity(node.children.len());
                for &child in &node.children {
                    copies.push(self.place(child, extent, birth, data, batch, depth + 1)?);
                }
                Ok(Placed::Copies(copies))
            }
            Shape::DistributedSpare { draid, spare, leaf } => {
                let first = batch.ops.len();
                let placed = match self.planner.spare_target(*draid, *spare, extent.offset) {
                    Ok(target) => self.place(target, extent, birth, data, batch, depth + 1),
                    Err(_) => Ok(Placed::Lost(None)),
                };
                // It is the spare that lacks it then, and not who should have had it for that.
                let placed = placed.map(|placed| match placed {
                    Placed::Lost(_) => Placed::Lost(Some(*leaf)),
                    placed => placed,
                });
                batch.ops.iter_mut().skip(first).for_each(|op| op.through.push(*leaf));
                placed
            }
            Shape::Raidz(_) | Shape::Draid(_) => self.rows(node, extent, birth, data, batch, depth),
            Shape::Indirect(_) => Err("it has been removed".into()),
            Shape::Root => Err("the root holds no data".into()),
            Shape::Nothing(why) => Err((*why).into()),
        }
    }

    fn leaf(
        &self,
        id: LeafId,
        extent: Extent,
        birth: Txg,
        data: &Bytes,
        batch: &mut Batch,
    ) -> Result<Placed, NoPlan> {
        let tree = self.planner.tree;
        let leaf = tree.leaves.get(id).ok_or("no such leaf")?;
        let has_device = leaf.device().is_some();
        let willing = self.planner.desperate || leaf.health.lock().may_try(self.planner.now);
        if !has_device || !willing {
            batch.again |= has_device;
            return Ok(Placed::Lost(Some(id)));
        }
        let end = extent.offset.checked_add(extent.len).ok_or("beyond the device")?;
        if !extent.scratch && end > leaf.asize() || data.len() as u64 != extent.len {
            return Err(format!("{} does not reach that far", leaf.name()));
        }
        let offset = extent.physical().ok_or("beyond the device")?;
        batch.ops.push(Op { leaf: id, offset, data: data.clone(), birth, through: Vec::new() });
        Ok(Placed::Op(batch.ops.len() - 1))
    }

    fn rows(
        &self,
        node: &Node,
        extent: Extent,
        birth: Txg,
        data: &Bytes,
        batch: &mut Batch,
        depth: usize,
    ) -> Result<Placed, NoPlan> {
        let map = self.planner.map(node, extent, birth)?;
        let mut rows = Vec::with_capacity(map.row_count());
        for (start, row) in map.rows() {
            let slices: Vec<Bytes> = row
                .iter()
                .skip(map.parity)
                .map(|column| match column.size {
                    0 => Some(Bytes::new()),
                    _ => slice(data, column.position, column.size),
                })
                .collect::<Option<_>>()
                .ok_or("the layout does not cover the block")?;
            let height = row.first().map_or(0, |column| column.size as usize);
            let known: Vec<&[u8]> = slices.iter().map(Bytes::as_ref).collect();
            let parity = parity::generate(map.parity, &known, height);
            let stored = parity.into_iter().map(Bytes::from).chain(slices);
            let mut columns = Vec::with_capacity(row.len());
            for (index, (column, bytes)) in (start..).zip(row.iter().zip(stored)) {
                let mut put = |child: u32, (offset, scratch): (u64, bool), bytes: &Bytes| {
                    let child = *node.children.get(child as usize).ok_or("no such child")?;
                    let extent = Extent { offset, len: bytes.len() as u64, scratch };
                    self.place(child, extent, birth, bytes, batch, depth + 1)
                };
                let mut parts = Vec::with_capacity(2);
                if column.size > 0 {
                    parts.push(put(column.child, (column.offset, column.scratch), &bytes)?);
                }
                if column.pad > 0 {
                    let offset = column.offset.checked_add(column.size);
                    let place = (offset.ok_or("beyond the device")?, column.scratch);
                    parts.push(put(column.child, place, &zeros(column.pad))?);
                }
                for twin in map.twins().iter().filter(|twin| twin.column == index) {
                    let placed = put(twin.child, (twin.offset, twin.scratch), &bytes)?;
                    columns.push(Placed::Later(Box::new(placed)));
                }
                columns.push(match parts.pop() {
                    Some(only) if parts.is_empty() => only,
                    last => Placed::All(parts.into_iter().chain(last).collect()),
                });
            }
            rows.push(Placed::Row(map.parity, columns));
        }
        self.fill(node, &map, extent, birth, batch);
        Ok(match rows.pop() {
            Some(only) if rows.is_empty() => only,
            last => Placed::All(rows.into_iter().chain(last).collect()),
        })
    }

    /// Offers zeros for the sectors a raidz block allocates and does not use, if leaves are right
    /// below: they let the writes around them go as one.
    fn fill(&self, node: &Node, map: &Map, extent: Extent, birth: Txg, batch: &mut Batch) {
        let Shape::Raidz(raidz) = &node.shape else { return };
        if raidz.expanding() {
            return;
        }
        let shift = raidz.ashift();
        let used: u64 = map.columns().iter().map(|column| column.size >> shift).sum();
        let Some(allocated) = raidz.asize(extent.len, birth) else { return };
        let first = extent.offset >> shift;
        let width = u64::from(raidz.children());
        for sector in first.saturating_add(used)..first.saturating_add(allocated >> shift) {
            let child = node.children.get((sector % width) as usize);
            let child = child.and_then(|&child| self.planner.tree.nodes.get(child));
            let Some(Shape::Leaf(id)) = child.map(|child| &child.shape) else { continue };
            let Some(leaf) = self.planner.tree.leaves.get(*id) else { continue };
            let place = Extent::new((sector / width) << shift, 1 << shift);
            if let Some(offset) = place.physical()
                && place.offset + place.len <= leaf.asize()
            {
                let data = zeros(place.len);
                batch.fillers.push(Op { leaf: *id, offset, data, birth, through: Vec::new() });
            }
        }
    }
}

/// A part of `data`, without a copy.
fn slice(data: &Bytes, position: u64, size: u64) -> Option<Bytes> {
    let start = usize::try_from(position).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    (end <= data.len()).then(|| data.slice(start..end))
}

fn zeros(len: u64) -> Bytes {
    match ZEROS.get(..len as usize) {
        Some(zeros) => Bytes::from_static(zeros),
        None => Bytes::from(vec![0; len as usize]),
    }
}
