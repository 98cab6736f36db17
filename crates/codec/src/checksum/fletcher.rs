//! Fletcher-2 and Fletcher-4: running sums of sums, modulo 2^64 (chapter 02, section 6.3).
//!
//! Fletcher-4 is a chain of dependent additions. To run wide, the words are dealt to independent
//! lanes and the lanes' sums are combined afterwards: a word that is `n`-th from the end counts
//! 1, n, n(n+1)/2 and n(n+1)(n+2)/6 times in the four sums, and with `L` lanes lane `i` sees it as
//! its own `w`-th from the end where n = L·w − i. Expanding gives the coefficients in [`fold`].
//!
//! Invariant: updating in pieces equals updating once, as long as every piece but the last is a
//! whole number of words (4 bytes for Fletcher-4, 16 for Fletcher-2). Trailing bytes that do not
//! fill a word are not summed; every block of the format is a multiple of 512 bytes.

use super::{WordOrder, Words};
#[cfg(target_arch = "x86_64")]
use crate::simd;

/// Fletcher-2 of `data`, whose words are in `order`.
pub fn fletcher2(data: &[u8], order: WordOrder) -> Words {
    let mut state = Fletcher2::new(order);
    state.update(data);
    state.words()
}

/// Fletcher-4 of `data`, whose words are in `order`.
pub fn fletcher4(data: &[u8], order: WordOrder) -> Words {
    let mut state = Fletcher4::new(order);
    state.update(data);
    state.words()
}

/// Fletcher-2 in progress.
#[derive(Clone, Debug)]
pub struct Fletcher2 {
    order: WordOrder,
    sums: Words,
}

impl Fletcher2 {
    /// Nothing summed yet; words are in `order`.
    pub fn new(order: WordOrder) -> Self {
        Self { order, sums: [0; 4] }
    }

    /// Adds `data`, a multiple of 16 bytes.
    pub fn update(&mut self, data: &[u8]) {
        self.sums = match self.order {
            WordOrder::Little => sum2(data, self.sums, u64::from_le_bytes),
            WordOrder::Big => sum2(data, self.sums, u64::from_be_bytes),
        };
    }

    /// The checksum of what was added so far.
    pub fn words(&self) -> Words {
        self.sums
    }
}

#[inline(always)]
fn sum2(data: &[u8], sums: Words, word: impl Fn([u8; 8]) -> u64) -> Words {
    let [mut a0, mut a1, mut b0, mut b1] = sums;
    for pair in data.as_chunks::<8>().0.as_chunks::<2>().0 {
        let (x, y) = (word(pair[0]), word(pair[1]));
        a0 = a0.wrapping_add(x);
        a1 = a1.wrapping_add(y);
        b0 = b0.wrapping_add(a0);
        b1 = b1.wrapping_add(a1);
    }
    [a0, a1, b0, b1]
}

/// Fletcher-4 in progress; also the running checksum of a send stream.
#[derive(Clone, Debug)]
pub struct Fletcher4 {
    order: WordOrder,
    sums: Words,
}

impl Fletcher4 {
    /// Nothing summed yet; words are in `order`.
    pub fn new(order: WordOrder) -> Self {
        Self { order, sums: [0; 4] }
    }

    /// Adds `data`, a multiple of 4 bytes.
    pub fn update(&mut self, data: &[u8]) {
        let (sums, rest) = wide(data, self.order);
        self.sums = append(self.sums, sums, ((data.len() - rest.len()) / 4) as u64);
        let [mut a, mut b, mut c, mut d] = self.sums;
        for bytes in rest.as_chunks::<4>().0 {
            let word = match self.order {
                WordOrder::Little => u32::from_le_bytes(*bytes),
                WordOrder::Big => u32::from_be_bytes(*bytes),
            };
            a = a.wrapping_add(u64::from(word));
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        }
        self.sums = [a, b, c, d];
    }

    /// The checksum of what was added so far.
    pub fn words(&self) -> Words {
        self.sums
    }
}

/// How many words are summed side by side.
const LANES: usize = 8;

/// The four sums of every lane.
type LaneSums = [[u64; LANES]; 4];

/// The sums of the words that fill all lanes evenly, and the bytes left over.
fn wide(data: &[u8], order: WordOrder) -> (Words, &[u8]) {
    let (steps, rest) = data.as_chunks::<{ 4 * LANES }>();
    let [a, b, c, d] = lane_sums(steps, order);
    let mut sums = [0u64; 4];
    for (lane, (((a, b), c), d)) in a.into_iter().zip(b).zip(c).zip(d).enumerate() {
        let part = fold(LANES as i64, lane as i64, [a, b, c, d]);
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum = sum.wrapping_add(part);
        }
    }
    (sums, rest)
}

fn lane_sums(steps: &[[u8; 4 * LANES]], order: WordOrder) -> LaneSums {
    #[cfg(target_arch = "x86_64")]
    if simd::has_avx2() {
        // SAFETY: the processor has just been found to have AVX2, the only requirement of these
        // otherwise safe functions.
        return unsafe { lane_sums_avx2(steps, order) };
    }
    lane_sums_portable(steps, order)
}

