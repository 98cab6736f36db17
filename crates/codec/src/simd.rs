//! The processor's vector unit: asking for it, and moving bytes in and out of its registers.
//!
//! Invariant: only the functions of this file read or write memory through vector instructions,
//! and they take references to whole registers' worth of bytes; the callers compute on values.

use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};

/// Whether the processor has AVX2. The answer is cached by the standard library.
#[inline]
pub(crate) fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

/// Loads 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is valid for 32 bytes, and this load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Stores 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn store(bytes: &mut [u8; 32], vector: __m256i) {
    // SAFETY: the reference is valid and exclusive for 32 bytes, and this store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}

/// The four 64-bit numbers of a register, lowest first.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn words(vector: __m256i) -> [u64; 4] {
    let mut bytes = [0; 32];
    store(&mut bytes, vector);
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}
