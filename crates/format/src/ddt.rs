//! Dedup tables: which blocks are shared, and how often.
//!
//! Chapter 06, section 20. Keys and values of the table ZAPs, the log of fast dedup, and the
//! histograms. Invariant: values decode in either byte order; a value never grows past its size.

use std::borrow::Cow;

use crate::blkptr::{Dva, SECTOR};
use crate::bytes::{ByteOrder, array, le_words, slice, words_to_le};
use crate::{BlockPointer, Error, ObjectType, Result, Txg};

/// Names of the checksums a table can be for, with their ids (chapter 02, section 6.1).
pub const CHECKSUMS: [(&str, u8); 5] =
    [("sha256", 8), ("sha512", 11), ("skein", 12), ("edonr", 13), ("blake3", 14)];
/// Buckets of a histogram; bucket `n` counts entries with `2^n <= references < 2^(n+1)`.
pub const BUCKETS: usize = 64;
/// MOS key of the ZAP of histograms.
pub const STATISTICS: &str = "DDT-statistics";
/// Directory key: 0 legacy, [`FAST_VERSION`] (u64).
pub const KEY_VERSION: &str = "version";
/// Fast dedup.
pub const FAST_VERSION: u64 = 1;
/// Directory key: [`FLAG_FLAT`] and [`FLAG_LOG`] (u64).
pub const KEY_FLAGS: &str = "flags";
/// Values are flat (72 bytes).
pub const FLAG_FLAT: u64 = 1;
/// Changes go through a log.
pub const FLAG_LOG: u64 = 2;

/// Which table of a checksum an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Obsolete.
    Ditto,
    /// More than one reference.
    Duplicate,
    /// One reference.
    Unique,
}

impl Class {
    /// All classes, by number.
    pub const ALL: [Self; 3] = [Self::Ditto, Self::Duplicate, Self::Unique];

    /// Its word in the names of tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ditto => "ditto",
            Self::Duplicate => "duplicate",
            Self::Unique => "unique",
        }
    }
}

/// Name of a table's ZAP, in the MOS directory (legacy) or the table's directory (fast dedup).
pub fn table_name(checksum: &str, class: Class) -> String {
    format!("DDT-{checksum}-zap-{}", class.name())
}

/// MOS key of a fast dedup table's directory.
pub fn directory_name(checksum: &str) -> String {
    format!("DDT-{checksum}")
}

/// Directory key of one of the two logs of a fast dedup table.
pub fn log_name(checksum: &str, index: u8) -> String {
    format!("DDT-log-{checksum}-{index}")
}

/// Key of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Checksum of the block.
    pub checksum: [u64; 4],
    /// Sizes, compression and encryption bit.
    pub prop: u64,
}

impl Key {
    /// Words of the ZAP key.
    pub const WORDS: usize = 5;

    /// The key under which the block of a pointer is listed.
    pub fn of(pointer: &BlockPointer) -> Self {
        let (lsize, psize) = (pointer.lsize(), pointer.psize());
        let encrypted = pointer.is_encrypted();
        Self::new(pointer.checksum(), lsize, psize, pointer.compression(), encrypted)
    }

    /// The key of a block of these sizes in bytes and this compression id.
    pub fn new(
        checksum: [u64; 4],
        lsize: u64,
        psize: u64,
        compression: u8,
        encrypted: bool,
    ) -> Self {
        let sectors = |bytes: u64| (bytes / SECTOR).saturating_sub(1) & 0xffff;
        let compression = u64::from(compression & 0x7f) << 32;
        let prop = sectors(lsize) | sectors(psize) << 16 | compression;
        Self { checksum, prop: prop | u64::from(encrypted) << 39 }
    }

    /// From the words of the ZAP key.
    pub fn from_words([c0, c1, c2, c3, prop]: [u64; 5]) -> Self {
        Self { checksum: [c0, c1, c2, c3], prop }
    }

