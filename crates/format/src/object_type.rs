//! Object types: what an object's blocks hold, how they are swapped, and whether they are encrypted.
//!
//! Chapter 04, section 5.

/// How blocks of a type change between byte orders (chapter 04, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapClass {
    /// Bytes: nothing to swap.
    U8,
    /// Array of 16-bit integers.
    U16,
    /// Array of 32-bit integers.
    U32,
    /// Array of 64-bit integers.
    U64,
    /// ZAP blocks.
    Zap,
    /// Dnode blocks.
    Dnode,
    /// An object-set block.
    Objset,
    /// Legacy znode bonus.
    Znode,
    /// ACL of ZPL versions below 3.
    OldAcl,
    /// ACL of ZPL version 3 and above.
    Acl,
}

/// The 8-bit object type, old style (below 54) or new style (bit 7 set).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectType(pub u8);

macro_rules! types {
    ($($name:ident = $value:literal, $text:literal, $class:ident, $meta:literal, $crypt:literal;)*) => {
        #[allow(missing_docs, reason = "the names are the documentation; see chapter 04, section 5")]
        impl ObjectType {
            $(pub const $name: Self = Self($value);)*
        }
        /// Name, swap class, metadata, encrypted; indexed by the old-style type number.
        const OLD: &[(&str, SwapClass, bool, bool)] =
            &[$(($text, SwapClass::$class, $meta, $crypt),)*];
    };
}

types! {
    NONE = 0, "unallocated", U8, true, false;
    OBJECT_DIRECTORY = 1, "object directory", Zap, true, false;
    OBJECT_ARRAY = 2, "object array", U64, true, false;
    PACKED_NVLIST = 3, "packed nvlist", U8, true, false;
    PACKED_NVLIST_SIZE = 4, "packed nvlist size", U64, true, false;
    BPOBJ = 5, "bpobj", U64, true, false;
    BPOBJ_HEADER = 6, "bpobj header", U64, true, false;
    SPACE_MAP_HEADER = 7, "SPA space map header", U64, true, false;
    SPACE_MAP = 8, "SPA space map", U64, true, false;
    INTENT_LOG = 9, "ZIL intent log", U64, true, true;
    DNODE = 10, "DMU dnode", Dnode, true, true;
    OBJSET = 11, "DMU objset", Objset, true, false;
    DSL_DIRECTORY = 12, "DSL directory", U64, true, false;
    DSL_DIRECTORY_CHILD_MAP = 13, "DSL directory child map", Zap, true, false;
    DSL_DATASET_SNAP_MAP = 14, "DSL dataset snap map", Zap, true, false;
    DSL_PROPS = 15, "DSL props", Zap, true, false;
    DSL_DATASET = 16, "DSL dataset", U64, true, false;
    ZNODE = 17, "ZFS znode", Znode, true, false;
    OLD_ACL = 18, "ZFS V0 ACL", OldAcl, true, true;
    PLAIN_FILE = 19, "ZFS plain file", U8, false, true;
    DIRECTORY = 20, "ZFS directory", Zap, true, true;
    MASTER_NODE = 21, "ZFS master node", Zap, true, false;
    DELETE_QUEUE = 22, "ZFS delete queue", Zap, true, true;
    ZVOL = 23, "zvol object", U8, false, true;
    ZVOL_PROP = 24, "zvol prop", Zap, true, false;
    OTHER_U8 = 25, "other uint8[]", U8, false, true;
    OTHER_U64 = 26, "other uint64[]", U64, false, true;
    OTHER_ZAP = 27, "other ZAP", Zap, true, false;
    ERROR_LOG = 28, "persistent error log", Zap, true, false;
    HISTORY = 29, "SPA history", U8, true, false;
    HISTORY_OFFSETS = 30, "SPA history offsets", U64, true, false;
    POOL_PROPS = 31, "Pool properties", Zap, true, false;
    DSL_PERMISSIONS = 32, "DSL permissions", Zap, true, false;
    ACL = 33, "ZFS ACL", Acl, true, true;
    SYSACL = 34, "ZFS SYSACL", U8, true, true;
    FUID = 35, "FUID table", U8, true, true;
    FUID_SIZE = 36, "FUID table size", U64, true, false;
    NEXT_CLONES = 37, "DSL dataset next clones", Zap, true, false;
    SCAN_QUEUE = 38, "scan work queue", Zap, true, false;
    USED = 39, "ZFS user/group/project used", Zap, true, true;
    QUOTA = 40, "ZFS user/group/project quota", Zap, true, true;
    USERREFS = 41, "snapshot refcount tags", Zap, true, false;
    DDT_ZAP = 42, "DDT ZAP algorithm", Zap, true, false;
    DDT_STATISTICS = 43, "DDT statistics", Zap, true, false;
    SYSTEM_ATTRIBUTES = 44, "System attributes", U8, true, true;
    SA_MASTER = 45, "SA master node", Zap, true, true;
    SA_REGISTRATION = 46, "SA attr registration", Zap, true, true;
    SA_LAYOUTS = 47, "SA attr layouts", Zap, true, true;
    SCAN_TRANSLATIONS = 48, "scan translations", Zap, true, false;
    DEDUP = 49, "deduplicated block", U8, false, true;
    DEADLIST = 50, "DSL deadlist map", Zap, true, false;
    DEADLIST_HEADER = 51, "DSL deadlist map hdr", U64, true, false;
    DSL_CLONES = 52, "DSL dir clones", Zap, true, false;
    BPOBJ_SUBOBJ = 53, "bpobj subobj", U64, true, false;
}

