//! From logical bytes to the bytes to store: holes, compression, padding, encryption, checksum.
//!
//! Chapter 02, sections 6 to 8. Everything here depends on no address, so it runs on any thread.
//! Invariant: stored bytes are exactly as long as the physical size announced with them, and the
//! checksum is that of these bytes, padding included.
//!
//! Rewriting in place. The MOS is written in passes until nothing changes any more. A block that
//! was stored earlier in the same group keeps its addresses if it still fits: it is then padded to
//! exactly its old size, so sizes never shrink within a group and grow only when they must. From
//! pass 8 on a block that has outgrown its addresses is stored uncompressed, the largest it can
//! be: after that it has no reason to move again. (The reference turns compression off for every
//! block from that pass on; a block that fits need not be made larger.)

use std::cell::RefCell;

use bytes::Bytes;
use cenote_codec::checksum::{self, Algorithm as Checksum, Salt, WordOrder, Words};
use cenote_codec::compress::{self, Method, ZstdLevel, savings_limit};
use cenote_device::aligned_copy;
use cenote_format::blkptr::{EMBEDDED_MAX, MAX_BLOCK, SECTOR, SIZE as POINTER};
use cenote_format::{BlockPointer, Level, ObjectType, Txg};

use super::policy::{Compression, Dedup, WriteFeatures, WritePolicy};
use super::{BlockToWrite, GivenBlock, Sealing};
use crate::{Error, Result};

/// First pass of a group in which blocks may be rewritten where they are.
pub(super) const REWRITE_PASS: u32 = 2;
/// First pass in which what has outgrown its addresses is no longer compressed.
pub(super) const NO_COMPRESSION_PASS: u32 = 8;
/// Compression id of blocks stored as they are.
pub(super) const COMPRESSION_OFF: u8 = 2;
/// Smallest zstd level before which quicker methods are asked whether the block compresses at all.
const ZSTD_PROBED_LEVEL: i32 = 3;
/// Smallest block for which they are asked.
const ZSTD_PROBED_SIZE: usize = 128 << 10;

/// The pool's units of allocation (chapter 02, section 7.2, rule 4), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationUnits {
    /// Smallest allocation of any data vdev.
    pub min: u64,
    /// Greatest common divisor of the vdevs' smallest allocations.
    pub gcd: u64,
}

impl AllocationUnits {
    /// Of a pool whose vdevs have these smallest allocations (logs left out).
    pub fn of(smallest: impl IntoIterator<Item = u64>) -> Self {
        let mut units: Option<Self> = None;
        for size in smallest.into_iter().filter(|size| *size >= SECTOR) {
            units = Some(match units {
                None => Self { min: size, gcd: size },
                Some(units) => Self { min: units.min.min(size), gcd: divisor(units.gcd, size) },
            });
        }
        units.unwrap_or(Self { min: SECTOR, gcd: SECTOR })
    }

    /// The stored size of `bytes` bytes.
    fn rounded(&self, bytes: u64) -> u64 {
        if bytes <= self.min { self.min } else { bytes.next_multiple_of(self.gcd.max(SECTOR)) }
    }
}

fn divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// What all blocks of a pool are prepared with.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What the pool's features allow.
    pub features: WriteFeatures,
    /// The pool's units of allocation.
    pub units: AllocationUnits,
    /// The pool's checksum salt.
    pub salt: Salt,
}

/// A block ready for its addresses.
pub(super) enum Prepared {
    /// Nothing to store.
    Hole,
    /// All of it is in the pointer.
    Embedded(BlockPointer),
    /// Bytes to store.
    Stored(Stored),
}

/// Bytes to store.
pub(super) struct Stored {
    /// Exactly the physical size.
    pub(super) bytes: Bytes,
    /// Compression id.
    pub(super) compression: u8,
    /// Checksum words as they stand in the pointer, MAC included.
    pub(super) checksum: Words,
    /// Bit X.
    pub(super) crypt: bool,
    /// Salt, IV and tag of an encrypted block.
    pub(super) sealing: Option<Sealing>,
    /// The block takes the addresses of the old pointer.
    pub(super) in_place: bool,
    /// The logical bytes, if sealing changed them (an object set's MACs).
    pub(super) logical: Option<Bytes>,
}

