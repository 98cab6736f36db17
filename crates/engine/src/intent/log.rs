//! The log of one dataset: appending, committing, and its part in writing a transaction group.
//!
//! Invariant: the group in which a block was allocated is not written before the block that leads to
//! it: otherwise a crash in between would leave space in use that nobody knows of.
//! Nobody waits for a transaction group or a device while holding a lock, and one thread at a time
//! writes the chain: whoever commits meanwhile waits for it, and the next of them takes along what
//! all of them appended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use cenote_format::zil::{Header, Payload, Record};
use cenote_format::{BlockPointer, Txg};
use parking_lot::{Condvar, Mutex};

use super::block::{MOST_RECORDS, UNIT, pointer_to};
use super::chain::{Chain, End, LogSync};
use super::extend::Extension;
use super::place::{Placed, with_data};
use super::records::{Item, MOST_ORDERED, Records};
use super::{LogCipher, LogPool, LogWrite, WriteSource};
use crate::txg::Tx;
use crate::vdev::BlockWrite;
use crate::{Error, ErrorKind, Result};

/// Bytes of data above which their groups are written, instead of the data before them.
const MOST_PLACED: u64 = 64 << 20;

/// The intent log of one dataset.
pub struct IntentLog {
    pool: Arc<dyn LogPool>,
    objset: u64,
    cipher: Option<Arc<dyn LogCipher>>,
    source: Mutex<Option<Weak<dyn WriteSource>>>,
    commits: Mutex<Commits>,
    /// A commit has ended.
    committed: Condvar,
    chain: Mutex<Chain>,
    /// The group from which on the dataset has the feature for records of extended attributes; 0: it
    /// has not.
    xattrs_since: AtomicU64,
}

/// What was appended, and how far it is stable.
#[derive(Default)]
struct Commits {
    records: Records,
    /// So many of the records put in order are stable.
    stable: u64,
    committing: bool,
    /// Objects whose data the commit reads.
    reading: BTreeSet<u64>,
    /// One of them was cut since its records were taken: what is read may show that, and no record
    /// of the commit tells it.
    cut: bool,
    /// Up to which record a commit failed, and why.
    failed: Option<(u64, Error)>,
    /// The group that has the records of commits that failed.
    owed: Txg,
}

impl Commits {
    /// Data of `object` is about to go.
    fn note_cut(&mut self, object: u64) {
        self.cut |= self.reading.contains(&object);
    }
}

impl IntentLog {
    /// The log of the dataset with object number `objset`, whose header is `header`.
    pub fn new(
        pool: Arc<dyn LogPool>,
        objset: u64,
        header: Header,
        cipher: Option<Arc<dyn LogCipher>>,
    ) -> Self {
        Self {
            pool,
            objset,
            cipher,
            source: Mutex::new(None),
            commits: Mutex::default(),
            committed: Condvar::new(),
            chain: Mutex::new(Chain::after(header)),
            xattrs_since: AtomicU64::new(0),
        }
    }

    /// Says where the data of later writes is read from. Without it they are committed by writing
    /// their transaction group.
    pub fn set_source(&self, source: Weak<dyn WriteSource>) {
        *self.source.lock() = Some(source);
    }

    /// The dataset has the feature for records of extended attributes already.
    pub fn set_xattr_records(&self) {
        self.xattrs_since.store(1, SeqCst);
    }

    /// Whether the dataset needs the feature for records of extended attributes.
    pub fn has_xattr_records(&self) -> bool {
        self.xattrs_since.load(SeqCst) != 0
    }

    /// The header an earlier life of the pool left; zero when that is gone.
    pub fn old_header(&self) -> Header {
        self.chain.lock().old
    }

    /// The log was claimed: this is its header now, to be written in the first group.
    pub fn set_old_header(&self, header: Header) {
        self.chain.lock().old = header;
    }

    pub(super) fn pool(&self) -> &Arc<dyn LogPool> {
        &self.pool
    }

    pub(super) fn cipher(&self) -> Option<&Arc<dyn LogCipher>> {
        self.cipher.as_ref()
    }

