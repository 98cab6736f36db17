//! The write pipeline: from logical blocks to block pointers and writes under way.
//!
//! Invariants: blocks get their addresses in the order they were asked for, so that files lie
//! sequentially; a block that fails leaves nothing allocated. A block is rewritten in place without
//! waiting for what was submitted before: [`Submit`] lets the newer bytes win.
//!
//! The processor's work (`prepare`) is done by all cores, a bounded number of bytes ahead of the
//! thread that hands out addresses; that thread waits when the devices do not keep up.

use std::sync::Arc;

use bytes::Bytes;
use cenote_format::{BlockPointer, Dva, Level, ObjectId, ObjectType, StoredBlock, Txg};

use super::Pipe;
use super::dedup::{DedupTables, Lookup};
use super::gang::Gang;
use super::policy::WritePolicy;
use super::prepare::{self, Prepared, Rules, Stored};
use super::workers::Workers;
use crate::alloc::{AllocRequest, Allocator, Dvas};
use crate::cache::BlockKey;
use crate::vdev::BlockWrite;
use crate::{Error, ErrorKind, Result};

/// Logical bytes that may be prepared ahead of the thread that hands out addresses.
const AHEAD: usize = 32 << 20;
/// A batch of at most this many bytes is prepared by the caller's own thread.
const SMALL: usize = 64 << 10;

/// Salt, initialisation vector and tag of an encrypted block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealing {
    /// Names the block key.
    pub salt: [u8; 8],
    /// Never used twice with one salt.
    pub iv: [u8; 12],
    /// Authentication tag.
    pub mac: [u8; 16],
}

/// Seals blocks of one encrypted dataset; declared here, implemented by the keys room.
pub trait Encryptor: Send + Sync {
    /// Encrypts the stored bytes of a level-0 block of an encrypted type in place.
    fn encrypt(&self, object_type: ObjectType, data: &mut [u8]) -> Result<Sealing>;
    /// The same so that equal bytes become equal bytes, which can be deduplicated.
    fn encrypt_alike(&self, object_type: ObjectType, data: &mut [u8]) -> Result<Sealing>;
    /// The MAC of a level-0 block that is stored in the clear, over its stored bytes.
    fn mac(&self, data: &[u8]) -> Result<[u8; 16]>;
    /// The MAC of an indirect block, over its uncompressed bytes.
    fn indirect_mac(&self, data: &[u8]) -> Result<[u8; 16]>;
    /// Puts the portable and the local MAC into an object-set block.
    fn seal_object_set(&self, block: &mut [u8]) -> Result<()>;
    /// The level-0 block at this place as somebody else has sealed it.
    fn given(&self, _: &BlockPlace) -> Option<GivenBlock> {
        None
    }
    /// What is written cannot be read: it is not kept in the cache.
    fn keeps_sealed(&self) -> bool {
        false
    }
}

/// A block that was sealed elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenBlock {
    /// The bytes to store, a multiple of 512; `None`: the logical ones as they are.
    pub stored: Option<Bytes>,
    /// Compression id of those bytes.
    pub compression: u8,
    /// How it is sealed; of a block that is only authenticated just the MAC counts.
    pub sealing: Sealing,
}

/// Seals the object sets of datasets whose key is not loaded, and nothing else: what their MACs
/// cover must not change, so the MACs stay.
pub struct Unopened;

impl Unopened {
    fn refuse<T>() -> Result<T> {
        Err(Error::new(ErrorKind::KeyNotLoaded, "the dataset's encryption key is not loaded"))
    }
}

impl Encryptor for Unopened {
    fn encrypt(&self, _: ObjectType, _: &mut [u8]) -> Result<Sealing> {
        Self::refuse()
    }

    fn encrypt_alike(&self, _: ObjectType, _: &mut [u8]) -> Result<Sealing> {
        Self::refuse()
    }

    fn mac(&self, _: &[u8]) -> Result<[u8; 16]> {
        Self::refuse()
    }

    fn indirect_mac(&self, _: &[u8]) -> Result<[u8; 16]> {
        Self::refuse()
    }

