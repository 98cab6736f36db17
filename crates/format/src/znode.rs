//! The legacy znode: the bonus of files before system attributes (ZPL 1 to 4).
//!
//! Chapter 05, section 8. The bonus reaches this decoder in little-endian form.

use crate::acl::LegacyAcl;
use crate::bytes::{le64, put_le64, slice};
use crate::{Error, Result};

/// Fixed part in bytes; what follows in the bonus is a symlink target or a scan stamp.
pub const SIZE: usize = 264;

/// A decoded znode.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Znode {
    /// Last access: seconds (two's complement), nanoseconds.
    pub accessed: [u64; 2],
    /// Last change of content.
    pub modified: [u64; 2],
    /// Last change of attributes.
    pub changed: [u64; 2],
    /// Creation.
    pub created: [u64; 2],
    /// Transaction group of creation.
    pub generation: u64,
    /// `st_mode`.
    pub mode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Object of the parent directory.
    pub parent: u64,
    /// Hard links.
    pub links: u64,
    /// Object of the extended attribute directory, 0 if none.
    pub xattr: u64,
    /// Device number.
    pub device: u64,
    /// See [`crate::pflags`].
    pub flags: u64,
    /// Owner FUID.
    pub owner: u64,
    /// Group FUID.
    pub group: u64,
    /// Access control.
    pub acl: LegacyAcl,
}

impl Znode {
    /// Decodes the fixed part of a bonus.
    pub fn decode(bonus: &[u8]) -> Result<Self> {
        let short = || Error::truncated("znode");
        let word = |at: usize| le64(bonus, at).ok_or_else(short);
        let pair = |at: usize| Ok::<_, Error>([word(at)?, word(at + 8)?]);
        Ok(Self {
            accessed: pair(0)?,
            modified: pair(16)?,
            changed: pair(32)?,
            created: pair(48)?,
            generation: word(64)?,
            mode: word(72)?,
            size: word(80)?,
            parent: word(88)?,
            links: word(96)?,
            xattr: word(104)?,
            device: word(112)?,
            flags: word(120)?,
            owner: word(128)?,
            group: word(136)?,
            acl: LegacyAcl::decode(slice(bonus, 176, SIZE - 176).ok_or_else(short)?)?,
        })
    }

    /// The fixed part of the bonus.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = vec![0; 176];
        let pairs = [self.accessed, self.modified, self.changed, self.created];
        let rest = [
            self.generation,
            self.mode,
            self.size,
            self.parent,
            self.links,
            self.xattr,
            self.device,
            self.flags,
            self.owner,
            self.group,
        ];
        for (index, word) in pairs.into_iter().flatten().chain(rest).enumerate() {
            put_le64(&mut out, index * 8, word).ok_or_else(|| Error::truncated("znode"))?;
        }
        out.extend_from_slice(&self.acl.encode()?);
        Ok(out)
    }

    /// The symlink target in the tail of the bonus, if it stands there; else it is the first
    /// [`Znode::size`] bytes of the object's data.
    pub fn tail_target<'a>(&self, bonus: &'a [u8]) -> Option<&'a [u8]> {
        let size = usize::try_from(self.size).ok()?;
        slice(bonus, SIZE, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_round_trip_and_the_tail_is_found() {
        let znode = Znode {
            accessed: [1, 2],
            created: [u64::MAX, 999],
            generation: 7,
            mode: 0o120777,
            size: 5,
            parent: 3,
            links: 1,
            device: 0x103,
            flags: 4,
            owner: 1000,
            group: 1001,
            ..Znode::default()
        };
        let mut raw = znode.encode().unwrap();
        assert_eq!(raw.len(), SIZE);
        assert_eq!(Znode::decode(&raw).unwrap(), znode);
        assert_eq!(znode.tail_target(&raw), None);
        raw.extend_from_slice(b"hello");
        assert_eq!(znode.tail_target(&raw), Some(&b"hello"[..]));
        assert!(Znode::decode(&raw[..263]).is_err());
    }
}
