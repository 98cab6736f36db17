//! Writing extended attributes: in the packed list, or as files of a hidden directory.
//!
//! Chapter 05, section 11. The owner's lock covers its hidden directory and what is in it.
//! Invariant: a name lives in one of the two forms only.

use cenote_engine::txg::Tx;
use cenote_format::nvlist::{Encoding, NvList, Value};
use cenote_format::posix_acl::{ACCESS_NAME, DEFAULT_NAME, PosixAcl};
use cenote_format::sa::Attribute;
use cenote_format::zil::Payload;
use cenote_format::{ObjectId, pflags};

use super::namespace::grown;
use super::object::{NewFile, make_file, new_flags};
use super::{FilesystemWriter, SMALL_CHANGE, acl};
use crate::attributes::{DIRECTORY, Facts, REGULAR};
use crate::error::{E2BIG, EACCES, EEXIST, ENODATA, EPERM, ERANGE};
use crate::tree::{Errno, Result, Timestamp, XattrWrite};
use crate::view::File;
use crate::xattr::XattrMode;

/// Largest value in the packed list, in bytes.
const LISTED_VALUE_MAX: usize = 32 << 10;
/// Largest packed list in bytes: what an attribute's length can say.
const LIST_MAX: usize = 65_535;
/// Largest value in bytes.
const VALUE_MAX: usize = 64 << 10;
/// Longest name in bytes.
const NAME_MAX: usize = 255;

/// A name under which a value is stored.
pub(super) struct Stored {
    name: Vec<u8>,
    /// It is a file of the hidden directory.
    in_directory: bool,
}

impl FilesystemWriter {
    /// Sets (or, without `value`, removes) the extended attribute `name`.
    pub fn set_xattr(
        &self,
        id: ObjectId,
        name: &[u8],
        value: Option<&[u8]>,
        how: XattrWrite,
    ) -> Result<()> {
        let candidates = self.rules.candidates(name)?;
        match value {
            Some(value) if value.len() > VALUE_MAX => {
                return Err(Errno::new(E2BIG, "the value is too large"));
            }
            _ if name.len() > NAME_MAX => return Err(Errno::new(ERANGE, "the name is too long")),
            _ => {}
        }
        self.retrying(|| {
            let _reservation = match value {
                Some(value) => self.admit(SMALL_CHANGE + value.len() as u64)?,
                None => self.admit_freeing()?,
            };
            let node = self.node(id)?;
            let mut state = node.write()?;
            let file = &mut state.file;
            if file.facts.flags & (pflags::IMMUTABLE | pflags::APPEND_ONLY) != 0 {
                return Err(Errno::new(EPERM, "the file's flags forbid it"));
            }
            let stored = self.stored_names(file, &candidates)?;
            match (stored.is_empty(), how) {
                (false, XattrWrite::Create) => {
                    return Err(Errno::new(EEXIST, "the extended attribute exists"));
                }
                (true, XattrWrite::Replace) => return Err(absent()),
                (true, _) if value.is_none() => return Err(absent()),
                _ => {}
            }
            if let (true, Some(value)) = (is_acl(name), value) {
                return self.set_acl(file, name, value, &stored);
            }
            let tx = self.begin()?;
            for old in stored.iter().filter(|old| value.is_none() || old.name != name) {
                self.put_xattr(&tx, file, &old.name, None)?;
            }
            if value.is_some() {
                self.put_xattr(&tx, file, name, value)?;
            }
            let facts = Facts { changed: Timestamp::now(), ..file.facts };
            self.store(&tx, file, &facts, &[])?;
            self.note_xattr(&tx, file, &stored, (name, value))
        })
    }

    /// Notes that `name` has `value` now, or that there is none, where `stored` was before: each
    /// name as it is stored, and only those that changed, for a replay may not find another.
    /// Records tell of attributes in the list only.
    pub(super) fn note_xattr(
        &self,
        tx: &Tx,
        file: &File,
        stored: &[Stored],
        (name, value): (&[u8], Option<&[u8]>),
    ) -> Result<()> {
        let id = file.object.id();
        if file.facts.links == 0 {
            return Ok(());
        }
        let is_listed = match value {
            // A value of no bytes would read as a removal.
            Some([]) => false,
            Some(_) => self.view.xattr_list(file)?.is_some_and(|list| list.get(name).is_some()),
            None => true,
        };
        if !is_listed || stored.iter().any(|old| old.in_directory) {
            self.note_whole(tx);
            return Ok(());
        }
        let set = |name: &[u8], value: Option<&[u8]>| Payload::SetXattr {
            object: id.0,
            name: name.to_vec(),
            value: value.map(<[u8]>::to_vec),
        };
        for old in stored.iter().filter(|old| value.is_none() || old.name != name) {
            self.note(tx, id, || set(&old.name, None))?;
        }
        match value {
            Some(_) => self.note(tx, id, || set(name, value)),
            None => Ok(()),
        }
    }

