//! How a block is written: compression, checksum, copies and class, from the properties of its
//! object set and the block's place in it.
//!
//! Chapter 02, sections 3 and 7.2; chapter 04, section 7. Invariant: a policy holds only what can
//! be written: no "inherit", no "on"; metadata always has a checksum strong enough for it.

use std::sync::Arc;

use cenote_codec::checksum::Algorithm as Checksum;
use cenote_codec::compress::{Method, ZstdLevel};
use cenote_format::ObjectType;

use super::Encryptor;
use crate::vdev::AllocationClass;
use crate::{Error, Result};

/// What the pool's features allow a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteFeatures {
    /// `embedded_data` is enabled: small results may lie in the pointer.
    pub embedded_data: bool,
    /// `hole_birth` is active: new holes remember their birth.
    pub hole_birth: bool,
    /// `lz4_compress` is active.
    pub lz4: bool,
}

impl WriteFeatures {
    /// What every pool made today has.
    pub const ALL: Self = Self { embedded_data: true, hole_birth: true, lz4: true };
}

/// Which metadata gets one copy more than the data (`redundant_metadata`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedundantMetadata {
    /// Value 0: all of it.
    #[default]
    All,
    /// Value 1: all but the lowest indirect blocks of data.
    Most,
    /// Value 2: only what many files depend on.
    Some,
    /// Value 3: nothing.
    None,
}

impl RedundantMetadata {
    /// From the property's value; `None` if there is no such value.
    pub fn from_raw(raw: u64) -> Option<Self> {
        Some(match raw {
            0 => Self::All,
            1 => Self::Most,
            2 => Self::Some,
            3 => Self::None,
            _ => return None,
        })
    }
}

/// How the bytes of a block are made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Stored as they are, zeros too.
    Off,
    /// Stored as they are, but a block of zeros is a hole.
    Holes,
    /// Compressed if that saves enough.
    With(Method),
}

impl Compression {
    /// From a property value: algorithm in the low seven bits, level above.
    ///
    /// `None` for "inherit" and for values that do not exist.
    pub fn from_property(raw: u64, features: &WriteFeatures) -> Option<Self> {
        let level = raw >> 7;
        let method = match raw & 0x7f {
            1 => Self::on(features),
            2 => return Some(Self::Off),
            3 => Method::Lzjb,
            4 => return Some(Self::Holes),
            id @ 5..=13 => Method::Gzip(u8::try_from(id - 4).ok()?),
            14 => Method::Zle,
            15 => Method::Lz4,
            16 if level == 0 => Method::Zstd(ZstdLevel::DEFAULT),
            16 => Method::Zstd(ZstdLevel::from_id(u8::try_from(level).ok()?)?),
            _ => return None,
        };
        Some(Self::With(method))
    }

    /// What "on" means, and how all metadata is compressed.
    pub fn on(features: &WriteFeatures) -> Method {
        if features.lz4 { Method::Lz4 } else { Method::Lzjb }
    }
}

/// The checksum a property value means; `None` for "inherit" and for what no block may have.
pub fn checksum_from_property(raw: u64) -> Option<Checksum> {
    if raw == 1 {
        return Some(Checksum::Fletcher4);
    }
    let algorithm = u8::try_from(raw).ok().and_then(Checksum::from_id)?;
    (!algorithm.embedded()).then_some(algorithm)
}

/// What a block is, as far as its policy depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockKind {
    /// Type of the object (of a spill block: the bonus type).
    pub object_type: ObjectType,
    /// Height in the block tree.
    pub level: u8,
    /// It is a spill block.
    pub spill: bool,
    /// The dnode's own compression; 0 inherits.
    pub compression: u8,
    /// The dnode's own checksum; 0 inherits.
    pub checksum: u8,
}

impl BlockKind {
    /// A block of an object that overrides nothing.
    pub fn new(object_type: ObjectType, level: u8) -> Self {
        Self { object_type, level, spill: false, compression: 0, checksum: 0 }
    }

