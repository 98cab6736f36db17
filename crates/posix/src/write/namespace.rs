//! Making and removing names: create, link, unlink, remove a directory.
//!
//! Chapter 05, section 9. Invariant: a directory's size, links and times change in the transaction
//! that changes its entries; a file's link count is the number of its names.

use std::sync::Arc;

use cenote_engine::txg::Tx;
use cenote_format::zil::{Create, Created, LogId, Payload};
use cenote_format::{ObjectId, pflags};

use super::acl::Inherited;
use super::nodes::{Locked, Node};
use super::object::{inherit_project, new_flags};
use super::{FilesystemWriter, NewFile, SMALL_CHANGE, SYNC_PATIENCE, make_file, unless_killed};
use crate::access::groups_of_process;
use crate::attributes::{DIRECTORY, Facts, REGULAR, SYMLINK, TYPE, is_device};
use crate::error::{EEXIST, EINVAL, EISDIR, ENAMETOOLONG, ENOENT, ENOTDIR, ENOTEMPTY, EPERM};
use crate::tree::{Caller, Errno, NewNode, Result, Timestamp};
use crate::view::File;

/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4095;
const SET_GROUP_ID: u32 = 0o2000;
/// Bits of a mode without the type.
const PERMISSIONS: u32 = 0o7777;
/// File types there are: fifo, character and block device, directory, regular, link, socket.
const TYPES: [u32; 7] = [0o010_000, 0o020_000, DIRECTORY, 0o060_000, REGULAR, SYMLINK, 0o140_000];

/// What is done to a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectoryChange {
    Add,
    Remove,
}

/// EPERM where the flags of a directory forbid what is done to it; ENOTDIR, ENOENT.
pub(super) fn check_directory(facts: &Facts, change: DirectoryChange) -> Result<()> {
    if !facts.is_directory() {
        return Err(Errno::new(ENOTDIR, "not a directory"));
    }
    let forbidden = match change {
        DirectoryChange::Add => pflags::IMMUTABLE,
        DirectoryChange::Remove => pflags::IMMUTABLE | pflags::APPEND_ONLY,
    };
    if facts.flags & forbidden != 0 {
        return Err(Errno::new(EPERM, "the directory's flags forbid it"));
    }
    if facts.links == 0 && change == DirectoryChange::Add {
        return Err(Errno::new(ENOENT, "the directory was removed"));
    }
    Ok(())
}

/// EPERM where the flags of a file forbid to remove, link or move it.
pub(super) fn check_movable(facts: &Facts) -> Result<()> {
    let fixed = pflags::IMMUTABLE | pflags::APPEND_ONLY | pflags::NOUNLINK;
    match facts.flags & fixed {
        0 => Ok(()),
        _ => Err(Errno::new(EPERM, "the file's flags forbid it")),
    }
}

/// The facts of a directory after `entries` more entries, `links` of them directories.
pub(super) fn grown(facts: &Facts, entries: i64, links: i64, time: Timestamp) -> Facts {
    Facts {
        size: facts.size.saturating_add_signed(entries),
        links: facts.links.saturating_add_signed(links),
        modified: time,
        changed: time,
        flags: facts.flags | pflags::ARCHIVE | pflags::SCAN_MODIFIED,
        ..*facts
    }
}

/// A number as the log has it.
fn log_id(file: &File) -> LogId {
    LogId { object: file.object.id().0, extra_slots: file.object.dnode().extra_slots }
}

/// A time as the log has it.
pub(super) fn log_time(time: Timestamp) -> [u64; 2] {
    [time.seconds.cast_unsigned(), time.nanoseconds.into()]
}

