//! Delegated permissions (`zfs allow`) of a directory.
//!
//! Chapter 06, section 18. Invariant: only what stands on the directory itself; evaluation along
//! the path is the caller's.

use std::collections::BTreeMap;

use cenote_format::ObjectId;
use cenote_format::delegation::Key;

use super::{Catalog, Directory, Table};
use crate::Result;

impl Catalog {
    /// To whom what is allowed: permissions, or permission sets, in order of their names.
    pub fn permissions(&self, directory: &Directory) -> Result<BTreeMap<Key, Vec<String>>> {
        let mut found = BTreeMap::new();
        let Some(table) = Table::open(self.mos(), directory.phys.delegation)? else {
            return Ok(found);
        };
        for (name, id) in table.numbers()? {
            let mut permissions: Vec<String> = match Table::open(self.mos(), ObjectId(id))? {
                Some(table) => table.entries()?.into_iter().map(|(name, _)| name).collect(),
                None => Vec::new(),
            };
            permissions.sort();
            found.insert(Key::parse(name.as_bytes())?, permissions);
        }
        Ok(found)
    }
}
