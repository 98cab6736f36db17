//! Log blocks in the making.
//!
//! Chapter 05, section 16.2. Invariant: a finished block is one that [`LogBlock`] accepts under the
//! pointer it was made for, and its next pointer carries the verifier that follows.
//!
//! [`LogBlock`]: cenote_format::zil::LogBlock

use bytes::Bytes;
use cenote_codec::checksum::{Algorithm, Width, WordOrder, seal_embedded};
use cenote_format::blkptr::Dva;
use cenote_format::bytes::put_le64;
use cenote_format::zil::{CHAIN_SIZE, Chain, RECORD_HEADER, next_verifier};
use cenote_format::{BlockPointer, Txg};

use super::{LogCipher, LogWrite};
use crate::{Error, Result};

/// Smallest block, and the unit in which blocks are written.
pub(super) const UNIT: usize = 4096;
/// Largest block.
pub(super) const LARGEST: usize = 128 << 10;
/// Bytes of records the largest block holds.
pub(super) const MOST_RECORDS: usize = LARGEST - CHAIN_SIZE;
/// Bytes of a write record before its data.
pub(super) const WRITE_HEADER: usize = 192;
/// Record type of a write.
pub(super) const TYPE_WRITE: u64 = 9;

/// Sizes blocks come in.
const SIZES: [usize; 5] = [UNIT, 8192 + UNIT, 32768 + UNIT, 65536 + UNIT, LARGEST];
/// Object type of log blocks.
const TYPE: u64 = 9;
/// Checksum of log blocks: fletcher-4 with the chain in front.
const ZILOG2: u64 = 9;
/// Compression: off.
const UNCOMPRESSED: u64 = 2;
/// The block is little-endian.
const LITTLE_ENDIAN: u64 = 1 << 63;

/// Size of the block for `bytes` of records; the largest if none holds them.
pub(super) fn size_for(bytes: usize) -> usize {
    let needed = bytes.saturating_add(CHAIN_SIZE);
    SIZES.into_iter().find(|size| *size >= needed).unwrap_or(LARGEST)
}

/// The pointer to a block of `size` bytes at `dva`, allocated in group `birth`.
pub(super) fn pointer_to(dva: Dva, size: usize, birth: Txg, verifier: [u64; 4]) -> BlockPointer {
    let mut pointer = BlockPointer::HOLE;
    let [first, second] = dva.to_words();
    let sectors = (size as u64 / 512).saturating_sub(1);
    let prop = LITTLE_ENDIAN | TYPE << 48 | ZILOG2 << 40 | UNCOMPRESSED << 32;
    let [a, b, c, d] = verifier;
    pointer.words = [
        first,
        second,
        0,
        0,
        0,
        0,
        prop | sectors << 16 | sectors,
        0,
        0,
        0,
        birth.0,
        0,
        a,
        b,
        c,
        d,
    ];
    pointer
}

/// A block that records are put into.
#[derive(Clone, Debug)]
pub struct BlockBuilder {
    pointer: BlockPointer,
    size: usize,
    data: Vec<u8>,
}

impl BlockBuilder {
    /// The block behind `pointer`, without records yet.
    pub fn new(pointer: BlockPointer) -> Self {
        let size = usize::try_from(pointer.psize()).unwrap_or(0);
        let mut data = Vec::with_capacity(size);
        data.resize(CHAIN_SIZE, 0);
        Self { pointer, size, data }
    }

    /// Bytes of records that still fit.
    pub fn room(&self) -> usize {
        self.size.saturating_sub(self.data.len())
    }

    /// The pointer to this block.
    pub fn pointer(&self) -> &BlockPointer {
        &self.pointer
    }

    /// The verifier of the block that follows.
    pub fn next_verifier(&self) -> [u64; 4] {
        next_verifier(self.pointer.checksum())
    }

    /// Adds an encoded record, giving it its sequence number. The caller looked at
    /// [`Self::room`].
    pub fn push(&mut self, record: &[u8], sequence: u64) -> Result<()> {
        if record.len() < RECORD_HEADER
            || !record.len().is_multiple_of(8)
            || record.len() > self.room()
        {
            return Err(Error::invalid(format!("a log record of {} bytes", record.len())));
        }
        let at = self.data.len();
        self.data.extend_from_slice(record);
        put_le64(&mut self.data, at + 24, sequence).ok_or_else(short)
    }

    /// Adds a write record.
    pub fn push_write(
        &mut self,
        txg: Txg,
        sequence: u64,
        object: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let len = WRITE_HEADER + data.len().next_multiple_of(8);
        if len > self.room() {
            return Err(Error::invalid(format!("a log record of {len} bytes")));
        }
        let at = self.data.len();
        let length = data.len() as u64;
        for word in [TYPE_WRITE, len as u64, txg.0, sequence, object, offset, length, 0] {
            self.data.extend_from_slice(&word.to_le_bytes());
        }
        self.data.resize(at + WRITE_HEADER, 0);
        self.data.extend_from_slice(data);
        self.data.resize(at + len, 0);
        Ok(())
    }

    /// Ends the block: links it to `next`, pads it, and seals it, encrypted if there is a cipher.
    pub fn finish(
        mut self,
        next: &BlockPointer,
        cipher: Option<&dyn LogCipher>,
    ) -> Result<LogWrite> {
        let dva = self.pointer.first_dva().ok_or_else(short)?;
        let used = self.data.len();
        let chain = Chain { next: *next, used: used as u64, checksum: [0; 4] }.encode();
        self.data.get_mut(..CHAIN_SIZE).ok_or_else(short)?.copy_from_slice(&chain);
        // With parity, the columns of a part would lie elsewhere than those of the whole.
        let whole = dva.asize > self.size as u64;
        let len = if whole { self.size } else { used.next_multiple_of(UNIT).min(self.size) };
        self.data.resize(len, 0);
        let mut width = Width::Full;
        if let Some(cipher) = cipher {
            cipher.seal(&self.pointer, &mut self.data, used)?;
            width = Width::Truncated;
        }
        let verifier = self.pointer.checksum();
        let order = WordOrder::Little;
        seal_embedded(&mut self.data, Algorithm::Zilog2, &verifier, order, width)
            .map_err(|error| Error::bug(format!("a log block of our own: {error}")))?;
        Ok(LogWrite { dva, data: Bytes::from(self.data), birth: self.pointer.logical_birth() })
    }
}

fn short() -> Error {
    Error::bug("a log block of our own ends early")
}
