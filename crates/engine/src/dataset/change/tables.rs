//! ZAPs of the meta object set, by the number of their object: reading and changing.
//!
//! Invariant: object number 0 is "no table": reading it finds nothing, changing it is an error.

use cenote_format::deadlist::integer_key;
use cenote_format::zap::hash::{FLAG_HASH64, FLAG_UINT64_KEY};
use cenote_format::zap::normalize::Normalization;
use cenote_format::zap::{KeySettings, Value};
use cenote_format::{ObjectId, ObjectType};

use super::super::Table;
use super::MosChange;
use super::objects::SMALL_BLOCK;
use crate::object::{NewObject, Object};
use crate::zap::NewFat;
use crate::{Error, ErrorKind, Result, zap};

/// Tables of the names of datasets: what is below a directory, and the snapshots of a dataset.
const LISTS: [ObjectType; 2] =
    [ObjectType::DSL_DIRECTORY_CHILD_MAP, ObjectType::DSL_DATASET_SNAP_MAP];

impl MosChange<'_> {
    /// A new, empty ZAP.
    pub fn new_table(&self, object_type: ObjectType) -> Result<ObjectId> {
        self.new_normal_table(object_type, Normalization::NONE)
    }

    /// A new, empty ZAP whose names are matched in a normal form.
    pub(super) fn new_normal_table(
        &self,
        object_type: ObjectType,
        normalization: Normalization,
    ) -> Result<ObjectId> {
        let object = self.mos.create_object(self.tx, &NewObject::new(object_type, SMALL_BLOCK))?;
        zap::create(&object, self.tx, self.hooks.random(), normalization)?;
        Ok(object.id())
    }

    /// A new, empty ZAP with a bonus.
    pub(super) fn new_table_with(
        &self,
        object_type: ObjectType,
        bonus_type: ObjectType,
        bonus: Vec<u8>,
    ) -> Result<ObjectId> {
        let id = self.new_object(object_type, SMALL_BLOCK, bonus_type, bonus)?;
        self.fill_table(id)?;
        Ok(id)
    }

    /// A new ZAP with these numbers and a bonus.
    pub(super) fn new_filled_table(
        &self,
        object_type: ObjectType,
        bonus_type: ObjectType,
        bonus: Vec<u8>,
        entries: &[(String, u64)],
    ) -> Result<ObjectId> {
        let size = zap::filled_block_size(entries.len());
        let id = self.new_object(object_type, size, bonus_type, bonus)?;
        zap::create_filled(&self.object(id)?, self.tx, self.hooks.random(), entries)?;
        Ok(id)
    }

    /// A new, empty ZAP whose keys are words, with blocks of `1 << shift` bytes; `flags` beside those
    /// that such keys need.
    pub(super) fn new_word_table(
        &self,
        object_type: ObjectType,
        shift: u8,
        flags: u64,
    ) -> Result<ObjectId> {
        let new = NewObject { indirect_shift: shift, ..NewObject::new(object_type, 1 << shift) };
        let object = self.mos.create_object(self.tx, &new)?;
        let flags = flags | FLAG_HASH64 | FLAG_UINT64_KEY;
        let (salt, normalization) = (self.hooks.random(), Normalization::NONE);
        let settings = KeySettings { salt, normalization, flags };
        let fat = NewFat { settings, block_shift: shift.into() };
        zap::create_fat(&object, self.tx, &fat)?;
        Ok(object.id())
    }

    /// Makes an object without data an empty ZAP.
    pub(super) fn fill_table(&self, id: ObjectId) -> Result<()> {
        zap::create(&self.object(id)?, self.tx, self.hooks.random(), Normalization::NONE)
    }

    /// Makes an object without data an empty ZAP of another type.
    pub(super) fn make_table(&self, id: ObjectId, object_type: ObjectType) -> Result<()> {
        self.object(id)?.set_type(self.tx, object_type)?;
        self.fill_table(id)
    }

    fn table(&self, id: ObjectId) -> Result<Option<Table>> {
        Table::open(self.mos, id)
    }

    /// The number under `name`.
    pub(super) fn number(&self, table: ObjectId, name: &str) -> Result<Option<u64>> {
        self.table(table)?.map_or(Ok(None), |table| table.number(name))
    }

    /// The value under `name`.
    pub(super) fn value(&self, table: ObjectId, name: &str) -> Result<Option<Value>> {
        self.table(table)?.map_or(Ok(None), |table| table.value(name))
    }

    /// Every entry.
    pub(super) fn entries(&self, table: ObjectId) -> Result<Vec<(String, Value)>> {
        self.table(table)?.map_or(Ok(Vec::new()), |table| table.entries())
    }

    /// Every entry, each one number.
    pub(super) fn numbers(&self, table: ObjectId) -> Result<Vec<(String, u64)>> {
        self.table(table)?.map_or(Ok(Vec::new()), |table| table.numbers())
    }

    /// The members of a set of numbers.
    pub(super) fn members(&self, table: ObjectId) -> Result<Vec<ObjectId>> {
        Ok(self.numbers(table)?.into_iter().map(|(_, number)| ObjectId(number)).collect())
    }

    /// The name that a list of children has a directory under.
    pub(super) fn name_in(&self, children: ObjectId, directory: ObjectId) -> Result<String> {
        let name = match self.table(children)? {
            Some(table) => self.names.of(&table, children, directory.0)?,
            None => None,
        };
        let missing = || Error::corrupt("its parent does not list it").at_object(0, directory.0);
        name.ok_or_else(missing)
    }

    /// Something is put under `name` into a table, or removed.
    fn note_name(&self, table: &Object, name: &str) {
        if LISTS.contains(&table.dnode().object_type) {
            let mut renamed = self.renamed.lock();
            renamed.entry(table.id()).or_default().insert(name.to_owned());
        }
    }

    /// Puts `value` under `name`, whether or not something stood there.
    pub(super) fn put(&self, table: ObjectId, name: &str, value: &Value) -> Result<()> {
        let object = self.object(table)?;
        self.note_name(&object, name);
        if let Some(number) = value.as_u64().filter(|_| LISTS.contains(&object.dnode().object_type))
        {
            self.names.note(table, number, name);
        }
        zap::update(&object, self.tx, name.as_bytes(), value)
    }

    /// Puts a number under `name`.
    pub(super) fn put_number(&self, table: ObjectId, name: &str, number: u64) -> Result<()> {
        self.put(table, name, &Value::of_u64(number))
    }

    /// Puts a number under a name that must be new.
    pub(super) fn add_number(&self, table: ObjectId, name: &str, number: u64) -> Result<()> {
        if self.value(table, name)?.is_some() {
            let reason = format!("an entry '{name}' exists");
            return Err(Error::new(ErrorKind::Exists, reason).at_object(0, table.0));
        }
        self.put_number(table, name, number)
    }

    /// Removes `name`; tells whether it was there.
    pub(super) fn remove(&self, table: ObjectId, name: &str) -> Result<bool> {
        if self.value(table, name)?.is_none() {
            return Ok(false);
        }
        let object = self.object(table)?;
        self.note_name(&object, name);
        zap::remove(&object, self.tx, name.as_bytes())?;
        Ok(true)
    }

    /// Removes every entry of a table that no names of datasets are in.
    pub(super) fn clear_table(&self, table: ObjectId) -> Result<()> {
        zap::clear(&self.object(table)?, self.tx)
    }

    /// Adds a member to a set of numbers.
    pub(super) fn add_member(&self, table: ObjectId, member: ObjectId) -> Result<()> {
        self.put_number(table, &integer_key(member.0), member.0)
    }

    /// Removes a member of a set of numbers, which must be in it.
    pub(super) fn remove_member(&self, table: ObjectId, member: ObjectId) -> Result<()> {
        if self.remove(table, &integer_key(member.0))? {
            return Ok(());
        }
        let reason = format!("object {member} is not in the set it should be in");
        Err(Error::corrupt(reason).at_object(0, table.0))
    }
}
