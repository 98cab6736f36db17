//! Making block pointers: holes with a birth, embedded payloads, stored blocks, and their sizes as
//! space accounting counts them.
//!
//! Chapter 02, section 2. Invariant: a pointer made here passes [`BlockPointer::validate`], says
//! little-endian, and has every bit zero that its form does not define.

use crate::blkptr::{BlockPointer, Dva, EMBEDDED_MAX, MAX_BLOCK, SECTOR};
use crate::object_type::ObjectType;
use crate::{Error, Level, Result, Txg};

/// Bit of the property word: the payload is in the pointer.
const EMBEDDED: u64 = 1 << 39;
/// Bit of the property word: encrypted, authenticated or with a MAC of MACs.
const CRYPT: u64 = 1 << 61;
/// Bit of the property word: the block is in a dedup table.
const DEDUP: u64 = 1 << 62;
/// Bit of the property word: written by a little-endian host.
const LITTLE_ENDIAN: u64 = 1 << 63;
/// Words of an embedded pointer that carry its payload, in order.
const PAYLOAD_WORDS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

/// A block on the disks, as its pointer describes it.
#[derive(Clone, Copy, Debug)]
pub struct StoredBlock<'a> {
    /// One to three addresses (encrypted level-0 blocks: at most two).
    pub dvas: &'a [Dva],
    /// Logical size in bytes, a multiple of 512.
    pub lsize: u64,
    /// Stored size in bytes, a multiple of 512.
    pub psize: u64,
    /// Compression id (section 7.1).
    pub compression: u8,
    /// Checksum id (section 6.1).
    pub checksum_id: u8,
    /// The four checksum words.
    pub checksum: [u64; 4],
    /// Type of the object.
    pub object_type: ObjectType,
    /// Height in the block tree.
    pub level: Level,
    /// Bit X: encrypted, authenticated, or an indirect block with a MAC of MACs.
    pub crypt: bool,
    /// When the content was written, and when its bytes reached the disk: a new block has one birth.
    pub birth: Txg,
    /// Non-empty blocks (or dnodes) below the pointer.
    pub fill: u64,
}

fn refused(reason: String) -> Error {
    Error::new("block pointer to write", reason)
}

/// A size in the biased form of the property word.
fn sectors(bytes: u64) -> Result<u64> {
    if bytes == 0 || bytes > MAX_BLOCK || !bytes.is_multiple_of(SECTOR) {
        return Err(refused(format!("{bytes} bytes is no block size")));
    }
    Ok(bytes / SECTOR - 1)
}

fn kind(object_type: ObjectType, level: Level) -> Result<u64> {
    if !object_type.is_valid() || level.0 > 0x1f {
        return Err(refused(format!("type {} at level {level}", object_type.0)));
    }
    Ok(u64::from(object_type.0) << 48 | u64::from(level.0) << 56)
}

