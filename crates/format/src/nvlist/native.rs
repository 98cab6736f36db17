//! The native encoding of name-value lists: cache files, history records, resume tokens.
//!
//! Invariant: what decodes re-encodes to the same bytes in the same byte order. A pair is the image
//! of a C structure; the pairs of nested lists follow the pair that holds them. Chapter 01,
//! section 6.4.

use super::xdr::boolean;
use super::{
    Encoding, MAX_DEPTH, NvList, Pair, Value, align8, bad, check_text, decoded_size, int32,
};
use crate::bytes::{ByteOrder, slice};
use crate::{Error, Result};

/// Bytes of the image of a nested list's header.
const LIST_HEADER: usize = 24;
/// Bytes before the name in the image of a pair.
const PAIR_HEADER: usize = 16;

fn truncated() -> Error {
    Error::truncated(super::STRUCTURE)
}

/// Decodes a packed list, stream header included.
pub(super) fn decode(data: &[u8], order: ByteOrder) -> Result<(NvList, Encoding, usize)> {
    let mut reader = Reader { data, at: 12, order };
    let version = order.u32(data, 4).ok_or_else(truncated)? as i32;
    let flags = order.u32(data, 8).ok_or_else(truncated)?;
    let mut list = NvList { version, flags, pairs: Vec::new() };
    reader.pairs(&mut list, 0)?;
    Ok((list, Encoding::Native(order), reader.at))
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    order: ByteOrder,
}

