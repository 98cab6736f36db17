//! The command history: a ring of length-prefixed nvlists in one object.
//!
//! Chapter 06, section 3.4. Logical offsets grow for ever; [`HistoryHeader::spans`] turns a range of
//! them into places in the object. Invariant: no range asked for is longer than the ring.

use crate::bytes::{le_words, words_to_le};
use crate::{Error, Result};

/// Size of the bonus in bytes.
pub const BONUS: usize = 40;
/// Bytes of the length word before each record.
pub const LENGTH_WORD: u64 = 8;
/// Longest history a ring may have by its own rules, in bytes.
const MAX_RING: u64 = 1 << 30;

/// Names of the pairs in a record.
pub mod key {
    /// u64, seconds since 1970.
    pub const TIME: &str = "history time";
    /// string: the command line.
    pub const COMMAND: &str = "history command";
    /// u64: user id.
    pub const WHO: &str = "history who";
    /// string: zone.
    pub const ZONE: &str = "history zone";
    /// string: host name.
    pub const HOSTNAME: &str = "history hostname";
    /// u64: transaction group.
    pub const TXG: &str = "history txg";
    /// string: text of an internal event.
    pub const INTERNAL_TEXT: &str = "history internal str";
    /// string: name of an internal event.
    pub const INTERNAL_NAME: &str = "internal_name";
    /// u64: number of an internal event (old).
    pub const INTERNAL_EVENT: &str = "history internal event";
    /// string: name of a logged ioctl.
    pub const IOCTL: &str = "ioctl";
    /// nvlist: its input.
    pub const INPUT: &str = "in_nvl";
    /// nvlist: its output.
    pub const OUTPUT: &str = "out_nvl";
    /// i64: bytes of its output, when it was too great to keep.
    pub const OUTPUT_SIZE: &str = "out_size";
    /// string: dataset name.
    pub const DATASET_NAME: &str = "dsname";
    /// u64: dataset object.
    pub const DATASET_ID: &str = "dsid";
    /// i64: error number.
    pub const ERRNO: &str = "errno";
    /// i64: nanoseconds.
    pub const ELAPSED: &str = "elapsed_ns";
}

/// The bonus of the history object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryHeader {
    /// Length of the records that are never overwritten.
    pub create_length: u64,
    /// Physical size of the object.
    pub physical_max: u64,
    /// Logical offset of the oldest record after them.
    pub begin: u64,
    /// Logical offset of the next record.
    pub end: u64,
    /// Records overwritten.
    pub lost: u64,
}

impl HistoryHeader {
    /// Decodes the bonus.
    pub fn decode(bonus: &[u8]) -> Result<Self> {
        let [create_length, physical_max, begin, end, lost] =
            le_words(bonus).ok_or_else(|| Error::truncated("history"))?;
        let header = Self { create_length, physical_max, begin, end, lost };
        let ring = physical_max.saturating_sub(create_length);
        let held = end.checked_sub(begin);
        let sound = create_length < physical_max
            && physical_max <= MAX_RING
            && begin >= create_length.min(end)
            && held.is_some_and(|held| held <= ring.max(create_length));
        if sound { Ok(header) } else { Err(Error::new("history", format!("{header:?}"))) }
    }

    /// The [`BONUS`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        words_to_le(&[self.create_length, self.physical_max, self.begin, self.end, self.lost])
    }

    /// Offset in the object of a logical offset.
    pub fn physical(&self, logical: u64) -> u64 {
        match logical.checked_sub(self.create_length) {
            None => logical,
            Some(past) => {
                let ring = self.physical_max.saturating_sub(self.create_length).max(1);
                self.create_length + past % ring
            }
        }
    }

    /// The one or two places (offset, length) that hold `length` bytes at a logical offset.
    pub fn spans(&self, logical: u64, length: u64) -> Vec<(u64, u64)> {
        let start = self.physical(logical);
        let first = length.min(self.physical_max.saturating_sub(start));
        let mut spans = vec![(start, first)];
        if first < length {
            spans.push((self.create_length, length - first));
        }
        spans
    }

    /// The logical ranges (start, end) to read, in order: the kept ones, then the ring.
    pub fn ranges(&self) -> [(u64, u64); 2] {
        [(0, self.create_length.min(self.begin)), (self.begin, self.end)]
    }
}

/// Splits a stretch of the history into packed nvlists. A length that does not fit ends the walk
/// with an error; what stood before it has been yielded.
pub fn records(data: &[u8]) -> impl Iterator<Item = Result<&[u8]>> {
    let mut rest = Some(data);
    std::iter::from_fn(move || {
        let here = rest.take().filter(|here| !here.is_empty())?;
        let split = here.split_first_chunk::<8>().and_then(|(length, body)| {
            let length =
                usize::try_from(u64::from_le_bytes(*length)).ok().filter(|len| *len > 0)?;
            Some((body.get(..length)?, body.get(length..)?))
        });
        let Some((record, after)) = split else {
            return Some(Err(Error::new("history", "a record does not fit")));
        };
        rest = Some(after);
        Some(Ok(record))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_wraps_behind_the_kept_records() {
        let header = HistoryHeader {
            create_length: 100,
            physical_max: 1000,
            begin: 950,
            end: 1750,
            lost: 3,
        };
        assert_eq!(HistoryHeader::decode(&header.encode()).unwrap(), header);
        assert_eq!(header.spans(950, 100), [(950, 50), (100, 50)]);
        assert_eq!(header.spans(1000, 10), [(100, 10)]);
        assert_eq!(header.spans(50, 10), [(50, 10)]);
        assert_eq!(header.ranges(), [(0, 100), (950, 1750)]);
        for broken in [
            HistoryHeader { end: 900, ..header },
            HistoryHeader { end: 5000, ..header },
            HistoryHeader { physical_max: 50, ..header },
            HistoryHeader { physical_max: u64::MAX, ..header },
        ] {
            assert!(HistoryHeader::decode(&broken.encode()).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn records_stop_at_nonsense() {
        let mut data = vec![3, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3];
        data.extend([1, 0, 0, 0, 0, 0, 0, 0, 9]);
        let found: Vec<&[u8]> = records(&data).map(|record| record.unwrap()).collect();
        assert_eq!(found, [&[1, 2, 3][..], &[9]]);
        data.extend([0xff; 9]);
        let found: Vec<_> = records(&data).collect();
        assert!(found.len() == 3 && found[2].is_err());
        assert!(records(&[0; 8]).next().unwrap().is_err());
    }
}
