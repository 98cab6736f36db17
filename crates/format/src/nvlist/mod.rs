//! Name-value lists: the self-describing dictionaries of labels, configs, history and streams.
//!
//! Invariant: a list keeps its pairs in the order they were read and encodes back to the same bytes
//! OpenZFS would write for them; decoding is bounded in depth and never allocates more than a small
//! multiple of the input. Chapter 01, section 6.

mod native;
mod xdr;

#[cfg(test)]
mod tests;

use crate::bytes::ByteOrder;
use crate::{Error, Result};

const STRUCTURE: &str = "nvlist";
/// Deepest nesting a decoder follows and an encoder writes.
pub const MAX_DEPTH: usize = 24;
/// Flag bit of a list whose names are unique; everything OpenZFS stores on disk has it.
pub const UNIQUE_NAMES: u32 = 1;

/// One value of a list. The variants are the format's data types (chapter 01, section 6.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Present or absent; carries nothing.
    Boolean,
    /// One byte.
    Byte(u8),
    /// Signed 16 bits.
    Int16(i16),
    /// Unsigned 16 bits.
    Uint16(u16),
    /// Signed 32 bits.
    Int32(i32),
    /// Unsigned 32 bits.
    Uint32(u32),
    /// Signed 64 bits.
    Int64(i64),
    /// Unsigned 64 bits.
    Uint64(u64),
    /// Text without NUL, usually UTF-8.
    String(Box<[u8]>),
    /// Opaque bytes.
    ByteArray(Vec<u8>),
    /// Signed 16-bit integers.
    Int16Array(Vec<i16>),
    /// Unsigned 16-bit integers.
    Uint16Array(Vec<u16>),
    /// Signed 32-bit integers.
    Int32Array(Vec<i32>),
    /// Unsigned 32-bit integers.
    Uint32Array(Vec<u32>),
    /// Signed 64-bit integers.
    Int64Array(Vec<i64>),
    /// Unsigned 64-bit integers.
    Uint64Array(Vec<u64>),
    /// Texts without NUL.
    StringArray(Vec<Box<[u8]>>),
    /// A time in nanoseconds.
    HighResolutionTime(i64),
    /// A nested list.
    List(NvList),
    /// Nested lists.
    ListArray(Vec<NvList>),
    /// A boolean that carries its value.
    BooleanValue(bool),
    /// Signed 8 bits.
    Int8(i8),
    /// Unsigned 8 bits.
    Uint8(u8),
    /// Booleans.
    BooleanArray(Vec<bool>),
    /// Signed 8-bit integers.
    Int8Array(Vec<i8>),
    /// Unsigned 8-bit integers.
    Uint8Array(Vec<u8>),
    /// The bits of an IEEE-754 double.
    Double(u64),
}

/// A name and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Name without NUL, usually UTF-8 (an extended attribute's name may be any bytes).
    pub name: Box<[u8]>,
    /// Its value.
    pub value: Value,
}

/// An ordered list of named values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvList {
    /// Format version; 0, though an outer list may carry anything.
    pub version: i32,
    /// Flag bits: [`UNIQUE_NAMES`], and bit 1 for unique pairs of name and type.
    pub flags: u32,
    pairs: Vec<Pair>,
}

impl Default for NvList {
    fn default() -> Self {
        Self::new()
    }
}

/// How a packed list is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The image of a C list in the given byte order.
    Native(ByteOrder),
    /// External data representation: big-endian, units of four bytes.
    Xdr,
}

impl Value {
    /// The type code of the format.
    pub fn type_code(&self) -> u32 {
        match self {
            Self::Boolean => 1,
            Self::Byte(_) => 2,
            Self::Int16(_) => 3,
            Self::Uint16(_) => 4,
            Self::Int32(_) => 5,
            Self::Uint32(_) => 6,
            Self::Int64(_) => 7,
            Self::Uint64(_) => 8,
            Self::String(_) => 9,
            Self::ByteArray(_) => 10,
            Self::Int16Array(_) => 11,
            Self::Uint16Array(_) => 12,
            Self::Int32Array(_) => 13,
            Self::Uint32Array(_) => 14,
            Self::Int64Array(_) => 15,
            Self::Uint64Array(_) => 16,
            Self::StringArray(_) => 17,
            Self::HighResolutionTime(_) => 18,
            Self::List(_) => 19,
            Self::ListArray(_) => 20,
            Self::BooleanValue(_) => 21,
            Self::Int8(_) => 22,
            Self::Uint8(_) => 23,
            Self::BooleanArray(_) => 24,
            Self::Int8Array(_) => 25,
            Self::Uint8Array(_) => 26,
            Self::Double(_) => 27,
        }
    }

