//! Hashes of ZAP keys.
//!
//! Chapter 04, section 14: a reflected CRC-64 that starts at the salt, cut to its top 28 or 48
//! bits. Invariant: a hash handed out has only the bits its width allows.

use super::normalize::{self, Normalization};

/// Reflected polynomial of the CRC.
pub const POLYNOMIAL: u64 = 0xc96c_5795_d787_0f42;

/// Fat ZAP flag: hashes are 48 bits wide.
pub const FLAG_HASH64: u64 = 1;
/// Fat ZAP flag: keys are arrays of 64-bit words.
pub const FLAG_UINT64_KEY: u64 = 2;
/// Fat ZAP flag: the first word of a key is its hash.
pub const FLAG_PRE_HASHED: u64 = 4;

const TABLE: [u64; 256] = table();

#[allow(clippy::indexing_slicing, reason = "evaluated at compile time, 0 <= i < 256")]
const fn table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u64;
        let mut bit = 0;
        while bit < 8 {
            c = (c >> 1) ^ (if c & 1 == 1 { POLYNOMIAL } else { 0 });
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
}

#[allow(clippy::indexing_slicing, reason = "a byte cannot leave a table of 256")]
fn step(crc: u64, byte: u8) -> u64 {
    (crc >> 8) ^ TABLE[usize::from((crc.to_le_bytes()[0]) ^ byte)]
}

/// The CRC of `bytes` from `salt`, all 64 bits.
pub fn crc(salt: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(salt, |crc, byte| step(crc, *byte))
}

/// The CRC of `words`, each from its least significant byte, all 64 bits.
pub fn crc_words(salt: u64, words: &[u64]) -> u64 {
    words.iter().flat_map(|word| word.to_le_bytes()).fold(salt, step)
}

/// How many top bits of a hash count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum HashWidth {
    /// 28 bits: micro ZAPs and fat ones without [`FLAG_HASH64`].
    #[default]
    Bits28,
    /// 48 bits.
    Bits48,
}

impl HashWidth {
    /// The number of bits.
    pub fn bits(self) -> u32 {
        match self {
            Self::Bits28 => 28,
            Self::Bits48 => 48,
        }
    }

    /// `hash` with only its counting bits.
    pub fn cut(self, hash: u64) -> u64 {
        hash & (u64::MAX << (64 - self.bits()))
    }

    /// First collision differentiator that is too large.
    pub fn differentiator_limit(self) -> u32 {
        match self {
            Self::Bits28 => u32::MAX,
            Self::Bits48 => 0xffff,
        }
    }
}

/// What a ZAP's header says about its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct KeySettings {
    /// Start of the CRC, not 0.
    pub salt: u64,
    /// How names are transformed before they are hashed or compared.
    pub normalization: Normalization,
    /// `FLAG_*` bits; 0 in micro ZAPs.
    pub flags: u64,
}

impl KeySettings {
    /// Width of the hashes.
    pub fn width(&self) -> HashWidth {
        if self.flags & FLAG_HASH64 != 0 { HashWidth::Bits48 } else { HashWidth::Bits28 }
    }

    /// Keys are arrays of words, not names.
    pub fn has_word_keys(&self) -> bool {
        self.flags & FLAG_UINT64_KEY != 0
    }

    /// Hash of a name given without its NUL, as stored (transformed here).
    pub fn hash_name(&self, name: &[u8]) -> u64 {
        if self.normalization.is_none() {
            return self.width().cut(crc(self.salt, name));
        }
        self.width().cut(crc(self.salt, &normalize::prepare(name, self.normalization)))
    }

    /// Hash of a key made of words.
    pub fn hash_words(&self, words: &[u64]) -> u64 {
        let hash = match words.first() {
            Some(first) if self.flags & FLAG_PRE_HASHED != 0 => *first,
            _ => crc_words(self.salt, words),
        };
        self.width().cut(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_chapter_04() {
        assert_eq!(TABLE[1], 0xb32e_4cbe_03a7_5f6f);
        assert_eq!(TABLE[2], 0xf484_3657_a840_a05b);
        assert_eq!(TABLE[128], POLYNOMIAL);
        assert_eq!(TABLE[255], 0xe0ad_a173_6467_3f59);
    }

    #[test]
    fn hashes_of_chapter_04() {
        let rows: [(u64, &str, u64, u64, u64); 5] = [
            (1, "a", 0x9f8169ba49a54b33, 0x9f8169b000000000, 0x9f8169ba49a50000),
            (0x1512a5acb, "ROOT", 0xe29bfcca238874c6, 0xe29bfcc000000000, 0xe29bfcca23880000),
            (0x1512a5acb, "VERSION", 0xef1a5d24ad4d1c52, 0xef1a5d2000000000, 0xef1a5d24ad4d0000),
            (0x1512a5511, "2", 0xbc9d389908d019f3, 0xbc9d389000000000, 0xbc9d389908d00000),
            (
                0xdeadbeefcafef00d,
                "hello world",
                0x5462d59c6e16a38b,
                0x5462d59000000000,
                0x5462d59c6e160000,
            ),
        ];
        for (salt, name, raw, narrow, wide) in rows {
            assert_eq!(crc(salt, name.as_bytes()), raw);
            let mut settings = KeySettings { salt, ..KeySettings::default() };
            assert_eq!(settings.hash_name(name.as_bytes()), narrow);
            settings.flags = FLAG_HASH64;
            assert_eq!(settings.hash_name(name.as_bytes()), wide);
        }
        let words = KeySettings { salt: 0xdf943, flags: 3, ..KeySettings::default() };
        assert_eq!(words.hash_words(&[0x1122334455667788, 1]), 0xefe7b382fa310000);
        let hashed = KeySettings { salt: 77, flags: 7, ..KeySettings::default() };
        assert_eq!(hashed.hash_words(&[0x0cc85b76e676777d, 9]), 0x0cc85b76e6760000);
    }

    #[test]
    fn normalized_hashes_of_chapter_04() {
        let settings = KeySettings { salt: 0x242f9, normalization: Normalization(0x52), flags: 0 };
        for name in ["foo", "FOO", "Foo"] {
            assert_eq!(settings.hash_name(name.as_bytes()), 0x073ab61000000000);
        }
        for name in ["caf\u{e9}", "CAFE\u{301}"] {
            assert_eq!(settings.hash_name(name.as_bytes()), 0x4cd815f000000000);
        }
    }
}