    /// The block counts as metadata: it is copied, compressed and placed as such.
    pub fn is_metadata(&self) -> bool {
        self.level > 0 || self.spill || self.object_type.is_metadata()
    }
}

/// Copies of a block (chapter 02, section 3); 1 to 3.
///
/// `copies` is the dataset's property; `encrypted`: the dataset is.
pub fn copies_for(
    kind: &BlockKind,
    copies: u8,
    redundant: RedundantMetadata,
    encrypted: bool,
) -> u8 {
    let metadata_type = kind.object_type.is_metadata();
    let extra = kind.is_metadata()
        && match redundant {
            RedundantMetadata::All => true,
            RedundantMetadata::Most => kind.level >= 2 || metadata_type || kind.spill,
            RedundantMetadata::Some => {
                let common = matches!(
                    kind.object_type,
                    ObjectType::DIRECTORY | ObjectType::SYSTEM_ATTRIBUTES
                );
                let dnodes = kind.object_type == ObjectType::DNODE && kind.level == 0;
                metadata_type && !common && !dnodes
            }
            RedundantMetadata::None => false,
        };
    let most = if encrypted && kind.object_type.is_encrypted() { 2 } else { 3 };
    copies.saturating_add(u8::from(extra)).clamp(1, most)
}

/// What the properties of an object set say about writing its blocks.
#[derive(Clone)]
pub struct ObjsetPolicy {
    /// The `compression` property, resolved (never "inherit").
    pub compression: u64,
    /// The `checksum` property, resolved.
    pub checksum: u64,
    /// The `copies` property, 1 to 3.
    pub copies: u8,
    /// The `redundant_metadata` property.
    pub redundant_metadata: RedundantMetadata,
    /// The `dedup` property, resolved.
    pub dedup: u64,
    /// The `special_small_blocks` property, in bytes.
    pub special_small_blocks: u64,
    /// Keys of an encrypted dataset.
    pub encryptor: Option<Arc<dyn Encryptor>>,
}

impl ObjsetPolicy {
    /// The meta object set: three copies of everything.
    pub fn mos() -> Self {
        Self {
            compression: 1,
            checksum: 1,
            copies: 3,
            redundant_metadata: RedundantMetadata::All,
            dedup: DEDUP_OFF,
            special_small_blocks: 0,
            encryptor: None,
        }
    }

    /// The policy of one block. Errors: values that do not exist.
    pub fn block(&self, kind: &BlockKind, features: &WriteFeatures) -> Result<WritePolicy> {
        let metadata = kind.is_metadata();
        let own = |own: u8, inherited: u64| if own == 0 { inherited } else { u64::from(own) };
        let checksum = own(kind.checksum, self.checksum);
        let checksum = checksum_from_property(checksum)
            .ok_or_else(|| Error::unsupported(format!("checksum {checksum} for writing")))?;
        let compression = own(kind.compression, self.compression);
        // The dnode has room for the algorithm only; the level is the dataset's.
        let compression = match (compression, self.compression) {
            (16, all) if all & 0x7f == 16 => all,
            (compression, _) => compression,
        };
        let compression = Compression::from_property(compression, features)
            .ok_or_else(|| Error::unsupported(format!("compression {compression} for writing")))?;
        let never_embedded = kind.object_type == ObjectType::DNODE
            || kind.object_type == ObjectType::OBJSET
            || kind.level > 0
            || self.encryptor.is_some();
        let mut policy = WritePolicy {
            object_type: kind.object_type,
            level: kind.level,
            compression,
            checksum,
            copies: copies_for(
                kind,
                self.copies,
                self.redundant_metadata,
                self.encryptor.is_some(),
            ),
            class: if metadata { AllocationClass::Special } else { AllocationClass::Normal },
            special_small_blocks: self.special_small_blocks,
            embed: features.embedded_data && !never_embedded,
            nop_write: false,
            dedup: Dedup::Off,
            encryptor: self.encryptor.clone(),
        };
        if metadata {
            policy.compression = Compression::With(Compression::on(features));
            if !policy.checksum.metadata_ok() {
                policy.checksum = Checksum::Fletcher4;
            }
        } else if let Some(checksum) = dedup_checksum(self.dedup)? {
            policy.checksum = checksum;
            // What is encrypted can be made equal where it is equal; what only has a MAC is not.
            if self.encryptor.is_none() || kind.object_type.is_encrypted() {
                let verified = self.dedup & VERIFY != 0 || !checksum.dedup_without_verify();
                policy.dedup = if verified { Dedup::Verified } else { Dedup::Trusting };
                policy.embed = false;
            }
            if policy.compression == Compression::Off {
                policy.compression = Compression::Holes;
            }
        } else {
            policy.nop_write = policy.checksum.nop_write()
                && policy.compression != Compression::Off
                && policy.encryptor.is_none();
        }
        if matches!(kind.object_type, ObjectType::DDT_ZAP | ObjectType::DDT_STATISTICS) {
            policy.class = AllocationClass::Dedup;
        }
        let sealed_in_parts =
            matches!(kind.object_type, ObjectType::DNODE | ObjectType::OBJSET) && kind.level == 0;
        if policy.encryptor.is_some() && sealed_in_parts {
            policy.compression = Compression::Holes;
        }
        Ok(policy)
    }
}