    /// Which of the names are stored.
    pub(super) fn stored_names(&self, file: &File, names: &[&[u8]]) -> Result<Vec<Stored>> {
        let list = self.view.xattr_list(file)?;
        let directory = self.view.xattr_directory(file)?;
        let mut stored = Vec::new();
        for name in names {
            let listed = list.as_ref().is_some_and(|list| list.get(name).is_some());
            let in_directory = match &directory {
                Some(directory) => {
                    self.view.directories.zap(&directory.object)?.lookup(name)?.is_some()
                }
                None => false,
            };
            if listed || in_directory {
                stored.push(Stored { name: name.to_vec(), in_directory });
            }
        }
        Ok(stored)
    }

    /// Sets a POSIX list, and the mode with it.
    fn set_acl(&self, file: &mut File, name: &[u8], value: &[u8], stored: &[Stored]) -> Result<()> {
        let is_default = name == DEFAULT_NAME;
        if is_default && !file.facts.is_directory() {
            return Err(Errno::new(EACCES, "only directories have default lists"));
        }
        let list = PosixAcl::decode(value)
            .map_err(|error| Errno::new(crate::error::EINVAL, error.to_string()))?;
        // An empty list takes the stored one away.
        if !list.entries.is_empty() {
            acl::check(&list)?;
        }
        let tx = self.begin()?;
        let old = file.facts;
        let mut facts = Facts { changed: Timestamp::now(), ..old };
        let keep = match is_default {
            true => !list.entries.is_empty(),
            false => !list.is_equivalent_to_mode(),
        };
        let kept = keep.then_some(value);
        self.put_xattr(&tx, file, name, kept)?;
        if !is_default && !list.entries.is_empty() {
            facts.mode = facts.mode & !0o777 | list.mode();
        }
        self.store_mode(&tx, file, facts)?;
        // The mode first: what is replayed as `chmod` changes the list that is stored.
        self.note_mode(&tx, file, &old)?;
        self.note_xattr(&tx, file, stored, (name, kept))
    }

    /// Sets or removes exactly the stored name that a record of the log tells of.
    pub(super) fn replay_xattr(
        &self,
        id: ObjectId,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        if is_acl(name) && value.is_some() && self.rules.candidates(name).is_ok() {
            // Not every release has a record of the mode that goes with it.
            return self.set_xattr(id, name, value, XattrWrite::Any);
        }
        self.retrying(|| {
            let _reservation = self.admit(0)?;
            let node = self.node(id)?;
            let mut state = node.write()?;
            let file = &mut state.file;
            if value.is_none() && self.stored_names(file, &[name])?.is_empty() {
                return Ok(());
            }
            let tx = self.begin()?;
            self.put_xattr(&tx, file, name, value)?;
            let facts = Facts { changed: Timestamp::now(), ..file.facts };
            self.store(&tx, file, &facts, &[])?;
            self.note_whole(&tx);
            Ok(())
        })
    }

    /// The access list of a file after `chmod` to `mode`, if it has one.
    pub(super) fn changed_access_list(&self, file: &File, mode: u32) -> Result<Option<Vec<u8>>> {
        let Some(mut list) = self.view.access_acl(file, self.rules)? else { return Ok(None) };
        acl::change_mode(&mut list, mode);
        Ok(Some(list.encode()))
    }

    /// Stores or removes an extended attribute under exactly this name, wherever it is.
    pub(super) fn put_xattr(
        &self,
        tx: &Tx,
        file: &mut File,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        let list = self.view.xattr_list(file)?;
        let listed = list.as_ref().is_some_and(|list| list.get(name).is_some());
        let Some(value) = value else {
            if let Some(mut list) = list.filter(|_| listed) {
                list.remove(name);
                self.put_list(tx, file, &list)?;
            }
            return self.remove_from_directory(tx, file, name);
        };
        if self.rules.mode == XattrMode::SystemAttributes {
            let mut list = list.clone().unwrap_or_default();
            list.set(name, Value::ByteArray(value.to_vec()));
            let fits = value.len() <= LISTED_VALUE_MAX
                && list.encode(Encoding::Xdr)?.len() <= LIST_MAX
                && self.put_list_if_it_fits(tx, file, &list)?;
            if fits {
                return self.remove_from_directory(tx, file, name);
            }
        }
        self.put_into_directory(tx, file, name, value)?;
        if let Some(mut list) = list.filter(|_| listed) {
            list.remove(name);
            self.put_list(tx, file, &list)?;
        }
        Ok(())
    }

