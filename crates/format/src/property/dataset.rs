//! The native properties of datasets.
//!
//! Chapter 06, section 9.3. Defaults are those of current OpenZFS on Linux. Invariant: entries are
//! in the order of their numbers, which is the order of listings.

use super::Attribute::{Inherit, Once, OnceDefault, Plain, ReadOnly};
use super::{Attribute, Default, IndexTable, Kind, Property, Types, index};

const F: Types = Types::FILESYSTEM;
const S: Types = Types::SNAPSHOT;
const V: Types = Types::VOLUME;
const FV: Types = Types(F.0 | V.0);
const FS: Types = Types(F.0 | S.0);
const SV: Types = Types(S.0 | V.0);
const FSV: Types = Types(F.0 | S.0 | V.0);
const FSVB: Types = Types(15);

const fn computed(id: u16, name: &'static str, types: Types) -> Property {
    let (kind, default, attribute) = (Kind::Number, Default::Missing, ReadOnly);
    Property { id, name, kind, default, attribute, types, visible: true }
}

const fn computed_text(id: u16, name: &'static str, types: Types) -> Property {
    Property { kind: Kind::String, ..computed(id, name, types) }
}

const fn computed_index(id: u16, name: &'static str, types: Types, table: IndexTable) -> Property {
    Property { kind: Kind::Index(table), ..computed(id, name, types) }
}

const fn hidden(property: Property) -> Property {
    Property { visible: false, ..property }
}

const fn number(
    id: u16,
    name: &'static str,
    default: u64,
    types: Types,
    attribute: Attribute,
) -> Property {
    let default = Default::Number(default);
    Property { id, name, kind: Kind::Number, default, attribute, types, visible: true }
}

const fn choice(
    id: u16,
    name: &'static str,
    default: u64,
    types: Types,
    attribute: Attribute,
    table: IndexTable,
) -> Property {
    Property { kind: Kind::Index(table), ..number(id, name, default, types, attribute) }
}

const fn text(
    id: u16,
    name: &'static str,
    default: &'static str,
    types: Types,
    attribute: Attribute,
) -> Property {
    let default = Default::Text(default);
    Property { id, name, kind: Kind::String, default, attribute, types, visible: true }
}