    fn seal_object_set(&self, _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    /// Whoever loads the key has the MACs to check first.
    fn keeps_sealed(&self) -> bool {
        true
    }
}

/// Hands out addresses: the allocator, or memory in tests.
pub trait Addresses: Send + Sync {
    /// Allocates all copies or none. [`ErrorKind::NoSpace`] when no run of that size is free.
    fn allocate(&self, request: &AllocRequest) -> Result<Dvas>;
    /// Takes back an address allocated in this very group and not used.
    fn unallocate(&self, dva: &Dva, txg: Txg);
}

impl Addresses for Allocator {
    fn allocate(&self, request: &AllocRequest) -> Result<Dvas> {
        Self::allocate(self, request)
    }

    fn unallocate(&self, dva: &Dva, txg: Txg) {
        if let Err(error) = self.unalloc(dva, txg) {
            // The write that gave it back has failed, and with it the group.
            tracing::error!(%error, "an unused address was not taken back");
        }
    }
}

/// Takes writes; declared here, implemented over the vdevs' write queue.
pub trait Submit: Send + Sync {
    /// Gives a write; waits while too many bytes are in flight. Failures are told to whoever ends the
    /// group. Of two writes of one place the later one stays.
    fn submit(&self, write: BlockWrite) -> Result<()>;
    /// The bytes of the newest write of this place that was submitted and has not ended well: a reader
    /// takes them instead of what the devices hold.
    fn pending(&self, vdev: u32, offset: u64) -> Option<Bytes>;
}

/// Where a block belongs, for errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockPlace {
    /// Object number of the dataset (0: MOS).
    pub objset: u64,
    /// Object.
    pub object: ObjectId,
    /// Block number at its level.
    pub block: u64,
}

/// A block to write.
#[derive(Clone)]
pub struct BlockToWrite {
    /// The logical bytes, all of them, in little-endian form.
    pub data: Bytes,
    /// How.
    pub policy: WritePolicy,
    /// What the slot held until now.
    pub old: BlockPointer,
    /// Non-empty blocks or dnodes below the new pointer (1 for plain data).
    pub fill: u64,
    /// Where it belongs.
    pub place: BlockPlace,
    /// Keep data in the cache too; metadata always is.
    pub keep: bool,
}

/// What became of the old pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// It is no longer in use: the caller frees it or puts it on a deadlist.
    Old,
    /// The new pointer lives at its addresses.
    InPlace,
    /// The new pointer is the old one: nothing was written.
    Nothing,
}

/// A written block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The new pointer.
    pub pointer: BlockPointer,
    /// What became of the old one.
    pub replaced: Replaced,
}

/// Everything a writer needs besides the blocks. Cheap to make: one for each group, as features
/// and salt may change between groups.
#[derive(Clone)]
pub struct BlockWriter {
    /// Hands out addresses.
    pub addresses: Arc<dyn Addresses>,
    /// Takes the writes.
    pub submit: Arc<dyn Submit>,
    /// Threads that compress, encrypt and hash.
    pub workers: Arc<Workers>,
    /// Features, units and salt.
    pub rules: Arc<Rules>,
    /// The tables of deduplicated blocks; without them everything is stored.
    pub dedup: Option<Arc<dyn DedupTables>>,
}

