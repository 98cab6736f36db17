//! File system user ids: a domain index and an id inside the domain.
//!
//! Chapter 05, section 13. Index 0 is the plain POSIX id space; Linux makes no other.

use std::collections::BTreeMap;

use crate::nvlist::{Encoding, Value};
use crate::{Error, NvList, Result};

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

/// The domains of a file system: the content of its FUID table object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuidTable {
    /// Domain by 1-based index; indices never change.
    pub domains: BTreeMap<u32, Vec<u8>>,
}

impl FuidTable {
    /// Decodes the packed list, whose size stands in the table object's bonus.
    pub fn decode(packed: &[u8]) -> Result<Self> {
        let bad = |reason: &'static str| Error::new("FUID table", reason);
        let list = NvList::decode(packed)?;
        let entries = list.nvlist_array("fuid_nvlist").ok_or_else(|| bad("no list of domains"))?;
        let mut domains = BTreeMap::new();
        for entry in entries {
            let index = entry.u64("fuid_idx").and_then(|index| u32::try_from(index).ok());
            let index = index.filter(|index| *index != 0);
            let index = index.ok_or_else(|| bad("a domain without index"))?;
            let domain = entry.string_bytes("fuid_domain").ok_or_else(|| bad("no domain"))?;
            if domains.insert(index, domain.to_vec()).is_some() {
                return Err(bad("two domains of one index"));
            }
        }
        Ok(Self { domains })
    }

    /// The packed list.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let entry = |(index, domain): (&u32, &Vec<u8>)| {
            let mut entry = NvList::new();
            entry.push("fuid_idx", Value::Uint64(u64::from(*index)));
            entry.push("fuid_offset", Value::Uint64(0));
            entry.push("fuid_domain", Value::String(domain.as_slice().into()));
            entry
        };
        let mut list = NvList::new();
        list.push("fuid_nvlist", Value::ListArray(self.domains.iter().map(entry).collect()));
        list.encode(Encoding::Xdr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_chapter_05() {
        let domains = BTreeMap::from([(1, b"S-1-5-21-1-2-3".to_vec())]);
        let table = FuidTable { domains };
        let packed = table.encode().unwrap();
        assert_eq!(packed.len(), 196);
        let start = "010100000000000000000001000000b0000000400000000b\
            667569645f6e766c697374000000001400000001";
        assert!(hex::encode(&packed).starts_with(start), "{}", hex::encode(&packed));
        assert_eq!(FuidTable::decode(&packed).unwrap(), table);
        assert!(FuidTable::decode(&packed[..100]).is_err());
        assert!(FuidTable::decode(&NvList::new().encode(Encoding::Xdr).unwrap()).is_err());
    }

    #[test]
    fn words_round_trip() {
        assert_eq!(Fuid::decode(1000), Fuid { domain: 0, relative: 1000 });
        assert_eq!(Fuid::decode(1000).posix(), 1000);
        let foreign = Fuid::decode(0x1_0000_03e8);
        assert_eq!((foreign.domain, foreign.relative, foreign.posix()), (1, 1000, NOBODY));
        assert_eq!(foreign.encode(), 0x1_0000_03e8);
    }
}