    /// The element count the format records.
    pub(crate) fn element_count(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::ByteArray(v) | Self::Uint8Array(v) => v.len(),
            Self::Int16Array(v) => v.len(),
            Self::Uint16Array(v) => v.len(),
            Self::Int32Array(v) => v.len(),
            Self::Uint32Array(v) => v.len(),
            Self::Int64Array(v) => v.len(),
            Self::Uint64Array(v) => v.len(),
            Self::StringArray(v) => v.len(),
            Self::ListArray(v) => v.len(),
            Self::BooleanArray(v) => v.len(),
            Self::Int8Array(v) => v.len(),
            _ => 1,
        }
    }

    /// Bytes of the value in a C program's memory: the "V" of chapter 01, section 6.2.
    fn memory_size(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::Byte(_) | Self::Int8(_) | Self::Uint8(_) => 1,
            Self::Int16(_) | Self::Uint16(_) => 2,
            Self::Int32(_) | Self::Uint32(_) | Self::BooleanValue(_) => 4,
            Self::Int64(_) | Self::Uint64(_) | Self::HighResolutionTime(_) | Self::Double(_) => 8,
            Self::String(text) => text.len() + 1,
            Self::ByteArray(v) | Self::Uint8Array(v) => v.len(),
            Self::Int8Array(v) => v.len(),
            Self::Int16Array(v) => v.len() * 2,
            Self::Uint16Array(v) => v.len() * 2,
            Self::Int32Array(v) => v.len() * 4,
            Self::Uint32Array(v) => v.len() * 4,
            Self::BooleanArray(v) => v.len() * 4,
            Self::Int64Array(v) => v.len() * 8,
            Self::Uint64Array(v) => v.len() * 8,
            Self::StringArray(v) => v.iter().map(|text| 8 + text.len() + 1).sum(),
            Self::List(_) => 24,
            Self::ListArray(v) => v.len() * 32,
        }
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Uint64(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.as_bytes().into())
    }
}

impl From<NvList> for Value {
    fn from(value: NvList) -> Self {
        Self::List(value)
    }
}

impl From<Vec<NvList>> for Value {
    fn from(value: Vec<NvList>) -> Self {
        Self::ListArray(value)
    }
}

impl From<Vec<u64>> for Value {
    fn from(value: Vec<u64>) -> Self {
        Self::Uint64Array(value)
    }
}

/// `value` rounded up to a multiple of 4.
fn align4(value: usize) -> usize {
    value.next_multiple_of(4)
}

/// `value` rounded up to a multiple of 8.
fn align8(value: usize) -> usize {
    value.next_multiple_of(8)
}

/// Bytes a pair takes in a C program's memory: the "decoded size" both encodings record.
fn decoded_size(pair: &Pair) -> usize {
    align8(16 + pair.name.len() + 1) + align8(pair.value.memory_size())
}

fn bad(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(STRUCTURE, reason)
}

/// Refuses what the encodings cannot hold: NUL in a name or text.
fn check_text(text: &[u8]) -> Result<()> {
    if text.contains(&0) { Err(bad("a name or string holds a NUL byte")) } else { Ok(()) }
}

/// A length as the signed 32-bit number both encodings use.
fn int32(value: usize) -> Result<i32> {
    i32::try_from(value).map_err(|_| bad("larger than 2 GiB"))
}

impl NvList {
    /// An empty list with unique names.
    pub fn new() -> Self {
        Self { version: 0, flags: UNIQUE_NAMES, pairs: Vec::new() }
    }

    /// Decodes a packed list in either encoding; what follows the list is ignored.
    pub fn decode(data: &[u8]) -> Result<Self> {
        Ok(Self::decode_prefix(data)?.0)
    }

