//! Making the next [`Inventory`] of the one before: what was written since is read again, the rest is
//! shared.
//!
//! Invariant: every object that an entry was read from is in the index of owners or of keys, so that whatever a
//! group wrote leads to the entries that are out of date. After a reading that failed everything is
//! read again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cenote_format::{ObjectId, Txg, dsl_dataset, dsl_directory};

use super::directory::is_hidden;
use super::facts::{DatasetFacts, key_of};
use super::inventory::{BookmarkFacts, Entry, Inventory, Path, Usage};
use super::name::check_stored;
use super::properties::{Entries, read_entries};
use super::side_by_side::SideBySide;
use super::snapshots::Snapshots;
use super::written::{Changed, Written};
use super::{Catalog, Dataset, DatasetKind, Directory, Keys, Table};
use crate::Result;

/// Most people whose usage of one filesystem is kept in memory.
const PEOPLE_MAX: usize = 1 << 16;

/// What of a directory an object tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Itself, its head, properties or permissions.
    Own,
    /// What is below it.
    Children,
    /// Which snapshots there are.
    Snapshots,
    /// One of its snapshots, and the group that was taken in.
    Snapshot(ObjectId, Txg),
    /// Its bookmarks.
    Bookmarks,
}

/// What of a directory is out of date.
#[derive(Clone, Debug, Default)]
struct Outdated {
    children: bool,
    list: bool,
    bookmarks: bool,
    snapshots: BTreeSet<(Txg, ObjectId)>,
}

