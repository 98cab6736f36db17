//! Removed devices: where their blocks went, when they were copied, and how far a removal is.
//!
//! Chapter 03, section 6. Offsets and lengths are bytes. Invariant: mapping entries are sorted by
//! source and do not overlap; [`Mapping::new`] refuses others.

use crate::blkptr::{Dva, SECTOR};
use crate::bytes::{le_words, words_to_le};
use crate::{Error, ObjectId, Result, Txg};

/// Size of a mapping entry in bytes.
pub const ENTRY: usize = 24;
/// Size of a births entry in bytes.
pub const BIRTH_ENTRY: usize = 16;

/// The bonus of a mapping object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingHeader {
    /// End of the last entry, in bytes.
    pub max_offset: u64,
    /// Sum of all lengths.
    pub bytes_mapped: u64,
    /// Number of entries.
    pub entries: u64,
    /// Object of obsolete counts (u32 bytes an entry), if the form has one.
    pub counts: Option<ObjectId>,
}

impl MappingHeader {
    /// Decodes the bonus: 24 bytes, or 32 with the counts object.
    pub fn decode(bonus: &[u8]) -> Result<Self> {
        let [max_offset, bytes_mapped, entries] =
            le_words(bonus).ok_or_else(|| Error::truncated("indirect mapping"))?;
        let counts = le_words::<4>(bonus).map(|[_, _, _, counts]| ObjectId(counts));
        Ok(Self { max_offset, bytes_mapped, entries, counts })
    }

    /// The bytes of the bonus.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = words_to_le(&[self.max_offset, self.bytes_mapped, self.entries]);
        out.extend(self.counts.iter().flat_map(|counts| counts.0.to_le_bytes()));
        out
    }
}

/// One segment of a removed device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingEntry {
    /// Byte offset on the removed device.
    pub source: u64,
    /// Where it is now; its `asize` is the length of the segment.
    pub destination: Dva,
}

impl MappingEntry {
    /// Decodes one entry.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let bad = |what| Error::new("indirect mapping entry", what);
        let [source, first, second] = le_words(data).ok_or_else(|| bad("truncated"))?;
        let destination = Dva::from_words(first, second).ok_or_else(|| bad("no length"))?;
        let source = (source & !(1 << 63)).checked_mul(SECTOR).ok_or_else(|| bad("source"))?;
        source.checked_add(destination.asize).ok_or_else(|| bad("source"))?;
        Ok(Self { source, destination })
    }

    /// The [`ENTRY`] bytes of this entry.
    pub fn encode(&self) -> Vec<u8> {
        let [first, second] = self.destination.to_words();
        words_to_le(&[self.source / SECTOR, first, second])
    }

    /// One past the last source byte.
    pub fn source_end(&self) -> u64 {
        self.source.saturating_add(self.destination.asize)
    }
}

/// A piece of a looked-up range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Byte offset inside the range asked for.
    pub within: u64,
    /// Bytes of the piece.
    pub length: u64,
    /// Vdev the piece is on now.
    pub vdev: u32,
    /// Byte offset there.
    pub offset: u64,
}

/// All entries of a removed device, ready for look-ups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    entries: Vec<MappingEntry>,
}

impl Mapping {
    /// Checks order and takes the entries.
    pub fn new(entries: Vec<MappingEntry>) -> Result<Self> {
        let ordered = entries.iter().zip(entries.iter().skip(1));
        for (entry, next) in ordered {
            if entry.source_end() > next.source {
                let why = format!("entries overlap at {:#x}", next.source);
                return Err(Error::new("indirect mapping", why));
            }
        }
        Ok(Self { entries })
    }

