//! Properties of a pool that are stored in it.
//!
//! Chapter 06, section 3.3. Invariant: a property is either in the table of pool properties or in
//! the configuration, never in both.

use cenote_format::zap::{Normalization, Value};
use cenote_format::{ObjectId, ObjectType};

use super::{ConfigChange, FailMode, LivePool};
use crate::dataset::Table;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY, PropertyData, PropertyInput};
use crate::object::NewObject;
use crate::{Error, Result, zap};

/// Entry of the directory of objects: the table.
const TABLE: &str = "pool_props";

impl LivePool {
    /// Sets a stored property of the pool; its value is checked already.
    pub fn set_pool_property(&self, property: PropertyInput) -> Result<()> {
        self.change(move |live, change| live.put_pool_property(change, &property))
    }

    /// As [`LivePool::set_pool_property`], in a change that is under way.
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
            name => {
                let value = match &property.value {
                    PropertyData::Number(number) => Value::of_u64(*number),
                    PropertyData::Text(text) => Value::of_bytes(format!("{text}\0").as_bytes())?,
                };
                let table = change.mos.object(properties_table(change)?)?;
                zap::update(&table, change.tx, name, &value)?;
                if let ("failmode", PropertyData::Number(number)) = (name, &property.value) {
                    let mode = FailMode::from_number(*number);
                    self.when_done(move |live| live.outage.set_mode(mode));
                }
            }
        }
        change.log_event("set", None, &property.to_string())
    }
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
