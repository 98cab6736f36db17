//! Space maps: logs of allocations and frees of a range of addresses.
//!
//! Chapter 03, section 9. Offsets and runs are in units of `1 << shift` bytes relative to the
//! owner's start; [`Segment::bytes`] turns them into byte ranges. Invariant: a record encodes to
//! words that decode to the same record.

use crate::bytes::{le_words, words_to_le};
use crate::{Error, ObjectId, Result, Txg};

/// Bonus length with the histogram.
pub const BONUS: usize = 320;
/// Bonus length without it.
pub const BONUS_SHORT: usize = 24;
/// Histogram buckets.
pub const BUCKETS: usize = 32;
/// The word that fills up a block.
pub const PADDING: u64 = 1 << 63;

/// Longest run of a one-word entry, in units.
const ONE_WORD_RUN: u64 = 1 << 15;
/// One past the largest offset of a one-word entry, in units.
const ONE_WORD_OFFSET: u64 = 1 << 47;
/// Longest run of a two-word entry, in units.
const TWO_WORD_RUN: u64 = 1 << 36;

/// The bonus of a space map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceMapHeader {
    /// The object's own number, once written.
    pub object: ObjectId,
    /// Valid bytes of the object.
    pub length: u64,
    /// Bytes allocated less bytes freed.
    pub allocated: i64,
    /// Free segments by log2 of their size in units, if the form has them.
    pub histogram: Option<[u64; BUCKETS]>,
}

impl SpaceMapHeader {
    /// Decodes the valid bytes of the bonus.
    pub fn decode(bonus: &[u8]) -> Result<Self> {
        let [object, length, allocated] =
            le_words(bonus).ok_or_else(|| Error::truncated("space map"))?;
        if length % 8 != 0 {
            return Err(Error::new("space map", format!("length {length} is not whole words")));
        }
        let histogram = match bonus.len() {
            BONUS.. => bonus.get(64..).and_then(le_words),
            _ => None,
        };
        let allocated = allocated.cast_signed();
        Ok(Self { object: ObjectId(object), length, allocated, histogram })
    }

    /// The bonus, in the form with a histogram if there is one.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = words_to_le(&[self.object.0, self.length, self.allocated.cast_unsigned()]);
        if let Some(histogram) = &self.histogram {
            out.resize(64, 0);
            out.extend(words_to_le(histogram));
        }
        out
    }
}

/// What a record says about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It is in use from now on.
    Allocate,
    /// It is free from now on.
    Free,
}

impl Action {
    fn from_bit(bit: u64) -> Self {
        if bit & 1 == 0 { Self::Allocate } else { Self::Free }
    }

    fn bit(self) -> u64 {
        match self {
            Self::Allocate => 0,
            Self::Free => 1,
        }
    }
}

/// A run of units that was allocated or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What happened.
    pub action: Action,
    /// The top-level vdev of a two-word entry; means nothing outside log space maps.
    pub vdev: Option<u32>,
    /// First unit.
    pub offset: u64,
    /// Number of units, at least 1.
    pub run: u64,
}

impl Segment {
    /// Start and length in bytes, for a map whose owner begins at byte `start` and counts in
    /// units of `1 << shift` bytes.
    pub fn bytes(&self, start: u64, shift: u8) -> Result<(u64, u64)> {
        let bad = || Error::new("space map", "a segment lies beyond 2^64 bytes");
        let unit = 1u64.checked_shl(shift.into()).ok_or_else(bad)?;
        let from = self.offset.checked_mul(unit).and_then(|at| at.checked_add(start));
        let len = self.run.checked_mul(unit).ok_or_else(bad)?;
        let from = from.ok_or_else(bad)?;
        from.checked_add(len).ok_or_else(bad)?;
        Ok((from, len))
    }
}

/// One record of a space map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Fills up a block; says nothing.
    Padding,
    /// Says which txg and pass wrote the records that follow.
    Debug {
        /// What the following records do.
        action: Action,
        /// Sync pass.
        pass: u16,
        /// Transaction group.
        txg: Txg,
    },
    /// An allocation or a free.
    Segment(Segment),
}

