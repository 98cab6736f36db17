//! All datasets of a pool as they were at one moment, in memory.
//!
//! Invariant: immutable; looking something up reads no device and waits for nobody. What follows
//! from other datasets (inherited properties, what is available, names of origins and clones) is
//! never stored but found when it is asked for, so that an entry is out of date only when objects of
//! its own were written. [`super::InventoryReader`] makes the next one.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::bookmark::Bookmark;
use cenote_format::delegation::Key;
use cenote_format::{ObjectId, Txg, dsl_directory};

use super::allowance::DirectoryLimits;
use super::computed::of_bookmark;
use super::facts::{DatasetFacts, Facts, KeyFacts};
use super::properties::{Entries, PropertyValue, Source, Subject, Surroundings, all_of_bookmark};
use super::resume_token::TEMPORARY;
use super::shared_map::SharedMap;
use super::snapshots::Snapshots;
use super::{DatasetKind, DatasetName, Directory, Principal, PrincipalUsage, Suffix};
use crate::{Error, Result};

/// The path of a directory; in order, what is below it follows it at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Path(pub Arc<str>);

impl Path {
    pub fn new(path: &str) -> Self {
        Self(path.into())
    }
}

impl Ord for Path {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |byte: u8| if byte == b'/' { 0 } else { byte };
        self.0.bytes().map(rank).cmp(other.0.bytes().map(rank))
    }
}

impl PartialOrd for Path {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Who uses how much of a filesystem.
#[derive(Clone, Debug)]
pub enum Usage {
    /// So much.
    Known(Arc<BTreeMap<Principal, PrincipalUsage>>),
    /// It could not be read.
    Unknown(Error),
    /// By more people than are kept in memory.
    TooMany,
}

/// A bookmark.
#[derive(Debug)]
pub(super) struct BookmarkFacts {
    pub name: DatasetName,
    pub bookmark: Bookmark,
    /// The snapshots it is redacted for, by guid.
    pub redaction: Option<Vec<u64>>,
}

/// A directory with its head, snapshots and bookmarks.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The directory.
    pub directory: Arc<Directory>,
    /// Permissions given on it.
    pub permissions: Arc<BTreeMap<Key, Vec<String>>>,
    /// Who uses how much of the head.
    pub usage: Usage,
    /// Its properties.
    pub(super) entries: Entries,
    pub(super) head: Option<Arc<DatasetFacts>>,
    pub(super) snapshots: Snapshots,
    /// Oldest first.
    pub(super) bookmarks: Arc<Vec<BookmarkFacts>>,
    /// The table of bookmarks; 0: none.
    pub(super) bookmark_table: ObjectId,
    pub(super) counts: [Option<u64>; 2],
    pub(super) snapshots_changed: Option<u64>,
    pub(super) resume_token: Option<String>,
    /// The directory below it that a receive into it fills.
    pub(super) filled: Option<ObjectId>,
    pub(super) key: Option<KeyFacts>,
    /// The directory of the snapshot it was cloned from, and when that was taken.
    pub(super) origin_in: Option<(ObjectId, Txg)>,
    /// What it was read from, beside what belongs to single snapshots.
    pub(super) objects: Vec<(ObjectId, super::survey::Part)>,
}

impl Entry {
    /// The directory of its encryption root.
    pub fn encryption_root(&self) -> Option<ObjectId> {
        self.key.map(|key| key.root)
    }

    /// Its head, if it has one that is shown.
    pub fn head(&self) -> Option<&Arc<DatasetFacts>> {
        self.head.as_ref()
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    pub(super) entries: SharedMap<Path, Arc<Entry>>,
    pub(super) paths: SharedMap<ObjectId, Path>,
}

#[derive(Clone, Copy)]
enum What<'a> {
    Dataset(&'a DatasetFacts),
    Bookmark(&'a BookmarkFacts),
}

/// A head, snapshot or bookmark of an [`Inventory`].
#[derive(Clone, Copy)]
pub struct Known<'a> {
    inventory: &'a Inventory,
    entry: &'a Entry,
    what: What<'a>,
}

impl Inventory {
    /// Everything at and below `top` (a filesystem or volume) in the order of `list -t all`: each
    /// head, its snapshots by age, its bookmarks, then what is below it.
    pub fn below<'a>(&'a self, top: &str) -> impl Iterator<Item = Known<'a>> + use<'a> {
        let length = top.len();
        let top = Path::new(top);
        let from = self.entries.from(&top);
        let is_in = move |path: &Path| match path.0.get(..length) {
            Some(start) if *start == *top.0 => {
                path.0.len() == length || path.0.as_bytes().get(length) == Some(&b'/')
            }
            _ => false,
        };
        from.take_while(move |(path, _)| is_in(path)).flat_map(|(_, entry)| self.of(entry))
    }

