//! Opening datasets by name and by object, and listing what hangs off them.
//!
//! Chapter 06, sections 5, 11, 12, 15 and 16. Invariant: a [`Dataset`]'s name, directory and bonus
//! belong together.

use std::sync::Arc;

use cenote_format::bookmark::Bookmark;
use cenote_format::dsl_dataset::{self, DslDataset};
use cenote_format::{ObjectId, ObjectType};

use super::name::{DatasetName, Suffix, check_stored};
use super::names::Names;
use super::{Directory, Table};
use crate::object::ObjectSet;
use crate::{Error, Result};

/// Child of the root directory: what all datasets are clones of.
const ORIGIN: &str = "$ORIGIN";

/// MOS object of the pool's directory of objects.
const OBJECT_DIRECTORY: ObjectId = ObjectId(1);

/// All datasets of a pool. Cheap to clone.
#[derive(Clone)]
pub struct Catalog(Arc<Inner>);

struct Inner {
    mos: ObjectSet,
    pool: String,
    root: ObjectId,
    names: Arc<Names>,
}

/// A head or a snapshot.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Its object in the MOS.
    pub id: ObjectId,
    /// Its name.
    pub name: DatasetName,
    /// Its bonus.
    pub phys: DslDataset,
    /// The directory that owns it.
    pub directory: Arc<Directory>,
    /// It has a ZAP of extension fields.
    pub extended: bool,
}

impl Dataset {
    /// A snapshot (else a head).
    pub fn is_snapshot(&self) -> bool {
        matches!(self.name.suffix(), Suffix::Snapshot(_))
    }
}

impl Catalog {
    /// The datasets of the pool called `pool`, in its meta object set.
    pub fn open(mos: ObjectSet, pool: &str) -> Result<Self> {
        Self::with_names(mos, pool, Arc::default())
    }

    /// The same, with `names` found before.
    pub fn with_names(mos: ObjectSet, pool: &str, names: Arc<Names>) -> Result<Self> {
        let root = match Table::open(&mos, OBJECT_DIRECTORY)? {
            Some(table) => table.number("root_dataset")?,
            None => None,
        };
        let root = root.ok_or_else(|| Error::corrupt("the pool has no root dataset"))?;
        Ok(Self(Arc::new(Inner { mos, pool: pool.to_owned(), root: ObjectId(root), names })))
    }

    /// The datasets of a pool that is being created: none yet.
    pub(crate) fn unwritten(mos: ObjectSet, pool: &str) -> Self {
        let (root, names) = (ObjectId(0), Arc::default());
        Self(Arc::new(Inner { mos, pool: pool.to_owned(), root, names }))
    }

    /// The meta object set.
    pub fn mos(&self) -> &ObjectSet {
        &self.0.mos
    }

    /// Names found before.
    pub(super) fn names(&self) -> &Names {
        &self.0.names
    }

    /// Name of the pool.
    pub fn pool(&self) -> &str {
        &self.0.pool
    }

    /// Object of the root directory.
    pub fn root_id(&self) -> ObjectId {
        self.0.root
    }

    /// The pool's directory of objects.
    pub fn object_directory(&self) -> Result<Table> {
        let missing = || Error::corrupt("the pool has no object directory");
        Table::open(self.mos(), OBJECT_DIRECTORY)?.ok_or_else(missing)
    }

    /// Looks something up in the extension ZAP of a DSL object that has one.
    pub(super) fn extension<T>(
        &self,
        id: ObjectId,
        extended: bool,
        look: impl FnOnce(&Table) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        match extended {
            true => Table::open(self.mos(), id)?.map_or(Ok(None), |table| look(&table)),
            false => Ok(None),
        }
    }

    fn read_phys(&self, id: ObjectId) -> Result<(DslDataset, bool)> {
        let dnode = self.mos().dnode(id)?;
        if dnode.bonus_type != ObjectType::DSL_DATASET {
            let name = dnode.bonus_type.name();
            let reason = format!("'{name}' where a dataset belongs");
            return Err(Error::corrupt(reason).at_object(0, id.0));
        }
        let phys = DslDataset::decode(dnode.bonus())
            .map_err(|error| Error::from(error).at_object(0, id.0))?;
        Ok((phys, dnode.object_type != ObjectType::DSL_DATASET))
    }

    /// The head of a directory that is shared.
    pub(super) fn head_in(&self, directory: &Arc<Directory>) -> Result<Dataset> {
        self.assemble(directory.phys.head_dataset, directory.name(), directory)
    }

    /// The dataset in object `id`, which belongs to `directory` under this name.
    pub(super) fn dataset_in(
        &self,
        id: ObjectId,
        name: DatasetName,
        directory: &Arc<Directory>,
    ) -> Result<Dataset> {
        self.assemble(id, name, directory)
    }

