//! The records of the log: one operation each.
//!
//! Chapter 05, sections 16.3 and 17.

use super::create::{AclParts, Create, ExtendedAttributes, domain_count};
use super::fields::{Fields, pad, push_string, push_words};
use crate::bytes::{ByteOrder, put, swap_elements};
use crate::{BlockPointer, Error, Result, Txg, blkptr};

/// Bytes of the header of every record.
pub const RECORD_HEADER: usize = 32;
/// Bit of the type word: the request ignored case.
const CASE_INSENSITIVE: u64 = 1 << 63;

/// Bits of [`SetAttributes::mask`] as Linux writes them.
pub mod mask_linux {
    /// Mode.
    pub const MODE: u64 = 1;
    /// Owner.
    pub const OWNER: u64 = 2;
    /// Group.
    pub const GROUP: u64 = 4;
    /// Size.
    pub const SIZE: u64 = 8;
    /// Access time.
    pub const ACCESSED: u64 = 0x10;
    /// Modification time.
    pub const MODIFIED: u64 = 0x20;
    /// Change time.
    pub const CHANGED: u64 = 0x40;
    /// Extended attributes follow.
    pub const EXTENDED: u64 = 0x8000_0000;
}

/// Bits of [`SetAttributes::mask`] as FreeBSD writes them.
pub mod mask_freebsd {
    /// Mode.
    pub const MODE: u64 = 2;
    /// Owner.
    pub const OWNER: u64 = 4;
    /// Group.
    pub const GROUP: u64 = 8;
    /// Size.
    pub const SIZE: u64 = 0x80;
    /// Access time.
    pub const ACCESSED: u64 = 0x100;
    /// Modification time.
    pub const MODIFIED: u64 = 0x200;
    /// Change time.
    pub const CHANGED: u64 = 0x400;
    /// Extended attributes follow.
    pub const EXTENDED: u64 = 0x1_0000;
}

/// An object number with the dnode slots the object takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogId {
    /// Object number.
    pub object: u64,
    /// Dnode slots beyond the first.
    pub extra_slots: u8,
}

impl LogId {
    pub(super) fn decode(word: u64) -> Self {
        Self { object: word & ((1 << 48) - 1), extra_slots: (word >> 56) as u8 }
    }

    pub(super) fn encode(self) -> u64 {
        self.object & ((1 << 48) - 1) | u64::from(self.extra_slots) << 56
    }
}

/// Which rename.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenameKind {
    /// An existing target is replaced.
    Plain,
    /// Source and target change places.
    Exchange,
    /// A whiteout takes the source's place.
    Whiteout(Whiteout),
}

/// The whiteout device node of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whiteout {
    /// Its object.
    pub object: LogId,
    /// `st_mode`.
    pub mode: u64,
    /// Owner.
    pub owner: u64,
    /// Group.
    pub group: u64,
    /// Generation.
    pub generation: u64,
    /// Creation time.
    pub created: [u64; 2],
    /// Device number.
    pub device: u64,
}

/// A SETATTR record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAttributes {
    /// The object.
    pub object: u64,
    /// What is set; the bits depend on the platform ([`mask_linux`], [`mask_freebsd`]).
    pub mask: u64,
    /// Mode.
    pub mode: u64,
    /// Owner as log FUID.
    pub owner: u64,
    /// Group as log FUID.
    pub group: u64,
    /// Size.
    pub size: u64,
    /// Access time.
    pub accessed: [u64; 2],
    /// Modification time.
    pub modified: [u64; 2],
    /// Extended attributes.
    pub extended: Option<ExtendedAttributes>,
    /// Domains of owner and group.
    pub domains: Vec<Vec<u8>>,
}