impl Pipe {
    /// Writes many blocks, in the order given; the results in the same order.
    ///
    /// The writes are submitted, not finished, when this returns: the group's end waits for them.
    /// `pass` is the sync pass, from 1. A block that fails has nothing allocated, and the caller
    /// must not end the group.
    pub fn write_many(
        &self,
        writer: &BlockWriter,
        txg: Txg,
        pass: u32,
        requests: Vec<BlockToWrite>,
    ) -> Vec<Result<Written>> {
        let run = Run { pipe: self, writer, txg };
        let total: usize = requests.iter().map(|request| request.data.len()).sum();
        if total <= SMALL || requests.len() == 1 {
            let one = |request: BlockToWrite| {
                let prepared = prepare::prepare(&writer.rules, &request, txg, pass);
                run.finish(&request, prepared)
            };
            return requests.into_iter().map(one).collect();
        }
        let desk = writer.workers.desk();
        let mut waiting: Vec<Option<BlockToWrite>> = requests.into_iter().map(Some).collect();
        let mut ready: Vec<Option<Result<Prepared>>> = waiting.iter().map(|_| None).collect();
        let (mut given, mut ahead) = (0, 0);
        let mut results = Vec::with_capacity(waiting.len());
        while results.len() < waiting.len() {
            while let Some(Some(request)) = waiting.get(given) {
                let size = request.data.len();
                if ahead > 0 && ahead + size > AHEAD {
                    break;
                }
                ahead += size;
                let (rules, request) = (writer.rules.clone(), request.clone());
                desk.give(given, move || prepare::prepare(&rules, &request, txg, pass));
                given += 1;
            }
            let next = results.len();
            if let Some(prepared) = ready.get_mut(next).and_then(Option::take) {
                if let Some(request) = waiting.get_mut(next).and_then(Option::take) {
                    ahead -= request.data.len().min(ahead);
                    results.push(run.finish(&request, prepared));
                }
                continue;
            }
            match desk.next() {
                Some((token, result)) => {
                    if let Some(slot) = ready.get_mut(token) {
                        *slot = Some(result);
                    }
                }
                None => {
                    let lost = || Err(Error::new(ErrorKind::Io, "the block was not prepared"));
                    results.resize_with(waiting.len(), lost);
                }
            }
        }
        results
    }
}

/// Where a block goes.
enum Home {
    /// Where the old one was.
    Old(Dvas),
    /// To addresses of its own.
    New(Dvas),
    /// In pieces behind these headers.
    Gang(Dvas, Gang),
}

impl Home {
    fn dvas(&self) -> &[Dva] {
        match self {
            Self::Old(dvas) | Self::New(dvas) | Self::Gang(dvas, _) => dvas,
        }
    }
}

/// One call of [`Pipe::write_many`].
pub(super) struct Run<'a> {
    pub(super) pipe: &'a Pipe,
    pub(super) writer: &'a BlockWriter,
    pub(super) txg: Txg,
}

