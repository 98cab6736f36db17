//! The kernels in 64-bit words, eight bytes side by side in each.
//!
//! Invariant: bytes never carry into one another.

use super::super::field::REDUCTION;
use super::{Rows, STEP, define_accumulate, put_step, step_at};

type Step = [u64; STEP / 8];

const LOW_BITS: u64 = 0x0101_0101_0101_0101;

#[inline(always)]
fn zero() -> Step {
    [0; STEP / 8]
}

#[inline(always)]
fn load(bytes: &[u8; STEP]) -> Step {
    let mut step = zero();
    for (word, bytes) in step.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    step
}

#[inline(always)]
fn store(step: Step) -> [u8; STEP] {
    let mut bytes = [0; STEP];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(step) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

#[inline(always)]
fn add(mut a: Step, b: Step) -> Step {
    for (a, b) in a.iter_mut().zip(b) {
        *a ^= b;
    }
    a
}

#[inline(always)]
fn double(mut a: Step) -> Step {
    for word in &mut a {
        let overflow = (*word >> 7) & LOW_BITS;
        *word = ((*word << 1) & !LOW_BITS) ^ (overflow * u64::from(REDUCTION));
    }
    a
}

define_accumulate!();

/// Adds `coefficient` times `from` to `to`: the sum of the doublings its bits select.
pub(in super::super) fn multiply_add(to: &mut [u8], coefficient: u8, from: &[u8]) {
    for offset in (0..to.len().min(from.len())).step_by(STEP) {
        let mut sum = load(&step_at(to, offset));
        let mut power = load(&step_at(from, offset));
        for bit in 0..8 {
            if coefficient & (1 << bit) != 0 {
                sum = add(sum, power);
            }
            power = double(power);
        }
        put_step(to, offset, &store(sum));
    }
}
