//! Properties of pools, feature states included, as `zpool get all` lists them.
//!
//! Chapter 06, sections 3.2, 3.3 and 9.4. Invariant: a property without a value is `-`, never left
//! out, so that listings have the same lines for every pool.

use cenote_format::config::PoolConfig;
use cenote_format::property::{self, Default, Kind, Property};
use cenote_format::{ObjectId, feature};

use super::space::PoolSpace;
use crate::Result;
use crate::dataset::{Catalog, PropertyValue, Source, Table, Value};

/// What only the process that holds the pool knows.
#[derive(Clone, Debug, std::default::Default, PartialEq, Eq)]
pub struct Runtime {
    /// State of the pool, such as `ONLINE`.
    pub health: String,
    /// What goes before all mountpoints.
    pub altroot: Option<String>,
    /// Where the pool is remembered; `none` for nowhere.
    pub cachefile: Option<String>,
    /// Opened for reading only.
    pub read_only: bool,
    /// Drawn anew at every import.
    pub load_guid: Option<u64>,
    /// Bytes the devices have grown by.
    pub expandable: Option<u64>,
}

/// Where values of a pool's properties come from.
struct Reader<'a> {
    catalog: &'a Catalog,
    config: &'a PoolConfig,
    space: &'a PoolSpace,
    runtime: &'a Runtime,
    stored: Option<Table>,
}

/// Every visible property, then every known feature, then the user properties.
pub fn all(
    catalog: &Catalog,
    config: &PoolConfig,
    space: &PoolSpace,
    runtime: &Runtime,
) -> Result<Vec<PropertyValue>> {
    let directory = catalog.object_directory()?;
    let id = directory.number("pool_props")?.unwrap_or(0);
    let stored = Table::open(catalog.mos(), ObjectId(id))?;
    let reader = Reader { catalog, config, space, runtime, stored };
    let mut found = Vec::new();
    for property in property::POOL.iter().filter(|property| property.visible) {
        found.push(reader.native(property)?);
    }
    found.extend(features(catalog, &directory)?);
    found.extend(reader.user()?);
    Ok(found)
}

fn absent() -> Value {
    Value::Text("-".to_owned())
}

