//! Applying records of the intent log to a filesystem.
//!
//! Chapter 05, sections 17 and 18. Invariant: a record does what the operation it tells of did, with
//! the same object numbers, generations and creation times; the change is made by the same code.

use bytes::Bytes;
use cenote_engine::intent::Replay;
use cenote_engine::{Error, ErrorKind};
use cenote_format::acl::Aces;
use cenote_format::sa::Attribute;
use cenote_format::zil::{
    AclParts, Create, Created, LogId, Payload, Record, RenameKind, SetAttributes as LogAttributes,
    mask_linux,
};
use cenote_format::{ObjectId, acl, pflags};

use super::FilesystemWriter;
use super::acl::Inherited;
use super::extended::Extended;
use super::namespace::{DirectoryChange, check_directory};
use super::nfsv4::described;
use super::object::{inherit_project, new_flags};
use crate::attributes::{DIRECTORY, Facts, SYMLINK, TYPE, is_device, stored_time};
use crate::error::{EEXIST, EIO, EOPNOTSUPP, ESTALE};
use crate::filesystem::Filesystem;
use crate::tree::{
    Allocate, Caller, Errno, RenameFlags, Result, SetAttributes, SetTime, Timestamp,
};

const SUPERUSER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
/// 512-byte slots of the largest dnode.
const SLOTS_MAX: u8 = 32;

/// The 512-byte slots its dnode takes.
pub(super) fn slots_of(id: LogId) -> u8 {
    id.extra_slots.saturating_add(1).min(SLOTS_MAX)
}

/// The POSIX id of a log FUID; ids of domains become nobody's.
pub(super) fn id_of(fuid: u64) -> u32 {
    cenote_format::fuid::Fuid::decode(fuid).posix()
}

