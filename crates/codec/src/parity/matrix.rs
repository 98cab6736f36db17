//! The small linear systems of reconstruction (chapter 03, section 3.5).
//!
//! Invariant: the matrix returned, applied to the contributions of the missing columns to the
//! chosen parity rows, gives those columns back.

use super::{MAX_PARITY, field};

/// One row of coefficients for each missing column; unused places are zero.
pub(super) type Matrix = [[u8; MAX_PARITY]; MAX_PARITY];

/// The inverse of the coefficients of the `missing` columns (of `columns` data columns) in parity
/// rows `rows`. `None` if there are more than [`MAX_PARITY`], not equally many, or the matrix is
/// singular, which no supported width is.
pub(super) fn inverse(rows: &[usize], missing: &[usize], columns: usize) -> Option<Matrix> {
    let size = missing.len();
    if size > MAX_PARITY || rows.len() != size {
        return None;
    }
    let mut left: Matrix = [[0; MAX_PARITY]; MAX_PARITY];
    let mut right: Matrix = [[0; MAX_PARITY]; MAX_PARITY];
    for (r, row) in rows.iter().enumerate() {
        for (m, index) in missing.iter().enumerate() {
            left[r][m] = field::exp(row * (columns - 1 - index));
        }
        right[r][r] = 1;
    }
    for pivot in 0..size {
        let found = (pivot..size).find(|row| left[*row][pivot] != 0)?;
        left.swap(pivot, found);
        right.swap(pivot, found);
        let scale = field::invert(left[pivot][pivot]);
        for matrix in [&mut left, &mut right] {
            for element in &mut matrix[pivot] {
                *element = field::multiply(*element, scale);
            }
        }
        for row in (0..size).filter(|row| *row != pivot) {
            let factor = left[row][pivot];
            for matrix in [&mut left, &mut right] {
                let from = matrix[pivot];
                for (element, from) in matrix[row].iter_mut().zip(from) {
                    *element ^= field::multiply(factor, from);
                }
            }
        }
    }
    Some(right)
}
