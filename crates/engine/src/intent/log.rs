//! The log of one dataset: appending, committing, and its part in writing a transaction group.
//!
//! Invariant: blocks of the chain are in order of their sequence numbers and only the last is not
//! written yet; the header leads to the first. A block leaves the chain in the group whose writing
//! makes it useless, and is freed in that group. The group in which a block was allocated is not
//! written before the block that leads to it: otherwise a crash in between would leave space in use
//! that nobody knows of.
//! Nobody waits for a transaction group or a device while holding the state's lock, and one thread
//! at a time writes the chain: whoever commits meanwhile waits for it, and the next of them takes
//! along what all of them appended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use cenote_format::objset::ZIL_HEADER;
use cenote_format::zil::{Header, Payload, Record};
use cenote_format::{BlockPointer, Txg};
use parking_lot::{Condvar, Mutex};

use super::block::{BlockBuilder, MOST_RECORDS, UNIT, WRITE_HEADER, pointer_to, size_for};
use super::place::{Placed, with_data};
use super::records::{Item, MOST_ORDERED, Records};
use super::{LogCipher, LogPool, LogWrite, WriteSource};
use crate::txg::Tx;
use crate::vdev::BlockWrite;
use crate::{Error, ErrorKind, Result};

/// Smallest part of a write worth a record of its own where a block ends.
const SMALLEST_PART: usize = 8192;
/// Bytes of data above which their groups are written, instead of the data before them.
const MOST_PLACED: u64 = 64 << 20;
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

