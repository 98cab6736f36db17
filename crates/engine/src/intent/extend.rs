//! Making a chain longer: the blocks that hold the records of one commit.
//!
//! Invariant: a block is known to the chain before anything can fail, so that it is freed with it;
//! a record lies in one block, the data of a write in as many as it takes.

use bytes::Bytes;
use cenote_format::{BlockPointer, Txg};
use parking_lot::Mutex;

use super::block::{BlockBuilder, WRITE_HEADER, pointer_to, size_for};
use super::chain::Chain;
use super::records::Item;
use super::{LogCipher, LogPool, LogWrite};
use crate::txg::Tx;
use crate::{Error, Result};

/// Smallest part of a write worth a record of its own where a block ends.
const SMALLEST_PART: usize = 8192;

/// A chain being made longer.
pub(super) struct Extension<'a> {
    pool: &'a dyn LogPool,
    cipher: Option<&'a dyn LogCipher>,
    chain: &'a Mutex<Chain>,
    /// Holds open the group in which blocks are allocated.
    tx: &'a Tx,
    /// The open block.
    block: BlockBuilder,
    /// Finished blocks.
    writes: Vec<LogWrite>,
    /// The newest group of a record in the open block.
    newest: Txg,
    /// Number of the last record.
    sequence: u64,
    /// Bytes of records still to come.
    left: usize,
}

impl<'a> Extension<'a> {
    /// Goes on in the block behind `pointer`, the last of `chain`.
    pub(super) fn new(
        pool: &'a dyn LogPool,
        cipher: Option<&'a dyn LogCipher>,
        chain: &'a Mutex<Chain>,
        tx: &'a Tx,
        pointer: BlockPointer,
    ) -> Self {
        let (block, sequence) = (BlockBuilder::new(pointer), chain.lock().sequence);
        let (writes, newest) = (Vec::new(), Txg(0));
        Self { pool, cipher, chain, tx, block, writes, newest, sequence, left: 0 }
    }

    /// The finished blocks with the records of `batch` that are of later groups than `synced`; false if
    /// there was no room for all of them.
    pub(super) fn build(
        mut self,
        batch: &[(Txg, Item)],
        synced: Txg,
    ) -> Result<(Vec<LogWrite>, bool)> {
        let all = batch.iter().map(|(_, item)| item.logged_bytes()).sum();
        self.left = all;
        let mut complete = self.add_all(batch, synced);
        if matches!(complete, Ok(true)) {
            let size = self.chain.lock().size_after(all);
            complete = self.turn(size);
        }
        self.chain.lock().sequence = self.sequence;
        Ok((self.writes, complete?))
    }

    fn add_all(&mut self, batch: &[(Txg, Item)], synced: Txg) -> Result<bool> {
        for (txg, item) in batch {
            if *txg <= synced {
                self.passed(item.logged_bytes());
                continue;
            }
            let added = match item {
                Item::Encoded(record) => self.add_record(*txg, record)?,
                Item::Write { object, offset, data } => {
                    self.add_write(*txg, *object, *offset, data.clone())?
                }
                Item::LaterWrite { .. } | Item::Whole => {
                    return Err(Error::invalid("a log record that is none"));
                }
            };
            if !added {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds an encoded record; false if there is no room for it.
    fn add_record(&mut self, txg: Txg, record: &[u8]) -> Result<bool> {
        if record.len() > self.block.room() && !self.turn(size_for(self.left))? {
            return Ok(false);
        }
        self.sequence += 1;
        self.block.push(record, self.sequence)?;
        self.newest = self.newest.max(txg);
        self.passed(record.len());
        Ok(true)
    }

    /// Adds a write, in as many records as there are blocks its data lies in; false if there is no room
    /// for all of it.
    fn add_write(&mut self, txg: Txg, object: u64, offset: u64, data: Bytes) -> Result<bool> {
        let (mut rest, mut at) = (data, offset);
        while !rest.is_empty() {
            let part = self.part_that_fits(rest.len());
            if part == 0 {
                if !self.turn(size_for(self.left))? {
                    return Ok(false);
                }
                continue;
            }
            let part = rest.split_to(part.min(rest.len()));
            self.sequence += 1;
            self.block.push_write(txg, self.sequence, object, at, &part)?;
            at = at.saturating_add(part.len() as u64);
            self.newest = self.newest.max(txg);
            self.passed(part.len());
        }
        self.passed(WRITE_HEADER);
        Ok(true)
    }

    /// How many of the `length` bytes of a write go into the open block: none if those that fit are not
    /// worth a record.
    fn part_that_fits(&self, length: usize) -> usize {
        let room = self.block.room();
        if WRITE_HEADER + length.next_multiple_of(8) <= room {
            return length;
        }
        let part = room.saturating_sub(WRITE_HEADER) / 8 * 8;
        if part < SMALLEST_PART { 0 } else { part }
    }

    /// So many bytes of records are done.
    fn passed(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Ends the block and goes on in another of `size` bytes; false if there is no room for that.
    fn turn(&mut self, size: usize) -> Result<bool> {
        let Ok(dva) = self.pool.allocate(self.tx, size as u64) else { return Ok(false) };
        let mut next = pointer_to(dva, size, self.tx.txg(), self.block.next_verifier());
        let prepared = self.cipher.map_or(Ok(()), |cipher| cipher.prepare(&mut next));
        // Whatever fails from here on, the block is freed with the chain.
        self.chain.lock().go_on(next, self.newest);
        prepared?;
        let block = std::mem::replace(&mut self.block, BlockBuilder::new(next));
        self.writes.push(block.finish(&next, self.cipher)?);
        self.newest = Txg(0);
        Ok(true)
    }
}
