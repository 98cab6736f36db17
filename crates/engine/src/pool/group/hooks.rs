//! What the rooms below ask of the pool while a group is written.
//!
//! Invariant: space is freed only in the group being written, a gang's header and members with it.

use std::sync::Arc;

use bytes::Bytes;
use cenote_format::feature::Feature;
use cenote_format::zil::Header;
use cenote_format::{BlockPointer, Dva, ObjectId, Txg};
use parking_lot::Mutex;

use super::LivePool;
use super::outage::Outage;
use super::scan::DatasetEvent;
use crate::cache::BlockKey;
use crate::dataset::PoolCapacity;
use crate::dataset::change::{Delta, Meter, PoolHooks};
use crate::events::Members;
use crate::intent::{PoolLogReader, log_blocks};
use crate::object::Ledger;
use crate::pipe::{ReadContext, Submit};
use crate::vdev::{BlockWrite, VdevError, VdevTree, WriteQueue};
use crate::{Error, ErrorKind, Result};

/// Bytes of a gang header.
const GANG_HEADER: u64 = 512;
/// Deepest nesting of gangs that is freed.
const GANG_DEPTH: u32 = 16;

/// Answers for one group.
pub(in crate::pool) struct GroupHooks<'a> {
    pub(in crate::pool) live: &'a LivePool,
    pub(in crate::pool) txg: Txg,
    /// Blocks that nobody reads any more once the group is shown.
    outdated: Mutex<Vec<BlockKey>>,
}

impl<'a> GroupHooks<'a> {
    pub(in crate::pool) fn new(live: &'a LivePool, txg: Txg) -> Self {
        Self { live, txg, outdated: Mutex::default() }
    }

    /// Drops what the group freed from memory: the group is shown.
    pub(in crate::pool) fn forget_outdated(&self) {
        let cache = self.live.io.pipe.cache();
        self.outdated.lock().drain(..).for_each(|key| cache.remove(&key));
    }

    fn note_for_scan(&self, event: DatasetEvent) {
        let txg = self.txg;
        self.live.when_done(move |live| live.scan.happened(txg, event));
    }

    fn free_at(&self, pointer: &BlockPointer, depth: u32) -> Result<()> {
        if pointer.is_hole() || pointer.is_embedded() {
            return Ok(());
        }
        if pointer.is_dedup() && self.live.dedup.release(pointer)? {
            return Ok(());
        }
        if depth == 0 && self.live.clones.release(pointer)? {
            return Ok(());
        }
        self.outdated.lock().extend(BlockKey::of(pointer));
        let vdevs = self.live.vdevs();
        if pointer.is_gang() {
            if depth >= GANG_DEPTH {
                return Err(Error::corrupt("gangs nested too deep").at_pointer(pointer));
            }
            match self.live.io.pipe.gang_children(pointer) {
                Ok((_, members)) => {
                    members.iter().try_for_each(|member| self.free_at(member, depth + 1))?;
                }
                // Nothing tells where they are, and the pool goes on without their space.
                Err(error) => {
                    let bytes = pointer.psize();
                    tracing::error!(%error, bytes, "the space behind a gang header is lost");
                }
            }
        }
        for dva in pointer.dvas() {
            let dva = match dva.gang {
                true => {
                    let asize = vdevs.asize(dva.vdev, GANG_HEADER, self.txg);
                    Dva { asize: asize.unwrap_or(dva.asize), ..dva }
                }
                false => dva,
            };
            // A clone is younger than what it shares, which a checkpoint may hold.
            self.live.allocator.free(&dva, pointer.physical_birth(), self.txg)?;
        }
        Ok(())
    }
}

impl PoolHooks for GroupHooks<'_> {
    fn random(&self) -> u64 {
        crate::environment::random_u64()
            .unwrap_or_else(|_| u64::from(std::process::id()) << 32 | self.txg.0)
    }

    fn free(&self, pointer: &BlockPointer) -> Result<()> {
        if self.live.free_when_done(pointer) {
            return self.live.mos.savepoint_step();
        }
        self.free_at(pointer, 0)
    }

    fn free_log(&self, head: ObjectId, header: &Header) -> Result<()> {
        if self.live.foreign_logs.lock().contains(&(self.txg, head, header.log)) {
            return Ok(());
        }
        if self.live.datasets.lock().contains_key(&head) || header.claim_txg.0 == 0 {
            return Err(Error::new(ErrorKind::Busy, "dataset is busy"));
        }
        let io = self.live.io.clone();
        // The head goes, and what cannot be read of its log with it.
        let context = ReadContext::default();
        let reader = PoolLogReader { io, context, accepts_losses: true };
        let blocks = log_blocks(&reader, header)?;
        self.live.when_done(move |live| {
            live.logged_volumes.lock().retain(|volume| *volume != head);
            live.set_unreplayed(head, None);
        });
        blocks.iter().try_for_each(|pointer| self.free(pointer))
    }

    fn keys_released(&self, directory: ObjectId) {
        self.live.when_done(move |live| live.pool.keys().forget_root(directory));
    }

    fn keys_moved(&self, from: ObjectId, to: ObjectId) {
        self.live.when_done(move |live| live.pool.keys().root_moved(from, to));
    }

    fn is_kept(&self, snapshot: ObjectId) -> bool {
        self.live.pool.kept().contains(snapshot)
    }

    fn snapshot_taken(&self, head: ObjectId, snapshot: ObjectId) {
        self.note_for_scan(DatasetEvent::Snapshot { head, snapshot });
    }

    fn snapshot_destroyed(&self, snapshot: ObjectId, next: ObjectId) {
        self.note_for_scan(DatasetEvent::SnapshotDestroyed { snapshot, next });
    }

    fn head_destroyed(&self, head: ObjectId) {
        self.live.forget_fresh(head);
        self.note_for_scan(DatasetEvent::HeadDestroyed(head));
        self.live.when_done(move |live| live.forget_errors_of(head));
    }

    fn heads_swapped(&self, one: ObjectId, other: ObjectId) {
        self.live.foreign_logs_swapped(one, other);
        self.note_for_scan(DatasetEvent::Swapped(one, other));
        self.live.when_done(move |live| live.errors_swapped(one, other));
    }

    fn tell(&self, name: &'static str, members: Members) {
        self.live.tell(name, members);
    }

    fn host(&self) -> String {
        crate::pool::host::HostIdentity::of_this_machine().name
    }

    fn capacity(&self) -> PoolCapacity {
        self.live.capacity()
    }

    fn check_room(&self) -> Result<()> {
        self.live.promises.ask_order()
    }

    fn feature_changed(&self, feature: &'static Feature, count: u64) {
        self.live.when_done(move |live| live.config.lock().feature_changed(feature, count));
    }
}

