//! Making directories and heads: new datasets and clones.
//!
//! Chapter 06, sections 7, 12 and 19. Invariant: every head but `$ORIGIN`'s is a clone, of the empty
//! snapshot if of no other; its origin counts it among its children and in both tables of clones.

use cenote_codec::cipher::WrappedKeys;
use cenote_format::crypto_key::{self as key, KeyFormat};
use cenote_format::dsl_dataset::{
    DslDataset, FLAG_CASE_INSENSITIVE, FLAG_INCONSISTENT, FLAG_UNIQUE_ACCURATE,
};
use cenote_format::dsl_directory::KEY_CRYPTO_KEY_OBJECT;
use cenote_format::zap::Value;
use cenote_format::zap::normalize::Normalization;
use cenote_format::{BlockPointer, Guid, ObjectId, ObjectType, Txg};

use super::livelist::LIVELIST;
use super::objects::{METADATA_ZAP, SMALL_BLOCK};
use super::properties::PropertyInput;
use super::space::{ORIGIN_DIRECTORY, blank_directory};
use super::{MosChange, OBJECT_DIRECTORY};
use crate::{Error, ErrorKind, Result};

/// The group that makes a pool; what is created in it says 1.
pub const FIRST_TXG: Txg = Txg(4);
/// Bits of the identity of a mounted dataset.
const FSID_MASK: u64 = (1 << 56) - 1;

/// Keys for a new encrypted dataset.
#[derive(Clone, Debug)]
pub struct NewKeys {
    /// Master key and HMAC key, wrapped.
    pub wrapped: WrappedKeys,
    /// Directory of the encryption root; `None`: the new directory itself.
    pub root: Option<ObjectId>,
    /// What the user's key looks like (as the encryption root's).
    pub format: KeyFormat,
    /// Salt of a passphrase, else 0.
    pub salt: u64,
    /// Iterations for a passphrase, else 0.
    pub iterations: u64,
}

/// A dataset to be made.
#[derive(Clone, Debug, Default)]
pub struct NewDataset<'a> {
    /// The directory above.
    pub parent: ObjectId,
    /// Last component of the name.
    pub name: &'a str,
    /// Snapshot to be cloned; `None` for a new, empty dataset.
    pub origin: Option<ObjectId>,
    /// The user who makes it, who gets the permissions that creators are given above it.
    pub creator: Option<u32>,
    /// Properties set at creation, checked already.
    pub properties: &'a [PropertyInput],
    /// Keys of an encrypted dataset; clones share their origin's.
    pub keys: Option<NewKeys>,
    /// Short names of features that the dataset uses from the start.
    pub features: &'a [&'a str],
    /// Names in it are matched without regard to case.
    pub case_insensitive: bool,
}

/// A dataset that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeDataset {
    /// Its directory.
    pub directory: ObjectId,
    /// Its head.
    pub dataset: ObjectId,
}

