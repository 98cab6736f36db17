//! Compression of blocks (chapter 02, section 7).
//!
//! Invariant: a decompressor writes exactly the destination it is given or fails; no length found
//! in the input makes it allocate or write more. A compressor writes only into its destination,
//! whose length is the limit above which compression is not worth it.

mod algorithm;
mod gzip;
mod lz4;
mod lzjb;
mod zle;
mod zstd;

#[cfg(test)]
mod tests;

pub use algorithm::{Algorithm, Method};
pub use zstd::Level as ZstdLevel;

/// Why compressed bytes could not be expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad {algorithm} data: {reason}")]
pub struct DecompressError {
    /// Name of the algorithm.
    pub algorithm: &'static str,
    /// What is wrong with the input.
    pub reason: &'static str,
}

impl DecompressError {
    fn new(algorithm: &'static str, reason: &'static str) -> Self {
        Self { algorithm, reason }
    }
}

/// Expands `source` (PSIZE bytes, padding included) to exactly fill `destination` (LSIZE bytes).
///
/// On failure the contents of `destination` are unspecified.
pub fn decompress(
    algorithm: Algorithm,
    source: &[u8],
    destination: &mut [u8],
) -> Result<(), DecompressError> {
    match algorithm {
        Algorithm::Off => match source.get(..destination.len()) {
            Some(bytes) => {
                destination.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(DecompressError::new("uncompressed", "shorter than the block")),
        },
        Algorithm::Lzjb => lzjb::decompress(source, destination),
        Algorithm::Gzip(_) => gzip::decompress(source, destination),
        Algorithm::Zle => zle::decompress(source, destination),
        Algorithm::Lz4 => lz4::decompress(source, destination),
        Algorithm::Zstd => zstd::decompress(source, destination),
    }
}

/// Compresses `source` into the front of `destination` and tells how many bytes that took.
///
/// `None` if it does not fit: then the block is stored as it is. The usual limit is
/// [`savings_limit`]; rounding up to sectors and the zero padding are the caller's (chapter 02,
/// section 7.2).
pub fn compress(method: Method, source: &[u8], destination: &mut [u8]) -> Option<usize> {
    match method {
        Method::Lzjb => lzjb::compress(source, destination),
        Method::Gzip(level) => gzip::compress(source, destination, level),
        Method::Zle => zle::compress(source, destination),
        Method::Lz4 => lz4::compress(source, destination),
        Method::Zstd(level) => zstd::compress(source, destination, level),
    }
}

/// The most bytes compression of `logical` bytes may yield to be worth it: it must save an eighth
/// (chapter 02, section 7.2, rule 2).
pub fn savings_limit(logical: usize) -> usize {
    logical - logical / 8
}

/// The level a zstd block was written with, from its header; for reports. `None` if the header is
/// short or not one a reader accepts.
pub fn zstd_level(source: &[u8]) -> Option<ZstdLevel> {
    zstd::Header::parse(source).ok().map(|header| header.level)
}