    /// Everything, in that order.
    pub fn all(&self) -> impl Iterator<Item = Known<'_>> {
        self.entries.values().flat_map(|entry| self.of(entry))
    }

    /// The filesystems and volumes, in that order.
    pub fn heads(&self) -> impl Iterator<Item = Known<'_>> {
        self.entries.values().filter_map(|entry| self.head_of(entry))
    }

    /// How many filesystems and volumes there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn head_of<'a>(&'a self, entry: &'a Arc<Entry>) -> Option<Known<'a>> {
        let what = What::Dataset(entry.head.as_ref()?);
        Some(Known { inventory: self, entry, what })
    }

    fn of<'a>(&'a self, entry: &'a Arc<Entry>) -> impl Iterator<Item = Known<'a>> + use<'a> {
        let known = move |what| Known { inventory: self, entry, what };
        let snapshots = entry.snapshots.iter().map(move |one| known(What::Dataset(one)));
        let bookmarks = entry.bookmarks.iter().map(move |one| known(What::Bookmark(one)));
        let all = self.head_of(entry).into_iter().chain(snapshots).chain(bookmarks);
        all.filter(|_| entry.head.is_some())
    }

    /// The head of the directory at `path`, its snapshots by age and its bookmarks.
    pub fn of_directory<'a>(&'a self, path: &str) -> impl Iterator<Item = Known<'a>> + use<'a> {
        self.entry(path).into_iter().flat_map(|entry| self.of(entry))
    }

    /// The directory at `path`.
    pub fn entry(&self, path: &str) -> Option<&Arc<Entry>> {
        self.entries.get(&Path::new(path))
    }

    /// The directory in object `id`.
    pub fn entry_by_id(&self, id: ObjectId) -> Option<&Arc<Entry>> {
        self.entries.get(self.paths.get(&id)?)
    }

    /// The name of the directory `id` if a receive into the dataset above it fills it.
    fn name_of_filled(&self, id: ObjectId) -> Option<String> {
        let found = self.entries.iter().find(|(_, entry)| entry.filled == Some(id));
        found.map(|(path, _)| format!("{}/{TEMPORARY}", path.0))
    }

    /// The head, snapshot or bookmark of that name.
    pub fn find(&self, name: &str) -> Option<Known<'_>> {
        let Some(at) = name.find(['@', '#']) else {
            return self.head_of(self.entry(name)?);
        };
        let (path, rest) = (name.get(..at)?, name.get(at + 1..)?);
        let entry = self.entry(path)?;
        let what = match name.as_bytes().get(at) {
            Some(b'@') => What::Dataset(entry.snapshots.get(rest)?),
            _ => {
                let named = |one: &&BookmarkFacts| match one.name.suffix() {
                    Suffix::Bookmark(name) => name == rest,
                    _ => false,
                };
                What::Bookmark(entry.bookmarks.iter().find(named)?)
            }
        };
        entry.head.as_ref()?;
        Some(Known { inventory: self, entry, what })
    }

    /// The directory and those above it, nearest first.
    pub fn upwards(&self, path: &str) -> impl Iterator<Item = &Arc<Entry>> {
        let mut rest = Some(path.to_owned());
        std::iter::from_fn(move || {
            let path = rest.take()?;
            rest = path.rsplit_once('/').map(|(above, _)| above.to_owned());
            self.entry(&path)
        })
    }
}

impl<'a> Known<'a> {
    /// Its name.
    pub fn name(&self) -> &'a DatasetName {
        match self.what {
            What::Dataset(facts) => &facts.dataset.name,
            What::Bookmark(bookmark) => &bookmark.name,
        }
    }

    /// What a head or snapshot holds; `None`: it is a bookmark.
    pub fn facts(&self) -> Option<&'a DatasetFacts> {
        match self.what {
            What::Dataset(facts) => Some(facts),
            What::Bookmark(_) => None,
        }
    }

    /// The directory it belongs to.
    pub fn entry(&self) -> &'a Entry {
        self.entry
    }

    /// In which group it was made.
    pub fn created_in(&self) -> u64 {
        match self.what {
            What::Dataset(facts) => facts.dataset.phys.creation_txg.0,
            What::Bookmark(bookmark) => bookmark.bookmark.creation_txg.0,
        }
    }

    /// One property; `None` if it has none of that name. Those whose names carry an argument are
    /// not known here.
    ///
    /// # Errors
    /// If a table holds a value of another kind.
    pub fn property(&self, around: &Surroundings<'_>, name: &str) -> Result<Option<PropertyValue>> {
        match self.what {
            What::Dataset(facts) => around.get(&self.subject(facts), name).unwrap_or(Ok(None)),
            What::Bookmark(own) => {
                Ok(cenote_format::property::dataset(name).and_then(|property| {
                    of_bookmark(&own.bookmark, own.redaction.as_deref(), property)
                }))
            }
        }
    }

    /// Every visible native property that has a value, then the user properties by name.
    ///
    /// # Errors
    /// If a table holds a value of another kind.
    pub fn properties(&self, around: &Surroundings<'_>) -> Result<Vec<PropertyValue>> {
        match self.what {
            What::Dataset(facts) => around.all(&self.subject(facts)),
            What::Bookmark(own) => Ok(all_of_bookmark(&own.bookmark, own.redaction.as_deref())),
        }
    }

    fn subject(&self, facts: &'a DatasetFacts) -> Subject<'a> {
        let path = &self.entry.directory.path;
        let mut levels = Vec::new();
        if facts.dataset.is_snapshot() {
            if !facts.entries.is_empty() {
                levels.push((Source::Local, facts.entries.clone()));
            }
            levels.push((Source::Inherited(path.clone()), self.entry.entries.clone()));
        } else {
            levels.push((Source::Local, self.entry.entries.clone()));
        }
        let above = self.inventory.upwards(path).skip(1);
        levels.extend(
            above.map(|entry| {
                (Source::Inherited(entry.directory.path.clone()), entry.entries.clone())
            }),
        );
        let facts_of = InMemory { inventory: self.inventory, entry: self.entry, facts };
        Subject { dataset: &facts.dataset, kind: facts.kind, facts: Box::new(facts_of), levels }
    }

    /// Those of [`Self::properties`] whose names are `wanted`, in the same order.
    ///
    /// # Errors
    /// If a table holds a value of another kind.
    pub fn chosen(
        &self,
        around: &Surroundings<'_>,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<PropertyValue>> {
        match self.what {
            What::Dataset(facts) => around.chosen(&self.subject(facts), wanted),
            What::Bookmark(own) => {
                let mut all = all_of_bookmark(&own.bookmark, own.redaction.as_deref());
                all.retain(|value| wanted(&value.name));
                Ok(all)
            }
        }
    }

    /// What it holds; `None`: it is a bookmark.
    pub fn kind(&self) -> Option<DatasetKind> {
        self.facts().map(|facts| facts.kind)
    }
}

