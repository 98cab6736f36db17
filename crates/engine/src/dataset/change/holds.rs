//! Holds on snapshots.
//!
//! Chapter 06, section 15. Invariant: a snapshot that is marked to be destroyed goes with its last
//! hold, if nothing was cloned of it.

use cenote_format::dsl_dataset::FLAG_DEFER_DESTROY;
use cenote_format::{ObjectId, ObjectType};

use super::{MosChange, OBJECT_DIRECTORY};
use crate::{Error, ErrorKind, Result};

/// Entry of the directory of objects: holds that end with the import.
pub const TEMPORARY_HOLDS: &str = "tmp_userrefs";
/// Longest tag in bytes.
const TAG_MAX: usize = 255;

impl MosChange<'_> {
    /// Holds a snapshot under `tag`; a `temporary` hold ends when the pool is imported again.
    pub fn hold(&self, snapshot: ObjectId, tag: &str, temporary: bool) -> Result<()> {
        let mut phys = self.dataset(snapshot)?;
        let located = |error: Error| Err(error.at_object(0, snapshot.0));
        if !phys.is_snapshot() {
            return located(Error::invalid("not a snapshot"));
        }
        if tag.is_empty() {
            return located(Error::invalid("a tag has at least one byte"));
        }
        if tag.len() > TAG_MAX {
            return located(Error::invalid("tag too long"));
        }
        if self.value(phys.holds, tag)?.is_some() {
            let reason = "tag already exists on this dataset";
            return located(Error::new(ErrorKind::Exists, reason));
        }
        if phys.holds.0 == 0 {
            phys.holds = self.new_table(ObjectType::USERREFS)?;
            self.set_dataset(snapshot, &phys)?;
        }
        self.put_number(phys.holds, tag, self.now)?;
        if temporary {
            let table = match self.pool_entry(TEMPORARY_HOLDS)? {
                Some(table) => table,
                None => {
                    let table = self.new_table(ObjectType::USERREFS)?;
                    self.add_number(OBJECT_DIRECTORY, TEMPORARY_HOLDS, table.0)?;
                    table
                }
            };
            self.put_number(table, &temporary_name(snapshot, tag), self.now)?;
        }
        let count = self.numbers(phys.holds)?.len();
        let text = format!("tag={tag} temp={} refs={count}", u8::from(temporary));
        self.log_event("hold", Some(snapshot), &text)
    }

    /// Releases the hold `tag`. Whether the snapshot was destroyed because it waited for that.
    pub fn release(&self, snapshot: ObjectId, tag: &str) -> Result<bool> {
        let phys = self.dataset(snapshot)?;
        if phys.holds.0 == 0 || !self.remove(phys.holds, tag)? {
            let reason = "no such tag on this dataset";
            return Err(Error::not_found(reason).at_object(0, snapshot.0));
        }
        if let Some(table) = self.pool_entry(TEMPORARY_HOLDS)? {
            self.remove(table, &temporary_name(snapshot, tag))?;
        }
        let count = self.numbers(phys.holds)?.len();
        self.log_event("release", Some(snapshot), &format!("tag={tag} refs={count}"))?;
        let waits = phys.flags & FLAG_DEFER_DESTROY != 0;
        let destroyed = waits && count == 0 && phys.children <= 1;
        if destroyed {
            self.destroy_snapshot(snapshot, false)?;
        }
        Ok(destroyed)
    }

    /// Releases every hold that was to end with the last import. To be called once when a pool
    /// has been imported.
    pub fn release_temporary_holds(&self) -> Result<()> {
        let Some(table) = self.pool_entry(TEMPORARY_HOLDS)? else { return Ok(()) };
        for (name, _) in self.numbers(table)? {
            let parsed = name.split_once('-').and_then(|(id, tag)| {
                let id = u64::from_str_radix(id, 16).ok()?;
                Some((ObjectId(id), tag))
            });
            let Some((snapshot, tag)) = parsed else { continue };
            match self.release(snapshot, tag) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.remove(table, &name)?;
                }
                Err(error) => return Err(error),
            }
        }
        self.remove(OBJECT_DIRECTORY, TEMPORARY_HOLDS)?;
        self.free_object(table)
    }
}

fn temporary_name(snapshot: ObjectId, tag: &str) -> String {
    format!("{snapshot:x}-{tag}", snapshot = snapshot.0)
}
