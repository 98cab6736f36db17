//! The pipelines: from a block pointer to verified, decrypted, decompressed bytes, and from logical
//! bytes to a block pointer and writes under way.
//!
//! Invariant: bytes leave this room only after their checksum matched (unless the pointer says
//! checksums are off); metadata leaves it in little-endian form whatever host wrote it. What is
//! written is little-endian, and its pointer is what the reading half accepts.

mod complete;
mod dedup;
mod faults;
mod faulty;
mod gang;
mod logical;
mod physical;
mod policy;
mod prefetch;
mod prepare;
mod scrub;
mod special;
mod workers;
mod write;

#[cfg(test)]
pub(crate) mod write_tests;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use cenote_codec::checksum::Salt;
use cenote_format::BlockPointer;

use crate::cache::{BlockCache, BlockKey, Found};
use crate::vdev::{BlockRead, Recovered, Repair, VdevHandle, VdevTree};
use crate::{Error, ErrorKind, Result};

pub use dedup::{DedupTables, Known};
pub use faults::{Fault, Faults};
pub use faulty::{BlockFault, FaultyBlocks, InjectedObject, ObjectFault};
pub use policy::{
    BlockKind, Compression, DEDUP_OFF, Dedup, ObjsetPolicy, RedundantMetadata, WriteFeatures,
    WritePolicy, checksum_from_property, copies_for, dedup_checksum,
};
pub use prefetch::Prefetcher;
pub use prepare::{AllocationUnits, Rules};
pub use scrub::{Scope, Scrubbed};
pub use special::Copies;
pub use workers::Workers;
pub use write::{
    Addresses, BlockPlace, BlockToWrite, BlockWriter, Encryptor, GivenBlock, Replaced, Sealing,
    Submit, Unopened, Written,
};

/// Opens blocks of one encrypted dataset; declared here, implemented by the keys room.
pub trait Decryptor: Send + Sync {
    /// Decrypts a level-0 block in place and checks its MAC.
    fn decrypt(&self, bp: &BlockPointer, data: &mut [u8]) -> Result<()>;
    /// Checks the MAC of a level-0 block that is stored in the clear; `data` as stored. Those of
    /// object sets are inside of the block: see [`Decryptor::authenticate_object_set`].
    fn authenticate(&self, bp: &BlockPointer, data: &[u8]) -> Result<()>;
    /// Checks the MAC of an indirect block, made of those of the blocks below; `data` is expanded,
    /// in the byte order it was written in.
    fn authenticate_indirect(&self, bp: &BlockPointer, data: &[u8]) -> Result<()>;
    /// Checks the two MACs inside of a little-endian object-set block.
    fn authenticate_object_set(&self, block: &[u8]) -> Result<()>;
}

/// What a read needs to know besides the pointer.
#[derive(Clone, Default)]
pub struct ReadContext {
    /// Keys of an encrypted dataset, when loaded.
    pub decryptor: Option<Arc<dyn Decryptor>>,
    /// Object number of the dataset (0: MOS), for errors.
    pub objset: u64,
    /// Do not keep the block in the cache: it is read once.
    pub transient: bool,
    /// Without keys, give dnode blocks as they are stored: their bonuses are sealed, but types,
    /// sizes and pointers can be read. Such blocks are never cached, nor is what the cache has of
    /// them given: others may have opened them.
    pub sealed: bool,
}

impl ReadContext {
    /// What the cache has of the block, opened by who has the keys, is not what is wanted.
    fn shuns_cache(&self, bp: &BlockPointer) -> bool {
        self.sealed && self.decryptor.is_none() && bp.is_encrypted()
    }

    /// Blocks read in this way may be given to others, who have the keys: those of encrypted
    /// datasets only if their MACs were checked.
    fn keeps(&self, bp: &BlockPointer) -> bool {
        !(self.transient || self.sealed || (bp.is_crypt() && self.decryptor.is_none()))
    }
}

/// Longest wait for a block that another thread is loading, before loading it again ourselves.
const PATIENCE: Duration = Duration::from_secs(60);