/// What a record does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Makes a file, directory, symlink or extended attribute directory.
    Create(Box<Create>),
    /// Removes a name.
    Remove {
        /// Directory.
        directory: u64,
        /// Name.
        name: Vec<u8>,
        /// It was a directory.
        is_directory: bool,
    },
    /// Adds a name.
    Link {
        /// Directory.
        directory: u64,
        /// Object that gets the name.
        object: u64,
        /// Name.
        name: Vec<u8>,
    },
    /// Moves a name.
    Rename {
        /// Which rename.
        kind: RenameKind,
        /// Source directory.
        source_directory: u64,
        /// Source name.
        source: Vec<u8>,
        /// Target directory.
        target_directory: u64,
        /// Target name.
        target: Vec<u8>,
    },
    /// Writes data: here, or in the block behind a pointer.
    Write {
        /// Object.
        object: u64,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Offset in the block.
        block_offset: u64,
        /// Where the block is; zero if the data stands here.
        block: BlockPointer,
        /// The data, if it stands here.
        data: Option<Vec<u8>>,
    },
    /// Extends the size as a write would, without data.
    WriteExtend {
        /// Object.
        object: u64,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Frees a range; length 0 cuts the file at the offset.
    Truncate {
        /// Object.
        object: u64,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Sets attributes.
    SetAttributes(Box<SetAttributes>),
    /// Sets a version-0 ACL.
    SetOldAcl {
        /// Object.
        object: u64,
        /// Number of entries.
        count: u64,
        /// The entries' bytes, little-endian.
        entries: Vec<u8>,
    },
    /// Sets an ACL.
    SetAcl {
        /// Object.
        object: u64,
        /// The list.
        acl: AclParts,
        /// Domains.
        domains: Vec<Vec<u8>>,
    },
    /// Sets or removes an extended attribute stored as system attribute.
    SetXattr {
        /// Object.
        object: u64,
        /// Name.
        name: Vec<u8>,
        /// New value; `None` removes.
        value: Option<Vec<u8>>,
    },
    /// Clones blocks of another file.
    CloneRange {
        /// Object.
        object: u64,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Block size.
        block_size: u64,
        /// The cloned blocks.
        blocks: Vec<BlockPointer>,
    },
    /// A type this program does not know.
    Unknown(u64),
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Transaction group of the operation.
    pub txg: Txg,
    /// Sequence number, never 0.
    pub sequence: u64,
    /// The request ignored case.
    pub case_insensitive: bool,
    /// What it does.
    pub payload: Payload,
}

impl Record {
    /// Decodes a whole record.
    pub fn decode(data: &[u8], order: ByteOrder) -> Result<Self> {
        let mut fields = Fields::new(data, order);
        let kind = fields.u64()?;
        let length = fields.u64()?;
        if length != data.len() as u64 {
            return Err(Error::new("intent-log record", format!("length {length}")));
        }
        Ok(Self {
            txg: Txg(fields.u64()?),
            sequence: fields.u64()?,
            case_insensitive: kind & CASE_INSENSITIVE != 0,
            payload: Payload::decode(kind & !CASE_INSENSITIVE, &mut fields)?,
        })
    }

    /// The record's bytes, little-endian, padded to a multiple of eight.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let flag = if self.case_insensitive { CASE_INSENSITIVE } else { 0 };
        let mut out = Vec::new();
        push_words(&mut out, &[self.payload.kind() | flag, 0, self.txg.0, self.sequence]);
        self.payload.encode(&mut out)?;
        pad(&mut out);
        let length = (out.len() as u64).to_le_bytes();
        put(&mut out, 8, &length).ok_or_else(|| Error::truncated("intent-log record"))?;
        Ok(out)
    }
}

impl Payload {
    /// The record type.
    pub fn kind(&self) -> u64 {
        match self {
            Self::Create(create) => create.kind(),
            Self::Remove { is_directory, .. } => 5 + u64::from(*is_directory),
            Self::Link { .. } => 7,
            Self::Rename { kind: RenameKind::Plain, .. } => 8,
            Self::Write { .. } => 9,
            Self::Truncate { .. } => 10,
            Self::SetAttributes(_) => 11,
            Self::SetOldAcl { .. } => 12,
            Self::SetAcl { .. } => 13,
            Self::WriteExtend { .. } => 20,
            Self::SetXattr { .. } => 21,
            Self::Rename { kind: RenameKind::Exchange, .. } => 22,
            Self::Rename { kind: RenameKind::Whiteout(_), .. } => 23,
            Self::CloneRange { .. } => 24,
            Self::Unknown(kind) => *kind,
        }
    }

