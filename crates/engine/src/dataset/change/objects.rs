//! Objects of the meta object set: making, reading and freeing them, and the bonuses of
//! directories and datasets.
//!
//! Chapter 06, sections 1, 4 and 5. Invariant: an object that was given extension fields counts
//! once for the feature extensible_dataset, from its first field until it is freed.

use cenote_format::dsl_dataset::DslDataset;
use cenote_format::dsl_directory::DslDirectory;
use cenote_format::zap::Value;
use cenote_format::{ObjectId, ObjectType};

use super::{MosChange, OBJECT_DIRECTORY};
use crate::object::{NewObject, Object};
use crate::{Error, Result};

/// Type of the ZAPs that have none of their own.
pub const METADATA_ZAP: ObjectType = ObjectType(0xc4);
/// Type of lists of numbers that have none of their own.
pub(super) const METADATA_NUMBERS: ObjectType = ObjectType(0xc3);
/// Bytes of a data block of objects that have little data.
pub(super) const SMALL_BLOCK: u64 = 512;
/// Bytes of a data block of long lists.
pub(super) const LARGE_BLOCK: u64 = 128 << 10;
/// Feature of objects with extension fields.
pub(super) const EXTENSIBLE: &str = "extensible_dataset";

impl MosChange<'_> {
    /// A new object with blocks of `block_size` bytes and this bonus.
    pub(super) fn new_object(
        &self,
        object_type: ObjectType,
        block_size: u64,
        bonus_type: ObjectType,
        bonus: Vec<u8>,
    ) -> Result<ObjectId> {
        let new = NewObject::new(object_type, block_size).with_bonus(bonus_type, bonus);
        Ok(self.mos.create_object(self.tx, &new)?.id())
    }

    /// Object `id` as it is now.
    pub(super) fn object(&self, id: ObjectId) -> Result<Object> {
        self.mos.object(id)
    }

    fn is_dsl(bonus_type: ObjectType) -> bool {
        matches!(bonus_type, ObjectType::DSL_DIRECTORY | ObjectType::DSL_DATASET)
    }

    /// Frees an object with everything in it.
    pub(super) fn free_object(&self, id: ObjectId) -> Result<()> {
        self.deadlists.forget(id);
        let dnode = self.mos.dnode(id)?;
        if Self::is_dsl(dnode.bonus_type) && dnode.object_type == METADATA_ZAP {
            self.remove_reference(EXTENSIBLE)?;
        }
        self.mos.free_object(self.tx, id)
    }

    /// Frees an object if the number names one.
    pub(super) fn free_if_any(&self, id: ObjectId) -> Result<()> {
        if id.0 == 0 { Ok(()) } else { self.free_object(id) }
    }

    /// The bonus of an object, which must be of `bonus_type`.
    pub(super) fn bonus(&self, id: ObjectId, bonus_type: ObjectType) -> Result<Vec<u8>> {
        let dnode = self.mos.dnode(id)?;
        if dnode.bonus_type == bonus_type {
            return Ok(dnode.bonus().to_vec());
        }
        let (wanted, found) = (bonus_type.name(), dnode.bonus_type.name());
        let reason = format!("bonus '{found}' where '{wanted}' belongs");
        Err(Error::corrupt(reason).at_object(0, id.0))
    }

    /// Replaces the bonus of an object.
    pub(super) fn set_bonus(
        &self,
        id: ObjectId,
        bonus_type: ObjectType,
        bonus: &[u8],
    ) -> Result<()> {
        self.object(id)?.set_bonus(self.tx, bonus_type, bonus)
    }

    /// The bonus of a directory.
    pub fn directory(&self, id: ObjectId) -> Result<DslDirectory> {
        let bonus = self.bonus(id, ObjectType::DSL_DIRECTORY)?;
        DslDirectory::decode(&bonus).map_err(|error| Error::from(error).at_object(0, id.0))
    }

    /// Replaces the bonus of a directory.
    pub(super) fn set_directory(&self, id: ObjectId, phys: &DslDirectory) -> Result<()> {
        self.set_bonus(id, ObjectType::DSL_DIRECTORY, &phys.encode())
    }

    /// The bonus of a dataset.
    pub fn dataset(&self, id: ObjectId) -> Result<DslDataset> {
        let bonus = self.bonus(id, ObjectType::DSL_DATASET)?;
        DslDataset::decode(&bonus).map_err(|error| Error::from(error).at_object(0, id.0))
    }

    /// Replaces the bonus of a dataset.
    pub(super) fn set_dataset(&self, id: ObjectId, phys: &DslDataset) -> Result<()> {
        self.set_bonus(id, ObjectType::DSL_DATASET, &phys.encode())
    }

    /// Changes the bonus of a dataset.
    pub(super) fn alter_dataset(
        &self,
        id: ObjectId,
        alter: impl FnOnce(&mut DslDataset),
    ) -> Result<()> {
        let mut phys = self.dataset(id)?;
        alter(&mut phys);
        self.set_dataset(id, &phys)
    }

    /// Changes the bonus of a directory.
    pub(super) fn alter_directory(
        &self,
        id: ObjectId,
        alter: impl FnOnce(&mut DslDirectory),
    ) -> Result<()> {
        let mut phys = self.directory(id)?;
        alter(&mut phys);
        self.set_directory(id, &phys)
    }

    /// Something in the pool's directory of objects.
    pub(super) fn pool_entry(&self, name: &str) -> Result<Option<ObjectId>> {
        Ok(self.number(OBJECT_DIRECTORY, name)?.filter(|id| *id != 0).map(ObjectId))
    }

    /// The pool's root directory.
    pub fn root_directory(&self) -> Result<ObjectId> {
        let missing = || Error::corrupt("the pool has no root dataset");
        self.pool_entry("root_dataset")?.ok_or_else(missing)
    }

    fn is_extended(&self, id: ObjectId) -> Result<bool> {
        Ok(self.mos.dnode(id)?.object_type == METADATA_ZAP)
    }

    /// An extension field of a directory or dataset.
    pub(super) fn field(&self, id: ObjectId, key: &str) -> Result<Option<Value>> {
        if self.is_extended(id)? { self.value(id, key) } else { Ok(None) }
    }

    /// An extension field that is one number.
    pub fn number_field(&self, id: ObjectId, key: &str) -> Result<Option<u64>> {
        if self.is_extended(id)? { self.number(id, key) } else { Ok(None) }
    }

    /// Every extension field of a directory or dataset.
    pub(super) fn fields(&self, id: ObjectId) -> Result<Vec<(String, Value)>> {
        if self.is_extended(id)? { self.entries(id) } else { Ok(Vec::new()) }
    }

    /// Sets an extension field; the first one makes the object a ZAP.
    pub(super) fn set_field(&self, id: ObjectId, key: &str, value: &Value) -> Result<()> {
        if !self.is_extended(id)? {
            self.make_table(id, METADATA_ZAP)?;
            self.add_reference(EXTENSIBLE)?;
        }
        self.put(id, key, value)
    }

    /// Sets an extension field to one number.
    pub(super) fn set_number_field(&self, id: ObjectId, key: &str, number: u64) -> Result<()> {
        self.set_field(id, key, &Value::of_u64(number))
    }

    /// Removes an extension field; tells whether it was there.
    pub(super) fn remove_field(&self, id: ObjectId, key: &str) -> Result<bool> {
        if self.is_extended(id)? { self.remove(id, key) } else { Ok(false) }
    }
}
