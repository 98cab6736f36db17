//! Writing attribute buffers, and splitting attributes between bonus and spill.
//!
//! Chapter 05, section 5. Buffers are always written little-endian.

use super::{MAGIC, MAX_ATTRIBUTE, MIN_HEADER};
use crate::bytes::put;
use crate::{Error, Result};

/// Bytes the spill pointer takes from the bonus.
const SPILL_POINTER: usize = 128;

/// Header size in bytes of a buffer with `variable` attributes of variable length.
pub fn header_size(variable: usize) -> usize {
    MIN_HEADER + (2 * variable.saturating_sub(1)).next_multiple_of(8)
}

/// Encodes a buffer: `values` in layout order, each with whether its length is variable.
///
/// The result ends with the last value; a spill block is padded to 512 bytes by its writer.
pub fn encode_buffer(layout: u16, values: &[(&[u8], bool)]) -> Result<Vec<u8>> {
    let bad = |reason: &'static str| Error::new("SA buffer", reason);
    let variable = values.iter().filter(|(_, variable)| *variable).count();
    let header = header_size(variable);
    let info = u16::try_from(header / 8).ok().filter(|size| *size < 64 && layout < 1024);
    let info = info.ok_or_else(|| bad("too many attributes of variable length"))? << 10 | layout;
    let mut out = vec![0; header];
    put(&mut out, 0, &MAGIC.to_le_bytes()).ok_or_else(|| bad("no room for the header"))?;
    put(&mut out, 4, &info.to_le_bytes()).ok_or_else(|| bad("no room for the header"))?;
    let mut length_at = 6;
    for (value, variable) in values {
        if value.len() > MAX_ATTRIBUTE {
            return Err(bad("an attribute is longer than 65535 bytes"));
        }
        if *variable {
            let length = (value.len() as u16).to_le_bytes();
            put(&mut out, length_at, &length).ok_or_else(|| bad("no room for a length"))?;
            length_at += 2;
        }
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend_from_slice(value);
    }
    Ok(out)
}

/// How many of the attributes, given as (length in bytes, is variable) in order, stay in a bonus of
/// `capacity` bytes; all of them if no spill block is needed.
pub fn bonus_split(capacity: usize, attributes: &[(usize, bool)]) -> usize {
    let with_spill = capacity.saturating_sub(SPILL_POINTER);
    let mut spill_at = None;
    let (mut end, mut variable) = (0_usize, 0);
    for (index, (length, is_variable)) in attributes.iter().enumerate() {
        variable += usize::from(*is_variable);
        end = end.next_multiple_of(8).saturating_add(*length);
        let total = end.saturating_add(header_size(variable));
        if total > with_spill && spill_at.is_none() {
            spill_at = Some(index);
        }
        if total > capacity {
            return spill_at.unwrap_or(index);
        }
    }
    attributes.len()
}
