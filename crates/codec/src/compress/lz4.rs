//! LZ4 (chapter 02, section 7.5): a big-endian length, then one raw LZ4 block.
//!
//! Invariant: the decoder writes straight into the caller's block; nothing is copied or allocated.
//! The encoder works in a buffer that each thread keeps.

use std::cell::RefCell;

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

use super::DecompressError;

/// Bytes of the length before the block.
const HEADER: usize = 4;
/// Largest working buffer a thread keeps.
const SCRATCH_KEPT: usize = 2 << 20;

pub(super) fn decompress(source: &[u8], destination: &mut [u8]) -> Result<(), DecompressError> {
    let bad = |reason| DecompressError::new("lz4", reason);
    let (header, rest) =
        source.split_first_chunk::<HEADER>().ok_or_else(|| bad("shorter than its header"))?;
    let length = u32::from_be_bytes(*header) as usize;
    let block = rest.get(..length).ok_or_else(|| bad("longer than the stored bytes"))?;
    match decompress_into(block, destination) {
        Ok(written) if written == destination.len() => Ok(()),
        Ok(_) => Err(bad("expands to less than the block")),
        Err(_) => Err(bad("not an LZ4 block of the right size")),
    }
}

pub(super) fn compress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
    thread_local! {
        static TABLES: RefCell<[CompressTable; 2]> =
            RefCell::new([CompressTable::small(), CompressTable::large()]);
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    let (header, block) = destination.split_first_chunk_mut::<HEADER>()?;
    // The encoder refuses a destination that could not hold the worst case, however well the
    // source compresses.
    let written = SCRATCH.with_borrow_mut(|scratch| {
        let worst = get_maximum_output_size(source.len());
        if scratch.len() < worst {
            scratch.resize(worst, 0);
        }
        let written = TABLES.with_borrow_mut(|[small, large]| {
            let table = if source.len() < usize::from(u16::MAX) { small } else { large };
            compress_into_with_table(source, scratch, table).ok()
        })?;
        block.get_mut(..written)?.copy_from_slice(scratch.get(..written)?);
        if scratch.len() > SCRATCH_KEPT {
            *scratch = Vec::new();
        }
        Some(written)
    })?;
    *header = u32::try_from(written).ok()?.to_be_bytes();
    Some(HEADER + written)
}
