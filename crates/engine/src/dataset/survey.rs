//! Making the next [`Inventory`] of the one before: what was written since is read again, the rest is
//! shared.
//!
//! Invariant: every object that an entry was read from is in the index of owners, so that whatever a
//! group wrote leads to the entries that are out of date. After a reading that failed everything is
//! read again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cenote_format::{ObjectId, dsl_dataset, dsl_directory};

use super::directory::is_hidden;
use super::facts::{DatasetFacts, key_of};
use super::inventory::{BookmarkFacts, Entry, Inventory, Path, Usage};
use super::name::check_stored;
use super::properties::{Entries, read_entries};
use super::{Catalog, Dataset, DatasetKind, Directory, Keys, Table};
use crate::Result;

/// Most people whose usage of one filesystem is kept in memory.
const PEOPLE_MAX: usize = 1 << 16;
/// Most objects that are told apart; beyond that, everything counts as changed.
const OBJECTS_MAX: usize = 1 << 20;

/// Objects of the meta object set that groups wrote.
#[derive(Clone, Debug)]
pub enum Changed {
    /// Any.
    All,
    /// These.
    Objects(BTreeSet<ObjectId>),
}

impl Default for Changed {
    fn default() -> Self {
        Self::Objects(BTreeSet::new())
    }
}

impl Changed {
    /// These were written, too.
    pub fn add(&mut self, objects: impl IntoIterator<Item = ObjectId>) {
        let Self::Objects(known) = self else { return };
        known.extend(objects);
        if known.len() > OBJECTS_MAX {
            *self = Self::All;
        }
    }

    /// Whether this object may have been written.
    pub fn has(&self, object: ObjectId) -> bool {
        match self {
            Self::All => true,
            Self::Objects(objects) => objects.contains(&object),
        }
    }
}

/// What of a directory an object tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Itself, its head, properties, permissions or key.
    Own,
    /// What is below it.
    Children,
    /// Which snapshots there are.
    Snapshots,
    /// One of its snapshots.
    Snapshot(ObjectId),
    /// Its bookmarks.
    Bookmarks,
}

/// What of a directory is out of date.
#[derive(Clone, Debug, Default)]
struct Outdated {
    children: bool,
    list: bool,
    bookmarks: bool,
    snapshots: BTreeSet<ObjectId>,
}

/// Reads inventories.
#[derive(Default)]
pub struct InventoryReader {
    current: Arc<Inventory>,
    /// The directory that each object belongs to.
    owners: HashMap<ObjectId, (ObjectId, Part)>,
    /// What is below each directory.
    children: HashMap<ObjectId, HashMap<ObjectId, String>>,
    /// `current` and the index say what was on the disks.
    whole: bool,
    /// A snapshot with clones may belong to another directory than before.
    moved: bool,
    /// The table of a dataset without properties.
    none: Entries,
}

impl InventoryReader {
    /// The inventory of the datasets in `catalog`, where the objects `changed` were written since the
    /// last one was made. `rekeyed`: so were keys loaded or unloaded.
    ///
    /// # Errors
    /// What the disks say; then the next one is read from the beginning.
    pub fn next(
        &mut self,
        catalog: &Catalog,
        keys: &dyn Keys,
        changed: &Changed,
        rekeyed: bool,
    ) -> Result<Arc<Inventory>> {
        let whole = std::mem::replace(&mut self.whole, false);
        let next = match changed {
            Changed::Objects(objects) if whole => self.follow(catalog, keys, objects, rekeyed)?,
            _ => Some(self.read_all(catalog, keys)?),
        };
        if let Some(mut next) = next {
            if std::mem::take(&mut self.moved) {
                find_origins(catalog, &mut next)?;
            }
            self.current = Arc::new(next);
        }
        self.whole = true;
        Ok(self.current.clone())
    }

    /// The last one.
    pub fn current(&self) -> &Arc<Inventory> {
        &self.current
    }

