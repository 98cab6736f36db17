//! `zfs get` as text.
//!
//! Invariant: a property that does not apply to a dataset is left out by `all` and shown as `-`
//! when it is asked for by name.

use super::dataset_list::value;
use super::pool_get::{self, Field, Row, Widths};
use crate::properties;
use crate::report::{DatasetReport, Property, Source};

/// Which sources `-s` lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Sources {
    pub local: bool,
    pub default: bool,
    pub inherited: bool,
    pub received: bool,
    pub temporary: bool,
    pub none: bool,
}

impl Sources {
    /// All of them.
    pub const ALL: Sources = Sources {
        local: true,
        default: true,
        inherited: true,
        received: true,
        temporary: true,
        none: true,
    };

    /// None of them.
    pub const NOTHING: Sources = Sources {
        local: false,
        default: false,
        inherited: false,
        received: false,
        temporary: false,
        none: false,
    };

    /// Lets the source of this name through; false if there is no such source.
    pub fn allow(&mut self, name: &str) -> bool {
        match name {
            "local" => self.local = true,
            "default" => self.default = true,
            "inherited" => self.inherited = true,
            "received" => self.received = true,
            "temporary" => self.temporary = true,
            "none" => self.none = true,
            _ => return false,
        }
        true
    }

    /// Whether values from this source are shown.
    pub fn shows(self, source: &Source) -> bool {
        match source {
            Source::None => self.none,
            Source::Default => self.default,
            Source::Temporary => self.temporary,
            Source::Local => self.local,
            Source::Received => self.received,
            Source::Inherited(_) => self.inherited,
        }
    }
}

/// The properties to show of one dataset: those asked for, or (`None`) all that it has.
pub fn selected(
    dataset: &DatasetReport,
    wanted: Option<&[String]>,
    sources: Sources,
) -> Vec<Property> {
    let absent = |name: &String| {
        let value = if name == "name" { dataset.name.clone() } else { "-".to_owned() };
        Property { name: name.clone(), value, ..Property::default() }
    };
    let listed = |property: &&Property| {
        let name = property.name.as_str();
        let known = properties::dataset(name).is_some() || properties::is_user_property(name);
        known && property.value != "-"
    };
    let found: Vec<Property> = match wanted {
        None => dataset.properties.0.iter().filter(listed).cloned().collect(),
        Some(names) => names
            .iter()
            .map(|name| dataset.properties.get(name).cloned().unwrap_or_else(|| absent(name)))
            .map(with_source)
            .collect(),
    };
    found.into_iter().filter(|property| sources.shows(&property.source)).collect()
}

/// Values of properties with an argument count as set on the dataset, as in OpenZFS.
fn with_source(mut property: Property) -> Property {
    let native = properties::dataset(&property.name).is_some();
    let dynamic = !native && !properties::is_user_property(&property.name);
    if dynamic && property.value != "-" {
        property.source = Source::Local;
    }
    property
}

/// How a value is shown.
pub fn shown(name: &str, text: &str, exact: bool) -> String {
    match properties::dataset_show(name) {
        Some(show) if !exact => properties::show(show, text),
        _ => text.to_owned(),
    }
}

/// `zfs get` of these properties (`None`: all) for these datasets.
pub fn render(
    datasets: &[DatasetReport],
    wanted: Option<&[String]>,
    fields: &[Field],
    sources: Sources,
    exact: bool,
    scripted: bool,
) -> String {
    let mut rows = Vec::new();
    let mut widths = Widths::default();
    if wanted.is_none() {
        // `all` makes room for every native property, whether it is shown or not
        for info in properties::DATASET {
            widths.property = widths.property.max(info.name.len());
            widths.value = widths.value.max(info.width);
        }
    }
    for name in wanted.unwrap_or(&[]) {
        widths.property = widths.property.max(name.len());
        let info = properties::dataset(name);
        widths.value = widths.value.max(info.map_or(name.len(), |info| info.width));
    }
    for dataset in datasets {
        widths.name = widths.name.max(dataset.name.len());
        for property in selected(dataset, wanted, Sources::ALL) {
            let name = &property.name;
            let info = properties::dataset(name);
            let text = if name == "type" {
                value(dataset, name, exact)
            } else {
                shown(name, &property.value, exact)
            };
            widths.property = widths.property.max(name.len());
            widths.value = widths.value.max(info.map_or(name.len(), |info| info.width));
            if exact || info.is_none_or(|info| info.grows) {
                widths.value = widths.value.max(text.len());
            }
            let received =
                property.received.as_deref().map_or("-".to_owned(), |r| shown(name, r, exact));
            widths.received = widths.received.max(received.len());
            if !sources.shows(&property.source) {
                continue;
            }
            rows.push(Row {
                name: dataset.name.clone(),
                property: name.clone(),
                value: text,
                received,
                source: pool_get::source(&property.source),
            });
        }
    }
    pool_get::table(&rows, fields, widths, scripted)
}
