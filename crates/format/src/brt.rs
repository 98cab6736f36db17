//! Block reference tables: blocks shared by cloning, by device.
//!
//! Chapter 06, section 21. Invariant: a reference count is that beyond the first reference.

use crate::bytes::{le_words, swap_elements, words_to_le};
use crate::zap::Value;
use crate::{Error, ObjectId, Result};

/// Size of the bonus in bytes.
pub const BONUS: usize = 56;
/// Usual bytes of a device that one counter stands for.
pub const RANGE: u64 = 16 << 20;

/// What the MOS keys of tables begin with.
pub const VDEV_KEY_PREFIX: &str = "com.fudosecurity:brt:vdev:";

/// MOS key of the table of a top-level vdev.
pub fn vdev_key(vdev: u64) -> String {
    format!("{VDEV_KEY_PREFIX}{vdev}")
}

/// The bonus of a device's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrtHeader {
    /// ZAP of byte offset to reference count.
    pub entries: ObjectId,
    /// Number of ranges.
    pub ranges: u64,
    /// Byte order of the counters: 0 little, 1 big.
    pub byte_order: u64,
    /// Entries in all ranges.
    pub total: u64,
    /// Bytes a counter stands for.
    pub range_size: u64,
    /// Allocated bytes of cloned blocks.
    pub used_space: u64,
    /// Allocated bytes that cloning saves.
    pub saved_space: u64,
}

impl BrtHeader {
    /// Decodes the bonus.
    pub fn decode(bonus: &[u8]) -> Result<Self> {
        let [entries, ranges, byte_order, total, range_size, used_space, saved_space] =
            le_words(bonus).ok_or_else(|| Error::truncated("block reference table"))?;
        let entries = ObjectId(entries);
        Ok(Self { entries, ranges, byte_order, total, range_size, used_space, saved_space })
    }

    /// The [`BONUS`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        words_to_le(&[
            self.entries.0,
            self.ranges,
            self.byte_order,
            self.total,
            self.range_size,
            self.used_space,
            self.saved_space,
        ])
    }

    /// The counters of entries in each range, from the object's data.
    pub fn counters(&self, data: &[u8]) -> Result<Vec<u16>> {
        let len = usize::try_from(self.ranges).ok().and_then(|ranges| ranges.checked_mul(2));
        let data = len
            .and_then(|len| data.get(..len))
            .ok_or_else(|| Error::truncated("block reference counters"))?;
        let mut data = data.to_vec();
        if self.byte_order == 1 {
            swap_elements::<2>(&mut data);
        }
        Ok(data
            .chunks_exact(2)
            .filter_map(|raw| Some(u16::from_le_bytes(raw.try_into().ok()?)))
            .collect())
    }
}

/// A reference count from its value in the ZAP: one word, or eight bytes in the order of the machine
/// that wrote them, which nothing tells; taken for little-endian.
pub fn reference_count(value: &Value) -> Result<u64> {
    let bytes = || value.as_bytes().and_then(|raw| raw.try_into().ok()).map(u64::from_le_bytes);
    let wrong = || Error::new("block reference count", "neither a word nor eight bytes");
    value.as_u64().or_else(bytes).ok_or_else(wrong)
}

/// The value for a reference count, of the same form as `like`.
pub fn reference_value(count: u64, like: &Value) -> Result<Value> {
    match like.as_bytes() {
        Some(_) => Value::of_bytes(&count.to_le_bytes()),
        None => Value::of_u64s(&[count]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_counters() {
        let header = BrtHeader {
            entries: ObjectId(7),
            ranges: 2,
            byte_order: 0,
            total: 3,
            range_size: RANGE,
            used_space: 163_840,
            saved_space: 327_680,
        };
        assert_eq!(BrtHeader::decode(&header.encode()).unwrap(), header);
        assert_eq!(header.counters(&[1, 0, 2, 1]).unwrap(), [1, 0x102]);
        let big = BrtHeader { byte_order: 1, ..header };
        assert_eq!(big.counters(&[0, 1, 1, 2]).unwrap(), [1, 0x102]);
        assert!(BrtHeader { ranges: u64::MAX, ..header }.counters(&[0; 4]).is_err());
        assert_eq!(vdev_key(3), "com.fudosecurity:brt:vdev:3");
    }

    #[test]
    fn counts_of_both_forms() {
        for value in [Value::of_u64s(&[2]), Value::of_bytes(&[2, 0, 0, 0, 0, 0, 0, 0])] {
            let value = value.unwrap();
            assert_eq!(reference_count(&value).unwrap(), 2);
            let more = reference_value(0x102, &value).unwrap();
            assert_eq!(reference_count(&more).unwrap(), 0x102);
            assert_eq!(more.integer_size(), value.integer_size());
        }
        for value in [Value::of_u64s(&[1, 2]), Value::of_bytes(&[2; 7])] {
            assert!(reference_count(&value.unwrap()).is_err());
        }
    }
}
