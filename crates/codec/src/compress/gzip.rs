//! gzip-1 to gzip-9 (chapter 02, section 7.6): a zlib stream with its Adler-32, then padding.
//!
//! Invariant: the inflater's state is bounded (a 32 KiB window) and it stops at the end of the
//! caller's block.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::DecompressError;

pub(super) fn decompress(source: &[u8], destination: &mut [u8]) -> Result<(), DecompressError> {
    thread_local! {
        static INFLATER: RefCell<Decompress> = RefCell::new(Decompress::new(true));
    }
    let bad = |reason| Err(DecompressError::new("gzip", reason));
    INFLATER.with_borrow_mut(|inflater| {
        inflater.reset(true);
        match inflater.decompress(source, destination, FlushDecompress::Finish) {
            Ok(Status::StreamEnd) if inflater.total_out() == destination.len() as u64 => Ok(()),
            Ok(Status::StreamEnd) => bad("expands to less than the block"),
            Ok(_) => bad("the stream does not end with the block"),
            Err(_) => bad("not a zlib stream"),
        }
    })
}

pub(super) fn compress(source: &[u8], destination: &mut [u8], level: u8) -> Option<usize> {
    let mut deflater = Compress::new(Compression::new(u32::from(level.clamp(1, 9))), true);
    match deflater.compress(source, destination, FlushCompress::Finish) {
        Ok(Status::StreamEnd) => usize::try_from(deflater.total_out()).ok(),
        _ => None,
    }
}