impl Reader<'_> {
    fn pairs(&mut self, list: &mut NvList, depth: usize) -> Result<()> {
        if depth >= MAX_DEPTH {
            return Err(bad("nested too deeply"));
        }
        loop {
            let size = self.order.u32(self.data, self.at).ok_or_else(truncated)? as usize;
            if size == 0 {
                self.at += 4;
                return Ok(());
            }
            let image = slice(self.data, self.at, size).ok_or_else(truncated)?;
            self.at += size;
            let pair = self.pair(image, depth)?;
            if decoded_size(&pair) != size {
                return Err(bad("a pair's size is wrong"));
            }
            list.pairs.push(pair);
        }
    }

    fn pair(&mut self, image: &[u8], depth: usize) -> Result<Pair> {
        let order = self.order;
        let name_size = usize::from(order.u16(image, 4).ok_or_else(truncated)?);
        let count = order.u32(image, 8).ok_or_else(truncated)? as usize;
        let code = order.u32(image, 12).ok_or_else(truncated)?;
        let name = match slice(image, PAIR_HEADER, name_size).ok_or_else(truncated)?.split_last() {
            Some((0, name)) => name,
            _ => return Err(bad("a name without its NUL")),
        };
        check_text(name)?;
        let value = image.get(align8(PAIR_HEADER + name_size)..).ok_or_else(truncated)?;
        let scalar = matches!(code, 2..=9 | 18 | 19 | 21..=23 | 27);
        if (scalar && count != 1) || (code == 1 && count != 0) {
            return Err(bad(format!("type {code} with {count} elements")));
        }
        Ok(Pair { name: name.into(), value: self.value(value, code, count, depth)? })
    }

    fn value(&mut self, image: &[u8], code: u32, count: usize, depth: usize) -> Result<Value> {
        let order = self.order;
        let byte = || image.first().copied().ok_or_else(truncated);
        let u16 = || order.u16(image, 0).ok_or_else(truncated);
        let u32 = || order.u32(image, 0).ok_or_else(truncated);
        let u64 = || order.u64(image, 0).ok_or_else(truncated);
        Ok(match code {
            1 => Value::Boolean,
            2 => Value::Byte(byte()?),
            3 => Value::Int16(u16()? as i16),
            4 => Value::Uint16(u16()?),
            5 => Value::Int32(u32()? as i32),
            6 => Value::Uint32(u32()?),
            7 => Value::Int64(u64()? as i64),
            8 => Value::Uint64(u64()?),
            9 => Value::String(text_at(image, 0)?),
            10 => Value::ByteArray(slice(image, 0, count).ok_or_else(truncated)?.to_vec()),
            11 => Value::Int16Array(elements(image, count, 2, |at| {
                Some(order.u16(image, at)? as i16)
            })?),
            12 => Value::Uint16Array(elements(image, count, 2, |at| order.u16(image, at))?),
            13 => Value::Int32Array(elements(image, count, 4, |at| {
                Some(order.u32(image, at)? as i32)
            })?),
            14 => Value::Uint32Array(elements(image, count, 4, |at| order.u32(image, at))?),
            15 => Value::Int64Array(elements(image, count, 8, |at| {
                Some(order.u64(image, at)? as i64)
            })?),
            16 => Value::Uint64Array(elements(image, count, 8, |at| order.u64(image, at))?),
            17 => Value::StringArray(texts(image, count)?),
            18 => Value::HighResolutionTime(u64()? as i64),
            19 => Value::List(self.nested(image, 0, depth)?),
            20 => {
                let room = count.checked_mul(8 + LIST_HEADER).ok_or_else(truncated)?;
                slice(image, 0, room).ok_or_else(truncated)?;
                let headers = count * 8;
                let lists =
                    (0..count).map(|i| self.nested(image, headers + i * LIST_HEADER, depth));
                Value::ListArray(lists.collect::<Result<_>>()?)
            }
            21 => Value::BooleanValue(boolean(u32()?)?),
            22 => Value::Int8(byte()? as i8),
            23 => Value::Uint8(byte()?),
            24 => {
                let words = elements(image, count, 4, |at| order.u32(image, at))?;
                Value::BooleanArray(words.into_iter().map(boolean).collect::<Result<_>>()?)
            }
            25 => Value::Int8Array(elements(image, count, 1, |at| Some(*image.get(at)? as i8))?),
            26 => Value::Uint8Array(slice(image, 0, count).ok_or_else(truncated)?.to_vec()),
            27 => Value::Double(u64()?),
            _ => return Err(bad(format!("unknown type {code}"))),
        })
    }

    /// A nested list: its header is in the image, its pairs come next in the stream.
    fn nested(&mut self, image: &[u8], header: usize, depth: usize) -> Result<NvList> {
        let version = self.order.u32(image, header).ok_or_else(truncated)? as i32;
        if version != 0 {
            return Err(bad(format!("nested list of version {version}")));
        }
        let flags = self.order.u32(image, header + 4).ok_or_else(truncated)?;
        let mut list = NvList { version, flags, pairs: Vec::new() };
        self.pairs(&mut list, depth + 1)?;
        Ok(list)
    }
}

fn text_at(image: &[u8], at: usize) -> Result<Box<[u8]>> {
    let rest = image.get(at..).ok_or_else(truncated)?;
    let end = rest.iter().position(|byte| *byte == 0).ok_or_else(|| bad("a string without NUL"))?;
    Ok(rest.get(..end).ok_or_else(truncated)?.into())
}

fn texts(image: &[u8], count: usize) -> Result<Vec<Box<[u8]>>> {
    let mut at = count.checked_mul(8).ok_or_else(truncated)?;
    slice(image, 0, at).ok_or_else(truncated)?;
    let mut texts = Vec::new();
    for _ in 0..count {
        let text = text_at(image, at)?;
        at += text.len() + 1;
        texts.push(text);
    }
    Ok(texts)
}

fn elements<T>(
    image: &[u8],
    count: usize,
    width: usize,
    element: impl Fn(usize) -> Option<T>,
) -> Result<Vec<T>> {
    let room = count.checked_mul(width).ok_or_else(truncated)?;
    slice(image, 0, room).ok_or_else(truncated)?;
    (0..count).map(|i| element(i * width).ok_or_else(truncated)).collect()
}

