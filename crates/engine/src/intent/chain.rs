//! The chain of one log: which blocks are in it, and the header that leads to them.
//!
//! Invariant: blocks of the chain are in order of their sequence numbers and only the last is not
//! written yet; the header leads to the first. A block leaves the chain in the group whose writing
//! makes it useless, and is freed in that group.

use std::collections::{BTreeMap, VecDeque};

use cenote_format::objset::ZIL_HEADER;
use cenote_format::zil::Header;
use cenote_format::{BlockPointer, Txg};

use super::block::{UNIT, size_for};
use crate::Result;

/// Commits whose size decides how large the next block is.
const REMEMBERED: usize = 16;

/// What the writing of a transaction group does to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSync {
    /// The header to be written into the object set.
    pub header: [u8; ZIL_HEADER],
    /// Blocks to be freed in the group.
    pub freed: Vec<BlockPointer>,
}

/// A block of the chain.
#[derive(Clone, Debug)]
struct Block {
    pointer: BlockPointer,
    /// The newest group of a record in it.
    newest: Txg,
    /// It is on the disk.
    stable: bool,
}

/// Where a chain ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// In this block, which is not written yet; the header of group `begun` is the first that leads to
    /// the chain.
    Open { pointer: BlockPointer, begun: Txg },
    /// There is no chain: one can be begun.
    None,
    /// There is one, or an old log, that nothing can be put into: it has to go first.
    Closed,
}

/// The blocks of a log, and what its header says.
#[derive(Default)]
pub(super) struct Chain {
    /// What an earlier life of the pool left; no chain is begun before it is gone.
    pub old: Header,
    /// Number of the last record written.
    pub sequence: u64,
    blocks: VecDeque<Block>,
    /// The group whose header leads to the chain first.
    begun: Txg,
    /// A block could not be written: the chain ends there, and another is needed.
    broken: bool,
    /// Group in which the old log is freed, and its blocks.
    freeing: Option<(Txg, Vec<BlockPointer>)>,
    /// Bytes of the latest commits.
    sizes: VecDeque<usize>,
    /// The record being replayed.
    replaying: Option<u64>,
    /// The last record replayed in each group.
    replayed: BTreeMap<Txg, u64>,
}

impl Chain {
    /// No chain yet, but what an earlier life of the pool left.
    pub(super) fn after(old: Header) -> Self {
        Self { old, ..Self::default() }
    }

    /// Where it ends.
    pub(super) fn end(&self) -> End {
        if self.broken || !self.old.log.is_hole() || self.freeing.is_some() {
            return End::Closed;
        }
        let begun = self.begun;
        self.blocks.back().map_or(End::None, |last| End::Open { pointer: last.pointer, begun })
    }

    /// Begins it with the block behind `pointer`, allocated in group `txg`; `usable`: records can be put
    /// into that.
    pub(super) fn begin(&mut self, pointer: BlockPointer, txg: Txg, usable: bool) {
        self.blocks.push_back(Block { pointer, newest: txg, stable: false });
        self.begun = txg;
        self.broken = !usable;
    }

    /// Goes on in the block behind `next`: the one before holds records of groups up to `newest`.
    pub(super) fn go_on(&mut self, next: BlockPointer, newest: Txg) {
        if let Some(last) = self.blocks.back_mut() {
            last.newest = last.newest.max(newest);
        }
        self.blocks.push_back(Block { pointer: next, newest: Txg(0), stable: false });
    }

    /// Blocks that are not on the disks: the open one, and those on their way.
    pub(super) fn unwritten(&self) -> Vec<BlockPointer> {
        self.blocks.iter().filter(|block| !block.stable).map(|block| block.pointer).collect()
    }

    /// The `count` blocks before the open one are on the disks.
    pub(super) fn written(&mut self, count: usize) {
        // The last is the open one; the chain may be long.
        let written = self.blocks.iter_mut().rev().skip(1).take(count);
        written.for_each(|block| block.stable = true);
    }

    /// It leads nowhere any more: another is needed.
    pub(super) fn break_off(&mut self) {
        self.broken = true;
    }

    /// Neither a chain nor an old log under way to be freed.
    pub(super) fn is_gone(&self) -> bool {
        self.blocks.is_empty() && self.freeing.is_none()
    }

    /// Remembers how large a commit was, and says how large the block for the next should be.
    pub(super) fn size_after(&mut self, bytes: usize) -> usize {
        self.sizes.truncate(REMEMBERED - 1);
        self.sizes.push_front(size_for(bytes));
        self.sizes.iter().copied().max().unwrap_or(UNIT)
    }

    /// The header that belongs into group `txg`, and what the log frees in it.
    pub(super) fn sync(&mut self, txg: Txg) -> Result<LogSync> {
        let later = self.replayed.split_off(&Txg(txg.0.saturating_add(1)));
        if let Some(last) = self.replayed.values().max() {
            self.old.replay_seq = self.old.replay_seq.max(*last);
        }
        self.replayed = later;
        let mut freed = Vec::new();
        if let Some((_, blocks)) = self.freeing.take_if(|(when, _)| *when <= txg) {
            freed = blocks;
            self.old = Header::default();
        }
        let broken = self.broken;
        while let Some(block) = self.blocks.pop_front_if(|block| {
            (block.stable || broken) && block.newest <= txg && block.pointer.logical_birth() <= txg
        }) {
            freed.push(block.pointer);
        }
        if self.blocks.is_empty() {
            self.broken = false;
        }
        let mut header = self.old;
        if let Some(first) = self.blocks.front() {
            header.log = first.pointer;
        }
        Ok(LogSync { header: header.encode()?, freed })
    }

    /// Frees the old log, whose blocks are `blocks`, in group `txg`.
    pub(super) fn free_old(&mut self, txg: Txg, blocks: Vec<BlockPointer>) {
        self.freeing = Some((txg, blocks));
    }

    /// The record whose replay begins, or the end of replaying.
    pub(super) fn set_replaying(&mut self, sequence: Option<u64>) {
        self.replaying = sequence;
    }

    /// During a replay, notes that the record being replayed is done in group `txg`.
    pub(super) fn note_replayed(&mut self, txg: Txg) -> bool {
        let Some(sequence) = self.replaying else { return false };
        self.replayed.insert(txg, sequence);
        true
    }

    /// A record failed after it may have been noted as replayed: it is to be tried again.
    pub(super) fn not_replayed(&mut self, sequence: u64) {
        self.replayed.retain(|_, noted| *noted != sequence);
        if self.old.replay_seq >= sequence {
            self.old.replay_seq = sequence.saturating_sub(1);
        }
    }
}