    /// Adds the record of a change of `object` made in `tx`, to those every commit writes or to
    /// those a commit of the object does, as OpenZFS does with records of its type. What has no
    /// record counts as a change no record can tell. A truncation is noted before it is made: a
    /// commit that reads what it left must find it.
    ///
    /// # Errors
    /// The record cannot be encoded.
    pub fn note(&self, tx: &Tx, object: u64, payload: Payload) -> Result<()> {
        match &payload {
            Payload::Create(_)
            | Payload::Remove { .. }
            | Payload::Link { .. }
            | Payload::Rename { .. } => self.append(tx, object, payload, false),
            Payload::SetXattr { .. } => self.append_xattr(tx, object, payload),
            Payload::Unknown(_) => {
                self.append_whole(tx);
                Ok(())
            }
            _ => self.append_later(tx, object, payload),
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

    /// Adds the record of a change of an extended attribute. A release that does not know these ends
    /// the log at the first; the feature keeps it away. So until a group with the feature is on the
    /// disks, such a change counts as one no record can tell.
    fn append_xattr(&self, tx: &Tx, object: u64, payload: Payload) -> Result<()> {
        let _ = self.xattrs_since.compare_exchange(0, tx.txg().0, SeqCst, SeqCst);
        match self.xattrs_since.load(SeqCst) <= self.pool.synced().0 {
            true => self.append_later(tx, object, payload),
            false => {
                self.append_whole(tx);
                Ok(())
            }
        }
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
        let is_cut = matches!(payload, Payload::Truncate { .. });
        let record = Record { txg: tx.txg(), sequence: 0, case_insensitive, payload };
        let encoded = record.encode()?;
        let item = match encoded.len() <= MOST_RECORDS {
            true => Item::Encoded(encoded),
            false => Item::Whole,
        };
        let can_read_later = self.source.lock().is_some();
        let mut commits = self.commits.lock();
        if is_rename {
            let settled = commits.records.promote(Some(object));
            self.settle(settled);
        }
        if is_cut {
            commits.note_cut(object);
        }
        tx.add_noted(commits.records.append(tx.txg(), later, item, can_read_later));
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
        let mut commits = self.commits.lock();
        tx.add_noted(commits.records.append(tx.txg(), object, item, can_read_later));
    }

    /// Records take less memory.
    fn settle(&self, less: impl IntoIterator<Item = (Txg, u64)>) {
        less.into_iter().for_each(|(txg, bytes)| self.pool.settled(txg, bytes));
    }

    /// Forgets what only a commit of `object` would write: it has no name any more.
    pub fn forget(&self, object: u64) {
        let mut commits = self.commits.lock();
        commits.note_cut(object);
        let settled = commits.records.forget(object);
        self.settle(settled);
    }

    /// Whether records wait that a commit of `object` (0: of all) would write.
    pub fn has_work(&self) -> bool {
        let commits = self.commits.lock();
        commits.records.appended() > commits.stable
    }

    /// Returns when everything that was appended before is stable: all that is in order, and what
    /// was appended for `object` (for all objects if it is 0). The caller holds no [`Tx`].
    pub fn commit(&self, object: u64) -> Result<()> {
        let mut commits = self.commits.lock();
        let settled = commits.records.promote((object != 0).then_some(object));
        self.settle(settled);
        let wanted = commits.records.appended();
        if let Some((to, _)) = commits.failed
            && commits.owed <= self.pool.synced()
        {
            // The groups of what failed are on the disks by now.
            commits.stable = commits.stable.max(to);
            commits.failed = None;
        }
        loop {
            if commits.stable >= wanted {
                return Ok(());
            }
            if let Some((_, error)) = commits.failed.as_ref().filter(|(to, _)| *to >= wanted) {
                return Err(error.clone());
            }
            if commits.committing {
                crate::txg::wait(&self.committed, &mut commits, None)?;
                continue;
            }
            commits.committing = true;
            let settled = commits.records.complete();
            self.settle(settled);
            let end = commits.records.appended();
            let batch = commits.records.take();
            commits.reading = batch.iter().filter_map(|(_, item)| item.reads()).collect();
            commits.cut = false;
            drop(commits);
            let newest = batch.iter().map(|(txg, _)| *txg).max().unwrap_or_default();
            let mut taken: BTreeMap<Txg, u64> = BTreeMap::new();
            for (txg, item) in &batch {
                *taken.entry(*txg).or_default() += item.memory();
            }
            let result = self.write(batch);
            self.settle(taken);
            commits = self.commits.lock();
            commits.committing = false;
            commits.reading.clear();
            match result {
                Ok(()) => commits.stable = end,
                // Only this one is not wanted any more: others wait for the groups.
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    commits.owed = commits.owed.max(newest);
                    self.committed.notify_all();
                    return Err(error);
                }
                Err(error) => {
                    commits.owed = commits.owed.max(newest);
                    commits.failed = Some((end, error));
                }
            }
            self.committed.notify_all();
        }
    }

    /// Makes a batch of records stable, by the log or by writing their groups.
    fn write(&self, batch: Vec<(Txg, Item)>) -> Result<()> {
        let owed = self.commits.lock().owed;
        if owed > self.pool.synced() {
            self.pool.wait_synced(owed)?;
        }
        let synced = self.pool.synced();
        let batch: Vec<_> = batch.into_iter().filter(|(txg, _)| *txg > synced).collect();
        let Some(newest) = batch.iter().map(|(txg, _)| *txg).max() else { return Ok(()) };
        match self.resolve(batch)? {
            _ if self.commits.lock().cut => self.pool.wait_synced(newest),
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
                item => logged += item.logged_bytes() as u64,
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
        let end = self.chain.lock().end();
        match end {
            End::Closed => return Ok(None),
            End::Open { pointer, begun } => {
                drop(tx);
                // Who began the chain may not have waited.
                if begun > self.pool.synced() {
                    self.pool.wait_synced(begun)?;
                }
                return Ok(Some(pointer));
            }
            End::None => {}
        }
        let Ok(dva) = self.pool.allocate(&tx, UNIT as u64) else { return Ok(None) };
        let [first, second] = self.pool.random();
        let mut pointer = pointer_to(dva, UNIT, tx.txg(), [first, second, self.objset, 1]);
        let prepared = self.cipher.as_ref().map_or(Ok(()), |cipher| cipher.prepare(&mut pointer));
        let txg = tx.txg();
        self.chain.lock().begin(pointer, txg, prepared.is_ok());
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
        if self.commits.lock().cut {
            placed.adopt(&tx, false);
            return Ok(false);
        }
        let data = placed.take_writes();
        let (pool, cipher) = (self.pool.as_ref(), self.cipher.as_deref());
        let extension = Extension::new(pool, cipher, &self.chain, &tx, pointer);
        let (writes, complete) = match extension.build(&placed.items, synced) {
            Ok(built) => built,
            Err(error) => {
                // What was built is not written: the chain leads nowhere.
                self.chain.lock().break_off();
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

    /// Writes finished blocks and the data they point at; false, and the chain is broken, if that
    /// fails.
    fn write_out(&self, blocks: Vec<LogWrite>, data: Vec<BlockWrite>) -> Result<bool> {
        let count = blocks.len();
        if count == 0 {
            return Ok(data.is_empty());
        }
        let written = self.pool.write(blocks, data);
        let mut chain = self.chain.lock();
        match written {
            Ok(()) => {
                chain.written(count);
                Ok(true)
            }
            Err(error) => {
                tracing::warn!("the intent log cannot be written: {error}");
                chain.break_off();
                Ok(false)
            }
        }
    }

    /// For the writer of transaction groups, once in every group in which it writes the dataset:
    /// the header that belongs into group `txg`, and what the log frees in it.
    pub fn sync(&self, txg: Txg) -> Result<LogSync> {
        self.chain.lock().sync(txg)
    }

    /// For the writer of transaction groups: group `txg` is on the disks.
    pub fn synced(&self, txg: Txg) {
        self.commits.lock().records.clean(txg);
    }

    /// Ends the log: writes everything by transaction groups and frees the chain. Nothing may be
    /// appended meanwhile.
    pub fn close(&self) -> Result<()> {
        for _ in 0..2 {
            let Some(txg) = self.break_off()? else { break };
            self.pool.wait_synced(txg)?;
        }
        Ok(())
    }

    /// Breaks the chain off in the open group, if there is one: whatever is in it is in the groups up to this one.
    pub fn break_off(&self) -> Result<Option<Txg>> {
        let tx = self.pool.begin()?;
        let mut chain = self.chain.lock();
        if chain.is_gone() {
            return Ok(None);
        }
        chain.break_off();
        Ok(Some(tx.txg()))
    }

    /// Begins the chain anew: on return none of its blocks of before is in use. Commits wait
    /// meanwhile; whatever is appended is kept.
    pub fn renew(&self) -> Result<()> {
        let mut commits = self.commits.lock();
        while commits.committing {
            self.committed.wait(&mut commits);
        }
        commits.committing = true;
        drop(commits);
        let closed = self.close();
        self.commits.lock().committing = false;
        self.committed.notify_all();
        closed
    }

    /// Blocks that were allocated and are not on the disks yet.
    pub fn unwritten(&self) -> Vec<cenote_format::BlockPointer> {
        self.chain.lock().unwritten()
    }

    /// Frees the old log, whose blocks are `blocks`, in the open group and waits for that.
    pub(super) fn free_old(&self, blocks: Vec<BlockPointer>) -> Result<()> {
        let tx = self.pool.begin()?;
        let txg = tx.txg();
        self.chain.lock().free_old(txg, blocks);
        drop(tx);
        self.pool.wait_synced(txg)
    }

    /// The record whose replay begins, or the end of replaying.
    pub(super) fn set_replaying(&self, sequence: Option<u64>) {
        self.chain.lock().set_replaying(sequence);
    }

    /// A record failed after it may have been noted as replayed: it is to be tried again.
    pub(super) fn not_replayed(&self, sequence: u64) -> Result<()> {
        let _tx = self.pool.begin()?;
        self.chain.lock().not_replayed(sequence);
        Ok(())
    }

    /// During a replay, notes that the record being replayed is done in the group of `tx`.
    pub fn note_replayed(&self, tx: &Tx) -> bool {
        self.chain.lock().note_replayed(tx.txg())
    }
}