    /// The words of the ZAP key.
    pub fn to_words(self) -> [u64; 5] {
        let [c0, c1, c2, c3] = self.checksum;
        [c0, c1, c2, c3, self.prop]
    }

    /// Logical size in bytes.
    pub fn lsize(&self) -> u64 {
        ((self.prop & 0xffff) + 1) * SECTOR
    }

    /// Physical size in bytes.
    pub fn psize(&self) -> u64 {
        ((self.prop >> 16 & 0xffff) + 1) * SECTOR
    }

    /// Compression id.
    pub fn compression(&self) -> u8 {
        (self.prop >> 32 & 0x7f) as u8
    }

    /// The block is encrypted: its third address is salt and initialisation vector.
    pub fn is_encrypted(&self) -> bool {
        self.prop >> 39 & 1 == 1
    }

    /// A pointer to the copies of `slot` of the entry of this key: without the bit that says the
    /// block is in a table, of the type that stands for deduplicated blocks. `checksum` is the id
    /// of the table's checksum.
    pub fn pointer(&self, slot: &Physical, checksum: u8) -> BlockPointer {
        let mut words = [0; 16];
        for (word, value) in words.iter_mut().zip(slot.addresses.iter().flatten()) {
            *word = *value;
        }
        let prop = self.prop & 0x7f_ffff_ffff
            | u64::from(checksum) << 40
            | u64::from(ObjectType::DEDUP.0) << 48
            | u64::from(self.is_encrypted()) << 61
            | 1 << 63;
        let [c0, c1, c2, c3] = self.checksum;
        let rest = [(6, prop), (10, slot.birth.0), (11, 1), (12, c0), (13, c1), (14, c2), (15, c3)];
        for (index, value) in rest {
            if let Some(word) = words.get_mut(index) {
                *word = value;
            }
        }
        BlockPointer { words }
    }
}

/// Copies of a block and their references.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Physical {
    /// The words of the addresses; of an encrypted block, the third are salt and initialisation
    /// vector.
    pub addresses: [[u64; 2]; 3],
    /// References; 0 for an unused slot.
    pub references: u64,
    /// Txg in which the bytes were written.
    pub birth: Txg,
}

/// Value of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// By number of copies: ditto (obsolete), single, double, triple.
    Legacy(Box<[Physical; 4]>),
    /// One slot for all, and the time (seconds since 1970) it was entered.
    Flat(Physical, u64),
}

/// Bytes of one legacy slot.
const LEGACY_SLOT: usize = 64;
/// Bytes of a legacy value.
pub const LEGACY: usize = 4 * LEGACY_SLOT;
/// Bytes of a flat value.
pub const FLAT: usize = 72;
/// Compression id of ZLE, the only one used besides none.
const COMPRESSION_ZLE: u8 = 14;
/// Longest literal run of ZLE here.
const ZLE_LITERALS: u8 = 64;

impl Physical {
    fn decode(data: &[u8], order: ByteOrder) -> Option<Self> {
        let words = |at| Some([order.u64(data, at)?, order.u64(data, at + 8)?]);
        let addresses = [words(0)?, words(16)?, words(32)?];
        Some(Self { addresses, references: order.u64(data, 48)?, birth: Txg(order.u64(data, 56)?) })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out: Vec<u64> = self.addresses.iter().flatten().copied().collect();
        out.extend([self.references, self.birth.0]);
        words_to_le(&out)
    }

    /// The copies behind `pointer`, with one reference.
    pub fn of(pointer: &BlockPointer) -> Self {
        let [a, b, c, d, e, f, ..] = pointer.words;
        let addresses = [[a, b], [c, d], [e, f]];
        Self { addresses, references: 1, birth: pointer.physical_birth() }
    }

    /// The same block with more copies: those behind `pointer`.
    pub fn extended(&self, pointer: &BlockPointer) -> Self {
        Self { addresses: Self::of(pointer).addresses, ..*self }
    }

    /// The slot holds copies.
    pub fn is_used(&self) -> bool {
        self.birth != Txg(0)
    }

