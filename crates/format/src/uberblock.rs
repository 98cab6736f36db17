//! The uberblock: the root of a pool at one transaction group.
//!
//! Invariant: a decoded uberblock keeps numeric values whatever order it was written in, and encodes
//! back to the same bytes. Chapter 01, section 8.

use std::cmp::Ordering;

use crate::blkptr::BlockPointer;
use crate::bytes::{ByteOrder, put};
use crate::{Error, Result, Txg};

/// Magic number, numeric.
pub const MAGIC: u64 = 0x00ba_b10c;
/// Magic number that marks the activity fields as meaningful.
pub const ACTIVITY_MAGIC: u64 = 0xa11c_ea11;
/// Bytes of the structure since RAID-Z expansion; older writers leave the last word zero.
pub const SIZE: usize = 216;
/// Words of the structure.
pub const WORDS: usize = SIZE / 8;

/// The root of a pool. Sizes are bytes, times UTC seconds unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uberblock {
    /// Byte order of the host that wrote it, which is that of the whole pool's last writer.
    pub order: ByteOrder,
    /// Pool version: 1 to 28, or 5000.
    pub version: u64,
    /// The transaction group this commits; 0 marks a template that cannot be loaded.
    pub txg: Txg,
    /// Sum of the guids of every vdev, modulo 2^64 (section 7.6).
    pub guid_sum: u64,
    /// When it was written.
    pub timestamp: u64,
    /// The object set of the pool's own metadata.
    pub root: BlockPointer,
    /// Highest version its writer supports.
    pub software_version: u64,
    /// [`ACTIVITY_MAGIC`] if the two next fields mean something.
    pub activity_magic: u64,
    /// 0 when multihost is off, else a decaying average of nanoseconds between activity writes.
    pub activity_delay: u64,
    /// Interval, sequence and failure count of activity writes, packed.
    pub activity_config: u64,
    /// Transaction group of the checkpoint this was rewound to, else 0.
    pub checkpoint_txg: u64,
    /// Progress of a RAID-Z expansion.
    pub reflow: Reflow,
}

/// The word that tells how far a RAID-Z expansion has come (section 8.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reflow(pub u64);

/// State of the scratch space a RAID-Z expansion uses at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScratchState {
    /// Not used.
    NotInUse,
    /// The start of the vdev lies in the boot areas and must be copied before any write.
    Valid,
    /// Copied back during the expansion.
    InvalidSynced,
    /// Copied back by an import.
    InvalidSyncedOnImport,
    /// Copied back, expansion going on.
    InvalidSyncedReflow,
    /// A value no release writes.
    Unknown(u16),
}

impl Reflow {
    /// So many bytes (whole sectors) are in the new layout, and the scratch space holds this.
    pub fn of(offset: u64, scratch: ScratchState) -> Self {
        let state: u16 = match scratch {
            ScratchState::NotInUse => 0,
            ScratchState::Valid => 1,
            ScratchState::InvalidSynced => 2,
            ScratchState::InvalidSyncedOnImport => 3,
            ScratchState::InvalidSyncedReflow => 4,
            ScratchState::Unknown(other) => other,
        };
        Self((offset >> 9) & ((1 << 55) - 1) | u64::from(state) << 55)
    }

    /// Bytes already in the new layout.
    pub fn offset(self) -> u64 {
        (self.0 & ((1 << 55) - 1)) << 9
    }

    /// What the scratch space holds.
    pub fn scratch(self) -> ScratchState {
        match (self.0 >> 55) as u16 {
            0 => ScratchState::NotInUse,
            1 => ScratchState::Valid,
            2 => ScratchState::InvalidSynced,
            3 => ScratchState::InvalidSyncedOnImport,
            4 => ScratchState::InvalidSyncedReflow,
            other => ScratchState::Unknown(other),
        }
    }
}

