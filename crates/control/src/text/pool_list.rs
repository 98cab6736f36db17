//! `zpool list` as text.
//!
//! Invariant: columns are as wide as OpenZFS makes them; the devices of `-v` have fixed columns,
//! whatever `-o` says.

use super::table::{self, Column, pad};
use super::vdev_name::{self, Naming, SECTIONS};
use super::words;
use crate::properties::{self, Show};
use crate::report::{PoolReport, VdevClass, VdevReport};

/// Columns of `zpool list` without `-o`.
pub const DEFAULT_COLUMNS: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// Options of `zpool list` that change what is printed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `-g`, `-L`, `-P`.
    pub naming: Naming,
    /// Exact numbers (`-p`).
    pub exact: bool,
    /// For scripts (`-H`).
    pub scripted: bool,
    /// Devices too (`-v`).
    pub verbose: bool,
}

/// One pool property as it is printed; `-` if the pool has no such property.
pub fn value(pool: &PoolReport, property: &str, exact: bool) -> String {
    if property == "name" {
        return pool.name.clone();
    }
    let Some(found) = pool.properties.get(property) else {
        return "-".to_owned();
    };
    match properties::pool(property) {
        Some(info) if !exact => info.human(&found.value),
        _ => found.value.clone(),
    }
}

/// Widths and headings of the columns `columns` (property names) for these pools.
pub fn columns(pools: &[PoolReport], columns: &[String], options: &Options) -> Vec<Column> {
    columns
        .iter()
        .map(|property| {
            let info = properties::pool(property);
            let heading = info.map_or_else(|| property.to_uppercase(), |i| i.column.to_owned());
            let mut width = info.map_or(heading.len(), |info| info.width);
            if options.exact || info.is_none_or(|info| info.grows) {
                for pool in pools {
                    width = width.max(value(pool, property, options.exact).len());
                }
            }
            if property == "name" && options.verbose {
                for pool in pools {
                    width = width.max(name_width(pool, options.naming));
                }
            }
            Column { heading, width, right: info.is_some_and(|info| info.right) }
        })
        .collect()
}

/// Width of the name column of `-v` for one pool.
fn name_width(pool: &PoolReport, naming: Naming) -> usize {
    let own = vdev_name::widest(&pool.root, 0, naming);
    let others = pool.caches.iter().chain(&pool.spares);
    others.map(|vdev| vdev_name::widest(vdev, 2, naming)).fold(own, usize::max)
}

/// The table, with its headings unless for scripts.
pub fn render(pools: &[PoolReport], properties: &[String], options: &Options) -> String {
    let columns = columns(pools, properties, options);
    let mut out = String::new();
    if !options.scripted {
        out.push_str(&table::headings(&columns));
    }
    out.push_str(&rows(pools, properties, &columns, options));
    out
}

/// The rows without headings.
pub fn rows(
    pools: &[PoolReport],
    properties: &[String],
    columns: &[Column],
    options: &Options,
) -> String {
    let width = columns.first().map_or(0, |column| column.width);
    let mut out = String::new();
    for pool in pools {
        let cells: Vec<String> =
            properties.iter().map(|name| value(pool, name, options.exact)).collect();
        out.push_str(&if options.scripted {
            table::scripted(&cells)
        } else {
            table::line(columns, &cells)
        });
        if options.verbose {
            out.push_str(&devices(pool, width, options));
        }
    }
    out
}

fn devices(pool: &PoolReport, width: usize, options: &Options) -> String {
    let mut out = String::new();
    for vdev in vdev_name::tops(&pool.root, VdevClass::Normal) {
        device(&mut out, vdev, 2, width, options, false);
    }
    for (heading, class) in SECTIONS {
        let tops: Vec<_> = vdev_name::tops(&pool.root, class).collect();
        section(&mut out, heading, &tops, width, options, false);
    }
    section(&mut out, "cache", &pool.caches.iter().collect::<Vec<_>>(), width, options, false);
    section(&mut out, "spare", &pool.spares.iter().collect::<Vec<_>>(), width, options, true);
    out
}

fn section(
    out: &mut String,
    heading: &str,
    devices: &[&VdevReport],
    width: usize,
    options: &Options,
    spare: bool,
) {
    if devices.is_empty() {
        return;
    }
    let heading = pad(heading, width, false);
    out.push_str(&format!(
        "{heading}      -      -      -        -         -      -      -      -         -\n"
    ));
    for vdev in devices {
        device(out, vdev, 2, width, options, spare);
    }
}

/// The columns of a device: size, allocated, free, checkpoint, expandable, fragmentation,
/// capacity, dedup ratio; `-` where they do not apply. Capacity in hundredths of a percent.
pub fn device_values(vdev: &VdevReport, exact: bool) -> [String; 8] {
    let top = vdev.space != 0;
    let dash = || "-".to_owned();
    let size =
        |n: u64| properties::show(if exact { Show::Plain } else { Show::Number }, &n.to_string());
    let some = |wanted: bool, n: u64| if wanted { size(n) } else { dash() };
    let whole =
        if vdev.is_leaf() && vdev.physical_size != 0 { vdev.physical_size } else { vdev.space };
    let fragmentation = match vdev.fragmentation {
        Some(percent) if top && exact => percent.to_string(),
        Some(percent) if top => format!("{percent}%"),
        _ => dash(),
    };
    let capacity = if !top {
        dash()
    } else {
        let parts = u128::from(vdev.allocated) * 10_000 / u128::from(vdev.space);
        capacity(u64::try_from(parts).unwrap_or(u64::MAX), exact)
    };
    [
        some(whole != 0, whole),
        some(top, vdev.allocated),
        some(top, vdev.space.saturating_sub(vdev.allocated)),
        some(vdev.checkpoint_space != 0, vdev.checkpoint_space),
        some(vdev.expandable != 0, vdev.expandable),
        fragmentation,
        capacity,
        dash(),
    ]
}

fn capacity(hundredths: u64, exact: bool) -> String {
    let percent = hundredths as f64 / 100.0;
    match hundredths {
        _ if exact => (hundredths / 100).to_string(),
        0..1000 => format!("{percent:.2}%"),
        1000..10_000 => format!("{percent:.1}%"),
        _ => format!("{percent:.0}%"),
    }
}

fn device(
    out: &mut String,
    vdev: &VdevReport,
    depth: usize,
    width: usize,
    options: &Options,
    spare: bool,
) {
    if vdev.kind == "hole" {
        return;
    }
    let name = vdev_name::name(vdev, options.naming);
    let state =
        if spare { words::spare_state(vdev) } else { words::state(vdev.state, vdev.reason) };
    let values = device_values(vdev, options.exact);
    if options.scripted {
        out.push_str(&format!("\t{name}\t{}\t{state}\n", values.join("\t")));
    } else {
        let name =
            format!("{}{}", " ".repeat(depth), pad(&name, width.saturating_sub(depth), false));
        out.push_str(&name);
        for (value, width) in values.iter().zip([5, 5, 5, 7, 8, 5, 5, 5]) {
            out.push_str(&format!("  {value:>width$}"));
        }
        out.push_str(&format!("  {state:>8}\n"));
    }
    for child in &vdev.children {
        device(out, child, depth + 2, width, options, spare);
    }
}
