//! Histograms of free segments, and what they tell of fragmentation.
//!
//! Chapter 03, section 9.4. Invariant: sums never wrap, whatever a histogram from disk claims.

use cenote_format::space_map::BUCKETS;

/// How fragmented free segments of 512 bytes, 1 KiB, 2 KiB, ... 16 MiB and more are, in percent.
const FRAGMENTATION: [u64; 16] = [100, 100, 98, 95, 90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 5, 0];

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

#[cfg(test)]
mod tests {
    use super::*;

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