    /// Where the copies of the entry of `key` lie.
    pub fn dvas(&self, key: &Key) -> impl Iterator<Item = Dva> + '_ {
        let count = if key.is_encrypted() { 2 } else { 3 };
        let dvas = self.addresses.iter().take(count);
        dvas.filter_map(|[first, second]| Dva::from_words(*first, *second))
    }
}

impl Value {
    /// Decodes the bytes of a ZAP value: a version byte, then the data, maybe compressed.
    /// `flat` as the table's flags say.
    pub fn decode(stored: &[u8], flat: bool) -> Result<Self> {
        let bad = |what: &'static str| Error::new("dedup entry", what);
        let (version, body) = stored.split_first().ok_or_else(|| bad("empty"))?;
        let order = if version & 0x80 != 0 { ByteOrder::Little } else { ByteOrder::Big };
        let size = if flat { FLAT } else { LEGACY };
        let data = match version & 0x7f {
            COMPRESSION_ZLE => Cow::Owned(zle(body, size).ok_or_else(|| bad("does not expand"))?),
            2 => Cow::Borrowed(body),
            _ => return Err(bad("unknown compression")),
        };
        Self::decode_plain(&data, flat, order).ok_or_else(|| bad("truncated"))
    }

    fn decode_plain(data: &[u8], flat: bool, order: ByteOrder) -> Option<Self> {
        if flat {
            return Some(Self::Flat(Physical::decode(data, order)?, order.u64(data, 64)?));
        }
        let mut slots = [Physical::default(); 4];
        for (index, slot) in slots.iter_mut().enumerate() {
            let raw = slice(data, index * LEGACY_SLOT, LEGACY_SLOT)?;
            *slot = Physical::decode(raw, order)?;
        }
        Some(Self::Legacy(Box::new(slots)))
    }

    /// The bytes of a ZAP value, not compressed (which readers accept).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0x82];
        match self {
            Self::Legacy(slots) => out.extend(slots.iter().flat_map(Physical::encode)),
            Self::Flat(slot, since) => {
                out.extend(slot.encode());
                out.extend_from_slice(&since.to_le_bytes());
            }
        }
        out
    }

    /// References of all slots.
    pub fn references(&self) -> u64 {
        match self {
            Self::Legacy(slots) => {
                slots.iter().fold(0, |sum: u64, slot| sum.saturating_add(slot.references))
            }
            Self::Flat(slot, _) => slot.references,
        }
    }
}

/// Expands zero-length encoding to exactly `size` bytes.
fn zle(data: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(size);
    let mut rest = data;
    while out.len() < size {
        let (&run, after) = rest.split_first()?;
        if run < ZLE_LITERALS {
            let (literal, after) = after.split_at_checked(usize::from(run) + 1)?;
            out.extend_from_slice(literal);
            rest = after;
        } else {
            let zeros = usize::from(run) + 1 - usize::from(ZLE_LITERALS);
            out.resize(out.len() + zeros, 0);
            rest = after;
        }
    }
    (out.len() == size).then_some(out)
}

/// One bucket of a histogram, or a sum of them. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks stored.
    pub blocks: u64,
    /// Their logical size.
    pub lsize: u64,
    /// Their physical size.
    pub psize: u64,
    /// Their allocated size.
    pub dsize: u64,
    /// References to them.
    pub referenced_blocks: u64,
    /// Logical size times references.
    pub referenced_lsize: u64,
    /// Physical size times references.
    pub referenced_psize: u64,
    /// Allocated size times references.
    pub referenced_dsize: u64,
}

