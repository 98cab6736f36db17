//! The kernels in 32-byte registers, two of them a step.
//!
//! Invariant: called only on processors with AVX2.

use std::arch::x86_64::*;

use super::super::field::{self, REDUCTION};
use super::{Rows, STEP, define_accumulate, put_step, step_at};
use crate::simd;

type Step = [__m256i; 2];

#[inline]
#[target_feature(enable = "avx2")]
fn zero() -> Step {
    [_mm256_setzero_si256(); 2]
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; STEP]) -> Step {
    let mut step = zero();
    for (half, bytes) in step.iter_mut().zip(bytes.as_chunks::<{ STEP / 2 }>().0) {
        *half = simd::load(bytes);
    }
    step
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(step: Step) -> [u8; STEP] {
    let mut bytes = [0; STEP];
    for (bytes, half) in bytes.as_chunks_mut::<{ STEP / 2 }>().0.iter_mut().zip(step) {
        simd::store(bytes, half);
    }
    bytes
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(a: Step, b: Step) -> Step {
    [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "avx2")]
fn double(a: Step) -> Step {
    [double_half(a[0]), double_half(a[1])]
}

#[inline]
#[target_feature(enable = "avx2")]
fn double_half(a: __m256i) -> __m256i {
    // A byte whose top bit is set is negative as a signed number.
    let overflows = _mm256_cmpgt_epi8(_mm256_setzero_si256(), a);
    let reduction = _mm256_and_si256(overflows, _mm256_set1_epi8(REDUCTION as i8));
    _mm256_xor_si256(_mm256_add_epi8(a, a), reduction)
}

define_accumulate!(#[target_feature(enable = "avx2")]);

/// Adds `coefficient` times `from` to `to`: two table look-ups a byte, one for each half of it.
#[target_feature(enable = "avx2")]
pub(super) fn multiply_add(to: &mut [u8], coefficient: u8, from: &[u8]) {
    let low = products(coefficient, 0);
    let high = products(coefficient, 4);
    let nibble = _mm256_set1_epi8(0x0f);
    for offset in (0..to.len().min(from.len())).step_by(STEP) {
        let mut sum = load(&step_at(to, offset));
        let factor = load(&step_at(from, offset));
        for (sum, factor) in sum.iter_mut().zip(factor) {
            let low_half = _mm256_and_si256(factor, nibble);
            let high_half = _mm256_and_si256(_mm256_srli_epi64::<4>(factor), nibble);
            *sum = _mm256_xor_si256(*sum, _mm256_shuffle_epi8(low, low_half));
            *sum = _mm256_xor_si256(*sum, _mm256_shuffle_epi8(high, high_half));
        }
        put_step(to, offset, &store(sum));
    }
}

/// `coefficient` times each number from 0 to 15 shifted left by `shift`, in both halves.
#[target_feature(enable = "avx2")]
fn products(coefficient: u8, shift: u32) -> __m256i {
    let mut table = [0; 32];
    for (number, product) in table.iter_mut().enumerate() {
        *product = field::multiply(coefficient, (number as u8 % 16) << shift);
    }
    simd::load(&table)
}