/// The intent log of one dataset.
pub struct IntentLog {
    pool: Arc<dyn LogPool>,
    objset: u64,
    cipher: Option<Arc<dyn LogCipher>>,
    source: Mutex<Option<Weak<dyn WriteSource>>>,
    state: Mutex<State>,
    changed: Condvar,
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

#[derive(Default)]
struct State {
    records: Records,
    /// So many of the records put in order are stable.
    stable: u64,
    committing: bool,
    /// Up to which record a commit failed, and why.
    failed: Option<(u64, Error)>,
    /// The group that has the records of commits that failed.
    owed: Txg,
    /// What an earlier life of the pool left; no chain is begun before it is gone.
    old: Header,
    chain: VecDeque<Block>,
    /// The group whose header leads to the chain first.
    begun: Txg,
    /// A block could not be written: the chain ends there, and another is needed.
    broken: bool,
    /// Group in which the old log is freed, and its blocks.
    freeing: Option<(Txg, Vec<BlockPointer>)>,
    /// Number of the last record written.
    sequence: u64,
    /// Bytes of the latest commits.
    sizes: VecDeque<usize>,
    /// The record being replayed.
    replaying: Option<u64>,
    /// The last record replayed in each group.
    replayed: BTreeMap<Txg, u64>,
}

impl IntentLog {
    /// The log of the dataset with object number `objset`, whose header is `header`.
    pub fn new(
        pool: Arc<dyn LogPool>,
        objset: u64,
        header: Header,
        cipher: Option<Arc<dyn LogCipher>>,
    ) -> Self {
        let state = State { old: header, ..State::default() };
        Self {
            pool,
            objset,
            cipher,
            source: Mutex::new(None),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Says where the data of later writes is read from. Without it they are committed by writing
    /// their transaction group.
    pub fn set_source(&self, source: Weak<dyn WriteSource>) {
        *self.source.lock() = Some(source);
    }

    /// The header an earlier life of the pool left; zero when that is gone.
    pub fn old_header(&self) -> Header {
        self.state.lock().old
    }

    /// The log was claimed: this is its header now, to be written in the first group.
    pub fn set_old_header(&self, header: Header) {
        self.state.lock().old = header;
    }

    pub(super) fn pool(&self) -> &Arc<dyn LogPool> {
        &self.pool
    }

    pub(super) fn cipher(&self) -> Option<&Arc<dyn LogCipher>> {
        self.cipher.as_ref()
    }

    /// Adds the record of a change of `object` made in `tx`, to those every commit writes or to
    /// those a commit of the object does, as OpenZFS does with records of its type. What has no
    /// record counts as a change no record can tell.
    pub fn note(&self, tx: &Tx, object: u64, payload: Payload) {
        let later = match &payload {
            Payload::Create(_)
            | Payload::Remove { .. }
            | Payload::Link { .. }
            | Payload::Rename { .. } => None,
            Payload::Unknown(_) => return self.append_whole(tx),
            _ => Some(object),
        };
        if self.append_to(tx, object, later, payload, false).is_err() {
            self.append_whole(tx);
        }
    }

    /// Adds the record of a change made in `tx` to those every commit writes. A rename takes along
    /// what was written to `object` before. During a replay it notes instead that the record being
    /// replayed belongs to the group of `tx`.
    pub fn append(
        &self,
        tx: &Tx,
        object: u64,
        payload: Payload,
        case_insensitive: bool,
    ) -> Result<()> {
        self.append_to(tx, object, None, payload, case_insensitive)
    }

    /// As [`Self::append`] for a change that only a commit of its object writes: attributes, ranges.
    pub fn append_later(&self, tx: &Tx, object: u64, payload: Payload) -> Result<()> {
        self.append_to(tx, object, Some(object), payload, false)
    }

    fn append_to(
        &self,
        tx: &Tx,
        object: u64,
        later: Option<u64>,
        payload: Payload,
        case_insensitive: bool,
    ) -> Result<()> {
        if self.note_replayed(tx) {
            return Ok(());
        }
        if let Payload::Create(create) = &payload {
            // What waits for this number was done to an object that is gone.
            self.forget(create.object.object);
        }
        let is_rename = matches!(payload, Payload::Rename { .. });
        let record = Record { txg: tx.txg(), sequence: 0, case_insensitive, payload };
        let encoded = record.encode()?;
        let item = match encoded.len() <= MOST_RECORDS {
            true => Item::Encoded(encoded),
            false => Item::Whole,
        };
        let can_read_later = self.source.lock().is_some();
        let mut state = self.state.lock();
        if is_rename {
            let settled = state.records.promote(Some(object));
            self.settle(settled);
        }
        tx.add_noted(state.records.append(tx.txg(), later, item, can_read_later));
        Ok(())
    }

    /// Adds a write with its data to those every commit writes (`synchronous`), or a commit of its
    /// object.
    pub fn append_write(&self, tx: &Tx, object: u64, offset: u64, data: Bytes, synchronous: bool) {
        if !self.note_replayed(tx) {
            let later = (!synchronous).then_some(object);
            self.add(tx, later, Item::Write { object, offset, data });
        }
    }

    /// Adds a write whose data is read from the source if its object is committed.
    pub fn append_later_write(&self, tx: &Tx, object: u64, offset: u64, length: u64) {
        if !self.note_replayed(tx) {
            self.add(tx, Some(object), Item::LaterWrite { object, offset, length });
        }
    }

    /// Adds a change no record can tell: the next commit waits for the whole group.
    pub fn append_whole(&self, tx: &Tx) {
        if !self.note_replayed(tx) {
            self.add(tx, None, Item::Whole);
        }
    }

    /// Adds a record, and counts the memory it takes.
    fn add(&self, tx: &Tx, object: Option<u64>, item: Item) {
        let can_read_later = self.source.lock().is_some();
        let mut state = self.state.lock();
        tx.add_noted(state.records.append(tx.txg(), object, item, can_read_later));
    }

    /// Records take less memory.
    fn settle(&self, less: impl IntoIterator<Item = (Txg, u64)>) {
        less.into_iter().for_each(|(txg, bytes)| self.pool.settled(txg, bytes));
    }

    /// Forgets what only a commit of `object` would write: it has no name any more.
    pub fn forget(&self, object: u64) {
        let settled = self.state.lock().records.forget(object);
        self.settle(settled);
    }

    /// Whether records wait that a commit of `object` (0: of all) would write.
    pub fn has_work(&self) -> bool {
        let state = self.state.lock();
        state.records.appended() > state.stable
    }

    /// Returns when everything that was appended before is stable: all that is in order, and what
    /// was appended for `object` (for all objects if it is 0). The caller holds no [`Tx`].
    pub fn commit(&self, object: u64) -> Result<()> {
        let mut state = self.state.lock();
        let settled = state.records.promote((object != 0).then_some(object));
        self.settle(settled);
        let wanted = state.records.appended();
        if let Some((to, _)) = state.failed
            && state.owed <= self.pool.synced()
        {
            // The groups of what failed are on the disks by now.
            state.stable = state.stable.max(to);
            state.failed = None;
        }
        loop {
            if state.stable >= wanted {
                return Ok(());
            }
            if let Some((_, error)) = state.failed.as_ref().filter(|(to, _)| *to >= wanted) {
                return Err(error.clone());
            }
            if state.committing {
                crate::txg::wait(&self.changed, &mut state, None)?;
                continue;
            }
            state.committing = true;
            let end = state.records.appended();
            let batch = state.records.take();
            drop(state);
            let newest = batch.iter().map(|(txg, _)| *txg).max().unwrap_or_default();
            let mut taken: BTreeMap<Txg, u64> = BTreeMap::new();
            for (txg, item) in &batch {
                *taken.entry(*txg).or_default() += item.memory();
            }
            let result = self.write(batch);
            self.settle(taken);
            state = self.state.lock();
            state.committing = false;
            match result {
                Ok(()) => state.stable = end,
                // Only this one is not wanted any more: others wait for the groups.
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    state.owed = state.owed.max(newest);
                    self.changed.notify_all();
                    return Err(error);
                }
                Err(error) => {
                    state.owed = state.owed.max(newest);
                    state.failed = Some((end, error));
                }
            }
            self.changed.notify_all();
        }
    }

    /// Makes a batch of records stable, by the log or by writing their groups.
    fn write(&self, batch: Vec<(Txg, Item)>) -> Result<()> {
        let owed = self.state.lock().owed;
        if owed > self.pool.synced() {
            self.pool.wait_synced(owed)?;
        }
        let synced = self.pool.synced();
        let batch: Vec<_> = batch.into_iter().filter(|(txg, _)| *txg > synced).collect();
        let Some(newest) = batch.iter().map(|(txg, _)| *txg).max() else { return Ok(()) };
        match self.resolve(batch)? {
            Some(batch) if batch.is_empty() => Ok(()),
            Some(batch) => match self.open_block()? {
                Some(pointer) => match self.write_blocks(pointer, batch)? {
                    true => Ok(()),
                    false => self.pool.wait_synced(newest),
                },
                None => self.pool.wait_synced(newest),
            },
            None => self.pool.wait_synced(newest),
        }
    }

    fn source(&self) -> Option<Arc<dyn WriteSource>> {
        self.source.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Reads the data of later writes that goes into records; `None` if the batch has what cannot
    /// be logged, or too much.
    fn resolve(&self, batch: Vec<(Txg, Item)>) -> Result<Option<Vec<(Txg, Item)>>> {
        let placed_from = if self.cipher.is_none() { self.pool.placed_from() } else { None };
        let is_placed = |length| placed_from.is_some_and(|from| length >= from);
        let (mut logged, mut placed) = (0_u64, 0_u64);
        for (_, item) in &batch {
            match item {
                Item::LaterWrite { length, .. } if is_placed(*length) => placed += *length,
                Item::LaterWrite { length, .. } => logged += *length,
                item => logged += bytes_of(item) as u64,
            }
        }
        if logged > MOST_ORDERED || placed > MOST_PLACED {
            return Ok(None);
        }
        let source = self.source();
        let mut resolved = Vec::with_capacity(batch.len());
        for (txg, item) in batch {
            match item {
                Item::Whole => return Ok(None),
                Item::LaterWrite { length, .. } if source.is_some() && is_placed(length) => {
                    resolved.push((txg, item));
                }
                Item::LaterWrite { object, offset, length } => {
                    let Some(source) = &source else { return Ok(None) };
                    let item = with_data(source.as_ref(), object, offset, length)?;
                    resolved.extend(item.map(|item| (txg, item)));
                }
                item => resolved.push((txg, item)),
            }
        }
        Ok(Some(resolved))
    }

    /// The block at the end of the chain, which is begun if there is none; `None` if that cannot be
    /// now.
    fn open_block(&self) -> Result<Option<BlockPointer>> {
        let tx = self.pool.begin()?;
        let last = {
            let state = self.state.lock();
            if state.broken || !state.old.log.is_hole() || state.freeing.is_some() {
                return Ok(None);
            }
            state.chain.back().map(|last| (last.pointer, state.begun))
        };
        if let Some((last, begun)) = last {
            drop(tx);
            // Who began the chain may not have waited.
            if begun > self.pool.synced() {
                self.pool.wait_synced(begun)?;
            }
            return Ok(Some(last));
        }
        let Ok(dva) = self.pool.allocate(&tx, UNIT as u64) else { return Ok(None) };
        let [first, second] = self.pool.random();
        let mut pointer = pointer_to(dva, UNIT, tx.txg(), [first, second, self.objset, 1]);
        let prepared = self.cipher.as_ref().map_or(Ok(()), |cipher| cipher.prepare(&mut pointer));
        let block = Block { pointer, newest: tx.txg(), stable: false };
        let txg = tx.txg();
        {
            let mut state = self.state.lock();
            state.chain.push_back(block);
            state.begun = txg;
            state.broken = prepared.is_err();
        }
        drop(tx);
        prepared?;
        // The header on disk must lead to the chain before anything in it counts.
        self.pool.wait_synced(txg)?;
        Ok(Some(pointer))
    }

    /// Writes the records from the block behind `pointer` on; false if their groups have to be
    /// waited for instead.
    fn write_blocks(&self, pointer: BlockPointer, batch: Vec<(Txg, Item)>) -> Result<bool> {
        // A chain just begun has waited for a group.
        let synced = self.pool.synced();
        let tx = self.pool.begin()?;
        let source = self.source();
        let mut placed = Placed::new(self.pool.as_ref(), source.as_deref(), &tx, batch)?;
        let data = placed.take_writes();
        let (writes, complete) = match self.build_blocks(pointer, &placed.items, &tx, synced) {
            Ok(built) => built,
            Err(error) => {
                // What was built is not written: the chain leads nowhere.
                self.state.lock().broken = true;
                placed.adopt(&tx, false);
                return Err(error);
            }
        };
        // The group in which the next block was allocated must not be written before this one, which
        // leads to it, nor before what was placed for that group to use: a crash in between would leave
        // space that nobody knows of.
        let written = self.write_out(writes, data);
        placed.adopt(&tx, matches!(written, Ok(true)));
        drop(tx);
        Ok(written? && complete)
    }

    /// Builds the blocks with the records of `batch`, which continue the chain; false if there was
    /// no room for all of them.
    fn build_blocks(
        &self,
        pointer: BlockPointer,
        batch: &[(Txg, Item)],
        tx: &Tx,
        synced: Txg,
    ) -> Result<(Vec<LogWrite>, bool)> {
        let mut sequence = self.state.lock().sequence;
        let mut left: usize = batch.iter().map(|(_, item)| bytes_of(item)).sum();
        let all = left;
        let mut chain = Writing {
            log: self,
            tx,
            block: BlockBuilder::new(pointer),
            writes: Vec::new(),
            newest: Txg(0),
        };
        let mut built = Ok(true);
        'batch: for (txg, item) in batch {
            if *txg <= synced {
                left -= bytes_of(item).min(left);
                continue;
            }
            match item {
                Item::Encoded(record) => {
                    if record.len() > chain.block.room() {
                        built = chain.turn(size_for(left));
                        if !matches!(built, Ok(true)) {
                            break 'batch;
                        }
                    }
                    sequence += 1;
                    chain.block.push(record, sequence)?;
                }
                Item::Write { object, offset, data } => {
                    let (mut rest, mut at) = (data.clone(), *offset);
                    while !rest.is_empty() {
                        let needed = WRITE_HEADER + rest.len().next_multiple_of(8);
                        let room = chain.block.room();
                        let mut part = rest.len();
                        if needed > room {
                            part = room.saturating_sub(WRITE_HEADER) / 8 * 8;
                            if part < SMALLEST_PART {
                                built = chain.turn(size_for(left));
                                if !matches!(built, Ok(true)) {
                                    break 'batch;
                                }
                                continue;
                            }
                        }
                        let part = rest.split_to(part.min(rest.len()));
                        sequence += 1;
                        chain.block.push_write(*txg, sequence, *object, at, &part)?;
                        at = at.saturating_add(part.len() as u64);
                        chain.newest = chain.newest.max(*txg);
                        left -= part.len().min(left);
                    }
                    left -= WRITE_HEADER.min(left);
                    continue;
                }
                Item::LaterWrite { .. } | Item::Whole => {
                    return Err(Error::invalid("a log record that is none"));
                }
            }
            chain.newest = chain.newest.max(*txg);
            left -= bytes_of(item).min(left);
        }
        if matches!(built, Ok(true)) {
            built = chain.turn(self.remember(all));
        }
        let writes = chain.writes;
        self.state.lock().sequence = sequence;
        Ok((writes, built?))
    }

    /// Writes finished blocks and the data they point at; false, and the chain is broken, if that
    /// fails.
    fn write_out(&self, blocks: Vec<LogWrite>, data: Vec<BlockWrite>) -> Result<bool> {
        let count = blocks.len();
        if count == 0 {
            return Ok(data.is_empty());
        }
        let written = self.pool.write(blocks, data);
        let mut state = self.state.lock();
        match written {
            Ok(()) => {
                // The last is the open one; the chain may be long.
                let written = state.chain.iter_mut().rev().skip(1).take(count);
                written.for_each(|block| block.stable = true);
                Ok(true)
            }
            Err(error) => {
                tracing::warn!("the intent log cannot be written: {error}");
                state.broken = true;
                Ok(false)
            }
        }
    }

    /// Remembers how large a commit was, and says how large the block for the next should be.
    fn remember(&self, bytes: usize) -> usize {
        let mut state = self.state.lock();
        state.sizes.truncate(REMEMBERED - 1);
        state.sizes.push_front(size_for(bytes));
        state.sizes.iter().copied().max().unwrap_or(UNIT)
    }

    /// For the writer of transaction groups, once in every group in which it writes the dataset:
    /// the header that belongs into group `txg`, and what the log frees in it.
    pub fn sync(&self, txg: Txg) -> Result<LogSync> {
        let mut state = self.state.lock();
        let later = state.replayed.split_off(&Txg(txg.0.saturating_add(1)));
        if let Some(last) = state.replayed.values().max() {
            state.old.replay_seq = state.old.replay_seq.max(*last);
        }
        state.replayed = later;
        let mut freed = Vec::new();
        if let Some((_, blocks)) = state.freeing.take_if(|(when, _)| *when <= txg) {
            freed = blocks;
            state.old = Header::default();
        }
        let broken = state.broken;
        while let Some(block) = state.chain.pop_front_if(|block| {
            (block.stable || broken) && block.newest <= txg && block.pointer.logical_birth() <= txg
        }) {
            freed.push(block.pointer);
        }
        if state.chain.is_empty() {
            state.broken = false;
        }
        let mut header = state.old;
        if let Some(first) = state.chain.front() {
            header.log = first.pointer;
        }
        Ok(LogSync { header: header.encode()?, freed })
    }

    /// For the writer of transaction groups: group `txg` is on the disks.
    pub fn synced(&self, txg: Txg) {
        self.state.lock().records.clean(txg);
    }

    /// Ends the log: writes everything by transaction groups and frees the chain. Nothing may be
    /// appended meanwhile.
    pub fn close(&self) -> Result<()> {
        for _ in 0..2 {
            let tx = self.pool.begin()?;
            let txg = tx.txg();
            {
                let mut state = self.state.lock();
                if state.chain.is_empty() && state.freeing.is_none() {
                    return Ok(());
                }
                // Whatever is in it is in the groups up to this one.
                state.broken = true;
            }
            drop(tx);
            self.pool.wait_synced(txg)?;
        }
        Ok(())
    }

    /// Begins the chain anew: on return none of its blocks of before is in use. Commits wait
    /// meanwhile; whatever is appended is kept.
    pub fn renew(&self) -> Result<()> {
        let mut state = self.state.lock();
        while state.committing {
            self.changed.wait(&mut state);
        }
        state.committing = true;
        drop(state);
        let closed = self.close();
        self.state.lock().committing = false;
        self.changed.notify_all();
        closed
    }

    /// Frees the old log, whose blocks are `blocks`, in the open group and waits for that.
    pub(super) fn free_old(&self, blocks: Vec<BlockPointer>) -> Result<()> {
        let tx = self.pool.begin()?;
        let txg = tx.txg();
        self.state.lock().freeing = Some((txg, blocks));
        drop(tx);
        self.pool.wait_synced(txg)
    }

    /// The record whose replay begins, or the end of replaying.
    pub(super) fn set_replaying(&self, sequence: Option<u64>) {
        self.state.lock().replaying = sequence;
    }

    /// A record failed after it may have been noted as replayed: it is to be tried again.
    pub(super) fn not_replayed(&self, sequence: u64) -> Result<()> {
        let _tx = self.pool.begin()?;
        let mut state = self.state.lock();
        state.replayed.retain(|_, noted| *noted != sequence);
        if state.old.replay_seq >= sequence {
            state.old.replay_seq = sequence.saturating_sub(1);
        }
        Ok(())
    }

    /// During a replay, notes that the record being replayed is done in the group of `tx`.
    pub fn note_replayed(&self, tx: &Tx) -> bool {
        let mut state = self.state.lock();
        let Some(sequence) = state.replaying else { return false };
        state.replayed.insert(tx.txg(), sequence);
        true
    }
}

/// Bytes of a record in a log block.
fn bytes_of(item: &Item) -> usize {
    match item {
        Item::Encoded(record) => record.len(),
        Item::Write { data, .. } => WRITE_HEADER + data.len(),
        Item::LaterWrite { .. } | Item::Whole => 0,
    }
}

/// A chain being made longer.
struct Writing<'a> {
    log: &'a IntentLog,
    tx: &'a Tx,
    block: BlockBuilder,
    writes: Vec<LogWrite>,
    /// The newest group of a record in the block.
    newest: Txg,
}

impl Writing<'_> {
    /// Ends the block and goes on in another of `size` bytes; false if there is no room for that.
    fn turn(&mut self, size: usize) -> Result<bool> {
        let log = self.log;
        let Ok(dva) = log.pool.allocate(self.tx, size as u64) else { return Ok(false) };
        let mut next = pointer_to(dva, size, self.tx.txg(), self.block.next_verifier());
        let prepared = log.cipher.as_ref().map_or(Ok(()), |cipher| cipher.prepare(&mut next));
        // Whatever fails from here on, the block is freed with the chain.
        {
            let mut state = log.state.lock();
            if let Some(last) = state.chain.back_mut() {
                last.newest = last.newest.max(self.newest);
            }
            let block = Block { pointer: next, newest: Txg(0), stable: false };
            state.chain.push_back(block);
        }
        prepared?;
        let block = std::mem::replace(&mut self.block, BlockBuilder::new(next));
        self.writes.push(block.finish(&next, log.cipher.as_deref())?);
        self.newest = Txg(0);
        Ok(true)
    }
}
