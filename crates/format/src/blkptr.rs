//! Block pointers: where a block lies, how it is stored, and what its bytes must hash to.
//!
//! Chapter 02, section 2. A pointer is kept as its sixteen numeric words, so that whatever was read
//! can be written back bit for bit; fields are views into those words.

use crate::bytes::{le64, put_le64};
use crate::object_type::ObjectType;
use crate::{Error, Level, Result, Txg};

/// Size of a block pointer on disk, in bytes.
pub const SIZE: usize = 128;
/// Bytes per unit of every size and offset field (chapter 02, section 1).
pub const SECTOR: u64 = 512;
/// Largest logical and physical block size readers accept, in bytes.
pub const MAX_BLOCK: u64 = 16 << 20;
/// Most bytes an embedded pointer can carry.
pub const EMBEDDED_MAX: usize = 112;

/// Checksum id of a noparity block (chapter 02, section 6.1).
pub const CHECKSUM_OFF: u8 = 2;

/// One copy's address: device, offset, allocated size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dva {
    /// Top-level vdev id.
    pub vdev: u32,
    /// Byte offset in the allocatable area of the top-level vdev (labels not counted).
    pub offset: u64,
    /// Allocated bytes, parity and padding included.
    pub asize: u64,
    /// The address is that of a gang header.
    pub gang: bool,
}

impl Dva {
    /// Decodes the two numeric words of an address; `None` when it is unused (asize 0).
    pub fn from_words(first: u64, second: u64) -> Option<Self> {
        let asize = (first & 0x00ff_ffff) << 9;
        if asize == 0 {
            return None;
        }
        Some(Self {
            vdev: ((first >> 32) & 0x00ff_ffff) as u32,
            offset: (second & !(1 << 63)) << 9,
            asize,
            gang: second >> 63 == 1,
        })
    }

    /// The two numeric words of this address.
    pub fn to_words(self) -> [u64; 2] {
        let first =
            ((u64::from(self.vdev) & 0x00ff_ffff) << 32) | ((self.asize >> 9) & 0x00ff_ffff);
        let second = (self.offset >> 9) | (u64::from(self.gang) << 63);
        [first, second]
    }
}

/// What an embedded pointer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Embedded {
    /// Compressed data.
    Data,
    /// Reserved by the format.
    Reserved,
    /// A redacted block: its data was left out of a redacted send.
    Redacted,
}

/// A block pointer, as its sixteen numeric words.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockPointer {
    /// The words, numeric (already in host order).
    pub words: [u64; 16],
}

impl Default for BlockPointer {
    fn default() -> Self {
        Self::HOLE
    }
}

impl BlockPointer {
    /// A hole that was never written.
    pub const HOLE: Self = Self { words: [0; 16] };

    /// Decodes a pointer from the first 128 bytes of `data` (little-endian words).
    pub fn decode(data: &[u8]) -> Result<Self> {
        let mut words = [0; 16];
        for (i, word) in words.iter_mut().enumerate() {
            *word = le64(data, i * 8).ok_or_else(|| Error::truncated("block pointer"))?;
        }
        Ok(Self { words })
    }