    /// Name of the record type as OpenZFS's tools print it.
    pub fn name(&self) -> &'static str {
        const NAMES: [&str; 25] = [
            "Total",
            "TX_CREATE",
            "TX_MKDIR",
            "TX_MKXATTR",
            "TX_SYMLINK",
            "TX_REMOVE",
            "TX_RMDIR",
            "TX_LINK",
            "TX_RENAME",
            "TX_WRITE",
            "TX_TRUNCATE",
            "TX_SETATTR",
            "TX_ACL_V0",
            "TX_ACL_ACL",
            "TX_CREATE_ACL",
            "TX_CREATE_ATTR",
            "TX_CREATE_ACL_ATTR",
            "TX_MKDIR_ACL",
            "TX_MKDIR_ATTR",
            "TX_MKDIR_ACL_ATTR",
            "TX_WRITE2",
            "TX_SETSAXATTR",
            "TX_RENAME_EXCHANGE",
            "TX_RENAME_WHITEOUT",
            "TX_CLONE_RANGE",
        ];
        let kind = usize::try_from(self.kind()).unwrap_or(usize::MAX);
        NAMES.get(kind).copied().unwrap_or("unknown")
    }

    fn decode(kind: u64, fields: &mut Fields<'_>) -> Result<Self> {
        Ok(match kind {
            _ if Create::is_type(kind) => Self::Create(Box::new(Create::decode(kind, fields)?)),
            5 | 6 => Self::Remove {
                directory: fields.u64()?,
                name: fields.string()?,
                is_directory: kind == 6,
            },
            7 => Self::Link {
                directory: fields.u64()?,
                object: fields.u64()?,
                name: fields.string()?,
            },
            8 | 22 | 23 => decode_rename(kind, fields)?,
            9 | 20 => decode_write(kind, fields)?,
            10 => Self::Truncate {
                object: fields.u64()?,
                offset: fields.u64()?,
                length: fields.u64()?,
            },
            11 => Self::SetAttributes(Box::new(SetAttributes::decode(fields)?)),
            12 => {
                let (object, count) = (fields.u64()?, fields.u64()?);
                let mut entries = fields.bytes(count.saturating_mul(12))?.to_vec();
                if fields.order() == ByteOrder::Big {
                    for entry in entries.chunks_exact_mut(12) {
                        let (words, halves) = entry.split_at_mut(8);
                        swap_elements::<4>(words);
                        swap_elements::<2>(halves);
                    }
                }
                Self::SetOldAcl { object, count, entries }
            }
            13 => decode_acl(fields)?,
            21 => {
                let (object, size) = (fields.u64()?, fields.u64()?);
                let name = fields.string()?;
                let value = if size == 0 { None } else { Some(fields.bytes(size)?.to_vec()) };
                Self::SetXattr { object, name, value }
            }
            24 => decode_clone(fields)?,
            other => Self::Unknown(other),
        })
    }

    fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::Create(create) => create.encode(out),
            Self::Remove { directory, name, .. } => {
                push_words(out, &[*directory]);
                push_string(out, name);
            }
            Self::Link { directory, object, name } => {
                push_words(out, &[*directory, *object]);
                push_string(out, name);
            }
            Self::Rename { kind, source_directory, source, target_directory, target } => {
                push_words(out, &[*source_directory, *target_directory]);
                if let RenameKind::Whiteout(w) = kind {
                    push_words(out, &[w.object.encode(), w.mode, w.owner, w.group, w.generation]);
                    push_words(out, &w.created);
                    push_words(out, &[w.device]);
                }
                push_string(out, source);
                push_string(out, target);
            }
            Self::Write { object, offset, length, block_offset, block, data } => {
                push_words(out, &[*object, *offset, *length, *block_offset]);
                out.extend_from_slice(&block.encode());
                out.extend_from_slice(data.as_deref().unwrap_or(&[]));
            }
            Self::WriteExtend { object, offset, length } => {
                push_words(out, &[*object, *offset, *length, 0]);
                out.extend_from_slice(&BlockPointer::HOLE.encode());
            }
            Self::Truncate { object, offset, length } => {
                push_words(out, &[*object, *offset, *length]);
            }
            Self::SetAttributes(set) => set.encode(out),
            Self::SetOldAcl { object, count, entries } => {
                push_words(out, &[*object, *count]);
                out.extend_from_slice(entries);
            }
            Self::SetAcl { object, acl, domains } => {
                let sizes = [domains.len() as u64, acl.fuids.len() as u64];
                push_words(out, &[*object, acl.count]);
                push_words(out, &sizes);
                push_words(out, &[acl.entries.len() as u64, acl.flags]);
                acl.encode(out);
                for domain in domains {
                    push_string(out, domain);
                }
            }
            Self::SetXattr { object, name, value } => {
                let value = value.as_deref().unwrap_or(&[]);
                push_words(out, &[*object, value.len() as u64]);
                push_string(out, name);
                out.extend_from_slice(value);
            }
            Self::CloneRange { object, offset, length, block_size, blocks } => {
                push_words(out, &[*object, *offset, *length, *block_size, blocks.len() as u64]);
                for block in blocks {
                    out.extend_from_slice(&block.encode());
                }
            }
            Self::Unknown(kind) => {
                return Err(Error::new("intent-log record", format!("type {kind} is unknown")));
            }
        }
        Ok(())
    }
}

