//! ZLE, zero-length encoding (chapter 02, section 7.4): a byte below 64 announces literals, a byte
//! from 64 up a run of zeros.
//!
//! Invariant: the compressor makes exactly the bytes the reference makes.

use super::DecompressError;

/// The parameter of the only variant in use: literal runs are at most this long.
const LITERAL_MAX: usize = 64;
const ZEROS_MAX: usize = 256 - LITERAL_MAX;

pub(super) fn decompress(source: &[u8], destination: &mut [u8]) -> Result<(), DecompressError> {
    let bad = |reason| DecompressError::new("zle", reason);
    let mut input = source;
    let mut out = &mut destination[..];
    while !out.is_empty() {
        let (&code, rest) =
            input.split_first().ok_or_else(|| bad("the input ends before the block does"))?;
        let code = usize::from(code);
        let (run, literal) =
            if code < LITERAL_MAX { (code + 1, true) } else { (code + 1 - LITERAL_MAX, false) };
        if run > out.len() {
            return Err(bad("a run reaches past the end of the block"));
        }
        let (now, later) = out.split_at_mut(run);
        if literal {
            let (bytes, rest) = rest
                .split_at_checked(run)
                .ok_or_else(|| bad("the input ends within a run of literals"))?;
            now.copy_from_slice(bytes);
            input = rest;
        } else {
            now.fill(0);
            input = rest;
        }
        out = later;
    }
    Ok(())
}

pub(super) fn compress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
    let limit = destination.len();
    let mut rest = source;
    let mut room = destination;
    while let Some(&byte) = rest.first() {
        // The reference gives up a little early, and so must we to store the same blocks: a run
        // is begun only with room for one more byte, a literal run only with room for the longest.
        let (code, behind) = room.split_first_mut()?;
        if behind.is_empty() {
            return None;
        }
        if byte == 0 {
            let run = rest.iter().take(ZEROS_MAX).take_while(|b| **b == 0).count();
            *code = (LITERAL_MAX - 1 + run) as u8;
            rest = rest.get(run..)?;
            room = behind;
        } else {
            if behind.len() < LITERAL_MAX {
                return None;
            }
            let (literals, later) = rest.split_at_checked(literal_run(rest))?;
            *code = (literals.len() - 1) as u8;
            let (place, behind) = behind.split_at_mut_checked(literals.len())?;
            place.copy_from_slice(literals);
            rest = later;
            room = behind;
        }
    }
    Some(limit - room.len())
}

/// Length of the literal run at the start of `bytes`, whose first is not zero: up to the first two
/// zeros in a row, and not ending in a zero at the end of the block or of the run.
fn literal_run(bytes: &[u8]) -> usize {
    let bytes = bytes.get(..LITERAL_MAX).unwrap_or(bytes);
    let mut pairs = bytes.iter().zip(bytes.iter().skip(1));
    match pairs.position(|(byte, next)| *byte == 0 && *next == 0) {
        Some(run) => run,
        None if bytes.ends_with(&[0]) => bytes.len() - 1,
        None => bytes.len(),
    }
}
