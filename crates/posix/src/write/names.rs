//! Names in directories: what may be one, finding, adding and removing entries.
//!
//! Chapter 05, section 9. The caller holds the directory's lock. Invariant: a directory's
//! open ZAP is dropped with every change, so nobody reads an old one.

use cenote_engine::txg::Tx;
use cenote_engine::zap::{self, Value};
use cenote_format::ObjectId;
use cenote_format::directory_entry::{EntryValue, kind_of_mode};
use cenote_format::zap::MatchKind;

use super::FilesystemWriter;
use crate::directory::{LONG_NAME_MAX, NAME_MAX};
use crate::error::{EEXIST, EILSEQ, EINVAL, ENAMETOOLONG, ENOENT};
use crate::tree::{Errno, Result};
use crate::view::File;

/// A name's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The object.
    pub id: ObjectId,
    /// The name as it is stored.
    pub name: Vec<u8>,
}

fn check_length(name: &[u8], limit: usize) -> Result<()> {
    match name.len() > limit {
        true => Err(Errno::new(ENAMETOOLONG, "name too long")),
        false => Ok(()),
    }
}

impl FilesystemWriter {
    /// Checks a name that is made; `dot` is the errno of "." and "..".
    pub(super) fn check_name(&self, name: &[u8], dot: i32) -> Result<()> {
        let may_be_long = self.long_names || self.is_replaying();
        check_length(name, if may_be_long { LONG_NAME_MAX } else { NAME_MAX })?;
        self.check_old_name(name, dot)
    }

    /// Checks a name that goes: it may be longer than those that can be made now.
    pub(super) fn check_old_name(&self, name: &[u8], dot: i32) -> Result<()> {
        check_length(name, LONG_NAME_MAX)?;
        match name {
            b"" => Err(Errno::new(ENOENT, "an empty name")),
            b"." | b".." => Err(Errno::new(dot, "not a name that can be made or removed")),
            _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => {
                Err(Errno::new(EINVAL, "a name with a slash or a NUL"))
            }
            _ if self.view.naming().utf8_only && std::str::from_utf8(name).is_err() => {
                Err(Errno::new(EILSEQ, "the name is not UTF-8"))
            }
            _ => Ok(()),
        }
    }

    /// The entry of `name`, if there is one.
    pub(super) fn find(&self, directory: &File, name: &[u8]) -> Result<Option<Found>> {
        let kind = self.view.naming().match_kind();
        if kind == MatchKind::Exact {
            return match self.view.find(directory, name) {
                Ok(entry) => Ok(Some(Found { id: entry.object, name: name.to_vec() })),
                Err(error) if error.code == ENOENT => Ok(None),
                Err(error) => Err(error),
            };
        }
        let zap = self.view.directories.zap(&directory.object)?;
        let Some(found) = zap.lookup_normalized(name, kind)? else { return Ok(None) };
        let entry = crate::directory::entry_value(name, &found.value)?;
        Ok(Some(Found { id: entry.object, name: found.name }))
    }

    /// As [`Self::find`]; ENOENT if there is none.
    pub(super) fn must_find(&self, directory: &File, name: &[u8]) -> Result<Found> {
        self.find(directory, name)?.ok_or_else(|| Errno::new(ENOENT, "no such name"))
    }

    /// Reads what changing the entry of `name` needs: what lookups go by is in memory, and may be all that is.
    /// Before a transaction that changes more than this one entry.
    pub(super) fn ready_to_change_entry(&self, directory: &File, name: &[u8]) -> Result<()> {
        Ok(zap::ready_to_change(&directory.object, name)?)
    }

    /// Adds an entry for the object `id` of `mode`.
    pub(super) fn add_entry(
        &self,
        tx: &Tx,
        directory: &File,
        name: &[u8],
        id: ObjectId,
        mode: u32,
    ) -> Result<()> {
        self.view.directories.close(directory.object.id());
        if name.len() > NAME_MAX {
            self.view.objects().note_long_name();
        }
        let word = EntryValue { object: id, kind: kind_of_mode(mode) }.encode();
        zap::insert_u64(&directory.object, tx, name, word).map_err(|error| {
            let error = Errno::from(error);
            if error.code == EEXIST { Errno::new(EEXIST, "the name exists") } else { error }
        })
    }

    /// Lets the entry stored as `name` name another object.
    pub(super) fn set_entry(
        &self,
        tx: &Tx,
        directory: &File,
        name: &[u8],
        id: ObjectId,
        mode: u32,
    ) -> Result<()> {
        self.view.directories.close(directory.object.id());
        let word = EntryValue { object: id, kind: kind_of_mode(mode) }.encode();
        Ok(zap::update(&directory.object, tx, name, &Value::of_u64(word))?)
    }

    /// Removes the entry stored as `name`.
    pub(super) fn remove_entry(&self, tx: &Tx, directory: &File, name: &[u8]) -> Result<()> {
        self.view.directories.close(directory.object.id());
        Ok(zap::remove(&directory.object, tx, name)?)
    }

    /// Whether a directory has no entries.
    pub(super) fn is_empty(&self, directory: &File) -> Result<bool> {
        Ok(self.view.directories.zap(&directory.object)?.count()? == 0)
    }
}
