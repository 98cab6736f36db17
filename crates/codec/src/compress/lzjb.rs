//! LZJB (chapter 02, section 7.3): a map byte tells for each of the next eight items whether it is
//! a literal byte or a copy of 3 to 66 bytes from up to 1023 bytes back.
//!
//! Invariant: the compressor makes exactly the bytes the reference makes, which dedup and no-op
//! writes compare.

use std::cell::Cell;

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
            let Some(place) = destination.get_mut(out) else { break };
            let first = input.next().ok_or_else(short)?;
            if map & (1 << bit) == 0 {
                *place = first;
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
                repeat(destination.get_mut(from..end).unwrap_or_default(), offset);
            }
            out = end;
        }
    }
    Ok(())
}

/// Fills `bytes` beyond the first `period` with repetitions of those.
fn repeat(bytes: &mut [u8], period: usize) {
    let bytes = Cell::from_mut(bytes).as_slice_of_cells();
    let later = bytes.get(period..).unwrap_or_default();
    for (to, from) in later.iter().zip(bytes) {
        to.set(from.get());
    }
}

pub(super) fn compress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
    // Positions are kept modulo 2^16, which is enough for the ten bits of an offset.
    let mut seen = [0u16; OFFSET_MASK + 1];
    let mut at = 0;
    let mut out = 0;
    while at < source.len() {
        if out >= destination.len().checked_sub(TURN_MAX)? {
            return None;
        }
        let turn = destination.get_mut(out..)?.first_chunk_mut::<TURN_MAX>()?;
        let mut places = turn.iter_mut();
        let place_of_map = places.next()?;
        let mut map = 0;
        for bit in 0..8 {
            let here = source.get(at..)?;
            let Some(&literal) = here.first() else { break };
            let copy = here.first_chunk().and_then(|here| find_match(source, at, here, &mut seen));
            match copy {
                Some((offset, length)) => {
                    map |= 1 << bit;
                    *places.next()? = ((length - MATCH_MIN) << 2 | offset >> 8) as u8;
                    *places.next()? = (offset & 0xff) as u8;
                    at += length;
                }
                None => {
                    *places.next()? = literal;
                    at += 1;
                }
            }
        }
        out += TURN_MAX - places.len();
        *place_of_map = map;
    }
    Some(out)
}

/// Offset and length of the copy to emit at `at`, where `here` begins. In the last bytes of the block,
/// where the longest would not fit, none begins.
fn find_match(
    source: &[u8],
    at: usize,
    here: &[u8; MATCH_MAX],
    seen: &mut [u16; OFFSET_MASK + 1],
) -> Option<(usize, usize)> {
    let mut hash = usize::from(here[0]) << 16 | usize::from(here[1]) << 8 | usize::from(here[2]);
    hash += hash >> 9;
    hash += hash >> 5;
    let slot = seen.get_mut(hash & OFFSET_MASK)?;
    let offset = at.wrapping_sub(usize::from(*slot)) & OFFSET_MASK;
    *slot = at as u16;
    let from = at.checked_sub(offset).filter(|_| offset != 0)?;
    let there = source.get(from..)?.first_chunk::<MATCH_MAX>()?;
    let length = there.iter().zip(here).take_while(|(a, b)| a == b).count();
    (length >= MATCH_MIN).then_some((offset, length))
}
