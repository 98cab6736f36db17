//! Everything that can be tried for one block: all copies, all parity, all combinations, until the
//! checksum is right; and then who was wrong.
//!
//! Invariant: bytes are returned only if `verify` accepted them, and a leaf is blamed only if it
//! failed to answer or gave other bytes than the accepted block demands of it. The search is
//! bounded: see [`MAX_CANDIDATES`] and [`MAX_CANDIDATE_BYTES`].

use super::batch::{Batch, Spot};
use super::candidates::Search;
use super::difference;
use super::error::VdevError;
use super::gather::{Examination, Gathered, Reading};
use super::plan::Planner;
use super::raidz::Reflow;
use super::read::BlockRead;
use super::tree::{LeafId, Shape, VdevTree};
use crate::events::Members;
use bytes::Bytes;
use cenote_device::DeviceError;
use cenote_format::Guid;

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
    /// It lacks the block, or stands in for who does: whatever it has is wrong.
    pub lacking: bool,
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
            Examination {
                desperate: true,
                all: false,
                reading: Reading::Everything,
                blames: false,
            },
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

    /// [`VdevTree::read_all_copies`] of many blocks, read together; everything is read only of those that
    /// cannot be made of less, and of which `is_known` what is right. `repairs` has what leaves lack, whatever they have
    /// instead. Both get the number of the block.
    pub fn read_copies_of(
        &self,
        reads: &[BlockRead],
        reading: Reading,
        is_known: &dyn Fn(usize) -> bool,
        verify: &mut dyn FnMut(usize, &[u8]) -> bool,
    ) -> Vec<Result<Recovered, VdevError>> {
        let how = Examination { desperate: false, all: true, reading, blames: false };
        let (found, failed) = self.examine_many(reads, verify, how, Vec::new());
        let all = Examination { reading: Reading::Everything, blames: true, ..how };
        let again = |(number, (found, read)): (usize, (Result<_, _>, &BlockRead))| match found {
            Ok(found) => Ok(found),
            // What those have instead that lack it would do as well as any.
            Err(error) if !is_known(number) => Err(error),
            Err(_) => {
                let own = std::slice::from_ref(read);
                let mut verify = |_: usize, bytes: &[u8]| verify(number, bytes);
                one(self.examine_many(own, &mut verify, all, failed.clone()).0)
            }
        };
        found.into_iter().zip(reads).enumerate().map(again).collect()
    }

    /// Makes a block whole that belongs to no transaction group, so that no dirty time log tells of
    /// it: what a leaf lacks of it is written, and noted as missed where that fails. Does nothing if
    /// the block is not there.
    pub fn complete(&self, read: &BlockRead, verify: &mut dyn FnMut(&[u8]) -> bool) {
        let how = Examination {
            desperate: false,
            all: true,
            reading: Reading::Everything,
            blames: false,
        };
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
        let how = Examination { desperate, all, reading: Reading::Everything, blames: true };
        self.examine_with(read, verify, how)
    }

    fn examine_with(
        &self,
        read: &BlockRead,
        verify: &mut dyn FnMut(&[u8]) -> bool,
        how: Examination,
    ) -> Result<Recovered, VdevError> {
        let read = std::slice::from_ref(read);
        one(self.examine_many(read, &mut |_, bytes| verify(bytes), how, Vec::new()).0)
    }

    /// Examines blocks; all of them are read together. What failed at `counted` places is not counted again; also the places
    /// at which something failed.
    fn examine_many(
        &self,
        reads: &[BlockRead],
        verify: &mut dyn FnMut(usize, &[u8]) -> bool,
        how: Examination,
        counted: Vec<Spot>,
    ) -> (Vec<Examined>, Vec<Spot>) {
        let planner = Planner::new(self, how.desperate);
        let mut batch = Batch::new(self).has_counted(counted);
        let mut gather = |read| {
            let start = batch.len();
            let gathered = Gathered::of(&planner, read, how, &mut batch);
            if gathered.is_err() {
                batch.truncate(start);
            }
            gathered
        };
        let gathered: Vec<Result<Gathered, VdevError>> = reads.iter().map(&mut gather).collect();
        let answers = batch.run(true);
        let place = *planner.reflow;
        let examined = |(number, (gathered, read)): (usize, (Result<Gathered, _>, _))| {
            let gathered = gathered?;
            let given =
                Given { tree: self, read, gathered, batch: &batch, answers: &answers, place };
            given.examined(&mut |bytes| verify(number, bytes), how.blames)
        };
        let all = gathered.into_iter().zip(reads).enumerate().map(examined).collect();
        (all, batch.failed(&answers))
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

/// What came of examining a block.
type Examined = Result<Recovered, VdevError>;

/// What came of the one block that was examined.
fn one(mut all: Vec<Examined>) -> Examined {
    all.pop().unwrap_or_else(|| Err(VdevError::config("no block was examined")))
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
    gathered: Gathered,
    batch: &'a Batch<'a>,
    answers: &'a [Result<Bytes, DeviceError>],
    /// How far an expansion had come.
    place: Reflow,
}

/// `part` of `data`, shared where it lies in it.
fn share(data: &Bytes, part: &[u8]) -> Bytes {
    let (all, own) = (data.as_ptr_range(), part.as_ptr_range());
    match all.start <= own.start && own.end <= all.end {
        true => data.slice_ref(part),
        false => Bytes::copy_from_slice(part),
    }
}

impl Given<'_> {
    /// The first way to make the block that `verify` accepts.
    fn examined(
        &self,
        verify: &mut dyn FnMut(&[u8]) -> bool,
        blames: bool,
    ) -> Result<Recovered, VdevError> {
        let size = usize::try_from(self.read.size).map_err(|_| self.read.bad("too large"))?;
        let search = Search::new(self.answers);
        let mut accepted = None;
        search.run(&self.gathered.source, &mut |candidate| match candidate.get(..size) {
            Some(bytes) if verify(bytes) => {
                accepted = Some(candidate.slice(..size));
                true
            }
            _ => false,
        });
        match accepted {
            Some(data) => Ok(self.recovered(data)),
            None if search.tried() == 0 => Err(self.nothing_to_try(blames)),
            None => Err(self.nothing_right(blames)),
        }
    }

    /// The answers to what was asked for it alone.
    fn own_answers(&self) -> &[Result<Bytes, DeviceError>] {
        self.answers.get(self.gathered.ops.clone()).unwrap_or_default()
    }

    /// `data` is right: who gave something else, or nothing, and what is to be written there.
    fn recovered(&self, data: Bytes) -> Recovered {
        let leaves = &self.tree.leaves;
        let guid = |leaf: &LeafId| leaves.get(*leaf).map(|leaf| leaf.config.guid);
        let away = self.gathered.away.iter().filter_map(guid).collect();
        let mut recovered = Recovered { data: data.clone(), away, ..Recovered::default() };
        let mut liars: Vec<Liar> = Vec::new();
        self.gathered.source.compare(&data, &mut |piece, expected| {
            let Some(op) = self.batch.ops.get(piece.op) else { return };
            let Some(guid) = guid(&op.leaf) else { return };
            let found = piece.bytes(self.answers);
            if found.as_ref().and_then(|found| found.get(..expected.len())) == Some(expected) {
                return;
            }
            if found.is_none() && !op.unread && !recovered.failed.contains(&guid) {
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
            let data = share(&data, expected);
            let place = self.place;
            let lacking = piece.stale;
            recovered.repairs.push(Repair { leaf: guid, offset, data, lacking, place });
        });
        self.tree.count_liars(liars);
        recovered
    }

    /// There was nothing to make a block of.
    fn nothing_to_try(&self, blames: bool) -> VdevError {
        if !blames && let Some(silent) = self.silent() {
            return self.read.unavailable(silent);
        }
        match self.own_answers().iter().position(Result::is_err) {
            Some(op) => {
                let op = self.gathered.ops.start.saturating_add(op);
                self.tree.failure(self.read, self.batch, op, self.answers)
            }
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
        let away = !self.gathered.away.is_empty() || self.own_answers().iter().any(Result::is_err);
        VdevError::NoIntactCopy { vdev, offset, size, away }
    }

    /// A device that failed and may hold what the others do not: its name, and what it said.
    fn silent(&self) -> Option<String> {
        let mut silent = None;
        self.gathered.source.each_piece(&mut |piece| {
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
        let whole = self.gathered.source.whole_copies(&mut |piece| {
            if let (Some(op), Some(_)) = (self.batch.ops.get(piece.op), piece.bytes(self.answers))
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
