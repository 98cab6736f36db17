//! Changing mode, owner, length and times.
//!
//! Invariant: the stored ACL of a file, its mode and the flags that describe the ACL change together;
//! whatever changes sets the time of the last change.

use cenote_engine::txg::{Purpose, Tx};
use cenote_format::posix_acl::ACCESS_NAME;
use cenote_format::sa::Attribute;
use cenote_format::zil::{Payload, SetAttributes as LogAttributes, mask_linux};
use cenote_format::{ObjectId, pflags};

use super::data::{Ready, check_size, without_set_id};
use super::extended::Extended;
use super::namespace::log_time;
use super::object::{acl_flags, trivial_acl};
use super::{FilesystemWriter, SMALL_CHANGE};
use crate::attributes::{Facts, TYPE};
use crate::error::EPERM;
use crate::tree::{Errno, Result, SetAttributes, SetTime, Timestamp};
use crate::view::File;

/// Flags that follow from an ACL.
const ACL_FLAGS: u64 = pflags::ACL_TRIVIAL | pflags::NO_EXECS_DENIED;

fn time_of(set: SetTime, now: Timestamp) -> Timestamp {
    match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    }
}

impl FilesystemWriter {
    /// Changes attributes as `change` says.
    pub fn set_attributes(&self, id: ObjectId, change: &SetAttributes) -> Result<()> {
        self.set_with_extended(id, change, None)
    }

    /// Changes attributes, and those beyond POSIX's that a record of the log asks for.
    pub(super) fn set_with_extended(
        &self,
        id: ObjectId,
        change: &SetAttributes,
        extended: Option<&Extended>,
    ) -> Result<()> {
        if let Some(size) = change.size {
            self.cut_most(id, size)?;
        }
        let later = self.retrying(|| self.set_attributes_once(id, change, extended))?;
        self.follow_later(id, &later)
    }

    fn set_attributes_once(
        &self,
        id: ObjectId,
        change: &SetAttributes,
        extended: Option<&Extended>,
    ) -> Result<Vec<ObjectId>> {
        let node = self.node(id)?;
        let size_before = node.read()?.file.facts.size;
        let grows = change.size.is_some_and(|size| size > size_before);
        let purpose = if grows { Purpose::Grow } else { Purpose::Spare };
        let _reservation = match change.uid.or(change.gid).is_some() || extended.is_some() {
            true => self.admit_followed(&node, purpose)?,
            false => self.admit_for(1, SMALL_CHANGE, purpose)?,
        };
        let mut state = node.write()?;
        let file = &mut state.file;
        let old = file.facts;
        match extended {
            // An immutable file's flags can be changed.
            Some(_) if *change == SetAttributes::default() => {}
            Some(extended) => self.check_attributes(&extended.cleared(&old), change)?,
            None => self.check_attributes(&old, change)?,
        }
        let ready = match change.size {
            Some(size) => self.ready_for_size(file, size)?,
            None => Ready::default(),
        };
        let mode = mode_after(old.mode, change);
        let list = match mode & 0o777 == old.mode & 0o777 {
            true => None,
            false => self.changed_access_list(file, mode)?,
        };
        let mut facts = facts_after(&Facts { mode, ..old }, change, Timestamp::now());
        if let Some(extended) = extended {
            facts = extended.after(&facts, self.properties().projects)?;
        }
        let (mut now, later) = self.followers(file, &facts)?;
        let tx = self.begin()?;
        self.follow(&tx, &facts, &mut now)?;
        self.add_project(&tx, file, &facts)?;
        if let Some(size) = change.size {
            self.note_truncate(&tx, file, (size, 0))?;
            self.set_size(&tx, file, size, ready)?;
        }
        if let (Some(accessed), None) = (node.accessed.get(), change.accessed) {
            facts.accessed = accessed;
        }
        let stored = match &list {
            Some(list) => {
                let stored = self.stored_names(file, &[ACCESS_NAME])?;
                self.put_xattr(&tx, file, ACCESS_NAME, Some(list))?;
                stored
            }
            None => Vec::new(),
        };
        match change.mode {
            Some(_) => self.store_changed_mode(&tx, file, facts),
            None => self.store_mode(&tx, file, facts),
        }?;
        if extended.is_some() {
            self.note_whole(&tx);
        }
        node.accessed.take();
        self.note_set(&tx, file, change, &old)?;
        if let Some(list) = list {
            // Others do not change a list when they replay a change of the mode.
            self.note_xattr(&tx, file, &stored, (ACCESS_NAME, Some(&list)))?;
        }
        Ok(later)
    }

    /// Whether the file's flags, its kind and the quotas of its owners allow the change.
    fn check_attributes(&self, old: &Facts, change: &SetAttributes) -> Result<()> {
        // What the log tells of was allowed, maybe in another form (the time of now).
        if !self.is_replaying() {
            check_flags(old, change)?;
            if change.mode.is_some() {
                self.check_mode_change(old)?;
            }
        }
        if let Some(size) = change.size {
            check_size(old, size)?;
            if size > old.size {
                self.check_quota(old)?;
            }
        }
        let uid = change.uid.unwrap_or(old.uid);
        let gid = change.gid.unwrap_or(old.gid);
        if (uid, gid) != (old.uid, old.gid) {
            self.check_quota_of_owner(old, &Facts { uid, gid, ..*old })?;
        }
        Ok(())
    }

