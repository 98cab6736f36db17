//! A deadlist: for each older snapshot, the bpobj of blocks born after it that have died since.
//!
//! Chapter 06, section 10.2. The object is a ZAP of hexadecimal txg to bpobj; livelists
//! (section 10.4) have the same form. Invariant: keys are ordered, so ranges are contiguous.

use std::collections::BTreeMap;

use crate::bpobj::Space;
use crate::bytes::{le_words, words_to_le};
use crate::{Error, ObjectId, Result, Txg};

/// Size of the bonus in bytes.
pub const SIZE: usize = 320;

/// Decodes the bonus: the totals of all entries.
pub fn decode_header(bonus: &[u8]) -> Result<Space> {
    let [used, compressed, uncompressed] =
        le_words(bonus).ok_or_else(|| Error::truncated("deadlist"))?;
    Ok(Space { used, compressed, uncompressed })
}

/// The [`SIZE`] bytes of the bonus.
pub fn encode_header(space: &Space) -> Vec<u8> {
    let mut out = words_to_le(&[space.used, space.compressed, space.uncompressed]);
    out.resize(SIZE, 0);
    out
}

/// The name of an integer key in a ZAP: lower-case hexadecimal (chapter 06, section 1).
pub fn integer_key(value: u64) -> String {
    format!("{value:x}")
}

/// The integer behind such a name.
pub fn parse_integer_key(name: &[u8]) -> Result<u64> {
    let bad = || Error::new("integer key", "not a hexadecimal number");
    let text = std::str::from_utf8(name).map_err(|_| bad())?;
    if text.is_empty() || text.starts_with('+') {
        return Err(bad());
    }
    u64::from_str_radix(text, 16).map_err(|_| bad())
}

/// The entries of a deadlist: smallest birth (exclusive) to bpobj.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(pub BTreeMap<Txg, ObjectId>);

impl Entries {
    /// The entry that holds blocks born in `birth`: the greatest key below it.
    pub fn covering(&self, birth: Txg) -> Option<(Txg, ObjectId)> {
        self.0.range(..birth).next_back().map(|(key, object)| (*key, *object))
    }

    /// The bpobjs of blocks born after `low` and not after `high` (keys in `low..high`).
    pub fn range(&self, low: Txg, high: Txg) -> impl Iterator<Item = (Txg, ObjectId)> + '_ {
        self.0
            .range(low..)
            .take_while(move |(key, _)| **key < high)
            .map(|(key, object)| (*key, *object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_ranges() {
        assert_eq!(integer_key(22), "16");
        assert_eq!(parse_integer_key(b"16").unwrap(), 22);
        for bad in [&b""[..], b"+1", b"xyz", b"\xff", b"11111111111111111"] {
            assert!(parse_integer_key(bad).is_err());
        }
        let pairs = [(0, 80), (1, 91), (22, 92)];
        let entries =
            Entries(pairs.into_iter().map(|(txg, object)| (Txg(txg), ObjectId(object))).collect());
        assert_eq!(entries.covering(Txg(22)), Some((Txg(1), ObjectId(91))));
        assert_eq!(entries.covering(Txg(23)), Some((Txg(22), ObjectId(92))));
        assert_eq!(entries.covering(Txg(0)), None);
        let objects = |low, high| -> Vec<u64> {
            entries.range(Txg(low), Txg(high)).map(|(_, object)| object.0).collect()
        };
        assert_eq!(objects(0, 22), [80, 91]);
        assert_eq!(objects(1, u64::MAX), [91, 92]);
        assert!(objects(5, 1).is_empty());
    }

    #[test]
    fn header_round_trips() {
        let space = Space { used: 1, compressed: 2, uncompressed: 3 };
        assert_eq!(decode_header(&encode_header(&space)).unwrap(), space);
        assert_eq!(encode_header(&space).len(), SIZE);
        assert!(decode_header(&[0; 23]).is_err());
    }
}
