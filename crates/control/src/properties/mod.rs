//! How each native property is called, shown, aligned and documented on the command line.
//!
//! The engine owns what properties mean; this is only their presentation. Invariant: every value
//! that crosses the control socket is the exact one (`get -p`), and [`Info::human`] is the only
//! place that turns it into the form for people.

mod dataset;
mod pool;

use crate::report::DatasetKind;
use crate::text::{number, time};

pub use dataset::{DATASET, DATASET_DYNAMIC, dataset};
pub use pool::{POOL, pool};

/// How the exact value of a property becomes the value for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// As it is.
    Plain,
    /// Bytes, with a unit (`0B`, `1.50K`).
    Bytes,
    /// A number with a unit but no `B` (`0`, `1.50K`).
    Number,
    /// Bytes; zero is `none`.
    BytesOrNone,
    /// A count; the largest 64-bit number is `none`.
    CountOrNone,
    /// Hundredths, followed by `x`.
    Ratio,
    /// Followed by `%`.
    Percent,
    /// Unix seconds, shown as a date.
    Date,
    /// A point in time with its second.
    DateToSecond,
}

/// Presentation of one native property.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Name.
    pub name: &'static str,
    /// Heading of its column in `list`; also accepted as a name there, in lower case.
    pub column: &'static str,
    /// How values are shown.
    pub show: Show,
    /// Least width of its column.
    pub width: usize,
    /// The column grows with its values (text), or never does (numbers, choices).
    pub grows: bool,
    /// Values are aligned to the right.
    pub right: bool,
    /// Whether it can be set at all times (`EDIT` of the usage text).
    pub editable: bool,
    /// Whether it can be set at creation only, or is plain read-only, does not matter here; this
    /// tells whether datasets below inherit it.
    pub inherited: bool,
    /// What values it takes, for the usage text; empty for properties the text leaves out.
    pub values: &'static str,
    /// Kinds of dataset it applies to: bits 1 filesystem, 2 volume, 4 snapshot, 8 bookmark.
    pub kinds: u8,
}

impl Info {
    /// Whether the property applies to datasets of this kind.
    pub fn applies_to(&self, kind: DatasetKind) -> bool {
        let bit = match kind {
            DatasetKind::Filesystem => 1,
            DatasetKind::Volume => 2,
            DatasetKind::Snapshot => 4,
            DatasetKind::Bookmark => 8,
        };
        self.kinds & bit != 0
    }

    /// Whether the property applies to any kind of dataset and is listed by `-o all`.
    pub fn applies_to_any(&self) -> bool {
        self.kinds != 0
    }

    /// The value for people of the exact value.
    pub fn human(&self, exact: &str) -> String {
        show(self.show, exact)
    }

    /// Whether values sort as numbers.
    pub fn is_number(&self) -> bool {
        !matches!(self.show, Show::Plain) || self.right
    }
}

/// Whether `name` is the column heading in lower case.
fn is_alias(info: &Info, name: &str) -> bool {
    !name.contains(|c: char| c.is_ascii_uppercase()) && info.column.eq_ignore_ascii_case(name)
}

/// Turns an exact value into the one for people. Values that do not parse are shown as they are.
pub fn show(how: Show, exact: &str) -> String {
    let number = exact.parse::<u64>().ok();
    match (how, number) {
        (Show::Plain, _) => exact.to_owned(),
        (Show::Ratio, _) if exact != "-" => format!("{exact}x"),
        (Show::Percent, Some(n)) => format!("{n}%"),
        (Show::Bytes, Some(n)) => number::bytes(n),
        (Show::Number, Some(n)) => number::plain(n),
        (Show::BytesOrNone, Some(0)) => "none".to_owned(),
        (Show::BytesOrNone, Some(n)) => number::bytes(n),
        (Show::CountOrNone, Some(u64::MAX)) => "none".to_owned(),
        (Show::CountOrNone, Some(n)) => number::plain(n),
        (Show::Date | Show::DateToSecond, Some(n)) => match (i64::try_from(n), how) {
            (Ok(seconds), Show::Date) => time::creation(seconds),
            (Ok(seconds), _) => time::changed(seconds),
            (Err(_), _) => exact.to_owned(),
        },
        _ => exact.to_owned(),
    }
}

/// Finds how any dataset property is shown: native, with an argument (`userused@root`), or a user
/// property. `None` if there is no such property.
pub fn dataset_show(name: &str) -> Option<Show> {
    if let Some(info) = dataset(name) {
        return Some(info.show);
    }
    for (prefix, show) in DATASET_DYNAMIC {
        // Whose it is may be left out, not since what.
        let has_more = name.len() > prefix.len() || !prefix.starts_with("written");
        if has_more && name.starts_with(prefix) {
            return Some(*show);
        }
    }
    is_user_property(name).then_some(Show::Plain)
}

/// Whether the name is one of a user property: it has a colon and only the permitted characters.
pub fn is_user_property(name: &str) -> bool {
    let permitted = |c: char| {
        c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, ':' | '-' | '.' | '_')
    };
    name.contains(':') && name.len() < 256 && name.chars().all(permitted)
}

#[cfg(test)]
mod tests {
    use super::{dataset_show, show};

    /// As OpenZFS 2.1.11 says it.
    #[test]
    fn sizes_of_blocks_have_no_unit_below_a_kibibyte() {
        let said = |name: &str, value: &str| show(dataset_show(name).unwrap(), value);
        assert_eq!(said("recordsize", "512"), "512");
        assert_eq!(said("recordsize", "131072"), "128K");
        assert_eq!(said("volblocksize", "8192"), "8K");
        assert_eq!(said("used", "512"), "512B");
    }
}
