//! Edon-R-512 (the tweaked second-round SHA-3 candidate), as chapter 02, section 6.3 defines it.
//!
//! Invariant: `buffered` is less than a block; everything before it is in the state.

const BLOCK: usize = 128;

/// Edon-R-512 in progress.
#[derive(Clone)]
pub(super) struct Edonr {
    low: [u64; 8],
    high: [u64; 8],
    buffer: [u8; BLOCK],
    buffered: usize,
    length: u64,
}

impl Edonr {
    pub(super) fn new() -> Self {
        // The initial state is the byte sequence 0x80, 0x81, ... read big-endian.
        let word = |i: usize| {
            let first = 0x80 + 8 * i as u8;
            u64::from_be_bytes(std::array::from_fn(|byte| first + byte as u8))
        };
        Self {
            low: std::array::from_fn(word),
            high: std::array::from_fn(|i| word(i + 8)),
            buffer: [0; BLOCK],
            buffered: 0,
            length: 0,
        }
    }

    /// The state after the prefix K = H(salt) ‖ H(H(salt)) that makes the hash depend on the salt.
    pub(super) fn salted(salt: &[u8; 32]) -> Self {
        let once = Self::digest_512(salt);
        let twice = Self::digest_512(&once);
        let mut state = Self::new();
        state.update(&once);
        state.update(&twice);
        state
    }

    /// The whole 64-byte digest of `data`.
    pub(super) fn digest_512(data: &[u8]) -> [u8; 64] {
        let mut state = Self::new();
        state.update(data);
        state.finish_512()
    }

    pub(super) fn update(&mut self, mut data: &[u8]) {
        self.length = self.length.wrapping_add(data.len() as u64);
        if self.buffered > 0 {
            let take = data.len().min(BLOCK - self.buffered);
            let (head, rest) = data.split_at(take);
            self.keep(head);
            data = rest;
            if self.buffered < BLOCK {
                return;
            }
            let block = self.buffer;
            self.compress(&block);
            self.buffered = 0;
        }
        let (blocks, rest) = data.as_chunks::<BLOCK>();
        for block in blocks {
            self.compress(block);
        }
        self.keep(rest);
    }

    /// Puts `bytes`, for which there is room, behind those that wait for the rest of their block.
    fn keep(&mut self, bytes: &[u8]) {
        for (to, from) in self.buffer.iter_mut().skip(self.buffered).zip(bytes) {
            *to = *from;
        }
        self.buffered += bytes.len();
    }

    /// The first 32 bytes of the digest: the checksum.
    pub(super) fn finish_256(self) -> [u8; 32] {
        let digest = self.finish_512();
        let mut half = [0; 32];
        half.copy_from_slice(&digest[..32]);
        half
    }

    fn finish_512(mut self) -> [u8; 64] {
        let bits = self.length.wrapping_mul(8);
        let mut block = [0; BLOCK];
        let last = self.buffer.into_iter().take(self.buffered).chain([0x80]);
        for (to, from) in block.iter_mut().zip(last) {
            *to = from;
        }
        if self.buffered + 1 > BLOCK - 8 {
            self.compress(&block);
            block = [0; BLOCK];
        }
        block[BLOCK - 8..].copy_from_slice(&bits.to_le_bytes());
        self.compress(&block);
        let mut digest = [0; 64];
        for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(self.high) {
            *bytes = word.to_le_bytes();
        }
        digest
    }

    fn compress(&mut self, block: &[u8; BLOCK]) {
        let mut low = [0; 8];
        let mut high = [0; 8];
        let (words, _) = block.as_chunks::<8>();
        for (to, bytes) in low.iter_mut().chain(&mut high).zip(words) {
            *to = u64::from_le_bytes(*bytes);
        }
        let a = quasigroup(reversed(high), low);
        let b = quasigroup(a, high);
        let a = quasigroup(self.high, a);
        let b = quasigroup(a, b);
        let a = quasigroup(a, self.low);
        let b = quasigroup(b, a);
        let a = quasigroup(reversed(low), a);
        let b = quasigroup(a, b);
        feed_forward(&mut self.low, high, a);
        feed_forward(&mut self.high, low, b);
    }
}

#[inline(always)]
fn feed_forward(state: &mut [u64; 8], block: [u64; 8], mixed: [u64; 8]) {
    for ((state, block), mixed) in state.iter_mut().zip(block).zip(mixed) {
        *state ^= block ^ mixed;
    }
}

#[inline(always)]
fn reversed(mut words: [u64; 8]) -> [u64; 8] {
    words.reverse();
    words
}

/// The quasigroup operation: two linear transformations and their cross-wise combination.
#[inline(always)]
fn quasigroup(x: [u64; 8], y: [u64; 8]) -> [u64; 8] {
    // Sum of five words (and a constant), rotated.
    macro_rules! row {
        ($v:ident, $a:literal $b:literal $c:literal $d:literal $e:literal, $rotation:literal) => {
            row!($v, $a $b $c $d $e, $rotation, 0u64)
        };
        ($v:ident, $a:literal $b:literal $c:literal $d:literal $e:literal, $rotation:literal,
         $constant:expr) => {
            $constant
                .wrapping_add($v[$a])
                .wrapping_add($v[$b])
                .wrapping_add($v[$c])
                .wrapping_add($v[$d])
                .wrapping_add($v[$e])
                .rotate_left($rotation)
        };
    }
    let s = [
        row!(x, 0 1 2 4 7, 0, 0xaaaa_aaaa_aaaa_aaaa_u64),
        row!(x, 0 1 3 4 7, 5),
        row!(x, 0 1 4 6 7, 15),
        row!(x, 2 3 5 6 7, 22),
        row!(x, 1 2 3 5 6, 31),
        row!(x, 0 2 3 4 5, 40),
        row!(x, 0 1 5 6 7, 50),
        row!(x, 2 3 4 5 6, 59),
    ];
    let t = [
        row!(y, 0 1 2 5 7, 0, 0x5555_5555_5555_5555_u64),
        row!(y, 0 1 3 4 6, 10),
        row!(y, 0 1 2 3 5, 19),
        row!(y, 2 3 4 6 7, 29),
        row!(y, 0 1 3 4 5, 36),
        row!(y, 2 4 5 6 7, 44),
        row!(y, 1 2 5 6 7, 48),
        row!(y, 0 3 4 6 7, 55),
    ];
    [
        (s[0] ^ s[1] ^ s[4]).wrapping_add(t[0] ^ t[1] ^ t[5]),
        (s[0] ^ s[4] ^ s[7]).wrapping_add(t[2] ^ t[6] ^ t[7]),
        (s[1] ^ s[6] ^ s[7]).wrapping_add(t[0] ^ t[1] ^ t[3]),
        (s[2] ^ s[3] ^ s[4]).wrapping_add(t[0] ^ t[3] ^ t[4]),
        (s[0] ^ s[1] ^ s[7]).wrapping_add(t[1] ^ t[2] ^ t[5]),
        (s[3] ^ s[5] ^ s[6]).wrapping_add(t[3] ^ t[4] ^ t[6]),
        (s[2] ^ s[5] ^ s[6]).wrapping_add(t[2] ^ t[5] ^ t[7]),
        (s[2] ^ s[3] ^ s[5]).wrapping_add(t[4] ^ t[6] ^ t[7]),
    ]
}
