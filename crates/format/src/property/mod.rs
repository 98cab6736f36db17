//! Native properties: what each is called, holds, defaults to, and how its value is written.
//!
//! Chapter 06, section 9. Numbers and indices are stored as one u64, strings as bytes; sizes are
//! formatted elsewhere. Invariant: an index value that has a name reads back as the same value.

mod dataset;
mod index;
mod pool;

pub use dataset::{DATASET, dataset};
pub use pool::{POOL, pool};

/// Suffix of the ZAP entry that holds a received value.
pub const RECEIVED_SUFFIX: &str = "$recvd";
/// Suffix of the ZAP entry that says "inherit, whatever was received".
pub const INHERIT_SUFFIX: &str = "$inherit";
/// Suffix of the ZAP entry that holds the real value where the plain entry is a stand-in.
pub const UNSUPPORTED_SUFFIX: &str = "$iuv";
/// ZAP entry of a dataset that has received properties.
pub const HAS_RECEIVED: &str = "$hasrecvd";
/// Longest name of a user property in bytes.
pub const USER_NAME_MAX: usize = 255;
/// Longest value of a user property in bytes.
pub const USER_VALUE_MAX: usize = 8191;

/// Names of index values; the first name of a value is the one printed.
pub type IndexTable = &'static [(&'static str, u64)];

/// What a property holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number: bytes, a count, a time, or as the property says.
    Number,
    /// One of a few named values.
    Index(IndexTable),
    /// Text.
    String,
}

/// Who may set a property, and whether children take it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Settable; children inherit.
    Inherit,
    /// Settable; children have the default.
    Plain,
    /// Computed or fixed.
    ReadOnly,
    /// Set when the dataset is created, never changed.
    Once,
    /// As [`Self::Once`], with a default that counts as a value.
    OnceDefault,
}

/// The value a property has when nobody set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// A number or index.
    Number(u64),
    /// Text.
    Text(&'static str),
    /// There is none: without a stored or computed value there is no property.
    Missing,
}

/// Set of dataset types a property applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(pub u8);

impl Types {
    /// Filesystems.
    pub const FILESYSTEM: Self = Self(1);
    /// Snapshots.
    pub const SNAPSHOT: Self = Self(2);
    /// Volumes.
    pub const VOLUME: Self = Self(4);
    /// Bookmarks.
    pub const BOOKMARK: Self = Self(8);

    /// Every type of `other` is in this set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Some type of `other` is in this set.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl std::ops::BitOr for Types {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A native property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property {
    /// Number in the programming interface; also the order in which properties are listed.
    pub id: u16,
    /// Name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What it holds when nobody set it.
    pub default: Default,
    /// Who sets it.
    pub attribute: Attribute,
    /// Dataset types it applies to (all for pool properties).
    pub types: Types,
    /// Listed by `get all`.
    pub visible: bool,
}

impl Property {
    /// Children take over the value.
    pub fn is_inheritable(&self) -> bool {
        self.attribute == Attribute::Inherit
    }

    /// Nobody can set it on an existing dataset.
    pub fn is_read_only(&self) -> bool {
        !matches!(self.attribute, Attribute::Inherit | Attribute::Plain)
    }

    /// It can be given when a dataset is created.
    pub fn is_settable_once(&self) -> bool {
        matches!(self.attribute, Attribute::Once | Attribute::OnceDefault)
    }

    /// The printed name of an index value.
    pub fn index_name(&self, value: u64) -> Option<&'static str> {
        match self.kind {
            Kind::Index(table) => table.iter().find(|entry| entry.1 == value).map(|entry| entry.0),
            _ => None,
        }
    }

    /// The index value of a name.
    pub fn index_value(&self, name: &str) -> Option<u64> {
        match self.kind {
            Kind::Index(table) => table.iter().find(|entry| entry.0 == name).map(|entry| entry.1),
            _ => None,
        }
    }

    /// The plain text of a number: the index name, or decimal digits.
    pub fn number_text(&self, value: u64) -> String {
        self.index_name(value).map_or_else(|| value.to_string(), str::to_owned)
    }
}

/// The name is that of a user property: it has a colon and only the characters allowed.
pub fn is_user_name(name: &str) -> bool {
    name.contains(':')
        && name.len() <= USER_NAME_MAX
        && name.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":+-._".contains(&byte)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_ordered_and_names_unique() {
        for table in [DATASET, POOL] {
            assert!(table.windows(2).all(|pair| pair[0].id < pair[1].id));
            for property in table {
                assert_eq!(table.iter().filter(|other| other.name == property.name).count(), 1);
                if let (Kind::Index(values), Default::Number(value)) =
                    (property.kind, property.default)
                {
                    assert!(values.iter().any(|v| v.1 == value), "{}", property.name);
                }
            }
        }
    }

    #[test]
    fn index_values_print_as_first_name() {
        let compression = dataset("compression").unwrap();
        let pairs = [("lz4", 15), ("gzip-9", 13), ("zstd", 16), ("zstd-19", 16 | 19 << 7)];
        for (name, value) in pairs {
            assert_eq!(compression.index_value(name), Some(value), "{name}");
            assert_eq!(compression.index_name(value), Some(name));
        }
        assert_eq!(compression.index_value("zstd-fast-10"), Some(16 | 112 << 7));
        assert_eq!(compression.index_value("zstd-fast-1000"), Some(16 | 123 << 7));
        assert_eq!(compression.index_name(10), Some("gzip"));
        assert_eq!(compression.index_name(17), None);
        let dedup = dataset("dedup").unwrap();
        assert_eq!(dedup.index_name(0x10d), Some("edonr,verify"));
        assert_eq!(dataset("sync").unwrap().number_text(1), "always");
        assert_eq!(dataset("quota").unwrap().number_text(1), "1");
        assert_eq!(pool("failmode").unwrap().index_value("panic"), Some(2));
    }

    #[test]
    fn attributes() {
        assert!(dataset("recordsize").unwrap().is_inheritable());
        assert!(dataset("used").unwrap().is_read_only());
        assert!(dataset("keyformat").unwrap().is_settable_once());
        assert!(!dataset("quota").unwrap().is_inheritable());
        assert!(dataset("volsize").unwrap().types.contains(Types::SNAPSHOT));
        assert!(!dataset("volsize").unwrap().types.intersects(Types::FILESYSTEM));
        assert!(is_user_name("com.example:note") && !is_user_name("note") && !is_user_name("A:b"));
    }
}
