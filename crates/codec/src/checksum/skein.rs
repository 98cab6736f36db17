//! Skein-512 with 256-bit output as a MAC over the pool's salt (Skein 1.3; chapter 02, section 6.3).
//!
//! Invariant: the chaining value kept in [`Skein`] is that after the key and configuration blocks,
//! so hashing a disk block costs only the blocks of its message and one output block.

/// Skein-512-256, keyed or not, ready to hash messages.
#[derive(Clone)]
pub(super) struct Skein {
    chain: [u64; 8],
}

const FIRST: u64 = 1 << 62;
const FINAL: u64 = 1 << 63;
const TYPE_KEY: u64 = 0;
const TYPE_CONFIGURATION: u64 = 4 << 56;
const TYPE_MESSAGE: u64 = 48 << 56;
const TYPE_OUTPUT: u64 = 63 << 56;
/// Schema "SHA3", version 1, as the first configuration word.
const SCHEMA: u64 = 0x0000_0001_3341_4853;
const OUTPUT_BITS: u64 = 256;
/// Parity constant of the Threefish key schedule.
const KEY_PARITY: u64 = 0x1bd1_1bda_a9fc_1a22;

impl Skein {
    /// In MAC mode, with a 32-byte key.
    pub(super) fn keyed(key: &[u8; 32]) -> Self {
        let mut block = [0; 64];
        block[..32].copy_from_slice(key);
        let mut chain = [0; 8];
        compress(&mut chain, &words(&block), 32, TYPE_KEY | FIRST | FINAL);
        Self::configured(chain)
    }

    /// As a plain hash.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Self::configured([0; 8])
    }

    fn configured(mut chain: [u64; 8]) -> Self {
        let configuration = [SCHEMA, OUTPUT_BITS, 0, 0, 0, 0, 0, 0];
        compress(&mut chain, &configuration, 32, TYPE_CONFIGURATION | FIRST | FINAL);
        Self { chain }
    }

    /// The 32-byte digest of `data`.
    pub(super) fn digest(&self, data: &[u8]) -> [u8; 32] {
        let mut chain = self.chain;
        // The last block of the message, full or not, is processed apart: it carries a flag.
        let whole = data.len().saturating_sub(1) / 64;
        let (blocks, rest) = data.split_at(whole * 64);
        let mut position = 0;
        let mut first = FIRST;
        for block in blocks.as_chunks::<64>().0 {
            position += 64;
            compress(&mut chain, &words(block), position, TYPE_MESSAGE | first);
            first = 0;
        }
        let mut last = [0; 64];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        position += rest.len() as u64;
        compress(&mut chain, &words(&last), position, TYPE_MESSAGE | first | FINAL);
        compress(&mut chain, &[0; 8], 8, TYPE_OUTPUT | FIRST | FINAL);
        let mut digest = [0; 32];
        for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(chain) {
            *bytes = word.to_le_bytes();
        }
        digest
    }
}

#[inline]
fn words(block: &[u8; 64]) -> [u64; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// Four mixes of one Threefish round; the word permutation is in the order of the indices.
macro_rules! round {
    ($x:ident, [$($a:literal $b:literal $rotation:literal),*]) => {
        $(
            $x[$a] = $x[$a].wrapping_add($x[$b]);
            $x[$b] = $x[$b].rotate_left($rotation) ^ $x[$a];
        )*
    };
}

/// Adds subkey `number` of the schedule to the words. `number` must be made of literals: only then
/// is the schedule, which repeats after nine subkeys and three tweaks, resolved when compiling.
macro_rules! add_subkey {
    ($x:ident, $key:ident, $tweak:ident, $number:expr) => {
        $x[0] = $x[0].wrapping_add($key[$number % 9]);
        $x[1] = $x[1].wrapping_add($key[($number + 1) % 9]);
        $x[2] = $x[2].wrapping_add($key[($number + 2) % 9]);
        $x[3] = $x[3].wrapping_add($key[($number + 3) % 9]);
        $x[4] = $x[4].wrapping_add($key[($number + 4) % 9]);
        $x[5] = $x[5].wrapping_add($key[($number + 5) % 9]).wrapping_add($tweak[$number % 3]);
        $x[6] = $x[6].wrapping_add($key[($number + 6) % 9]).wrapping_add($tweak[($number + 1) % 3]);
        $x[7] = $x[7].wrapping_add($key[($number + 7) % 9]).wrapping_add($number);
    };
}

/// One unique-block iteration: Threefish-512 of `block` under the chaining value and the tweak
/// (`position`, `kind`), fed forward.
#[inline]
fn compress(chain: &mut [u64; 8], block: &[u64; 8], position: u64, kind: u64) {
    let mut key = [0; 9];
    key[..8].copy_from_slice(chain);
    key[8] = chain.iter().fold(KEY_PARITY, |parity, word| parity ^ word);
    let tweak = [position, kind, position ^ kind];

    let mut x = *block;
    macro_rules! eight_rounds {
        ($($subkey:literal)*) => {$(
            add_subkey!(x, key, tweak, $subkey);
            round!(x, [0 1 46, 2 3 36, 4 5 19, 6 7 37]);
            round!(x, [2 1 33, 4 7 27, 6 5 14, 0 3 42]);
            round!(x, [4 1 17, 6 3 49, 0 5 36, 2 7 39]);
            round!(x, [6 1 44, 0 7 9, 2 5 54, 4 3 56]);
            add_subkey!(x, key, tweak, $subkey + 1);
            round!(x, [0 1 39, 2 3 30, 4 5 34, 6 7 24]);
            round!(x, [2 1 13, 4 7 50, 6 5 10, 0 3 17]);
            round!(x, [4 1 25, 6 3 29, 0 5 39, 2 7 43]);
            round!(x, [6 1 8, 0 7 35, 2 5 56, 4 3 22]);
        )*};
    }
    eight_rounds!(0 2 4 6 8 10 12 14 16);
    add_subkey!(x, key, tweak, 18);
    for ((to, x), block) in chain.iter_mut().zip(x).zip(block) {
        *to = x ^ block;
    }
}