/// The value of `dedup=off`.
pub const DEDUP_OFF: u64 = 2;
/// Bit of the values of `dedup`: blocks of equal checksums are compared.
const VERIFY: u64 = 0x100;

/// The checksum that a value of `dedup` means; `None` for "off". Errors: values that do not exist.
pub fn dedup_checksum(raw: u64) -> Result<Option<Checksum>> {
    let id = raw & !VERIFY;
    if raw == DEDUP_OFF {
        return Ok(None);
    }
    if id == 1 {
        return Ok(Some(Checksum::Sha256));
    }
    let strong = checksum_from_property(id).filter(|checksum| checksum.nop_write());
    let unknown = || Error::unsupported(format!("dedup {raw:#x} for writing"));
    strong.map(Some).ok_or_else(unknown)
}

/// Whether a block that is stored already is referred to instead of stored again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dedup {
    /// It is not looked for.
    #[default]
    Off,
    /// It is if sizes, compression and checksum are equal.
    Trusting,
    /// It is if its bytes are equal, too.
    Verified,
}

/// How one block is written.
#[derive(Clone)]
pub struct WritePolicy {
    /// Type of the object, as it stands in the pointer.
    pub object_type: ObjectType,
    /// Height in the block tree.
    pub level: u8,
    /// Compression.
    pub compression: Compression,
    /// Checksum; not a self-checksummed one.
    pub checksum: Checksum,
    /// Addresses wanted, 1 to 3 (2 for encrypted level-0 blocks).
    pub copies: u8,
    /// Allocation class asked for; the allocator falls back to normal by itself.
    pub class: AllocationClass,
    /// File data that is stored in at most this many bytes goes to the special class.
    pub special_small_blocks: u64,
    /// A result of at most 112 bytes may lie in the pointer.
    pub embed: bool,
    /// The old pointer is kept when the checksum did not change.
    pub nop_write: bool,
    /// What is stored already is referred to. Not together with `embed` and `nop_write`.
    pub dedup: Dedup,
    /// Keys of an encrypted dataset.
    pub encryptor: Option<Arc<dyn Encryptor>>,
}

impl WritePolicy {
    /// Equal bytes become equal blocks in equal places; never so if they are encrypted.
    pub fn writes_like(&self, other: &Self) -> bool {
        let form = |policy: &Self| {
            (policy.object_type, policy.level, policy.compression, policy.checksum, policy.dedup)
        };
        let place = |policy: &Self| (policy.copies, policy.class, policy.special_small_blocks);
        self.encryptor.is_none()
            && other.encryptor.is_none()
            && form(self) == form(other)
            && place(self) == place(other)
            && self.embed == other.embed
    }

