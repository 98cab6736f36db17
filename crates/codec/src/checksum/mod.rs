//! Checksums of blocks (chapter 02, section 6).
//!
//! Invariant: a checksum is four *numeric* words ([`Words`]), however the block pointer that holds
//! them is stored; the block's own byte order ([`WordOrder`]) enters only where the format says so.

mod algorithm;
mod edonr;
mod embedded;
mod fletcher;
mod salt;
mod sha;
mod skein;

#[cfg(test)]
mod tests;

pub use algorithm::Algorithm;
pub use embedded::{EmbeddedError, TRAILER_SIZE, Width, seal_embedded, verify_embedded};
pub use fletcher::{Fletcher2, Fletcher4, fletcher2, fletcher4};
pub use salt::Salt;
pub use sha::{sha256, sha512_256};

use edonr::Edonr;

/// A checksum as four numeric words, as they stand in a block pointer once it has been decoded.
pub type Words = [u64; 4];

/// The byte order a block was written in: bit 63 of the property word of its pointer
/// (chapter 02, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum WordOrder {
    /// Written by a little-endian host.
    #[default]
    Little,
    /// Written by a big-endian host.
    Big,
}

impl WordOrder {
    /// Reads eight bytes as a number of this order.
    #[inline]
    pub fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    /// The eight bytes of a number in this order.
    #[inline]
    pub fn bytes(self, number: u64) -> [u8; 8] {
        match self {
            Self::Little => number.to_le_bytes(),
            Self::Big => number.to_be_bytes(),
        }
    }

    /// The four words held by 32 bytes (a digest, or a stored checksum).
    pub fn words(self, bytes: &[u8; 32]) -> Words {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = self.u64(*bytes);
        }
        words
    }

    /// The 32 bytes that hold `words` in this order.
    pub fn word_bytes(self, words: &Words) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = self.bytes(*word);
        }
        bytes
    }
}

/// The checksum of `data`: exactly the PSIZE bytes as they lie on the disk, after compression,
/// padding and encryption (chapter 02, section 6.2).
///
/// `order` is the byte order of the block. [`Algorithm::Off`] and [`Algorithm::NoParity`] give
/// zeros. The self-checksummed algorithms give their plain hash of `data`; their trailers are
/// handled by [`verify_embedded`] and [`seal_embedded`].
pub fn compute(algorithm: Algorithm, data: &[u8], order: WordOrder, salt: &Salt) -> Words {
    match algorithm {
        Algorithm::Off | Algorithm::NoParity => [0; 4],
        Algorithm::Label | Algorithm::GangHeader | Algorithm::Sha256 => sha256(data),
        Algorithm::Zilog | Algorithm::Fletcher2 => fletcher2(data, order),
        Algorithm::Zilog2 | Algorithm::Fletcher4 => fletcher4(data, order),
        Algorithm::Sha512 => order.words(&sha512_256(data)),
        Algorithm::Skein => order.words(&salt.skein().digest(data)),
        Algorithm::Edonr => {
            let mut state: Edonr = salt.edonr().clone();
            state.update(data);
            order.words(&state.finish_256())
        }
        Algorithm::Blake3 => order.words(&salt.blake3_hash(data)),
    }
}

/// Whether `stored` is the checksum of `data`.
///
/// `truncated` is set for a block whose pointer has X=1 and whose type is not an object set:
/// then only the first two words belong to the checksum ([`truncate`]).
pub fn matches(
    algorithm: Algorithm,
    data: &[u8],
    order: WordOrder,
    salt: &Salt,
    stored: &Words,
    truncated: bool,
) -> bool {
    let computed = compute(algorithm, data, order, salt);
    if truncated {
        truncate(algorithm, computed) == [stored[0], stored[1]]
    } else {
        computed == *stored
    }
}

/// The two words that remain of a checksum when the pointer carries a MAC in the other two
/// (chapter 02, section 6.5). Algorithms too weak for dedup are folded, the others cut.
pub fn truncate(algorithm: Algorithm, words: Words) -> [u64; 2] {
    if algorithm.dedup_without_verify() {
        [words[0], words[1]]
    } else {
        [words[0] ^ words[2], words[1] ^ words[3]]
    }
}