/// What every object set of a pool reads through.
pub struct PoolIo {
    /// The pipeline.
    pub pipe: Arc<Pipe>,
    /// Threads that read ahead.
    pub prefetcher: Prefetcher,
}

/// What becomes of a read that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It is tried again.
    Again,
    /// It is tried again: what came before was while devices were away, and says nothing.
    Anew,
    /// It has failed.
    No,
    /// It has failed, and not because a device is away: the block is damaged.
    Damaged,
}

/// Whether reads wait for devices that are away.
pub trait Patience: Send + Sync {
    /// Reading `pointer` failed with `error`, after it was tried again `tries` times while all devices were there.
    /// Waits a little, if it is to be tried again.
    fn wait(&self, pointer: &BlockPointer, error: &Error, tries: u32) -> Wait;
    /// A read that waited succeeded.
    fn over(&self);
}

/// Writes right bytes over wrong ones, where the pool is written.
pub trait Healer: Send + Sync {
    /// `block` was read and verified; `repairs` makes all of its copies right.
    fn heal(&self, block: &BlockRead, repairs: &[Repair]);
}

/// Shared by all readers of a pool.
pub struct Pipe {
    vdevs: VdevHandle,
    cache: BlockCache,
    salt: OnceLock<Salt>,
    large_gangs: OnceLock<bool>,
    faults: Faults,
    /// Blocks that fail on purpose.
    faulty: FaultyBlocks,
    /// Where writes under way can be read from.
    /// Weak: the queue behind it writes through this pipe's vdevs.
    submitted: OnceLock<Weak<dyn Submit>>,
    patience: OnceLock<Weak<dyn Patience>>,
    healer: OnceLock<Weak<dyn Healer>>,
    /// Entries of tables of datasets that were gone through.
    listed: AtomicU64,
    /// Reads that went to the devices.
    loaded: AtomicU64,
}

impl Pipe {
    /// A pipeline over `vdevs`, caching at most `cache_limit` bytes.
    pub fn new(vdevs: Arc<VdevTree>, cache_limit: u64) -> Arc<Self> {
        Arc::new(Self {
            vdevs: VdevHandle::new(vdevs),
            cache: BlockCache::new(cache_limit),
            salt: OnceLock::new(),
            large_gangs: OnceLock::new(),
            faults: Faults::default(),
            faulty: FaultyBlocks::default(),
            submitted: OnceLock::new(),
            patience: OnceLock::new(),
            healer: OnceLock::new(),
            listed: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
        })
    }

    /// Blocks that fail on purpose.
    pub fn faulty(&self) -> &FaultyBlocks {
        &self.faulty
    }

    /// So many entries of a table of datasets were gone through.
    pub fn note_listed(&self, entries: u64) {
        self.listed.fetch_add(entries, Relaxed);
    }

    /// How many entries of tables of datasets were gone through so far: an order costs what it changes, not
    /// what there is.
    pub fn listed(&self) -> u64 {
        self.listed.load(Relaxed)
    }

    /// How often somebody read what was not in the cache. Scrubs and their like do not count.
    pub fn loaded(&self) -> u64 {
        self.loaded.load(Relaxed)
    }

    /// The devices.
    pub fn vdevs(&self) -> Arc<VdevTree> {
        self.vdevs.current()
    }

    /// Where its devices are: what is exchanged there is used from then on.
    pub fn vdev_handle(&self) -> &VdevHandle {
        &self.vdevs
    }

    /// Sets the pool's checksum salt; the first call wins.
    pub fn set_salt(&self, salt: Salt) {
        let _ = self.salt.set(salt);
    }

    /// Gang headers may be larger than 512 bytes (feature dynamic_gang_header is active).
    pub fn set_large_gangs(&self, large: bool) {
        let _ = self.large_gangs.set(large);
    }

    /// The pool is writable: blocks submitted here and still under way are read from memory. The
    /// first call wins.
    pub fn set_submit(&self, submit: &Arc<dyn Submit>) {
        let _ = self.submitted.set(Arc::downgrade(submit));
    }

    /// Reads ask `patience` before they fail because devices are away. The first call wins.
    pub fn set_patience(&self, patience: &Arc<dyn Patience>) {
        let _ = self.patience.set(Arc::downgrade(patience));
    }