/// Every native property of datasets.
pub const DATASET: &[Property] = &[
    computed_text(0, "type", FSVB),
    computed(1, "creation", FSVB),
    computed(2, "used", FSV),
    computed(3, "available", FV),
    computed(4, "referenced", FSVB),
    computed(5, "compressratio", FSVB),
    computed_index(6, "mounted", F, index::YES_NO),
    computed_text(7, "origin", FV),
    number(8, "quota", 0, F, Plain),
    number(9, "reservation", 0, FV, Plain),
    number(10, "volsize", 0, SV, Plain),
    number(11, "volblocksize", 16384, V, Once),
    number(12, "recordsize", 131_072, F, Inherit),
    text(13, "mountpoint", "/", F, Inherit),
    text(14, "sharenfs", "off", F, Inherit),
    choice(15, "checksum", 1, FV, Inherit, index::CHECKSUM),
    choice(16, "compression", 1, FV, Inherit, index::COMPRESSION),
    choice(17, "atime", 1, F, Inherit, index::ON_OFF),
    choice(18, "devices", 1, FS, Inherit, index::ON_OFF),
    choice(19, "exec", 1, FS, Inherit, index::ON_OFF),
    choice(20, "setuid", 1, FS, Inherit, index::ON_OFF),
    choice(21, "readonly", 0, FV, Inherit, index::ON_OFF),
    choice(22, "zoned", 0, F, Inherit, index::ON_OFF),
    choice(23, "snapdir", 0, F, Inherit, index::SNAPDIR),
    choice(24, "aclmode", 0, F, Inherit, index::ACLMODE),
    choice(25, "aclinherit", 4, F, Inherit, index::ACLINHERIT),
    computed(26, "createtxg", FSVB),
    hidden(computed_text(27, "name", FSVB)),
    choice(28, "canmount", 1, F, Plain, index::CANMOUNT),
    hidden(text(29, "iscsioptions", "", V, Inherit)),
    choice(30, "xattr", 2, FS, Inherit, index::XATTR),
    hidden(computed(31, "numclones", S)),
    choice(32, "copies", 1, FV, Inherit, index::COPIES),
    choice(33, "version", 5, FS, Plain, index::VERSION),
    choice(34, "utf8only", 0, FS, Once, index::ON_OFF),
    choice(35, "normalization", 0, FS, Once, index::NORMALIZATION),
    choice(36, "casesensitivity", 0, FS, Once, index::CASE),
    choice(37, "vscan", 0, F, Inherit, index::ON_OFF),
    choice(38, "nbmand", 0, FS, Inherit, index::ON_OFF),
    text(39, "sharesmb", "off", F, Inherit),
    number(40, "refquota", 0, F, Plain),
    number(41, "refreservation", 0, FV, Plain),
    computed(42, "guid", FSVB),
    choice(43, "primarycache", 2, FSV, Inherit, index::CACHE),
    choice(44, "secondarycache", 2, FSV, Inherit, index::CACHE),
    computed(45, "usedbysnapshots", FV),
    computed(46, "usedbydataset", FV),
    computed(47, "usedbychildren", FV),
    computed(48, "usedbyrefreservation", FV),
    hidden(computed(49, "useraccounting", FSV)),
    hidden(text(50, "stmf_sbd_lu", "", V, Inherit)),
    computed_index(51, "defer_destroy", S, index::ON_OFF),
    computed(52, "userrefs", S),
    choice(53, "logbias", 0, FV, Inherit, index::LOGBIAS),
    hidden(computed(54, "unique", FSV)),
    computed(55, "objsetid", FSV),
    choice(56, "dedup", 2, FV, Inherit, index::DEDUP),
    text(57, "mlslabel", "none", FSV, Inherit),
    choice(58, "sync", 0, FV, Inherit, index::SYNC),
    choice(59, "dnodesize", 0, F, Inherit, index::DNODESIZE),
    computed(60, "refcompressratio", FSV),
    computed(61, "written", FSV),
    computed_text(62, "clones", S),
    computed(63, "logicalused", FV),
    computed(64, "logicalreferenced", FSVB),
    hidden(computed(65, "inconsistent", FSV)),
    choice(66, "volmode", 0, FV, Inherit, index::VOLMODE),
    number(67, "filesystem_limit", u64::MAX, F, Plain),
    number(68, "snapshot_limit", u64::MAX, FV, Plain),
    number(69, "filesystem_count", u64::MAX, F, ReadOnly),
    number(70, "snapshot_count", u64::MAX, FV, ReadOnly),
    choice(71, "snapdev", 0, FV, Inherit, index::SNAPDEV),
    choice(72, "acltype", 0, FS, Inherit, index::ACLTYPE),
    text(73, "context", "none", FSV, Plain),
    text(74, "fscontext", "none", FSV, Plain),
    text(75, "defcontext", "none", FSV, Plain),
    text(76, "rootcontext", "none", FSV, Plain),
    choice(77, "relatime", 1, F, Inherit, index::ON_OFF),
    choice(78, "redundant_metadata", 0, FV, Inherit, index::REDUNDANT_METADATA),
    choice(79, "overlay", 1, F, Inherit, index::ON_OFF),
    hidden(computed_text(80, "prevsnap", FV)),
    computed_text(81, "receive_resume_token", FV),
    choice(82, "encryption", 2, FSV, Once, index::ENCRYPTION),
    text(83, "keylocation", "none", FV, Plain),
    choice(84, "keyformat", 0, FV, OnceDefault, index::KEYFORMAT),
    hidden(number(85, "pbkdf2salt", 0, FV, OnceDefault)),
    number(86, "pbkdf2iters", 0, FV, OnceDefault),
    computed_text(87, "encryptionroot", FSV),
    hidden(computed(88, "keyguid", FSV)),
    computed_index(89, "keystatus", FSV, index::KEYSTATUS),
    hidden(computed(90, "remaptxg", FSV)),
    number(91, "special_small_blocks", 0, FV, Inherit),
    hidden(computed(92, "ivsetguid", FSVB)),
    hidden(computed(93, "redacted", FSV)),
    computed_text(94, "redact_snaps", FSVB),
    computed(95, "snapshots_changed", FV),
    choice(96, "prefetch", 2, FSV, Inherit, index::CACHE),
    choice(97, "volthreading", 1, V, Plain, index::ON_OFF),
    choice(98, "direct", 1, F, Inherit, index::DIRECT),
    choice(99, "longname", 0, F, Inherit, index::ON_OFF),
    number(100, "defaultuserquota", 0, FS, Plain),
    number(101, "defaultgroupquota", 0, FS, Plain),
    number(102, "defaultprojectquota", 0, FS, Plain),
    number(103, "defaultuserobjquota", 0, FS, Plain),
    number(104, "defaultgroupobjquota", 0, FS, Plain),
    number(105, "defaultprojectobjquota", 0, FS, Plain),
];

/// The native dataset property of that name.
pub fn dataset(name: &str) -> Option<&'static Property> {
    DATASET.iter().find(|property| property.name == name)
}