    /// Every whole pointer in `data`, in order.
    pub fn decode_all(data: &[u8]) -> impl Iterator<Item = Self> + '_ {
        data.chunks_exact(SIZE).filter_map(|chunk| Self::decode(chunk).ok())
    }

    /// The pointer at index `index` of an indirect block.
    pub fn decode_at(data: &[u8], index: usize) -> Result<Self> {
        let start = index.checked_mul(SIZE).ok_or_else(|| Error::truncated("indirect block"))?;
        let chunk = data.get(start..).ok_or_else(|| Error::truncated("indirect block"))?;
        Self::decode(chunk)
    }

    /// The 128 bytes of this pointer, little-endian.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut out = [0; SIZE];
        for (i, word) in self.words.iter().enumerate() {
            // Cannot fail: 16 words of 8 bytes fill the array exactly.
            let _ = put_le64(&mut out, i * 8, *word);
        }
        out
    }

    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    /// The property word (w6).
    pub fn prop(&self) -> u64 {
        self.word(6)
    }

    /// No block is behind this pointer: its range reads as zeros.
    pub fn is_hole(&self) -> bool {
        !self.is_embedded() && self.word(0) == 0 && self.word(1) == 0
    }

    /// The payload lies in the pointer itself.
    pub fn is_embedded(&self) -> bool {
        self.prop() >> 39 & 1 == 1
    }

    /// Kind of an embedded pointer; `None` if it is not embedded or of no known kind.
    pub fn embedded_kind(&self) -> Option<Embedded> {
        if !self.is_embedded() {
            return None;
        }
        match self.prop() >> 40 & 0xff {
            0 => Some(Embedded::Data),
            1 => Some(Embedded::Reserved),
            2 => Some(Embedded::Redacted),
            _ => None,
        }
    }

    /// The block's content was left out by a redacted receive.
    pub fn is_redacted(&self) -> bool {
        self.embedded_kind() == Some(Embedded::Redacted)
    }

    /// Logical size in bytes.
    pub fn lsize(&self) -> u64 {
        if self.is_embedded() {
            (self.prop() & 0x01ff_ffff) + 1
        } else {
            ((self.prop() & 0xffff) + 1) << 9
        }
    }

    /// Physical (stored) size in bytes, before device padding and parity.
    pub fn psize(&self) -> u64 {
        if self.is_embedded() {
            (self.prop() >> 25 & 0x7f) + 1
        } else {
            ((self.prop() >> 16 & 0xffff) + 1) << 9
        }
    }

    /// Compression id (chapter 02, section 7.1).
    pub fn compression(&self) -> u8 {
        (self.prop() >> 32 & 0x7f) as u8
    }

    /// Checksum id (chapter 02, section 6.1); meaningless when embedded.
    pub fn checksum_id(&self) -> u8 {
        (self.prop() >> 40 & 0xff) as u8
    }

    /// Type of the object the block belongs to.
    pub fn object_type(&self) -> ObjectType {
        ObjectType((self.prop() >> 48 & 0xff) as u8)
    }

    /// Height in the block tree.
    pub fn level(&self) -> Level {
        Level((self.prop() >> 56 & 0x1f) as u8)
    }

    /// Encrypted, authenticated, or carrying a MAC of MACs (bit X).
    pub fn is_crypt(&self) -> bool {
        self.prop() >> 61 & 1 == 1
    }

    /// The block is in the dedup table.
    pub fn is_dedup(&self) -> bool {
        self.prop() >> 62 & 1 == 1
    }

    /// The pointed-to block was written little-endian.
    pub fn is_little_endian(&self) -> bool {
        self.prop() >> 63 == 1
    }

    /// Level-0 block whose bytes are encrypted (salt, IV and MAC are in the pointer).
    pub fn is_encrypted(&self) -> bool {
        self.is_crypt() && self.level().0 == 0 && self.object_type().is_encrypted()
    }

    /// Level-0 block stored in the clear but covered by a MAC.
    pub fn is_authenticated(&self) -> bool {
        self.is_crypt() && self.level().0 == 0 && !self.object_type().is_encrypted()
    }

    /// The three addresses; the third is none when salt and IV take its place.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + '_ {
        let limit = match (self.is_embedded(), self.is_encrypted()) {
            (true, _) => 0,
            (false, true) => 2,
            (false, false) => 3,
        };
        (0..limit).filter_map(|i| Dva::from_words(self.word(i * 2), self.word(i * 2 + 1)))
    }

    /// The first address.
    pub fn first_dva(&self) -> Option<Dva> {
        self.dvas().next()
    }

    /// The block is a gang: its addresses name gang headers.
    pub fn is_gang(&self) -> bool {
        self.first_dva().is_some_and(|dva| dva.gang)
    }

    /// Transaction group in which the content was written.
    pub fn logical_birth(&self) -> Txg {
        Txg(self.word(10))
    }

    /// Transaction group in which the bytes of the first address reached the disk.
    pub fn physical_birth(&self) -> Txg {
        match (self.is_embedded(), self.word(9)) {
            (true, _) | (false, 0) => self.logical_birth(),
            (false, birth) => Txg(birth),
        }
    }

    /// Number of non-empty blocks (or dnodes) below this pointer.
    pub fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_encrypted() {
            self.word(11) & 0xffff_ffff
        } else {
            self.word(11)
        }
    }

    /// The four checksum words.
    pub fn checksum(&self) -> [u64; 4] {
        [self.word(12), self.word(13), self.word(14), self.word(15)]
    }

    /// Bytes of `words` in the order this pointer's block was written in (chapter 02, section 5).
    fn word_bytes(&self, word: u64) -> [u8; 8] {
        if self.is_little_endian() { word.to_le_bytes() } else { word.to_be_bytes() }
    }

    /// The 8-byte salt of an encrypted block.
    pub fn salt(&self) -> [u8; 8] {
        self.word_bytes(self.word(4))
    }

    /// The 12-byte initialisation vector of an encrypted block.
    pub fn iv(&self) -> [u8; 12] {
        let mut iv = [0; 12];
        let head = self.word_bytes(self.word(5));
        let tail = (self.word(11) >> 32) as u32;
        let tail = if self.is_little_endian() { tail.to_le_bytes() } else { tail.to_be_bytes() };
        for (to, from) in iv.iter_mut().zip(head.into_iter().chain(tail)) {
            *to = from;
        }
        iv
    }

    /// The 16-byte MAC kept in the last two checksum words of a pointer with bit X.
    pub fn mac(&self) -> [u8; 16] {
        let mut mac = [0; 16];
        let words = [self.word_bytes(self.word(14)), self.word_bytes(self.word(15))];
        for (to, from) in mac.iter_mut().zip(words.into_iter().flatten()) {
            *to = from;
        }
        mac
    }

    /// The payload of an embedded pointer, exactly `psize` bytes.
    pub fn embedded_payload(&self) -> Option<Vec<u8>> {
        if !self.is_embedded() {
            return None;
        }
        let mut payload = Vec::with_capacity(EMBEDDED_MAX);
        for index in [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15] {
            payload.extend_from_slice(&self.word(index).to_le_bytes());
        }
        let psize = usize::try_from(self.psize()).ok()?;
        if psize > payload.len() {
            return None;
        }
        payload.truncate(psize);
        Some(payload)
    }

    /// Checks everything a reader can check without knowing the pool (chapter 02, section 2.10).
    pub fn validate(&self) -> Result<()> {
        let bad = |reason: String| Err(Error::new("block pointer", reason));
        if self.is_hole() {
            return Ok(());
        }
        if !self.object_type().is_valid() {
            return bad(format!("object type {} does not exist", self.object_type().0));
        }
        if self.compression() >= 17 {
            return bad(format!("compression id {} does not exist", self.compression()));
        }
        if self.is_embedded() {
            if self.embedded_kind().is_none() {
                return bad("embedded pointer of no known kind".into());
            }
            if self.psize() > EMBEDDED_MAX as u64 || self.lsize() > MAX_BLOCK {
                return bad(format!("embedded sizes {}/{} too large", self.psize(), self.lsize()));
            }
            return Ok(());
        }
        if self.checksum_id() >= 15 {
            return bad(format!("checksum id {} does not exist", self.checksum_id()));
        }
        if self.lsize() > MAX_BLOCK || self.psize() > MAX_BLOCK {
            return bad(format!("sizes {}/{} above 16 MiB", self.lsize(), self.psize()));
        }
        if self.first_dva().is_none() {
            return bad("no first address".into());
        }
        Ok(())
    }
}