    /// Decodes the first `count` entries of the object's data.
    pub fn decode(data: &[u8], count: u64) -> Result<Self> {
        let short = || Error::truncated("indirect mapping");
        let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(ENTRY));
        let data = len.and_then(|len| data.get(..len)).ok_or_else(short)?;
        Self::new(data.chunks_exact(ENTRY).map(MappingEntry::decode).collect::<Result<_>>()?)
    }

    /// Adds entries behind the others; none of them if they do not follow in order.
    pub fn append(&mut self, entries: &[MappingEntry]) -> Result<()> {
        let mut end = self.max_offset();
        for entry in entries {
            if entry.source < end {
                let why = format!("an entry at {:#x} comes after {end:#x}", entry.source);
                return Err(Error::new("indirect mapping", why));
            }
            end = entry.source_end();
        }
        self.entries.extend_from_slice(entries);
        Ok(())
    }

    /// One past the last source byte of the last entry.
    pub fn max_offset(&self) -> u64 {
        self.entries.last().map_or(0, MappingEntry::source_end)
    }

    /// The entries in order of source.
    pub fn entries(&self) -> &[MappingEntry] {
        &self.entries
    }

    /// Where the `length` bytes at `offset` are now, in order; an error if part is not mapped.
    pub fn lookup(&self, offset: u64, length: u64) -> Result<Vec<Piece>> {
        let unmapped = |at: u64| {
            Error::new("indirect mapping", format!("{offset:#x}+{length:#x} unmapped at {at:#x}"))
        };
        let end = offset.checked_add(length).ok_or_else(|| unmapped(offset))?;
        let first = self.entries.partition_point(|entry| entry.source_end() <= offset);
        let mut pieces = Vec::new();
        let mut at = offset;
        for entry in self.entries.get(first..).unwrap_or(&[]) {
            if at >= end {
                break;
            }
            let skip = at.checked_sub(entry.source).ok_or_else(|| unmapped(at))?;
            let length = entry.source_end().min(end).saturating_sub(at);
            let target = entry.destination.offset.checked_add(skip).ok_or_else(|| unmapped(at))?;
            let vdev = entry.destination.vdev;
            pieces.push(Piece { within: at - offset, length, vdev, offset: target });
            at += length;
        }
        if at < end { Err(unmapped(at)) } else { Ok(pieces) }
    }
}

/// When a stretch of a removed device was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// One past the last byte copied; the stretch begins where the previous one ends.
    pub end_offset: u64,
    /// The txg it was copied in.
    pub txg: Txg,
}

impl Birth {
    /// The [`BIRTH_ENTRY`] bytes of this entry.
    pub fn encode(&self) -> Vec<u8> {
        words_to_le(&[self.end_offset, self.txg.0])
    }
}

/// Decodes the first `count` entries of a births object.
pub fn decode_births(data: &[u8], count: u64) -> Result<Vec<Birth>> {
    let short = || Error::truncated("indirect births");
    let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(BIRTH_ENTRY));
    let data = len.and_then(|len| data.get(..len)).ok_or_else(short)?;
    data.chunks_exact(BIRTH_ENTRY)
        .map(|raw| {
            let [end_offset, txg] = le_words(raw).ok_or_else(short)?;
            Ok(Birth { end_offset, txg: Txg(txg) })
        })
        .collect()
}

/// The txg in which the byte at `offset` was copied.
pub fn birth_of(births: &[Birth], offset: u64) -> Option<Txg> {
    births.get(births.partition_point(|birth| birth.end_offset <= offset)).map(|birth| birth.txg)
}

/// [`RemovalState::state`] of a removal under way.
pub const REMOVAL_ACTIVE: u64 = 1;
/// [`RemovalState::state`] of one that came to its end.
pub const REMOVAL_FINISHED: u64 = 2;
/// [`RemovalState::state`] of one that was given up.
pub const REMOVAL_CANCELED: u64 = 3;

/// State of the last or current device removal: MOS key `com.delphix:removing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalState {
    /// 0 none, 1 active, 2 finished, 3 cancelled.
    pub state: u64,
    /// Top-level vdev being removed.
    pub vdev: Option<u64>,
    /// Most recently removed top-level vdev.
    pub previous: Option<u64>,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 while running.
    pub end_time: u64,
    /// Bytes to copy.
    pub to_copy: u64,
    /// Bytes copied.
    pub copied: u64,
}

