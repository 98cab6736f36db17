//! Reading one attribute buffer: a bonus or a spill block, in either byte order.
//!
//! Chapter 05, section 5.

use std::borrow::Cow;
use std::ops::Range;

use super::table::{AttributeTable, Plan};
use super::{Attribute, MAGIC, MIN_HEADER};
use crate::bytes::{ByteOrder, slice};
use crate::{Error, Result};

/// A buffer whose header has been checked against its layout.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    table: &'a AttributeTable,
    plan: &'a Plan,
    data: &'a [u8],
    order: ByteOrder,
    layout: u16,
    header: usize,
}

impl<'a> View<'a> {
    pub(super) fn new(table: &'a AttributeTable, data: &'a [u8]) -> Result<Self> {
        let bad = |reason: String| Error::new("SA buffer", reason);
        let short = || Error::truncated("SA buffer");
        let magic = ByteOrder::Little.u32(data, 0).ok_or_else(short)?;
        let order = match magic {
            MAGIC => ByteOrder::Little,
            _ if magic.swap_bytes() == MAGIC => ByteOrder::Big,
            _ => return Err(bad(format!("magic {magic:#x}"))),
        };
        let info = order.u16(data, 4).ok_or_else(short)?;
        let layout = info & 0x3ff;
        let header = usize::from(info >> 10) * 8;
        let plan = table.plan(layout).ok_or_else(|| bad(format!("unknown layout {layout}")))?;
        if header < MIN_HEADER || header < 6 + 2 * plan.variable || header > data.len() {
            return Err(bad(format!("header of {header} bytes in {}", data.len())));
        }
        Ok(Self { table, plan, data, order, layout, header })
    }

    /// Byte order of the values.
    pub fn order(&self) -> ByteOrder {
        self.order
    }

    /// Layout number.
    pub fn layout(&self) -> u16 {
        self.layout
    }

    /// Header size in bytes.
    pub fn header_size(&self) -> usize {
        self.header
    }

    /// Whether the buffer has `attribute`.
    pub fn has(&self, attribute: Attribute) -> bool {
        self.plan.has(attribute)
    }

    /// Every attribute number with its raw value (in the buffer's byte order), in storage order.
    pub fn iter(&self) -> impl Iterator<Item = Result<(u16, &'a [u8])>> + '_ {
        let mut at = self.header;
        let mut variable = 0;
        self.plan.numbers.iter().map(move |&number| {
            let short = || Error::truncated("SA buffer");
            let length = match self.table.registered(number).map(|own| own.length) {
                Some(0) => {
                    variable += 1;
                    self.order.u16(self.data, 4 + 2 * variable).ok_or_else(short)?
                }
                Some(length) => length,
                None => return Err(Error::new("SA buffer", format!("attribute {number}"))),
            };
            let value = slice(self.data, at, usize::from(length)).ok_or_else(short)?;
            at = at.saturating_add(usize::from(length).next_multiple_of(8));
            Ok((number, value))
        })
    }

    /// Where the value of `attribute` stands in the buffer; `None` if the buffer has none.
    pub fn range(&self, attribute: Attribute) -> Result<Option<Range<usize>>> {
        if !self.plan.has(attribute) {
            return Ok(None);
        }
        let fixed = self.plan.fixed_offset(attribute);
        if let Some(offset) = fixed.filter(|_| attribute.length() != 0) {
            let start = self.header + offset;
            return Ok(Some(start..start + usize::from(attribute.length())));
        }
        let wanted = self.table.number(attribute);
        let mut at = self.header;
        for entry in self.iter() {
            let (number, value) = entry?;
            if Some(number) == wanted {
                return Ok(Some(at..at + value.len()));
            }
            at += value.len().next_multiple_of(8);
        }
        Ok(None)
    }

    /// The raw value of `attribute` (in the buffer's byte order); `None` if the buffer has none.
    pub fn raw(&self, attribute: Attribute) -> Result<Option<&'a [u8]>> {
        let Some(range) = self.range(attribute)? else { return Ok(None) };
        self.data.get(range).map(Some).ok_or_else(|| Error::truncated("SA buffer"))
    }

    /// The value of `attribute` in little-endian form.
    pub fn value(&self, attribute: Attribute) -> Result<Option<Cow<'a, [u8]>>> {
        let Some(raw) = self.raw(attribute)? else { return Ok(None) };
        Ok(Some(match self.order {
            ByteOrder::Little => Cow::Borrowed(raw),
            ByteOrder::Big => {
                let mut owned = raw.to_vec();
                attribute.class().swap(&mut owned);
                Cow::Owned(owned)
            }
        }))
    }

    /// The first 64-bit word of `attribute`.
    pub fn word(&self, attribute: Attribute) -> Result<Option<u64>> {
        Ok(self.raw(attribute)?.and_then(|raw| self.order.u64(raw, 0)))
    }

    /// Both 64-bit words of `attribute` (times: seconds, nanoseconds).
    pub fn pair(&self, attribute: Attribute) -> Result<Option<(u64, u64)>> {
        let Some(raw) = self.raw(attribute)? else { return Ok(None) };
        Ok(self.order.u64(raw, 0).zip(self.order.u64(raw, 8)))
    }
}
