//! `zfs list`, `get` and `mount` as JSON.
//!
//! Invariant: one object for each dataset, keyed by its name.

use serde_json::{Map, Value, json};

use super::{Options, document, line, property};
use crate::report::{DatasetKind, DatasetReport, Property};
use crate::text::dataset_get::{self, Sources};

fn head(options: &Options, dataset: &DatasetReport) -> Map<String, Value> {
    let name = dataset.name.as_str();
    let pool = name.split(['/', '@', '#']).next().unwrap_or(name);
    let mut map = Map::new();
    map.insert("name".into(), json!(name));
    map.insert("type".into(), json!(dataset.kind.word().to_uppercase()));
    map.insert("pool".into(), json!(pool));
    map.insert("createtxg".into(), options.plain(dataset.createtxg));
    if dataset.kind == DatasetKind::Snapshot
        && let Some((parent, snapshot)) = name.split_once('@')
    {
        map.insert("dataset".into(), json!(parent));
        map.insert("snapshot_name".into(), json!(snapshot));
    }
    map
}

fn with_properties(options: &Options, dataset: &DatasetReport, shown: &[Property]) -> Value {
    let mut map = head(options, dataset);
    let mut properties = Map::new();
    for each in shown {
        let human = dataset_get::shown(&each.name, &each.value, false);
        properties.insert(each.name.clone(), property(options, each, human));
    }
    map.insert("properties".into(), Value::Object(properties));
    Value::Object(map)
}

fn render(
    command: &str,
    datasets: &[DatasetReport],
    wanted: Option<&[String]>,
    sources: Sources,
    options: &Options,
    skip_empty: bool,
) -> String {
    let mut all = Map::new();
    for dataset in datasets {
        let mut shown = dataset_get::selected(dataset, wanted, sources);
        if !skip_empty {
            shown.retain(|property| property.name != "name");
        }
        if !(skip_empty && shown.is_empty()) {
            all.insert(dataset.name.clone(), with_properties(options, dataset, &shown));
        }
    }
    let mut document = document(command);
    document.insert("datasets".into(), Value::Object(all));
    line(document)
}

/// `zfs list -j` with these columns.
pub fn list(datasets: &[DatasetReport], wanted: &[String], options: &Options) -> String {
    render("zfs list", datasets, Some(wanted), Sources::ALL, options, false)
}

/// `zfs get -j` of these properties (`None`: all).
pub fn get(
    datasets: &[DatasetReport],
    wanted: Option<&[String]>,
    sources: Sources,
    options: &Options,
) -> String {
    render("zfs get", datasets, wanted, sources, options, true)
}

/// `zfs mount -j`.
pub fn mounts(datasets: &[DatasetReport]) -> String {
    let mut all = Map::new();
    for dataset in datasets {
        if let Some(place) = &dataset.mounted_at {
            all.insert(
                dataset.name.clone(),
                json!({ "filesystem": dataset.name, "mountpoint": place }),
            );
        }
    }
    let mut document = document("zfs mount");
    document.insert("datasets".into(), Value::Object(all));
    line(document)
}
