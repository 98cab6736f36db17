//! A cursor over the bytes of one record, in the record's byte order.

use crate::bytes::ByteOrder;
use crate::{BlockPointer, Error, Result, blkptr};

/// Reads fields one after the other; reading past the end is an error.
pub(super) struct Fields<'a> {
    data: &'a [u8],
    order: ByteOrder,
}

impl<'a> Fields<'a> {
    pub(super) fn new(data: &'a [u8], order: ByteOrder) -> Self {
        Self { data, order }
    }

    pub(super) fn bytes(&mut self, len: u64) -> Result<&'a [u8]> {
        let split = usize::try_from(len).ok().and_then(|len| self.data.split_at_checked(len));
        let (head, rest) = split.ok_or_else(|| Error::truncated("intent-log record"))?;
        self.data = rest;
        Ok(head)
    }

    /// As [`Self::bytes`], then skips to the next multiple of eight.
    pub(super) fn padded(&mut self, len: u64) -> Result<&'a [u8]> {
        let value = self.bytes(len)?;
        let padding = (8 - value.len() % 8) % 8;
        self.data = self.data.get(padding..).unwrap_or(&[]);
        Ok(value)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        let raw = self.bytes(8)?;
        self.order.u64(raw, 0).ok_or_else(|| Error::truncated("intent-log record"))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        let raw = self.bytes(4)?;
        self.order.u32(raw, 0).ok_or_else(|| Error::truncated("intent-log record"))
    }

    pub(super) fn pair(&mut self) -> Result<[u64; 2]> {
        Ok([self.u64()?, self.u64()?])
    }

    pub(super) fn pointer(&mut self) -> Result<BlockPointer> {
        pointer(self.bytes(blkptr::SIZE as u64)?, self.order)
    }

    /// A NUL-terminated string, without its NUL.
    pub(super) fn string(&mut self) -> Result<Vec<u8>> {
        let end = self.data.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| Error::new("intent-log record", "a name has no end"))?;
        let name = self.bytes(end as u64)?.to_vec();
        self.bytes(1)?;
        Ok(name)
    }

    pub(super) fn order(&self) -> ByteOrder {
        self.order
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.data
    }
}

/// A block pointer in `order`.
pub(super) fn pointer(raw: &[u8], order: ByteOrder) -> Result<BlockPointer> {
    match order {
        ByteOrder::Little => BlockPointer::decode(raw),
        ByteOrder::Big => {
            let mut raw = raw.to_vec();
            crate::bytes::swap_elements::<8>(&mut raw);
            BlockPointer::decode(&raw)
        }
    }
}

/// Appends a NUL-terminated string.
pub(super) fn push_string(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(value);
    out.push(0);
}

/// Appends little-endian words.
pub(super) fn push_words(out: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

/// Pads with zeros to a multiple of eight.
pub(super) fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(8), 0);
}