impl RemovalState {
    /// From the words of its MOS entry.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        let Some(&[state, vdev, previous, start_time, end_time, to_copy, copied]) =
            words.first_chunk::<7>()
        else {
            return Err(Error::truncated("removal state"));
        };
        let id = |raw: u64| (raw != u64::MAX).then_some(raw);
        let (vdev, previous) = (id(vdev), id(previous));
        Ok(Self { state, vdev, previous, start_time, end_time, to_copy, copied })
    }

    /// The words of its MOS entry.
    pub fn to_words(&self) -> [u64; 7] {
        let id = |id: Option<u64>| id.unwrap_or(u64::MAX);
        [
            self.state,
            id(self.vdev),
            id(self.previous),
            self.start_time,
            self.end_time,
            self.to_copy,
            self.copied,
        ]
    }
}

/// A mapping that is being condensed: MOS key `com.delphix:condensing_indirect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condensing {
    /// Top-level vdev.
    pub vdev: u64,
    /// Space map of what was obsolete when it began.
    pub obsolete_map: ObjectId,
    /// The mapping object being written.
    pub mapping: ObjectId,
}

impl Condensing {
    /// From the words of its MOS entry.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        match words.first_chunk::<3>() {
            Some(&[vdev, map, mapping]) => {
                Ok(Self { vdev, obsolete_map: ObjectId(map), mapping: ObjectId(mapping) })
            }
            None => Err(Error::truncated("condensing state")),
        }
    }

    /// The words of its MOS entry.
    pub fn to_words(&self) -> [u64; 3] {
        [self.vdev, self.obsolete_map.0, self.mapping.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(source: u64, length: u64, vdev: u32, offset: u64) -> MappingEntry {
        MappingEntry { source, destination: Dva { vdev, offset, asize: length, gang: false } }
    }

    #[test]
    fn real_entry_of_chapter_03() {
        let raw = hex::decode("e2000000000000008c00000001000000c384010000000000").unwrap();
        let decoded = MappingEntry::decode(&raw).unwrap();
        assert_eq!(decoded, entry(0x1c400, 0x11800, 1, 0x309_8600));
        assert_eq!(decoded.encode(), raw);
        assert!(MappingEntry::decode(&[0; 24]).is_err());
    }

    #[test]
    fn lookups_split_and_refuse_gaps() {
        let entries = vec![
            entry(0, 0x1000, 0, 0x8000),
            entry(0x1000, 0x2000, 1, 0x4000),
            entry(0x8000, 512, 0, 0),
        ];
        let mapping = Mapping::new(entries.clone()).unwrap();
        let pieces = mapping.lookup(0x800, 0x1000).unwrap();
        assert_eq!(
            pieces,
            [
                Piece { within: 0, length: 0x800, vdev: 0, offset: 0x8800 },
                Piece { within: 0x800, length: 0x800, vdev: 1, offset: 0x4000 },
            ]
        );
        assert!(mapping.lookup(0x2800, 0x1000).is_err());
        assert!(mapping.lookup(0x8000, 1024).is_err());
        assert!(mapping.lookup(u64::MAX, 2).is_err());
        assert!(mapping.lookup(0x5000, 16).is_err());
        assert!(Mapping::new(entries.into_iter().rev().collect()).is_err());
        assert!(Mapping::decode(&[0; 24], 2).is_err());
    }

    #[test]
    fn states_and_births() {
        let words = [2, 2, 2, 1_795_198_203, 1_795_198_204, 7_207_936, 7_207_936];
        let state = RemovalState::from_words(&words).unwrap();
        assert_eq!((state.vdev, state.copied, state.to_words()), (Some(2), 7_207_936, words));
        assert!(RemovalState::from_words(&words[..6]).is_err());
        let raw = words_to_le(&[0x1000, 7, 0x3000, 8]);
        let births = decode_births(&raw, 2).unwrap();
        assert_eq!(birth_of(&births, 0xfff), Some(Txg(7)));
        assert_eq!((birth_of(&births, 0x1000), birth_of(&births, 0x3000)), (Some(Txg(8)), None));
        assert!(decode_births(&raw, u64::MAX).is_err());
    }
}
