//! Presentation of the native properties of datasets.
//!
//! Invariant: the entries are in the order `get all` lists them.

use super::{Info, Show};

/// Kinds of dataset, as bits.
const F: u8 = 1;
const V: u8 = 2;
const S: u8 = 4;
const B: u8 = 8;

/// Number shown by `show`, aligned to the right.
const fn number(name: &'static str, column: &'static str, show: Show, kinds: u8) -> Info {
    let width = if column.len() < 5 { 5 } else { column.len() };
    Info {
        name,
        column,
        show,
        width,
        grows: false,
        right: true,
        editable: false,
        inherited: false,
        values: "",
        kinds,
    }
}

/// One of few words, the longest of which has `width` bytes.
const fn choice(name: &'static str, column: &'static str, width: usize, kinds: u8) -> Info {
    let width = if column.len() < width { width } else { column.len() };
    Info { right: false, width, ..number(name, column, Show::Plain, kinds) }
}

/// Text of any length.
const fn text(name: &'static str, column: &'static str, kinds: u8) -> Info {
    Info {
        grows: true,
        right: false,
        width: column.len(),
        ..number(name, column, Show::Plain, kinds)
    }
}

/// A date.
const fn date(name: &'static str, column: &'static str, kinds: u8) -> Info {
    Info { show: Show::Date, ..choice(name, column, 21, kinds) }
}

/// The same with what the usage text says: editable, inherited, values.
const fn usage(info: Info, editable: bool, inherited: bool, values: &'static str) -> Info {
    Info { editable, inherited, values, ..info }
}

/// Properties whose name carries an argument, and how their values are shown.
pub const DATASET_DYNAMIC: &[(&str, Show)] = &[
    ("userused@", Show::Bytes),
    ("groupused@", Show::Bytes),
    ("projectused@", Show::Bytes),
    ("userobjused@", Show::Number),
    ("groupobjused@", Show::Number),
    ("projectobjused@", Show::Number),
    ("userquota@", Show::BytesOrNone),
    ("groupquota@", Show::BytesOrNone),
    ("projectquota@", Show::BytesOrNone),
    ("userobjquota@", Show::BytesOrNone),
    ("groupobjquota@", Show::BytesOrNone),
    ("projectobjquota@", Show::BytesOrNone),
    ("written@", Show::Bytes),
    ("written#", Show::Bytes),
];

/// The property of that name or column heading.
pub fn dataset(name: &str) -> Option<&'static Info> {
    let named = |info: &&Info| info.name == name || super::is_alias(info, name);
    DATASET.iter().find(named)
}

