//! The meta object set as the allocator sees it.
//!
//! Invariant: only the thread that writes groups changes anything through this; reading is allowed
//! to every thread.

use cenote_format::feature;
use cenote_format::{ObjectId, Txg};

use crate::alloc::{NewSpaceObject, SpaceSource, SpaceStore};
use crate::dataset::Table;
use crate::dataset::change::{METADATA_ZAP, MosChange, OBJECT_DIRECTORY};
use crate::object::{NewObject, ObjectSet};
use crate::{Error, Result, zap};

/// Entry of the object directory: the pool's properties.
const PROPERTIES: &str = "pool_props";

/// Reads the live meta object set.
pub struct MosSource {
    mos: ObjectSet,
}

impl MosSource {
    /// Of this meta object set.
    pub fn new(mos: ObjectSet) -> Self {
        Self { mos }
    }

    /// The number that the pool's property `name` is set to; `None` if it is not set, or cannot be read.
    pub(in crate::pool) fn pool_property(&self, name: &str) -> Option<u64> {
        let table = self.zap_number(OBJECT_DIRECTORY, PROPERTIES).ok().flatten()?;
        self.zap_number(ObjectId(table), name).ok().flatten()
    }

    /// Looks something up in a table; `None` if there is no such table, as while a pool is being
    /// created.
    fn in_table<T>(
        &self,
        zap: ObjectId,
        look: impl FnOnce(&Table) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        match Table::open(&self.mos, zap) {
            Ok(table) => table.map_or(Ok(None), |table| look(&table)),
            Err(error) if error.kind() == crate::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn table(mos: &ObjectSet, id: ObjectId) -> Result<Table> {
    let open = Table::open(mos, id)?;
    open.ok_or_else(|| Error::not_found("no such table").at_object(0, id.0))
}

impl SpaceSource for MosSource {
    fn bonus(&self, object: ObjectId) -> Result<Vec<u8>> {
        Ok(self.mos.object(object)?.dnode().bonus().to_vec())
    }

    fn block_size(&self, object: ObjectId) -> Result<u64> {
        Ok(self.mos.object(object)?.block_size())
    }

    fn read(&self, object: ObjectId, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        self.mos.object(object)?.read_vec(offset, bytes)
    }

    fn zap_number(&self, zap: ObjectId, name: &str) -> Result<Option<u64>> {
        self.in_table(zap, |table| table.number(name))
    }

    fn zap_words(&self, zap: ObjectId, name: &str) -> Result<Option<Vec<u64>>> {
        self.in_table(zap, |table| table.numbers_of(name))
    }

    fn zap_has(&self, zap: ObjectId, name: &str) -> Result<bool> {
        Ok(self.in_table(zap, |table| table.value(name))?.is_some())
    }

    fn zap_numbers(&self, zap: ObjectId) -> Result<Vec<(String, u64)>> {
        table(&self.mos, zap)?.numbers()
    }

    fn feature_enabled(&self, guid: &str) -> bool {
        let Some(feature) = feature::by_guid(guid) else { return false };
        let list = match feature.read_only_compatible() {
            true => "features_for_write",
            false => "features_for_read",
        };
        let find = || {
            let directory = table(&self.mos, crate::alloc::DIRECTORY)?;
            let Some(list) = directory.number(list)? else { return Ok(false) };
            self.zap_has(ObjectId(list), guid)
        };
        find().unwrap_or(false)
    }
}

/// Changes the live meta object set, for the group being written.
pub struct MosStore<'a, 'b> {
    source: MosSource,
    change: &'a MosChange<'b>,
}

impl<'a, 'b> MosStore<'a, 'b> {
    /// Changes through `change`.
    pub fn new(change: &'a MosChange<'b>) -> Self {
        Self { source: MosSource::new(change.mos.clone()), change }
    }

    fn txg(&self) -> Txg {
        self.change.tx.txg()
    }
}

impl SpaceSource for MosStore<'_, '_> {
    fn bonus(&self, object: ObjectId) -> Result<Vec<u8>> {
        self.source.bonus(object)
    }

    fn block_size(&self, object: ObjectId) -> Result<u64> {
        self.source.block_size(object)
    }

    fn read(&self, object: ObjectId, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        self.source.read(object, offset, bytes)
    }

    fn zap_number(&self, zap: ObjectId, name: &str) -> Result<Option<u64>> {
        self.source.zap_number(zap, name)
    }

    fn zap_words(&self, zap: ObjectId, name: &str) -> Result<Option<Vec<u64>>> {
        self.source.zap_words(zap, name)
    }

    fn zap_has(&self, zap: ObjectId, name: &str) -> Result<bool> {
        self.source.zap_has(zap, name)
    }

    fn zap_numbers(&self, zap: ObjectId) -> Result<Vec<(String, u64)>> {
        self.source.zap_numbers(zap)
    }

    fn feature_enabled(&self, guid: &str) -> bool {
        self.source.feature_enabled(guid)
    }
}

impl SpaceStore for MosStore<'_, '_> {
    fn create(&mut self, new: &NewSpaceObject) -> Result<ObjectId> {
        let new = NewObject {
            indirect_shift: new.indirect_shift,
            ..NewObject::new(new.object_type, new.block_size)
                .with_bonus(new.bonus_type, new.bonus.clone())
        };
        Ok(self.change.mos.create_object(self.change.tx, &new)?.id())
    }

    fn create_zap(&mut self) -> Result<ObjectId> {
        self.change.new_table(METADATA_ZAP)
    }

    fn destroy(&mut self, object: ObjectId) -> Result<()> {
        self.change.mos.free_object(self.change.tx, object)
    }

    fn truncate(&mut self, object: ObjectId) -> Result<()> {
        self.change.mos.object(object)?.free_range(self.change.tx, 0, u64::MAX)
    }

    fn write(&mut self, object: ObjectId, offset: u64, data: &[u8]) -> Result<()> {
        self.change.mos.object(object)?.write(self.change.tx, offset, data)
    }

    fn set_bonus(&mut self, object: ObjectId, bonus: &[u8]) -> Result<()> {
        let object = self.change.mos.object(object)?;
        object.set_bonus(self.change.tx, object.dnode().bonus_type, bonus)
    }

    fn zap_set(&mut self, zap: ObjectId, name: &str, value: u64) -> Result<()> {
        zap::update_u64(&self.change.mos.object(zap)?, self.change.tx, name.as_bytes(), value)
    }

    fn zap_remove(&mut self, zap: ObjectId, name: &str) -> Result<()> {
        zap::remove(&self.change.mos.object(zap)?, self.change.tx, name.as_bytes())
    }

    fn feature_add(&mut self, guid: &str, change: i64) -> Result<()> {
        let feature = feature::by_guid(guid)
            .ok_or_else(|| Error::invalid(format!("unknown feature {guid}")))?;
        tracing::trace!(feature = feature.name(), change, txg = self.txg().0, "feature count");
        for _ in 0..change.unsigned_abs() {
            if change > 0 {
                self.change.add_reference(feature.name())?;
            } else {
                self.change.remove_reference(feature.name())?;
            }
        }
        Ok(())
    }
}
