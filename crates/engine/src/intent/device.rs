//! The intent log over a real pool: its gate, its allocator, its devices.
//!
//! Invariant: a log block is called written when every leaf it needs has made it durable. A flush
//! that fails beyond the redundancy ends the pool's writing: what it was to make durable may belong
//! to a transaction group as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cenote_format::{BlockPointer, Dva, ObjectId, Txg};

use super::{Claimer, DataWriter, LogPool, LogReader, LogSpace, LogWrite, Placement, WriteSource};
use crate::alloc::Allocator;
use crate::object::{DirtyBlocks, ObjectSet};
use crate::pipe::{PoolIo, ReadContext, zeros};
use crate::txg::{Gate, Tx};
use crate::vdev::{AllocationClass, BlockWrite, VdevError, VdevTree};
use crate::{Error, ErrorKind, Result};

/// Longest wait for a transaction group.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pauses before what a device did not give of a log is read again.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// Time after which it is not read again: a device that hangs takes long for each answer.
const READ_PATIENCE: Duration = Duration::from_secs(45);
/// Length in bytes from which data of a write is not put into the log, unless that has devices.
const PLACED_FROM: u64 = 32 << 10;
/// Copies of data that may be placed, at most.
const PLACED_COPIES: u64 = 3;
/// Bytes of a gang header.
const GANG_HEADER: u64 = 512;
/// Deepest nesting of gangs that is claimed.
const GANG_DEPTH: u32 = 16;

/// The pool as the log of one dataset uses it.
pub struct PoolLog {
    gate: Arc<Gate>,
    space: LogSpace,
    io: Arc<PoolIo>,
    /// The newest group the log wants the dataset to be written in.
    newest: AtomicU64,
    /// Log devices are left to others: property `logbias` says `throughput`.
    spares_log_devices: AtomicBool,
    data: DataWriter,
    set: ObjectSet,
}

impl PoolLog {
    /// For the log of `set`, one dataset of the pool, whose data `data` writes.
    pub fn new(
        gate: Arc<Gate>,
        space: LogSpace,
        io: Arc<PoolIo>,
        data: DataWriter,
        set: ObjectSet,
    ) -> Arc<Self> {
        let newest = AtomicU64::new(0);
        let spares_log_devices = AtomicBool::new(false);
        Arc::new(Self { gate, space, io, newest, spares_log_devices, data, set })
    }

    /// Whether the dataset must be written in group `txg` for the log's sake.
    pub fn needs_sync(&self, txg: Txg) -> bool {
        self.newest.load(SeqCst) >= txg.0
    }

    /// Whether log devices are left to others from now on.
    pub fn spare_log_devices(&self, spare: bool) {
        self.spares_log_devices.store(spare, Relaxed);
    }

    /// The dataset must be written in group `txg`.
    pub fn mark(&self, txg: Txg) {
        let is_first = self.newest.fetch_max(txg.0, SeqCst) < txg.0;
        self.set.change_root(txg, is_first);
    }
}

impl LogPool for PoolLog {
    fn begin(&self) -> Result<Tx> {
        self.gate.wait_in_step();
        let tx = self.gate.begin_now()?;
        self.mark(tx.txg());
        Ok(tx)
    }

    fn synced(&self) -> Txg {
        self.gate.figures().synced
    }

    fn wait_synced(&self, txg: Txg) -> Result<()> {
        self.gate.wait_synced(txg, PATIENCE)
    }

    fn allocate(&self, tx: &Tx, size: u64) -> Result<Dva> {
        let spares = self.spares_log_devices.load(Relaxed);
        let vdevs = self.io.pipe.vdevs();
        let dva = self.space.allocate(&vdevs, size, tx.txg(), spares)?;
        if self.space.took(&vdevs, &[dva], tx.txg()) {
            self.gate.want(tx.txg());
        }
        Ok(dva)
    }