/// All native properties; `name` is the pseudo-property of listings.
#[rustfmt::skip]
pub const DATASET: &[Info] = &[
    Info { values: "", ..text("name", "NAME", F | V | S | B) },
    usage(choice("type", "TYPE", 10, F | V | S | B), false, false, "filesystem | volume | snapshot | bookmark"),
    usage(date("creation", "CREATION", F | V | S | B), false, false, "<date>"),
    usage(number("used", "USED", Show::Bytes, F | V | S), false, false, "<size>"),
    usage(number("available", "AVAIL", Show::Bytes, F | V), false, false, "<size>"),
    usage(number("referenced", "REFER", Show::Bytes, F | V | S | B), false, false, "<size>"),
    usage(number("compressratio", "RATIO", Show::Ratio, F | V | S), false, false, "<1.00x or higher if compressed>"),
    usage(choice("mounted", "MOUNTED", 0, F), false, false, "yes | no"),
    usage(text("origin", "ORIGIN", F | V), false, false, "<snapshot>"),
    usage(number("quota", "QUOTA", Show::BytesOrNone, F), true, false, "<size> | none"),
    usage(number("reservation", "RESERV", Show::BytesOrNone, F | V), true, false, "<size> | none"),
    usage(number("volsize", "VOLSIZE", Show::Bytes, V | S), true, false, "<size>"),
    usage(number("volblocksize", "VOLBLOCK", Show::Number, V), false, true, "512 to 128k, power of 2"),
    usage(number("recordsize", "RECSIZE", Show::Number, F), true, true, "512 to 1M, power of 2"),
    usage(text("mountpoint", "MOUNTPOINT", F), true, true, "<path> | legacy | none"),
    usage(text("sharenfs", "SHARENFS", F), true, true, "on | off | NFS share options"),
    usage(choice("checksum", "CHECKSUM", 9, F | V), true, true, "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3"),
    usage(choice("compression", "COMPRESS", 14, F | V), true, true, "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]"),
    usage(choice("atime", "ATIME", 0, F), true, true, "on | off"),
    usage(choice("devices", "DEVICES", 0, F | S), true, true, "on | off"),
    usage(choice("exec", "EXEC", 0, F | S), true, true, "on | off"),
    usage(choice("setuid", "SETUID", 0, F | S), true, true, "on | off"),
    usage(choice("readonly", "RDONLY", 0, F | V), true, true, "on | off"),
    usage(choice("zoned", "ZONED", 0, F), true, true, "on | off"),
    usage(choice("snapdir", "SNAPDIR", 8, F), true, true, "disabled | hidden | visible"),
    usage(choice("aclmode", "ACLMODE", 11, F), true, true, "discard | groupmask | passthrough | restricted"),
    usage(choice("aclinherit", "ACLINHERIT", 13, F), true, true, "discard | noallow | restricted | passthrough | passthrough-x"),
    usage(number("createtxg", "CREATETXG", Show::Plain, F | V | S | B), false, false, "<uint64>"),
    usage(choice("canmount", "CANMOUNT", 8, F), true, false, "on | off | noauto"),
    usage(choice("xattr", "XATTR", 5, F | S), true, true, "on | off | dir | sa"),
    usage(choice("copies", "COPIES", 0, F | V), true, true, "1 | 2 | 3"),
    usage(choice("version", "VERSION", 0, F | S), true, false, "1 | 2 | 3 | 4 | 5 | current"),
    usage(choice("utf8only", "UTF8ONLY", 0, F | S), false, true, "on | off"),
    usage(choice("normalization", "NORMALIZATION", 13, F | S), false, true, "none | formC | formD | formKC | formKD"),
    usage(choice("casesensitivity", "CASE", 11, F | S), false, true, "sensitive | insensitive | mixed"),
    usage(choice("vscan", "VSCAN", 0, F), true, true, "on | off"),
    usage(choice("nbmand", "NBMAND", 0, F | S), true, true, "on | off"),
    usage(text("sharesmb", "SHARESMB", F), true, true, "on | off | SMB share options"),
    usage(number("refquota", "REFQUOTA", Show::BytesOrNone, F), true, false, "<size> | none"),
    usage(number("refreservation", "REFRESERV", Show::BytesOrNone, F | V), true, false, "<size> | none"),
    usage(Info { width: 20, ..number("guid", "GUID", Show::Plain, F | V | S | B) }, false, false, "<uint64>"),
    usage(choice("primarycache", "PRIMARYCACHE", 12, F | V | S), true, true, "all | none | metadata"),
    usage(choice("secondarycache", "SECONDARYCACHE", 0, F | V | S), true, true, "all | none | metadata"),
    usage(number("usedbysnapshots", "USEDSNAP", Show::Bytes, F | V), false, false, "<size>"),
    usage(number("usedbydataset", "USEDDS", Show::Bytes, F | V), false, false, "<size>"),
    usage(number("usedbychildren", "USEDCHILD", Show::Bytes, F | V), false, false, "<size>"),
    usage(number("usedbyrefreservation", "USEDREFRESERV", Show::Bytes, F | V), false, false, "<size>"),
    usage(choice("defer_destroy", "DEFER_DESTROY", 0, S), false, false, "yes | no"),
    usage(number("userrefs", "USERREFS", Show::Plain, S), false, false, "<count>"),
    usage(choice("logbias", "LOGBIAS", 10, F | V), true, true, "latency | throughput"),
    usage(number("objsetid", "OBJSETID", Show::Plain, F | V | S), false, false, "<uint64>"),
    usage(choice("dedup", "DEDUP", 13, F | V), true, true, "on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | edonr,verify | blake3[,verify]"),
    usage(text("mlslabel", "MLSLABEL", F | V | S), true, true, "<sensitivity label>"),
    usage(choice("sync", "SYNC", 8, F | V), true, true, "standard | always | disabled"),
    usage(choice("dnodesize", "DNSIZE", 6, F), true, true, "legacy | auto | 1k | 2k | 4k | 8k | 16k"),
    usage(number("refcompressratio", "REFRATIO", Show::Ratio, F | V | S), false, false, "<1.00x or higher if compressed>"),
    usage(number("written", "WRITTEN", Show::Number, F | V | S), false, false, "<size>"),
    usage(text("clones", "CLONES", S), false, false, "<dataset>[,...]"),
    usage(number("logicalused", "LUSED", Show::Bytes, F | V), false, false, "<size>"),
    usage(number("logicalreferenced", "LREFER", Show::Bytes, F | V | S | B), false, false, "<size>"),
    usage(choice("volmode", "VOLMODE", 7, F | V), true, true, "default | full | geom | dev | none"),
    usage(number("filesystem_limit", "FSLIMIT", Show::CountOrNone, F), true, false, "<count> | none"),
    usage(number("snapshot_limit", "SSLIMIT", Show::CountOrNone, F | V), true, false, "<count> | none"),
    usage(number("filesystem_count", "FSCOUNT", Show::CountOrNone, F), false, false, "<count>"),
    usage(number("snapshot_count", "SSCOUNT", Show::CountOrNone, F | V), false, false, "<count>"),
    usage(choice("snapdev", "SNAPDEV", 7, F | V), true, true, "hidden | visible"),
    usage(choice("acltype", "ACLTYPE", 8, F | S), true, true, "off | nfsv4 | posix"),
    usage(text("context", "CONTEXT", F | V | S), true, false, "<selinux context>"),
    usage(text("fscontext", "FSCONTEXT", F | V | S), true, false, "<selinux fscontext>"),
    usage(text("defcontext", "DEFCONTEXT", F | V | S), true, false, "<selinux defcontext>"),
    usage(text("rootcontext", "ROOTCONTEXT", F | V | S), true, false, "<selinux rootcontext>"),
    usage(choice("relatime", "RELATIME", 8, F), true, true, "on | off"),
    usage(choice("redundant_metadata", "REDUND_MD", 9, F | V), true, true, "all | most | some | none"),
    usage(choice("overlay", "OVERLAY", 0, F), true, true, "on | off"),
    usage(choice("prefetch", "PREFETCH", 8, F | V), true, true, "none | metadata | all"),
    usage(choice("direct", "DIRECT", 8, F), true, true, "disabled | standard | always"),
    usage(choice("longname", "LONGNAME", 0, F), true, true, "on | off"),
    usage(text("receive_resume_token", "RESUMETOK", F | V), false, false, "<string token>"),
    usage(choice("encryption", "ENCRYPTION", 11, F | V | S), false, true, "on | off | aes-128-ccm | aes-192-ccm | aes-256-ccm | aes-128-gcm | aes-192-gcm | aes-256-gcm"),
    usage(text("keylocation", "KEYLOCATION", F | V), true, false, "prompt | <file URI> | <https URL> | <http URL>"),
    usage(choice("keyformat", "KEYFORMAT", 10, F | V), false, false, "none | raw | hex | passphrase"),
    usage(number("pbkdf2iters", "PBKDF2ITERS", Show::Plain, F | V), false, false, "<iters>"),
    usage(text("encryptionroot", "ENCROOT", F | V | S), false, false, "<filesystem | volume>"),
    usage(choice("keystatus", "KEYSTATUS", 11, F | V | S), false, false, "none | unavailable | available"),
    usage(number("special_small_blocks", "SPECIAL_SMALL_BLOCKS", Show::Number, F), true, true, "zero or 512 to 1M, power of 2"),
    usage(text("redact_snaps", "RSNAPS", F | V | S), false, false, "<snapshot>[,...]"),
    usage(Info { show: Show::DateToSecond, ..date("snapshots_changed", "SNAPSHOTS_CHANGED", F | V) }, false, false, "<date>"),
    usage(choice("volthreading", "VOLTHREADING", 0, V), false, false, "on | off"),
];