/// Decodes the valid bytes of a space map, record by record. After an error nothing follows.
pub fn records(data: &[u8]) -> impl Iterator<Item = Result<Record>> + '_ {
    let mut words =
        data.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed {
            return None;
        }
        let record = decode(words.next()?, &mut words);
        failed = record.is_err();
        Some(record)
    })
}

fn decode(word: u64, rest: &mut impl Iterator<Item = u64>) -> Result<Record> {
    match word >> 62 {
        0 | 1 => Ok(Record::Segment(Segment {
            action: Action::from_bit(word >> 15),
            vdev: None,
            offset: word >> 16,
            run: (word & 0x7fff) + 1,
        })),
        2 => {
            let txg = word & ((1 << 50) - 1);
            if txg == 0 {
                return Ok(Record::Padding);
            }
            let action = Action::from_bit(word >> 60);
            Ok(Record::Debug { action, pass: (word >> 50 & 0x3ff) as u16, txg: Txg(txg) })
        }
        _ => {
            let second = rest
                .next()
                .ok_or_else(|| Error::new("space map", "ends inside a two-word entry"))?;
            Ok(Record::Segment(Segment {
                action: Action::from_bit(second >> 63),
                vdev: Some((word & 0xff_ffff) as u32),
                offset: second & !(1 << 63),
                run: (word >> 24 & (TWO_WORD_RUN - 1)) + 1,
            }))
        }
    }
}

/// Appends records in words, keeping two-word entries inside one data block.
#[derive(Debug)]
pub struct Encoder {
    words: Vec<u64>,
    /// Words already in the first, partial block.
    before: u64,
    block_words: u64,
    two_words: bool,
}

impl Encoder {
    /// An encoder for records that follow `length` bytes in an object with blocks of `block_size`
    /// bytes; `two_words` when feature `com.delphix:spacemap_v2` is active.
    pub fn new(length: u64, block_size: u64, two_words: bool) -> Self {
        let block_words = (block_size / 8).max(2);
        Self { words: Vec::new(), before: (length / 8) % block_words, block_words, two_words }
    }

    /// Appends one record. Fails if it cannot be expressed.
    pub fn push(&mut self, record: &Record) -> Result<()> {
        match *record {
            Record::Padding => self.words.push(PADDING),
            Record::Debug { action, pass, txg } => {
                let pass = u64::from(pass) & 0x3ff;
                let txg = txg.0 & ((1 << 50) - 1);
                self.words.push(PADDING | action.bit() << 60 | pass << 50 | txg);
            }
            Record::Segment(segment) => self.push_segment(segment)?,
        }
        Ok(())
    }

    fn push_segment(&mut self, segment: Segment) -> Result<()> {
        let Segment { action, vdev, mut offset, mut run } = segment;
        let end = offset.checked_add(run);
        if run == 0 || end.is_none_or(|end| end > 1 << 63) {
            return Err(Error::new("space map", "a segment is empty or too far out"));
        }
        let fits_one = run <= ONE_WORD_RUN && offset < ONE_WORD_OFFSET;
        if self.two_words && (vdev.is_some() || !fits_one) {
            while run > 0 {
                let part = run.min(TWO_WORD_RUN);
                self.push_two(action, vdev.unwrap_or(0), offset, part);
                (offset, run) = (offset + part, run - part);
            }
            return Ok(());
        }
        if vdev.is_some() || end.is_none_or(|end| end > ONE_WORD_OFFSET) {
            return Err(Error::new("space map", "a segment needs an entry of two words"));
        }
        while run > 0 {
            let part = run.min(ONE_WORD_RUN);
            self.words.push(offset << 16 | action.bit() << 15 | (part - 1));
            (offset, run) = (offset + part, run - part);
        }
        Ok(())
    }

    fn push_two(&mut self, action: Action, vdev: u32, offset: u64, run: u64) {
        let position = (self.before + self.words.len() as u64) % self.block_words;
        if position == self.block_words - 1 {
            self.words.push(PADDING);
        }
        self.words.push(0b11 << 62 | (run - 1) << 24 | u64::from(vdev) & 0xff_ffff);
        self.words.push(action.bit() << 63 | offset);
    }

