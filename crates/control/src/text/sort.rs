//! The order of listed datasets.
//!
//! Invariant: the order is total, so equal inputs give equal listings.

use std::cmp::Ordering;

use crate::properties;
use crate::report::{DatasetKind, DatasetReport};

/// One `-s` or `-S`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// Property to sort by.
    pub property: String,
    /// From high to low.
    pub reverse: bool,
}

/// Compares two datasets: by the keys, then by name with snapshots of one dataset by age.
pub fn compare(keys: &[SortKey], left: &DatasetReport, right: &DatasetReport) -> Ordering {
    for key in keys {
        let order = by_key(key, left, right);
        if order != Ordering::Equal {
            return order;
        }
    }
    by_name(left, right)
}

fn by_key(key: &SortKey, left: &DatasetReport, right: &DatasetReport) -> Ordering {
    let turn = |order: Ordering| if key.reverse { order.reverse() } else { order };
    if key.property == "name" {
        return turn(left.name.cmp(&right.name));
    }
    let (a, b) = (value(left, &key.property), value(right, &key.property));
    let numeric = match properties::dataset(&key.property) {
        Some(info) => info.is_number(),
        None => !properties::is_user_property(&key.property),
    };
    match (a, b) {
        (None, None) => Ordering::Equal,
        // what has no value comes last, whatever the direction
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) if numeric => turn(as_numbers(a, b)),
        (Some(a), Some(b)) => turn(a.cmp(b)),
    }
}

fn value<'a>(dataset: &'a DatasetReport, property: &str) -> Option<&'a str> {
    dataset.properties.value(property)
}

fn as_numbers(a: &str, b: &str) -> Ordering {
    if let (Ok(a), Ok(b)) = (a.parse::<u64>(), b.parse::<u64>()) {
        return a.cmp(&b);
    }
    let number = |text: &str| text.parse::<f64>().unwrap_or(0.0);
    number(a).total_cmp(&number(b))
}

/// The order without keys: by name, snapshots of a dataset after it by creation, then bookmarks.
pub fn by_name(left: &DatasetReport, right: &DatasetReport) -> Ordering {
    let (a, b) = (base(&left.name), base(&right.name));
    a.cmp(b).then_with(|| {
        let snapshots = (left.kind == DatasetKind::Snapshot, right.kind == DatasetKind::Snapshot);
        match snapshots {
            (true, true) => {
                left.createtxg.cmp(&right.createtxg).then_with(|| left.name.cmp(&right.name))
            }
            (false, true) => Ordering::Less,
            (true, false) => Ordering::Greater,
            (false, false) => left.name.cmp(&right.name),
        }
    })
}

/// The name up to the `@`; a bookmark's name as a whole, which sorts after the dataset.
fn base(name: &str) -> &str {
    name.split_once('@').map_or(name, |(dataset, _)| dataset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(name: &str, kind: DatasetKind, createtxg: u64, used: &str) -> DatasetReport {
        let mut report =
            DatasetReport { name: name.into(), kind, createtxg, ..DatasetReport::default() };
        report.properties.set("used", used, crate::report::Source::None);
        report
    }

    #[test]
    fn orders_like_openzfs() {
        use DatasetKind::{Bookmark, Filesystem, Snapshot};
        let mut all = [
            dataset("g101/a#bm", Bookmark, 10, "-"),
            dataset("g101/a@two", Snapshot, 10, "20480"),
            dataset("g101/b", Filesystem, 5, "18944"),
            dataset("g101/a@one", Snapshot, 9, "18944"),
            dataset("g101/a", Filesystem, 8, "1470976"),
            dataset("g101", Filesystem, 1, "45295616"),
        ];
        all.sort_by(|a, b| compare(&[], a, b));
        let names: Vec<_> = all.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["g101", "g101/a", "g101/a@one", "g101/a@two", "g101/a#bm", "g101/b"]);

        let keys = [
            SortKey { property: "used".into(), reverse: true },
            SortKey { property: "name".into(), reverse: false },
        ];
        all.sort_by(|a, b| compare(&keys, a, b));
        let names: Vec<_> = all.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["g101", "g101/a", "g101/a@two", "g101/a@one", "g101/b", "g101/a#bm"]);
    }
}
