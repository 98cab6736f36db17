//! Keys of the persistent error log: which blocks could not be read.
//!
//! Chapter 03, section 16. Two forms: with the object set in the key, or (feature
//! `com.delphix:head_errlog`) a log for each head dataset whose keys carry the block's birth.

use crate::bptree::BlockBookmark;
use crate::{Error, Result, Txg};

/// One entry of a log of a head dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadKey {
    /// Object number.
    pub object: u64,
    /// Height in the block tree.
    pub level: i64,
    /// Block id at that level.
    pub block: u64,
    /// Physical birth of the bad block.
    pub birth: Txg,
}

fn four(name: &[u8]) -> Result<[u64; 4]> {
    let bad = || Error::new("error log key", String::from_utf8_lossy(name).into_owned());
    let text = std::str::from_utf8(name).map_err(|_| bad())?;
    let mut parts = text.split(':');
    let mut numbers = [0; 4];
    for number in &mut numbers {
        let part = parts.next().filter(|part| !part.starts_with('+')).ok_or_else(bad)?;
        *number = u64::from_str_radix(part, 16).map_err(|_| bad())?;
    }
    if parts.next().is_some() { Err(bad()) } else { Ok(numbers) }
}

/// Parses `objset:object:level:block`, all hexadecimal.
pub fn parse(name: &[u8]) -> Result<BlockBookmark> {
    four(name).map(BlockBookmark::from_words)
}

/// The name of a key of the first form.
pub fn name(bookmark: &BlockBookmark) -> String {
    let [objset, object, level, block] = bookmark.to_words();
    format!("{objset:x}:{object:x}:{level:x}:{block:x}")
}

impl HeadKey {
    /// Parses `object:level:block:birth`, all hexadecimal.
    pub fn parse(name: &[u8]) -> Result<Self> {
        let [object, level, block, birth] = four(name)?;
        Ok(Self { object, level: level.cast_signed(), block, birth: Txg(birth) })
    }

    /// The name of this key.
    pub fn name(&self) -> String {
        format!("{:x}:{:x}:{:x}:{:x}", self.object, self.level, self.block, self.birth.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip() {
        let text = "36:1a:ffffffffffffffff:0";
        let bookmark = parse(text.as_bytes()).unwrap();
        assert_eq!((bookmark.objset, bookmark.object, bookmark.level), (0x36, 0x1a, -1));
        assert_eq!(name(&bookmark), text);
        let head = HeadKey::parse(b"2:0:5:1f").unwrap();
        assert_eq!((head.object, head.block, head.birth), (2, 5, Txg(31)));
        assert_eq!(head.name(), "2:0:5:1f");
        for bad in [&b"1:2:3"[..], b"1:2:3:4:5", b"1:2:3:x", b"1:+2:3:4", b"\xff:1:1:1", b""] {
            assert!(parse(bad).is_err());
        }
    }
}