    fn read_all(&mut self, catalog: &Catalog, keys: &dyn Keys) -> Result<Inventory> {
        self.owners.clear();
        self.children.clear();
        let mut next = Inventory::default();
        self.read_tree(catalog, keys, &catalog.root()?, &mut next, &mut HashSet::new())?;
        Ok(next)
    }

    /// Reads a directory that is not in `next`, and all below it, and says that they were `read`.
    fn read_tree(
        &mut self,
        catalog: &Catalog,
        keys: &dyn Keys,
        top: &Directory,
        next: &mut Inventory,
        read: &mut HashSet<ObjectId>,
    ) -> Result<()> {
        for directory in catalog.walk(top)? {
            let (id, path) = (directory.id, Path::new(&directory.path));
            if directory.path != top.path {
                let below = self.children.entry(directory.phys.parent).or_default();
                below.insert(id, directory.component().to_owned());
            }
            let entry = self.read_entry(catalog, keys, directory, None, &Outdated::default())?;
            read.insert(id);
            next.paths.insert(id, path.clone());
            next.entries.insert(path, Arc::new(entry));
        }
        Ok(())
    }

    /// What follows from `objects` having been written; `None`: nothing.
    fn follow(
        &mut self,
        catalog: &Catalog,
        keys: &dyn Keys,
        objects: &BTreeSet<ObjectId>,
        rekeyed: bool,
    ) -> Result<Option<Inventory>> {
        let mut outdated: HashMap<ObjectId, Outdated> = HashMap::new();
        for (directory, part) in objects.iter().filter_map(|object| self.owners.get(object)) {
            let of = outdated.entry(*directory).or_default();
            match part {
                Part::Own => {}
                Part::Children => of.children = true,
                Part::Snapshots => of.list = true,
                Part::Snapshot(id) => drop(of.snapshots.insert(*id)),
                Part::Bookmarks => of.bookmarks = true,
            }
        }
        if outdated.is_empty() && !rekeyed {
            return Ok(None);
        }
        let mut next = (*self.current).clone();
        let mut parents: Vec<(Path, ObjectId)> = outdated
            .iter()
            .filter(|(_, of)| of.children)
            .filter_map(|(id, _)| Some((next.paths.get(id)?.clone(), *id)))
            .collect();
        parents.sort();
        let mut read = HashSet::new();
        for (path, id) in parents {
            // It may have come with what is above it, or gone.
            if !read.contains(&id) && next.paths.get(&id) == Some(&path) {
                self.follow_children(catalog, keys, id, &mut next, &mut read)?;
            }
        }
        for (id, of) in &outdated {
            let Some(path) = next.paths.get(id).filter(|_| !read.contains(id)).cloned() else {
                continue;
            };
            let directory = catalog.read_directory(*id, path.0.to_string())?;
            let before = next.entries.get(&path).cloned();
            let entry = self.read_entry(catalog, keys, directory, before.as_deref(), of)?;
            next.entries.insert(path, Arc::new(entry));
        }
        if rekeyed {
            for entry in next.entries.values_mut().filter(|entry| entry.key.is_some()) {
                if let Some(head) = entry.head.clone() {
                    Arc::make_mut(entry).usage = read_usage(catalog, keys, &head);
                }
            }
        }
        Ok(Some(next))
    }

