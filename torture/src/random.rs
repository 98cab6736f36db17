//! Numbers that follow from a seed.
//!
//! Invariant: the same seed gives the same numbers on every machine.

/// A small generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    /// The next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit.max(1)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, part: u64) -> bool {
        self.below(100) < part
    }

    /// One of `all`, which is not empty.
    pub fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }
}

/// `length` bytes that follow from `seed`: such as hardly compress, or such as do.
pub fn bytes(length: usize, seed: u32, squeezable: bool) -> Vec<u8> {
    if squeezable {
        let byte =
            |at: usize| ((at as u64 / 37 + u64::from(seed)).wrapping_mul(0x9e37_79b9) >> 16) as u8;
        return (0..length).map(byte).collect();
    }
    let mut random = Random::new(u64::from(seed) << 20 | 1);
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        out.extend_from_slice(&random.number().to_le_bytes());
    }
    out.truncate(length);
    out
}