impl Reader<'_> {
    fn native(&self, property: &'static Property) -> Result<PropertyValue> {
        let (value, source) = match self.known(property)? {
            Some(found) => found,
            None => self.settable(property)?,
        };
        let name = property.name.to_owned();
        Ok(PropertyValue { property: Some(property), name, value, source, received: None })
    }

    /// Values that are not in the pool's table of properties.
    fn known(&self, property: &Property) -> Result<Option<(Value, Source)>> {
        let (space, runtime) = (self.space, self.runtime);
        let number = |number| Some((Value::Number(number), Source::None));
        let maybe =
            |number: Option<u64>| Some((number.map_or_else(absent, Value::Number), Source::None));
        let text = |text: &Option<String>| match text {
            Some(text) => Some((Value::Text(text.clone()), Source::Local)),
            None => Some((absent(), Source::Default)),
        };
        Ok(match property.name {
            "size" => number(space.size()),
            "capacity" => number(space.capacity_percent()),
            "free" => number(space.free()),
            "allocated" => number(space.allocated()),
            "fragmentation" => maybe(space.fragmentation()),
            "expandsize" => maybe(runtime.expandable),
            "checkpoint" => maybe(space.checkpoint),
            "dedupratio" => Some((Value::Ratio(space.dedup_ratio()), Source::None)),
            "bcloneratio" => Some((Value::Ratio(space.clone_ratio()), Source::None)),
            "bcloneused" => number(space.clone_used),
            "bclonesaved" => number(space.clone_saved),
            "dedup_table_size" => number(space.dedup_tables.disk_bytes),
            "freeing" => number(self.hidden_used("$FREE")?),
            "leaked" => number(self.hidden_used("$LEAK")?),
            "guid" => maybe(self.config.pool_guid.map(|guid| guid.0)),
            "load_guid" => maybe(runtime.load_guid),
            "last_scrubbed_txg" => {
                number(self.catalog.object_directory()?.number("last_scrubbed_txg")?.unwrap_or(0))
            }
            "health" => Some((Value::Text(runtime.health.clone()), Source::None)),
            "readonly" => Some((Value::Number(u64::from(runtime.read_only)), Source::None)),
            "version" => match self.config.version {
                Some(version) if version < feature::FEATURE_VERSION => {
                    Some((Value::Number(version), Source::Local))
                }
                _ => Some((absent(), Source::Default)),
            },
            "altroot" => text(&runtime.altroot),
            "cachefile" => text(&runtime.cachefile),
            "comment" => text(&self.config.comment),
            "compatibility" => {
                let local = |text: &String| (Value::Text(text.clone()), Source::Local);
                self.config.compatibility.as_ref().map(local)
            }
            "bootfs" => Some(self.bootfs()?),
            _ => None,
        })
    }

    fn settable(&self, property: &Property) -> Result<(Value, Source)> {
        let stored = match (&self.stored, property.kind) {
            (None, _) => None,
            (Some(table), Kind::String) => table.text(property.name)?.map(Value::Text),
            (Some(table), _) => table.number(property.name)?.map(Value::Number),
        };
        let default = match property.default {
            Default::Number(number) => Value::Number(number),
            Default::Text(text) => Value::Text(text.to_owned()),
            Default::Missing => absent(),
        };
        // A number that is the default counts as such, even where it was set.
        let local = stored.as_ref().is_some_and(|value| *value != default);
        let value = stored.unwrap_or(default);
        // No limit has a name of its own.
        let value = match (property.name, value) {
            ("dedup_table_quota", Value::Number(u64::MAX)) => Value::Text("auto".to_owned()),
            ("dedup_table_quota", Value::Number(0)) => Value::Text("none".to_owned()),
            (_, value) => value,
        };
        Ok((value, if local { Source::Local } else { Source::Default }))
    }

    fn bootfs(&self) -> Result<(Value, Source)> {
        let stored = match &self.stored {
            Some(table) => table.value("bootfs")?,
            None => None,
        };
        let Some(stored) = stored else { return Ok((absent(), Source::Default)) };
        // Cenote once stored the name; it is mended when the pool is opened for writing.
        if let (None, Some(name)) = (stored.as_u64(), stored.as_c_string()) {
            let name = String::from_utf8_lossy(name).into_owned();
            return Ok((Value::Text(name), Source::Local));
        }
        let Some(id) = stored.as_u64().filter(|id| *id != 0) else {
            return Ok((absent(), Source::Default));
        };
        // The dataset may have been destroyed since.
        let name = self.catalog.dataset_by_id(ObjectId(id)).map(|dataset| dataset.name.to_string());
        Ok((Value::Text(name.unwrap_or_else(|_| "-".to_owned())), Source::Local))
    }

    fn hidden_used(&self, component: &str) -> Result<u64> {
        let root = self.catalog.root()?;
        match self.catalog.child(&root, component) {
            Ok(directory) => Ok(directory.phys.used_bytes),
            Err(error) if error.kind() == crate::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn user(&self) -> Result<Vec<PropertyValue>> {
        let Some(table) = &self.stored else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (name, value) in table.entries()? {
            if let (true, Some(text)) = (property::is_user_name(&name), value.as_c_string()) {
                let value = Value::Text(String::from_utf8_lossy(text).into_owned());
                let source = Source::Local;
                found.push(PropertyValue { property: None, name, value, source, received: None });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

/// The state of every known feature: `disabled`, `enabled` or `active`.
fn features(catalog: &Catalog, directory: &Table) -> Result<Vec<PropertyValue>> {
    let mut counts = std::collections::HashMap::new();
    for key in ["features_for_read", "features_for_write"] {
        let id = directory.number(key)?.unwrap_or(0);
        if let Some(table) = Table::open(catalog.mos(), ObjectId(id))? {
            counts.extend(table.numbers()?);
        }
    }
    let state = |guid: &str| match counts.get(guid) {
        None => "disabled",
        Some(0) => "enabled",
        Some(_) => "active",
    };
    let value = |feature: &feature::Feature| PropertyValue {
        property: None,
        name: format!("feature@{}", feature.name()),
        value: Value::Text(state(feature.guid).to_owned()),
        source: Source::Local,
        received: None,
    };
    Ok(feature::FEATURES.iter().map(value).collect())
}