impl MosChange<'_> {
    /// Makes a dataset: a directory and a head.
    ///
    /// A new head's root is a hole: its object set is to be written in this group. A clone's root
    /// is its origin's, whose intent-log header, if it is not empty, is to be cleared in this
    /// group. The limits and the name are the caller's to check ([`Self::check_new_dataset`]).
    pub fn create_dataset(&self, new: &NewDataset<'_>) -> Result<MadeDataset> {
        self.hooks.check_room()?;
        self.check_new_dataset(new, false)?;
        self.create_unchecked(new)
    }

    /// The same of what is only there for a moment: wherever it fits, and however little room there is.
    pub(super) fn create_unchecked(&self, new: &NewDataset<'_>) -> Result<MadeDataset> {
        let directory = self.create_directory(Some(new.parent), new.name)?;
        if let Some(origin) = new.origin {
            if self.is_enabled(LIVELIST)? {
                self.create_livelist(directory)?;
            }
            self.share_keys(self.dataset(origin)?.directory, directory)?;
        }
        let origin = match new.origin {
            Some(origin) => origin,
            None => self.empty_snapshot()?,
        };
        let dataset = self.create_head(directory, Some(origin))?;
        if new.case_insensitive {
            self.alter_dataset(dataset, |phys| phys.flags |= FLAG_CASE_INSENSITIVE)?;
        }
        if let Some(keys) = &new.keys {
            self.give_keys(MadeDataset { directory, dataset }, keys)?;
        }
        for feature in new.features {
            self.activate_feature(dataset, feature)?;
        }
        if let Some(user) = new.creator {
            self.give_to_creator(directory, user)?;
        }
        match new.origin {
            // Only there for a moment.
            _ if new.name.starts_with('%') => {}
            None => self.log_event("create", Some(dataset), " ")?,
            Some(origin) => {
                let text = format!("origin={} ({origin})", self.name_of(origin)?);
                self.log_event("clone", Some(dataset), &text)?;
            }
        }
        for property in new.properties {
            self.set_property(dataset, property)?;
        }
        Ok(MadeDataset { directory, dataset })
    }

    /// Makes a directory without a head; the pool's root when there is no parent.
    pub(super) fn create_directory(
        &self,
        parent: Option<ObjectId>,
        name: &str,
    ) -> Result<ObjectId> {
        let blank = blank_directory(parent.unwrap_or_default(), self.now);
        let directory = self.new_object(
            ObjectType::DSL_DIRECTORY,
            SMALL_BLOCK,
            ObjectType::DSL_DIRECTORY,
            blank.encode(),
        )?;
        let properties = self.new_table(ObjectType::DSL_PROPS)?;
        let child_map = self.new_table(ObjectType::DSL_DIRECTORY_CHILD_MAP)?;
        self.alter_directory(directory, |phys| {
            (phys.properties, phys.child_map) = (properties, child_map);
        })?;
        match parent {
            Some(parent) => {
                let children = self.directory(parent)?.child_map;
                if self.number(children, name)?.is_some() {
                    let reason = format!("dataset '{name}' already exists");
                    return Err(Error::new(ErrorKind::Exists, reason).at_object(0, parent.0));
                }
                self.put_number(children, name, directory.0)?;
                self.count_filesystems(parent, 1)?;
            }
            None => self.add_number(OBJECT_DIRECTORY, "root_dataset", directory.0)?,
        }
        self.begin_counts(directory)?;
        Ok(directory)
    }

    /// The snapshot without anything that new datasets are clones of.
    pub(super) fn empty_snapshot(&self) -> Result<ObjectId> {
        let directory = self.directory(self.hidden_directory(ORIGIN_DIRECTORY)?)?;
        let snapshot = self.dataset(directory.head_dataset)?.previous_snapshot;
        match snapshot.0 {
            0 => Err(Error::corrupt("the pool has no empty snapshot to make datasets of")),
            _ => Ok(snapshot),
        }
    }

    /// A random number that is not 0.
    pub(super) fn new_guid(&self) -> Guid {
        Guid(self.hooks.random().max(1))
    }

    /// A random identity for mounting.
    pub(super) fn new_fsid(&self) -> Guid {
        Guid((self.hooks.random() & FSID_MASK).max(1))
    }

    /// The txg that a dataset made now says it was created in.
    pub(super) fn creation_txg(&self) -> Txg {
        if self.tx.txg() == FIRST_TXG { Txg(1) } else { self.tx.txg() }
    }

    /// Makes the head of a directory, as a clone of `origin`; without one only for `$ORIGIN`.
    pub(super) fn create_head(
        &self,
        directory: ObjectId,
        origin: Option<ObjectId>,
    ) -> Result<ObjectId> {
        let blank = DslDataset {
            directory,
            creation_time: self.now,
            creation_txg: self.creation_txg(),
            fsid_guid: self.new_fsid(),
            guid: self.new_guid(),
            flags: FLAG_UNIQUE_ACCURATE,
            pointer: BlockPointer::HOLE,
            ..DslDataset::default()
        };
        let dataset = self.new_object(
            ObjectType::DSL_DATASET,
            SMALL_BLOCK,
            ObjectType::DSL_DATASET,
            blank.encode(),
        )?;
        let mut phys = blank;
        let upper = Normalization(Normalization::UPPER);
        phys.snapshot_names = self.new_normal_table(ObjectType::DSL_DATASET_SNAP_MAP, upper)?;
        match origin {
            None => phys.deadlist = self.new_deadlist()?,
            Some(origin) => {
                let from = self.dataset(origin)?;
                let home = self.directory(from.directory)?;
                let head = self.dataset(home.head_dataset)?;
                phys.previous_snapshot = origin;
                phys.previous_snapshot_txg = from.creation_txg;
                phys.referenced_bytes = from.referenced_bytes;
                phys.compressed_bytes = from.compressed_bytes;
                phys.uncompressed_bytes = from.uncompressed_bytes;
                phys.pointer = from.pointer;
                phys.flags |= from.flags & (FLAG_INCONSISTENT | FLAG_CASE_INSENSITIVE);
                phys.deadlist = self.clone_deadlist(head.deadlist, from.creation_txg, origin)?;
            }
        }
        self.set_dataset(dataset, &phys)?;
        if let Some(origin) = origin {
            self.adopt_clone(origin, dataset)?;
            self.copy_features(origin, dataset)?;
        }
        self.alter_directory(directory, |phys| {
            phys.head_dataset = dataset;
            if phys.origin.0 == 0 {
                phys.origin = origin.unwrap_or_default();
            }
        })?;
        Ok(dataset)
    }

    /// `origin` gets another clone, whose oldest dataset is `dataset`, a head.
    fn adopt_clone(&self, origin: ObjectId, dataset: ObjectId) -> Result<()> {
        let mut from = self.dataset(origin)?;
        from.children = from.children.saturating_add(1);
        if from.next_clones.0 == 0 {
            from.next_clones = self.new_table(ObjectType::NEXT_CLONES)?;
        }
        self.set_dataset(origin, &from)?;
        self.add_member(from.next_clones, dataset)?;
        self.add_clone(from.directory, dataset)
    }

    /// The directory of an origin lists the head of another clone.
    pub(super) fn add_clone(&self, directory: ObjectId, head: ObjectId) -> Result<()> {
        let mut home = self.directory(directory)?;
        if home.clones.0 == 0 {
            home.clones = self.new_table(ObjectType::DSL_CLONES)?;
            self.set_directory(directory, &home)?;
        }
        self.add_member(home.clones, head)
    }

    /// Gives a dataset that is being made its keys: it is encrypted from now on.
    pub(crate) fn give_keys(&self, made: MadeDataset, keys: &NewKeys) -> Result<()> {
        self.create_keys(made.directory, keys)?;
        self.activate_feature(made.dataset, "encryption")
    }

    /// Makes the key object of a directory.
    fn create_keys(&self, directory: ObjectId, keys: &NewKeys) -> Result<()> {
        let table = self.new_table(METADATA_ZAP)?;
        let wrapped = &keys.wrapped;
        let root = keys.root.unwrap_or(directory);
        for (name, number) in [
            (key::SUITE, wrapped.suite.id()),
            (key::GUID, wrapped.guid),
            (key::VERSION, wrapped.version),
            (key::REFCOUNT, 1),
            (key::ROOT_DIRECTORY, root.0),
        ] {
            self.put_number(table, name, number)?;
        }
        self.write_wrapped(table, keys)?;
        self.set_number_field(directory, KEY_CRYPTO_KEY_OBJECT, table.0)
    }

    /// Writes what a change of the wrapping key changes.
    pub(super) fn write_wrapped(&self, table: ObjectId, keys: &NewKeys) -> Result<()> {
        let wrapped = &keys.wrapped;
        for (name, bytes) in [
            (key::IV, wrapped.iv.as_slice()),
            (key::MAC, &wrapped.mac),
            (key::MASTER_KEY, &wrapped.master),
            (key::HMAC_KEY, &wrapped.hmac),
        ] {
            self.put(table, name, &Value::of_bytes(bytes)?)?;
        }
        for (name, number) in [
            (key::KEY_FORMAT, keys.format.raw()),
            (key::PBKDF2_SALT, keys.salt),
            (key::PBKDF2_ITERATIONS, keys.iterations),
        ] {
            self.put_number(table, name, number)?;
        }
        Ok(())
    }

    /// A clone uses the key object of its origin's directory, if that is encrypted.
    fn share_keys(&self, from: ObjectId, to: ObjectId) -> Result<()> {
        let Some(table) = self.number_field(from, KEY_CRYPTO_KEY_OBJECT)? else { return Ok(()) };
        let users = self.number(ObjectId(table), key::REFCOUNT)?.unwrap_or(1);
        self.put_number(ObjectId(table), key::REFCOUNT, users.saturating_add(1))?;
        self.set_number_field(to, KEY_CRYPTO_KEY_OBJECT, table)
    }

    /// A directory that goes away uses its key object no more.
    pub(super) fn release_keys(&self, directory: ObjectId) -> Result<()> {
        let Some(table) = self.number_field(directory, KEY_CRYPTO_KEY_OBJECT)? else {
            return Ok(());
        };
        let users = self.number(ObjectId(table), key::REFCOUNT)?.unwrap_or(1);
        self.remove_field(directory, KEY_CRYPTO_KEY_OBJECT)?;
        self.hooks.keys_released(directory);
        match users.saturating_sub(1) {
            0 => self.free_object(ObjectId(table)),
            left => self.put_number(ObjectId(table), key::REFCOUNT, left),
        }
    }
}