/// With the eight lanes in two vectors: lanes 0, 2, 4, 6 in one, 1, 3, 5, 7 in the other.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn lane_sums_avx2(steps: &[[u8; 4 * LANES]], order: WordOrder) -> LaneSums {
    use std::arch::x86_64::*;
    let low_half = _mm256_set1_epi64x(0xffff_ffff);
    // Reverses the bytes of every word for big-endian blocks, else leaves them.
    let shuffle = match order {
        WordOrder::Little => _mm256_set_epi64x(
            0x0f0e_0d0c_0b0a_0908,
            0x0706_0504_0302_0100,
            0x0f0e_0d0c_0b0a_0908,
            0x0706_0504_0302_0100,
        ),
        WordOrder::Big => _mm256_set_epi64x(
            0x0c0d_0e0f_0809_0a0b,
            0x0405_0607_0001_0203,
            0x0c0d_0e0f_0809_0a0b,
            0x0405_0607_0001_0203,
        ),
    };
    let mut even = [_mm256_setzero_si256(); 4];
    let mut odd = [_mm256_setzero_si256(); 4];
    for step in steps {
        let words = _mm256_shuffle_epi8(simd::load(step), shuffle);
        let mut lower = [_mm256_and_si256(words, low_half), _mm256_srli_epi64::<32>(words)];
        for (even, odd) in even.iter_mut().zip(&mut odd) {
            *even = _mm256_add_epi64(*even, lower[0]);
            *odd = _mm256_add_epi64(*odd, lower[1]);
            lower = [*even, *odd];
        }
    }
    let mut sums = [[0; LANES]; 4];
    for (sums, (even, odd)) in sums.iter_mut().zip(even.into_iter().zip(odd)) {
        let pairs = simd::words(even).into_iter().zip(simd::words(odd));
        for (to, (even, odd)) in sums.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
            *to = [even, odd];
        }
    }
    sums
}

fn lane_sums_portable(steps: &[[u8; 4 * LANES]], order: WordOrder) -> LaneSums {
    match order {
        WordOrder::Little => lane_sums_of(steps, u32::from_le_bytes),
        WordOrder::Big => lane_sums_of(steps, u32::from_be_bytes),
    }
}

#[inline(always)]
fn lane_sums_of(steps: &[[u8; 4 * LANES]], word: impl Fn([u8; 4]) -> u32) -> LaneSums {
    let mut sums = [[0u64; LANES]; 4];
    for step in steps {
        let mut lower = [0; LANES];
        for (to, bytes) in lower.iter_mut().zip(step.as_chunks::<4>().0) {
            *to = u64::from(word(*bytes));
        }
        for level in &mut sums {
            for (sum, lower) in level.iter_mut().zip(&mut lower) {
                *sum = sum.wrapping_add(*lower);
                *lower = *sum;
            }
        }
    }
    sums
}

/// What the four sums of one lane contribute to the four sums of the whole.
#[inline]
fn fold(lanes: i64, lane: i64, [a, b, c, d]: Words) -> Words {
    let (l, i) = (lanes, lane);
    let times = |coefficient: i64, sum: u64| (coefficient as u64).wrapping_mul(sum);
    let sum = |terms: &[u64]| terms.iter().fold(0u64, |total, term| total.wrapping_add(*term));
    [
        a,
        sum(&[times(l, b), times(-i, a)]),
        sum(&[times(l * l, c), times(-(l * (l + 2 * i - 1) / 2), b), times(i * (i - 1) / 2, a)]),
        sum(&[
            times(l * l * l, d),
            times(-(l * l * l) + l * l * (1 - i), c),
            times((l * l * l - 3 * l * l * (1 - i) + l * (3 * i * i - 6 * i + 2)) / 6, b),
            times(-(i * (i - 1) * (i - 2) / 6), a),
        ]),
    ]
}

/// The sums of a first part followed by a second part of `count` words.
fn append(first: Words, second: Words, count: u64) -> Words {
    let [a, b, c, d] = first;
    let n = u128::from(count);
    let once = count;
    let twice = (n * (n + 1) / 2) as u64;
    // Below 2^126 for any slice under 16 TiB.
    let thrice = (n * (n + 1) / 2).wrapping_mul(n + 2) / 3;
    let thrice = thrice as u64;
    [
        second[0].wrapping_add(a),
        second[1].wrapping_add(b).wrapping_add(once.wrapping_mul(a)),
        second[2]
            .wrapping_add(c)
            .wrapping_add(once.wrapping_mul(b))
            .wrapping_add(twice.wrapping_mul(a)),
        second[3]
            .wrapping_add(d)
            .wrapping_add(once.wrapping_mul(c))
            .wrapping_add(twice.wrapping_mul(b))
            .wrapping_add(thrice.wrapping_mul(a)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_and_vector_lanes_agree() {
        let data: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
        let (steps, _) = data.as_chunks();
        for order in [WordOrder::Little, WordOrder::Big] {
            assert_eq!(lane_sums(steps, order), lane_sums_portable(steps, order));
        }
    }
}
