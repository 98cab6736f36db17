//! What properties are computed from beside a dataset's bonus.
//!
//! Chapter 06, sections 8 and 9.2. Invariant: [`OnDisk`] reads nothing before it is asked;
//! [`DatasetFacts`] holds what objects of the dataset alone say, so that it is out of date only when
//! one of those was written.

use std::cell::OnceCell;

use cenote_format::dsl_dataset;
use cenote_format::{ObjectId, master_node};

use super::allowance::DirectoryLimits;
use super::properties::{Entries, read_entries};
use super::{Catalog, Dataset, DatasetKind, Directory, Table, objset};
use crate::object::ObjectSet;
use crate::{ErrorKind, Result};

/// Object of a volume that holds its data.
const VOLUME_DATA: ObjectId = ObjectId(1);
/// Object of a volume that holds its size.
const VOLUME_PROPERTIES: ObjectId = ObjectId(2);
/// Properties that are kept in the master node.
const MASTER: [&str; 10] = [
    "version",
    "utf8only",
    "normalization",
    "casesensitivity",
    "defaultuserquota",
    "defaultgroupquota",
    "defaultprojectquota",
    "defaultuserobjquota",
    "defaultgroupobjquota",
    "defaultprojectobjquota",
];

/// How a dataset is encrypted, as its properties tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyFacts {
    /// The key object.
    pub object: ObjectId,
    /// Directory of the encryption root.
    pub root: ObjectId,
    /// Number of the suite.
    pub suite: u64,
    /// Number of the key's format.
    pub format: u64,
    /// Iterations for a passphrase.
    pub iterations: u64,
    /// Salt of a passphrase.
    pub salt: u64,
    /// The master key's guid.
    pub guid: u64,
}

/// Where computed properties come from.
pub(super) trait Facts {
    /// Bytes written since the snapshot before, if that can be told.
    fn written(&self) -> Result<Option<u64>>;
    /// A number among the extension fields of the directory.
    fn directory_number(&self, key: &str) -> Result<Option<u64>>;
    /// When a snapshot last came or went.
    fn snapshots_changed(&self) -> Result<Option<u64>>;
    /// Name of the snapshot that the directory was cloned from.
    fn origin(&self) -> Result<Option<String>>;
    /// Names of the heads cloned from a snapshot, ascending.
    fn clones(&self) -> Result<Vec<String>>;
    /// Name of the snapshot before, of the same directory.
    fn previous(&self) -> Result<Option<String>>;
    /// With what an interrupted receive goes on.
    fn resume_token(&self) -> Result<Option<String>>;
    /// How many holds are on a snapshot.
    fn holds(&self) -> Result<u64>;
    /// Guid of the set of IVs.
    fn ivset_guid(&self) -> Result<Option<u64>>;
    /// The snapshots it is redacted for, by guid.
    fn redacted(&self) -> Result<Option<Vec<u64>>>;
    /// Bytes of a volume.
    fn volume_size(&self) -> Result<u64>;
    /// Block size of a volume.
    fn volume_block(&self) -> Result<u64>;
    /// What the master node says of a property.
    fn master(&self, property: &str) -> Result<Option<u64>>;
    /// How it is encrypted.
    fn key(&self) -> Result<Option<KeyFacts>>;
    /// The path of a directory.
    fn path_of(&self, directory: ObjectId) -> Result<String>;
    /// What bounds the growth of the directory and of those above it.
    fn limits(&self) -> Result<Vec<DirectoryLimits>>;
}

/// Facts that are read when they are asked for.
pub(super) struct OnDisk<'a> {
    catalog: &'a Catalog,
    dataset: &'a Dataset,
    set: OnceCell<ObjectSet>,
}

impl<'a> OnDisk<'a> {
    pub fn new(catalog: &'a Catalog, dataset: &'a Dataset) -> Self {
        Self { catalog, dataset, set: OnceCell::new() }
    }