    /// Decodes a packed list and tells its encoding and how many bytes it took.
    pub fn decode_prefix(data: &[u8]) -> Result<(Self, Encoding, usize)> {
        let [encoding, order, _, _] =
            crate::bytes::array::<4>(data, 0).ok_or_else(|| Error::truncated(STRUCTURE))?;
        match (encoding, order) {
            (0, 0) => native::decode(data, ByteOrder::Big),
            (0, 1) => native::decode(data, ByteOrder::Little),
            (1, _) => xdr::decode(data),
            (0, _) => Err(bad("unknown byte order")),
            _ => Err(bad(format!("unknown encoding {encoding}"))),
        }
    }

    /// Packs the list. Fails only for a list no reader would accept: NUL in a name or text, nesting
    /// beyond [`MAX_DEPTH`], 2 GiB.
    pub fn encode(&self, encoding: Encoding) -> Result<Vec<u8>> {
        match encoding {
            Encoding::Native(order) => native::encode(self, order),
            Encoding::Xdr => xdr::encode(self),
        }
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Pair> {
        self.pairs.iter()
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// No pairs at all.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Appends a pair without looking for one of that name.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: impl Into<Value>) {
        self.pairs.push(Pair { name: name.as_ref().into(), value: value.into() });
    }

    /// Sets `name`, in its place if it is there already, else at the end.
    pub fn set(&mut self, name: impl AsRef<[u8]>, value: impl Into<Value>) {
        let name = name.as_ref();
        match self.pairs.iter_mut().find(|pair| *pair.name == *name) {
            Some(pair) => pair.value = value.into(),
            None => self.push(name, value),
        }
    }

    /// Removes `name`; whether it was there.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) -> bool {
        let before = self.pairs.len();
        let name = name.as_ref();
        self.pairs.retain(|pair| *pair.name != *name);
        self.pairs.len() != before
    }

    /// The value of `name`.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&Value> {
        let name = name.as_ref();
        self.pairs.iter().find(|pair| *pair.name == *name).map(|pair| &pair.value)
    }

    /// The unsigned 64-bit integer `name`.
    pub fn u64(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            Value::Uint64(value) => Some(*value),
            _ => None,
        }
    }

    /// The unsigned 32-bit integer `name`.
    pub fn u32(&self, name: &str) -> Option<u32> {
        match self.get(name)? {
            Value::Uint32(value) => Some(*value),
            _ => None,
        }
    }

    /// The signed 64-bit integer `name`.
    pub fn i64(&self, name: &str) -> Option<i64> {
        match self.get(name)? {
            Value::Int64(value) => Some(*value),
            _ => None,
        }
    }

    /// The text `name`, if it is UTF-8.
    pub fn string(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.string_bytes(name)?).ok()
    }

    /// The bytes of the text `name`.
    pub fn string_bytes(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The text `name` with every malformed sequence replaced.
    pub fn string_lossy(&self, name: &str) -> Option<String> {
        self.string_bytes(name).map(|text| String::from_utf8_lossy(text).into_owned())
    }

    /// The nested list `name`.
    pub fn nvlist(&self, name: &str) -> Option<&NvList> {
        match self.get(name)? {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    /// The nested lists `name`.
    pub fn nvlist_array(&self, name: &str) -> Option<&[NvList]> {
        match self.get(name)? {
            Value::ListArray(lists) => Some(lists),
            _ => None,
        }
    }

    /// The unsigned 64-bit integers `name`.
    pub fn u64_array(&self, name: &str) -> Option<&[u64]> {
        match self.get(name)? {
            Value::Uint64Array(values) => Some(values),
            _ => None,
        }
    }

    /// The bytes `name`, whether stored as bytes or as unsigned 8-bit integers.
    pub fn byte_array(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            Value::ByteArray(bytes) | Value::Uint8Array(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The texts `name`, as bytes.
    pub fn string_array(&self, name: &str) -> Option<&[Box<[u8]>]> {
        match self.get(name)? {
            Value::StringArray(texts) => Some(texts),
            _ => None,
        }
    }

    /// Whether the value-less boolean `name` is present.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Value::Boolean))
    }

    /// The boolean `name` that carries its value.
    pub fn boolean_value(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            Value::BooleanValue(value) => Some(*value),
            _ => None,
        }
    }
}

impl<'a> IntoIterator for &'a NvList {
    type Item = &'a Pair;
    type IntoIter = std::slice::Iter<'a, Pair>;

    fn into_iter(self) -> Self::IntoIter {
        self.pairs.iter()
    }
}
