//! The SHA-2 checksums, through `ring`, which uses the processor's SHA instructions.
//!
//! Invariant: SHA-256 words are big-endian reads of the digest whatever the block's byte order
//! (chapter 02, section 6.2).

use ring::digest::{Context, SHA256, SHA512_256, digest};

use super::{WordOrder, Words};

fn bytes_32(digest: &ring::digest::Digest) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (to, from) in bytes.iter_mut().zip(digest.as_ref()) {
        *to = *from;
    }
    bytes
}

/// SHA-256 of `data` as the numeric words of a block pointer.
pub fn sha256(data: &[u8]) -> Words {
    WordOrder::Big.words(&bytes_32(&digest(&SHA256, data)))
}

/// SHA-256 over the concatenation of `parts`.
pub(super) fn sha256_parts(parts: &[&[u8]]) -> Words {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part);
    }
    WordOrder::Big.words(&bytes_32(&context.finish()))
}

/// SHA-512/256 (FIPS 180-4) of `data`: the 32 digest bytes.
pub fn sha512_256(data: &[u8]) -> [u8; 32] {
    bytes_32(&digest(&SHA512_256, data))
}