    /// The class for `psize` stored bytes.
    pub(super) fn class_for(&self, psize: u64) -> AllocationClass {
        let file = matches!(self.object_type, ObjectType::PLAIN_FILE | ObjectType::OTHER_U64);
        if self.level == 0 && file && psize <= self.special_small_blocks {
            return AllocationClass::Special;
        }
        self.class
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset() -> ObjsetPolicy {
        ObjsetPolicy { copies: 1, ..ObjsetPolicy::mos() }
    }

    #[test]
    fn copies_follow_the_table() {
        use RedundantMetadata::{All, Most, None, Some};
        let file = |level| BlockKind::new(ObjectType::PLAIN_FILE, level);
        let spill = BlockKind { spill: true, ..BlockKind::new(ObjectType::SYSTEM_ATTRIBUTES, 0) };
        // Columns: all, most, some, none.
        let table = [
            (file(0), [1, 1, 1, 1]),
            (file(1), [2, 1, 1, 1]),
            (file(2), [2, 2, 1, 1]),
            (spill, [2, 2, 1, 1]),
            (BlockKind::new(ObjectType::DNODE, 0), [2, 2, 1, 1]),
            (BlockKind::new(ObjectType::DNODE, 1), [2, 2, 2, 1]),
            (BlockKind::new(ObjectType::DIRECTORY, 0), [2, 2, 1, 1]),
            (BlockKind::new(ObjectType::MASTER_NODE, 0), [2, 2, 2, 1]),
            (BlockKind::new(ObjectType::OBJSET, 0), [2, 2, 2, 1]),
        ];
        for (kind, copies) in table {
            let got = [All, Most, Some, None].map(|which| copies_for(&kind, 1, which, false));
            assert_eq!(got, copies, "{kind:?}");
        }
        assert_eq!(copies_for(&file(1), 3, All, false), 3);
        assert_eq!(copies_for(&file(0), 3, All, true), 2);
        assert_eq!(copies_for(&BlockKind::new(ObjectType::MASTER_NODE, 0), 2, All, true), 3);
        assert_eq!(
            [0, 1, 2, 3].map(RedundantMetadata::from_raw),
            [All, Most, Some, None].map(Option::Some)
        );
        assert_eq!(RedundantMetadata::from_raw(4), Option::None);
        let mos = ObjsetPolicy::mos();
        let policy = mos.block(&BlockKind::new(ObjectType::SPACE_MAP, 0), &WriteFeatures::ALL);
        assert_eq!(policy.unwrap().copies, 3);
    }

    #[test]
    fn metadata_is_compressed_and_checksummed_whatever_the_properties() {
        let set = ObjsetPolicy { compression: 2, checksum: 2, ..dataset() };
        let of = |kind: &BlockKind, features: &WriteFeatures| set.block(kind, features).unwrap();
        let dnode = of(&BlockKind::new(ObjectType::DNODE, 0), &WriteFeatures::ALL);
        assert_eq!(dnode.compression, Compression::With(Method::Lz4));
        assert_eq!((dnode.checksum, dnode.embed), (Checksum::Fletcher4, false));
        let old = WriteFeatures { lz4: false, ..WriteFeatures::ALL };
        let indirect = of(&BlockKind::new(ObjectType::PLAIN_FILE, 1), &old);
        assert_eq!(indirect.compression, Compression::With(Method::Lzjb));
        assert_eq!((indirect.class, indirect.embed), (AllocationClass::Special, false));
        let data = of(&BlockKind::new(ObjectType::PLAIN_FILE, 0), &WriteFeatures::ALL);
        assert_eq!((data.compression, data.checksum), (Compression::Off, Checksum::Off));
        assert!(data.embed && !data.nop_write && data.class == AllocationClass::Normal);
        let strong = ObjsetPolicy { checksum: 8, ..dataset() };
        let zap = strong.block(&BlockKind::new(ObjectType(0xc4), 0), &old).unwrap();
        assert_eq!((zap.checksum, zap.nop_write), (Checksum::Sha256, false));
        let data = strong.block(&BlockKind::new(ObjectType::ZVOL, 0), &old).unwrap();
        assert!(data.nop_write);
    }

    #[test]
    fn property_values() {
        let value = |raw| Compression::from_property(raw, &WriteFeatures::ALL);
        assert_eq!(value(0), None);
        assert_eq!(value(1), Some(Compression::With(Method::Lz4)));
        assert_eq!(value(10), Some(Compression::With(Method::Gzip(6))));
        assert_eq!(value(16), Some(Compression::With(Method::Zstd(ZstdLevel::DEFAULT))));
        let Some(Compression::With(Method::Zstd(level))) = value(16 | 103 << 7) else { panic!() };
        assert_eq!(level.number(), -1);
        assert_eq!((value(16 | 50 << 7), value(17)), (None, None));
        assert_eq!(checksum_from_property(1), Some(Checksum::Fletcher4));
        for raw in [0, 3, 4, 5, 9, 15, 0x108] {
            assert_eq!(checksum_from_property(raw), None, "{raw}");
        }
        let set = ObjsetPolicy { compression: 16 | 9 << 7, ..dataset() };
        let kind = BlockKind { compression: 16, ..BlockKind::new(ObjectType::PLAIN_FILE, 0) };
        let policy = set.block(&kind, &WriteFeatures::ALL).unwrap();
        let level = ZstdLevel::from_number(9).unwrap();
        assert_eq!(policy.compression, Compression::With(Method::Zstd(level)));
    }

    #[test]
    fn dedup_decides_the_checksum_of_data() {
        let of = |dedup, kind: &BlockKind| {
            let set = ObjsetPolicy { dedup, compression: 2, ..dataset() };
            set.block(kind, &WriteFeatures::ALL)
        };
        let file = BlockKind::new(ObjectType::PLAIN_FILE, 0);
        let table = [
            (1, Checksum::Sha256, Dedup::Trusting),
            (0x101, Checksum::Sha256, Dedup::Verified),
            (8, Checksum::Sha256, Dedup::Trusting),
            (0x10b, Checksum::Sha512, Dedup::Verified),
            (12, Checksum::Skein, Dedup::Trusting),
            (0x10d, Checksum::Edonr, Dedup::Verified),
            (13, Checksum::Edonr, Dedup::Verified),
            (14, Checksum::Blake3, Dedup::Trusting),
        ];
        for (value, checksum, dedup) in table {
            let policy = of(value, &file).unwrap();
            assert_eq!((policy.checksum, policy.dedup), (checksum, dedup), "{value:#x}");
            assert!(!policy.embed && !policy.nop_write);
            assert_eq!(policy.compression, Compression::Holes);
            let dnode = of(value, &BlockKind::new(ObjectType::DNODE, 0)).unwrap();
            assert_eq!((dnode.checksum, dnode.dedup), (Checksum::Fletcher4, Dedup::Off));
        }
        assert_eq!(of(2, &file).unwrap().dedup, Dedup::Off);
        for value in [0, 3, 6, 7, 9, 15, 0x107, 0x102] {
            assert!(of(value, &file).is_err(), "{value:#x}");
        }
    }

    #[test]
    fn small_files_go_to_the_special_class() {
        let set = ObjsetPolicy { special_small_blocks: 32 << 10, ..dataset() };
        let data =
            |object_type| set.block(&BlockKind::new(object_type, 0), &WriteFeatures::ALL).unwrap();
        let file = data(ObjectType::PLAIN_FILE);
        assert_eq!(file.class_for(32 << 10), AllocationClass::Special);
        assert_eq!(file.class_for(33 << 10), AllocationClass::Normal);
        assert_eq!(data(ObjectType::ZVOL).class_for(512), AllocationClass::Normal);
    }
}