/// Reads inventories.
#[derive(Default)]
pub struct InventoryReader {
    current: Arc<Inventory>,
    /// The directory that each object belongs to.
    owners: HashMap<ObjectId, (ObjectId, Part)>,
    /// The directories of each key object: clones share that of their origin.
    sealed: HashMap<ObjectId, BTreeSet<ObjectId>>,
    /// `current` and the index say what was on the disks.
    whole: bool,
    /// Directories of clones, and which directory the snapshot they were made of belongs to, and when it was
    /// taken: it may have moved.
    moved: Vec<(ObjectId, (ObjectId, Txg))>,
    /// The table of a dataset without properties.
    none: Entries,
    reads: u64,
    side_by_side: SideBySide,
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
            Changed::Objects(written) if whole => self.follow(catalog, keys, written, rekeyed)?,
            _ => Some(self.read_all(catalog, keys)?),
        };
        if let Some(mut next) = next {
            for (clone, origin) in self.moved.drain(..) {
                let entry = next.paths.get(&clone).and_then(|path| next.entries.get_mut(path));
                if let Some(entry) = entry.filter(|entry| entry.origin_in != Some(origin)) {
                    Arc::make_mut(entry).origin_in = Some(origin);
                }
            }
            self.current = Arc::new(next);
        }
        self.whole = true;
        Ok(self.current.clone())
    }

    /// How many directories and snapshots it has read so far.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// The last one.
    pub fn current(&self) -> &Arc<Inventory> {
        &self.current
    }

    fn read_all(&mut self, catalog: &Catalog, keys: &dyn Keys) -> Result<Inventory> {
        self.owners.clear();
        self.sealed.clear();
        self.moved.clear();
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
        let side_by_side = self.side_by_side.clone();
        let nothing = (&Outdated::default(), &Written::default());
        let entries = side_by_side.each(catalog.walk(top)?, |directory| {
            let mut part = Self { none: self.none.clone(), ..Self::default() };
            part.side_by_side = side_by_side.clone();
            let entry = part.read_entry(catalog, keys, directory, None, nothing)?;
            Ok((entry, part))
        })?;
        for (entry, part) in entries {
            let (id, path) = (entry.directory.id, Path::new(&entry.directory.path));
            self.owners.extend(part.owners);
            self.sealed_by(&entry);
            self.moved.extend(part.moved);
            self.reads += part.reads;
            read.insert(id);
            next.paths.insert(id, path.clone());
            next.entries.insert(path, Arc::new(entry));
        }
        Ok(())
    }

    /// What follows from what was written; `None`: nothing.
    fn follow(
        &mut self,
        catalog: &Catalog,
        keys: &dyn Keys,
        written: &Written,
        rekeyed: bool,
    ) -> Result<Option<Inventory>> {
        let mut outdated: HashMap<ObjectId, Outdated> = HashMap::new();
        let owned = written.objects.iter().filter_map(|object| self.owners.get(object));
        for (directory, part) in owned {
            let of = outdated.entry(*directory).or_default();
            match part {
                Part::Own => {}
                Part::Children => of.children = true,
                Part::Snapshots => of.list = true,
                Part::Snapshot(id, txg) => drop(of.snapshots.insert((*txg, *id))),
                Part::Bookmarks => of.bookmarks = true,
            }
        }
        let sealed = written.objects.iter().filter_map(|object| self.sealed.get(object));
        for directory in sealed.flatten() {
            outdated.entry(*directory).or_default();
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
                self.follow_children(catalog, keys, id, written, &mut next, &mut read)?;
            }
        }
        outdated.retain(|id, _| !read.contains(id));
        let origins = self.read_outdated(catalog, keys, written, &outdated, &mut next)?;
        let mut relabelled: HashMap<ObjectId, Outdated> = HashMap::new();
        for snapshot in origins {
            if let Some((home, Part::Snapshot(id, txg))) = self.owners.get(&snapshot) {
                relabelled.entry(*home).or_default().snapshots.insert((*txg, *id));
            }
        }
        self.read_outdated(catalog, keys, &Written::default(), &relabelled, &mut next)?;
        if rekeyed {
            let entries = self.current.entries.iter().filter(|(_, entry)| entry.key.is_some());
            for (path, _) in entries {
                if let Some(entry) = next.entries.get_mut(path)
                    && let Some(head) = entry.head.clone()
                {
                    Arc::make_mut(entry).usage = read_usage(catalog, keys, &head);
                }
            }
        }
        Ok(Some(next))
    }

    /// Reads again what is out of date, and tells which snapshots have other directories for clones now: where a clone
    /// of a clone was promoted, nothing of the snapshot itself was written.
    fn read_outdated(
        &mut self,
        catalog: &Catalog,
        keys: &dyn Keys,
        written: &Written,
        outdated: &HashMap<ObjectId, Outdated>,
        next: &mut Inventory,
    ) -> Result<BTreeSet<ObjectId>> {
        let mut origins = BTreeSet::new();
        for (id, of) in outdated {
            let Some(path) = next.paths.get(id).cloned() else { continue };
            let directory = catalog.read_directory(*id, path.0.to_string())?;
            let before = next.entries.get(&path).cloned();
            let entry =
                self.read_entry(catalog, keys, directory, before.as_deref(), (of, written))?;
            let origin = entry.directory.phys.origin;
            let known = before.map_or(origin, |before| before.directory.phys.origin);
            if origin != known {
                origins.extend([origin, known]);
            }
            self.sealed_by(&entry);
            next.entries.insert(path, Arc::new(entry));
        }
        Ok(origins)
    }

    /// Follows what came and went below a directory; directories that came are `read`.
    fn follow_children(
        &mut self,
        catalog: &Catalog,
        keys: &dyn Keys,
        id: ObjectId,
        written: &Written,
        next: &mut Inventory,
        read: &mut HashSet<ObjectId>,
    ) -> Result<()> {
        let Some(path) = next.paths.get(&id).cloned() else { return Ok(()) };
        let parent = catalog.read_directory(id, path.0.to_string())?;
        let Some(table) = Table::open(catalog.mos(), parent.phys.child_map)? else {
            return Ok(());
        };
        let mut names = match written.names.get(&parent.phys.child_map) {
            Some(names) => names.clone(),
            None => names_below(&table, &parent, next)?,
        };
        names.retain(|name| !is_hidden(name));
        for name in &names {
            self.forget_tree(&format!("{}/{name}", path.0), next);
        }
        for name in &names {
            let Some(child) = table.number(name)?.map(ObjectId) else { continue };
            check_stored(name, child)?;
            // It may be known by the name that it had.
            if let Some(old) = next.paths.get(&child).cloned() {
                self.forget_tree(&old.0, next);
            }
            let top = catalog.child(&parent, name)?;
            self.read_tree(catalog, keys, &top, next, read)?;
        }
        Ok(())
    }

    /// Takes a directory and all below it out.
    fn forget_tree(&mut self, path: &str, next: &mut Inventory) {
        let top = Path::new(path);
        let below = format!("{path}/");
        let gone: Vec<Path> = next
            .entries
            .from(&top)
            .map(|(path, _)| path.clone())
            .take_while(|at| *at.0 == *path || at.0.starts_with(&below))
            .collect();
        for path in gone {
            let Some(entry) = next.entries.remove(&path) else { continue };
            self.disown(&entry);
            entry.snapshots.iter().for_each(|one| self.disown_snapshot(one));
            next.paths.remove(&entry.directory.id);
        }
    }

    fn disown(&mut self, entry: &Entry) {
        for (object, _) in &entry.objects {
            self.owners.remove(object);
        }
        let key = entry.key.map_or(ObjectId(0), |key| key.object);
        if let Some(sealed) = self.sealed.get_mut(&key) {
            sealed.remove(&entry.directory.id);
            let is_last = sealed.is_empty();
            is_last.then(|| self.sealed.remove(&key));
        }
    }

    fn sealed_by(&mut self, entry: &Entry) {
        if let Some(key) = entry.key {
            self.sealed.entry(key.object).or_default().insert(entry.directory.id);
        }
    }

    fn disown_snapshot(&mut self, snapshot: &DatasetFacts) {
        for object in objects_of(&snapshot.dataset) {
            self.owners.remove(&object);
        }
    }

    /// Reads a directory, `before` being what was known of it, of which beside itself only what is
    /// `outdated` is read again, since something was written.
    fn read_entry(
        &mut self,
        catalog: &Catalog,
        keys: &dyn Keys,
        directory: Directory,
        before: Option<&Entry>,
        outdated: (&Outdated, &Written),
    ) -> Result<Entry> {
        let (id, phys) = (directory.id, directory.phys.clone());
        let directory = Arc::new(directory);
        self.reads += 1;
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
        let field = |key: &str| catalog.directory_field(&directory, key);
        let counts = [
            field(dsl_directory::KEY_FILESYSTEM_COUNT)?,
            field(dsl_directory::KEY_SNAPSHOT_COUNT)?,
        ];
        let origin_in = match phys.origin {
            ObjectId(0) => None,
            origin => {
                let origin = catalog.phys(origin)?;
                Some((origin.directory, origin.creation_txg))
            }
        };
        let mut entry = Entry {
            permissions: Arc::new(permissions),
            usage: Usage::Known(Arc::default()),
            entries,
            head: None,
            snapshots: Snapshots::default(),
            bookmarks: Arc::default(),
            bookmark_table: ObjectId(0),
            counts,
            snapshots_changed: catalog.snapshots_changed(&directory)?,
            resume_token: None,
            filled: None,
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
        (outdated, written): (&Outdated, &Written),
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
        let (token, filled) = catalog.resume_token_in(&head)?;
        entry.resume_token = token;
        entry.filled = filled.as_ref().map(|head| head.directory.id);
        objects.extend(filled.map(|head| (head.id, Part::Own)));
        // What is read of the same pointer is the same, however the dataset is called; but of what is being received
        // nothing is read.
        let is_same = |old: &Dataset| {
            old.phys.pointer == head.phys.pointer
                && old.phys.is_inconsistent() == head.phys.is_inconsistent()
        };
        let known =
            before.filter(|before| before.head.as_ref().is_some_and(|old| is_same(&old.dataset)));
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
        let is_same = |before: &&Entry| {
            let list = before.head.as_ref().map(|old| old.dataset.phys.snapshot_names);
            list == Some(head.phys.snapshot_names)
        };
        let names = written.names.get(&head.phys.snapshot_names);
        entry.snapshots = match before.filter(is_same) {
            Some(before) if !outdated.list || names.is_some() => {
                let names = names.filter(|_| outdated.list);
                self.read_some(catalog, entry, &head, before, &outdated.snapshots, names)?
            }
            _ => self.read_list(catalog, entry, &head, before)?,
        };
        Ok(())
    }

    /// The snapshots of a directory, of which only `names` came or went since `before`, and `some` are read
    /// again.
    fn read_some(
        &mut self,
        catalog: &Catalog,
        entry: &Entry,
        head: &Dataset,
        before: &Entry,
        some: &BTreeSet<(Txg, ObjectId)>,
        names: Option<&BTreeSet<String>>,
    ) -> Result<Snapshots> {
        let mut all = before.snapshots.clone();
        for name in names.into_iter().flatten() {
            if let Some(gone) = all.remove(name) {
                self.disown_if_ours(entry, &gone);
            }
        }
        for (txg, id) in some {
            let Some(old) = all.taken_in(*txg, *id).cloned() else { continue };
            self.disown_snapshot(&old);
            let dataset = catalog.dataset_in(*id, old.dataset.name.clone(), &entry.directory)?;
            if let Some(facts) = self.read_snapshot(catalog, dataset)? {
                all.insert(facts);
            }
        }
        let Some(names) = names else { return Ok(all) };
        let Some(table) = Table::open(catalog.mos(), head.phys.snapshot_names)? else {
            return Ok(all);
        };
        for name in names.iter().filter(|name| !is_hidden(name)) {
            let Some(id) = table.number(name)?.map(ObjectId) else { continue };
            check_stored(name, id)?;
            let dataset = catalog.dataset_in(id, head.name.snapshot(name), &entry.directory)?;
            if let Some(facts) = self.read_snapshot(catalog, dataset)? {
                all.insert(facts);
            }
        }
        Ok(all)
    }

    /// The snapshots that `head` lists, all read again.
    fn read_list(
        &mut self,
        catalog: &Catalog,
        entry: &Entry,
        head: &Dataset,
        before: Option<&Entry>,
    ) -> Result<Snapshots> {
        for gone in before.iter().flat_map(|before| before.snapshots.iter()) {
            self.disown_if_ours(entry, gone);
        }
        let mut all = Snapshots::default();
        if let Some(table) = Table::open(catalog.mos(), head.phys.snapshot_names)? {
            let mut listed = table.numbers()?;
            listed.retain(|(name, _)| !is_hidden(name));
            let read = self.side_by_side.each(listed, |(name, id)| {
                let id = ObjectId(id);
                check_stored(&name, id)?;
                let dataset =
                    catalog.dataset_in(id, head.name.snapshot(&name), &entry.directory)?;
                Ok((dataset.clone(), DatasetFacts::read(catalog, dataset, &self.none)?))
            })?;
            for (dataset, facts) in read {
                if let Some(facts) = self.own_snapshot(&dataset, facts) {
                    all.insert(facts);
                }
            }
        }
        Ok(all)
    }

    /// A snapshot went; if it has got another home, its objects are owned from there.
    fn disown_if_ours(&mut self, entry: &Entry, gone: &DatasetFacts) {
        let owner = self.owners.get(&gone.dataset.id);
        if owner.is_some_and(|(home, _)| *home == entry.directory.id) {
            self.disown_snapshot(gone);
        }
    }

    fn read_snapshot(
        &mut self,
        catalog: &Catalog,
        dataset: Dataset,
    ) -> Result<Option<Arc<DatasetFacts>>> {
        let facts = DatasetFacts::read(catalog, dataset.clone(), &self.none)?;
        Ok(self.own_snapshot(&dataset, facts))
    }

    /// A snapshot was read: what it was read from is its own.
    fn own_snapshot(
        &mut self,
        dataset: &Dataset,
        facts: Option<DatasetFacts>,
    ) -> Option<Arc<DatasetFacts>> {
        let (id, home, txg) = (dataset.id, dataset.phys.directory, dataset.phys.creation_txg);
        self.reads += 1;
        let owner = (home, Part::Snapshot(id, txg));
        self.owners.extend(objects_of(dataset).map(|object| (object, owner)));
        let facts = facts.map(Arc::new);
        let clones = facts.iter().flat_map(|facts| &facts.clones);
        self.moved.extend(clones.map(|clone| (*clone, (home, txg))));
        facts
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

/// The names that a list of children has, and those that are known.
fn names_below(table: &Table, parent: &Directory, known: &Inventory) -> Result<BTreeSet<String>> {
    let mut names: BTreeSet<String> = table.numbers()?.into_iter().map(|(name, _)| name).collect();
    let below = format!("{}/", parent.path);
    let top = Path::new(&parent.path);
    let entries = known.entries.from(&top).skip(1).map(|(_, entry)| &entry.directory);
    let entries = entries.take_while(|directory| directory.path.starts_with(&below));
    let own = entries.filter(|directory| directory.phys.parent == parent.id);
    names.extend(own.map(|directory| directory.component().to_owned()));
    Ok(names)
}
