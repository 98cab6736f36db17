//! The native properties of pools.
//!
//! Chapter 06, section 9.4. `feature@` properties come from the feature table instead. Invariant:
//! entries are in the order of their numbers, which is the order of listings.

use super::Attribute::{Once, Plain, ReadOnly};
use super::{Attribute, Default, Kind, Property, Types, index};

const ALL: Types = Types(15);

const fn entry(
    id: u16,
    name: &'static str,
    kind: Kind,
    default: Default,
    attribute: Attribute,
) -> Property {
    Property { id, name, kind, default, attribute, types: ALL, visible: true }
}

const fn computed(id: u16, name: &'static str) -> Property {
    entry(id, name, Kind::Number, Default::Missing, ReadOnly)
}

const fn flag(id: u16, name: &'static str, default: u64) -> Property {
    entry(id, name, Kind::Index(index::ON_OFF), Default::Number(default), Plain)
}

const fn hidden(property: Property) -> Property {
    Property { visible: false, ..property }
}

/// Every native property of pools but `feature@`.
pub const POOL: &[Property] = &[
    hidden(entry(0, "name", Kind::String, Default::Missing, ReadOnly)),
    computed(1, "size"),
    computed(2, "capacity"),
    entry(3, "altroot", Kind::String, Default::Missing, Plain),
    entry(4, "health", Kind::String, Default::Missing, ReadOnly),
    computed(5, "guid"),
    entry(6, "version", Kind::Number, Default::Number(5000), Plain),
    entry(7, "bootfs", Kind::String, Default::Missing, Plain),
    flag(8, "delegation", 1),
    flag(9, "autoreplace", 0),
    entry(10, "cachefile", Kind::String, Default::Missing, Plain),
    entry(11, "failmode", Kind::Index(index::FAILMODE), Default::Number(0), Plain),
    flag(12, "listsnapshots", 0),
    flag(13, "autoexpand", 0),
    hidden(entry(14, "dedupditto", Kind::Number, Default::Number(0), Plain)),
    computed(15, "dedupratio"),
    computed(16, "free"),
    computed(17, "allocated"),
    flag(18, "readonly", 0),
    entry(19, "ashift", Kind::Number, Default::Number(0), Plain),
    entry(20, "comment", Kind::String, Default::Missing, Plain),
    computed(21, "expandsize"),
    computed(22, "freeing"),
    computed(23, "fragmentation"),
    computed(24, "leaked"),
    hidden(computed(25, "maxblocksize")),
    hidden(entry(26, "tname", Kind::String, Default::Missing, Once)),
    hidden(computed(27, "maxdnodesize")),
    flag(28, "multihost", 0),
    computed(29, "checkpoint"),
    computed(30, "load_guid"),
    flag(31, "autotrim", 0),
    entry(32, "compatibility", Kind::String, Default::Text("off"), Plain),
    computed(33, "bcloneused"),
    computed(34, "bclonesaved"),
    computed(35, "bcloneratio"),
    computed(36, "dedup_table_size"),
    entry(37, "dedup_table_quota", Kind::Number, Default::Number(u64::MAX), Plain),
    hidden(computed(38, "dedupcached")),
    computed(39, "last_scrubbed_txg"),
];

/// The native pool property of that name.
pub fn pool(name: &str) -> Option<&'static Property> {
    POOL.iter().find(|property| property.name == name)
}