fn set(words: &mut [u64; 16], index: usize, value: u64) {
    if let Some(word) = words.get_mut(index) {
        *word = value;
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

impl StoredBlock<'_> {
    /// The pointer. Errors: sizes, types or addresses no pointer can express.
    pub fn pointer(&self) -> Result<BlockPointer> {
        let mut words = [0; 16];
        let encrypted = self.crypt && self.level.0 == 0 && self.object_type.is_encrypted();
        let most = if encrypted { 2 } else { 3 };
        if self.dvas.is_empty() || self.dvas.len() > most {
            return Err(refused(format!("{} addresses", self.dvas.len())));
        }
        for (index, dva) in self.dvas.iter().enumerate() {
            let [first, second] = dva.to_words();
            if Dva::from_words(first, second) != Some(*dva) {
                return Err(refused(format!("address {dva:?}")));
            }
            set(&mut words, index * 2, first);
            set(&mut words, index * 2 + 1, second);
        }
        if encrypted && self.fill > u64::from(u32::MAX) {
            return Err(refused(format!("fill {} of an encrypted block", self.fill)));
        }
        if self.compression > 0x7f {
            return Err(refused(format!("compression id {}", self.compression)));
        }
        let prop = sectors(self.lsize)?
            | sectors(self.psize)? << 16
            | u64::from(self.compression) << 32
            | u64::from(self.checksum_id) << 40
            | kind(self.object_type, self.level)?
            | if self.crypt { CRYPT } else { 0 }
            | LITTLE_ENDIAN;
        set(&mut words, 6, prop);
        set(&mut words, 10, self.birth.0);
        set(&mut words, 11, self.fill);
        for (index, word) in self.checksum.iter().enumerate() {
            set(&mut words, 12 + index, *word);
        }
        let pointer = BlockPointer { words };
        pointer.validate()?;
        Ok(pointer)
    }
}

impl BlockPointer {
    /// A hole that remembers when it was made (feature `hole_birth`, section 2.6).
    pub fn hole_born(
        lsize: u64,
        object_type: ObjectType,
        level: Level,
        birth: Txg,
    ) -> Result<Self> {
        let mut words = [0; 16];
        set(&mut words, 6, sectors(lsize)? | kind(object_type, level)?);
        set(&mut words, 10, birth.0);
        Ok(Self { words })
    }

    /// A pointer that carries `payload` itself: the `compression` of `lsize` bytes (section 2.7).
    pub fn embed(
        payload: &[u8],
        lsize: u64,
        compression: u8,
        object_type: ObjectType,
        birth: Txg,
    ) -> Result<Self> {
        if payload.is_empty() || payload.len() > EMBEDDED_MAX || lsize == 0 || lsize > MAX_BLOCK {
            let len = payload.len();
            return Err(refused(format!("an embedded payload of {len} bytes for {lsize}")));
        }
        let mut words = [0; 16];
        for (index, bytes) in PAYLOAD_WORDS.into_iter().zip(payload.chunks(8)) {
            set(&mut words, index, word(bytes));
        }
        let prop = (lsize - 1)
            | (payload.len() as u64 - 1) << 25
            | u64::from(compression & 0x7f) << 32
            | EMBEDDED
            | kind(object_type, Level(0))?
            | LITTLE_ENDIAN;
        set(&mut words, 6, prop);
        set(&mut words, 10, birth.0);
        let pointer = Self { words };
        pointer.validate()?;
        Ok(pointer)
    }

    /// Puts salt, initialisation vector and tag of an encrypted level-0 block in their places
    /// (section 2.9). The pointer must be little-endian.
    pub fn set_encryption(&mut self, salt: [u8; 8], iv: [u8; 12], mac: [u8; 16]) {
        let [head @ .., _, _, _, _] = &iv;
        let [_, _, _, _, _, _, _, _, tail @ ..] = &iv;
        set(&mut self.words, 4, word(&salt));
        set(&mut self.words, 5, word(head));
        let fill = self.words.get(11).copied().unwrap_or(0) & 0xffff_ffff;
        set(&mut self.words, 11, fill | word(tail) << 32);
        self.set_mac(mac);
    }

    /// Says that the block is in a dedup table, where its copies reached the disk in `physical`.
    pub fn set_dedup(&mut self, physical: Txg) {
        let prop = self.prop() | DEDUP;
        set(&mut self.words, 6, prop);
        let known = if physical == self.logical_birth() { 0 } else { physical.0 };
        set(&mut self.words, 9, known);
    }

    /// The same block as part of another tree from group `logical` on: when its bytes reached the disks
    /// does not change. Holes stay as they are.
    #[must_use]
    pub fn reborn(mut self, logical: Txg) -> Self {
        let physical = self.physical_birth();
        if self.is_hole() {
            return self;
        }
        set(&mut self.words, 10, logical.0);
        if !self.is_embedded() {
            set(&mut self.words, 9, if physical == logical { 0 } else { physical.0 });
        }
        self
    }

    /// Puts a MAC in the last two checksum words. The pointer must be little-endian.
    pub fn set_mac(&mut self, mac: [u8; 16]) {
        let (first, second) = mac.split_at(8);
        set(&mut self.words, 14, word(first));
        set(&mut self.words, 15, word(second));
    }

    /// Allocated bytes of all copies, parity and padding included.
    pub fn asize(&self) -> u64 {
        self.dvas().fold(0, |sum, dva| sum.saturating_add(dva.asize))
    }

    /// Bytes charged for the block: what its copies allocate, scaled by the `deflate` ratio of each
    /// top-level vdev (512ths; chapter 06 on space accounting). Holes and embedded blocks: 0.
    pub fn dsize(&self, deflate: impl Fn(u32) -> u64) -> u64 {
        self.dvas().fold(0, |sum, dva| {
            sum.saturating_add((dva.asize >> 9).saturating_mul(deflate(dva.vdev)))
        })
    }

    /// Stored bytes as `compressed_bytes` counts them: 0 for holes and embedded blocks.
    pub fn counted_psize(&self) -> u64 {
        if self.is_hole() || self.is_embedded() { 0 } else { self.psize() }
    }

    /// Bytes as `uncompressed_bytes` counts them: metadata counts as stored, data as written.
    pub fn counted_ucsize(&self) -> u64 {
        if self.is_hole() {
            0
        } else if self.level().0 > 0 || self.object_type().is_metadata() {
            self.counted_psize()
        } else if self.is_redacted() {
            0
        } else {
            self.lsize()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(text: &str) -> BlockPointer {
        BlockPointer::decode(&hex::decode(text).unwrap()).unwrap()
    }

    /// The MOS root pointer of chapter 02, section 2.11.
    fn mos_root() -> BlockPointer {
        real(
            "0200000001000000661e0000000000000200000001000000201e020000000000\
             0200000001000000e40b100000000000070000000f070b800000000000000000\
             000000000000000000000000000000005700000000000000c800000000000000\
             e67e78e20a0000005ab12683660400007443a94df7e7000002ba484414722000",
        )
    }

    #[test]
    fn a_real_pointer_is_made_again_bit_for_bit() {
        let bp = mos_root();
        let dvas: Vec<Dva> = bp.dvas().collect();
        let stored = StoredBlock {
            dvas: &dvas,
            lsize: bp.lsize(),
            psize: bp.psize(),
            compression: bp.compression(),
            checksum_id: bp.checksum_id(),
            checksum: bp.checksum(),
            object_type: bp.object_type(),
            level: bp.level(),
            crypt: false,
            birth: bp.logical_birth(),
            fill: bp.fill(),
        };
        assert_eq!(stored.pointer().unwrap(), bp);
        assert_eq!((bp.asize(), bp.dsize(|_| 512), bp.dsize(|_| 341)), (3072, 3072, 2046));
        assert_eq!((bp.counted_psize(), bp.counted_ucsize()), (512, 512));
        for dvas in [&[][..], &[dvas[0]; 4][..], &[Dva { offset: 1, ..dvas[0] }][..]] {
            assert!(StoredBlock { dvas, ..stored }.pointer().is_err());
        }
        let too_large = StoredBlock { psize: MAX_BLOCK + 512, ..stored };
        assert!(too_large.pointer().is_err());
        let encrypted = StoredBlock { crypt: true, object_type: ObjectType::DNODE, ..stored };
        assert!(encrypted.pointer().is_err(), "three copies of an encrypted block");
    }

    #[test]
    fn a_real_embedded_pointer_is_made_again() {
        let mut raw = hex::decode(
            "000000246d0028a50028fd000090efcdab89674523016500270007003b003100\
             051000c3ffc6181b78620c0900000000ff7f005690001a80",
        )
        .unwrap();
        raw.resize(128, 0);
        raw[80] = 0x3b;
        let bp = BlockPointer::decode(&raw).unwrap();
        let payload = bp.embedded_payload().unwrap();
        let made = BlockPointer::embed(&payload, 0x8000, 16, ObjectType::OTHER_U64, Txg(0x3b));
        assert_eq!(made.unwrap(), bp);
        assert_eq!((bp.dsize(|_| 512), bp.counted_psize()), (0, 0));
        for len in 1..=EMBEDDED_MAX {
            let payload: Vec<u8> = (0..len).map(|byte| byte as u8 + 1).collect();
            let bp = BlockPointer::embed(&payload, 4096, 15, ObjectType(0xc4), Txg(9)).unwrap();
            assert_eq!(bp.embedded_payload().unwrap(), payload);
            assert_eq!((bp.lsize(), bp.psize(), bp.level()), (4096, len as u64, Level(0)));
        }
        let long = [1; EMBEDDED_MAX + 1];
        assert!(BlockPointer::embed(&long, 4096, 15, ObjectType(0xc4), Txg(9)).is_err());
    }

    #[test]
    fn a_real_hole_is_made_again() {
        let bp = BlockPointer::hole_born(16384, ObjectType::DNODE, Level(0), Txg(43)).unwrap();
        let mut words = [0; 16];
        words[6] = u64::from_le_bytes(*b"\x1f\0\0\0\0\0\x0a\0");
        words[10] = 43;
        assert_eq!(bp, BlockPointer { words });
        assert!(bp.is_hole() && bp.lsize() == 16384);
        let above = BlockPointer::hole_born(4096, ObjectType::PLAIN_FILE, Level(1), Txg(10));
        assert_eq!(above.unwrap().prop(), u64::from_le_bytes(*b"\x07\0\0\0\0\0\x13\x01"));
        assert!(BlockPointer::hole_born(100, ObjectType::DNODE, Level(0), Txg(1)).is_err());
    }

    #[test]
    fn salt_iv_and_tag_come_back() {
        let mut bp = mos_root();
        bp.words[6] =
            u64::from_le_bytes(hex::decode("1f001f0002080aa0").unwrap().try_into().unwrap());
        bp.words[11] = 2;
        let bytes = |text: &str| hex::decode(text).unwrap();
        let (salt, iv) = (bytes("caf032d59e525a56"), bytes("1cd703707ef40736030f9f78"));
        let mac = bytes("15f709f2af2f21066f5665b8521bc084");
        bp.set_encryption(
            salt.clone().try_into().unwrap(),
            iv.clone().try_into().unwrap(),
            mac.clone().try_into().unwrap(),
        );
        assert_eq!((bp.salt().to_vec(), bp.iv().to_vec(), bp.mac().to_vec()), (salt, iv, mac));
        assert_eq!(bp.fill(), 2);
        assert_eq!(bp.words[11].to_le_bytes(), *bytes("02000000030f9f78").first_chunk().unwrap());
    }
}