    /// Compares what is below a directory with what is known; directories that came are `read`.
    fn follow_children(
        &mut self,
        catalog: &Catalog,
        keys: &dyn Keys,
        id: ObjectId,
        next: &mut Inventory,
        read: &mut HashSet<ObjectId>,
    ) -> Result<()> {
        let Some(path) = next.paths.get(&id).cloned() else { return Ok(()) };
        let parent = catalog.read_directory(id, path.0.to_string())?;
        let mut now = HashMap::new();
        if let Some(table) = Table::open(catalog.mos(), parent.phys.child_map)? {
            for (name, child) in table.numbers()? {
                check_stored(&name, ObjectId(child))?;
                if !is_hidden(&name) {
                    now.insert(ObjectId(child), name);
                }
            }
        }
        let known = self.children.get(&id).cloned().unwrap_or_default();
        for (child, name) in &known {
            if now.get(child) != Some(name) {
                self.forget_tree(&format!("{}/{name}", path.0), next);
            }
        }
        for (child, name) in &now {
            if known.get(child) == Some(name) {
                continue;
            }
            // It may be known by the name that it had.
            if let Some(old) = next.paths.get(child).cloned() {
                self.forget_tree(&old.0, next);
            }
            let top = catalog.child(&parent, name)?;
            self.read_tree(catalog, keys, &top, next, read)?;
        }
        self.children.insert(id, now);
        Ok(())
    }

    /// Takes a directory and all below it out.
    fn forget_tree(&mut self, path: &str, next: &mut Inventory) {
        let top = Path::new(path);
        let below = format!("{path}/");
        let gone: Vec<Path> = next
            .entries
            .range(top..)
            .map(|(path, _)| path.clone())
            .take_while(|at| *at.0 == *path || at.0.starts_with(&below))
            .collect();
        for path in gone {
            let Some(entry) = next.entries.remove(&path) else { continue };
            self.disown(&entry);
            entry.snapshots.iter().for_each(|one| self.disown_snapshot(one));
            self.children.remove(&entry.directory.id);
            next.paths.remove(&entry.directory.id);
        }
    }

    fn disown(&mut self, entry: &Entry) {
        for (object, _) in &entry.objects {
            self.owners.remove(object);
        }
    }

    fn disown_snapshot(&mut self, snapshot: &DatasetFacts) {
        for object in objects_of(&snapshot.dataset) {
            self.owners.remove(&object);
        }
    }

    /// Reads a directory, `before` being what was known of it, of which beside itself only what is
    /// `outdated` is read again.
    fn read_entry(
        &mut self,
        catalog: &Catalog,
        keys: &dyn Keys,
        directory: Directory,
        before: Option<&Entry>,
        outdated: &Outdated,
    ) -> Result<Entry> {
        let (id, phys) = (directory.id, directory.phys.clone());
        let directory = Arc::new(directory);
        if let Some(before) = before {
            self.disown(before);
        }
        let mut objects = vec![(id, Part::Own), (phys.child_map, Part::Children)];
        let entries = match phys.properties {
            ObjectId(0) => self.none.clone(),
            table => read_entries(catalog, table)?,
        };
        objects.extend([phys.properties, phys.delegation].map(|table| (table, Part::Own)));
        let permissions = catalog.permissions(&directory)?;
        if let Some(table) = Table::open(catalog.mos(), phys.delegation)? {
            let tables = table.numbers()?.into_iter();
            objects.extend(tables.map(|(_, table)| (ObjectId(table), Part::Own)));
        }
        let key = key_of(catalog, &directory)?;
        objects.extend(key.map(|key| (key.object, Part::Own)));
        let field = |key: &str| catalog.directory_field(&directory, key);
        let counts = [
            field(dsl_directory::KEY_FILESYSTEM_COUNT)?,
            field(dsl_directory::KEY_SNAPSHOT_COUNT)?,
        ];
        let origin_in = match phys.origin {
            ObjectId(0) => None,
            origin => Some(catalog.phys(origin)?.directory),
        };
        let mut entry = Entry {
            permissions: Arc::new(permissions),
            usage: Usage::Known(Arc::default()),
            entries,
            head: None,
            snapshots: Arc::default(),
            bookmarks: Arc::default(),
            bookmark_table: ObjectId(0),
            counts,
            snapshots_changed: catalog.snapshots_changed(&directory)?,
            resume_token: None,
            key,
            origin_in,
            objects: Vec::new(),
            directory,
        };
        if phys.head_dataset.0 != 0 {
            self.read_head(catalog, keys, &mut entry, before, outdated, &mut objects)?;
        }
        objects.retain(|(object, _)| object.0 != 0);
        self.owners.extend(objects.iter().map(|(object, part)| (*object, (id, *part))));
        entry.objects = objects;
        Ok(entry)
    }