    fn assemble(
        &self,
        id: ObjectId,
        name: DatasetName,
        directory: &Arc<Directory>,
    ) -> Result<Dataset> {
        let (phys, extended) = self.read_phys(id)?;
        if phys.directory != directory.id {
            let reason = format!("'{name}' belongs to another directory");
            return Err(Error::corrupt(reason).at_object(0, id.0));
        }
        Ok(Dataset { id, name, phys, directory: directory.clone(), extended })
    }

    /// The live head of a directory; [`crate::ErrorKind::NotFound`] if it has none.
    pub fn head(&self, directory: &Directory) -> Result<Dataset> {
        let id = directory.phys.head_dataset;
        if id.0 == 0 {
            return Err(Error::not_found(format!("'{}' holds no dataset", directory.path)));
        }
        self.assemble(id, directory.name(), &Arc::new(directory.clone()))
    }

    /// The head or snapshot of that name.
    pub fn dataset(&self, name: &DatasetName) -> Result<Dataset> {
        let head = self.head(&self.directory(name.path())?)?;
        match name.suffix() {
            Suffix::Head => Ok(head),
            Suffix::Snapshot(snapshot) => self.snapshot(&head, snapshot),
            Suffix::Bookmark(_) => Err(Error::invalid(format!("'{name}' is a bookmark"))),
        }
    }

    /// The head or snapshot of that name, parsed first.
    pub fn dataset_named(&self, name: &str) -> Result<Dataset> {
        self.dataset(&DatasetName::parse(name)?)
    }

    /// What the dataset in object `id` says.
    pub fn dataset_phys(&self, id: ObjectId) -> Result<DslDataset> {
        self.phys(id)
    }

    /// The empty snapshot that all datasets are clones of; `None` in pools that have none.
    pub fn common_origin(&self) -> Result<Option<ObjectId>> {
        let root = self.directory_by_id(self.root_id())?;
        let Some(children) = Table::open(self.mos(), root.phys.child_map)? else { return Ok(None) };
        let Some(origin) = children.number(ORIGIN)? else { return Ok(None) };
        let head = self.directory_by_id(ObjectId(origin))?.phys.head_dataset;
        Ok(Some(self.phys(head)?.previous_snapshot).filter(|snapshot| snapshot.0 != 0))
    }

    /// What shares blocks with a dataset and is younger: the snapshot or head after it, and the oldest
    /// snapshot, or else the head, of each clone.
    pub fn successors_of(&self, id: ObjectId, phys: &DslDataset) -> Result<Vec<ObjectId>> {
        let next = Some(phys.next_snapshot).filter(|next| next.0 != 0);
        let mut found: Vec<ObjectId> = next.into_iter().collect();
        if phys.children <= 1 {
            return Ok(found);
        }
        let Some(clones) = Table::open(self.mos(), phys.next_clones)? else {
            let reason = "a snapshot with clones does not list them";
            return Err(Error::corrupt(reason).at_object(0, id.0));
        };
        found.extend(clones.numbers()?.into_iter().map(|(_, clone)| ObjectId(clone)));
        Ok(found)
    }

    /// The dataset in object `id`, with its name found out.
    pub fn dataset_by_id(&self, id: ObjectId) -> Result<Dataset> {
        let (phys, extended) = self.read_phys(id)?;
        let directory = Arc::new(self.directory_by_id(phys.directory)?);
        let mut name = directory.name();
        if directory.phys.head_dataset != id {
            let (head, _) = self.read_phys(directory.phys.head_dataset)?;
            let snapshot = match Table::open(self.mos(), head.snapshot_names)? {
                Some(table) => self.names().of(&table, head.snapshot_names, id.0)?,
                None => None,
            };
            let missing = || Error::corrupt("no dataset lists this snapshot").at_object(0, id.0);
            let snapshot = snapshot.ok_or_else(missing)?;
            check_stored(&snapshot, id)?;
            name = name.snapshot(snapshot);
        }
        Ok(Dataset { id, name, phys, directory, extended })
    }

    /// The snapshot of `head` called `name`.
    pub fn snapshot(&self, head: &Dataset, name: &str) -> Result<Dataset> {
        let full = head.name.snapshot(name);
        let id = match Table::open(self.mos(), head.phys.snapshot_names)? {
            Some(table) if head.phys.flags & dsl_dataset::FLAG_CASE_INSENSITIVE != 0 => {
                table.number_ignoring_case(name)?
            }
            Some(table) => table.number(name)?,
            None => None,
        };
        let id = id.ok_or_else(|| Error::not_found(format!("'{full}' does not exist")))?;
        self.names().note(head.phys.snapshot_names, id, name);
        self.assemble(ObjectId(id), full, &head.directory)
    }

    /// The snapshots of `head`, oldest first, temporary ones left out.
    pub fn snapshots(&self, head: &Dataset) -> Result<Vec<Dataset>> {
        let Some(table) = Table::open(self.mos(), head.phys.snapshot_names)? else {
            return Ok(Vec::new());
        };
        let mut snapshots = Vec::new();
        for (name, id) in table.numbers()? {
            if !super::is_hidden(&name) {
                check_stored(&name, ObjectId(id))?;
                let name = head.name.snapshot(name);
                snapshots.push(self.assemble(ObjectId(id), name, &head.directory)?);
            }
        }
        snapshots.sort_by(|a, b| {
            let key = |dataset: &Dataset| (dataset.phys.creation_txg, dataset.name.to_string());
            key(a).cmp(&key(b))
        });
        Ok(snapshots)
    }

