//! File system user ids: a domain index and an id inside the domain.
//!
//! Chapter 05, section 13. Index 0 is the plain POSIX id space; Linux makes no other.

/// Owner of a file with a domain that has no POSIX id here.
pub const NOBODY: u32 = 65534;

/// A user or group id as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fuid {
    /// 1-based position of the domain in the FUID table, 0 for POSIX ids.
    pub domain: u32,
    /// Id in the domain.
    pub relative: u32,
}

impl Fuid {
    /// From the stored word.
    pub fn decode(word: u64) -> Self {
        Self { domain: (word >> 32) as u32, relative: word as u32 }
    }

    /// The stored word.
    pub fn encode(self) -> u64 {
        u64::from(self.domain) << 32 | u64::from(self.relative)
    }

    /// The POSIX id; [`NOBODY`] for ids of other domains.
    pub fn posix(self) -> u32 {
        if self.domain == 0 { self.relative } else { NOBODY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        assert_eq!(Fuid::decode(1000), Fuid { domain: 0, relative: 1000 });
        assert_eq!(Fuid::decode(1000).posix(), 1000);
        let foreign = Fuid::decode(0x1_0000_03e8);
        assert_eq!((foreign.domain, foreign.relative, foreign.posix()), (1, 1000, NOBODY));
        assert_eq!(foreign.encode(), 0x1_0000_03e8);
    }
}