    /// What is found wrong is handed to `healer` with the right bytes. The first call wins.
    pub fn set_healer(&self, healer: &Arc<dyn Healer>) {
        let _ = self.healer.set(Arc::downgrade(healer));
    }

    /// Has copies that were found wrong written again. `recovered` was verified.
    fn heal(&self, block: &BlockRead, recovered: &Recovered) {
        if !recovered.repairs.is_empty()
            && let Some(healer) = self.healer.get().and_then(Weak::upgrade)
        {
            healer.heal(block, &recovered.repairs);
        }
    }

    /// Reads again after `result`, as long as the reader is to wait for devices that are away.
    /// Nothing may be held meanwhile that others wait for.
    fn patiently<T>(
        &self,
        pointer: &BlockPointer,
        mut result: Result<T>,
        read: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let (mut tries, mut waited) = (0, false);
        while let Err(error) = &result
            && matches!(error.kind(), ErrorKind::Io | ErrorKind::Checksum)
            && let Some(patience) = self.patience.get().and_then(Weak::upgrade)
        {
            match patience.wait(pointer, error, tries) {
                Wait::Again => tries += 1,
                Wait::Anew => tries = 0,
                Wait::No => return result,
                Wait::Damaged => {
                    result = result.map_err(|error| error.passing(false));
                    break;
                }
            }
            waited = true;
            result = read();
        }
        if waited && let Some(patience) = self.patience.get().and_then(Weak::upgrade) {
            patience.over();
        }
        result
    }

    /// Where blocks are submitted, while the pool is written.
    fn submitted(&self) -> Option<Arc<dyn Submit>> {
        self.submitted.get().and_then(Weak::upgrade)
    }

    /// Takes note of data that could not be read.
    pub(crate) fn note_fault(&self, error: &Error) {
        let vdevs = self.vdevs();
        if let Some(fault) = self.faults.note(error, vdevs.comebacks()) {
            fault.report(vdevs.events(), error);
        }
    }

    /// What could not be read for now: it may be when devices are back.
    pub fn passing_faults(&self) -> BTreeSet<Fault> {
        let mut passing = self.faults.passing(self.vdevs().comebacks());
        if !passing.is_empty() {
            passing.retain(|fault| !self.faults.is_lost(fault));
        }
        passing
    }

    /// What could not be read since the pool was opened.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The block cache.
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Reads one block: exactly `lsize` bytes.
    pub fn read(&self, bp: &BlockPointer, context: &ReadContext) -> Result<Bytes> {
        match self.read_many(std::slice::from_ref(bp), context).pop() {
            Some(result) => result,
            None => Err(Error::bug("no block was read")),
        }
    }

    /// Reads many blocks with as few device requests as possible; results in the order asked.
    ///
    /// Holes give zeros of their logical size.
    pub fn read_many(&self, bps: &[BlockPointer], context: &ReadContext) -> Vec<Result<Bytes>> {
        self.read_each(bps, |_| context)
    }

