//! Giving and taking delegated permissions (`zfs allow`, `zfs unallow`).
//!
//! Chapter 06, section 18. Invariant: every entry of a directory's table names a table that is not
//! empty.

use cenote_format::delegation::{Key, Scope, Who};
use cenote_format::dsl_directory::DslDirectory;
use cenote_format::{ObjectId, ObjectType};

use super::super::name::DEPTH_MAX;
use super::MosChange;
use crate::Result;

impl MosChange<'_> {
    /// Gives permissions, or permission sets where the key says so, on a directory.
    pub fn allow(&self, directory: ObjectId, given: &[(Key, Vec<String>)]) -> Result<()> {
        let head = self.directory(directory)?.head_dataset;
        for (key, names) in given {
            for name in names {
                self.give(directory, key, name)?;
                let text = format!("{} {name}", key.name());
                self.log_event("permission update", Some(head), &text)?;
            }
        }
        Ok(())
    }

    fn give(&self, directory: ObjectId, key: &Key, permission: &str) -> Result<()> {
        let table = match self.directory(directory)?.delegation {
            ObjectId(0) => {
                let table = self.new_table(ObjectType::DSL_PERMISSIONS)?;
                self.alter_directory(directory, |phys| phys.delegation = table)?;
                table
            }
            table => table,
        };
        let permissions = match self.number(table, &key.name())? {
            Some(id) => ObjectId(id),
            None => {
                let permissions = self.new_table(ObjectType::DSL_PERMISSIONS)?;
                self.put_number(table, &key.name(), permissions.0)?;
                permissions
            }
        };
        self.put_number(permissions, permission, 0)
    }

    /// Takes permissions on a directory away: those named, or with `None` all of a key.
    pub fn disallow(
        &self,
        directory: ObjectId,
        taken: &[(Key, Option<Vec<String>>)],
    ) -> Result<()> {
        let DslDirectory { head_dataset: head, delegation: table, .. } =
            self.directory(directory)?;
        if table.0 == 0 {
            return Ok(());
        }
        for (key, names) in taken {
            let key = key.name();
            let Some(names) = names else {
                if let Some(permissions) = self.number(table, &key)? {
                    self.remove(table, &key)?;
                    self.free_object(ObjectId(permissions))?;
                }
                self.log_event("permission who remove", Some(head), &key)?;
                continue;
            };
            for name in names {
                let Some(permissions) = self.number(table, &key)?.map(ObjectId) else { break };
                self.remove(permissions, name)?;
                if self.entries(permissions)?.is_empty() {
                    self.remove(table, &key)?;
                    self.free_object(permissions)?;
                }
                let text = format!("{key} {name}");
                self.log_event("permission remove", Some(head), &text)?;
            }
        }
        Ok(())
    }

    /// Who makes a directory gets, on it, what the directories above give to creators.
    pub(super) fn give_to_creator(&self, directory: ObjectId, user: u32) -> Result<()> {
        let mut above = self.directory(directory)?.parent;
        for _ in 0..=DEPTH_MAX {
            if above.0 == 0 {
                break;
            }
            let phys = self.directory(above)?;
            for sets in [false, true] {
                let creator = Key { who: Who::Creator, scope: Scope::NotApplicable, sets };
                let Some(permissions) = self.number(phys.delegation, &creator.name())? else {
                    continue;
                };
                let own = Key { who: Who::User(user), scope: Scope::Local, sets };
                for (name, _) in self.entries(ObjectId(permissions))? {
                    self.give(directory, &own, &name)?;
                }
            }
            above = phys.parent;
        }
        Ok(())
    }
}
