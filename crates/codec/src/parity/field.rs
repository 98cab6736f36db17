//! Arithmetic of single elements of GF(2^8) modulo x^8+x^4+x^3+x^2+1, in which 2 generates all
//! elements but zero.
//!
//! Invariant: for x ≠ 0, `exp(log(x)) == x`, and the logarithm of x is below [`POWERS`]; the table
//! of powers is long enough for the sum of two logarithms.

/// What x^8 reduces to.
pub(super) const REDUCTION: u8 = 0x1d;

/// How many elements are not zero: after so many powers of 2 they repeat.
const POWERS: usize = 255;

#[expect(clippy::indexing_slicing, reason = "computed when compiling, where a panic is an error")]
const TABLES: ([u8; 2 * POWERS], [u8; 256]) = {
    let mut exp = [0; 2 * POWERS];
    let mut log = [0; 256];
    let mut element = 1u8;
    let mut power = 0;
    while power < POWERS {
        exp[power] = element;
        exp[power + POWERS] = element;
        log[element as usize] = power as u8;
        element = double(element);
        power += 1;
    }
    (exp, log)
};

/// Twice `element`.
pub(super) const fn double(element: u8) -> u8 {
    (element << 1) ^ if element & 0x80 != 0 { REDUCTION } else { 0 }
}

/// 2 to the given power.
#[expect(clippy::indexing_slicing, reason = "the remainder is below the length of the table")]
pub(super) fn exp(power: usize) -> u8 {
    TABLES.0[power % POWERS]
}

/// The power of 2 that `element`, which is not zero, is.
#[expect(clippy::indexing_slicing, reason = "the table has an entry for each byte")]
fn log(element: u8) -> usize {
    usize::from(TABLES.1[usize::from(element)])
}

#[expect(clippy::indexing_slicing, reason = "two logarithms make an index of the table")]
pub(super) fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.0[log(a) + log(b)]
}

/// The inverse of `element`, which is not zero.
pub(super) fn invert(element: u8) -> u8 {
    exp(POWERS - log(element))
}
