//! Records that make files: thirteen record types, one shape.
//!
//! Chapter 05, section 17: the fixed part C, or C with the ACL counts K, then the optional
//! attributes A, the ACL, ids, domains and names.

use super::fields::{Fields, pad, push_string, push_words};
use super::record::LogId;
use crate::bytes::ByteOrder;
use crate::{Error, Result};

/// What the record makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// A file or device node.
    File,
    /// A directory.
    Directory,
    /// The extended attribute directory of the object given as directory.
    XattrDirectory,
    /// A symbolic link.
    Symlink {
        /// Its target.
        target: Vec<u8>,
    },
}

/// The ACL part of a record.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AclParts {
    /// Number of entries.
    pub count: u64,
    /// ACL flags.
    pub flags: u64,
    /// The entries' bytes, little-endian.
    pub entries: Vec<u8>,
    /// Log FUIDs the entries refer to.
    pub fuids: Vec<u64>,
}

impl AclParts {
    /// Reads entries and FUIDs whose sizes stood in the fixed part.
    pub(super) fn decode(
        fields: &mut Fields<'_>,
        count: u64,
        flags: u64,
        bytes: u64,
        fuid_count: u64,
    ) -> Result<Self> {
        let mut entries = fields.padded(bytes)?.to_vec();
        if fields.order() == ByteOrder::Big {
            crate::byteswap::aces(&mut entries);
        }
        let mut fuids = Vec::new();
        for _ in 0..fuid_count {
            fuids.push(fields.u64()?);
        }
        Ok(Self { count, flags, entries, fuids })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.entries);
        pad(out);
        push_words(out, &self.fuids);
    }
}

/// Extended attributes in the sense of section 17's A block: flags, creation time, stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExtendedAttributes {
    /// Which attributes the request names; word 0 has the bits of chapter 05, section 17.
    pub requested: [u32; 3],
    /// Their values, same bits.
    pub values: u64,
    /// Creation time: seconds, nanoseconds.
    pub created: [u64; 2],
    /// Scan stamp, or the project id in the first eight bytes (little-endian).
    pub stamp: [u8; 32],
}

impl ExtendedAttributes {
    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        let words = fields.u32()?;
        if words != 3 {
            return Err(Error::new("intent-log record", format!("{words} attribute words")));
        }
        let requested = [fields.u32()?, fields.u32()?, fields.u32()?];
        let (values, created) = (fields.u64()?, fields.pair()?);
        let mut stamp = [0; 32];
        stamp.copy_from_slice(fields.bytes(32)?);
        if fields.order() == ByteOrder::Big && requested.iter().any(|word| word & 0x4_0000 != 0) {
            crate::bytes::swap_elements::<8>(stamp.get_mut(..8).unwrap_or(&mut []));
        }
        Ok(Self { requested, values, created, stamp })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for word in [3].into_iter().chain(self.requested) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        push_words(out, &[self.values]);
        push_words(out, &self.created);
        out.extend_from_slice(&self.stamp);
    }
}

/// A record that makes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// What it makes.
    pub what: Created,
    /// Directory in which it is made.
    pub directory: u64,
    /// The new object.
    pub object: LogId,
    /// `st_mode`.
    pub mode: u64,
    /// Owner as log FUID.
    pub owner: u64,
    /// Group as log FUID.
    pub group: u64,
    /// Generation (transaction group of creation).
    pub generation: u64,
    /// Creation time.
    pub created: [u64; 2],
    /// Device number.
    pub device: u64,
    /// The ACL, in the record types that have one.
    pub acl: Option<AclParts>,
    /// Extended attributes, in the record types that have them.
    pub attributes: Option<ExtendedAttributes>,
    /// Domains the log FUIDs refer to, by 1-based position.
    pub domains: Vec<Vec<u8>>,
    /// Name in the directory.
    pub name: Vec<u8>,
}

impl Create {
    /// Whether a record type makes something.
    pub(super) fn is_type(kind: u64) -> bool {
        matches!(kind, 1..=4 | 14..=19)
    }

    /// The record type.
    pub(super) fn kind(&self) -> u64 {
        let (acl, attributes) = (self.acl.is_some(), self.attributes.is_some());
        match (&self.what, acl, attributes) {
            (Created::XattrDirectory, ..) => 3,
            (Created::Symlink { .. }, ..) => 4,
            (Created::File, false, false) => 1,
            (Created::File, true, false) => 14,
            (Created::File, false, true) => 15,
            (Created::File, true, true) => 16,
            (Created::Directory, false, false) => 2,
            (Created::Directory, true, false) => 17,
            (Created::Directory, false, true) => 18,
            (Created::Directory, true, true) => 19,
        }
    }

    pub(super) fn decode(kind: u64, fields: &mut Fields<'_>) -> Result<Self> {
        let directory = fields.u64()?;
        let object = fields.u64()?;
        let mut create = Self {
            what: match kind {
                2 | 17..=19 => Created::Directory,
                3 => Created::XattrDirectory,
                4 => Created::Symlink { target: Vec::new() },
                _ => Created::File,
            },
            directory,
            object: LogId::decode(object),
            mode: fields.u64()?,
            owner: fields.u64()?,
            group: fields.u64()?,
            generation: fields.u64()?,
            created: fields.pair()?,
            device: fields.u64()?,
            acl: None,
            attributes: None,
            domains: Vec::new(),
            name: Vec::new(),
        };
        let mut domain_count = domain_count(&[create.owner, create.group]);
        let mut sizes = None;
        if matches!(kind, 14 | 16 | 17 | 19) {
            let count = fields.u64()?;
            domain_count = fields.u64()?;
            let fuids = fields.u64()?;
            let bytes = fields.u64()?;
            sizes = Some((count, fields.u64()?, bytes, fuids));
        }
        if matches!(kind, 15 | 16 | 18 | 19) {
            create.attributes = Some(ExtendedAttributes::decode(fields)?);
        }
        if let Some((count, flags, bytes, fuids)) = sizes {
            create.acl = Some(AclParts::decode(fields, count, flags, bytes, fuids)?);
        }
        for _ in 0..domain_count {
            create.domains.push(fields.string()?);
        }
        create.name = fields.string()?;
        if let Created::Symlink { target } = &mut create.what {
            *target = fields.string()?;
        }
        Ok(create)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let fixed = [
            self.directory,
            self.object.encode(),
            self.mode,
            self.owner,
            self.group,
            self.generation,
        ];
        push_words(out, &fixed);
        push_words(out, &self.created);
        push_words(out, &[self.device]);
        if let Some(acl) = &self.acl {
            let (domains, fuids) = (self.domains.len() as u64, acl.fuids.len() as u64);
            push_words(out, &[acl.count, domains, fuids, acl.entries.len() as u64, acl.flags]);
        }
        if let Some(attributes) = &self.attributes {
            attributes.encode(out);
        }
        if let Some(acl) = &self.acl {
            acl.encode(out);
        }
        for domain in &self.domains {
            push_string(out, domain);
        }
        push_string(out, &self.name);
        if let Created::Symlink { target } = &self.what {
            push_string(out, target);
        }
    }
}

/// Domains that log FUIDs refer to: positions are 1-based and consecutive.
pub(super) fn domain_count(fuids: &[u64]) -> u64 {
    fuids.iter().map(|fuid| fuid >> 32).max().unwrap_or(0)
}