impl Statistics {
    /// What the copies of an entry count for, with their bucket; `None` if it has no references.
    /// `deflate` is the ratio of a top-level vdev (512ths; chapter 06 on space accounting).
    pub fn of(
        key: &Key,
        slots: &[Physical],
        deflate: impl Fn(u32) -> u64,
    ) -> Option<(usize, Self)> {
        let (lsize, psize) = (key.lsize(), key.psize());
        let mut sum = Self::default();
        for slot in slots.iter().filter(|slot| slot.is_used()) {
            let dsize = slot.dvas(key).fold(0, |sum: u64, dva| {
                sum.saturating_add((dva.asize >> 9).saturating_mul(deflate(dva.vdev)))
            });
            sum.add(&Self {
                blocks: 1,
                lsize,
                psize,
                dsize,
                referenced_blocks: slot.references,
                referenced_lsize: lsize.saturating_mul(slot.references),
                referenced_psize: psize.saturating_mul(slot.references),
                referenced_dsize: dsize.saturating_mul(slot.references),
            });
        }
        let bucket = sum.referenced_blocks.checked_ilog2()?;
        Some((bucket as usize, sum))
    }

    /// Takes `other` away, which was added before.
    pub fn subtract(&mut self, other: &Self) {
        let less = |to: &mut u64, from: u64| *to = to.saturating_sub(from);
        less(&mut self.blocks, other.blocks);
        less(&mut self.lsize, other.lsize);
        less(&mut self.psize, other.psize);
        less(&mut self.dsize, other.dsize);
        less(&mut self.referenced_blocks, other.referenced_blocks);
        less(&mut self.referenced_lsize, other.referenced_lsize);
        less(&mut self.referenced_psize, other.referenced_psize);
        less(&mut self.referenced_dsize, other.referenced_dsize);
    }

    /// The words of a bucket.
    fn words(&self) -> [u64; 8] {
        [
            self.blocks,
            self.lsize,
            self.psize,
            self.dsize,
            self.referenced_blocks,
            self.referenced_lsize,
            self.referenced_psize,
            self.referenced_dsize,
        ]
    }

    /// Adds `other`; sums stay at the maximum rather than wrap.
    pub fn add(&mut self, other: &Self) {
        let sum = |to: &mut u64, from: u64| *to = to.saturating_add(from);
        sum(&mut self.blocks, other.blocks);
        sum(&mut self.lsize, other.lsize);
        sum(&mut self.psize, other.psize);
        sum(&mut self.dsize, other.dsize);
        sum(&mut self.referenced_blocks, other.referenced_blocks);
        sum(&mut self.referenced_lsize, other.referenced_lsize);
        sum(&mut self.referenced_psize, other.referenced_psize);
        sum(&mut self.referenced_dsize, other.referenced_dsize);
    }
}

/// The buckets of a histogram, from the words of its ZAP entry.
pub fn histogram(words: &[u64]) -> Result<Vec<Statistics>> {
    let (buckets, ragged) = words.as_chunks::<8>();
    if buckets.len() != BUCKETS || !ragged.is_empty() {
        return Err(Error::new("dedup histogram", format!("{} words", words.len())));
    }
    let bucket =
        |&[blocks, lsize, psize, dsize, rblocks, rlsize, rpsize, rdsize]: &[u64; 8]| Statistics {
            blocks,
            lsize,
            psize,
            dsize,
            referenced_blocks: rblocks,
            referenced_lsize: rlsize,
            referenced_psize: rpsize,
            referenced_dsize: rdsize,
        };
    Ok(buckets.iter().map(bucket).collect())
}

/// The words of a histogram's ZAP entry.
pub fn histogram_words(buckets: &[Statistics]) -> Vec<u64> {
    buckets.iter().flat_map(Statistics::words).collect()
}

/// Block size of a log in bytes; records do not span blocks.
pub const LOG_BLOCK: usize = 131_072;

/// The bonus of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogHeader {
    /// The log is being written into the tables.
    pub flushing: bool,
    /// Entries up to this key are in the tables already.
    pub checkpoint: Option<Key>,
    /// Valid bytes.
    pub length: u64,
    /// First txg in the log.
    pub first_txg: Txg,
}

