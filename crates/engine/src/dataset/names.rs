//! Which name a table has an object under, without looking through all of the table.
//!
//! Invariant: what is remembered is a guess and looked up before it is told, so that it may be of any age and
//! of a change that was taken back.

use std::collections::HashMap;

use cenote_format::ObjectId;
use parking_lot::Mutex;

use super::Table;
use crate::Result;

/// Most names remembered.
const NAMES_MAX: usize = 1 << 16;

/// See the module.
#[derive(Default)]
pub struct Names(Mutex<HashMap<(ObjectId, u64), Box<str>>>);

impl Names {
    /// Table `table` has `object` under `name`, as it seems.
    pub(super) fn note(&self, table: ObjectId, object: u64, name: &str) {
        let mut known = self.0.lock();
        if known.len() >= NAMES_MAX {
            known.clear();
        }
        known.insert((table, object), name.into());
    }

    /// The name under which `table`, which is object `id`, has `object`.
    pub(super) fn of(&self, table: &Table, id: ObjectId, object: u64) -> Result<Option<String>> {
        let guess = self.0.lock().get(&(id, object)).cloned();
        if let Some(name) = guess
            && table.number(&name)? == Some(object)
        {
            return Ok(Some(name.into()));
        }
        let name = table.name_of(object)?;
        if let Some(name) = &name {
            self.note(id, object, name);
        }
        Ok(name)
    }
}
