//! The loops over whole columns, in vector registers where the processor has AVX2 and in 64-bit
//! words elsewhere.
//!
//! Invariant: every loop takes [`STEP`] bytes at a time and treats a column that ends within a step
//! as followed by zeros; nothing is read or written beyond a slice.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

/// Bytes handled in one turn of a loop.
const STEP: usize = 64;

/// Where to put P, Q and R; `None` for a row that is not wanted.
pub(super) type Rows<'a> = [Option<&'a mut [u8]>; 3];

/// Calls the AVX2 version of a function where the processor has it, else the portable one.
macro_rules! choose {
    ($($function:tt)*) => {{
        #[cfg(target_arch = "x86_64")]
        if crate::simd::has_avx2() {
            // SAFETY: the processor has just been found to have AVX2, the only requirement of
            // this otherwise safe function.
            return unsafe { avx2::$($function)* };
        }
        portable::$($function)*
    }};
}

/// Computes the wanted parity rows of `columns`, overwriting them.
pub(super) fn accumulate(columns: &[&[u8]], rows: Rows<'_>) {
    choose!(accumulate(columns, rows))
}

/// Adds `from` to `to`, as far as both reach.
pub(super) fn add(to: &mut [u8], from: &[u8]) {
    // Simple enough for the compiler to make vectors of.
    for (to, from) in to.iter_mut().zip(from) {
        *to ^= from;
    }
}

/// Adds `coefficient` times `from` to `to`, as far as both reach.
pub(super) fn multiply_add(to: &mut [u8], coefficient: u8, from: &[u8]) {
    match coefficient {
        0 => {}
        1 => add(to, from),
        _ => choose!(multiply_add(to, coefficient, from)),
    }
}

/// The step of `column` at `offset`, or what there is of it and zeros.
#[inline(always)]
fn step_at(column: &[u8], offset: usize) -> [u8; STEP] {
    let rest = column.get(offset..).unwrap_or(&[]);
    match rest.first_chunk::<STEP>() {
        Some(step) => *step,
        None => {
            let mut step = [0; STEP];
            copy_part(&mut step, rest);
            step
        }
    }
}

/// Puts `step` at `offset` of `column`, as far as it reaches.
#[inline(always)]
fn put_step(column: &mut [u8], offset: usize, step: &[u8; STEP]) {
    let rest = column.get_mut(offset..).unwrap_or(&mut []);
    match rest.first_chunk_mut::<STEP>() {
        Some(whole) => *whole = *step,
        None => copy_part(rest, step),
    }
}

/// Copies as far as both reach: the end of a column. Kept out of the loops, which it would slow.
#[cold]
fn copy_part(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

/// Defines `accumulate`, given in the same module: a type `Step` for [`STEP`] bytes, and functions
/// `load`, `store`, `add` and `double` on it.
macro_rules! define_accumulate {
    ($(#[$feature:meta])?) => {
        /// Computes the wanted rows.
        $(#[$feature])?
        pub(in super::super) fn accumulate(columns: &[&[u8]], rows: Rows<'_>) {
            match rows {
                [None, None, None] => {}
                [Some(p), None, None] => rows_of::<true, false, false>(columns, p, &mut [], &mut []),
                [None, Some(q), None] => rows_of::<false, true, false>(columns, &mut [], q, &mut []),
                [None, None, Some(r)] => rows_of::<false, false, true>(columns, &mut [], &mut [], r),
                [Some(p), Some(q), None] => rows_of::<true, true, false>(columns, p, q, &mut []),
                [Some(p), None, Some(r)] => rows_of::<true, false, true>(columns, p, &mut [], r),
                [None, Some(q), Some(r)] => rows_of::<false, true, true>(columns, &mut [], q, r),
                [Some(p), Some(q), Some(r)] => rows_of::<true, true, true>(columns, p, q, r),
            }
        }

        $(#[$feature])?
        fn rows_of<const P: bool, const Q: bool, const R: bool>(
            columns: &[&[u8]],
            p: &mut [u8],
            q: &mut [u8],
            r: &mut [u8],
        ) {
            let height = p.len().max(q.len()).max(r.len());
            for offset in (0..height).step_by(STEP) {
                let mut sums = [zero(); 3];
                for column in columns {
                    let data = load(&step_at(column, offset));
                    if P {
                        sums[0] = add(sums[0], data);
                    }
                    if Q {
                        sums[1] = add(double(sums[1]), data);
                    }
                    if R {
                        sums[2] = add(double(double(sums[2])), data);
                    }
                }
                if P {
                    put_step(p, offset, &store(sums[0]));
                }
                if Q {
                    put_step(q, offset, &store(sums[1]));
                }
                if R {
                    put_step(r, offset, &store(sums[2]));
                }
            }
        }
    };
}
use define_accumulate;

#[cfg(test)]
pub(super) use portable::{
    accumulate as accumulate_portable, multiply_add as multiply_add_portable,
};
