//! What several targets share.
#![allow(dead_code, reason = "every target is a crate of its own and uses a part of this")]

use cenote_codec::compress::{self, Algorithm};

/// Splits off two bytes and makes a block length of them.
pub fn length(input: &[u8]) -> (usize, &[u8]) {
    match input.split_first_chunk() {
        Some((bytes, rest)) => (usize::from(u16::from_le_bytes(*bytes)), rest),
        None => (0, input),
    }
}

/// The first two bytes choose the block length, the rest is the stored block. A block either
/// expands to exactly its length, the same way every time, or is refused; and nothing outside of
/// the destination is touched.
pub fn decompress(algorithm: Algorithm, input: &[u8]) {
    const GUARD: usize = 64;
    let (length, source) = length(input);
    let expand = |fill: u8| {
        let mut block = vec![fill; length + 2 * GUARD];
        let result = decompress_into(algorithm, source, &mut block[GUARD..GUARD + length]);
        let (before, rest) = block.split_at(GUARD);
        let (expanded, after) = rest.split_at(length);
        assert!(before.iter().chain(after).all(|byte| *byte == fill));
        result.then(|| expanded.to_vec())
    };
    assert_eq!(expand(0x55), expand(0xaa));
}

fn decompress_into(algorithm: Algorithm, source: &[u8], block: &mut [u8]) -> bool {
    compress::decompress(algorithm, source, block).is_ok()
}