impl SetAttributes {
    fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        let mut set = Self {
            object: fields.u64()?,
            mask: fields.u64()?,
            mode: fields.u64()?,
            owner: fields.u64()?,
            group: fields.u64()?,
            size: fields.u64()?,
            accessed: fields.pair()?,
            modified: fields.pair()?,
            extended: None,
            domains: Vec::new(),
        };
        if set.mask & (mask_linux::EXTENDED | mask_freebsd::EXTENDED) != 0 {
            set.extended = Some(ExtendedAttributes::decode(fields)?);
        }
        // Ids that are not set carry garbage; domains follow only if they are.
        if !fields.rest().is_empty() {
            for _ in 0..domain_count(&[set.owner, set.group]) {
                set.domains.push(fields.string()?);
            }
        }
        Ok(set)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        push_words(out, &[self.object, self.mask, self.mode, self.owner, self.group, self.size]);
        push_words(out, &self.accessed);
        push_words(out, &self.modified);
        if let Some(extended) = &self.extended {
            extended.encode(out);
        }
        for domain in &self.domains {
            push_string(out, domain);
        }
    }
}

fn decode_rename(kind: u64, fields: &mut Fields<'_>) -> Result<Payload> {
    let (source_directory, target_directory) = (fields.u64()?, fields.u64()?);
    let kind = match kind {
        8 => RenameKind::Plain,
        22 => RenameKind::Exchange,
        _ => RenameKind::Whiteout(Whiteout {
            object: LogId::decode(fields.u64()?),
            mode: fields.u64()?,
            owner: fields.u64()?,
            group: fields.u64()?,
            generation: fields.u64()?,
            created: fields.pair()?,
            device: fields.u64()?,
        }),
    };
    let (source, target) = (fields.string()?, fields.string()?);
    Ok(Payload::Rename { kind, source_directory, source, target_directory, target })
}

fn decode_write(kind: u64, fields: &mut Fields<'_>) -> Result<Payload> {
    let (object, offset, length) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let block_offset = fields.u64()?;
    let block = fields.pointer()?;
    if kind == 20 {
        return Ok(Payload::WriteExtend { object, offset, length });
    }
    let data = match fields.rest().is_empty() {
        true => None,
        false => Some(fields.bytes(length)?.to_vec()),
    };
    Ok(Payload::Write { object, offset, length, block_offset, block, data })
}

fn decode_acl(fields: &mut Fields<'_>) -> Result<Payload> {
    let (object, count) = (fields.u64()?, fields.u64()?);
    let (domain_count, fuid_count) = (fields.u64()?, fields.u64()?);
    let (bytes, flags) = (fields.u64()?, fields.u64()?);
    let acl = AclParts::decode(fields, count, flags, bytes, fuid_count)?;
    let mut domains = Vec::new();
    for _ in 0..domain_count {
        domains.push(fields.string()?);
    }
    Ok(Payload::SetAcl { object, acl, domains })
}

fn decode_clone(fields: &mut Fields<'_>) -> Result<Payload> {
    let (object, offset, length) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (block_size, count) = (fields.u64()?, fields.u64()?);
    if count > (fields.rest().len() / blkptr::SIZE) as u64 {
        return Err(Error::truncated("intent-log record"));
    }
    let mut blocks = Vec::new();
    for _ in 0..count {
        blocks.push(fields.pointer()?);
    }
    Ok(Payload::CloneRange { object, offset, length, block_size, blocks })
}