/// Packs a list, stream header included.
pub(super) fn encode(list: &NvList, order: ByteOrder) -> Result<Vec<u8>> {
    let mut writer = Writer { out: vec![0, 0, 0, 0], order };
    if order == ByteOrder::Little {
        writer.out = vec![0, 1, 0, 0];
    }
    writer.u32(list.version as u32);
    writer.u32(list.flags);
    writer.pairs(list, 0)?;
    int32(writer.out.len())?;
    Ok(writer.out)
}

struct Writer {
    out: Vec<u8>,
    order: ByteOrder,
}

impl Writer {
    fn u16(&mut self, value: u16) {
        self.out.extend_from_slice(&match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }

    fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }

    fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }

    fn pairs(&mut self, list: &NvList, depth: usize) -> Result<()> {
        if depth >= MAX_DEPTH {
            return Err(bad("nested too deeply"));
        }
        for pair in &list.pairs {
            self.pair(pair)?;
            match &pair.value {
                Value::List(nested) => self.pairs(nested, depth + 1)?,
                Value::ListArray(lists) => {
                    lists.iter().try_for_each(|nested| self.pairs(nested, depth + 1))?;
                }
                _ => {}
            }
        }
        self.u32(0);
        Ok(())
    }

    fn pair(&mut self, pair: &Pair) -> Result<()> {
        check_text(&pair.name)?;
        let start = self.out.len();
        let size = decoded_size(pair);
        let name_size =
            i16::try_from(pair.name.len() + 1).map_err(|_| bad("name too long"))? as u16;
        self.u32(int32(size)? as u32);
        self.u16(name_size);
        self.u16(0);
        self.u32(int32(pair.value.element_count())? as u32);
        self.u32(pair.value.type_code());
        self.out.extend_from_slice(&pair.name);
        self.out.resize(start + align8(PAIR_HEADER + usize::from(name_size)), 0);
        self.value(&pair.value)?;
        self.out.resize(start + size, 0);
        Ok(())
    }

    fn list_header(&mut self, list: &NvList) {
        self.u32(list.version as u32);
        self.u32(list.flags);
        self.u64(0);
        self.u64(0);
    }

    fn value(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Boolean => {}
            Value::Byte(v) | Value::Uint8(v) => self.out.push(*v),
            Value::Int8(v) => self.out.push(*v as u8),
            Value::Int16(v) => self.u16(*v as u16),
            Value::Uint16(v) => self.u16(*v),
            Value::Int32(v) => self.u32(*v as u32),
            Value::Uint32(v) => self.u32(*v),
            Value::BooleanValue(v) => self.u32(u32::from(*v)),
            Value::Int64(v) | Value::HighResolutionTime(v) => self.u64(*v as u64),
            Value::Uint64(v) | Value::Double(v) => self.u64(*v),
            Value::String(text) => self.text(text)?,
            Value::ByteArray(v) | Value::Uint8Array(v) => self.out.extend_from_slice(v),
            Value::Int8Array(v) => self.out.extend(v.iter().map(|e| *e as u8)),
            Value::Int16Array(v) => v.iter().for_each(|e| self.u16(*e as u16)),
            Value::Uint16Array(v) => v.iter().for_each(|e| self.u16(*e)),
            Value::Int32Array(v) => v.iter().for_each(|e| self.u32(*e as u32)),
            Value::Uint32Array(v) => v.iter().for_each(|e| self.u32(*e)),
            Value::BooleanArray(v) => v.iter().for_each(|e| self.u32(u32::from(*e))),
            Value::Int64Array(v) => v.iter().for_each(|e| self.u64(*e as u64)),
            Value::Uint64Array(v) => v.iter().for_each(|e| self.u64(*e)),
            Value::StringArray(texts) => {
                texts.iter().for_each(|_| self.u64(0));
                texts.iter().try_for_each(|text| self.text(text))?;
            }
            Value::List(list) => self.list_header(list),
            Value::ListArray(lists) => {
                lists.iter().for_each(|_| self.u64(0));
                lists.iter().for_each(|list| self.list_header(list));
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &[u8]) -> Result<()> {
        check_text(text)?;
        self.out.extend_from_slice(text);
        self.out.push(0);
        Ok(())
    }
}