    /// Sets and clears flags ([`pflags`]); those that describe the ACL are left alone.
    pub fn set_flags(&self, id: ObjectId, set: u64, clear: u64) -> Result<()> {
        let kept = ACL_FLAGS | pflags::PROJECT | pflags::XATTR;
        let _reservation = self.admit_freeing()?;
        let node = self.node(id)?;
        let mut state = node.write()?;
        let file = &mut state.file;
        let tx = self.begin()?;
        let flags = file.facts.flags & !(clear & !kept) | set & !kept;
        let facts = Facts { flags, changed: Timestamp::now(), ..file.facts };
        self.store(&tx, file, &facts, &[])
    }

    /// Stores facts whose mode may have changed, with the ACL that says the same.
    pub(super) fn store_mode(&self, tx: &Tx, file: &mut File, mut facts: Facts) -> Result<()> {
        if facts.mode & 0o777 == file.facts.mode & 0o777 {
            return self.store(tx, file, &facts, &[]);
        }
        facts.flags = facts.flags & !ACL_FLAGS | acl_flags(facts.mode);
        let (count, entries) = trivial_acl(&facts);
        let acl = [
            (Attribute::AclCount, Some(count.as_slice())),
            (Attribute::AclEntries, Some(entries.as_slice())),
        ];
        self.store(tx, file, &facts, &acl)
    }

    fn note_set(&self, tx: &Tx, file: &File, change: &SetAttributes, old: &Facts) -> Result<()> {
        let facts = &file.facts;
        if facts.links == 0 {
            return Ok(());
        }
        let mut mask = 0;
        for (is_set, bit) in [
            (facts.mode != old.mode, mask_linux::MODE),
            (facts.uid != old.uid, mask_linux::OWNER),
            (facts.gid != old.gid, mask_linux::GROUP),
            (change.accessed.is_some(), mask_linux::ACCESSED),
            (change.modified.is_some(), mask_linux::MODIFIED),
        ] {
            mask |= if is_set { bit } else { 0 };
        }
        self.note_attributes(tx, file, mask)
    }

    /// Notes a mode that changed besides something else, and was stored by [`Self::store_mode`]. It is
    /// replayed as a `chmod`, which may take away a list that says more than the mode.
    pub(super) fn note_mode(&self, tx: &Tx, file: &File, old: &Facts) -> Result<()> {
        if file.facts.mode == old.mode || file.facts.links == 0 {
            return Ok(());
        }
        if old.flags & pflags::ACL_TRIVIAL == 0 {
            self.note_whole(tx);
            return Ok(());
        }
        self.note_attributes(tx, file, mask_linux::MODE)
    }

    /// Notes those attributes of `mask` as they are now.
    fn note_attributes(&self, tx: &Tx, file: &File, mask: u64) -> Result<()> {
        if mask == 0 {
            return Ok(());
        }
        let (id, facts) = (file.object.id(), &file.facts);
        self.note(tx, id, || {
            Payload::SetAttributes(Box::new(LogAttributes {
                object: id.0,
                mask,
                mode: facts.mode.into(),
                owner: facts.uid.into(),
                group: facts.gid.into(),
                size: facts.size,
                accessed: log_time(facts.accessed),
                modified: log_time(facts.modified),
                extended: None,
                domains: Vec::new(),
            }))
        })
    }
}

/// The mode that a change leaves.
fn mode_after(old: u32, change: &SetAttributes) -> u32 {
    let mode = change.mode.map_or(old, |mode| old & TYPE | mode & 0o7777);
    if change.kill_set_id { without_set_id(mode) } else { mode }
}

/// What a change leaves of the rest.
fn facts_after(old: &Facts, change: &SetAttributes, now: Timestamp) -> Facts {
    let mut facts = *old;
    if let Some(size) = change.size {
        facts.size = size;
        facts.modified = now;
        facts.flags |= pflags::ARCHIVE | pflags::SCAN_MODIFIED;
        if size == 0 {
            facts.flags &= !pflags::SPARSE;
        }
    }
    Facts {
        uid: change.uid.unwrap_or(facts.uid),
        gid: change.gid.unwrap_or(facts.gid),
        accessed: change.accessed.map_or(facts.accessed, |time| time_of(time, now)),
        modified: change.modified.map_or(facts.modified, |time| time_of(time, now)),
        changed: change.changed.unwrap_or(now),
        ..facts
    }
}

/// EPERM where the file's flags forbid the change.
fn check_flags(facts: &Facts, change: &SetAttributes) -> Result<()> {
    let forbidden = |why| Err(Errno::new(EPERM, why));
    if facts.flags & pflags::IMMUTABLE != 0 {
        return forbidden("the file is immutable");
    }
    if facts.flags & pflags::READONLY != 0 && change.size.is_some() {
        return forbidden("the file is read-only");
    }
    if facts.flags & pflags::APPEND_ONLY != 0 {
        let sets = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let owner = change.mode.is_some() || change.uid.is_some() || change.gid.is_some();
        if owner || change.size.is_some() || sets(change.accessed) || sets(change.modified) {
            return forbidden("the file may only be appended to");
        }
    }
    Ok(())
}