    /// The head of a directory, with its snapshots and bookmarks.
    fn read_head(
        &mut self,
        catalog: &Catalog,
        keys: &dyn Keys,
        entry: &mut Entry,
        before: Option<&Entry>,
        outdated: &Outdated,
        objects: &mut Vec<(ObjectId, Part)>,
    ) -> Result<()> {
        let head = catalog.head_in(&entry.directory)?;
        let table = catalog.dataset_field(&head, dsl_dataset::KEY_BOOKMARKS)?;
        entry.bookmark_table = ObjectId(table.unwrap_or(0));
        objects.extend([
            (head.id, Part::Own),
            (head.phys.snapshot_names, Part::Snapshots),
            (entry.bookmark_table, Part::Bookmarks),
        ]);
        entry.resume_token = catalog.resume_token(&head)?;
        // What is read of the same pointer is the same, however the dataset is called.
        let known = before.filter(|before| {
            before.head.as_ref().is_some_and(|old| old.dataset.phys.pointer == head.phys.pointer)
        });
        let facts = DatasetFacts::read(catalog, head.clone(), &self.none)?.map(Arc::new);
        entry.usage = match (&facts, before.map(|before| &before.usage), known) {
            (_, Some(Usage::TooMany), _) => Usage::TooMany,
            (_, Some(usage @ Usage::Known(_)), Some(_)) => usage.clone(),
            (Some(facts), ..) => read_usage(catalog, keys, facts),
            (None, ..) => Usage::Known(Arc::default()),
        };
        entry.head = facts;
        let unchanged = before
            .filter(|before| !outdated.bookmarks && before.bookmark_table == entry.bookmark_table);
        entry.bookmarks = match unchanged {
            Some(before) => before.bookmarks.clone(),
            None => Arc::new(read_bookmarks(catalog, &head)?),
        };
        entry.snapshots = match before {
            Some(before) if !outdated.list && outdated.snapshots.is_empty() => {
                before.snapshots.clone()
            }
            Some(before) if !outdated.list => {
                self.read_some(catalog, entry, before, &outdated.snapshots)?
            }
            _ => self.read_list(catalog, entry, &head, before, &outdated.snapshots)?,
        };
        Ok(())
    }

    /// The snapshots of a directory that has the same as before, of which `some` are read again.
    fn read_some(
        &mut self,
        catalog: &Catalog,
        entry: &Entry,
        before: &Entry,
        some: &BTreeSet<ObjectId>,
    ) -> Result<Arc<Vec<Arc<DatasetFacts>>>> {
        let mut all = (*before.snapshots).clone();
        for slot in all.iter_mut().filter(|one| some.contains(&one.dataset.id)) {
            let name = slot.dataset.name.clone();
            self.disown_snapshot(slot);
            let dataset = catalog.dataset_in(slot.dataset.id, name, &entry.directory)?;
            if let Some(facts) = self.read_snapshot(catalog, dataset)? {
                *slot = facts;
            }
        }
        Ok(Arc::new(all))
    }