impl Uberblock {
    /// Decodes an uberblock from the start of a slot, in whichever order its magic announces.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let magic = ByteOrder::Little.u64(data, 0).ok_or_else(|| Error::truncated("uberblock"))?;
        let order = if magic == MAGIC {
            ByteOrder::Little
        } else if magic.swap_bytes() == MAGIC {
            ByteOrder::Big
        } else {
            return Err(Error::new("uberblock", "wrong magic number"));
        };
        let word =
            |index: usize| order.u64(data, index * 8).ok_or_else(|| Error::truncated("uberblock"));
        let mut root = BlockPointer::HOLE;
        for (i, slot) in root.words.iter_mut().enumerate() {
            *slot = word(5 + i)?;
        }
        Ok(Self {
            order,
            version: word(1)?,
            txg: Txg(word(2)?),
            guid_sum: word(3)?,
            timestamp: word(4)?,
            root,
            software_version: word(21)?,
            activity_magic: word(22)?,
            activity_delay: word(23)?,
            activity_config: word(24)?,
            checkpoint_txg: word(25)?,
            reflow: Reflow(word(26)?),
        })
    }

    /// Decodes the words a checkpoint keeps of an uberblock: 26 from older writers, 27 from newer.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        let mut data = [0; SIZE];
        if words.len() < WORDS - 1 {
            return Err(Error::truncated("checkpoint uberblock"));
        }
        for (i, word) in words.iter().take(WORDS).enumerate() {
            let _ = put(&mut data, i * 8, &word.to_le_bytes());
        }
        Self::decode(&data)
    }

    /// Its words in order, numeric.
    pub fn to_words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let head = [MAGIC, self.version, self.txg.0, self.guid_sum, self.timestamp];
        let tail = [
            self.software_version,
            self.activity_magic,
            self.activity_delay,
            self.activity_config,
            self.checkpoint_txg,
            self.reflow.0,
        ];
        let all = head.iter().chain(&self.root.words).chain(&tail);
        words.iter_mut().zip(all).for_each(|(word, value)| *word = *value);
        words
    }

    /// The bytes of the structure in its own order; zeros up to the slot's trailer follow it.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut out = [0; SIZE];
        for (i, word) in self.to_words().iter().enumerate() {
            let bytes = match self.order {
                ByteOrder::Little => word.to_le_bytes(),
                ByteOrder::Big => word.to_be_bytes(),
            };
            let _ = put(&mut out, i * 8, &bytes);
        }
        out
    }

    /// Whether the activity fields mean anything.
    pub fn has_activity(&self) -> bool {
        self.activity_magic == ACTIVITY_MAGIC
    }

    /// Milliseconds between activity writes, if recorded.
    pub fn activity_interval(&self) -> Option<u64> {
        self.activity_field(0).then_some((self.activity_config >> 8) & 0x00ff_ffff)
    }

    /// Sequence number of the activity write, if recorded.
    pub fn activity_sequence(&self) -> Option<u16> {
        self.activity_field(1).then_some((self.activity_config >> 32) as u16)
    }

    /// Missed intervals after which the writer suspends itself (0 never), if recorded.
    pub fn activity_fail_intervals(&self) -> Option<u16> {
        self.activity_field(2).then_some((self.activity_config >> 48) as u16)
    }

    fn activity_field(&self, bit: u32) -> bool {
        self.has_activity() && self.activity_config >> bit & 1 == 1
    }

    /// Which of two is the newer one (section 8.6): the group, then the time, then the sequence of
    /// activity writes. Equal ones are interchangeable.
    pub fn compare_recency(&self, other: &Self) -> Ordering {
        self.recency().cmp(&other.recency())
    }

    /// Which state of the pool it tells of, in order: transaction group, seconds since 1970, number of the activity
    /// write.
    pub fn recency(&self) -> (u64, u64, u64) {
        (self.txg.0, self.timestamp, self.activity_sequence().map_or(0, u64::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chapter 01, section 20.4: a slot written by OpenZFS 2.1.11.
    fn real() -> Vec<u8> {
        let text = "
            0cb1ba0000000000 8813000000000000 5700000000000000 6997d23db06b0de8
            e083006b00000000
            0200000001000000661e000000000000 0200000001000000201e020000000000
            0200000001000000e40b100000000000
            070000000f070b80 0000000000000000 0000000000000000 0000000000000000
            5700000000000000 c800000000000000
            e67e78e20a000000 5ab1268366040000 7443a94df7e70000 02ba484414722000
            8813000000000000 11ea1ca100000000 0000000000000000 0000000000000000
            0000000000000000 0000000000000000";
        hex::decode(text.split_whitespace().collect::<String>()).unwrap()
    }

    #[test]
    fn a_real_slot_decodes_and_encodes_back() {
        let raw = real();
        let ub = Uberblock::decode(&raw).unwrap();
        assert_eq!((ub.version, ub.txg, ub.timestamp), (5000, Txg(87), 1_795_195_872));
        assert_eq!(ub.guid_sum, 16_721_139_396_192_147_305);
        assert_eq!(ub.root.logical_birth(), Txg(87));
        assert!(ub.has_activity());
        assert_eq!(ub.activity_sequence(), None);
        assert_eq!(ub.encode()[..], raw[..]);
    }

    #[test]
    fn either_byte_order() {
        let mut raw = real();
        let little = Uberblock::decode(&raw).unwrap();
        crate::bytes::swap_elements::<8>(&mut raw);
        let big = Uberblock::decode(&raw).unwrap();
        assert_eq!(big.order, ByteOrder::Big);
        assert_eq!(big.to_words(), little.to_words());
        assert_eq!(big.encode()[..], raw[..]);
    }

    #[test]
    fn activity_fields_unpack() {
        let mut ub = Uberblock::decode(&real()).unwrap();
        ub.activity_config = 0x000a_0002_0003_e807;
        assert_eq!(ub.activity_interval(), Some(1000));
        assert_eq!(ub.activity_sequence(), Some(2));
        assert_eq!(ub.activity_fail_intervals(), Some(10));
        ub.activity_magic = 0;
        assert_eq!(ub.activity_interval(), None);
    }

    #[test]
    fn the_newest_wins_by_group_then_time_then_sequence() {
        let base = Uberblock::decode(&real()).unwrap();
        let mut later = base.clone();
        later.timestamp += 1;
        assert_eq!(later.compare_recency(&base), Ordering::Greater);
        let mut newer = base.clone();
        newer.txg.0 += 1;
        newer.timestamp = 0;
        assert_eq!(newer.compare_recency(&later), Ordering::Greater);
        let mut sequenced = base.clone();
        sequenced.activity_config = 0x000a_0001_0003_e807;
        assert_eq!(sequenced.compare_recency(&base), Ordering::Greater);
        assert_eq!(base.compare_recency(&base.clone()), Ordering::Equal);
    }

    #[test]
    fn reflow_words_unpack() {
        let reflow = Reflow((1 << 55) | 3);
        assert_eq!((reflow.offset(), reflow.scratch()), (1536, ScratchState::Valid));
        assert_eq!(Reflow(9 << 55).scratch(), ScratchState::Unknown(9));
        for word in [0, 1 << 55 | 3, 2 << 55 | 77, 3 << 55, 4 << 55 | 0xffff, 9 << 55 | 1] {
            let reflow = Reflow(word);
            assert_eq!(Reflow::of(reflow.offset(), reflow.scratch()), reflow);
        }
    }

    #[test]
    fn short_or_wrong_bytes_are_errors() {
        let raw = real();
        assert!(Uberblock::decode(&raw[..SIZE - 1]).is_err());
        assert!(Uberblock::decode(&[0; SIZE]).is_err());
        let words = Uberblock::decode(&raw).unwrap().to_words();
        assert_eq!(Uberblock::from_words(&words[..26]).unwrap().txg, Txg(87));
        assert!(Uberblock::from_words(&words[..25]).is_err());
    }
}
