//! Bookmarks of snapshots, and the lists of blocks that redaction bookmarks carry.
//!
//! Chapter 06, section 16. A bookmark is an array of words in a ZAP; a redaction list is an object.
//! Invariant: the short form (3 words) and the long form (12 words) are told apart by length alone.

use crate::bpobj::Space;
use crate::bytes::{le_words, words_to_le};
use crate::{Error, Guid, ObjectId, Result, Txg};

/// `freed_before_next` is kept up to date.
pub const FLAG_HAS_FREED_BEFORE_NEXT: u64 = 1;
/// The snapshot still exists.
pub const FLAG_SNAPSHOT_EXISTS: u64 = 2;

/// What only the long form has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BookmarkDetails {
    /// Redaction list, or 0.
    pub redaction_list: ObjectId,
    /// `FLAG_*` bits.
    pub flags: u64,
    /// Sizes of the snapshot.
    pub referenced: Space,
    /// Space freed between this snapshot and the next one.
    pub freed_before_next: Space,
    /// Identity of the IV set, or 0.
    pub ivset_guid: Guid,
}

/// A bookmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bookmark {
    /// Guid of the snapshot.
    pub guid: Guid,
    /// Txg of the snapshot.
    pub creation_txg: Txg,
    /// Time of the snapshot, seconds since 1970.
    pub creation_time: u64,
    /// The rest, if the long form was stored.
    pub details: Option<BookmarkDetails>,
}

impl Bookmark {
    /// From the words of its ZAP entry.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        let short = || Error::new("bookmark", format!("{} words", words.len()));
        let (head, rest) = words.split_first_chunk::<3>().ok_or_else(short)?;
        let [guid, creation_txg, creation_time] = *head;
        let details = match rest.first_chunk::<9>() {
            Some(
                &[list, flags, used, compressed, uncompressed, f_used, f_comp, f_uncomp, ivset],
            ) => Some(BookmarkDetails {
                redaction_list: ObjectId(list),
                flags,
                referenced: Space { used, compressed, uncompressed },
                freed_before_next: Space {
                    used: f_used,
                    compressed: f_comp,
                    uncompressed: f_uncomp,
                },
                ivset_guid: Guid(ivset),
            }),
            None if rest.is_empty() => None,
            None => return Err(short()),
        };
        Ok(Self { guid: Guid(guid), creation_txg: Txg(creation_txg), creation_time, details })
    }

    /// The words of its ZAP entry.
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![self.guid.0, self.creation_txg.0, self.creation_time];
        if let Some(details) = &self.details {
            let (referenced, freed) = (&details.referenced, &details.freed_before_next);
            words.extend([details.redaction_list.0, details.flags]);
            words.extend([referenced.used, referenced.compressed, referenced.uncompressed]);
            words.extend([freed.used, freed.compressed, freed.uncompressed]);
            words.push(details.ivset_guid.0);
        }
        words
    }
}

/// The bonus (or spill) of a redaction list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedactionHeader {
    /// Last object looked at; all ones with `last_block` when the list is complete.
    pub last_object: u64,
    /// Last block looked at.
    pub last_block: u64,
    /// Number of entries.
    pub entries: u64,
    /// Guids of the snapshots whose changes were redacted.
    pub snapshots: Vec<Guid>,
}

impl RedactionHeader {
    /// Decodes the bonus or spill bytes.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let short = || Error::truncated("redaction list");
        let [last_object, last_block, entries, count] = le_words(data).ok_or_else(short)?;
        let raw = data.get(32..).ok_or_else(short)?;
        let wanted = usize::try_from(count).ok().and_then(|c| c.checked_mul(8));
        let raw = wanted.and_then(|len| raw.get(..len)).ok_or_else(short)?;
        let snapshots = raw
            .chunks_exact(8)
            .filter_map(|word| Some(Guid(u64::from_le_bytes(word.try_into().ok()?))))
            .collect();
        Ok(Self { last_object, last_block, entries, snapshots })
    }

    /// The bytes of the bonus or spill.
    pub fn encode(&self) -> Vec<u8> {
        let count = self.snapshots.len() as u64;
        let mut out = words_to_le(&[self.last_object, self.last_block, self.entries, count]);
        out.extend(self.snapshots.iter().flat_map(|guid| guid.0.to_le_bytes()));
        out
    }

    /// The whole snapshot has been looked at.
    pub fn is_complete(&self) -> bool {
        self.last_object == u64::MAX && self.last_block == u64::MAX
    }
}

/// A run of redacted blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedactionEntry {
    /// The object.
    pub object: ObjectId,
    /// First block id.
    pub block: u64,
    /// Block size in bytes.
    pub block_size: u64,
    /// Number of blocks, at least 1.
    pub count: u64,
}

impl RedactionEntry {
    /// Size of an entry in bytes.
    pub const SIZE: usize = 32;

    /// Decodes one entry.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let [object, block, size_count, _] =
            le_words(data).ok_or_else(|| Error::truncated("redaction entry"))?;
        Ok(Self {
            object: ObjectId(object),
            block,
            block_size: (size_count >> 48) << 9,
            count: (size_count & 0xffff_ffff_ffff) + 1,
        })
    }

    /// The 32 bytes of this entry. Fails if size or count do not fit their fields.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let bad = |what| Error::new("redaction entry", what);
        let sectors = self.block_size >> 9;
        let last = self.count.checked_sub(1).ok_or_else(|| bad("no blocks"))?;
        if sectors > 0xffff || last > 0xffff_ffff_ffff {
            return Err(bad("size or count too great"));
        }
        Ok(words_to_le(&[self.object.0, self.block, sectors << 48 | last, 0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_round_trip() {
        let long: Vec<u64> = (1..=12).collect();
        let bookmark = Bookmark::from_words(&long).unwrap();
        assert_eq!(bookmark.to_words(), long);
        let details = bookmark.details.unwrap();
        assert_eq!((details.redaction_list.0, details.flags, details.ivset_guid.0), (4, 5, 12));
        assert_eq!(details.freed_before_next.used, 9);
        let short = Bookmark::from_words(&long[..3]).unwrap();
        assert!(short.details.is_none() && short.to_words() == long[..3]);
        for len in [0, 2, 4, 11] {
            assert!(Bookmark::from_words(&long[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn vector_t8_round_trips() {
        let raw = hex::decode("0100000000000000020000000000000001000000000008000000000000000000")
            .unwrap();
        let entry = RedactionEntry::decode(&raw).unwrap();
        assert_eq!((entry.object.0, entry.block, entry.block_size, entry.count), (1, 2, 4096, 2));
        assert_eq!(entry.encode().unwrap(), raw);
        assert!(RedactionEntry { count: 0, ..entry }.encode().is_err());
    }

    #[test]
    fn redaction_header_bounds_its_guids() {
        let header = RedactionHeader {
            last_object: u64::MAX,
            last_block: u64::MAX,
            entries: 3,
            snapshots: vec![Guid(7), Guid(8)],
        };
        let raw = header.encode();
        assert_eq!(RedactionHeader::decode(&raw).unwrap(), header);
        assert!(header.is_complete());
        let mut hostile = raw.clone();
        hostile[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(RedactionHeader::decode(&hostile).is_err());
        assert!(RedactionHeader::decode(&raw[..40]).is_err());
    }
}
