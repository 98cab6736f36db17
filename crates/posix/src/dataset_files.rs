//! Opening the files of a dataset for reading, and what its properties say about them.
//!
//! Invariant: what is read here is as old as the catalog it is read from.

use std::sync::Arc;

use cenote_engine::dataset::{
    Catalog, Dataset, Keys, Listed, PoolCapacity, PropertyReader, Suffix,
};
use cenote_engine::object::ObjectSet;
use cenote_engine::pool::Pool;
use cenote_engine::{Error, ErrorKind};
use cenote_format::ObjectType;

use crate::control_directory::{Snapshot, SnapshotDirectory, SnapshotIdentity, SnapshotSource};
use crate::filesystem::{Filesystem, FilesystemOptions};
use crate::tree::{Result, Space, Timestamp};
use crate::xattr::{AclType, XattrMode};

/// Object numbers a dataset can have.
const MAX_OBJECTS: u64 = 1 << 48;
/// Bytes the smallest object takes, as a shift: free objects are bounded by free space.
const OBJECT_SHIFT: u32 = 9;

/// The snapshots of one head.
pub struct DatasetSnapshots {
    catalog: Catalog,
    head: Dataset,
    keys: Arc<dyn Keys>,
}

impl DatasetSnapshots {
    /// The snapshots of `head`.
    pub fn new(catalog: Catalog, head: Dataset, keys: Arc<dyn Keys>) -> Self {
        Self { catalog, head, keys }
    }
}

fn snapshot_of(dataset: &Dataset) -> Option<Snapshot> {
    match dataset.name.suffix() {
        Suffix::Snapshot(name) => {
            let identity = SnapshotIdentity { id: dataset.id.0, guid: dataset.phys.guid };
            Some(Snapshot { name: name.clone().into_bytes(), identity })
        }
        _ => None,
    }
}

impl SnapshotSource for DatasetSnapshots {
    fn list(&self) -> cenote_engine::Result<Vec<Snapshot>> {
        let snapshots = self.catalog.snapshots(&self.head)?;
        Ok(snapshots.iter().filter_map(snapshot_of).collect())
    }