/// Prepares one block. Errors: sizes no pointer can express, keys that do not work.
pub(super) fn prepare(
    rules: &Rules,
    request: &BlockToWrite,
    txg: Txg,
    pass: u32,
) -> Result<Prepared> {
    let policy = &request.policy;
    check(request)?;
    let given = given(request);
    if let Some(GivenBlock { stored: Some(bytes), compression, sealing }) = &given {
        let mut stored = Stored {
            bytes: bytes.clone(),
            compression: *compression,
            checksum: [0; 4],
            crypt: true,
            sealing: policy.object_type.is_encrypted().then_some(*sealing),
            in_place: false,
            logical: None,
        };
        sum(rules, policy, Some(sealing.mac), &mut stored);
        return Ok(Prepared::Stored(stored));
    }
    if policy.compression != Compression::Off && is_empty(policy, &request.data) {
        return Ok(Prepared::Hole);
    }
    let mut logical = None;
    let mut data = request.data.clone();
    if let (Some(encryptor), true) = (&policy.encryptor, policy.object_type == ObjectType::OBJSET) {
        let mut block = data.to_vec();
        encryptor.seal_object_set(&mut block)?;
        data = Bytes::from(block);
        logical = Some(data.clone());
    }
    let old_psize = rewritable(request, txg, pass);
    let (bytes, compression) = match shrink(rules, request, &data, old_psize, pass) {
        Shrunk::Embed(payload, id) => {
            let lsize = data.len() as u64;
            let pointer = BlockPointer::embed(&payload, lsize, id, policy.object_type, txg)?;
            return Ok(Prepared::Embedded(pointer));
        }
        Shrunk::Store(bytes, id) => (bytes, id),
        Shrunk::Not => (data.clone(), COMPRESSION_OFF),
    };
    let in_place = old_psize == Some(bytes.len() as u64);
    let mut stored = Stored {
        bytes,
        compression,
        checksum: [0; 4],
        crypt: policy.encryptor.is_some(),
        sealing: None,
        in_place,
        logical,
    };
    let mac = seal(policy, given.as_ref(), &data, &mut stored)?;
    sum(rules, policy, mac, &mut stored);
    Ok(Prepared::Stored(stored))
}

/// The block as somebody else has sealed it, if it came so.
fn given(request: &BlockToWrite) -> Option<GivenBlock> {
    let policy = &request.policy;
    let is_data = policy.level == 0 && policy.object_type != ObjectType::OBJSET;
    policy.encryptor.as_ref().filter(|_| is_data)?.given(&request.place)
}

fn check(request: &BlockToWrite) -> Result<()> {
    let policy = &request.policy;
    let size = request.data.len() as u64;
    if size == 0 || size > MAX_BLOCK || !size.is_multiple_of(SECTOR) {
        return Err(Error::invalid(format!("a block of {size} bytes cannot be written")));
    }
    if !(1..=3).contains(&policy.copies) {
        return Err(Error::invalid(format!("a block with {} copies", policy.copies)));
    }
    if policy.checksum.embedded() {
        let name = policy.checksum.name();
        return Err(Error::invalid(format!("checksum {name} does not go into a pointer")));
    }
    if !policy.object_type.is_valid() {
        return Err(Error::invalid(format!("object type {}", policy.object_type.0)));
    }
    Ok(())
}

/// All zeros, or pointers to nothing.
fn is_empty(policy: &WritePolicy, data: &[u8]) -> bool {
    if policy.level == 0 {
        return is_zero(data);
    }
    data.len().is_multiple_of(POINTER) && BlockPointer::decode_all(data).all(|bp| bp.is_hole())
}