    fn write(&self, blocks: Vec<LogWrite>, data: Vec<BlockWrite>) -> Result<()> {
        if self.gate.is_held() {
            return Err(Error::new(ErrorKind::Io, "another host may have the pool"));
        }
        let blocks = blocks.into_iter().map(|LogWrite { dva, data, birth }| BlockWrite {
            sides: None,
            vdev: dva.vdev,
            offset: dva.offset,
            data,
            birth,
        });
        let writes: Vec<BlockWrite> = data.into_iter().chain(blocks).collect();
        loop {
            let vdevs = self.io.pipe.vdevs();
            write_durably(&vdevs, &writes)?;
            // A device that was enough for them may have been taken out of the pool meanwhile.
            if Arc::ptr_eq(&vdevs, &self.io.pipe.vdevs()) {
                return Ok(());
            }
        }
    }

    fn placed_from(&self) -> Option<u64> {
        if !self.data.can_write() {
            return None;
        }
        if self.spares_log_devices.load(Relaxed) {
            return Some(0);
        }
        let figures = self.space.allocator.figures();
        (figures.size(AllocationClass::Log) == 0).then_some(PLACED_FROM)
    }

    fn place(&self, tx: &Tx, blocks: &[DirtyBlocks]) -> Result<Option<Placement>> {
        let vdevs = self.io.pipe.vdevs();
        let all = blocks.iter().flat_map(|range| &range.blocks);
        let bytes = all.fold(0, |sum: u64, block| sum.saturating_add(block.data.len() as u64));
        if !self.space.promises.may_log(bytes.saturating_mul(PLACED_COPIES)) {
            return Ok(None);
        }
        let parts = self.spares_log_devices.load(Relaxed);
        let placed = self.data.place(&self.io, &self.space.allocator, tx, blocks, parts)?;
        if let Some(placed) = &placed
            && self.space.took(&vdevs, &placed.dvas(), tx.txg())
        {
            self.gate.want(tx.txg());
        }
        Ok(placed)
    }

    fn settled(&self, txg: Txg, bytes: u64) {
        self.gate.settle_noted(txg, bytes);
    }

    fn random(&self) -> [u64; 2] {
        let number =
            || crate::environment::random_u64().unwrap_or_else(|_| self.newest.load(SeqCst));
        [number(), number()]
    }
}

/// Writes blocks so that they outlast a power cut.
fn write_durably(vdevs: &VdevTree, writes: &[BlockWrite]) -> Result<()> {
    // One block is not to wait for all that others have written to its devices.
    if writes.len() == 1 {
        return first_failure(vdevs.write_durable(writes), writes);
    }
    let before = vdevs.failed_flushes();
    first_failure(vdevs.write_batch(writes), writes)?;
    vdevs.flush()?;
    // Another flush may have failed in between, and what was lost then is not told twice.
    match vdevs.failed_flushes() == before {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Io, "a flush failed")),
    }
}

fn first_failure(answers: Vec<Result<(), VdevError>>, writes: &[BlockWrite]) -> Result<()> {
    for (answer, write) in answers.into_iter().zip(writes) {
        if let Err(error) = answer {
            return Err(Error::new(ErrorKind::Io, format!("write failed: {error}"))
                .at(|place| place.dva = Some((write.vdev, write.offset))));
        }
    }
    Ok(())
}

/// Reads again what a device did not give: a while, for it may be back soon.
fn patiently<T>(io: &PoolIo, read: impl Fn() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    for pause in PAUSES {
        match read() {
            Err(error) if error.kind() == ErrorKind::Io && start.elapsed() < READ_PATIENCE => {
                tracing::warn!(%error, "the intent log cannot be read; trying again");
                std::thread::sleep(pause);
                let vdevs = io.pipe.vdevs();
                vdevs.reopen();
                vdevs.probe_all();
            }
            other => return other,
        }
    }
    read()
}

/// Reads logs of one dataset.
pub struct PoolLogReader {
    /// Where from.
    pub io: Arc<PoolIo>,
    /// How data blocks are decrypted.
    pub context: ReadContext,
    /// What cannot be read ends the log: so it was asked for.
    pub accepts_losses: bool,
}