impl std::fmt::Debug for BlockPointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_hole() {
            return write!(f, "hole(birth {})", self.logical_birth());
        }
        if self.is_embedded() {
            return write!(
                f,
                "embedded({:?} {}L/{}P birth {})",
                self.embedded_kind(),
                self.lsize(),
                self.psize(),
                self.logical_birth()
            );
        }
        f.write_str("bp(")?;
        for dva in self.dvas() {
            let gang = if dva.gang { "G" } else { "" };
            write!(f, "{}:{:x}:{:x}{gang} ", dva.vdev, dva.offset, dva.asize)?;
        }
        write!(
            f,
            "L{} type {} {}L/{}P comp {} cksum {} birth {}/{} fill {})",
            self.level(),
            self.object_type().0,
            self.lsize(),
            self.psize(),
            self.compression(),
            self.checksum_id(),
            self.logical_birth(),
            self.physical_birth(),
            self.fill()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The MOS root pointer of chapter 02, section 2.11.
    fn mos_root() -> BlockPointer {
        let text = "0200000001000000661e0000000000000200000001000000201e020000000000\
                    0200000001000000e40b100000000000070000000f070b800000000000000000\
                    000000000000000000000000000000005700000000000000c800000000000000\
                    e67e78e20a0000005ab12683660400007443a94df7e7000002ba484414722000";
        BlockPointer::decode(&hex::decode(text).unwrap()).unwrap()
    }

    #[test]
    fn fields_of_a_real_pointer() {
        let bp = mos_root();
        let dvas: Vec<_> = bp.dvas().map(|d| (d.vdev, d.offset, d.asize, d.gang)).collect();
        assert_eq!(
            dvas,
            [(1, 0x3ccc00, 1024, false), (1, 0x43c4000, 1024, false), (1, 0x2017c800, 1024, false)]
        );
        assert_eq!(
            (bp.lsize(), bp.psize(), bp.compression(), bp.checksum_id()),
            (4096, 512, 15, 7)
        );
        assert_eq!((bp.object_type().0, bp.level().0, bp.is_little_endian()), (11, 0, true));
        assert_eq!((bp.logical_birth(), bp.physical_birth(), bp.fill()), (Txg(87), Txg(87), 200));
        assert_eq!(BlockPointer::decode(&bp.encode()).unwrap(), bp);
        let dva = bp.first_dva().unwrap();
        assert_eq!(dva.to_words(), [bp.words[0], bp.words[1]]);
    }

    #[test]
    fn embedded_payload_skips_prop_and_birth() {
        let head = "000000246d0028a50028fd000090efcdab89674523016500270007003b003100\
                    051000c3ffc6181b78620c0900000000ff7f005690001a80";
        let mut raw = hex::decode(head).unwrap();
        raw.resize(128, 0);
        raw[80] = 0x3b;
        let bp = BlockPointer::decode(&raw).unwrap();
        assert!(bp.is_embedded() && !bp.is_hole());
        assert_eq!((bp.lsize(), bp.psize(), bp.compression()), (0x8000, 44, 16));
        let payload = bp.embedded_payload().unwrap();
        assert_eq!(payload.len(), 44);
        assert_eq!(payload, raw[..44]);
        assert_eq!(bp.logical_birth(), Txg(0x3b));
    }

    #[test]
    fn encrypted_pointer_gives_salt_iv_and_mac() {
        let mut bp = mos_root();
        let word = |s: &str| u64::from_le_bytes(hex::decode(s).unwrap().try_into().unwrap());
        bp.words[4] = word("caf032d59e525a56");
        bp.words[5] = word("1cd703707ef40736");
        bp.words[6] = word("1f001f0002080aa0");
        bp.words[11] = word("02000000030f9f78");
        bp.words[14] = word("15f709f2af2f2106");
        bp.words[15] = word("6f5665b8521bc084");
        assert!(bp.is_encrypted());
        assert_eq!(hex::encode(bp.iv()), "1cd703707ef40736030f9f78");
        assert_eq!(hex::encode(bp.salt()), "caf032d59e525a56");
        assert_eq!(hex::encode(bp.mac()), "15f709f2af2f21066f5665b8521bc084");
        assert_eq!((bp.fill(), bp.dvas().count()), (2, 2));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut bp = mos_root();
        bp.words[6] |= 0xff << 40;
        assert!(bp.validate().is_err());
        bp = mos_root();
        bp.words[6] |= 0x3f << 48;
        assert!(bp.validate().is_err());
        assert!(BlockPointer::decode(&[0; 127]).is_err());
    }
}