impl ObjectType {
    fn old(self) -> Option<&'static (&'static str, SwapClass, bool, bool)> {
        OLD.get(usize::from(self.0))
    }

    fn is_new_style(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// The type exists in the format.
    pub fn is_valid(self) -> bool {
        if self.is_new_style() { self.0 & 0x1f < 10 } else { self.old().is_some() }
    }

    /// Metadata: duplicated, always compressed, kept in the metadata class.
    pub fn is_metadata(self) -> bool {
        if self.is_new_style() { self.0 & 0x40 != 0 } else { self.old().is_none_or(|o| o.2) }
    }

    /// Level-0 blocks are encrypted in encrypted datasets (else only authenticated).
    pub fn is_encrypted(self) -> bool {
        if self.is_new_style() { self.0 & 0x20 != 0 } else { self.old().is_some_and(|o| o.3) }
    }

    /// How level-0 blocks are swapped between byte orders.
    pub fn swap_class(self) -> SwapClass {
        if !self.is_new_style() {
            return self.old().map_or(SwapClass::U8, |o| o.1);
        }
        match self.0 & 0x1f {
            1 => SwapClass::U16,
            2 => SwapClass::U32,
            3 => SwapClass::U64,
            4 => SwapClass::Zap,
            5 => SwapClass::Dnode,
            6 => SwapClass::Objset,
            7 => SwapClass::Znode,
            8 => SwapClass::OldAcl,
            9 => SwapClass::Acl,
            _ => SwapClass::U8,
        }
    }

    /// Name as `zdb` prints it.
    pub fn name(self) -> String {
        if let (false, Some(old)) = (self.is_new_style(), self.old()) {
            return old.0.to_owned();
        }
        let class = match self.swap_class() {
            SwapClass::U8 => "uint8",
            SwapClass::U16 => "uint16",
            SwapClass::U32 => "uint32",
            SwapClass::U64 => "uint64",
            SwapClass::Zap => "zap",
            SwapClass::Dnode => "dnode",
            SwapClass::Objset => "objset",
            SwapClass::Znode => "znode",
            SwapClass::OldAcl => "oldacl",
            SwapClass::Acl => "acl",
        };
        if !self.is_valid() {
            return format!("unknown type {}", self.0);
        }
        let kind = if self.is_metadata() { "metadata" } else { "data" };
        if class == "zap" { "zap".to_owned() } else { format!("{class} ({kind})") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_positions_match_numbers() {
        assert_eq!(OLD.len(), 54);
        assert_eq!(ObjectType::BPOBJ_SUBOBJ.name(), "bpobj subobj");
        assert_eq!(ObjectType::PLAIN_FILE.name(), "ZFS plain file");
        let encrypted: Vec<u8> = (0..54).filter(|t| ObjectType(*t).is_encrypted()).collect();
        assert_eq!(
            encrypted,
            [9, 10, 18, 19, 20, 22, 23, 25, 26, 33, 34, 35, 39, 40, 44, 45, 46, 47, 49]
        );
        let data: Vec<u8> = (0..54).filter(|t| !ObjectType(*t).is_metadata()).collect();
        assert_eq!(data, [19, 23, 25, 26, 49]);
        assert!(!ObjectType(54).is_valid() && ObjectType(0xc4).is_valid());
        assert_eq!(ObjectType(0xc3).swap_class(), SwapClass::U64);
    }
}
