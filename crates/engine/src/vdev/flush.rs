//! Making writes durable, and writing to leaves directly: labels, uberblocks, repairs.
//!
//! Invariant: a leaf that fails its flush counts as if every write since its last flush had failed.

use super::error::VdevError;
use super::patience::WriteWait;
use super::recover::Repair;
use super::reports::{Asked, Question};
use super::tree::{LeafId, NodeId, VdevTree};
use bytes::Bytes;
use cenote_device::{
    Device, DeviceError, Enough, Patience, ReadOp, WriteOp, flush_batch, read_batch, write_batch,
};
use cenote_format::{Guid, Txg};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const FLUSH: Question = Question { what: Asked::Flush, offset: 0, len: 0 };

/// How much longer the leaves are waited for that have not done what they were sent, if the others will do.
fn others_do(
    places: &[(usize, LeafId, Question)],
    wait: &WriteWait<'_>,
    done: &dyn Fn(usize) -> bool,
) -> Option<Duration> {
    let silent = places.iter().enumerate().filter(|(index, _)| !done(*index));
    let silent: Vec<_> = silent.map(|(_, (_, leaf, asked))| (*leaf, asked.len)).collect();
    wait.left_beside(&HashSet::new(), &silent)
}

/// Bytes for one leaf, at a place of its device.
#[derive(Debug, Clone)]
pub struct LeafWrite {
    /// Guid of the leaf.
    pub leaf: Guid,
    /// First byte on the device.
    pub offset: u64,
    /// What to write.
    pub data: Bytes,
}

impl VdevTree {
    /// Flushes every leaf written since its last flush, all together. Makes every write durable
    /// that was answered before the call.
    ///
    /// A leaf that fails is treated as if all it was written since its last flush had failed. If
    /// that is more than the redundancy makes up for: [`VdevError::NotWritten`]. Then nothing
    /// written since the last flush can be relied on, and every later flush answers the same, until
    /// [`VdevTree::forgive_flush`].
    pub fn flush(&self) -> Result<(), VdevError> {
        let mut failure = self.flushing.lock();
        if let Some(failure) = &*failure {
            return Err(failure.clone());
        }
        let flushed = self.flush_written();
        if let Err(error) = &flushed {
            *failure = Some(error.clone());
            self.failed_flushes.fetch_add(1, SeqCst);
        }
        flushed
    }

    /// How often a flush failed beyond the redundancy. What was written before such a failure is
    /// not made durable by a flush after [`VdevTree::forgive_flush`]: who writes and flushes
    /// compares the numbers before and after.
    pub fn failed_flushes(&self) -> u64 {
        self.failed_flushes.load(SeqCst)
    }

    /// Leaves that may lack what was sent to them since this was last asked: a flush of them failed or, where they are
    /// being rebuilt, a write.
    pub fn take_unflushed(&self) -> BTreeSet<Guid> {
        std::mem::take(&mut self.unflushed.lock())
    }

    /// After a flush that failed: from now on flushes count again. What was written since the last
    /// good one is to be written anew.
    pub fn forgive_flush(&self) {
        *self.flushing.lock() = None;
    }