    fn find(&self, name: &[u8]) -> cenote_engine::Result<Option<Snapshot>> {
        let Ok(name) = std::str::from_utf8(name) else { return Ok(None) };
        match self.catalog.snapshot(&self.head, name) {
            Ok(dataset) => Ok(snapshot_of(&dataset)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open(&self, snapshot: SnapshotIdentity) -> cenote_engine::Result<ObjectSet> {
        if !self.is_there(snapshot)? {
            return Err(Error::not_found("the snapshot is gone"));
        }
        let dataset = self.catalog.dataset_by_id(snapshot.id.into())?;
        self.catalog.object_set(&dataset, &*self.keys)
    }

    fn is_there(&self, snapshot: SnapshotIdentity) -> cenote_engine::Result<bool> {
        let id = snapshot.id.into();
        match self.catalog.mos().dnode(id) {
            // The object may be anything by now.
            Ok(dnode) if dnode.bonus_type != ObjectType::DSL_DATASET => Ok(false),
            Ok(_) => Ok(self.catalog.dataset_phys(id)?.guid == snapshot.guid),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A catalog never changes.
    fn state(&self) -> u64 {
        0
    }
}

/// Opens the files of `dataset`, a head or a snapshot, for reading.
pub fn open(
    catalog: &Catalog,
    dataset: &Dataset,
    keys: &Arc<dyn Keys>,
    capacity: PoolCapacity,
    mounted: Timestamp,
) -> Result<Filesystem> {
    let objects = catalog.object_set(dataset, &**keys)?;
    let properties = DatasetProperties::new(catalog, dataset, &**keys, capacity);
    let settings = properties.settings()?;
    let is_snapshot = dataset.is_snapshot();
    let available = if is_snapshot {
        0
    } else {
        let refquota = properties.number("refquota", 0)?;
        let reserved = properties.number("refreservation", 0)?;
        catalog.available(dataset, &capacity, refquota, reserved)?
    };
    let record = properties.number("recordsize", 128 << 10)?;
    let space = space(
        dataset.phys.referenced_bytes,
        available,
        objects.root_pointer().fill(),
        u32::try_from(record).unwrap_or(128 << 10),
    );
    let snapshots = || -> Box<dyn SnapshotSource> {
        Box::new(DatasetSnapshots::new(catalog.clone(), dataset.clone(), keys.clone()))
    };
    Filesystem::open(FilesystemOptions {
        objects,
        xattr: settings.xattr,
        acl: settings.acl,
        snapshot_directory: settings.snapshot_directory,
        long_names: settings.long_names,
        keeps_data: settings.keeps_data,
        read_only: true,
        write: None,
        mounted,
        snapshots: (!is_snapshot).then(snapshots),
        space: Box::new(move || space),
    })
}

/// Opens the files of `dataset` of an open pool, with the keys the pool has loaded.
pub fn open_in(pool: &Pool, dataset: &Dataset) -> Result<Filesystem> {
    let keys: Arc<dyn Keys> = pool.keys().clone();
    open(&pool.catalog(), dataset, &keys, pool.capacity(), Timestamp::now())
}

/// The properties of one dataset, as numbers and words.
pub(crate) struct DatasetProperties<'a> {
    reader: PropertyReader<'a>,
    listed: Listed,
}

/// How the files of a dataset look, by its properties.
pub(crate) struct Settings {
    pub(crate) xattr: XattrMode,
    pub(crate) acl: AclType,
    pub(crate) snapshot_directory: SnapshotDirectory,
    pub(crate) long_names: bool,
    pub(crate) keeps_data: bool,
}

impl<'a> DatasetProperties<'a> {
    /// The properties of `dataset`.
    pub(crate) fn new(
        catalog: &'a Catalog,
        dataset: &Dataset,
        keys: &'a dyn Keys,
        capacity: PoolCapacity,
    ) -> Self {
        let reader = PropertyReader::new(catalog, capacity, keys, "");
        Self { reader, listed: Listed::Dataset(dataset.clone()) }
    }

    /// A property that is a number; `otherwise` where the dataset has none.
    pub(crate) fn number(&self, name: &str, otherwise: u64) -> Result<u64, Error> {
        Ok(self.reader.number(&self.listed, name)?.unwrap_or(otherwise))
    }

    /// A property as a script reads it; empty where the dataset has none.
    fn text(&self, name: &str) -> Result<String, Error> {
        let property = self.reader.get(&self.listed, name)?;
        Ok(property.map(|property| property.parsable()).unwrap_or_default())
    }

    /// How the files look.
    pub(crate) fn settings(&self) -> Result<Settings, Error> {
        Ok(Settings {
            xattr: xattr_mode(&self.text("xattr")?),
            acl: acl_type(&self.text("acltype")?),
            snapshot_directory: snapshot_directory(&self.text("snapdir")?),
            long_names: self.text("longname")? == "on",
            keeps_data: self.keeps_data()?,
        })
    }

    /// Property `primarycache` lets what files hold be kept in memory.
    pub(crate) fn keeps_data(&self) -> Result<bool, Error> {
        Ok(self.text("primarycache")? == "all")
    }
}

/// What `statfs` reports: in blocks of the record size, as OpenZFS on Linux does.
pub(crate) fn space(referenced: u64, available: u64, objects: u64, record: u32) -> Space {
    let unit = u64::from(record.max(512));
    let objects_free = MAX_OBJECTS.saturating_sub(objects).min(available >> OBJECT_SHIFT);
    // What is in use takes whole blocks, so that no filesystem uses none.
    let in_use = referenced.div_ceil(unit).saturating_mul(unit);
    Space {
        block_size: record.max(512),
        blocks: in_use.saturating_add(available) / unit,
        free: available / unit,
        files: objects.saturating_add(objects_free),
        files_free: objects_free,
        name_max: 0,
    }
}

fn xattr_mode(value: &str) -> XattrMode {
    match value {
        "off" => XattrMode::Off,
        // Two names of one value, of which the first is told.
        "on" | "sa" => XattrMode::SystemAttributes,
        _ => XattrMode::Directory,
    }
}

fn acl_type(value: &str) -> AclType {
    match value {
        "posix" | "posixacl" => AclType::Posix,
        "nfsv4" => AclType::Nfs4,
        _ => AclType::Off,
    }
}

fn snapshot_directory(value: &str) -> SnapshotDirectory {
    match value {
        "visible" => SnapshotDirectory::Visible,
        "disabled" => SnapshotDirectory::Disabled,
        _ => SnapshotDirectory::Hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_in_records() {
        let space = space(3 << 20, 5 << 20, 100, 128 << 10);
        assert_eq!((space.blocks, space.free), (64, 40));
        assert_eq!((space.files, space.files_free), (100 + 10240, 10240));
        // As OpenZFS 2.3.2 counts a filesystem of 114688 bytes.
        let space = super::space(114_688, 184_432_432, 13, 128 << 10);
        assert_eq!((space.blocks, space.free), (1408, 1407));
        assert_eq!(super::space(0, 0, u64::MAX, 0).block_size, 512);
    }
}
