//! Arithmetic of single elements of GF(2^8) modulo x^8+x^4+x^3+x^2+1, in which 2 generates all
//! elements but zero.
//!
//! Invariant: for x ≠ 0, `EXP[LOG[x]] == x`; `EXP` is long enough for the sum of two logarithms.

/// What x^8 reduces to.
pub(super) const REDUCTION: u8 = 0x1d;

const TABLES: ([u8; 510], [u8; 256]) = {
    let mut exp = [0; 510];
    let mut log = [0; 256];
    let mut element = 1u8;
    let mut power = 0;
    while power < 255 {
        exp[power] = element;
        exp[power + 255] = element;
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
pub(super) fn exp(power: usize) -> u8 {
    TABLES.0[power % 255]
}

pub(super) fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let log = |element: u8| usize::from(TABLES.1[usize::from(element)]);
    TABLES.0[log(a) + log(b)]
}

/// The inverse of `element`, which is not zero.
pub(super) fn invert(element: u8) -> u8 {
    TABLES.0[255 - usize::from(TABLES.1[usize::from(element)])]
}