fn is_zero(data: &[u8]) -> bool {
    // Whole kilobytes without a branch, so that the compiler can use wide registers.
    data.chunks(1024).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// The physical size at which the block may keep its old addresses.
fn rewritable(request: &BlockToWrite, txg: Txg, pass: u32) -> Option<u64> {
    let old = &request.old;
    let stored = !old.is_hole() && !old.is_embedded() && !old.is_gang();
    let mine = old.logical_birth() == txg && old.physical_birth() == txg;
    // An encrypted block never gets other content under the same address.
    let plain = !old.is_crypt() && request.policy.encryptor.is_none() && !old.is_dedup();
    let copies = old.dvas().count() == usize::from(request.policy.copies);
    (pass >= REWRITE_PASS && stored && mine && plain && copies).then(|| old.psize())
}

thread_local! {
    /// Where a thread compresses to. It grows to the largest block that was seen.
    static OUTPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

enum Shrunk {
    Embed(Vec<u8>, u8),
    Store(Bytes, u8),
    Not,
}

/// Compresses, if that is worth it; pads the result to a size that can be allocated or, in place,
/// to the old size.
fn shrink(
    rules: &Rules,
    request: &BlockToWrite,
    data: &[u8],
    old_psize: Option<u64>,
    pass: u32,
) -> Shrunk {
    let Compression::With(method) = request.policy.compression else { return Shrunk::Not };
    let lsize = data.len() as u64;
    if old_psize == Some(lsize) {
        // Stored uncompressed before: stays where it is that way.
        return Shrunk::Not;
    }
    // What is rewritten in place never moves into its pointer: it might have to move out again.
    let embed = request.policy.embed && old_psize.is_none();
    let limit = limit(&rules.units, data.len(), method, embed);
    OUTPUT.with_borrow_mut(|output| {
        if output.len() < limit {
            output.resize(limit, 0);
        }
        let squeezed = output.get_mut(..limit).and_then(|out| {
            let size = squeeze(method, data, out)?;
            out.get(..size)
        });
        let Some(out) = squeezed else { return Shrunk::Not };
        let id = method.algorithm().id();
        if embed && out.len() <= EMBEDDED_MAX {
            return Shrunk::Embed(out.to_vec(), id);
        }
        let mut psize = rules.units.rounded(out.len() as u64);
        match old_psize {
            Some(old) if psize <= old => psize = old,
            Some(_) if pass >= NO_COMPRESSION_PASS => return Shrunk::Not,
            _ => {}
        }
        match usize::try_from(psize) {
            Ok(length) if psize < lsize => Shrunk::Store(aligned_copy(out, length), id),
            _ => Shrunk::Not,
        }
    })
}

/// The most bytes a compressed block may have to be worth it (chapter 02, section 7.2, rule 2).
fn limit(units: &AllocationUnits, lsize: usize, method: Method, embed: bool) -> usize {
    let savings = savings_limit(lsize);
    let unit = usize::try_from(units.gcd).unwrap_or(usize::MAX).max(1);
    let rounded = if method == Method::Zle { savings } else { savings - savings % unit };
    match (rounded as u64 >= units.min, embed) {
        (true, _) => rounded,
        (false, true) => EMBEDDED_MAX.min(savings),
        (false, false) => 0,
    }
}

fn squeeze(method: Method, data: &[u8], out: &mut [u8]) -> Option<usize> {
    if out.is_empty() {
        return None;
    }
    if let Method::Zstd(level) = method
        && level.number() >= ZSTD_PROBED_LEVEL
        && data.len() >= ZSTD_PROBED_SIZE
        && compress::compress(Method::Lz4, data, out).is_none()
    {
        compress::compress(Method::Zstd(ZstdLevel::from_number(1)?), data, out)?;
    }
    compress::compress(method, data, out)
}

/// Encrypts or authenticates; the MAC that goes into the pointer.
fn seal(
    policy: &WritePolicy,
    given: Option<&GivenBlock>,
    logical: &[u8],
    stored: &mut Stored,
) -> Result<Option<[u8; 16]>> {
    let Some(encryptor) = &policy.encryptor else { return Ok(None) };
    if policy.level > 0 {
        return encryptor.indirect_mac(logical).map(Some);
    }
    if policy.object_type.is_encrypted() {
        let sealing = match (given, policy.dedup) {
            (Some(given), _) => given.sealing,
            (None, dedup) => {
                let mut bytes = stored.bytes.to_vec();
                let sealing = match dedup {
                    Dedup::Off => encryptor.encrypt(policy.object_type, &mut bytes)?,
                    _ => encryptor.encrypt_alike(policy.object_type, &mut bytes)?,
                };
                stored.bytes = Bytes::from(bytes);
                sealing
            }
        };
        stored.sealing = Some(sealing);
        return Ok(Some(sealing.mac));
    }
    match policy.object_type {
        ObjectType::OBJSET => Ok(None),
        _ => encryptor.mac(&stored.bytes).map(Some),
    }
}

/// Makes the checksum, with the MAC beside it if there is one.
fn sum(rules: &Rules, policy: &WritePolicy, mac: Option<[u8; 16]>, stored: &mut Stored) {
    let full = checksum::compute(policy.checksum, &stored.bytes, WordOrder::Little, &rules.salt);
    stored.checksum = match mac {
        None => full,
        Some(mac) => {
            let [first, second] = checksum::truncate(policy.checksum, full);
            let (low, high) = mac.split_at(8);
            [first, second, word(low), word(high)]
        }
    };
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The old pointer already says what the new one would (chapter 02, section 9).
pub(super) fn is_nop(policy: &WritePolicy, old: &BlockPointer, lsize: u64, new: &Stored) -> bool {
    let stored = !old.is_hole() && !old.is_embedded();
    let plain = !old.is_crypt() && !new.crypt && !old.is_dedup();
    let same_form = old.checksum_id() == policy.checksum.id()
        && old.compression() == new.compression
        && old.is_little_endian()
        && old.lsize() == lsize
        && old.psize() == new.bytes.len() as u64
        && old.object_type() == policy.object_type
        && old.level() == Level(policy.level)
        && old.dvas().count() == usize::from(policy.copies);
    policy.nop_write && stored && plain && same_form && old.checksum() == new.checksum
}

/// Checksum of a piece of a gang: in full, with the parent's algorithm.
pub(super) fn piece_checksum(rules: &Rules, algorithm: Checksum, bytes: &[u8]) -> Words {
    checksum::compute(algorithm, bytes, WordOrder::Little, &rules.salt)
}
