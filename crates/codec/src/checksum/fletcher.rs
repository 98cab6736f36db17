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
use crate::simd::dispatch_avx2;

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
    for pair in data.as_chunks::<16>().0 {
        let [x, y] = [&pair[..8], &pair[8..]].map(|half| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(half);
            word(bytes)
        });
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
        let (sums, rest) = match self.order {
            WordOrder::Little => wide_little(data),
            WordOrder::Big => wide_big(data),
        };
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

dispatch_avx2! {
    fn wide_little(data: &[u8]) -> (Words, &[u8]) { avx2: sum4_little::<8>, baseline: sum4_little::<4> }
}
dispatch_avx2! {
    fn wide_big(data: &[u8]) -> (Words, &[u8]) { avx2: sum4_big::<8>, baseline: sum4_big::<4> }
}

#[inline(always)]
fn sum4_little<const LANES: usize>(data: &[u8]) -> (Words, &[u8]) {
    sum4::<LANES>(data, u32::from_le_bytes)
}

#[inline(always)]
fn sum4_big<const LANES: usize>(data: &[u8]) -> (Words, &[u8]) {
    sum4::<LANES>(data, u32::from_be_bytes)
}

/// The sums of as many words as fill all lanes evenly, and the bytes left over.
#[inline(always)]
fn sum4<const LANES: usize>(data: &[u8], word: impl Fn([u8; 4]) -> u32) -> (Words, &[u8]) {
    let mut a = [0u64; LANES];
    let mut b = [0u64; LANES];
    let mut c = [0u64; LANES];
    let mut d = [0u64; LANES];
    let (words, _) = data.as_chunks::<4>();
    let (steps, _) = words.as_chunks::<LANES>();
    for step in steps {
        for lane in 0..LANES {
            a[lane] = a[lane].wrapping_add(u64::from(word(step[lane])));
        }
        for lane in 0..LANES {
            b[lane] = b[lane].wrapping_add(a[lane]);
        }
        for lane in 0..LANES {
            c[lane] = c[lane].wrapping_add(b[lane]);
        }
        for lane in 0..LANES {
            d[lane] = d[lane].wrapping_add(c[lane]);
        }
    }
    let mut sums = [0u64; 4];
    for lane in 0..LANES {
        let part = fold(LANES as i64, lane as i64, [a[lane], b[lane], c[lane], d[lane]]);
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum = sum.wrapping_add(part);
        }
    }
    (sums, &data[steps.len() * LANES * 4..])
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