impl LivePool {
    /// Two heads have exchanged their content, and the logs that are not theirs with it.
    fn foreign_logs_swapped(&self, one: ObjectId, other: ObjectId) {
        let swap = move |live: &Self| {
            for (_, head, _) in live.foreign_logs.lock().iter_mut() {
                *head = match *head {
                    head if head == one => other,
                    head if head == other => one,
                    head => head,
                };
            }
        };
        swap(self);
        self.when_undone(swap);
    }

    /// What the pool offers to its datasets, as of now.
    pub fn capacity(&self) -> PoolCapacity {
        self.capacity_but(self.allocator.held_by_checkpoint())
    }

    /// The same if a checkpoint holds so many bytes.
    pub(super) fn capacity_but(&self, held: u64) -> PoolCapacity {
        let figures = self.allocator.figures();
        let saved = self.dedup.saved().saturating_add(self.clones.saved());
        PoolCapacity::new(figures.usable(), figures.embedded_log(), saved, held)
    }
}

/// Blocks on their way, to the write queue.
pub(in crate::pool) struct PoolSubmit {
    queue: WriteQueue,
    outage: Arc<Outage>,
}

impl PoolSubmit {
    pub(in crate::pool) fn new(queue: WriteQueue, outage: Arc<Outage>) -> Self {
        Self { queue, outage }
    }

    /// How often somebody has waited for writes of groups.
    pub(super) fn waits(&self) -> u64 {
        self.queue.waits()
    }

    /// Returns when everything handed in is written, however long devices are away.
    fn finish(&self) -> Result<()> {
        while let Some((write, error)) = self.queue.settle() {
            tracing::error!(vdev = write.vdev, offset = write.offset, %error, "a write failed");
            let told = write_error(&error, write.vdev, write.offset);
            if !matches!(error, VdevError::NotWritten { .. }) {
                return Err(told);
            }
            self.outage.pause(&told)?;
            self.queue.retry();
        }
        self.outage.over();
        Ok(())
    }

    /// Returns when everything handed in is written and durable. After a flush that failed beyond
    /// the redundancy everything since the last good one is written again.
    pub(in crate::pool) fn flush(&self, vdevs: &VdevTree) -> Result<()> {
        loop {
            self.finish()?;
            match vdevs.flush() {
                Ok(()) => {
                    self.queue.flushed();
                    self.outage.over();
                    return Ok(());
                }
                Err(error) => self.outage.pause(&Error::from(error))?,
            }
            vdevs.forgive_flush();
            self.queue.rewrite();
        }
    }
}

fn write_error(error: &VdevError, vdev: u32, offset: u64) -> Error {
    Error::new(ErrorKind::Io, format!("write failed: {error}"))
        .at(|place| place.dva = Some((vdev, offset)))
}

impl Submit for PoolSubmit {
    fn submit(&self, write: BlockWrite) -> Result<()> {
        self.outage.wait_while_held()?;
        self.queue.submit(write);
        Ok(())
    }

    fn pending(&self, vdev: u32, offset: u64) -> Option<Bytes> {
        self.queue.pending(vdev, offset)
    }
}

/// What the meta object set gained, and which blocks of it are free now.
pub(in crate::pool) struct MosLedger {
    meter: Meter,
    state: Mutex<(Delta, Vec<BlockPointer>)>,
}

impl MosLedger {
    pub(in crate::pool) fn new(meter: Meter) -> Self {
        Self { meter, state: Mutex::default() }
    }

    pub(in crate::pool) fn take(&self) -> (Delta, Vec<BlockPointer>) {
        std::mem::take(&mut *self.state.lock())
    }
}

impl Ledger for MosLedger {
    fn born(&self, pointer: &BlockPointer) {
        self.state.lock().0 += self.meter.space(pointer).into();
    }

    fn killed(&self, pointer: &BlockPointer) {
        let mut state = self.state.lock();
        let space: Delta = self.meter.space(pointer).into();
        state.0 = state.0 - space;
        state.1.push(*pointer);
    }
}