/// Facts of one dataset of an inventory.
struct InMemory<'a> {
    inventory: &'a Inventory,
    entry: &'a Entry,
    facts: &'a DatasetFacts,
}

impl Facts for InMemory<'_> {
    fn written(&self) -> Result<Option<u64>> {
        Ok(self.facts.written)
    }

    fn directory_number(&self, key: &str) -> Result<Option<u64>> {
        let [filesystems, snapshots] = self.entry.counts;
        Ok(match key {
            dsl_directory::KEY_FILESYSTEM_COUNT => filesystems,
            dsl_directory::KEY_SNAPSHOT_COUNT => snapshots,
            _ => None,
        })
    }

    fn snapshots_changed(&self) -> Result<Option<u64>> {
        Ok(self.entry.snapshots_changed)
    }

    fn origin(&self) -> Result<Option<String>> {
        let id = self.entry.directory.phys.origin;
        let Some((home, txg)) = self.entry.origin_in else { return Ok(None) };
        let home = self.inventory.entry_by_id(home);
        let snapshot = home.and_then(|home| home.snapshots.taken_in(txg, id));
        Ok(snapshot.map(|snapshot| snapshot.dataset.name.to_string()))
    }

    fn clones(&self) -> Result<Vec<String>> {
        let name = |id: &ObjectId| match self.inventory.paths.get(id) {
            Some(path) => Some(path.0.to_string()),
            None => self.inventory.name_of_filled(*id),
        };
        let mut names: Vec<String> = self.facts.clones.iter().filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    fn previous(&self) -> Result<Option<String>> {
        let phys = &self.facts.dataset.phys;
        // Several may be of one group: of the dataset itself and of what was promoted.
        let found =
            self.entry.snapshots.taken_in(phys.previous_snapshot_txg, phys.previous_snapshot);
        Ok(found.map(|one| one.dataset.name.to_string()))
    }

    fn resume_token(&self) -> Result<Option<String>> {
        Ok(self.entry.resume_token.clone().filter(|_| !self.facts.dataset.is_snapshot()))
    }

    fn holds(&self) -> Result<u64> {
        Ok(self.facts.holds.len() as u64)
    }

    fn ivset_guid(&self) -> Result<Option<u64>> {
        Ok(self.facts.ivset)
    }

    fn redacted(&self) -> Result<Option<Vec<u64>>> {
        Ok(self.facts.redacted.clone())
    }

    fn volume_size(&self) -> Result<u64> {
        Ok(self.facts.volume.map_or(0, |(size, _)| size))
    }

    fn volume_block(&self) -> Result<u64> {
        Ok(self.facts.volume.map_or(0, |(_, block)| block))
    }

    fn master(&self, property: &str) -> Result<Option<u64>> {
        let found = self.facts.master.iter().find(|(name, _)| *name == property);
        Ok(found.map(|(_, value)| *value))
    }

    fn key(&self) -> Result<Option<KeyFacts>> {
        Ok(self.entry.key)
    }

    fn path_of(&self, directory: ObjectId) -> Result<String> {
        let path = self.inventory.paths.get(&directory);
        let missing = || Error::not_found(format!("no dataset is in directory {directory}"));
        path.map(|path| path.0.to_string()).ok_or_else(missing)
    }

    fn limits(&self) -> Result<Vec<DirectoryLimits>> {
        let levels = self.inventory.upwards(&self.entry.directory.path);
        Ok(levels.map(|entry| (&entry.directory.phys).into()).collect())
    }
}