impl LogReader for PoolLogReader {
    fn read_log_block(&self, pointer: &BlockPointer) -> Result<Option<Bytes>> {
        match self.accepts_losses {
            true => self.io.pipe.read_log_block(pointer),
            false => patiently(&self.io, || self.io.pipe.read_log_block(pointer)),
        }
    }

    fn read_data(&self, pointer: &BlockPointer) -> Result<Bytes> {
        match pointer.is_hole() {
            true => Ok(zeros(pointer.lsize())),
            false => patiently(&self.io, || self.io.pipe.read(pointer, &self.context)),
        }
    }

    fn accepts_losses(&self) -> bool {
        self.accepts_losses
    }
}

/// Gives the data of later writes as the set's objects have it now.
pub struct SetSource(pub ObjectSet);

impl WriteSource for SetSource {
    fn read(&self, object: u64, offset: u64, length: u64) -> Result<Option<Bytes>> {
        let object = match self.0.object(ObjectId(object)) {
            Ok(object) => object,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let length = usize::try_from(length).map_err(|_| Error::invalid("a write that long"))?;
        // Beyond the end there are zeros: the record of what cut the object comes later.
        Ok(Some(Bytes::from(object.read_vec(offset, length)?)))
    }

    fn dirty(
        &self,
        txg: Txg,
        object: u64,
        offset: u64,
        length: u64,
    ) -> Result<Option<DirtyBlocks>> {
        match self.0.object(ObjectId(object)) {
            Ok(object) => Ok(object.dirty_blocks(txg, offset, length)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Claims logs when a pool is opened for writing.
pub struct PoolClaimer<'a> {
    /// Where from blocks are read.
    pub io: Arc<PoolIo>,
    /// Whose space they take.
    pub allocator: Arc<Allocator>,
    /// The group that records it.
    pub txg: Txg,
    /// Counts one reference more to a block.
    pub refer: &'a dyn Fn(&BlockPointer) -> Result<()>,
    /// What cannot be read ends the log: so it was asked for.
    pub accepts_losses: bool,
}

impl PoolClaimer<'_> {
    fn claim_at(&self, pointer: &BlockPointer, depth: u32) -> Result<()> {
        let vdevs = self.io.pipe.vdevs();
        if pointer.is_gang() {
            if depth >= GANG_DEPTH {
                return Err(Error::corrupt("gangs nested too deep").at_pointer(pointer));
            }
            let (_, members) = self.io.pipe.gang_children(pointer)?;
            for member in &members {
                self.claim_at(member, depth + 1)?;
            }
        }
        for dva in pointer.dvas() {
            let asize = match dva.gang {
                true => vdevs.asize(dva.vdev, GANG_HEADER, self.txg).unwrap_or(dva.asize),
                false => dva.asize,
            };
            self.allocator.claim(&Dva { asize, ..dva }, self.txg)?;
        }
        Ok(())
    }
}

impl Claimer for PoolClaimer<'_> {
    fn is_written(&self, pointer: &BlockPointer) -> Result<bool> {
        match self.accepts_losses {
            true => Ok(self.io.pipe.is_written(pointer).unwrap_or(false)),
            false => patiently(&self.io, || self.io.pipe.is_written(pointer)),
        }
    }

    fn claim(&self, pointer: &BlockPointer) -> Result<()> {
        self.claim_at(pointer, 0)
    }

    fn complete(&self, pointer: &BlockPointer) {
        self.io.pipe.complete(pointer);
    }

    fn refer(&self, pointer: &BlockPointer) -> Result<()> {
        // The group that cloned it may also have freed all that had it, before the record was written.
        let is_free = |dva: Dva| self.allocator.is_free(&dva).unwrap_or(false);
        match pointer.first_dva().is_some_and(is_free) {
            true => self.claim_at(pointer, 0),
            false => (self.refer)(pointer),
        }
    }
}
