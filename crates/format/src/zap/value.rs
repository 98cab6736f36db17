//! The value of a ZAP entry.
//!
//! Invariant: the bytes are a whole number of big-endian integers of the stated size.

use smallvec::SmallVec;

use crate::{Error, Result};

/// An array of integers of 1, 2, 4 or 8 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    integer_size: u8,
    raw: SmallVec<[u8; 16]>,
}

impl Value {
    /// A value of big-endian integers of `integer_size` bytes laid end to end.
    pub fn from_raw(integer_size: u8, raw: SmallVec<[u8; 16]>) -> Result<Self> {
        let bad = |reason: String| Err(Error::new("ZAP value", reason));
        if !matches!(integer_size, 1 | 2 | 4 | 8) {
            return bad(format!("integers of {integer_size} bytes"));
        }
        if !raw.len().is_multiple_of(usize::from(integer_size)) {
            return bad(format!("{} bytes are no whole integers", raw.len()));
        }
        if raw.len() > super::MAX_VALUE_BYTES {
            return bad(format!("{} bytes", raw.len()));
        }
        Ok(Self { integer_size, raw })
    }

    /// One 64-bit integer.
    pub fn of_u64(value: u64) -> Self {
        Self { integer_size: 8, raw: SmallVec::from_slice(&value.to_be_bytes()) }
    }

    /// An array of 64-bit integers; fails beyond 8192 bytes.
    pub fn of_u64s(values: &[u64]) -> Result<Self> {
        Self::from_raw(8, values.iter().flat_map(|v| v.to_be_bytes()).collect())
    }

    /// An array of bytes; fails beyond 8192.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self> {
        Self::from_raw(1, SmallVec::from_slice(bytes))
    }

    /// Bytes of one integer: 1, 2, 4 or 8.
    pub fn integer_size(&self) -> u8 {
        self.integer_size
    }

    /// Number of integers.
    pub fn count(&self) -> usize {
        self.raw.len() / usize::from(self.integer_size.max(1))
    }

    /// The integers as stored: big-endian, end to end.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The integers, whatever their size.
    pub fn integers(&self) -> impl Iterator<Item = u64> + '_ {
        self.raw
            .chunks_exact(usize::from(self.integer_size.max(1)))
            .map(|one| one.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte)))
    }

    /// The value if it is exactly one 64-bit integer.
    pub fn as_u64(&self) -> Option<u64> {
        let raw: [u8; 8] = self.raw.as_slice().try_into().ok()?;
        (self.integer_size == 8).then(|| u64::from_be_bytes(raw))
    }

    /// The integers if they are 64-bit ones.
    pub fn as_u64s(&self) -> Option<Vec<u64>> {
        (self.integer_size == 8).then(|| self.integers().collect())
    }

    /// The bytes if the integers are bytes.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        (self.integer_size == 1).then_some(self.raw.as_slice())
    }

    /// The bytes before the first NUL if the integers are bytes: a string property.
    pub fn as_c_string(&self) -> Option<&[u8]> {
        self.as_bytes()?.split(|byte| *byte == 0).next()
    }
}
