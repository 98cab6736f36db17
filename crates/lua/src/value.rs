//! Values, and the strings among them.
//!
//! Invariant: every byte of a string that lives is counted by the [`Meter`] it was made with, once, however many
//! values share it.

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// Bytes that are in use.
#[derive(Clone, Default)]
pub struct Meter(Rc<Cell<usize>>);

impl Meter {
    /// All that is in use.
    pub fn used(&self) -> usize {
        self.0.get()
    }

    /// So many more are in use.
    pub fn add(&self, bytes: usize) {
        self.0.set(self.0.get().saturating_add(bytes));
    }

    /// So many are in use no more.
    pub fn sub(&self, bytes: usize) {
        self.0.set(self.0.get().saturating_sub(bytes));
    }
}

/// What a string costs beside its bytes.
pub const STRING_COST: usize = 32;

struct Text {
    bytes: Box<[u8]>,
    meter: Meter,
}

impl Drop for Text {
    fn drop(&mut self) {
        self.meter.sub(self.bytes.len() + STRING_COST);
    }
}

/// A string of bytes, shared.
#[derive(Clone)]
pub struct Str(Rc<Text>);

impl Str {
    /// A string that `meter` counts.
    pub fn new(bytes: impl Into<Box<[u8]>>, meter: &Meter) -> Self {
        let bytes = bytes.into();
        meter.add(bytes.len() + STRING_COST);
        Self(Rc::new(Text { bytes, meter: meter.clone() }))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// Its bytes as text, with a replacement for what is none.
    pub fn lossy(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

impl PartialEq for Str {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0) || self.bytes() == other.bytes()
    }
}

impl Eq for Str {}

impl Hash for Str {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl fmt::Debug for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.lossy())
    }
}

/// Which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableId(pub(crate) u32);

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionId(pub(crate) u32);

/// Which coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(pub(crate) u32);

/// Which variable that functions share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CellId(pub(crate) u32);

/// A value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// No value.
    Nil,
    /// Truth.
    Bool(bool),
    /// A number: they all are whole.
    Int(i64),
    /// A string of bytes.
    Str(Str),
    /// A table.
    Table(TableId),
    /// A function.
    Function(FunctionId),
    /// A coroutine.
    Thread(ThreadId),
    /// In the place of a variable that functions share; no program sees it.
    #[doc(hidden)]
    Cell(CellId),
}

impl Value {
    /// Neither nil nor false.
    pub fn is_true(&self) -> bool {
        !matches!(self, Self::Nil | Self::Bool(false))
    }

    /// Nil.
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    /// What `type` says of it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Nil | Self::Cell(_) => "nil",
            Self::Bool(_) => "boolean",
            Self::Int(_) => "number",
            Self::Str(_) => "string",
            Self::Table(_) => "table",
            Self::Function(_) => "function",
            Self::Thread(_) => "thread",
        }
    }

    /// The number it is or, as a string, spells.
    pub fn to_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Str(text) => parse_number(text.bytes()),
            _ => None,
        }
    }
}

/// The number that a text spells: decimal, or hexadecimal after `0x`; digits too many wrap around.
pub fn parse_number(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii();
    let (negative, digits) = sign(text);
    let magnitude = match digits {
        [b'0', b'x' | b'X', hex @ ..] => parse_digits(hex, 16)?,
        _ => parse_digits(digits, 10)?,
    };
    Some(if negative { magnitude.wrapping_neg() } else { magnitude })
}

/// The number that a text spells in a base from 2 to 36.
pub fn parse_in_base(text: &[u8], base: u32) -> Option<i64> {
    let (negative, digits) = sign(text.trim_ascii());
    let magnitude = parse_digits(digits, base)?;
    Some(if negative { magnitude.wrapping_neg() } else { magnitude })
}

fn sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    }
}

fn parse_digits(digits: &[u8], base: u32) -> Option<i64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_i64, |number, digit| {
        let digit = char::from(*digit).to_digit(base)?;
        Some(number.wrapping_mul(base.into()).wrapping_add(digit.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_around_and_nothing_else_is_one() {
        let parse = |text: &str| parse_number(text.as_bytes());
        assert_eq!(parse(" -012 "), Some(-12));
        assert_eq!(parse("0x10"), Some(16));
        assert_eq!(parse("18446744073709551615"), Some(-1));
        for wrong in ["", "1.0", "1e1", "0x", "- 1", "1 a", "inf"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(parse_in_base(b" -1z ", 36), Some(-71));
    }

    #[test]
    fn strings_are_counted_while_they_live() {
        let meter = Meter::default();
        let text = Str::new(*b"hello", &meter);
        let other = text.clone();
        drop(text);
        assert_eq!(meter.used(), 5 + STRING_COST);
        drop(other);
        assert_eq!(meter.used(), 0);
    }
}
