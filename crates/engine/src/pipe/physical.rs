//! Stored bytes of a block, verified: one fast attempt for many blocks, then every alternative.
//!
//! Chapter 02, sections 3, 4 and 6. Invariant: gang trees are followed to a bounded depth and never
//! gather more bytes than their pointer announces.

use bytes::Bytes;
use cenote_codec::checksum::{self, Algorithm, Width, WordOrder};
use cenote_format::{BlockPointer, Dva, ObjectType};

use super::Pipe;
use crate::vdev::{BlockRead, VdevError};
use crate::{Error, ErrorKind, Result};

/// Deepest nesting of gang headers a reader follows.
const MAX_GANG_DEPTH: u32 = 16;
/// Size of a classic gang header in bytes.
const GANG_HEADER: u64 = 512;

impl Pipe {
    /// Bytes (`psize`) of every block as stored, verified, whether a key is loaded or not; they do
    /// not pass the cache. Holes and embedded blocks have none.
    pub fn read_stored_many(&self, bps: &[BlockPointer]) -> Vec<Result<Bytes>> {
        let stored = |bp: &&BlockPointer| !bp.is_hole() && !bp.is_embedded();
        let addressed: Vec<BlockPointer> = bps.iter().filter(stored).copied().collect();
        let read = self.read_physical_many(&addressed).into_iter().zip(&addressed);
        let mut read = read.map(|(read, bp)| self.patiently(bp, read, || self.read_physical(bp)));
        let none = || Ok(Bytes::new());
        let answer = |bp| if stored(&bp) { read.next().unwrap_or_else(none) } else { none() };
        bps.iter().map(answer).collect()
    }

    /// Stored bytes (`psize`) of every block, verified. Never waits for devices that are away.
    pub(super) fn read_physical_many(&self, bps: &[BlockPointer]) -> Vec<Result<Bytes>> {
        let vdevs = self.vdevs();
        let mut reads = Vec::with_capacity(bps.len());
        let mut asked = Vec::with_capacity(bps.len());
        for bp in bps {
            if self.submitted.get().is_some() && self.read_pending(bp).is_some() {
                asked.push(false);
                continue;
            }
            let dva = bp.dvas().find(|dva| vdevs.is_readable(dva.vdev)).or(bp.first_dva());
            match dva {
                Some(dva) if !dva.gang => {
                    reads.push(block_read(bp, dva));
                    asked.push(true);
                }
                _ => asked.push(false),
            }
        }
        self.vdev_handle().precedence().note(reads.iter().map(|read| read.size).sum());
        let mut answers = vdevs.read_batch(&reads).into_iter();
        let mut results = Vec::with_capacity(bps.len());
        for (bp, asked) in bps.iter().zip(asked) {
            let first = if asked { answers.next() } else { None };
            let first = first.filter(|_| !self.faulty().has_of_copies(bp));
            results.push(match (first, self.faulty().failure(bp)) {
                (_, Some(failure)) => Err(failure),
                (Some(Ok(data)), None) if self.verify(bp, &data) => Ok(data),
                _ => self.read_physical(bp),
            });
        }
        results
    }

    /// Stored bytes of one block by every means: all copies, all reconstructions. Never waits for
    /// devices that are away.
    pub(super) fn read_physical(&self, bp: &BlockPointer) -> Result<Bytes> {
        bp.validate()?;
        if bp.is_gang() {
            return self.read_gang(bp, 0, bp.psize());
        }
        if let Some(data) = self.read_pending(bp) {
            return Ok(data);
        }
        self.read_copies(bp)
    }

    /// Stored bytes of a block that is no gang, from any of its addresses.
    fn read_copies(&self, bp: &BlockPointer) -> Result<Bytes> {
        let mut failure = None;
        for (number, dva) in bp.dvas().enumerate() {
            if let Some(other) = self.faulty().failure_of_copy(bp, number) {
                failure = Some(worse(failure, other));
                continue;
            }
            let read = block_read(bp, dva);
            match self.vdevs().read_recover(&read, &mut |data| self.verify(bp, data)) {
                Ok(recovered) => {
                    if is_verified(bp) {
                        self.heal(&read, &recovered);
                    }
                    return Ok(recovered.data);
                }
                Err(error) => failure = Some(worse(failure, Error::from(error))),
            }
        }
        Err(failure.unwrap_or_else(|| Error::corrupt("block pointer without an address")))
    }

    /// The stored bytes of a block whose write is still under way. The devices may not have them.
    fn read_pending(&self, bp: &BlockPointer) -> Option<Bytes> {
        let submitted = self.submitted()?;
        let data = bp.dvas().find_map(|dva| submitted.pending(dva.vdev, dva.offset))?;
        (data.len() as u64 == bp.psize() && self.verify(bp, &data)).then_some(data)
    }

    /// The bytes hash to what the pointer says.
    pub(super) fn verify(&self, bp: &BlockPointer, data: &[u8]) -> bool {
        let Some(algorithm) = Algorithm::from_id(bp.checksum_id()) else { return false };
        if !algorithm.verifies() {
            return true;
        }
        let order = if bp.is_little_endian() { WordOrder::Little } else { WordOrder::Big };
        let truncated = bp.is_crypt() && bp.object_type() != ObjectType::OBJSET;
        checksum::matches(algorithm, data, order, self.salt(), &bp.checksum(), truncated)
    }

