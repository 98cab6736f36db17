//! The small linear systems of reconstruction (chapter 03, section 3.5).
//!
//! Invariant: the matrix returned, applied to the contributions of the missing columns to the
//! chosen parity rows, gives those columns back.

use super::{MAX_PARITY, field};

/// One row of coefficients for each missing column; unused places are those of the identity.
pub(super) type Matrix = [[u8; MAX_PARITY]; MAX_PARITY];

/// A system of equations that is being solved: the coefficients to its left, those of the solution
/// to its right. What is not used of both is the identity, which leaves the rest alone.
type System = [[u8; 2 * MAX_PARITY]; MAX_PARITY];

const IDENTITY: System = [[1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1]];

/// The inverse of the coefficients of the `missing` columns (of `columns` data columns) in parity
/// rows `rows`. `None` if there are more than [`MAX_PARITY`], not equally many, or the matrix is
/// singular, which no supported width is.
pub(super) fn inverse(rows: &[usize], missing: &[usize], columns: usize) -> Option<Matrix> {
    let size = missing.len();
    if size > MAX_PARITY || rows.len() != size {
        return None;
    }
    let mut system = IDENTITY;
    for (equation, row) in system.iter_mut().zip(rows) {
        for (coefficient, index) in equation.iter_mut().zip(missing) {
            *coefficient = field::exp(row * (columns - 1 - index));
        }
    }
    // The equation and the unknown that are next stand first, and move to the end when done.
    for done in 0..size {
        let found = system.iter().take(size - done).position(|equation| equation[0] != 0)?;
        system.swap(0, found);
        let [pivot, others @ ..] = &mut system;
        let scale = field::invert(pivot[0]);
        for element in pivot.iter_mut() {
            *element = field::multiply(*element, scale);
        }
        for equation in others.iter_mut().filter(|equation| equation[0] != 0) {
            let factor = equation[0];
            for (element, from) in equation.iter_mut().zip(&*pivot) {
                *element ^= field::multiply(factor, *from);
            }
        }
        system = turned(system);
    }
    // Once those not used have moved as well, the solution stands where the coefficients were.
    for _ in size..MAX_PARITY {
        system = turned(system);
    }
    Some(system.map(|[a, b, c, ..]| [a, b, c]))
}

/// With the first equation and the first unknown moved to the end.
fn turned(system: System) -> System {
    let [first, second, third] = system.map(|[a, b, c, d, e, f]| [b, c, d, e, f, a]);
    [second, third, first]
}
