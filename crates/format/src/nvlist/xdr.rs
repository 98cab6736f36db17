//! The XDR encoding of name-value lists: labels, MOS configs, stream payloads.
//!
//! Invariant: what decodes re-encodes to the same bytes, the writer's quirk of counting an unwritten
//! word for empty arrays included. Chapter 01, section 6.3.

use super::{
    Encoding, MAX_DEPTH, NvList, Pair, Value, align4, bad, check_text, decoded_size, int32,
};
use crate::bytes::{array, slice};
use crate::{Error, Result};

/// Decodes a packed list, stream header included.
pub(super) fn decode(data: &[u8]) -> Result<(NvList, Encoding, usize)> {
    let mut reader = Reader { data, at: 4 };
    let version = reader.i32()?;
    let list = reader.list(version, 0)?;
    Ok((list, Encoding::Xdr, reader.at))
}

/// Packs a list, stream header included.
pub(super) fn encode(list: &NvList) -> Result<Vec<u8>> {
    let size = 4 + list_size(list, 0)?;
    int32(size)?;
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(&[1, 1, 0, 0]);
    write_list(&mut out, list)?;
    // Empty arrays make the computed size larger than what is written: the rest stays zero.
    out.resize(size, 0);
    Ok(out)
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let raw = array(self.data, self.at).ok_or_else(|| Error::truncated(super::STRUCTURE))?;
        self.at += N;
        Ok(raw)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    /// `len` bytes and their padding to a unit of four.
    fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let truncated = || Error::truncated(super::STRUCTURE);
        let bytes = slice(self.data, self.at, len).ok_or_else(truncated)?;
        let padded = len.checked_next_multiple_of(4).ok_or_else(truncated)?;
        slice(self.data, self.at, padded).ok_or_else(truncated)?;
        self.at += padded;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<Box<[u8]>> {
        let len = self.u32()? as usize;
        let bytes = self.bytes(len)?;
        check_text(bytes)?;
        Ok(bytes.into())
    }

    /// The elements of a count-prefixed array; the count word of an empty one is not written.
    fn elements<T>(
        &mut self,
        count: usize,
        width: usize,
        mut element: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.u32()? as usize != count {
            return Err(bad("an array's two element counts differ"));
        }
        self.check_room(count, width)?;
        (0..count).map(|_| element(self)).collect()
    }

    /// Refuses an element count the remaining bytes cannot hold.
    fn check_room(&self, count: usize, width: usize) -> Result<()> {
        let room = self.data.len().saturating_sub(self.at);
        match count.checked_mul(width) {
            Some(need) if need <= room => Ok(()),
            _ => Err(Error::truncated(super::STRUCTURE)),
        }
    }

    fn list(&mut self, version: i32, depth: usize) -> Result<NvList> {
        if depth >= MAX_DEPTH {
            return Err(bad("nested too deeply"));
        }
        let mut list = NvList { version, flags: self.u32()?, pairs: Vec::new() };
        loop {
            // The encoded size is not to be trusted: for empty arrays it is too large.
            self.u32()?;
            let recorded = self.i32()?;
            if recorded == 0 {
                return Ok(list);
            }
            let name = self.text()?;
            let value = self.value(depth)?;
            let pair = Pair { name, value };
            if usize::try_from(recorded) != Ok(decoded_size(&pair)) {
                return Err(bad("a pair's decoded size is wrong"));
            }
            list.pairs.push(pair);
        }
    }

    fn embedded(&mut self, depth: usize) -> Result<NvList> {
        match self.i32()? {
            0 => self.list(0, depth + 1),
            version => Err(bad(format!("nested list of version {version}"))),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value> {
        let code = self.u32()?;
        let count = self.u32()? as usize;
        let scalar = matches!(code, 2..=9 | 18 | 19 | 21..=23 | 27);
        if (scalar && count != 1) || (code == 1 && count != 0) {
            return Err(bad(format!("type {code} with {count} elements")));
        }
        Ok(match code {
            1 => Value::Boolean,
            2 => Value::Byte(self.u32()? as u8),
            3 => Value::Int16(self.u32()? as i16),
            4 => Value::Uint16(self.u32()? as u16),
            5 => Value::Int32(self.i32()?),
            6 => Value::Uint32(self.u32()?),
            7 => Value::Int64(self.u64()? as i64),
            8 => Value::Uint64(self.u64()?),
            9 => Value::String(self.text()?),
            10 => Value::ByteArray(self.bytes(count)?.to_vec()),
            11 => Value::Int16Array(self.elements(count, 4, |r| Ok(r.u32()? as i16))?),
            12 => Value::Uint16Array(self.elements(count, 4, |r| Ok(r.u32()? as u16))?),
            13 => Value::Int32Array(self.elements(count, 4, Self::i32)?),
            14 => Value::Uint32Array(self.elements(count, 4, Self::u32)?),
            15 => Value::Int64Array(self.elements(count, 8, |r| Ok(r.u64()? as i64))?),
            16 => Value::Uint64Array(self.elements(count, 8, Self::u64)?),
            17 => {
                self.check_room(count, 4)?;
                Value::StringArray((0..count).map(|_| self.text()).collect::<Result<_>>()?)
            }
            18 => Value::HighResolutionTime(self.u64()? as i64),
            19 => Value::List(self.embedded(depth)?),
            20 => {
                self.check_room(count, 16)?;
                Value::ListArray((0..count).map(|_| self.embedded(depth)).collect::<Result<_>>()?)
            }
            21 => Value::BooleanValue(boolean(self.u32()?)?),
            22 => Value::Int8(self.u32()? as i8),
            23 => Value::Uint8(self.u32()? as u8),
            24 => Value::BooleanArray(self.elements(count, 4, |r| boolean(r.u32()?))?),
            25 => Value::Int8Array(self.elements(count, 4, |r| Ok(r.u32()? as i8))?),
            26 => Value::Uint8Array(self.elements(count, 4, |r| Ok(r.u32()? as u8))?),
            27 => Value::Double(self.u64()?),
            _ => return Err(bad(format!("unknown type {code}"))),
        })
    }
}

/// A boolean word: only 0 and 1 are valid.
pub(super) fn boolean(word: u32) -> Result<bool> {
    match word {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(bad("a boolean that is neither 0 nor 1")),
    }
}

/// Size OpenZFS computes for a list without stream header: version, flags, pairs, terminator.
fn list_size(list: &NvList, depth: usize) -> Result<usize> {
    if depth >= MAX_DEPTH {
        return Err(bad("nested too deeply"));
    }
    list.pairs.iter().try_fold(16, |sum, pair| Ok(sum + pair_size(pair, depth)?))
}

/// Size OpenZFS records for a pair; four too large for an empty count-prefixed array.
fn pair_size(pair: &Pair, depth: usize) -> Result<usize> {
    let count = pair.value.element_count();
    let value = match &pair.value {
        Value::Boolean => 0,
        Value::String(text) => 4 + align4(text.len()),
        Value::ByteArray(bytes) => align4(bytes.len()),
        Value::StringArray(texts) => texts.iter().map(|text| 4 + align4(text.len())).sum(),
        Value::List(list) => list_size(list, depth + 1)?,
        Value::ListArray(lists) => lists
            .iter()
            .try_fold(0, |sum, list| Ok::<_, Error>(sum + list_size(list, depth + 1)?))?,
        Value::Int64Array(_) | Value::Uint64Array(_) => 4 + 8 * count,
        Value::Int16Array(_)
        | Value::Uint16Array(_)
        | Value::Int32Array(_)
        | Value::Uint32Array(_)
        | Value::BooleanArray(_)
        | Value::Int8Array(_)
        | Value::Uint8Array(_) => 4 + 4 * count,
        Value::Int64(_) | Value::Uint64(_) | Value::HighResolutionTime(_) | Value::Double(_) => 8,
        _ => 4,
    };
    Ok(12 + align4(pair.name.len()) + 8 + value)
}

fn word(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn long(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len() + align4(bytes.len()) - bytes.len(), 0);
}

fn text(out: &mut Vec<u8>, text: &[u8]) -> Result<()> {
    check_text(text)?;
    word(out, int32(text.len())? as u32);
    padded(out, text);
    Ok(())
}

fn elements<T: Copy>(out: &mut Vec<u8>, values: &[T], mut element: impl FnMut(&mut Vec<u8>, T)) {
    if values.is_empty() {
        return;
    }
    word(out, values.len() as u32);
    for value in values {
        element(out, *value);
    }
}

fn write_list(out: &mut Vec<u8>, list: &NvList) -> Result<()> {
    word(out, list.version as u32);
    word(out, list.flags);
    for pair in &list.pairs {
        word(out, int32(pair_size(pair, 0)?)? as u32);
        word(out, int32(decoded_size(pair))? as u32);
        text(out, &pair.name)?;
        word(out, pair.value.type_code());
        word(out, int32(pair.value.element_count())? as u32);
        write_value(out, &pair.value)?;
    }
    long(out, 0);
    Ok(())
}

fn write_value(out: &mut Vec<u8>, value: &Value) -> Result<()> {
    match value {
        Value::Boolean => {}
        Value::Byte(v) | Value::Uint8(v) => word(out, u32::from(*v)),
        Value::Int8(v) => word(out, u32::from(*v as u8)),
        Value::Int16(v) => word(out, u32::from(*v as u16)),
        Value::Uint16(v) => word(out, u32::from(*v)),
        Value::Int32(v) => word(out, *v as u32),
        Value::Uint32(v) => word(out, *v),
        Value::BooleanValue(v) => word(out, u32::from(*v)),
        Value::Int64(v) | Value::HighResolutionTime(v) => long(out, *v as u64),
        Value::Uint64(v) | Value::Double(v) => long(out, *v),
        Value::String(v) => text(out, v)?,
        Value::ByteArray(v) => padded(out, v),
        Value::Int16Array(v) => elements(out, v, |out, e| word(out, u32::from(e as u16))),
        Value::Uint16Array(v) => elements(out, v, |out, e| word(out, u32::from(e))),
        Value::Int32Array(v) => elements(out, v, |out, e| word(out, e as u32)),
        Value::Uint32Array(v) => elements(out, v, word),
        Value::Int64Array(v) => elements(out, v, |out, e| long(out, e as u64)),
        Value::Uint64Array(v) => elements(out, v, long),
        Value::BooleanArray(v) => elements(out, v, |out, e| word(out, u32::from(e))),
        Value::Int8Array(v) => elements(out, v, |out, e| word(out, u32::from(e as u8))),
        Value::Uint8Array(v) => elements(out, v, |out, e| word(out, u32::from(e))),
        Value::StringArray(v) => v.iter().try_for_each(|t| text(out, t))?,
        Value::List(list) => write_list(out, list)?,
        Value::ListArray(lists) => lists.iter().try_for_each(|list| write_list(out, list))?,
    }
    Ok(())
}
