//! Presentation of the native properties of pools.
//!
//! Invariant: the entries are in the order `get all` lists them; features follow them.

use super::{Info, Show};

const fn number(name: &'static str, column: &'static str, show: Show) -> Info {
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
        kinds: 0,
    }
}

/// One of few words, the longest of which has `width` bytes.
const fn choice(name: &'static str, column: &'static str, width: usize) -> Info {
    let width = if column.len() < width { width } else { column.len() };
    Info { right: false, width, ..number(name, column, Show::Plain) }
}

/// Text of any length.
const fn text(name: &'static str, column: &'static str) -> Info {
    Info { grows: true, right: false, width: column.len(), ..number(name, column, Show::Plain) }
}

/// The same with what the usage text says: editable, values.
const fn usage(info: Info, editable: bool, values: &'static str) -> Info {
    Info { editable, values, ..info }
}

/// The property of that name or column heading; features (`feature@x`) are not in the table.
pub fn pool(name: &str) -> Option<&'static Info> {
    let named = |info: &&Info| info.name == name || super::is_alias(info, name);
    POOL.iter().find(named)
}

/// All native properties; `name` is the pseudo-property of listings.
#[rustfmt::skip]
pub const POOL: &[Info] = &[
    text("name", "NAME"),
    usage(number("size", "SIZE", Show::Number), false, "<size>"),
    usage(number("capacity", "CAP", Show::Percent), false, "<percent>"),
    usage(text("altroot", "ALTROOT"), true, "<path>"),
    usage(Info { right: true, grows: true, ..choice("health", "HEALTH", 8) }, false, "<state>"),
    usage(Info { grows: true, ..number("guid", "GUID", Show::Plain) }, false, "<guid>"),
    usage(number("version", "VERSION", Show::Plain), true, "<version>"),
    usage(text("bootfs", "BOOTFS"), true, "<filesystem>"),
    usage(choice("delegation", "DELEGATION", 0), true, "on | off"),
    usage(choice("autoreplace", "REPLACE", 0), true, "on | off"),
    usage(text("cachefile", "CACHEFILE"), true, "<file> | none"),
    usage(choice("failmode", "FAILMODE", 8), true, "wait | continue | panic"),
    usage(choice("listsnapshots", "LISTSNAPS", 0), true, "on | off"),
    usage(choice("autoexpand", "EXPAND", 0), true, "on | off"),
    usage(number("dedupratio", "DEDUP", Show::Ratio), false, "<1.00x or higher if deduped>"),
    usage(number("free", "FREE", Show::Number), false, "<size>"),
    usage(number("allocated", "ALLOC", Show::Number), false, "<size>"),
    usage(choice("readonly", "RDONLY", 0), true, "on | off"),
    usage(number("ashift", "ASHIFT", Show::Plain), true, "<ashift, 9-16, or 0=default>"),
    usage(text("comment", "COMMENT"), true, "<comment-string>"),
    usage(number("expandsize", "EXPANDSZ", Show::Number), false, "<size>"),
    usage(number("freeing", "FREEING", Show::Number), false, "<size>"),
    usage(number("fragmentation", "FRAG", Show::Percent), false, "<percent>"),
    usage(number("leaked", "LEAKED", Show::Number), false, "<size>"),
    usage(choice("multihost", "MULTIHOST", 0), true, "on | off"),
    usage(number("checkpoint", "CKPOINT", Show::Number), false, "<size>"),
    usage(Info { grows: true, ..number("load_guid", "LOAD_GUID", Show::Plain) }, false, "<load_guid>"),
    usage(choice("autotrim", "AUTOTRIM", 0), true, "on | off"),
    usage(text("compatibility", "COMPATIBILITY"), true, "<file[,file...]> | off | legacy"),
    usage(number("bcloneused", "BCLONE_USED", Show::Number), false, "<size>"),
    usage(number("bclonesaved", "BCLONE_SAVED", Show::Number), false, "<size>"),
    usage(number("bcloneratio", "BCLONE_RATIO", Show::Ratio), false, "<1.00x or higher if cloned>"),
    usage(number("dedup_table_size", "DEDUP_TABLE_SIZE", Show::Number), false, "<size>"),
    usage(Info { show: Show::Bytes, ..text("dedup_table_quota", "DEDUP_TABLE_QUOTA") }, true, "<size> | none | auto"),
    usage(number("dedupcached", "DEDUPCACHED", Show::Number), false, "<size>"),
    usage(number("last_scrubbed_txg", "LAST_SCRUBBED_TXG", Show::Plain), false, "<txg>"),
];
