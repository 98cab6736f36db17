//! What a receive does to datasets: half-received heads, where a stream that is cut off can go on, and the
//! snapshot at the end.
//!
//! Chapter 06, section 5; chapter 07, sections 10 and 14. Invariant: a head is inconsistent from the group
//! that begins to fill it to the one that takes the snapshot the stream tells of.

use std::collections::BTreeMap;

use cenote_format::crypto_key as key;
use cenote_format::dsl_dataset::{FLAG_INCONSISTENT, KEY_IVSET_GUID, resume as key_of};
use cenote_format::dsl_directory::KEY_CRYPTO_KEY_OBJECT;
use cenote_format::property::{HAS_RECEIVED, INHERIT_SUFFIX, RECEIVED_SUFFIX};
use cenote_format::zap::Value;
use cenote_format::{Guid, ObjectId, feature};

use super::properties::comes_with_streams;
use super::{MosChange, NewKeys, PropertyInput};
use crate::dataset::DatasetKind;
use crate::{Error, ErrorKind, Result};

/// What a resumable receive records when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeFacts {
    /// Guid of the incremental source; 0: a full stream.
    pub from: Guid,
    /// Guid of the snapshot that is received.
    pub to: Guid,
    /// Its name as the sender has it.
    pub name: String,
    /// The stream may hold blocks of more than 128 KiB.
    pub large_blocks: bool,
    /// It may hold embedded blocks.
    pub embedded: bool,
    /// It may hold compressed blocks.
    pub compressed: bool,
    /// Its blocks are sealed.
    pub raw: bool,
    /// What it starts from lacks blocks that were left out for these snapshots.
    pub redacted_from: Option<Vec<u64>>,
}

/// How far a receive has come: the record that a resumed stream begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// Number of the object.
    pub object: u64,
    /// Where in it, in bytes.
    pub offset: u64,
    /// Bytes of streams received so far.
    pub bytes: u64,
}

/// The snapshot that ends a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedSnapshot {
    /// The part of its name after the `@`.
    pub name: String,
    /// Its guid, as the sender has it.
    pub guid: Guid,
    /// When the sender's was taken, in seconds since 1970.
    pub creation_time: u64,
}