impl FilesystemWriter {
    /// Whether an object is a file.
    fn is_file(&self, id: u64) -> Result<bool> {
        match self.node(ObjectId(id)) {
            Ok(_) => Ok(true),
            Err(error) if error.code == ESTALE => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Does what a record says. `block` is what a write without data points at.
    pub fn replay(&self, record: &Record, block: Option<&Bytes>) -> Result<()> {
        match &record.payload {
            Payload::Create(create) => self.retrying(|| self.replay_create(create)),
            Payload::Remove { directory, name, is_directory } => {
                let directory = ObjectId(*directory);
                let found = self.must_find(&self.node(directory)?.read()?.file, name)?;
                match is_directory {
                    true => self.remove_directory(directory, name)?,
                    false => self.unlink(directory, name)?,
                }
                self.forget(found.id);
                Ok(())
            }
            Payload::Link { directory, object, name } => {
                self.link(ObjectId(*object), ObjectId(*directory), name).map(drop)
            }
            Payload::Rename { kind, source_directory, source, target_directory, target } => {
                let (from, to) = (ObjectId(*source_directory), ObjectId(*target_directory));
                self.replay_rename(kind, (from, source), (to, target))
            }
            Payload::Write { object, offset, length, data: Some(data), .. } => {
                let length = usize::try_from(*length).unwrap_or(usize::MAX);
                let data = data.get(..length.min(data.len())).unwrap_or(&[]);
                self.write(ObjectId(*object), *offset, data, false)
            }
            Payload::Write { object, offset, length, .. } => {
                let none = || Errno::new(EIO, "a record of a write without its block");
                let block = block.ok_or_else(none)?;
                self.replay_block(ObjectId(*object), *offset, *length, block)
            }
            // What cannot be shared again is copied.
            Payload::CloneRange { object, offset, length, .. } => {
                let none = || Errno::new(EIO, "a record of a cloned range without its blocks");
                let block = block.ok_or_else(none)?;
                let length = usize::try_from(*length).unwrap_or(usize::MAX);
                let data = block.get(..length.min(block.len())).unwrap_or(&[]);
                self.write(ObjectId(*object), *offset, data, false)
            }
            Payload::WriteExtend { object, offset, length } => {
                let id = ObjectId(*object);
                let end = offset.saturating_add(*length);
                match end > self.node(id)?.read()?.file.facts.size {
                    true => self.set_length(id, end),
                    false => Ok(()),
                }
            }
            Payload::Truncate { object, offset, length: 0 } => {
                self.set_length(ObjectId(*object), *offset)
            }
            Payload::Truncate { object, offset, length } => {
                self.allocate(ObjectId(*object), (*offset, *length), Allocate::PunchHole, false)
            }
            Payload::SetAttributes(set) => self.replay_attributes(set),
            Payload::SetAcl { object, acl, domains } if domains.is_empty() => {
                self.retrying(|| self.replay_acl(ObjectId(*object), acl))
            }
            Payload::SetXattr { object, name, value } => {
                self.replay_xattr(ObjectId(*object), name, value.as_deref())
            }
            other => {
                let reason = format!("replaying {} is not supported yet", other.name());
                Err(Errno::new(EOPNOTSUPP, reason))
            }
        }
    }

    fn set_length(&self, id: ObjectId, size: u64) -> Result<()> {
        let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.set_attributes(id, &change)
    }

    fn replay_create(&self, create: &Create) -> Result<()> {
        let _reservation = self.admit(0)?;
        let id = ObjectId(create.object.object);
        let parent = self.node(ObjectId(create.directory))?;
        let mut state = parent.write()?;
        let directory = &mut state.file;
        if create.what == Created::XattrDirectory {
            let tx = self.begin()?;
            self.claim_xattr_directory(&tx, directory, (id, slots_of(create.object)))?;
            self.note_whole(&tx);
            return Ok(());
        }
        check_directory(&directory.facts, DirectoryChange::Add)?;
        if self.find(directory, &create.name)?.is_some() {
            return Err(Errno::new(EEXIST, "the name exists"));
        }
        let type_bits = match &create.what {
            Created::Directory => DIRECTORY,
            Created::Symlink { .. } => SYMLINK,
            _ => create.mode as u32 & TYPE,
        };
        let mode = type_bits | create.mode as u32 & 0o7777;
        let target = match &create.what {
            Created::Symlink { target } => target.as_slice(),
            _ => &[],
        };
        let is_directory = type_bits == DIRECTORY;
        let of = directory.facts;
        let mut flags = new_flags(mode, is_directory, self.properties().projects);
        let project = inherit_project(&of, mode, &mut flags);
        let created = stored_time(create.created);
        let facts = Facts {
            mode,
            size: if is_directory { 2 } else { target.len() as u64 },
            generation: create.generation,
            parent: create.directory,
            links: if is_directory { 2 } else { 1 },
            uid: id_of(create.owner),
            gid: id_of(create.group),
            flags: flags | of.flags & pflags::XATTR,
            device: if is_device(mode) { create.device } else { 0 },
            project,
            accessed: created,
            modified: created,
            changed: created,
            created,
        };
        let facts = match &create.attributes {
            Some(record) => Extended::of(record)?.after(&facts, self.properties().projects)?,
            None => facts,
        };
        // Lists of POSIX have records of their own; others are inherited again.
        let (facts, entries) = match list_of(create)? {
            Some(list) => (described(&facts, &list), Some(list)),
            None => self.with_inherited(directory, facts)?,
        };
        let inherited = Inherited { entries, ..Inherited::none(mode) };
        let tx = self.begin()?;
        let claim = Some((id, slots_of(create.object)));
        let file = self.make(&tx, facts, target, &inherited, claim)?;
        self.name_new(&tx, directory, &create.name, &file, Timestamp::now())?;
        self.note_create(&tx, directory, &create.name, &file, target)?;
        self.nodes.add(id, file).map(drop)
    }

    fn replay_rename(
        &self,
        kind: &RenameKind,
        (from, old): (ObjectId, &[u8]),
        (to, new): (ObjectId, &[u8]),
    ) -> Result<()> {
        let recorded = match kind {
            RenameKind::Whiteout(whiteout) => Some(whiteout),
            RenameKind::Plain | RenameKind::Exchange => None,
        };
        let flags = RenameFlags {
            exchange: *kind == RenameKind::Exchange,
            whiteout: recorded.is_some(),
            no_replace: false,
        };
        let replaced = self.find(&self.node(to)?.read()?.file, new)?;
        self.rename_as(SUPERUSER, (from, old), (to, new), flags, recorded)?;
        if let Some(found) = replaced {
            self.forget(found.id);
        }
        Ok(())
    }

    /// Writes the whole block around `offset`; the file grows at most to the range's end.
    fn replay_block(&self, id: ObjectId, offset: u64, length: u64, block: &Bytes) -> Result<()> {
        let size = block.len() as u64;
        if size == 0 {
            return Err(Errno::new(EIO, "a record of a write with an empty block"));
        }
        let start = offset / size * size;
        let end = offset.saturating_add(length).max(self.node(id)?.read()?.file.facts.size);
        let len = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
        let data = block.get(..len.min(block.len())).unwrap_or(block);
        self.write(id, start, data, false)
    }

    fn replay_attributes(&self, set: &LogAttributes) -> Result<()> {
        let wants = |bit: u64| set.mask & bit != 0;
        let size = wants(mask_linux::SIZE).then_some(set.size);
        let change = SetAttributes {
            mode: wants(mask_linux::MODE).then_some(set.mode as u32),
            uid: wants(mask_linux::OWNER).then(|| id_of(set.owner)),
            gid: wants(mask_linux::GROUP).then(|| id_of(set.group)),
            size,
            accessed: wants(mask_linux::ACCESSED).then(|| SetTime::At(stored_time(set.accessed))),
            modified: wants(mask_linux::MODIFIED).then(|| SetTime::At(stored_time(set.modified))),
            changed: None,
            kill_set_id: false,
        };
        let extended = set.extended.as_ref().map(Extended::of).transpose()?;
        self.set_with_extended(ObjectId(set.object), &change, extended.as_ref())
    }

    /// Sets a list of version-1 entries, and the mode it says.
    fn replay_acl(&self, id: ObjectId, parts: &AclParts) -> Result<()> {
        let count = usize::try_from(parts.count).unwrap_or(usize::MAX);
        let list = acl::decode(&parts.entries, count)?;
        let _reservation = self.admit(0)?;
        let node = self.node(id)?;
        let mut state = node.write()?;
        let file = &mut state.file;
        let tx = self.begin()?;
        let facts = described(&file.facts, &list);
        let (count, entries) = ((list.len() as u64).to_le_bytes(), acl::encode(&list));
        let more = [
            (Attribute::AclCount, Some(count.as_slice())),
            (Attribute::AclEntries, Some(entries.as_slice())),
        ];
        self.store(&tx, file, &Facts { changed: Timestamp::now(), ..facts }, &more)?;
        self.note_whole(&tx);
        Ok(())
    }
}

/// The list that a file is made with, if its record has one.
fn list_of(create: &Create) -> Result<Option<Aces>> {
    let Some(parts) = create.acl.as_ref().filter(|parts| !parts.entries.is_empty()) else {
        return Ok(None);
    };
    if !create.domains.is_empty() {
        let reason = "replaying a list with ids of domains is not supported yet";
        return Err(Errno::new(EOPNOTSUPP, reason));
    }
    let count = usize::try_from(parts.count).unwrap_or(usize::MAX);
    Ok(Some(acl::decode(&parts.entries, count)?))
}

/// An errno as the engine's error.
fn engine_error(error: Errno) -> Error {
    let kind = match error.code {
        EEXIST => ErrorKind::Exists,
        EOPNOTSUPP => ErrorKind::Unsupported,
        crate::error::ENOENT | ESTALE => ErrorKind::NotFound,
        crate::error::ENOSPC | crate::error::EDQUOT => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::new(kind, error.reason)
}

impl Filesystem {
    fn for_replay(&self) -> cenote_engine::Result<&FilesystemWriter> {
        self.writer()
            .ok_or_else(|| Error::new(ErrorKind::ReadOnly, "the filesystem is mounted read-only"))
    }
}

impl Replay for Filesystem {
    fn exists(&self, object: u64) -> cenote_engine::Result<bool> {
        self.for_replay()?.is_file(object).map_err(engine_error)
    }

    fn apply(&self, record: &Record, block: Option<&Bytes>) -> cenote_engine::Result<()> {
        self.for_replay()?.replay(record, block).map_err(engine_error)
    }

    fn share(&self, record: &Record) -> cenote_engine::Result<bool> {
        self.for_replay()?.share_again(&record.payload).map_err(engine_error)
    }
}
