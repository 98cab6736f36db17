//! Properties of a pool that are stored in it.
//!
//! Chapter 06, section 3.3. Invariant: a property is either in the table of pool properties or in
//! the configuration, never in both. What is stored is of the kind that OpenZFS reads: `bootfs` is the
//! object of a dataset, whatever name the dataset has.

use cenote_format::zap::{Normalization, Value};
use cenote_format::{ObjectId, ObjectType};

use crate::dataset::change::{MosChange, OBJECT_DIRECTORY, PropertyData, PropertyInput};
use crate::dataset::{DatasetKind, Table};
use crate::object::NewObject;
use crate::pool::group::sweep::by_itself;
use crate::pool::group::{ConfigChange, FailMode, LivePool, growth, multihost};
use crate::{Error, ErrorKind, Result, zap};

/// Entry of the directory of objects: the table.
const TABLE: &str = "pool_props";
/// The dataset to boot from.
const BOOTFS: &str = "bootfs";

impl LivePool {
    /// Sets a stored property of the pool; its value is checked already.
    pub fn set_pool_property(&self, property: PropertyInput) -> Result<()> {
        self.change(move |live, change| live.put_pool_property(change, &property))
    }

    /// As [`LivePool::set_pool_property`], in a change that is under way.
    /// Enables features by their short names, dependencies first; those enabled already stay so.
    pub fn enable_features(&self, names: &[String]) -> Result<()> {
        let names = names.to_vec();
        self.change(move |_, change| names.iter().try_for_each(|name| change.enable_feature(name)))
    }

    pub(super) fn put_pool_property(
        &self,
        change: &MosChange<'_>,
        property: &PropertyInput,
    ) -> Result<()> {
        let text = || match &property.value {
            PropertyData::Text(text) => Ok(text.clone()),
            PropertyData::Number(_) => {
                Err(Error::invalid(format!("'{}' is a text", property.name)))
            }
        };
        match property.name.as_str() {
            "comment" => self.change_config_when_done(ConfigChange::Comment(text()?)),
            "compatibility" => {
                self.change_config_when_done(ConfigChange::Compatibility(text()?));
            }
            BOOTFS => {
                let dataset = self.boot_dataset(change, &text()?)?;
                put(change, BOOTFS, &Value::of_u64(dataset.0))?;
                return change.log_event("set", None, &format!("{BOOTFS}={dataset}"));
            }
            name => {
                let number = match &property.value {
                    PropertyData::Number(number) => *number,
                    PropertyData::Text(_) => 0,
                };
                let is_multihost = name == multihost::PROPERTY;
                if let Some(refusal) = multihost::refusal(is_multihost && number != 0) {
                    return Err(refusal);
                }
                let value = match &property.value {
                    PropertyData::Number(number) => Value::of_u64(*number),
                    PropertyData::Text(text) => Value::of_bytes(format!("{text}\0").as_bytes())?,
                };
                put(change, name, &value)?;
                match name {
                    "failmode" => {
                        let mode = FailMode::from_number(number);
                        self.when_done(move |live| live.outage.set_mode(mode));
                    }
                    by_itself::PROPERTY => {
                        self.when_done(move |live| {
                            live.sweeps.by_itself.set(number != 0, &live.allocator);
                        });
                    }
                    growth::PROPERTY => {
                        self.when_done(move |live| live.growth.set(number != 0));
                    }
                    multihost::PROPERTY => {
                        self.when_done(move |live| live.set_multihost(number != 0));
                    }
                    _ => {}
                }
            }
        }
        change.log_event("set", None, &property.to_string())
    }

    /// The dataset of that name if a system can be booted from it; object 0 for no name.
    fn boot_dataset(&self, change: &MosChange<'_>, name: &str) -> Result<ObjectId> {
        if name.is_empty() {
            return Ok(ObjectId(0));
        }
        let catalog = change.catalog()?;
        let dataset = catalog.dataset_named(name)?;
        if catalog.kind(&dataset)? != DatasetKind::Filesystem {
            let reason = format!("'{name}' is no filesystem");
            return Err(Error::new(ErrorKind::Unsupported, reason).at_object(0, dataset.id.0));
        }
        Ok(dataset.id)
    }

    /// Before November 2026 Cenote stored the name of the dataset to boot from, which no OpenZFS
    /// opens: the object takes its place.
    pub(super) fn mend_bootfs(&self) -> Result<()> {
        let named = |mos| -> Result<Option<String>> {
            let Some(directory) = Table::open(mos, OBJECT_DIRECTORY)? else { return Ok(None) };
            let id = ObjectId(directory.number(TABLE)?.unwrap_or(0));
            let stored = Table::open(mos, id)?.map_or(Ok(None), |table| table.value(BOOTFS))?;
            let text = stored.as_ref().and_then(Value::as_c_string);
            Ok(text.map(|text| String::from_utf8_lossy(text).into_owned()))
        };
        let Some(name) = named(&self.mos)? else { return Ok(()) };
        self.change(move |live, change| {
            let dataset = live.boot_dataset(change, &name).unwrap_or(ObjectId(0));
            tracing::warn!(
                pool = live.pool.name(),
                bootfs = name,
                object = dataset.0,
                "an earlier version stored bootfs in a form that OpenZFS cannot open; mended"
            );
            put(change, BOOTFS, &Value::of_u64(dataset.0))?;
            change.log_event("set", None, &format!("{BOOTFS}={dataset} (was the text {name})"))
        })
    }
}

/// Puts a value into the table of pool properties.
fn put(change: &MosChange<'_>, name: &str, value: &Value) -> Result<()> {
    let table = change.mos.object(properties_table(change)?)?;
    zap::update(&table, change.tx, name, value)
}

/// The table of pool properties, made where there is none.
fn properties_table(change: &MosChange<'_>) -> Result<ObjectId> {
    let directory = Table::open(change.mos, OBJECT_DIRECTORY)?
        .ok_or_else(|| Error::corrupt("the pool has no object directory"))?;
    if let Some(id) = directory.number(TABLE)? {
        return Ok(ObjectId(id));
    }
    let new = NewObject::new(ObjectType::POOL_PROPS, 512);
    let table = change.mos.create_object(change.tx, &new)?;
    zap::create(&table, change.tx, change.hooks.random(), Normalization::NONE)?;
    let directory = change.mos.object(OBJECT_DIRECTORY)?;
    zap::insert_u64(&directory, change.tx, TABLE, table.id().0)?;
    Ok(table.id())
}