    fn put_list(&self, tx: &Tx, file: &mut File, list: &NvList) -> Result<()> {
        let packed = list.encode(Encoding::Xdr)?;
        self.layouts.change(&self.view, tx, file, &[(Attribute::XattrList, Some(&packed))])
    }

    fn put_list_if_it_fits(&self, tx: &Tx, file: &mut File, list: &NvList) -> Result<bool> {
        match self.put_list(tx, file, list) {
            Err(error) if error.code == crate::error::EFBIG => Ok(false),
            result => result.map(|()| true),
        }
    }

    fn remove_from_directory(&self, tx: &Tx, file: &File, name: &[u8]) -> Result<()> {
        let Some(mut directory) = self.view.xattr_directory(file)? else { return Ok(()) };
        let zap = self.view.directories.zap(&directory.object)?;
        let Some(value) = zap.lookup(name)? else { return Ok(()) };
        let id = crate::directory::entry_value(name, &value)?.object;
        self.remove_entry(tx, &directory, name)?;
        self.view.objects().free_object(tx, id)?;
        let facts = grown(&directory.facts, -1, 0, Timestamp::now());
        self.store(tx, &mut directory, &facts, &[])
    }

    fn put_into_directory(
        &self,
        tx: &Tx,
        file: &mut File,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let mut directory = match self.view.xattr_directory(file)? {
            Some(directory) => directory,
            None => self.make_xattr_directory(tx, file)?,
        };
        let zap = self.view.directories.zap(&directory.object)?;
        let known = zap.lookup(name)?;
        let mut target = match &known {
            Some(value) => {
                let id = crate::directory::entry_value(name, value)?.object;
                let target = self.view.file(id)?;
                target.object.free_range(tx, 0, u64::MAX)?;
                target
            }
            None => {
                self.make_hidden(tx, &file.facts, REGULAR | 0o644, directory.object.id(), None)?
            }
        };
        let len = value.len() as u64;
        self.grow_block(tx, &target, target.facts.size, len)?;
        target.object.write(tx, 0, value)?;
        let time = Timestamp::now();
        let facts = Facts { size: len, modified: time, changed: time, ..target.facts };
        self.store(tx, &mut target, &facts, &[])?;
        if known.is_none() {
            let id = target.object.id();
            self.add_entry(tx, &directory, name, id, target.facts.mode)?;
            let facts = grown(&directory.facts, 1, 0, time);
            self.store(tx, &mut directory, &facts, &[])?;
        }
        Ok(())
    }

    fn make_xattr_directory(&self, tx: &Tx, file: &mut File) -> Result<File> {
        self.add_xattr_directory(tx, file, None)
    }

    /// As the log says: the directory has this number and this many slots.
    pub(super) fn claim_xattr_directory(
        &self,
        tx: &Tx,
        file: &mut File,
        claim: (ObjectId, u8),
    ) -> Result<()> {
        self.add_xattr_directory(tx, file, Some(claim)).map(drop)
    }

    fn add_xattr_directory(
        &self,
        tx: &Tx,
        file: &mut File,
        claim: Option<(ObjectId, u8)>,
    ) -> Result<File> {
        let mode = DIRECTORY | 0o1777;
        let directory = self.make_hidden(tx, &file.facts, mode, file.object.id(), claim)?;
        let id = directory.object.id();
        let word = id.0.to_le_bytes();
        let change = [(Attribute::XattrDirectory, Some(word.as_slice()))];
        if let Err(error) = self.layouts.change(&self.view, tx, file, &change) {
            self.view.objects().free_object(tx, id)?;
            return Err(error);
        }
        Ok(directory)
    }

    fn make_hidden(
        &self,
        tx: &Tx,
        owner: &Facts,
        mode: u32,
        parent: ObjectId,
        claim: Option<(ObjectId, u8)>,
    ) -> Result<File> {
        let is_directory = mode & DIRECTORY != 0 && mode & REGULAR == 0;
        let has_project = owner.flags & pflags::PROJECT != 0;
        let time = Timestamp::now();
        let facts = Facts {
            mode,
            size: if is_directory { 2 } else { 0 },
            generation: tx.txg().0,
            parent: parent.0,
            links: if is_directory { 2 } else { 1 },
            uid: owner.uid,
            gid: owner.gid,
            flags: new_flags(mode, is_directory, has_project) | pflags::XATTR,
            device: 0,
            project: owner.project,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
        };
        let (id, slots) = match claim {
            Some((id, slots)) => (Some(id), slots),
            None => (None, self.properties().slots),
        };
        let new = NewFile { facts, slots, id, more: &[], entries: None };
        make_file(&self.view, &self.layouts, tx, &new)
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_NAME || name == DEFAULT_NAME
}

fn absent() -> Errno {
    Errno::new(ENODATA, "no such extended attribute")
}
