//! System attributes: the self-describing attribute buffers of ZPL 5 files.
//!
//! Chapter 05, sections 4 to 6. A file system registers its attributes by number ([`Registration`])
//! and its buffer layouts by number; both are per file system, so [`AttributeTable`] is built from
//! the file system's own REGISTRY and LAYOUTS objects and never from constants.
//!
//! Invariant: a [`View`] never reads outside its buffer, whatever layout and lengths claim.

mod encode;
mod table;
#[cfg(test)]
mod tests;
mod view;

pub use encode::{bonus_split, encode_buffer, header_size};
pub use table::{AttributeTable, FIRST_STORED_LAYOUT};
pub use view::View;

use crate::bytes::swap_elements;
use crate::{Error, Result};

/// First four bytes of every buffer, in the byte order of the buffer.
pub const MAGIC: u32 = 0x002f_505a;
/// Smallest header in bytes.
pub const MIN_HEADER: usize = 8;
/// Largest attribute in bytes.
pub const MAX_ATTRIBUTE: usize = 65535;
/// Largest spill block in bytes.
pub const MAX_SPILL: usize = 128 << 10;
/// Attribute numbers 0 to 15 are the fields of the legacy znode and the same everywhere.
pub const LEGACY_COUNT: u16 = 16;

/// How the value of an attribute is swapped between byte orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Array of 64-bit integers.
    U64,
    /// Array of 32-bit integers.
    U32,
    /// Array of 16-bit integers.
    U16,
    /// Bytes.
    U8,
    /// Version-1 access control entries.
    Acl,
}

impl Class {
    fn from_raw(raw: u64) -> Option<Self> {
        Some(match raw {
            0 => Self::U64,
            1 => Self::U32,
            2 => Self::U16,
            3 => Self::U8,
            4 => Self::Acl,
            _ => return None,
        })
    }

    fn raw(self) -> u64 {
        match self {
            Self::U64 => 0,
            Self::U32 => 1,
            Self::U16 => 2,
            Self::U8 => 3,
            Self::Acl => 4,
        }
    }

    /// Turns a big-endian value of this class into little-endian form, in place.
    pub fn swap(self, value: &mut [u8]) {
        match self {
            Self::U64 => swap_elements::<8>(value),
            Self::U32 => swap_elements::<4>(value),
            Self::U16 => swap_elements::<2>(value),
            Self::U8 => {}
            Self::Acl => crate::byteswap::aces(value),
        }
    }
}

/// One value of the REGISTRY ZAP: the number, class and length of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Number by which layouts name the attribute.
    pub number: u16,
    /// Byte order class of the value.
    pub class: Class,
    /// Length in bytes; 0 means variable.
    pub length: u16,
}

impl Registration {
    /// Decodes a REGISTRY value: bits 0..15 number, 16..23 class, 24..39 length.
    pub fn decode(raw: u64) -> Result<Self> {
        let class = Class::from_raw(raw >> 16 & 0xff)
            .ok_or_else(|| Error::new("SA registration", format!("class in {raw:#x}")))?;
        if raw >> 40 != 0 {
            return Err(Error::new("SA registration", format!("unknown bits in {raw:#x}")));
        }
        Ok(Self { number: (raw & 0xffff) as u16, class, length: (raw >> 24 & 0xffff) as u16 })
    }

    /// The REGISTRY value.
    pub fn encode(self) -> u64 {
        u64::from(self.number) | self.class.raw() << 16 | u64::from(self.length) << 24
    }
}

macro_rules! catalogue {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $length:literal, $class:ident;)*) => {
        /// Attributes with a meaning to a file system (chapter 05, section 6).
        ///
        /// The discriminant is only our own index: numbers on disk come from the REGISTRY.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Attribute { $($(#[$doc])* $name,)* }

        impl Attribute {
            /// All of them, in the order in which OpenZFS registers them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Name in the REGISTRY.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Length in bytes, 0 if variable.
            pub const fn length(self) -> u16 {
                match self { $(Self::$name => $length,)* }
            }

            /// Byte order class.
            pub const fn class(self) -> Class {
                match self { $(Self::$name => Class::$class,)* }
            }
        }
    };
}

catalogue! {
    /// Last access: seconds, nanoseconds.
    Accessed = "ZPL_ATIME", 16, U64;
    /// Last change of content.
    Modified = "ZPL_MTIME", 16, U64;
    /// Last change of attributes.
    Changed = "ZPL_CTIME", 16, U64;
    /// Creation.
    Created = "ZPL_CRTIME", 16, U64;
    /// Transaction group of creation.
    Generation = "ZPL_GEN", 8, U64;
    /// `st_mode`, type bits included.
    Mode = "ZPL_MODE", 8, U64;
    /// Length in bytes; entries + 2 of a directory.
    Size = "ZPL_SIZE", 8, U64;
    /// Object of the directory that linked it last.
    Parent = "ZPL_PARENT", 8, U64;
    /// Hard links.
    Links = "ZPL_LINKS", 8, U64;
    /// Object of the extended attribute directory.
    XattrDirectory = "ZPL_XATTR", 8, U64;
    /// Device number.
    Device = "ZPL_RDEV", 8, U64;
    /// See [`crate::pflags`].
    Flags = "ZPL_FLAGS", 8, U64;
    /// Owner FUID.
    Owner = "ZPL_UID", 8, U64;
    /// Group FUID.
    Group = "ZPL_GID", 8, U64;
    /// Legacy znode padding.
    Padding = "ZPL_PAD", 32, U64;
    /// Legacy znode ACL.
    LegacyAcl = "ZPL_ZNODE_ACL", 88, U8;
    /// Number of access control entries.
    AclCount = "ZPL_DACL_COUNT", 8, U64;
    /// Target of a symbolic link.
    SymlinkTarget = "ZPL_SYMLINK", 0, U8;
    /// Antivirus stamp.
    ScanStamp = "ZPL_SCANSTAMP", 32, U8;
    /// Version-1 access control entries.
    AclEntries = "ZPL_DACL_ACES", 0, Acl;
    /// XDR nvlist of extended attributes.
    XattrList = "ZPL_DXATTR", 0, U8;
    /// Project id.
    Project = "ZPL_PROJID", 8, U64;
    /// Change counter.
    Sequence = "ZPL_SEQ", 8, U64;
}

impl Attribute {
    /// Registration of this attribute in a new file system.
    pub fn default_registration(self) -> Registration {
        Registration { number: self as u16, class: self.class(), length: self.length() }
    }
}