    fn flush_written(&self) -> Result<(), VdevError> {
        let mut dirty: Vec<(LeafId, Vec<std::ops::Range<u64>>)> = Vec::new();
        let mut lost: HashSet<LeafId> = HashSet::new();
        let mut tops: Vec<u32> = Vec::new();
        let mut failures: Vec<(LeafId, DeviceError)> = Vec::new();
        for (id, leaf) in self.leaves.iter().enumerate() {
            let (written, missed, gone) = leaf.take_unflushed();
            if gone {
                failures.push((id, DeviceError::Gone));
            }
            if missed {
                lost.insert(id);
            }
            if !written.is_empty() {
                tops.push(leaf.top);
                dirty.push((id, written));
            }
        }
        let devices = |id: LeafId| self.leaves.get(id).and_then(|leaf| leaf.device());
        let open: Vec<(LeafId, Arc<dyn Device>)> =
            dirty.iter().filter_map(|&(id, _)| Some((id, devices(id)?))).collect();
        let (ids, devices): (Vec<LeafId>, Vec<_>) = open.into_iter().unzip();
        let wait = WriteWait::begin(self);
        let enough = |done: &dyn Fn(usize) -> bool| {
            let silent = ids.iter().enumerate().filter(|(index, _)| !done(*index));
            wait.left_beside(&lost, &silent.map(|(_, id)| (*id, 0)).collect::<Vec<_>>())
        };
        for (&id, answer) in ids.iter().zip(flush_batch(&devices, self.waiting_for(&enough))) {
            if let Err(error) = answer {
                failures.push((id, error));
            }
        }
        let closed = dirty.iter().map(|(id, _)| *id).filter(|id| !ids.contains(id));
        failures.extend(closed.map(|id| (id, DeviceError::Gone)).collect::<Vec<_>>());
        if failures.is_empty() {
            return Ok(());
        }
        let mut changed = false;
        for (id, error) in &failures {
            changed |= self.write_failed(*id, error, FLUSH);
            lost.insert(*id);
        }
        let guid = |id: &LeafId| self.leaves.get(*id).map(|leaf| leaf.config.guid);
        self.unflushed.lock().extend(failures.iter().filter_map(|(id, _)| guid(id)));
        if changed {
            self.refresh();
        }
        for vdev in tops {
            let Some(top) = self.tops.get(vdev as usize) else { continue };
            if self.survives(top.node, &lost) {
                continue;
            }
            let worst = failures.iter().find_map(|(id, error)| {
                let leaf = self.leaves.get(*id).filter(|leaf| leaf.top == vdev)?;
                Some(format!("flushing {}: {error}", leaf.name()))
            });
            let reason = worst.unwrap_or_else(|| "flushing failed".into());
            // The others were not waited for.
            self.unflushed.lock().extend(dirty.iter().filter_map(|(id, _)| guid(id)));
            return Err(VdevError::NotWritten { vdev, reason });
        }
        for (id, _) in &failures {
            let Some(leaf) = self.leaves.get(*id) else { continue };
            let written = dirty.iter().filter(|(dirty, _)| dirty == id);
            for births in written.flat_map(|(_, txgs)| txgs.iter().cloned()) {
                self.note_lost(leaf, births);
            }
        }
        Ok(())
    }

    /// What was written to `node` can be read without the leaves in `lost`.
    fn survives(&self, node: NodeId, lost: &HashSet<LeafId>) -> bool {
        let has_device = |leaf: LeafId| self.leaves.get(leaf).is_some_and(|l| l.device().is_some());
        self.stands(node, &|leaf| !lost.contains(&leaf) && has_device(leaf))
    }