impl LogHeader {
    /// Decodes the 64 bytes of the bonus.
    pub fn decode(bonus: &[u8]) -> Result<Self> {
        let [info, length, first_txg, c0, c1, c2, c3, prop] =
            le_words(bonus).ok_or_else(|| Error::truncated("dedup log"))?;
        if info & 0xff > 1 {
            return Err(Error::new("dedup log", format!("version {}", info & 0xff)));
        }
        let has_checkpoint = info >> 9 & 1 == 1;
        Ok(Self {
            flushing: info >> 8 & 1 == 1,
            checkpoint: has_checkpoint.then_some(Key::from_words([c0, c1, c2, c3, prop])),
            length,
            first_txg: Txg(first_txg),
        })
    }

    /// The 64 bytes of the bonus.
    pub fn encode(&self) -> Vec<u8> {
        let flags = u64::from(self.flushing) << 8 | u64::from(self.checkpoint.is_some()) << 9;
        let [c0, c1, c2, c3, prop] = self.checkpoint.unwrap_or_default().to_words();
        words_to_le(&[1 | flags, self.length, self.first_txg.0, c0, c1, c2, c3, prop])
    }
}

/// An entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Number of the class it belongs to (index into [`Class::ALL`]).
    pub class: u8,
    /// Its key.
    pub key: Key,
    /// Its value; no references mean it is gone.
    pub value: Physical,
    /// Seconds since 1970 when it was entered.
    pub since: u64,
}

/// The entries of one block of a log. After an error nothing follows.
pub fn log_entries(block: &[u8]) -> impl Iterator<Item = Result<LogEntry>> + '_ {
    let mut rest = block;
    std::iter::from_fn(move || {
        loop {
            let info = array(rest, 0).map(u64::from_le_bytes).filter(|info| *info != 0)?;
            let length = usize::from((info >> 8) as u16);
            let Some((record, after)) = rest.split_at_checked(length).filter(|_| length >= 8)
            else {
                rest = &[];
                return Some(Err(Error::new("dedup log", "a record does not fit its block")));
            };
            rest = after;
            if info & 0xff == 1 {
                return Some(
                    log_entry(info, record)
                        .ok_or_else(|| Error::new("dedup log", "an entry is too short")),
                );
            }
        }
    })
}

