//! How bytes that are wrong differ from those that are right, as reports of wrong checksums tell it.
//!
//! Chapter 08, section 27. Invariant: at most [`MOST_RANGES`] ranges, whatever the bytes are.

use std::ops::Range;

use cenote_format::nvlist::Value;

use crate::events::Members;

/// Most ranges that are told.
const MOST_RANGES: usize = 16;
/// Bytes that are compared together.
const WORD: usize = 8;
/// Bits are told of so many bytes.
const MOST_BYTES: usize = 128;

/// Members that tell where `bad` differs from `good`, and how; empty if it does not.
pub(super) fn members(bad: &[u8], good: &[u8]) -> Members {
    let (ranges, gap) = ranges(bad, good);
    if ranges.is_empty() {
        return Members::new();
    }
    let bytes = |range: &Range<usize>| {
        let pair = bad.get(range.clone()).zip(good.get(range.clone()));
        pair.into_iter().flat_map(|(bad, good)| bad.iter().zip(good))
    };
    let count = |of: fn(u8, u8) -> u8| -> Value {
        let ones = |range| bytes(range).map(|(bad, good)| of(*bad, *good).count_ones()).sum();
        Value::Uint32Array(ranges.iter().map(ones).collect())
    };
    let number = |place: usize| u32::try_from(place).unwrap_or(u32::MAX);
    let ends = ranges.iter().flat_map(|range| [number(range.start), number(range.end)]).collect();
    let mut members = vec![
        ("bad_ranges", Value::Uint32Array(ends)),
        ("bad_ranges_min_gap", Value::Uint32(number(gap))),
        ("bad_range_sets", count(set)),
        ("bad_range_clears", count(cleared)),
    ];
    if ranges.iter().map(Range::len).sum::<usize>() <= MOST_BYTES {
        let bits = |of: fn(u8, u8) -> u8| {
            let all = ranges.iter().flat_map(bytes);
            Value::Uint8Array(all.map(|(bad, good)| of(*bad, *good)).collect())
        };
        members.push(("bad_set_bits", bits(set)));
        members.push(("bad_cleared_bits", bits(cleared)));
    }
    members
}

/// Bits that are set and should not be.
fn set(bad: u8, good: u8) -> u8 {
    bad & !good
}

/// Bits that should be set and are not.
fn cleared(bad: u8, good: u8) -> u8 {
    good & !bad
}

/// The places that differ, and how many bytes at least lie between two of them.
fn ranges(bad: &[u8], good: &[u8]) -> (Vec<Range<usize>>, usize) {
    let length = bad.len().min(good.len());
    let words = bad.chunks(WORD).zip(good.chunks(WORD)).enumerate();
    let differ = words.filter(|(_, (bad, good))| bad != good).map(|(index, _)| index * WORD);
    let places: Vec<usize> = differ.collect();
    let mut gap = WORD;
    loop {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for &place in &places {
            let end = (place + WORD).min(length);
            match ranges.last_mut() {
                Some(last) if place.saturating_sub(last.end) < gap => last.end = end,
                _ => ranges.push(place..end),
            }
        }
        if ranges.len() <= MOST_RANGES {
            return (ranges, gap);
        }
        gap = gap.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_bits_are_told() {
        let good = [0x0f_u8; 4096];
        let mut bad = good;
        bad[3] = 0x1e;
        bad[100] = 0;
        let told = members(&bad, &good);
        let expected: Members = vec![
            ("bad_ranges", Value::Uint32Array(vec![0, 8, 96, 104])),
            ("bad_ranges_min_gap", Value::Uint32(8)),
            ("bad_range_sets", Value::Uint32Array(vec![1, 0])),
            ("bad_range_clears", Value::Uint32Array(vec![1, 4])),
        ];
        assert_eq!(told[..4], expected);
        let Value::Uint8Array(bits) = &told[4].1 else { panic!() };
        assert_eq!((bits.len(), bits[3], bits[12]), (16, 0x10, 0));
        assert!(members(&good, &good).is_empty());
    }

    #[test]
    fn many_places_are_joined() {
        let good = vec![0; 65536];
        let bad: Vec<u8> = (0..65536).map(|n| u8::from(n % 64 == 0)).collect();
        let (all, gap) = ranges(&bad, &good);
        assert_eq!((all.len(), gap), (1, 64));
    }
}
