//! Changing mode, owner, length and times.
//!
//! Invariant: the stored ACL of a file, its mode and the flags that describe the ACL change together;
//! whatever changes sets the time of the last change.

use cenote_engine::txg::Tx;
use cenote_format::posix_acl::ACCESS_NAME;
use cenote_format::sa::Attribute;
use cenote_format::zil::{Payload, SetAttributes as LogAttributes, mask_linux};
use cenote_format::{ObjectId, pflags};

use super::data::Ready;
use super::namespace::log_time;
use super::object::{acl_flags, trivial_acl};
use super::{SMALL_CHANGE, Writer, now};
use crate::attributes::{Facts, REGULAR, TYPE};
use crate::error::{EFBIG, EINVAL, EISDIR, EPERM};
use crate::tree::{Errno, Result, SetAttributes, SetTime, Timestamp};
use crate::view::File;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
/// Flags that follow from an ACL.
const ACL_FLAGS: u64 = pflags::ACL_TRIVIAL | pflags::NO_EXECS_DENIED;
/// Longest file.
pub(super) const SIZE_MAX: u64 = i64::MAX as u64;

/// A mode without the bits that a write by an unprivileged process takes away.
pub(super) fn without_set_id(mode: u32) -> u32 {
    match mode {
        _ if mode & TYPE != REGULAR => mode,
        _ if mode & GROUP_EXECUTE != 0 => mode & !(SET_USER_ID | SET_GROUP_ID),
        _ => mode & !SET_USER_ID,
    }
}

fn time_of(set: SetTime, now: Timestamp) -> Timestamp {
    match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    }
}

impl Writer {
    /// Changes attributes as `change` says.
    pub fn set_attributes(&self, id: ObjectId, change: &SetAttributes) -> Result<()> {
        if let Some(size) = change.size {
            self.cut_most(id, size)?;
        }
        self.retrying(|| self.set_attributes_once(id, change))
    }

    fn set_attributes_once(&self, id: ObjectId, change: &SetAttributes) -> Result<()> {
        let node = self.node(id)?;
        let now_long = node.read()?.file.facts.size;
        let _room = match change.size.is_some_and(|size| size > now_long) {
            true => self.admit(SMALL_CHANGE)?,
            false => self.admit_freeing()?,
        };
        let mut state = node.write()?;
        let file = &mut state.file;
        let old = file.facts;
        check_flags(&old, change)?;
        if change.mode.is_some() {
            self.check_mode_change(&old)?;
        }
        if let Some(size) = change.size {
            check_size(&old, size)?;
            if size > old.size {
                self.check_quota(&old)?;
            }
        }
        if change.uid.is_some_and(|uid| uid != old.uid)
            || change.gid.is_some_and(|gid| gid != old.gid)
        {
            let owner = Facts {
                uid: change.uid.unwrap_or(old.uid),
                gid: change.gid.unwrap_or(old.gid),
                ..old
            };
            self.check_quota_of_owner(&old, &owner)?;
        }
        let ready = match change.size {
            Some(size) => self.ready_for_size(file, size)?,
            None => Ready::default(),
        };
        let mut mode = change.mode.map_or(old.mode, |mode| old.mode & TYPE | mode & 0o7777);
        if change.kill_set_id {
            mode = without_set_id(mode);
        }
        let list = match mode & 0o777 == old.mode & 0o777 {
            true => None,
            false => self.changed_access_list(file, mode)?,
        };
        let tx = self.begin()?;
        let time = now();
        let mut facts = Facts { mode, ..old };
        if let Some(size) = change.size {
            self.set_size(&tx, file, size, ready)?;
            facts.size = size;
            facts.modified = time;
            facts.flags |= pflags::ARCHIVE | pflags::SCAN_MODIFIED;
            if size == 0 {
                facts.flags &= !pflags::SPARSE;
            }
        }
        facts.uid = change.uid.unwrap_or(facts.uid);
        facts.gid = change.gid.unwrap_or(facts.gid);
        if let Some(accessed) = change.accessed {
            facts.accessed = time_of(accessed, time);
        }
        if let Some(modified) = change.modified {
            facts.modified = time_of(modified, time);
        }
        facts.changed = change.changed.unwrap_or(time);
        // A time that was set goes before one that was noted.
        if change.accessed.is_none()
            && let Some(accessed) = node.access_noted()
        {
            facts.accessed = accessed;
        }
        node.clear_access();
        if let Some(list) = list {
            self.put_xattr(&tx, file, ACCESS_NAME, Some(&list))?;
        }
        match change.mode {
            Some(_) => self.store_changed_mode(&tx, file, facts)?,
            None => self.store_mode(&tx, file, facts)?,
        }
        self.note_set(&tx, file, change, &old)
    }

    /// Sets and clears flags ([`pflags`]); those that describe the ACL are left alone.
    pub fn set_flags(&self, id: ObjectId, set: u64, clear: u64) -> Result<()> {
        let kept = ACL_FLAGS | pflags::PROJECT | pflags::XATTR;
        let _room = self.admit_freeing()?;
        let node = self.node(id)?;
        let mut state = node.write()?;
        let file = &mut state.file;
        let tx = self.begin()?;
        let flags = file.facts.flags & !(clear & !kept) | set & !kept;
        let facts = Facts { flags, changed: now(), ..file.facts };
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
        let (id, facts) = (file.object.id(), &file.facts);
        if facts.links == 0 {
            return Ok(());
        }
        if let Some(size) = change.size {
            self.note(tx, id, || Payload::Truncate { object: id.0, offset: size, length: 0 })?;
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
        if mask == 0 {
            return Ok(());
        }
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

/// EISDIR, EINVAL, EFBIG where the length cannot be set.
pub(super) fn check_size(facts: &Facts, size: u64) -> Result<()> {
    if facts.is_directory() {
        return Err(Errno::new(EISDIR, "a directory"));
    }
    if facts.kind() != REGULAR {
        return Err(Errno::new(EINVAL, "not a regular file"));
    }
    if size > SIZE_MAX {
        return Err(Errno::new(EFBIG, "the file would be too long"));
    }
    Ok(())
}