    /// The bytes to append.
    pub fn finish(self) -> Vec<u8> {
        words_to_le(&self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_words(words: &[u64]) -> Vec<Record> {
        records(&words_to_le(words)).map(|record| record.unwrap()).collect()
    }

    fn segment(action: Action, vdev: Option<u32>, offset: u64, run: u64) -> Record {
        Record::Segment(Segment { action, vdev, offset, run })
    }

    #[test]
    fn real_words_of_chapter_03() {
        use Action::{Allocate, Free};
        let words = [
            0x8004_0000_0000_021e,
            0x0000_0000_000c_0006,
            0xc000_0000_0300_0000,
            0x68,
            0xc000_0000_0400_0003,
            0x2806f,
            0x9004_0000_0000_02f1,
            PADDING,
        ];
        let expected = [
            Record::Debug { action: Allocate, pass: 1, txg: Txg(542) },
            segment(Allocate, None, 12, 7),
            segment(Allocate, Some(0), 0x68, 4),
            segment(Allocate, Some(3), 0x2806f, 5),
            Record::Debug { action: Free, pass: 1, txg: Txg(753) },
            Record::Padding,
        ];
        assert_eq!(decode_words(&words), expected);
        let mut encoder = Encoder::new(0, 131_072, true);
        expected.iter().for_each(|record| encoder.push(record).unwrap());
        assert_eq!(encoder.finish(), words_to_le(&words));
    }

    #[test]
    fn two_word_entries_do_not_cross_blocks() {
        let record = segment(Action::Free, Some(1), 5, 6);
        let mut encoder = Encoder::new(4096 - 8, 4096, true);
        encoder.push(&record).unwrap();
        let bytes = encoder.finish();
        let decoded: Vec<Record> = records(&bytes).map(|record| record.unwrap()).collect();
        assert_eq!(decoded, [Record::Padding, record]);
    }

    #[test]
    fn long_runs_split_without_the_feature() {
        let long = segment(Action::Allocate, None, 100, 70_000);
        let mut encoder = Encoder::new(0, 4096, false);
        encoder.push(&long).unwrap();
        let parts: Vec<Record> = records(&encoder.finish()).map(|record| record.unwrap()).collect();
        assert_eq!(
            parts,
            [
                segment(Action::Allocate, None, 100, 32768),
                segment(Action::Allocate, None, 32868, 32768),
                segment(Action::Allocate, None, 65636, 4464),
            ]
        );
        let mut encoder = Encoder::new(0, 4096, false);
        assert!(encoder.push(&segment(Action::Free, None, 1 << 47, 1)).is_err());
        assert!(encoder.push(&segment(Action::Free, None, 1, 0)).is_err());
    }

    #[test]
    fn truncated_and_overflowing_input_is_an_error() {
        let cut: Vec<_> = records(&words_to_le(&[0xc000_0000_0300_0000])).collect();
        assert!(cut.len() == 1 && cut[0].is_err());
        let far = Segment { action: Action::Free, vdev: None, offset: 1 << 60, run: 1 };
        assert!(far.bytes(0, 9).is_err());
        assert_eq!(
            Segment { offset: 2, ..far }.bytes(1 << 20, 9).unwrap(),
            ((1 << 20) + 1024, 512)
        );
    }

    #[test]
    fn header_forms_round_trip() {
        let mut raw = vec![0; BONUS];
        (raw[8], raw[16], raw[64], raw[319]) = (16, 9, 3, 1);
        let header = SpaceMapHeader::decode(&raw).unwrap();
        assert_eq!((header.length, header.allocated), (16, 9));
        assert_eq!(header.encode(), raw);
        let short = SpaceMapHeader::decode(&raw[..24]).unwrap();
        assert!(short.histogram.is_none() && short.encode() == raw[..24]);
        raw[8] = 7;
        assert!(SpaceMapHeader::decode(&raw).is_err());
    }
}