    fn set(&self) -> Result<&ObjectSet> {
        if let Some(set) = self.set.get() {
            return Ok(set);
        }
        let set = self.catalog.sealed_object_set(self.dataset)?;
        Ok(self.set.get_or_init(|| set))
    }

    /// What the dataset holds.
    pub fn kind(&self) -> Result<DatasetKind> {
        objset::kind_of(self.set()?, self.dataset)
    }

    /// Whether it holds neither files nor a volume.
    pub fn is_foreign(&self) -> Result<bool> {
        Ok(super::is_foreign(self.set()?))
    }
}

/// How a directory is encrypted.
pub(super) fn key_of(catalog: &Catalog, directory: &Directory) -> Result<Option<KeyFacts>> {
    Ok(catalog.key_object(directory)?.map(|key| KeyFacts {
        object: key.id,
        root: key.root,
        suite: key.wrapped.suite.id(),
        format: key.format.raw(),
        iterations: key.iterations,
        salt: key.salt,
        guid: key.wrapped.guid,
    }))
}

impl Facts for OnDisk<'_> {
    fn written(&self) -> Result<Option<u64>> {
        match self.catalog.written(self.dataset) {
            Ok(written) => Ok(Some(written)),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn directory_number(&self, key: &str) -> Result<Option<u64>> {
        self.catalog.directory_field(&self.dataset.directory, key)
    }

    fn snapshots_changed(&self) -> Result<Option<u64>> {
        self.catalog.snapshots_changed(&self.dataset.directory)
    }

    fn origin(&self) -> Result<Option<String>> {
        let origin = self.catalog.origin(&self.dataset.directory)?;
        Ok(origin.map(|origin| origin.name.to_string()))
    }

    fn clones(&self) -> Result<Vec<String>> {
        Ok(self.catalog.clones(self.dataset)?.iter().map(ToString::to_string).collect())
    }

    fn previous(&self) -> Result<Option<String>> {
        let previous = self.catalog.previous(self.dataset)?;
        let own = self.dataset.directory.id;
        Ok(previous.filter(|one| one.directory.id == own).map(|one| one.name.to_string()))
    }

    fn resume_token(&self) -> Result<Option<String>> {
        self.catalog.resume_token(self.dataset)
    }

    fn holds(&self) -> Result<u64> {
        Ok(self.catalog.holds(self.dataset)?.len() as u64)
    }

    fn ivset_guid(&self) -> Result<Option<u64>> {
        self.catalog.dataset_field(self.dataset, dsl_dataset::KEY_IVSET_GUID)
    }

    fn redacted(&self) -> Result<Option<Vec<u64>>> {
        self.catalog.dataset_fields(self.dataset, dsl_dataset::KEY_REDACTED_DATASETS)
    }

    fn volume_size(&self) -> Result<u64> {
        match Table::open(self.set()?, VOLUME_PROPERTIES)? {
            Some(table) => Ok(table.number("size")?.unwrap_or(0)),
            None => Ok(0),
        }
    }

    fn volume_block(&self) -> Result<u64> {
        Ok(self.set()?.dnode(VOLUME_DATA)?.block_size())
    }

    fn master(&self, property: &str) -> Result<Option<u64>> {
        let key = match property {
            "version" => String::from_utf8_lossy(master_node::VERSION),
            other => other.into(),
        };
        match Table::open(self.set()?, master_node::OBJECT) {
            Ok(Some(table)) => table.number(&key),
            Ok(None) => Ok(None),
            // A dataset that was never mounted or is being received has no master node yet.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn key(&self) -> Result<Option<KeyFacts>> {
        key_of(self.catalog, &self.dataset.directory)
    }

    fn path_of(&self, directory: ObjectId) -> Result<String> {
        Ok(self.catalog.directory_by_id(directory)?.path)
    }

    fn limits(&self) -> Result<Vec<DirectoryLimits>> {
        let above = self.catalog.ancestors(&self.dataset.directory)?;
        let own: &Directory = &self.dataset.directory;
        Ok(std::iter::once(own).chain(&above).map(|at| (&at.phys).into()).collect())
    }
}

/// What the objects inside of a head or snapshot say. Where they are damaged, or are what a stream wrote that
/// no filesystem has written, they say nothing: the dataset is shown, and can be destroyed, all the same.
struct Inside {
    kind: DatasetKind,
    /// Bytes of the volume, and of its blocks.
    volume: Option<(u64, u64)>,
    master: Vec<(&'static str, u64)>,
}

impl Inside {
    /// `None` if the dataset holds neither files nor a volume.
    fn read(disk: &OnDisk<'_>) -> Result<Option<Self>> {
        let mut inside = Self { kind: DatasetKind::Filesystem, volume: None, master: Vec::new() };
        match inside.look(disk) {
            Ok(is_ours) => Ok(is_ours.then_some(inside)),
            Err(error) if error.is_lasting() => {
                tracing::warn!(dataset = %disk.dataset.name, %error, "not all of it can be shown");
                Ok(Some(inside))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the dataset holds files or a volume.
    fn look(&mut self, disk: &OnDisk<'_>) -> Result<bool> {
        if disk.is_foreign()? {
            return Ok(false);
        }
        self.kind = disk.kind()?;
        match self.kind {
            // Of what was received in part only, so far, nobody looks inside.
            _ if disk.dataset.phys.is_inconsistent() => {}
            DatasetKind::Volume => {
                self.volume = Some((disk.volume_size()?, disk.volume_block()?));
            }
            DatasetKind::Filesystem => {
                for property in MASTER {
                    self.master.extend(disk.master(property)?.map(|value| (property, value)));
                }
                self.master.shrink_to_fit();
            }
        }
        Ok(true)
    }
}

/// What the objects of a head or snapshot say.
#[derive(Debug)]
pub struct DatasetFacts {
    /// It.
    pub dataset: Dataset,
    /// What it holds.
    pub kind: DatasetKind,
    /// The holds on it: tag, and when it was placed (seconds since 1970).
    pub holds: Vec<(String, u64)>,
    /// Its own properties: of a snapshot what stands on it, of a head what stands on its directory.
    pub(super) entries: Entries,
    pub(super) written: Option<u64>,
    pub(super) volume: Option<(u64, u64)>,
    pub(super) master: Vec<(&'static str, u64)>,
    /// Directories of what was cloned from it.
    pub(super) clones: Vec<ObjectId>,
    pub(super) ivset: Option<u64>,
    pub(super) redacted: Option<Vec<u64>>,
}

impl DatasetFacts {
    /// Reads what is to be known of `dataset`; `None` if it holds neither files nor a volume.
    /// `none`: a table without properties.
    pub(super) fn read(
        catalog: &Catalog,
        dataset: Dataset,
        none: &Entries,
    ) -> Result<Option<Self>> {
        let disk = OnDisk::new(catalog, &dataset);
        let Some(inside) = Inside::read(&disk)? else { return Ok(None) };
        let Inside { kind, volume, master } = inside;
        let table = match dataset.is_snapshot() {
            true => dataset.phys.properties,
            false => dataset.directory.phys.properties,
        };
        let entries = match table {
            ObjectId(0) => none.clone(),
            table => read_entries(catalog, table)?,
        };
        let written = disk.written()?;
        let clones = match dataset.is_snapshot() {
            true => catalog.clone_directories(&dataset)?,
            false => Vec::new(),
        };
        let (ivset, redacted) = (disk.ivset_guid()?, disk.redacted()?);
        let holds = catalog.holds(&dataset)?;
        drop(disk);
        Ok(Some(Self {
            dataset,
            kind,
            holds,
            entries,
            written,
            volume,
            master,
            clones,
            ivset,
            redacted,
        }))
    }
}