    /// The snapshots that `head` lists, oldest first; those known `before` under the same name are
    /// read again only if they are among the `outdated`.
    fn read_list(
        &mut self,
        catalog: &Catalog,
        entry: &Entry,
        head: &Dataset,
        before: Option<&Entry>,
        outdated: &BTreeSet<ObjectId>,
    ) -> Result<Arc<Vec<Arc<DatasetFacts>>>> {
        let known = before.map(|before| before.snapshots.clone()).unwrap_or_default();
        let known: HashMap<ObjectId, &Arc<DatasetFacts>> =
            known.iter().map(|one| (one.dataset.id, one)).collect();
        let mut all = Vec::new();
        let mut kept = HashSet::new();
        if let Some(table) = Table::open(catalog.mos(), head.phys.snapshot_names)? {
            for (name, id) in table.numbers()?.into_iter().filter(|(name, _)| !is_hidden(name)) {
                let id = ObjectId(id);
                check_stored(&name, id)?;
                let name = head.name.snapshot(name);
                match known.get(&id).filter(|one| one.dataset.name == name) {
                    Some(same) if !outdated.contains(&id) => {
                        kept.insert(id);
                        all.push((*same).clone());
                    }
                    _ => {
                        let dataset = catalog.dataset_in(id, name, &entry.directory)?;
                        all.extend(self.read_snapshot(catalog, dataset)?);
                        // Its objects belong here now.
                        kept.insert(id);
                    }
                }
            }
        }
        for (id, gone) in known {
            // With it, those that have got another home are theirs.
            let is_ours = self.owners.get(&id).is_some_and(|(home, _)| *home == entry.directory.id);
            if !kept.contains(&id) && is_ours {
                self.disown_snapshot(gone);
            }
        }
        all.sort_by(|a, b| {
            let key = |one: &DatasetFacts| one.dataset.phys.creation_txg;
            key(a).cmp(&key(b)).then_with(|| a.dataset.name.cmp(&b.dataset.name))
        });
        Ok(Arc::new(all))
    }

    fn read_snapshot(
        &mut self,
        catalog: &Catalog,
        dataset: Dataset,
    ) -> Result<Option<Arc<DatasetFacts>>> {
        let (id, home) = (dataset.id, dataset.phys.directory);
        self.moved |= dataset.phys.next_clones.0 != 0;
        let owner = (home, Part::Snapshot(id));
        self.owners.extend(objects_of(&dataset).map(|object| (object, owner)));
        Ok(DatasetFacts::read(catalog, dataset, &self.none)?.map(Arc::new))
    }
}

/// What a snapshot is read from.
fn objects_of(snapshot: &Dataset) -> impl Iterator<Item = ObjectId> + use<> {
    let phys = &snapshot.phys;
    let all = [snapshot.id, phys.properties, phys.holds, phys.next_clones];
    all.into_iter().filter(|object| object.0 != 0)
}

fn read_usage(catalog: &Catalog, keys: &dyn Keys, head: &DatasetFacts) -> Usage {
    if head.kind != DatasetKind::Filesystem || head.dataset.phys.is_inconsistent() {
        return Usage::Known(Arc::default());
    }
    match catalog.usage(&head.dataset, keys) {
        Ok(usage) if usage.len() > PEOPLE_MAX => Usage::TooMany,
        Ok(usage) => Usage::Known(Arc::new(usage)),
        Err(error) => Usage::Unknown(error),
    }
}

fn read_bookmarks(catalog: &Catalog, head: &Dataset) -> Result<Vec<BookmarkFacts>> {
    let all = catalog.bookmarks(head)?.into_iter();
    let facts = all.map(|(name, bookmark)| {
        let redaction = catalog.redaction(&bookmark)?;
        Ok(BookmarkFacts { name, bookmark, redaction })
    });
    facts.collect()
}

/// Finds out anew where the snapshots are that datasets were cloned from.
fn find_origins(catalog: &Catalog, next: &mut Inventory) -> Result<()> {
    let mut moved = BTreeMap::new();
    for (path, entry) in &next.entries {
        let origin = entry.directory.phys.origin;
        if origin.0 != 0 {
            let home = catalog.phys(origin)?.directory;
            if entry.origin_in != Some(home) {
                moved.insert(path.clone(), home);
            }
        }
    }
    for (path, home) in moved {
        if let Some(entry) = next.entries.get_mut(&path) {
            Arc::make_mut(entry).origin_in = Some(home);
        }
    }
    Ok(())
}