    /// One number among the extension fields of a dataset.
    pub fn dataset_field(&self, dataset: &Dataset, key: &str) -> Result<Option<u64>> {
        self.extension(dataset.id, dataset.extended, |table| table.number(key))
    }

    /// An array of numbers among the extension fields of a dataset.
    pub fn dataset_fields(&self, dataset: &Dataset, key: &str) -> Result<Option<Vec<u64>>> {
        self.extension(dataset.id, dataset.extended, |table| table.numbers_of(key))
    }

    /// Features that the dataset itself activates, by guid.
    pub fn dataset_features(&self, dataset: &Dataset) -> Result<Vec<&'static str>> {
        let per_dataset = cenote_format::feature::Flags::PER_DATASET;
        let names = self.extension(dataset.id, dataset.extended, |table| {
            Ok(Some(table.entries()?.into_iter().map(|(name, _)| name).collect::<Vec<_>>()))
        })?;
        Ok(names
            .unwrap_or_default()
            .iter()
            .filter_map(|name| cenote_format::feature::by_guid(name))
            .filter(|feature| feature.flags.contains(per_dataset))
            .map(|feature| feature.guid)
            .collect())
    }

    /// The bookmarks of `head`, oldest first.
    pub fn bookmarks(&self, head: &Dataset) -> Result<Vec<(DatasetName, Bookmark)>> {
        let id = self.dataset_field(head, dsl_dataset::KEY_BOOKMARKS)?;
        let Some(table) = Table::open(self.mos(), ObjectId(id.unwrap_or(0)))? else {
            return Ok(Vec::new());
        };
        let mut bookmarks = Vec::new();
        for (name, value) in table.entries()? {
            let bookmark = Bookmark::from_words(&value.as_u64s().unwrap_or_default())?;
            bookmarks.push((head.name.bookmark(name), bookmark));
        }
        bookmarks.sort_by(|a, b| (a.1.creation_txg, &a.0).cmp(&(b.1.creation_txg, &b.0)));
        Ok(bookmarks)
    }

    /// The bookmark of that name.
    pub fn bookmark(&self, name: &DatasetName) -> Result<Bookmark> {
        let head = self.head(&self.directory(name.path())?)?;
        let found = self.bookmarks(&head)?.into_iter().find(|(found, _)| found == name);
        found
            .map(|(_, bookmark)| bookmark)
            .ok_or_else(|| Error::not_found(format!("'{name}' does not exist")))
    }

    /// The holds on a snapshot: tag, and when it was placed (seconds since 1970), in their table's
    /// order.
    pub fn holds(&self, snapshot: &Dataset) -> Result<Vec<(String, u64)>> {
        match Table::open(self.mos(), snapshot.phys.holds)? {
            Some(table) => table.numbers(),
            None => Ok(Vec::new()),
        }
    }

    /// The heads cloned from a snapshot, by name; also what a receive fills.
    pub fn clones(&self, snapshot: &Dataset) -> Result<Vec<DatasetName>> {
        let mut clones = Vec::new();
        for id in self.clone_directories(snapshot)? {
            clones.push(self.directory_by_id(id)?.name());
        }
        clones.sort();
        Ok(clones)
    }

    /// The directories of the heads cloned from a snapshot.
    pub(super) fn clone_directories(&self, snapshot: &Dataset) -> Result<Vec<ObjectId>> {
        let Some(table) = Table::open(self.mos(), snapshot.phys.next_clones)? else {
            return Ok(Vec::new());
        };
        let heads = table.numbers()?.into_iter();
        heads.map(|(_, id)| Ok(self.phys(ObjectId(id))?.directory)).collect()
    }

    /// The snapshot a directory was cloned from; `None` for ordinary datasets.
    pub fn origin(&self, directory: &Directory) -> Result<Option<Dataset>> {
        if directory.phys.origin.0 == 0 {
            return Ok(None);
        }
        let origin = self.dataset_by_id(directory.phys.origin)?;
        // The common origin of all ordinary datasets is an empty snapshot in `$ORIGIN`.
        Ok(Some(origin).filter(|origin| !super::is_hidden(origin.directory.component())))
    }

    /// The dataset before this one: its previous snapshot, or a clone's origin.
    pub fn previous(&self, dataset: &Dataset) -> Result<Option<Dataset>> {
        match dataset.phys.previous_snapshot {
            ObjectId(0) => Ok(None),
            id => self.dataset_by_id(id).map(Some),
        }
    }

    /// A bonus without its name, for walks along the chain of snapshots.
    pub(super) fn phys(&self, id: ObjectId) -> Result<DslDataset> {
        self.read_phys(id).map(|(phys, _)| phys)
    }
}