    /// Bytes behind a gang pointer: its header's children, in order.
    fn read_gang(&self, bp: &BlockPointer, depth: u32, limit: u64) -> Result<Bytes> {
        if depth >= MAX_GANG_DEPTH {
            return Err(Error::corrupt(format!("gang headers nested {depth} deep")));
        }
        let header = self.read_gang_header(bp)?;
        let pointers = header.len().saturating_sub(40) / cenote_format::blkptr::SIZE;
        let wanted = usize::try_from(bp.psize()).unwrap_or(usize::MAX);
        let mut data = Vec::with_capacity(wanted);
        for index in 0..pointers {
            let mut child = BlockPointer::decode_at(&header, index)?;
            if child.is_hole() || child.is_embedded() {
                continue;
            }
            let room = limit.saturating_sub(data.len() as u64);
            if child.psize() > room {
                return Err(Error::corrupt(format!(
                    "gang child of {} bytes where {room} are left",
                    child.psize()
                )));
            }
            // Children carry the full checksum of their bytes, never a MAC.
            child.words[6] &= !(1 << 61);
            let piece = if child.is_gang() {
                self.read_gang(&child, depth + 1, room)?
            } else {
                self.read_physical(&child)?
            };
            data.extend_from_slice(&piece);
        }
        if data.len() != wanted {
            let have = data.len();
            return Err(Error::corrupt(format!("gang holds {have} bytes, not {wanted}")));
        }
        Ok(Bytes::from(data))
    }

    /// The gang header behind `bp`, verified, its words in little-endian order.
    pub(super) fn read_gang_header(&self, bp: &BlockPointer) -> Result<Vec<u8>> {
        let mut sizes = vec![GANG_HEADER];
        if self.large_gangs.get().copied().unwrap_or(false) {
            let unit = bp.dvas().filter_map(|dva| self.vdevs().min_allocation(dva.vdev)).min();
            sizes.splice(0..0, unit.filter(|size| *size > GANG_HEADER));
        }
        let pending = self.submitted().and_then(|submitted| {
            bp.dvas().find_map(|dva| submitted.pending(dva.vdev, dva.offset))
        });
        if let Some(header) = pending
            && gang_header_order(bp, &header) == Some(WordOrder::Little)
        {
            return Ok(header.to_vec());
        }
        self.read_header_copies(bp, &sizes)
    }

    /// A gang header of one of `sizes`, from any of its addresses.
    fn read_header_copies(&self, bp: &BlockPointer, sizes: &[u64]) -> Result<Vec<u8>> {
        if bp.first_dva().is_none() {
            return Err(Error::corrupt("gang without an address"));
        }
        let mut failure = None;
        for &size in sizes {
            for dva in bp.dvas() {
                let read = BlockRead { size, ..block_read(bp, dva) };
                let mut order = None;
                let mut check = |data: &[u8]| {
                    order = gang_header_order(bp, data);
                    order.is_some()
                };
                match self.vdevs().read_recover(&read, &mut check) {
                    Ok(recovered) => {
                        self.heal(&read, &recovered);
                        let mut header = recovered.data.to_vec();
                        if order == Some(WordOrder::Big) {
                            cenote_format::bytes::swap_elements::<8>(&mut header);
                        }
                        return Ok(header);
                    }
                    Err(error) => failure = Some(worse(failure, Error::from(error))),
                }
            }
        }
        Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Io, "gang header unreadable")))
    }
}

/// Two addresses of a block failed: the block is lost only if both are.
fn worse(before: Option<Error>, error: Error) -> Error {
    let passing = before.is_some_and(|before| before.is_passing()) || error.is_passing();
    error.passing(passing)
}

/// The pointer has a checksum of the bytes.
pub(super) fn is_verified(bp: &BlockPointer) -> bool {
    Algorithm::from_id(bp.checksum_id()).is_some_and(Algorithm::verifies)
}

/// The order of the words of the gang header behind `bp`, if that is what `data` is.
pub(super) fn gang_header_order(bp: &BlockPointer, data: &[u8]) -> Option<WordOrder> {
    let first = bp.first_dva()?;
    let verifier = [u64::from(first.vdev), first.offset, bp.physical_birth().0, 0];
    let truncated = bp.is_crypt() && bp.object_type() != ObjectType::OBJSET;
    let width = if truncated { Width::Truncated } else { Width::Full };
    checksum::verify_embedded(data, Algorithm::GangHeader, &verifier, width).ok()
}

pub(super) fn block_read(bp: &BlockPointer, dva: Dva) -> BlockRead {
    BlockRead { vdev: dva.vdev, offset: dva.offset, size: bp.psize(), birth: bp.physical_birth() }
}

impl From<VdevError> for Error {
    fn from(error: VdevError) -> Self {
        let passing = match &error {
            VdevError::NoIntactCopy { away, .. } => *away,
            VdevError::Unavailable { .. }
            | VdevError::Device { .. }
            | VdevError::NotWritten { .. } => true,
            _ => false,
        };
        let kind = match &error {
            VdevError::NoIntactCopy { .. } => ErrorKind::Checksum,
            VdevError::NoSuchDevice(_) => ErrorKind::NotFound,
            VdevError::Unfit(_) => ErrorKind::Unsupported,
            VdevError::Config(_)
            | VdevError::NoSuchVdev { .. }
            | VdevError::BadAddress { .. }
            | VdevError::MappingNotLoaded(_) => ErrorKind::Corrupt,
            VdevError::Unavailable { .. }
            | VdevError::Device { .. }
            | VdevError::NotWritten { .. } => ErrorKind::Io,
        };
        Self::new(kind, error.to_string()).passing(passing)
    }
}