    /// How long leaves are waited for that are written to all together.
    fn waiting_for<'a>(&self, enough: Enough<'a>) -> Patience<'a> {
        Patience { deadline: self.deadline(), early: Some(enough), took: None }
    }

    /// Reads `len` bytes of leaves directly, everything in flight together, and answers in order.
    /// Errors are not counted for the leaves; one that was given up is not asked.
    pub fn read_leaves(
        &self,
        reads: &[(Guid, u64)],
        len: usize,
    ) -> Vec<Result<Bytes, DeviceError>> {
        let mut answers: Vec<Result<Bytes, DeviceError>> = Vec::with_capacity(reads.len());
        let (mut places, mut ops) = (Vec::new(), Vec::new());
        for (index, &(leaf, offset)) in reads.iter().enumerate() {
            answers.push(Err(match self.usable(leaf, false) {
                Ok((_, device)) => {
                    places.push(index);
                    ops.push(ReadOp { device, offset, len });
                    DeviceError::Gone
                }
                Err(error) => error,
            }));
        }
        for (index, answer) in places.into_iter().zip(read_batch(ops, self.deadline())) {
            if let Some(slot) = answers.get_mut(index) {
                *slot = answer;
            }
        }
        answers
    }

    /// Writes to leaves directly, everything in flight together, and answers in order. Errors are
    /// counted for the leaves; nothing is noted as missed. A leaf without a device answers
    /// [`DeviceError::Gone`], one that was given up [`DeviceError::Stuck`] unless `desperate`.
    pub fn write_leaves(
        &self,
        writes: Vec<LeafWrite>,
        desperate: bool,
    ) -> Vec<Result<(), DeviceError>> {
        let mut answers: Vec<Result<(), DeviceError>> = Vec::with_capacity(writes.len());
        let (mut places, mut ops) = (Vec::new(), Vec::new());
        for (index, write) in writes.into_iter().enumerate() {
            answers.push(match self.usable(write.leaf, desperate) {
                Ok((id, device)) => {
                    let len = write.data.len() as u64;
                    let asked = Question { what: Asked::Write, offset: write.offset, len };
                    places.push((index, id, asked));
                    ops.push(WriteOp { device, offset: write.offset, data: write.data });
                    Err(DeviceError::Gone)
                }
                Err(error) => Err(error),
            });
        }
        let wait = WriteWait::begin(self);
        let enough = |done: &dyn Fn(usize) -> bool| others_do(&places, &wait, done);
        let sent = write_batch(ops, self.waiting_for(&enough));
        self.settle(&places, sent, &mut answers);
        answers
    }

    /// Flushes leaves directly, together, and answers in order; otherwise as
    /// [`VdevTree::write_leaves`].
    pub fn flush_leaves(&self, leaves: &[Guid], desperate: bool) -> Vec<Result<(), DeviceError>> {
        let mut answers: Vec<Result<(), DeviceError>> = Vec::with_capacity(leaves.len());
        let (mut places, mut devices) = (Vec::new(), Vec::new());
        for (index, &leaf) in leaves.iter().enumerate() {
            answers.push(match self.usable(leaf, desperate) {
                Ok((id, device)) => {
                    places.push((index, id, FLUSH));
                    devices.push(device);
                    Err(DeviceError::Gone)
                }
                Err(error) => Err(error),
            });
        }
        let wait = WriteWait::begin(self);
        let enough = |done: &dyn Fn(usize) -> bool| others_do(&places, &wait, done);
        let sent = flush_batch(&devices, self.waiting_for(&enough));
        self.settle(&places, sent, &mut answers);
        answers
    }

    /// Writes what [`VdevTree::read_recover`] found missing or wrong, and answers in order. The
    /// leaves' dirty time logs stay as they are: one good block does not make a leaf whole.
    ///
    /// Where a raidz expansion has moved sectors since, nothing is written: that answers
    /// [`DeviceError::Gone`].
    pub fn repair(&self, repairs: &[Repair]) -> Vec<Result<(), DeviceError>> {
        let _still = self.expansion.writing();
        if self.have_moved(repairs) {
            return repairs.iter().map(|_| Err(DeviceError::Gone)).collect();
        }
        let write = |repair: &Repair| LeafWrite {
            leaf: repair.leaf,
            offset: repair.offset,
            data: repair.data.clone(),
        };
        let answers = self.write_leaves(repairs.iter().map(write).collect(), false);
        for (repair, _) in repairs.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()) {
            if let Some(leaf) = self.leaves.iter().find(|leaf| leaf.config.guid == repair.leaf) {
                leaf.stats.add_healed(repair.data.len() as u64);
            }
        }
        answers
    }

    /// What some of these were to write belongs elsewhere by now.
    pub fn have_moved(&self, repairs: &[Repair]) -> bool {
        // At the end of an expansion it is not known any more whose places those were.
        let (own, now) = (self.expanding(), self.reflow());
        let is_own = |leaf: Guid| {
            let mut leaves = self.leaves.iter();
            own.is_none_or(|own| leaves.any(|l| l.config.guid == leaf && l.top == own))
        };
        repairs.iter().any(|repair| repair.place != now && is_own(repair.leaf))
    }

    /// As [`VdevTree::repair`] for blocks born in these groups: durable after [`VdevTree::flush`], which notes
    /// what it failed for as missed.
    pub fn resilver(&self, repairs: &[(Repair, Txg)]) -> Vec<Result<(), DeviceError>> {
        let all: Vec<Repair> = repairs.iter().map(|(repair, _)| repair.clone()).collect();
        let answers = self.repair(&all);
        // Not before: a flush that comes first would have taken it for durable.
        for ((repair, birth), _) in repairs.iter().zip(&answers).filter(|(_, it)| it.is_ok()) {
            let own = self.leaves.iter().filter(|leaf| leaf.config.guid == repair.leaf);
            own.for_each(|leaf| leaf.wrote(*birth));
        }
        answers
    }

    /// The device of a leaf that may be written.
    fn usable(
        &self,
        guid: Guid,
        desperate: bool,
    ) -> Result<(LeafId, Arc<dyn Device>), DeviceError> {
        let id = self.leaves.iter().position(|leaf| leaf.config.guid == guid);
        let leaf = id.and_then(|id| Some((id, self.leaves.get(id)?)));
        let (id, leaf) = leaf.ok_or(DeviceError::Gone)?;
        let device = leaf.device().ok_or(DeviceError::Gone)?;
        if !desperate && !leaf.health.lock().may_try(self.now()) {
            return Err(DeviceError::Stuck(0));
        }
        Ok((id, device))
    }

    /// Puts the answers of sent operations in their places and counts failures.
    fn settle(
        &self,
        places: &[(usize, LeafId, Question)],
        sent: Vec<Result<(), DeviceError>>,
        answers: &mut [Result<(), DeviceError>],
    ) {
        let mut changed = false;
        for (&(index, id, asked), answer) in places.iter().zip(sent) {
            if let Err(error) = &answer {
                changed |= self.write_failed(id, error, asked);
            }
            if let Some(slot) = answers.get_mut(index) {
                *slot = answer;
            }
        }
        if changed {
            self.refresh();
        }
    }
}