impl Run<'_> {
    fn finish(&self, request: &BlockToWrite, prepared: Result<Prepared>) -> Result<Written> {
        prepared.and_then(|prepared| self.place(request, prepared)).map_err(|error| {
            error.at(|place| {
                place.objset = Some(request.place.objset);
                place.object = Some(request.place.object.0);
                place.block = Some((request.policy.level, request.place.block));
            })
        })
    }

    fn place(&self, request: &BlockToWrite, prepared: Prepared) -> Result<Written> {
        let lsize = request.data.len() as u64;
        let stored = match prepared {
            Prepared::Hole => {
                let pointer = self.hole(request)?;
                return Ok(Written { pointer, replaced: Replaced::Old });
            }
            Prepared::Embedded(pointer) => {
                return Ok(Written { pointer, replaced: Replaced::Old });
            }
            Prepared::Stored(stored) => stored,
        };
        if self.is_nop(request, lsize, &stored) {
            return Ok(Written { pointer: request.old, replaced: Replaced::Nothing });
        }
        let listing = match self.look_up(request, &stored)? {
            Lookup::Known(pointer) => {
                self.remember(request, &stored, &pointer);
                return Ok(Written { pointer, replaced: Replaced::Old });
            }
            Lookup::Short(key, known) => match self.extend(request, &stored, &key, &known)? {
                Some(pointer) => {
                    self.remember(request, &stored, &pointer);
                    return Ok(Written { pointer, replaced: Replaced::Old });
                }
                None => None,
            },
            Lookup::New(listing) => Some(listing),
            Lookup::Not => None,
        };
        let replaced = if stored.in_place { Replaced::InPlace } else { Replaced::Old };
        let home = self.home(request, &stored)?;
        let mut pointer = match self.pointer(request, &stored, home.dvas()) {
            Ok(pointer) => pointer,
            Err(error) => {
                self.leave(&home);
                return Err(error);
            }
        };
        match &home {
            Home::Old(dvas) | Home::New(dvas) => self.submit(dvas, &stored.bytes)?,
            Home::Gang(_, gang) => self.submit_gang(gang)?,
        }
        if let Some(listing) = listing {
            self.enter(request, &listing, &mut pointer)?;
        }
        self.remember(request, &stored, &pointer);
        Ok(Written { pointer, replaced })
    }

    /// Finds addresses for the stored bytes.
    fn home(&self, request: &BlockToWrite, stored: &Stored) -> Result<Home> {
        if stored.in_place {
            return Ok(Home::Old(request.old.dvas().collect()));
        }
        match self.allocate(&request.policy, stored) {
            Ok(dvas) => Ok(Home::New(dvas)),
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let (dvas, gang) = self.gang(request, stored)?;
                Ok(Home::Gang(dvas, gang))
            }
            Err(error) => Err(error),
        }
    }

    /// Gives back what was allocated and not used.
    fn leave(&self, home: &Home) {
        match home {
            Home::Old(_) => {}
            Home::New(dvas) => self.give_back(dvas),
            Home::Gang(_, gang) => self.drop_gang(gang),
        }
    }

    fn hole(&self, request: &BlockToWrite) -> Result<BlockPointer> {
        let replaces_something = request.old.logical_birth() != Txg(0);
        if !replaces_something || !self.writer.rules.features.hole_birth {
            return Ok(BlockPointer::HOLE);
        }
        let (policy, lsize) = (&request.policy, request.data.len() as u64);
        Ok(BlockPointer::hole_born(lsize, policy.object_type, Level(policy.level), self.txg)?)
    }

    fn is_nop(&self, request: &BlockToWrite, lsize: u64, stored: &Stored) -> bool {
        // What lies on a removed device must be allowed to move off it.
        let removed = || {
            let vdevs = self.pipe.vdevs();
            request.old.dvas().any(|dva| vdevs.min_allocation(dva.vdev).is_none())
        };
        prepare::is_nop(&request.policy, &request.old, lsize, stored) && !removed()
    }

    pub(super) fn allocate(&self, policy: &WritePolicy, stored: &Stored) -> Result<Dvas> {
        let psize = stored.bytes.len() as u64;
        let request = AllocRequest {
            psize,
            copies: policy.copies,
            class: policy.class_for(psize),
            txg: self.txg,
            hint: None,
        };
        self.writer.addresses.allocate(&request)
    }

    pub(super) fn pointer(
        &self,
        request: &BlockToWrite,
        stored: &Stored,
        dvas: &[Dva],
    ) -> Result<BlockPointer> {
        let policy = &request.policy;
        let block = StoredBlock {
            dvas,
            lsize: request.data.len() as u64,
            psize: stored.bytes.len() as u64,
            compression: stored.compression,
            checksum_id: policy.checksum.id(),
            checksum: stored.checksum,
            object_type: policy.object_type,
            level: Level(policy.level),
            crypt: stored.crypt,
            birth: self.txg,
            fill: request.fill,
        };
        let mut pointer = block.pointer()?;
        if let Some(sealing) = &stored.sealing {
            pointer.set_encryption(sealing.salt, sealing.iv, sealing.mac);
        }
        Ok(pointer)
    }

    pub(super) fn submit(&self, dvas: &[Dva], data: &Bytes) -> Result<()> {
        for dva in dvas {
            self.writer.submit.submit(BlockWrite {
                sides: None,
                vdev: dva.vdev,
                offset: dva.offset,
                data: data.clone(),
                birth: self.txg,
            })?;
        }
        Ok(())
    }

    pub(super) fn give_back(&self, dvas: &[Dva]) {
        for dva in dvas {
            self.writer.addresses.unallocate(dva, self.txg);
        }
    }

    fn remember(&self, request: &BlockToWrite, stored: &Stored, pointer: &BlockPointer) {
        let policy = &request.policy;
        let is_sealed = policy.encryptor.as_ref().is_some_and(|encryptor| encryptor.keeps_sealed());
        let metadata = policy.level > 0 || policy.object_type.is_metadata();
        let Some(key) = BlockKey::of(pointer) else { return };
        if is_sealed {
            self.pipe.cache().remove(&key);
        } else if metadata || request.keep {
            let block = stored.logical.as_ref().unwrap_or(&request.data);
            self.pipe.cache().put(key, block.clone());
        } else if stored.in_place {
            self.pipe.cache().remove(&key);
        }
    }
}
