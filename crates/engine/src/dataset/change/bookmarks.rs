//! Making and destroying bookmarks.
//!
//! Chapter 06, section 16. Invariant: the features that bookmarks use count their records; a key of
//! the deadlists that only a bookmark needs goes with it.

use cenote_format::bookmark::{
    Bookmark, BookmarkDetails, FLAG_HAS_FREED_BEFORE_NEXT, FLAG_SNAPSHOT_EXISTS, RedactionEntry,
    RedactionHeader,
};
use cenote_format::bpobj::Space;
use cenote_format::dsl_dataset::{KEY_BOOKMARKS, KEY_IVSET_GUID};
use cenote_format::zap::normalize::Normalization;
use cenote_format::{Guid, ObjectId};

use super::MosChange;
use super::objects::{LARGE_BLOCK, METADATA_NUMBERS, METADATA_ZAP};
use crate::{Error, ErrorKind, Result};

const BOOKMARKS: &str = "bookmarks";
const LONG_FORM: &str = "bookmark_v2";
const WRITTEN: &str = "bookmark_written";
const REDACTED: &str = "redaction_bookmarks";
/// Redaction snapshots that the bonus of a list has room for.
const REDACTED_FOR_MAX: usize = 36;

impl MosChange<'_> {
    /// Makes the bookmark `name` of a snapshot, in the table of `head`.
    pub fn create_bookmark(&self, head: ObjectId, name: &str, snapshot: ObjectId) -> Result<()> {
        self.create_bookmark_with(head, name, snapshot, ObjectId(0))
    }

    /// The same with the list of what streams of it leave out for the snapshots of these guids.
    pub fn create_redaction_bookmark(
        &self,
        head: ObjectId,
        name: &str,
        snapshot: ObjectId,
        guids: &[Guid],
        entries: &[RedactionEntry],
    ) -> Result<()> {
        if !self.is_enabled(REDACTED)? || !self.is_enabled(LONG_FORM)? {
            return Err(Error::unsupported("redaction bookmarks feature not enabled"));
        }
        if guids.len() > REDACTED_FOR_MAX {
            return Err(Error::invalid("too many redaction snapshots specified"));
        }
        let header = RedactionHeader {
            last_object: u64::MAX,
            last_block: u64::MAX,
            entries: entries.len() as u64,
            snapshots: guids.to_vec(),
        };
        let kind = METADATA_NUMBERS;
        let list = self.new_object(kind, LARGE_BLOCK, kind, header.encode())?;
        let mut data = Vec::with_capacity(entries.len().saturating_mul(RedactionEntry::SIZE));
        for entry in entries {
            data.extend(entry.encode()?);
        }
        if !data.is_empty() {
            self.object(list)?.write(self.tx, 0, &data)?;
        }
        self.create_bookmark_with(head, name, snapshot, list)
    }

    fn create_bookmark_with(
        &self,
        head: ObjectId,
        name: &str,
        snapshot: ObjectId,
        list: ObjectId,
    ) -> Result<()> {
        let phys = self.dataset(snapshot)?;
        if !phys.is_snapshot() {
            return Err(Error::invalid("not a snapshot").at_object(0, snapshot.0));
        }
        let ivset = self.number_field(snapshot, KEY_IVSET_GUID)?.unwrap_or(0);
        let mut details = BookmarkDetails {
            flags: FLAG_SNAPSHOT_EXISTS,
            ivset_guid: Guid(ivset),
            redaction_list: list,
            ..BookmarkDetails::default()
        };
        if self.is_enabled(WRITTEN)? {
            let next = self.dataset(phys.next_snapshot)?;
            details.flags |= FLAG_HAS_FREED_BEFORE_NEXT;
            details.referenced = Space {
                used: phys.referenced_bytes,
                compressed: phys.compressed_bytes,
                uncompressed: phys.uncompressed_bytes,
            };
            details.freed_before_next = self.deadlist_total(next.deadlist)?;
        }
        let long = details.flags & FLAG_HAS_FREED_BEFORE_NEXT != 0 || ivset != 0 || list.0 != 0;
        let bookmark = Bookmark {
            guid: phys.guid,
            creation_txg: phys.creation_txg,
            creation_time: phys.creation_time,
            details: (long && self.is_enabled(LONG_FORM)?).then_some(details),
        };
        self.add_bookmark(head, name, &bookmark)?;
        let txg = phys.creation_txg;
        let text =
            format!("name={name} creation_txg={txg} target_snap={snapshot} redact_obj={list}");
        self.log_event("bookmark", Some(head), &text)
    }

    /// Makes the bookmark `name` as a copy of another one.
    pub fn copy_bookmark(&self, head: ObjectId, name: &str, source: &Bookmark) -> Result<()> {
        let mut bookmark = *source;
        if let Some(details) = &mut bookmark.details
            && details.redaction_list.0 != 0
        {
            return Err(Error::invalid("a redaction bookmark cannot be copied"));
        }
        if bookmark.details.is_some() && !self.is_enabled(LONG_FORM)? {
            bookmark.details = None;
        }
        self.add_bookmark(head, name, &bookmark)?;
        let (txg, guid) = (bookmark.creation_txg, bookmark.guid);
        let text = format!("name={name} creation_txg={txg} source_guid={guid}");
        self.log_event("bookmark", Some(head), &text)
    }

    fn add_bookmark(&self, head: ObjectId, name: &str, bookmark: &Bookmark) -> Result<()> {
        if !self.is_enabled(BOOKMARKS)? {
            let reason = "pool must be upgraded to support bookmarks";
            return Err(Error::unsupported(reason).at_object(0, head.0));
        }
        let table = match self.number_field(head, KEY_BOOKMARKS)? {
            Some(table) => ObjectId(table),
            None => {
                let upper = Normalization(Normalization::UPPER);
                let table = self.new_normal_table(METADATA_ZAP, upper)?;
                self.set_number_field(head, KEY_BOOKMARKS, table.0)?;
                self.add_reference(BOOKMARKS)?;
                table
            }
        };
        if self.value(table, name)?.is_some() {
            let error = Error::new(ErrorKind::Exists, "bookmark exists");
            return Err(error.at_object(0, head.0));
        }
        if let Some(details) = &bookmark.details {
            self.add_reference(LONG_FORM)?;
            if details.flags & FLAG_HAS_FREED_BEFORE_NEXT != 0 {
                self.add_reference(WRITTEN)?;
            }
            if details.redaction_list.0 != 0 {
                self.add_reference(REDACTED)?;
            }
        }
        self.put_bookmark(head, name, bookmark)
    }

    /// Destroys the bookmark `name` of `head`.
    pub fn destroy_bookmark(&self, head: ObjectId, name: &str) -> Result<()> {
        let mut all = self.bookmarks(head)?;
        let found = all.iter().position(|(found, _)| found == name);
        let absent = || Error::not_found("bookmark does not exist").at_object(0, head.0);
        let (_, bookmark) = all.swap_remove(found.ok_or_else(absent)?);
        let Some(table) = self.number_field(head, KEY_BOOKMARKS)?.map(ObjectId) else {
            return Err(absent());
        };
        self.remove_bookmark_record(table, name, &bookmark)?;
        let counts = |bookmark: &Bookmark| {
            let flags = bookmark.details.map_or(0, |details| details.flags);
            flags & FLAG_HAS_FREED_BEFORE_NEXT != 0
        };
        let exists = bookmark.details.is_some_and(|d| d.flags & FLAG_SNAPSHOT_EXISTS != 0);
        let txg = bookmark.creation_txg;
        let shared = all.iter().any(|(_, other)| other.creation_txg == txg && counts(other));
        if counts(&bookmark) && !exists && !shared {
            let phys = self.dataset(head)?;
            self.remove_deadlist_key(phys.deadlist, txg)?;
            self.remove_clones_key(phys.directory, txg)?;
        }
        if all.is_empty() {
            self.remove_field(head, KEY_BOOKMARKS)?;
            self.free_object(table)?;
            self.remove_reference(BOOKMARKS)?;
        }
        self.log_event("remove bookmark", Some(head), &format!("name={name}"))
    }

    /// Another dataset follows `snapshot` now: what bookmarks of it count as freed changes.
    pub(super) fn renew_freed(&self, head: ObjectId, snapshot: ObjectId) -> Result<()> {
        let phys = self.dataset(snapshot)?;
        let next = self.dataset(phys.next_snapshot)?;
        for (name, mut bookmark) in self.bookmarks(head)? {
            if bookmark.creation_txg != phys.creation_txg {
                continue;
            }
            let Some(details) = &mut bookmark.details else { continue };
            if details.flags & FLAG_HAS_FREED_BEFORE_NEXT != 0 {
                details.freed_before_next = self.deadlist_total(next.deadlist)?;
                self.put_bookmark(head, &name, &bookmark)?;
            }
        }
        Ok(())
    }

    /// Removes the record of a bookmark and what it alone uses.
    pub(super) fn remove_bookmark_record(
        &self,
        table: ObjectId,
        name: &str,
        bookmark: &Bookmark,
    ) -> Result<()> {
        if let Some(details) = &bookmark.details {
            self.remove_reference(LONG_FORM)?;
            if details.redaction_list.0 != 0 {
                self.free_object(details.redaction_list)?;
                self.remove_reference(REDACTED)?;
            }
            if details.flags & FLAG_HAS_FREED_BEFORE_NEXT != 0 {
                self.remove_reference(WRITTEN)?;
            }
        }
        self.remove(table, name).map(|_| ())
    }
}
