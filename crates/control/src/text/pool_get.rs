//! `zpool get` as text, and the table that `zfs get` shares with it.
//!
//! Invariant: the columns are wide enough for headings, names and the properties asked for; values
//! of fixed width make them no wider, as in OpenZFS.

use super::pool_list;
use super::table;
use crate::properties;
use crate::report::{PoolReport, Source};

/// A column of `get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Name of the pool or dataset.
    Name,
    /// Name of the property.
    Property,
    /// Its value.
    Value,
    /// The value that was received.
    Received,
    /// Where it was set.
    Source,
}

impl Field {
    /// The field of that name.
    pub fn named(name: &str) -> Option<Field> {
        Some(match name {
            "name" => Field::Name,
            "property" => Field::Property,
            "value" => Field::Value,
            "received" => Field::Received,
            "source" => Field::Source,
            _ => return None,
        })
    }

    /// The fields that `-o` of `get` asks for; `Err` with the message.
    pub fn list(text: Option<&str>) -> Result<Vec<Field>, String> {
        let field =
            |name: &str| Field::named(name).ok_or_else(|| format!("invalid column name '{name}'"));
        match text {
            None => Ok(DEFAULT_FIELDS.to_vec()),
            Some("all") => Ok(ALL_FIELDS.to_vec()),
            Some(text) => text.split(',').map(field).collect(),
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Field::Name => "NAME",
            Field::Property => "PROPERTY",
            Field::Value => "VALUE",
            Field::Received => "RECEIVED",
            Field::Source => "SOURCE",
        }
    }
}

/// Fields shown without `-o`.
pub const DEFAULT_FIELDS: [Field; 4] = [Field::Name, Field::Property, Field::Value, Field::Source];
/// Fields shown with `-o all`.
pub const ALL_FIELDS: [Field; 5] =
    [Field::Name, Field::Property, Field::Value, Field::Received, Field::Source];

/// One line of `get`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Name of the pool or dataset.
    pub name: String,
    /// Name of the property.
    pub property: String,
    /// Its value as printed.
    pub value: String,
    /// The received value as printed, or `-`.
    pub received: String,
    /// Where it was set, as printed.
    pub source: String,
}

impl Row {
    fn field(&self, field: Field) -> &str {
        match field {
            Field::Name => &self.name,
            Field::Property => &self.property,
            Field::Value => &self.value,
            Field::Received => &self.received,
            Field::Source => &self.source,
        }
    }
}

/// A source as the SOURCE column shows it.
pub fn source(source: &Source) -> String {
    match source {
        Source::None => "-".to_owned(),
        Source::Default => "default".to_owned(),
        Source::Temporary => "temporary".to_owned(),
        Source::Local => "local".to_owned(),
        Source::Received => "received".to_owned(),
        Source::Inherited(from) => format!("inherited from {from}"),
    }
}

/// Widths of the fields: of the widest name, property, value and received value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Widths {
    /// Names.
    pub name: usize,
    /// Properties.
    pub property: usize,
    /// Values.
    pub value: usize,
    /// Received values.
    pub received: usize,
}

/// The table.
pub fn table(rows: &[Row], fields: &[Field], widths: Widths, scripted: bool) -> String {
    let columns: Vec<table::Column> = fields
        .iter()
        .map(|field| {
            let heading = field.heading();
            let width = match field {
                Field::Name => widths.name,
                Field::Property => widths.property,
                Field::Value => widths.value,
                Field::Received => widths.received,
                Field::Source => 0,
            };
            table::Column {
                heading: heading.to_owned(),
                width: width.max(heading.len()),
                right: false,
            }
        })
        .collect();
    let mut out = String::new();
    if !scripted && !rows.is_empty() {
        out.push_str(&table::headings(&columns));
    }
    for row in rows {
        let cells: Vec<&str> = fields.iter().map(|field| row.field(*field)).collect();
        out.push_str(&if scripted {
            table::scripted(&cells)
        } else {
            table::line(&columns, &cells)
        });
    }
    out
}

/// Names of all properties of a pool, in listing order; what `all` stands for.
pub fn all_properties(pool: &PoolReport) -> Vec<String> {
    pool.properties.0.iter().map(|property| property.name.clone()).collect()
}

/// `zpool get` of these properties (`None`: all) for these pools.
pub fn render(
    pools: &[PoolReport],
    wanted: Option<&[String]>,
    fields: &[Field],
    exact: bool,
    scripted: bool,
) -> String {
    let mut rows = Vec::new();
    let mut widths = Widths::default();
    for pool in pools {
        widths.name = widths.name.max(pool.name.len());
        let names = wanted.map_or_else(|| all_properties(pool), <[String]>::to_vec);
        for name in names {
            let info = properties::pool(&name);
            let full = info.map_or(name.as_str(), |info| info.name);
            let Some((value, source)) = value_and_source(pool, full, exact) else {
                continue;
            };
            widths.property = widths.property.max(full.len());
            widths.value = widths.value.max(info.map_or(full.len(), |info| info.width));
            if exact || info.is_none_or(|info| info.grows) {
                widths.value = widths.value.max(value.len());
            }
            rows.push(Row {
                name: pool.name.clone(),
                property: full.to_owned(),
                value,
                received: "-".to_owned(),
                source,
            });
        }
    }
    table(&rows, fields, widths, scripted)
}

fn value_and_source(pool: &PoolReport, property: &str, exact: bool) -> Option<(String, String)> {
    if property == "name" {
        return Some((pool.name.clone(), "-".to_owned()));
    }
    let found = pool.properties.get(property);
    if found.is_none() && property.contains('@') {
        return None;
    }
    let from = found.map_or_else(|| "-".to_owned(), |found| source(&found.source));
    Some((pool_list::value(pool, property, exact), from))
}