impl FilesystemWriter {
    /// Makes a file named `name` in `parent`.
    pub fn create(
        &self,
        caller: Caller,
        parent: ObjectId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Result<Arc<Node>> {
        self.check_name(name, EEXIST)?;
        self.retrying(|| {
            let _reservation = self.admit(SMALL_CHANGE)?;
            let parent = self.node(parent)?;
            let mut state = parent.write()?;
            let directory = &mut state.file;
            check_directory(&directory.facts, DirectoryChange::Add)?;
            if self.find(directory, name)?.is_some() {
                return Err(Errno::new(EEXIST, "the name exists"));
            }
            let (facts, inherited) = self.birth(caller, directory, &new)?;
            self.check_quota_of_new(&facts)?;
            let tx = self.begin()?;
            let time = facts.created;
            let file = self.make(&tx, facts, new.target, &inherited, None)?;
            self.name_new(&tx, directory, name, &file, time)?;
            // First: another thread's commit may come between the two, and must not log the name
            // without its lists.
            if !inherited.lists.is_empty() || inherited.entries.is_some() {
                self.note_whole(&tx);
            }
            self.note_create(&tx, directory, name, &file, new.target)?;
            self.nodes.add(file.object.id(), file)
        })
    }

    /// Gives a new file its name, or frees it.
    pub(super) fn name_new(
        &self,
        tx: &Tx,
        directory: &mut File,
        name: &[u8],
        file: &File,
        time: Timestamp,
    ) -> Result<()> {
        let id = file.object.id();
        if let Err(error) = self.add_entry(tx, directory, name, id, file.facts.mode) {
            self.view.objects().free_object(tx, id)?;
            return Err(error);
        }
        let facts = grown(&directory.facts, 1, file.facts.is_directory().into(), time);
        self.store(tx, directory, &facts, &[])
    }

    /// Makes a regular file without a name, for the filesystem of `parent`.
    pub fn create_unnamed(
        &self,
        caller: Caller,
        parent: ObjectId,
        new: NewNode<'_>,
    ) -> Result<Arc<Node>> {
        if new.mode & TYPE != REGULAR && new.mode & TYPE != 0 {
            return Err(Errno::new(EINVAL, "only regular files are made without a name"));
        }
        self.retrying(|| {
            let _reservation = self.admit(SMALL_CHANGE)?;
            let parent = self.node(parent)?;
            let state = parent.read()?;
            check_directory(&state.file.facts, DirectoryChange::Add)?;
            let (facts, inherited) = self.birth(caller, &state.file, &new)?;
            self.check_quota_of_new(&facts)?;
            // Which leaf of the queue its number will be in is not known yet.
            let queue = self.queue.ready(parent.id())?;
            let tx = self.begin()?;
            let facts = Facts { links: 0, ..facts };
            let file = self.make(&tx, facts, &[], &inherited, None)?;
            if let Err(error) = queue.add(&tx, file.object.id()) {
                self.view.objects().free_object(&tx, file.object.id())?;
                return Err(error);
            }
            self.nodes.add(file.object.id(), file)
        })
    }

    /// What a new file's attributes say, and the lists it inherits.
    fn birth(
        &self,
        caller: Caller,
        parent: &File,
        new: &NewNode<'_>,
    ) -> Result<(Facts, Inherited)> {
        let kind = if new.mode & TYPE == 0 { REGULAR } else { new.mode & TYPE };
        if !TYPES.contains(&kind) {
            return Err(Errno::new(EINVAL, format!("no file type {kind:#o}")));
        }
        match new.target.len() {
            0 if kind == SYMLINK => return Err(Errno::new(ENOENT, "an empty target")),
            len if len > TARGET_MAX => return Err(Errno::new(ENAMETOOLONG, "target too long")),
            _ => {}
        }
        let of = &parent.facts;
        let is_directory = kind == DIRECTORY;
        let mut inherited = self.inherited(parent, kind, new.mode & PERMISSIONS, new.umask)?;
        let mut mode = kind | inherited.mode;
        let mut gid = caller.gid;
        if of.mode & SET_GROUP_ID != 0 {
            gid = of.gid;
            if is_directory {
                mode |= SET_GROUP_ID;
            }
        }
        if !is_directory && mode & SET_GROUP_ID != 0 && caller.uid != 0 && gid != caller.gid {
            // Only members may hand on the group's power.
            if !groups_of_process(caller.pid).contains(&gid) {
                mode &= !SET_GROUP_ID;
            }
        }
        let mut flags = new_flags(mode, is_directory, self.properties().projects);
        let project = inherit_project(of, mode, &mut flags);
        flags |= of.flags & pflags::XATTR;
        let time = Timestamp::now();
        let facts = Facts {
            mode,
            size: if is_directory { 2 } else { new.target.len() as u64 },
            generation: 0,
            parent: parent.object.id().0,
            links: if is_directory { 2 } else { 1 },
            uid: caller.uid,
            gid,
            flags,
            device: if is_device(mode) { stored_device(new.rdev) } else { 0 },
            project,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
        };
        let (facts, entries) = self.with_inherited(parent, facts)?;
        inherited.entries = entries;
        Ok((facts, inherited))
    }

    /// Makes the object of a new file with what it inherits.
    pub(super) fn make(
        &self,
        tx: &Tx,
        facts: Facts,
        target: &[u8],
        inherited: &Inherited,
        id: Option<(ObjectId, u8)>,
    ) -> Result<File> {
        let generation = if facts.generation == 0 { tx.txg().0 } else { facts.generation };
        let facts = Facts { generation, ..facts };
        let is_link = facts.kind() == SYMLINK;
        let mut more = Vec::new();
        if is_link {
            more.push((cenote_format::sa::Attribute::SymlinkTarget, target));
        }
        let (id, slots) = match id {
            Some((id, slots)) => (Some(id), slots),
            None => (None, self.properties().slots),
        };
        let entries = inherited.entries.as_deref();
        let new = NewFile { facts, slots, id, more: &more, entries };
        let mut file = make_file(&self.view, &self.layouts, tx, &new)?;
        for (name, list) in &inherited.lists {
            if let Err(error) = self.put_xattr(tx, &mut file, name, Some(list)) {
                self.view.objects().free_object(tx, file.object.id())?;
                return Err(error);
            }
        }
        Ok(file)
    }

    pub(super) fn note_create(
        &self,
        tx: &Tx,
        parent: &File,
        name: &[u8],
        file: &File,
        target: &[u8],
    ) -> Result<()> {
        let facts = &file.facts;
        self.note(tx, file.object.id(), || {
            Payload::Create(Box::new(Create {
                what: match facts.kind() {
                    DIRECTORY => Created::Directory,
                    SYMLINK => Created::Symlink { target: target.to_vec() },
                    _ => Created::File,
                },
                directory: parent.object.id().0,
                object: log_id(file),
                mode: facts.mode.into(),
                owner: facts.uid.into(),
                group: facts.gid.into(),
                generation: facts.generation,
                created: log_time(facts.created),
                device: facts.device,
                acl: None,
                attributes: None,
                domains: Vec::new(),
                name: name.to_vec(),
            }))
        })
    }

    /// Gives a file another name.
    pub fn link(&self, id: ObjectId, parent: ObjectId, name: &[u8]) -> Result<Arc<Node>> {
        self.check_name(name, EEXIST)?;
        let _reservation = self.admit(SMALL_CHANGE)?;
        let (parent, node) = (self.node(parent)?, self.node(id)?);
        if parent.id() == id {
            return Err(Errno::new(EPERM, "a directory gets no second name"));
        }
        let mut locked = Locked::new([&parent, &node])?;
        let directory = &locked.of(parent.id())?.file;
        check_directory(&directory.facts, DirectoryChange::Add)?;
        if self.find(directory, name)?.is_some() {
            return Err(Errno::new(EEXIST, "the name exists"));
        }
        let into = directory.facts;
        let facts = locked.of(id)?.file.facts;
        if facts.is_directory() {
            return Err(Errno::new(EPERM, "a directory gets no second name"));
        }
        check_movable(&facts)?;
        if into.flags & pflags::PROJECT_INHERIT != 0 && into.project != facts.project {
            return Err(Errno::new(crate::error::EXDEV, "another project"));
        }
        let queue = match facts.links == 0 {
            true => Some(self.queue.ready(id)?),
            false => None,
        };
        let tx = self.begin()?;
        let time = Timestamp::now();
        self.add_entry(&tx, &locked.of(parent.id())?.file, name, id, facts.mode)?;
        if let Some(queue) = queue {
            queue.remove(&tx, id)?;
        }
        let file = &mut locked.of(id)?.file;
        let changed = Facts {
            links: facts.links.saturating_add(1),
            parent: parent.id().0,
            changed: time,
            ..facts
        };
        self.store(&tx, file, &changed, &[])?;
        // The log cannot tell of a file that was made without a name. Nor of what is done to it
        // before its group is on the disks: records of that could not be replayed.
        let waits_for = (facts.links == 0 && self.log.is_some()).then(|| tx.txg());
        if waits_for.is_some() {
            self.note_whole(&tx);
        } else {
            let (directory, name) = (parent.id().0, name.to_vec());
            self.note(&tx, id, || Payload::Link { directory, object: id.0, name })?;
        }
        let directory = &mut locked.of(parent.id())?.file;
        let grown = grown(&directory.facts, 1, 0, time);
        self.store(&tx, directory, &grown, &[])?;
        drop((locked, tx));
        if let Some(txg) = waits_for {
            unless_killed(self.gate.wait_synced(txg, SYNC_PATIENCE).map_err(Errno::from))?;
        }
        Ok(node)
    }

    /// Locks a directory and the object its entry `name` names, and gives that entry.
    fn lock_entry<T>(
        &self,
        parent: ObjectId,
        name: &[u8],
        then: impl Fn(&mut Locked<'_>, &Arc<Node>, &super::names::Found) -> Result<T>,
    ) -> Result<T> {
        let directory = self.node(parent)?;
        loop {
            let _reservation = self.admit_freeing()?;
            let found = {
                let state = directory.read()?;
                check_directory(&state.file.facts, DirectoryChange::Remove)?;
                self.must_find(&state.file, name)?
            };
            let node = match self.node(found.id) {
                Ok(node) => node,
                // The entry may just have gone; one that stays is damage.
                Err(error) => {
                    let state = directory.read()?;
                    match self.find(&state.file, name)? {
                        Some(again) if again == found => return Err(error),
                        _ => continue,
                    }
                }
            };
            let Ok(mut locked) = Locked::new([&directory, &node]) else { continue };
            if self.find(&locked.of(parent)?.file, name)?.as_ref() != Some(&found) {
                continue;
            }
            return then(&mut locked, &node, &found);
        }
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&self, parent: ObjectId, name: &[u8]) -> Result<()> {
        self.check_old_name(name, EISDIR)?;
        self.lock_entry(parent, name, |locked, _node, found| {
            let facts = locked.of(found.id)?.file.facts;
            if facts.is_directory() {
                return Err(Errno::new(EISDIR, "a directory"));
            }
            check_movable(&facts)?;
            let queue = match facts.links <= 1 {
                true => Some(self.queue.ready(found.id)?),
                false => None,
            };
            let tx = self.begin()?;
            let time = Timestamp::now();
            self.remove_entry(&tx, &locked.of(parent)?.file, &found.name)?;
            if let Some(queue) = queue {
                queue.add(&tx, found.id)?;
            }
            let links = facts.links.saturating_sub(1);
            let file = &mut locked.of(found.id)?.file;
            self.store(&tx, file, &Facts { links, changed: time, ..facts }, &[])?;
            let directory = &mut locked.of(parent)?.file;
            let shrunk = grown(&directory.facts, -1, 0, time);
            self.store(&tx, directory, &shrunk, &[])?;
            self.note_remove(&tx, parent, &found.name, found.id, false)?;
            if links == 0 {
                self.note_unnamed(found.id);
            }
            Ok(())
        })
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, parent: ObjectId, name: &[u8]) -> Result<()> {
        if name == b".." {
            return Err(Errno::new(ENOTEMPTY, "the parent is not empty"));
        }
        self.check_old_name(name, EINVAL)?;
        self.lock_entry(parent, name, |locked, _node, found| {
            let file = &locked.of(found.id)?.file;
            let facts = file.facts;
            if !facts.is_directory() {
                return Err(Errno::new(ENOTDIR, "not a directory"));
            }
            check_movable(&facts)?;
            if !self.is_empty(file)? {
                return Err(Errno::new(ENOTEMPTY, "the directory is not empty"));
            }
            let queue = self.queue.ready(found.id)?;
            let tx = self.begin()?;
            let time = Timestamp::now();
            self.remove_entry(&tx, &locked.of(parent)?.file, &found.name)?;
            queue.add(&tx, found.id)?;
            let file = &mut locked.of(found.id)?.file;
            self.store(&tx, file, &Facts { links: 0, changed: time, ..facts }, &[])?;
            let directory = &mut locked.of(parent)?.file;
            let shrunk = grown(&directory.facts, -1, -1, time);
            self.store(&tx, directory, &shrunk, &[])?;
            self.note_remove(&tx, parent, &found.name, found.id, true)?;
            self.note_unnamed(found.id);
            Ok(())
        })
    }

    fn note_remove(
        &self,
        tx: &Tx,
        directory: ObjectId,
        name: &[u8],
        id: ObjectId,
        is_directory: bool,
    ) -> Result<()> {
        self.note(tx, id, || Payload::Remove {
            directory: directory.0,
            name: name.to_vec(),
            is_directory,
        })
    }
}

/// A device number as Linux stores it: major << 20 | minor.
pub fn stored_device(rdev: u64) -> u64 {
    let major = rdev >> 8 & 0xfff | rdev >> 32 & 0xffff_f000;
    let minor = rdev & 0xff | rdev >> 12 & 0xffff_ff00;
    major << 20 | minor & 0xf_ffff
}
