//! Object sets: the root block of a dataset, a snapshot or the meta object set.
//!
//! Chapter 04, section 1.

use crate::bytes::{array, le64, put, put_le64, slice};
use crate::{Dnode, Error, Result};

/// What an object set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjsetKind {
    /// Nothing yet.
    None,
    /// The meta object set.
    Meta,
    /// A filesystem.
    Zfs,
    /// A volume.
    Zvol,
    /// Test object sets.
    Other(u64),
}

impl ObjsetKind {
    /// From the on-disk number.
    pub fn from_raw(raw: u64) -> Self {
        match raw {
            0 => Self::None,
            1 => Self::Meta,
            2 => Self::Zfs,
            3 => Self::Zvol,
            other => Self::Other(other),
        }
    }

    /// The on-disk number.
    pub fn raw(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Meta => 1,
            Self::Zfs => 2,
            Self::Zvol => 3,
            Self::Other(raw) => raw,
        }
    }
}

/// User accounting is complete.
pub const FLAG_USERACCOUNTING_COMPLETE: u64 = 1;
/// User object accounting is complete.
pub const FLAG_USEROBJACCOUNTING_COMPLETE: u64 = 2;
/// Project quota accounting is complete.
pub const FLAG_PROJECTQUOTA_COMPLETE: u64 = 4;

/// Size of the intent-log header in bytes.
pub const ZIL_HEADER: usize = 192;

/// Where the kind stands in the block.
pub const KIND_AT: usize = 704;
/// Where the flags stand.
pub const FLAGS_AT: usize = 712;
/// Where the portable and the local MAC stand, 32 bytes each.
pub const MACS_AT: [usize; 2] = [720, 752];
/// Where the dnodes of user, group and project accounting stand, in blocks large enough.
pub const ACCOUNTING_AT: [usize; 3] = [1024, 1536, 2048];

/// A decoded object-set block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objset {
    /// Object 0: its data is the array of all dnodes.
    pub meta_dnode: Dnode,
    /// The raw intent-log header (chapter 05, section 16.1).
    pub zil_header: [u8; ZIL_HEADER],
    /// What the set holds.
    pub kind: ObjsetKind,
    /// `FLAG_*` bits.
    pub flags: u64,
    /// MAC that survives a raw send.
    pub portable_mac: [u8; 32],
    /// MAC over flags and accounting.
    pub local_mac: [u8; 32],
    /// Space per user, if the block is large enough to have it and it is allocated.
    pub user_used: Option<Dnode>,
    /// Space per group.
    pub group_used: Option<Dnode>,
    /// Space per project.
    pub project_used: Option<Dnode>,
    /// Size of the block on disk in bytes: 1024, 2048 or 4096.
    pub size: usize,
}

impl Objset {
    /// Decodes an object-set block of any of its sizes.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let short = || Error::truncated("object set");
        let meta_dnode = Dnode::decode(slice(data, 0, 512).ok_or_else(short)?)?
            .ok_or_else(|| Error::new("object set", "its meta dnode is free"))?;
        let accounting = |at: usize, from_size: usize| -> Result<Option<Dnode>> {
            if data.len() < from_size {
                return Ok(None);
            }
            Dnode::decode(slice(data, at, 512).ok_or_else(short)?)
        };
        Ok(Self {
            meta_dnode,
            zil_header: array(data, 512).ok_or_else(short)?,
            kind: ObjsetKind::from_raw(le64(data, 704).ok_or_else(short)?),
            flags: le64(data, 712).ok_or_else(short)?,
            portable_mac: array(data, 720).ok_or_else(short)?,
            local_mac: array(data, 752).ok_or_else(short)?,
            user_used: accounting(1024, 2048)?,
            group_used: accounting(1536, 2048)?,
            project_used: accounting(2048, 4096)?,
            size: data.len(),
        })
    }

    /// The bytes of this object set.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let short = || Error::new("object set", "its parts do not fit its size");
        let mut out = vec![0; self.size];
        put(&mut out, 0, &self.meta_dnode.encode()?).ok_or_else(short)?;
        put(&mut out, 512, &self.zil_header).ok_or_else(short)?;
        put_le64(&mut out, 704, self.kind.raw()).ok_or_else(short)?;
        put_le64(&mut out, 712, self.flags).ok_or_else(short)?;
        put(&mut out, 720, &self.portable_mac).ok_or_else(short)?;
        put(&mut out, 752, &self.local_mac).ok_or_else(short)?;
        let accounting =
            [(1024, &self.user_used), (1536, &self.group_used), (2048, &self.project_used)];
        for (at, dnode) in accounting {
            if let Some(dnode) = dnode {
                put(&mut out, at, &dnode.encode()?).ok_or_else(short)?;
            }
        }
        Ok(out)
    }
}
