//! The reads of many blocks, gathered, sent to the devices together, and counted.
//!
//! Invariant: every byte a batch adds to a leaf's work under way is taken off again when the batch
//! is dropped; every answer is counted for its leaf exactly once.

use super::extent::Extent;
use super::leaf::{Leaf, failure_of};
use super::patience;
use super::reports::{Asked, Question, SLOW};
use super::tree::{LeafId, VdevTree};
use bytes::Bytes;
use cenote_device::{DeviceError, Enough, Patience, ReadOp, Took, read_batch};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Widest gap between two small reads that are sent as one, in bytes.
const JOIN_GAP: u64 = 32 << 10;
/// Longest read made of small ones.
const JOIN_LIMIT: u64 = 4 << 20;

/// A leaf, and a byte on its device.
pub(super) type Spot = (LeafId, u64);

#[derive(Debug, Clone, Copy)]
pub(super) struct Op {
    pub(super) leaf: LeafId,
    /// Byte on the device.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// It is only a place: nothing is read there.
    pub(super) unread: bool,
}

/// Reads to be sent together.
pub(super) struct Batch<'a> {
    tree: &'a VdevTree,
    pub(super) ops: Vec<Op>,
    /// Last operation of each leaf, while small reads are being joined.
    last: Option<HashMap<LeafId, usize>>,
    /// Leaves and places that failed before, and were counted then.
    counted: Vec<Spot>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(tree: &'a VdevTree) -> Self {
        Self { tree, ops: Vec::new(), last: None, counted: Vec::new() }
    }

    /// What failed there before is not counted again.
    pub(super) fn has_counted(mut self, counted: Vec<Spot>) -> Self {
        self.counted = counted;
        self
    }

    /// What failed, by the answers.
    pub(super) fn failed(&self, answers: &[Result<Bytes, DeviceError>]) -> Vec<Spot> {
        let all = self.ops.iter().zip(answers);
        let failed = all.filter(|(op, answer)| !op.unread && answer.is_err());
        failed.map(|(op, _)| (op.leaf, op.offset)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.ops.len()
    }

    /// From now on, reads that follow closely on one of the same leaf extend it (or not).
    pub(super) fn join_small(&mut self, join: bool) {
        self.last = join.then(HashMap::new);
    }

    /// Adds a read: the operation's index and where in its bytes the extent starts. `None` if the
    /// leaf does not have the extent.
    pub(super) fn add(
        &mut self,
        id: LeafId,
        leaf: &Leaf,
        extent: Extent,
    ) -> Option<(usize, usize)> {
        let end = extent.offset.checked_add(extent.len)?;
        if !extent.scratch && end > leaf.asize() {
            return None;
        }
        let offset = extent.physical()?;
        if let Some(&last) = self.last.as_ref().and_then(|last| last.get(&id))
            && let Some(op) = self.ops.get_mut(last)
            && let Some(skip) = offset.checked_sub(op.offset)
            && skip <= op.len + JOIN_GAP
            && skip + extent.len <= JOIN_LIMIT
        {
            let grown = (skip + extent.len).saturating_sub(op.len);
            op.len += grown;
            leaf.pending.fetch_add(grown, Relaxed);
            return Some((last, skip as usize));
        }
        self.ops.push(Op { leaf: id, offset, len: extent.len, unread: false });
        leaf.pending.fetch_add(extent.len, Relaxed);
        if let Some(last) = &mut self.last {
            last.insert(id, self.ops.len() - 1);
        }
        Some((self.ops.len() - 1, 0))
    }

    /// Adds a place that is not read, as [`Batch::add`]: its answer is that the device is gone, which counts for
    /// nothing.
    pub(super) fn add_unread(
        &mut self,
        id: LeafId,
        leaf: &Leaf,
        extent: Extent,
    ) -> Option<(usize, usize)> {
        let joined = self.last.take();
        let added = self.add(id, leaf, extent);
        self.last = joined;
        if let Some(op) = added.and_then(|(index, _)| self.ops.get_mut(index)) {
            op.unread = true;
        }
        added
    }

    /// Takes back the operations from `start` on. Reads joined to earlier ones stay.
    pub(super) fn truncate(&mut self, start: usize) {
        for op in self.ops.drain(start.min(self.ops.len())..) {
            release(self.tree, &op);
        }
        if let Some(last) = &mut self.last {
            last.retain(|_, index| *index < start);
        }
    }

    /// Sends everything and waits for the answers, in the order of `ops`. Who is not `patient` ends his wait
    /// early where others can give what silent devices should.
    pub(super) fn run(&self, patient: bool) -> Vec<Result<Bytes, DeviceError>> {
        if self.ops.is_empty() {
            return Vec::new();
        }
        let mut sent = Vec::with_capacity(self.ops.len());
        let mut answers: Vec<Result<Bytes, DeviceError>> = Vec::with_capacity(self.ops.len());
        for (index, op) in self.ops.iter().enumerate() {
            answers.push(Err(DeviceError::Gone));
            let leaf = self.tree.leaves.get(op.leaf).filter(|_| !op.unread);
            if let Some((leaf, device)) = leaf.and_then(|leaf| Some((leaf, leaf.device()?))) {
                leaf.stats.read_sent(op.len);
                let read = ReadOp { device, offset: op.offset, len: op.len as usize };
                sent.push((index, read));
            }
        }
        let start = Instant::now();
        let (indexes, reads): (Vec<usize>, Vec<ReadOp>) = sent.into_iter().unzip();
        let enough = |done: &dyn Fn(usize) -> bool| {
            let silent = indexes.iter().enumerate().filter(|(sent, _)| !done(*sent));
            let silent = silent.filter_map(|(_, index)| self.ops.get(*index));
            let will_do = self.tree.can_do_without(&silent.map(|op| op.leaf).collect());
            will_do.then(|| patience::READ.saturating_sub(start.elapsed()))
        };
        let early = (!patient).then_some(&enough as Enough<'_>);
        let took = Took::default();
        let patience = Patience { deadline: self.tree.deadline(), early, took: Some(&took) };
        let answered = read_batch(reads, patience);
        let mut times = vec![Duration::ZERO; answers.len()];
        for ((&index, answer), took) in indexes.iter().zip(answered).zip(took.take()) {
            if let Some(time) = times.get_mut(index) {
                *time = took;
            }
            if let Some(leaf) = self.ops.get(index).and_then(|op| self.tree.leaves.get(op.leaf)) {
                leaf.stats.read_answered();
            }
            if let Some(slot) = answers.get_mut(index) {
                *slot = answer;
            }
        }
        self.count(&answers, &times);
        answers
    }

    /// Counts the answers, and how long each took, and draws conclusions about the devices.
    fn count(&self, answers: &[Result<Bytes, DeviceError>], times: &[Duration]) {
        let now = self.tree.now();
        let mut longest: HashMap<LeafId, Duration> = HashMap::new();
        let mut changed = false;
        let mut needed: HashMap<LeafId, bool> = HashMap::new();
        let mut fails_again: HashSet<LeafId> = HashSet::new();
        for ((op, answer), took) in self.ops.iter().zip(answers).zip(times) {
            let leaf = self.tree.leaves.get(op.leaf).filter(|_| !op.unread);
            let Some(leaf) = leaf else { continue };
            match answer {
                Ok(bytes) => {
                    leaf.stats.add_read(bytes.len() as u64, *took);
                    if *took >= SLOW {
                        self.tree.note_slow(op.leaf, Asked::Read, *took);
                    }
                    let longest = longest.entry(op.leaf).or_default();
                    *longest = (*longest).max(*took);
                }
                Err(error) if self.tree.is_only_slow(leaf, error) => {
                    if let DeviceError::TimedOut(waited) = error {
                        self.tree.note_slow(op.leaf, Asked::Read, *waited);
                    }
                    leaf.health.lock().was_slow(now);
                    needed.insert(op.leaf, false);
                }
                Err(_) if self.counted.contains(&(op.leaf, op.offset)) => {
                    fails_again.insert(op.leaf);
                }
                Err(error) => {
                    leaf.stats.add_read_error(error);
                    tracing::debug!(leaf = leaf.config.guid.0, %error, "read failed");
                    let needed =
                        *needed.entry(op.leaf).or_insert_with(|| self.tree.is_needed(op.leaf));
                    let is_changed = failure_of(error)
                        .is_some_and(|failure| leaf.health.lock().failed(failure, now, needed));
                    changed |= is_changed;
                    let asked = Question { what: Asked::Read, offset: op.offset, len: op.len };
                    self.tree.report_failure(op.leaf, error, asked, is_changed);
                }
            }
        }
        for (id, took) in longest {
            let Some(leaf) = self.tree.leaves.get(id) else { continue };
            // Only a leaf all of whose reads were answered has recovered.
            if !needed.contains_key(&id) && !fails_again.contains(&id) {
                changed |= self.tree.answered(id, leaf, took);
                let mut health = leaf.health.lock();
                if took < patience::READ {
                    health.was_prompt(now);
                }
            }
        }
        if changed {
            self.tree.refresh();
        }
    }
}

fn release(tree: &VdevTree, op: &Op) {
    if let Some(leaf) = tree.leaves.get(op.leaf) {
        leaf.pending.fetch_sub(op.len, Relaxed);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for op in &self.ops {
            release(self.tree, op);
        }
    }
}