fn log_entry(info: u64, record: &[u8]) -> Option<LogEntry> {
    let key = Key::from_words(le_words(record.get(8..)?)?);
    let raw = record.get(48..)?;
    let value = Physical::decode(raw, ByteOrder::Little)?;
    let since = ByteOrder::Little.u64(raw, 64)?;
    Some(LogEntry { class: (info >> 56) as u8, key, value, since })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_t6() {
        let raw = hex::decode("8e7f000846023680046400014600 6ac6".replace(' ', "")).unwrap();
        let Value::Legacy(slots) = Value::decode(&raw, false).unwrap() else { panic!() };
        let key = Key { prop: 0x0000_0002_0007_0007, ..Key::default() };
        let dva = slots[1].dvas(&key).next().unwrap();
        assert_eq!((dva.vdev, dva.asize, dva.offset), (0, 4096, 0x48036 << 9));
        assert_eq!((slots[1].references, slots[1].birth), (1, Txg(0x6a)));
        assert_eq!(slots[0], Physical::default());
        let duplicate = hex::decode("8e7f000846021a8004640002460064c6").unwrap();
        let value = Value::decode(&duplicate, false).unwrap();
        assert_eq!(value.references(), 2);
        assert_eq!(Value::decode(&value.encode(), false).unwrap(), value);
        let key = Key { checksum: [1, 2, 3, 4], prop: 0x0000_0002_0007_0007 };
        assert_eq!((key.lsize(), key.psize(), key.compression()), (4096, 4096, 2));
        assert_eq!(Key::from_words(key.to_words()), key);
    }

    #[test]
    fn hostile_values_are_errors() {
        for bad in ["", "8e", "8eff", "83", "8200", "8e3f0000", "8effffff"] {
            let raw = hex::decode(bad).unwrap();
            assert!(Value::decode(&raw, false).is_err(), "{bad}");
            assert!(Value::decode(&raw, true).is_err(), "{bad}");
        }
    }

    #[test]
    fn log_records() {
        let key = Key { checksum: [9, 8, 7, 6], prop: 5 };
        let slot = Physical { references: 3, birth: Txg(4), ..Physical::default() };
        let mut record = words_to_le(&[1 | 120 << 8 | 2 << 56]);
        record.extend(words_to_le(&key.to_words()));
        record.extend(slot.encode());
        record.extend(words_to_le(&[77]));
        let mut block = record.clone();
        block.extend(&record);
        block.resize(400, 0);
        let entries: Vec<LogEntry> = log_entries(&block).map(|entry| entry.unwrap()).collect();
        assert_eq!(entries, [LogEntry { class: 2, key, value: slot, since: 77 }; 2]);
        let mut endless = words_to_le(&[1 | 4 << 8]);
        endless.resize(64, 0);
        assert!(log_entries(&endless).next().unwrap().is_err());
        let mut bonus = words_to_le(&[1 | 3 << 8, LOG_BLOCK as u64, 12]);
        bonus.extend(words_to_le(&key.to_words()));
        let header = LogHeader::decode(&bonus).unwrap();
        assert!(header.flushing && header.checkpoint == Some(key) && header.first_txg == Txg(12));
        assert_eq!(header.encode(), bonus);
        assert_eq!(LogHeader::decode(&LogHeader::default().encode()), Ok(LogHeader::default()));
    }

    #[test]
    fn histograms_are_64_buckets() {
        let mut words = vec![0; 512];
        words[8] = 5;
        words[15] = 6;
        let buckets = histogram(&words).unwrap();
        assert_eq!((buckets[1].blocks, buckets[1].referenced_dsize), (5, 6));
        let mut sum = Statistics::default();
        buckets.iter().for_each(|bucket| sum.add(bucket));
        assert_eq!(sum.blocks, 5);
        assert_eq!(histogram_words(&buckets), words);
        sum.subtract(&buckets[1]);
        assert_eq!(sum, Statistics::default());
        assert!(histogram(&words[..504]).is_err());
    }

    #[test]
    fn entries_lead_to_their_blocks_and_count() {
        let key = Key { checksum: [1, 2, 3, 4], prop: 0x0000_000f_0007_00ff };
        let mut pointer = BlockPointer::HOLE;
        pointer.words[..4].copy_from_slice(&[8, 0x48036, 1 << 32 | 8, 0x100]);
        pointer.words[10] = 0x6a;
        let slot = Physical { references: 5, ..Physical::of(&pointer) };
        let dvas: Vec<Dva> = slot.dvas(&key).collect();
        assert_eq!((dvas.len(), dvas[1].vdev, slot.birth), (2, 1, Txg(0x6a)));
        let made = key.pointer(&slot, 8);
        assert_eq!(Key::of(&made), key);
        assert_eq!((made.checksum_id(), made.is_dedup(), made.is_crypt()), (8, false, false));
        assert_eq!(made.dvas().collect::<Vec<_>>(), dvas);
        let sealed = Key { prop: key.prop | 1 << 39, ..key };
        let salted = Physical { addresses: [[8, 1], [0, 0], [u64::MAX, u64::MAX]], ..slot };
        assert_eq!(salted.dvas(&sealed).count(), 1);
        assert!(sealed.pointer(&salted, 8).is_encrypted());
        let value = Value::Legacy(Box::new([Physical::default(), salted, slot, slot]));
        assert_eq!(Value::decode(&value.encode(), false).unwrap(), value);
        let (bucket, sum) = Statistics::of(&key, &[Physical::default(), slot], |_| 512).unwrap();
        assert_eq!((bucket, sum.blocks, sum.dsize), (2, 1, 8192));
        assert_eq!((sum.referenced_lsize, sum.referenced_dsize), (5 * 131_072, 5 * 8192));
        assert_eq!(Statistics::of(&key, &[], |_| 512), None);
    }
}
