//! LZJB (chapter 02, section 7.3): a map byte tells for each of the next eight items whether it is
//! a literal byte or a copy of 3 to 66 bytes from up to 1023 bytes back.
//!
//! Invariant: the compressor makes exactly the bytes the reference makes, which dedup and no-op
//! writes compare.

use super::DecompressError;

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
const OFFSET_MASK: usize = 1023;
/// A map byte and eight copies: the most one turn writes.
const TURN_MAX: usize = 17;

pub(super) fn decompress(source: &[u8], destination: &mut [u8]) -> Result<(), DecompressError> {
    let bad = |reason| DecompressError::new("lzjb", reason);
    let short = || bad("the input ends before the block does");
    let mut input = source.iter().copied();
    let mut out = 0;
    while out < destination.len() {
        let map = input.next().ok_or_else(short)?;
        for bit in 0..8 {
            if out == destination.len() {
                break;
            }
            let first = input.next().ok_or_else(short)?;
            if map & (1 << bit) == 0 {
                destination[out] = first;
                out += 1;
                continue;
            }
            let second = input.next().ok_or_else(short)?;
            let length = usize::from(first >> 2) + MATCH_MIN;
            let offset = usize::from(first & 3) << 8 | usize::from(second);
            let from =
                out.checked_sub(offset).ok_or_else(|| bad("a copy from before the block"))?;
            if offset == 0 {
                return Err(bad("a copy from itself"));
            }
            // The last copy may reach past the end of the block; the rest of it is dropped.
            let end = (out + length).min(destination.len());
            if offset >= end - out {
                destination.copy_within(from..from + (end - out), out);
            } else {
                for i in out..end {
                    destination[i] = destination[i - offset];
                }
            }
            out = end;
        }
    }
    Ok(())
}

pub(super) fn compress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
    // Positions are kept modulo 2^16, which is enough for the ten bits of an offset.
    let mut seen = [0u16; OFFSET_MASK + 1];
    let mut at = 0;
    let mut out = 0;
    let mut map_at = 0;
    let mut map_bit = 8;
    let last_match_start = source.len().checked_sub(MATCH_MAX);
    while at < source.len() {
        if map_bit == 8 {
            if out >= destination.len().checked_sub(TURN_MAX)? {
                return None;
            }
            map_bit = 0;
            map_at = out;
            destination[out] = 0;
            out += 1;
        }
        let bit = 1 << map_bit;
        map_bit += 1;
        let copy = last_match_start
            .filter(|last| at <= *last)
            .and_then(|_| find_match(source, at, &mut seen));
        match copy {
            Some((offset, length)) => {
                destination[map_at] |= bit;
                destination[out] = ((length - MATCH_MIN) << 2 | offset >> 8) as u8;
                destination[out + 1] = (offset & 0xff) as u8;
                out += 2;
                at += length;
            }
            None => {
                destination[out] = source[at];
                out += 1;
                at += 1;
            }
        }
    }
    Some(out)
}

/// Offset and length of the copy to emit at `at`, at least [`MATCH_MAX`] bytes before the end.
fn find_match(
    source: &[u8],
    at: usize,
    seen: &mut [u16; OFFSET_MASK + 1],
) -> Option<(usize, usize)> {
    let here = &source[at..at + MATCH_MAX];
    let mut hash = usize::from(here[0]) << 16 | usize::from(here[1]) << 8 | usize::from(here[2]);
    hash += hash >> 9;
    hash += hash >> 5;
    let slot = &mut seen[hash & OFFSET_MASK];
    let offset = at.wrapping_sub(usize::from(*slot)) & OFFSET_MASK;
    *slot = at as u16;
    let from = at.checked_sub(offset).filter(|_| offset != 0)?;
    let length = source[from..].iter().zip(here).take_while(|(a, b)| a == b).count();
    (length >= MATCH_MIN).then_some((offset, length))
}