impl MosChange<'_> {
    /// The head, which was just made, is being received; `resume`: a receive that is cut off can go on.
    pub fn begin_receive(&self, head: ObjectId, resume: Option<&ResumeFacts>) -> Result<()> {
        self.alter_dataset(head, |phys| phys.flags |= FLAG_INCONSISTENT)?;
        let Some(facts) = resume else { return self.log_event("receive", Some(head), " ") };
        if facts.from.0 != 0 {
            self.set_number_field(head, key_of::FROM_GUID, facts.from.0)?;
        }
        self.set_number_field(head, key_of::TO_GUID, facts.to.0)?;
        let mut name = facts.name.clone().into_bytes();
        name.push(0);
        self.set_field(head, key_of::TO_NAME, &Value::of_bytes(&name)?)?;
        self.set_resume_point(head, &ResumePoint { object: 1, offset: 0, bytes: 0 })?;
        for (key, is_set) in [
            (key_of::LARGE_BLOCK, facts.large_blocks),
            (key_of::EMBED, facts.embedded),
            (key_of::COMPRESS, facts.compressed),
            (key_of::RAW, facts.raw),
        ] {
            if is_set {
                self.set_number_field(head, key, 1)?;
            }
        }
        if let Some(guids) = &facts.redacted_from {
            self.set_field(head, key_of::REDACT_SNAPSHOTS, &Value::of_u64s(guids)?)?;
        }
        self.log_event("receive", Some(head), " ")
    }

    /// Records how far a resumable receive has come.
    pub fn set_resume_point(&self, head: ObjectId, point: &ResumePoint) -> Result<()> {
        self.set_number_field(head, key_of::OBJECT, point.object)?;
        self.set_number_field(head, key_of::OFFSET, point.offset)?;
        self.set_number_field(head, key_of::BYTES, point.bytes)
    }

    /// The head lacks the blocks that were left out for these snapshots; none: it is whole.
    pub fn set_redacted(&self, head: ObjectId, guids: Option<&[u64]>) -> Result<()> {
        let Some(feature) = feature::by_name("redacted_datasets") else { return Ok(()) };
        self.deactivate(head, feature)?;
        match guids {
            Some(guids) => self.activate(head, feature, &Value::of_u64s(guids)?),
            None => Ok(()),
        }
    }

    /// How far a half-received head is; `None` if it cannot go on.
    pub fn resume_point(&self, head: ObjectId) -> Result<Option<(ResumeFacts, ResumePoint)>> {
        let number = |key| Ok::<_, Error>(self.number_field(head, key)?.unwrap_or(0));
        let to = Guid(number(key_of::TO_GUID)?);
        if to.0 == 0 || !self.dataset(head)?.is_inconsistent() {
            return Ok(None);
        }
        let catalog = self.catalog()?;
        let facts = ResumeFacts {
            from: Guid(number(key_of::FROM_GUID)?),
            to,
            name: String::new(),
            large_blocks: number(key_of::LARGE_BLOCK)? != 0,
            embedded: number(key_of::EMBED)? != 0,
            compressed: number(key_of::COMPRESS)? != 0,
            raw: number(key_of::RAW)? != 0,
            redacted_from: catalog
                .dataset_fields(&catalog.dataset_by_id(head)?, key_of::REDACT_SNAPSHOTS)?,
        };
        let point = ResumePoint {
            object: number(key_of::OBJECT)?,
            offset: number(key_of::OFFSET)?,
            bytes: number(key_of::BYTES)?,
        };
        Ok(Some((facts, point)))
    }

    /// Takes the snapshot that ends a receive of `head`: both are whole from now on.
    pub fn end_receive(&self, head: ObjectId, end: &ReceivedSnapshot) -> Result<ObjectId> {
        self.alter_dataset(head, |phys| phys.flags &= !FLAG_INCONSISTENT)?;
        for key in [
            key_of::FROM_GUID,
            key_of::TO_GUID,
            key_of::TO_NAME,
            key_of::OBJECT,
            key_of::OFFSET,
            key_of::BYTES,
            key_of::LARGE_BLOCK,
            key_of::EMBED,
            key_of::COMPRESS,
            key_of::RAW,
            key_of::REDACT_SNAPSHOTS,
        ] {
            self.remove_field(head, key)?;
        }
        self.check_snapshot(head, &end.name)?;
        let snapshot = self.create_snapshot(head, &end.name, &[])?;
        self.alter_dataset(snapshot, |phys| {
            phys.guid = end.guid;
            phys.creation_time = end.creation_time;
        })?;
        self.log_event("finish receiving", Some(head), &format!("snap={}", end.name))?;
        Ok(snapshot)
    }

    /// The set of initialisation vectors of a snapshot is the sender's, and the keys of its dataset are wrapped
    /// as the sender's are, if that is an encryption root, or if its root has the user key that they are
    /// wrapped with: then the sender changed the key, and the root came first. One that has another root here
    /// than there stays as it is. The root whose keys are wrapped anew by that, if one's are: its user key may be
    /// another.
    pub fn receive_seals(
        &self,
        head: ObjectId,
        snapshot: ObjectId,
        ivset: u64,
        keys: &NewKeys,
    ) -> Result<Option<ObjectId>> {
        if ivset != 0 && self.is_enabled("bookmark_v2")? {
            self.set_number_field(snapshot, KEY_IVSET_GUID, ivset)?;
        }
        let directory = self.dataset(head)?.directory;
        let table = self.number_field(directory, KEY_CRYPTO_KEY_OBJECT)?;
        let root = self.encryption_root(directory)?;
        let (Some(table), Some(root)) = (table, root) else { return Ok(None) };
        if root != directory && !self.has_user_key(root, keys)? {
            return Ok(None);
        }
        let known = self.value(ObjectId(table), key::IV)?;
        let is_same = known.and_then(|iv| iv.as_bytes().map(|iv| iv == keys.wrapped.iv));
        self.write_wrapped(ObjectId(table), keys)?;
        Ok((root == directory && is_same != Some(true)).then_some(root))
    }

    /// Whether the user key of an encryption root is, as far as can be told without it, what `keys` are wrapped
    /// with.
    fn has_user_key(&self, root: ObjectId, keys: &NewKeys) -> Result<bool> {
        let Some(table) = self.number_field(root, KEY_CRYPTO_KEY_OBJECT)? else { return Ok(false) };
        let number = |name| Ok::<_, Error>(self.number(ObjectId(table), name)?.unwrap_or(0));
        Ok(number(key::KEY_FORMAT)? == keys.format.raw()
            && number(key::PBKDF2_SALT)? == keys.salt
            && number(key::PBKDF2_ITERATIONS)? == keys.iterations)
    }

    /// The set of initialisation vectors of a snapshot.
    pub fn ivset(&self, snapshot: ObjectId) -> Result<Option<u64>> {
        self.number_field(snapshot, KEY_IVSET_GUID)
    }

    /// The snapshot of the directory of `head` with this guid.
    pub fn snapshot_with_guid(&self, head: ObjectId, guid: Guid) -> Result<Option<ObjectId>> {
        let own = self.dataset(head)?;
        let mut at = own.previous_snapshot;
        while at.0 != 0 {
            let phys = self.dataset(at)?;
            if phys.directory != own.directory {
                break;
            }
            if phys.guid == guid {
                return Ok(Some(at));
            }
            at = phys.previous_snapshot;
        }
        Ok(None)
    }

    /// The snapshots of `head` that are newer than `snapshot`, newest first.
    pub fn snapshots_after(&self, head: ObjectId, snapshot: ObjectId) -> Result<Vec<ObjectId>> {
        let mut newer = Vec::new();
        let mut at = self.dataset(head)?.previous_snapshot;
        while at.0 != 0 && at != snapshot {
            newer.push(at);
            at = self.dataset(at)?.previous_snapshot;
        }
        Ok(newer)
    }

    /// Whether `head` holds other objects than `snapshot` of it does.
    pub fn is_modified_since(&self, head: ObjectId, snapshot: ObjectId) -> Result<bool> {
        let (now, then) = (self.dataset(head)?, self.dataset(snapshot)?);
        if now.pointer.logical_birth() <= then.creation_txg {
            return Ok(false);
        }
        // The root may have been written for the sake of a log or of sums only.
        let catalog = self.catalog()?;
        let objects = |id| -> Result<_> {
            let set = catalog.sealed_object_set(&catalog.dataset_by_id(id)?)?;
            Ok(set.header().meta_dnode.pointers.clone())
        };
        Ok(objects(head)? != objects(snapshot)?)
    }

    /// The received values of a head are `inputs` from now on, and those `kept` that it had: others are
    /// forgotten. The names of those that cannot be had here, which stay what they were.
    pub fn replace_received(
        &self,
        head: ObjectId,
        kind: DatasetKind,
        inputs: &[PropertyInput],
        kept: &[String],
    ) -> Result<Vec<String>> {
        let table = self.table_of_properties(head)?;
        let mut before = BTreeMap::new();
        for (entry, value) in self.entries(table)? {
            if let Some(name) = entry.strip_suffix(RECEIVED_SUFFIX) {
                before.insert(name.to_owned(), value);
            }
        }
        for name in before.keys().filter(|name| comes_with_streams(name)) {
            if !kept.contains(name) && !inputs.iter().any(|input| input.name == *name) {
                self.forget_received(head, table, name)?;
            }
        }
        // What stays as it is is not asked whether it still fits.
        let mut changed = Vec::new();
        for input in inputs {
            if before.get(&input.name) != Some(&input.stored()?) {
                changed.push(input.clone());
            }
        }
        self.set_received(head, kind, &changed)
    }

    fn forget_received(&self, head: ObjectId, table: ObjectId, name: &str) -> Result<()> {
        let phys = self.dataset(head)?;
        let refreserved = self.refreservation(&self.directory(phys.directory)?)?;
        let is_hidden = self.hides_received(table, name)?;
        self.remove(table, &format!("{name}{RECEIVED_SUFFIX}"))?;
        match self.shown_instead(table, name)? {
            Some(shown) if !is_hidden => self.follow_value(&phys, &shown, refreserved),
            _ => Ok(()),
        }
    }

    /// Whether a received value does not show: there is a local one, or it is inherited all the same.
    fn hides_received(&self, table: ObjectId, name: &str) -> Result<bool> {
        Ok(self.value(table, name)?.is_some()
            || self.value(table, &format!("{name}{INHERIT_SUFFIX}"))?.is_some())
    }

    /// Stores values that came with a stream: they show where no local value does. The names of those that
    /// cannot be had here.
    pub fn set_received(
        &self,
        dataset: ObjectId,
        kind: DatasetKind,
        inputs: &[PropertyInput],
    ) -> Result<Vec<String>> {
        let mut refused = Vec::new();
        let mut table = None;
        for input in inputs {
            if self.check_property(dataset, kind, input).is_err() {
                refused.push(input.name.clone());
                continue;
            }
            let table = match table {
                Some(table) => table,
                None => *table.insert(self.table_of_properties(dataset)?),
            };
            self.receive_property(dataset, table, input)?;
        }
        if let Some(table) = table {
            self.put_number(table, HAS_RECEIVED, 0)?;
        }
        Ok(refused)
    }

    fn receive_property(
        &self,
        dataset: ObjectId,
        table: ObjectId,
        input: &PropertyInput,
    ) -> Result<()> {
        let (phys, name) = (self.dataset(dataset)?, &input.name);
        let is_hidden = self.hides_received(table, name)?;
        let refreserved = match phys.is_snapshot() {
            true => 0,
            false => self.refreservation(&self.directory(phys.directory)?)?,
        };
        self.put(table, &format!("{name}{RECEIVED_SUFFIX}"), &input.stored()?)?;
        if is_hidden || phys.is_snapshot() {
            return Ok(());
        }
        self.follow_value(&phys, input, refreserved)
    }

    fn table_of_properties(&self, dataset: ObjectId) -> Result<ObjectId> {
        let phys = self.dataset(dataset)?;
        match phys.is_snapshot() {
            true => self.snapshot_properties(dataset),
            false => Ok(self.directory(phys.directory)?.properties),
        }
    }

    /// Refuses a head that a stream cannot end in: somebody changed it since `from`, and it is not to be
    /// taken back. What is newer than that goes otherwise.
    pub fn make_way_for_received(&self, head: ObjectId, from: ObjectId, force: bool) -> Result<()> {
        if !force && self.is_modified_since(head, from)? {
            let reason = "the dataset has been modified since its most recent snapshot";
            return Err(Error::new(ErrorKind::Outdated, reason));
        }
        for newer in self.snapshots_after(head, from)? {
            if !force {
                let reason = "the dataset has a newer snapshot";
                return Err(Error::new(ErrorKind::Outdated, reason));
            }
            self.check_destroy_snapshot(newer)?;
            self.destroy_snapshot(newer, false)?;
        }
        Ok(())
    }
}
