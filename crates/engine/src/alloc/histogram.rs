//! Histograms of free segments, and what they tell of fragmentation.
//!
//! Chapter 03, section 9.4. Invariant: sums never wrap, whatever a histogram from disk claims.

use cenote_format::space_map::BUCKETS;

/// How fragmented free segments of 512 bytes, 1 KiB, 2 KiB, ... 16 MiB and more are, in percent.
const FRAGMENTATION: [u64; 16] = [100, 100, 98, 95, 90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 5, 0];

/// Free segments of so many bytes are long enough for every block, or for pieces of which each header has many.
const LONG: u32 = 20;

/// Number of free segments by log2 of their size in units.
pub(crate) type Histogram = [u64; BUCKETS];

/// Counts a free segment of `length` bytes where units are `1 << shift` bytes.
pub(super) fn count(histogram: &mut Histogram, length: u64, shift: u32) {
    let units = length >> shift;
    let Some(log) = units.checked_ilog2() else { return };
    let last = BUCKETS - 1;
    // What is too large for the last bucket counts there as many times as it holds its size.
    let (bucket, number) = match usize::try_from(log) {
        Ok(bucket) if bucket < last => (bucket, 1),
        _ => (last, units >> last),
    };
    if let Some(slot) = histogram.get_mut(bucket) {
        *slot = slot.saturating_add(number);
    }
}

/// A size in bytes that the largest free segment is likely to have at least; 0 if none is counted.
pub(super) fn largest(histogram: &Histogram, shift: u32) -> u64 {
    let bucket = histogram.iter().rposition(|count| *count > 0);
    bucket.map_or(0, |bucket| {
        let log = shift.saturating_add(u32::try_from(bucket).unwrap_or(0));
        1 << log.min(62)
    })
}

/// Fragmentation of a metaslab from its histogram, in percent.
pub(crate) fn fragmentation_percent(histogram: &[u64], shift: u32) -> u64 {
    let (mut weighted, mut total) = (0u128, 0u128);
    for (bucket, count) in histogram.iter().enumerate() {
        let log = shift.saturating_add(u32::try_from(bucket).unwrap_or(0));
        let space = u128::from(*count) << log.min(60);
        let index = usize::try_from(log.saturating_sub(9)).unwrap_or(usize::MAX);
        let index = index.min(FRAGMENTATION.len() - 1);
        let weight = u128::from(FRAGMENTATION.get(index).copied().unwrap_or(0));
        weighted = weighted.saturating_add(space.saturating_mul(weight));
        total = total.saturating_add(space);
    }
    u64::try_from(weighted.checked_div(total).unwrap_or(0)).unwrap_or(100)
}

/// Bytes in free segments, about, and how many of these it takes to name the pieces if blocks that are too large for
/// them fill them: a header of a gang takes `header` bytes.
///
/// Three quarters of a header come to each piece, with one copy more than the piece has at most. Pieces are even parts
/// of a block, so they seldom fill more than half of a segment that has room for two.
pub(super) fn taken_by_gangs(histogram: &Histogram, shift: u32, header: u64) -> (u128, u128) {
    let (mut bytes, mut taken) = (0_u128, 0_u128);
    for (bucket, count) in (0_u32..).zip(histogram) {
        let log = shift.saturating_add(bucket).min(60);
        let space = u128::from(*count) << log;
        bytes = bytes.saturating_add(space);
        if log < LONG && *count > 0 {
            let piece = (1_u64 << log >> 1).max(header);
            let (named, names) = (2 * u128::from(piece), 3 * u128::from(header));
            let share = space.saturating_mul(names).checked_div(named.saturating_add(names));
            taken = taken.saturating_add(share.unwrap_or(0));
        }
    }
    (bytes, taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gangs_take_more_the_shorter_free_segments_are() {
        let alone = |bucket: usize| {
            let mut buckets = [0; BUCKETS];
            buckets[bucket] = 1000;
            let (bytes, taken) = taken_by_gangs(&buckets, 12, 4096);
            taken * 100 / bytes
        };
        assert_eq!([0, 1, 2, 3, 5, 7, 8, 20].map(alone), [60, 60, 42, 27, 8, 2, 0, 0]);
        assert_eq!(taken_by_gangs(&[0; BUCKETS], 12, 4096), (0, 0));
        let (bytes, taken) = taken_by_gangs(&[u64::MAX; BUCKETS], 63, u64::MAX);
        assert!(taken <= bytes);
    }

    #[test]
    fn histograms_weigh_by_bytes() {
        let mut buckets = [0; 32];
        assert_eq!(fragmentation_percent(&buckets, 9), 0);
        buckets[15] = 1;
        assert_eq!(fragmentation_percent(&buckets, 9), 0);
        buckets = [0; 32];
        buckets[0] = 8;
        buckets[3] = 1;
        assert_eq!(fragmentation_percent(&buckets, 9), (100 + 95) / 2);
        buckets[31] = u64::MAX;
        assert_eq!(fragmentation_percent(&buckets, 63), 0);
    }

    #[test]
    fn segments_fall_into_their_bucket() {
        let mut histogram = [0; BUCKETS];
        for length in [4096, 8191, 8192, 1 << 20, 0, 512] {
            count(&mut histogram, length, 12);
        }
        assert_eq!((histogram[0], histogram[1], histogram[8]), (2, 1, 1));
        assert_eq!(histogram.iter().sum::<u64>(), 4);
        count(&mut histogram, 5 << 40, 9);
        assert_eq!(histogram[31], 5);
        assert_eq!(largest(&histogram, 12), 1 << 43);
        assert_eq!(largest(&[0; BUCKETS], 9), 0);
    }
}
