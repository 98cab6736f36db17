//! `zfs list` as text.
//!
//! Invariant: columns are as wide as OpenZFS 2.3 makes them.

use super::table::{self, Column};
use crate::properties::{self, Show};
use crate::report::DatasetReport;

/// Columns of `zfs list` without `-o`.
pub const DEFAULT_COLUMNS: &str = "name,used,available,referenced,mountpoint";
/// What the column `space` stands for.
pub const SPACE_COLUMNS: &str =
    "name,available,used,usedbysnapshots,usedbydataset,usedbyrefreservation,usedbychildren";

/// One property as it is printed; `-` if it does not apply.
pub fn value(dataset: &DatasetReport, property: &str, exact: bool) -> String {
    match property {
        "name" => return dataset.name.clone(),
        "type" => return dataset.kind.word().to_owned(),
        _ => {}
    }
    let Some(found) = dataset.properties.get(property) else {
        return "-".to_owned();
    };
    let show = properties::dataset_show(property).unwrap_or(Show::Plain);
    if exact { found.value.clone() } else { properties::show(show, &found.value) }
}

/// Headings and widths of these columns for these datasets.
pub fn columns(datasets: &[DatasetReport], wanted: &[String], exact: bool) -> Vec<Column> {
    wanted
        .iter()
        .map(|property| {
            let info = properties::dataset(property);
            let heading = info.map_or_else(|| property.to_uppercase(), |i| i.column.to_owned());
            let mut width = info.map_or(heading.len(), |info| info.width);
            if exact || info.is_none_or(|info| info.grows) {
                for dataset in datasets {
                    width = width.max(value(dataset, property, exact).len());
                }
            }
            let right = match info {
                Some(info) => info.right,
                None => !properties::is_user_property(property),
            };
            Column { heading, width, right }
        })
        .collect()
}

/// The table.
pub fn render(
    datasets: &[DatasetReport],
    wanted: &[String],
    exact: bool,
    scripted: bool,
) -> String {
    let mut out = String::new();
    if scripted {
        for dataset in datasets {
            let cells: Vec<String> =
                wanted.iter().map(|property| value(dataset, property, exact)).collect();
            out.push_str(&table::scripted(&cells));
        }
        return out;
    }
    let columns = columns(datasets, wanted, exact);
    out.push_str(&table::headings(&columns));
    for dataset in datasets {
        let cells: Vec<String> =
            wanted.iter().map(|property| value(dataset, property, exact)).collect();
        out.push_str(&table::line(&columns, &cells));
    }
    out
}

/// The listing of `zfs mount`: names padded to 30 bytes, then where they are mounted.
pub fn mounts(datasets: &[DatasetReport]) -> String {
    let mut out = String::new();
    for dataset in datasets {
        if let Some(place) = &dataset.mounted_at {
            out.push_str(&format!("{}  {place}\n", table::pad(&dataset.name, 30, false)));
        }
    }
    out
}