    /// As [`Pipe::read_many`], each block in a context of its own, told by its index.
    pub fn read_each<'a>(
        &self,
        bps: &[BlockPointer],
        context_of: impl Fn(usize) -> &'a ReadContext,
    ) -> Vec<Result<Bytes>> {
        let mut results: Vec<Option<Result<Bytes>>> = Vec::with_capacity(bps.len());
        let mut load = Vec::new();
        let mut wait = Vec::new();
        for (index, bp) in bps.iter().enumerate() {
            if bp.is_hole() {
                results.push(Some(Ok(zeros(bp.lsize()))));
            } else if bp.is_embedded() {
                results.push(Some(logical::embedded(bp)));
            } else if context_of(index).shuns_cache(bp) {
                load.push((index, *bp, None));
                results.push(None);
            } else if let Some(key) = BlockKey::of(bp) {
                match self.cache.find(&key, Duration::ZERO) {
                    Found::Block(block) if block.len() as u64 == bp.lsize() => {
                        results.push(Some(Ok(block)));
                        continue;
                    }
                    Found::Block(_) => load.push((index, *bp, None)),
                    Found::Load(slot) => load.push((index, *bp, Some(slot))),
                    Found::Loading => wait.push((index, *bp, key)),
                }
                results.push(None);
            } else {
                let error = Error::corrupt("block pointer without an address");
                results.push(Some(Err(error)));
            }
        }
        if !load.is_empty() {
            self.loaded.fetch_add(1, Relaxed);
            let pointers: Vec<BlockPointer> = load.iter().map(|(_, bp, _)| *bp).collect();
            let physical = self.read_physical_many(&pointers);
            let mut failed = Vec::new();
            for ((index, bp, slot), raw) in load.into_iter().zip(physical) {
                let context = context_of(index);
                let block = match raw {
                    Ok(raw) => logical::decode(&bp, raw, context),
                    Err(error) => {
                        failed.push((index, bp, error));
                        continue;
                    }
                };
                if let (Ok(block), Some(slot), true) = (&block, slot, context.keeps(&bp)) {
                    slot.fill(block.clone());
                }
                place(&mut results, index, self.named(block, &bp, context));
            }
            // No slot is held any more: others try for themselves while this reader waits.
            for (index, bp, error) in failed {
                let context = context_of(index);
                let block = self.load_after(Err(error), &bp, context);
                place(&mut results, index, self.named(block, &bp, context));
            }
        }
        for (index, bp, key) in wait {
            let context = context_of(index);
            let block = self.loaded_elsewhere(&bp, &key, context);
            place(&mut results, index, self.named(block, &bp, context));
        }
        let missing = || Err(Error::new(ErrorKind::Io, "block was not read"));
        results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }

    /// A block that another reader was loading.
    fn loaded_elsewhere(
        &self,
        bp: &BlockPointer,
        key: &BlockKey,
        context: &ReadContext,
    ) -> Result<Bytes> {
        match self.cache.find(key, PATIENCE) {
            Found::Block(block) if block.len() as u64 == bp.lsize() => Ok(block),
            Found::Load(slot) => {
                let raw = self.read_physical(bp);
                let slot = raw.is_ok().then_some(slot);
                let block = self.load_after(raw, bp, context);
                if let (Ok(block), Some(slot), true) = (&block, slot, context.keeps(bp)) {
                    slot.fill(block.clone());
                }
                block
            }
            Found::Block(_) | Found::Loading => {
                self.load_after(self.read_physical(bp), bp, context)
            }
        }
    }

    /// Drops blocks from the cache.
    pub fn forget(&self, pointers: &[BlockPointer]) {
        for key in pointers.iter().filter_map(BlockKey::of) {
            self.cache.remove(&key);
        }
    }

    /// The block of what was read first, or of what is read after a wait for devices.
    fn load_after(
        &self,
        first: Result<Bytes>,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes> {
        let raw = self.patiently(bp, first, || self.read_physical(bp))?;
        logical::decode(bp, raw, context)
    }

    fn named(
        &self,
        block: Result<Bytes>,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes> {
        block.map_err(|error| error.at_pointer(bp).at(|place| place.objset = Some(context.objset)))
    }

    /// The pool's checksum salt; zeros before it is known.
    pub fn checksum_salt(&self) -> Salt {
        self.salt().clone()
    }

    fn salt(&self) -> &Salt {
        // Before the MOS is open: nothing in the MOS is salted.
        static NONE: LazyLock<Salt> = LazyLock::new(|| Salt::new([0; 32]));
        self.salt.get().unwrap_or(&NONE)
    }
}

fn place(results: &mut [Option<Result<Bytes>>], index: usize, value: Result<Bytes>) {
    if let Some(slot) = results.get_mut(index) {
        *slot = Some(value);
    }
}

/// `len` zero bytes, without allocating for the sizes that occur.
pub fn zeros(len: u64) -> Bytes {
    static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
    let len =
        usize::try_from(len).unwrap_or(usize::MAX).min(cenote_format::blkptr::MAX_BLOCK as usize);
    match ZEROS.get(..len) {
        Some(zeros) => Bytes::from_static(zeros),
        None => Bytes::from(vec![0; len]),
    }
}
